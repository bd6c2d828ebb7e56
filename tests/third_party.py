"""The policy of examples/policy, and packages of a site, as if pip had installed them."""

from __future__ import annotations

import os
import shutil
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "policy"
TUTORIAL = ROOT / "docs" / "develop" / "add-a-policy.md"


def install(directory: Path) -> dict[str, str]:
    """Lay its module and what a wheel says of it into *directory*; the environment to see it."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text("utf-8"))["project"]
    name, version = project["name"], project["version"]
    info = directory / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", "utf-8"
    )
    points = "".join(
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in entries.items())
        for group, entries in project["entry-points"].items()
    )
    (info / "entry_points.txt").write_text(points, "utf-8")
    shutil.copy(EXAMPLE / "small_first.py", directory)
    return environment(directory)


def environment(packages: Path) -> dict[str, str]:
    """PATH with our commands and Python in an environment that has *packages* as well."""
    venv, ours = packages / "venv", Path(sys.executable).parent
    libraries = venv / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    libraries.mkdir(parents=True)
    paths = [str(packages), *(path for path in sys.path if path.endswith("site-packages"))]
    (libraries / "all.pth").write_text(
        "".join(f"import site; site.addsitedir({path!r})\n" for path in paths), "utf-8"
    )
    shutil.copy(ours.parent / "pyvenv.cfg", venv)
    (venv / "bin").mkdir()
    for name in ("python", "python3"):
        (venv / "bin" / name).symlink_to(Path(sys.executable).resolve())
    for path in ours.glob("dl*"):
        shutil.copy(path, venv / "bin")
    path = f"{venv}/bin{os.pathsep}{ours}{os.pathsep}{os.environ['PATH']}"
    # The latter for pytest, which is not isolated.
    return {"PATH": path, "PYTHONPATH": str(packages)}
