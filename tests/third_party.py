"""The policy of examples/policy as if pip had installed it."""

from __future__ import annotations

import shutil
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
    return {"PYTHONPATH": str(directory)}
