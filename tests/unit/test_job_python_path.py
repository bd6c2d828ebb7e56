"""The job's Python finds slurm_dl.job under dlrun, whichever it is, and the user's own first."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import pythons

from slurm_dl import __version__
from slurm_dl.job import run

ROOT = Path(__file__).parents[2]
PLACE = str(ROOT / "slurm_dl/job/pythonpath")
DLRUN = Path(sys.executable).with_name("dlrun")
SAYS = (
    "import sys, slurm_dl; from slurm_dl import job; from slurm_dl.job import run_dir\n"
    "print(slurm_dl.__version__, job.__file__, run_dir())\n"
    "print(*sys.path, sep=chr(10))\n"
)


@pytest.mark.parametrize(
    ("given", "place", "expected"),
    [
        (None, PLACE, PLACE),
        ("", PLACE, PLACE),  # no entry, which would be the current directory
        ("/a", PLACE, f"/a:{PLACE}"),
        ("/a:/b:", PLACE, f"/a:/b::{PLACE}"),  # theirs, as Python reads it
        (PLACE, PLACE, None),
        (f"{PLACE}:/a", PLACE, None),
        (None, "/opt/a:b", None),  # it would make two entries, the second of them relative
    ],
)
def test_the_directory_comes_last_and_once(
    monkeypatch: pytest.MonkeyPatch, given: str | None, place: str, expected: str | None
) -> None:
    """Nothing is prepended, and a dlrun within a dlrun adds nothing."""
    monkeypatch.setattr(run, "PYTHON_PATH", Path(place))
    environ = {} if given is None else {"PYTHONPATH": given}

    assert run._python_path(environ) == ({} if expected is None else {"PYTHONPATH": expected})


def test_the_directory_holds_one_package_and_belongs_to_the_installation() -> None:
    """No name of the standard library or of the user's can be found there."""
    place = Path(PLACE)
    files = {path for path in place.rglob("*") if "__pycache__" not in path.parts}

    assert files == {place / "slurm_dl", place / "slurm_dl/__init__.py"}
    assert {path.stat().st_uid for path in files | {place}} == {Path(run.__file__).stat().st_uid}
    assert not [path for path in place.rglob("*") if path.is_symlink()]


def own_slurm_dl(directory: Path) -> Path:
    """A package of the user's, of another version."""
    package = directory / "slurm_dl"
    (package / "job").mkdir(parents=True)
    (package / "__init__.py").write_text("__version__ = 'mine'\n")
    (package / "job/__init__.py").write_text("def run_dir(): return 'mine'\n")
    return package


@pytest.mark.parametrize("version", pythons.VERSIONS)
@pytest.mark.parametrize("where", ["none", "script", "PYTHONPATH", "site-packages", "no package"])
def test_the_jobs_python_imports_it_and_the_users_own_first(
    tmp_path: Path, version: str, where: str
) -> None:
    """Theirs may lie anywhere; a mere directory of the name is none. Our packages stay hidden."""
    venv = tmp_path / "venv"
    options = ["-m", "venv", "--without-pip"]
    subprocess.run([pythons.python(version), *options, venv], check=True)
    (site,) = venv.glob("lib/python3*/site-packages")
    (tmp_path / "job").mkdir()
    script = tmp_path / "job/train.py"
    script.write_text(SAYS)
    environ = {"PATH": os.environ["PATH"], "SLURM_DL_RUN_DIR": str(tmp_path / "run")}
    if where == "PYTHONPATH":
        environ["PYTHONPATH"] = str(tmp_path / "theirs")
    if where == "no package":
        (site / "slurm_dl").mkdir()
    directory = {"script": tmp_path / "job", "PYTHONPATH": tmp_path / "theirs"}.get(where, site)
    theirs = None if where in ("none", "no package") else own_slurm_dl(directory)

    done = subprocess.run(
        [DLRUN, "--", venv / "bin/python", script],
        env=environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )

    told, *path = done.stdout.splitlines()
    if theirs is None:
        assert told == f"{__version__} {ROOT}/slurm_dl/job/__init__.py {tmp_path}/run"
    else:
        assert told == f"mine {theirs}/job/__init__.py mine"
    assert [entry for entry in path if entry.startswith((str(ROOT), sys.prefix))] == [PLACE]


def test_two_installations_on_one_path_find_each_other_once(tmp_path: Path) -> None:
    """One dlrun within the other: the first makes way for the second, which stays."""
    second = tmp_path / "second/slurm_dl"
    second.mkdir(parents=True)
    for name in ("__init__.py", "job"):
        (second / name).symlink_to(ROOT / "slurm_dl" / name)
    path = f"{PLACE}:{second}/job/pythonpath"

    code = "import slurm_dl.job; print(slurm_dl.__file__)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout == f"{second}/__init__.py\n"


SINCE_3_9 = {"dict", "frozenset", "list", "set", "tuple", "type"}
"""Built-in types that Python 3.8 cannot subscript, as little as classes of collections.abc."""


def generic_at_run_time(text: str) -> list[str]:
    """Types of `SINCE_3_9`, or of collections.abc, that are subscripted outside annotations."""
    tree = ast.parse(text)
    names = SINCE_3_9 | {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("collections")
        for alias in node.names
    }
    annotations = [
        getattr(node, field)
        for node in ast.walk(tree)
        for field in ("annotation", "returns")
        if getattr(node, field, None) is not None
    ]
    hidden = {id(part) for annotation in annotations for part in ast.walk(annotation)}
    return [
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Subscript)
        and id(node) not in hidden
        and isinstance(node.value, ast.Name)
        and node.value.id in names
    ]


def in_the_wheel() -> list[Path]:
    """Modules of the wheel for jobs, by its own list of files."""
    told = tomllib.loads((ROOT / "tools/packaging/job/pyproject.toml").read_text("utf-8"))
    names = told["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"].values()
    paths = [ROOT / name for name in names]
    inside = [module for path in paths for module in path.rglob("*.py")]
    return sorted([*inside, *(path for path in paths if path.suffix == ".py")])


@pytest.mark.parametrize("path", in_the_wheel(), ids=lambda path: path.stem)
def test_it_runs_on_python_3_8(path: Path) -> None:
    """Nothing is subscripted there that 3.8 refuses when the module is imported or runs."""
    assert generic_at_run_time(path.read_text("utf-8")) == []


def test_what_3_8_refuses_is_found() -> None:
    """Aliases and calls are; annotations are never evaluated."""
    head = "from __future__ import annotations\nfrom collections.abc import Callable\n"
    refused = (
        "A = Callable[[int], str]\ndef f(x: list[int]) -> Callable[[], str]:\n    return set[A]()"
    )

    assert generic_at_run_time(head + refused) == ["Callable[[int], str]", "set[A]"]
