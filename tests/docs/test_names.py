"""Names of ours in docstrings and on the map of the architecture: what they name is there."""

from __future__ import annotations

import ast
import builtins
import pkgutil
import re
from collections.abc import Iterator
from functools import cache
from itertools import chain, pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "slurm_dl"
NAME = re.compile(r"(?<!`)`([A-Za-z_*][\w./*]*)`(?!`)")


@cache
def trees() -> dict[Path, ast.Module]:
    """All modules of the package, parsed."""
    return {path: ast.parse(path.read_text("utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}


def pairs(path: Path, tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Names that the module at *path* defines, each after that of its package, module or class."""
    own = path.parent if path.name == "__init__.py" else path.with_suffix("")
    yield own.parent.name, own.name
    for node in [tree, *(n for n in ast.walk(tree) if isinstance(n, ast.ClassDef))]:
        name = node.name if isinstance(node, ast.ClassDef) else own.name
        for part in ast.walk(node):
            if isinstance(part, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.alias):
                yield name, part.name
            elif isinstance(part, ast.arg):
                yield name, part.arg
            elif isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store):
                yield name, part.attr
        for part in node.body:
            if isinstance(part, ast.Assign | ast.AnnAssign):
                stored = (n for n in ast.walk(part) if isinstance(n, ast.Name))
                yield from ((name, n.id) for n in stored if isinstance(n.ctx, ast.Store))


@cache
def known() -> set[tuple[str, str]]:
    """`pairs` of all modules; and each name by itself, Python's own too, after an empty one."""
    ours = {pair for path, tree in trees().items() for pair in pairs(path, tree)}
    return ours | {("", name) for name in {*dir(builtins), *chain(*ours)}}


def is_there(name: str) -> bool:
    """Whether *name* is a path or a name of ours, or can be imported from elsewhere."""
    if "/" in name:
        found = (top.glob(name.replace("NAME", "*").rstrip("/")) for top in (PACKAGE, ROOT))
        return any(True for _ in chain(*found))
    parts = name.split(".")
    if known().issuperset(pairwise(parts if len(parts) > 1 else ["", name])):
        return True
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


def test_names_in_docstrings_are_there() -> None:
    """A name in single back-ticks is one of the code; settings and commands have two."""
    stale = {
        f"{path.relative_to(ROOT)}: {name}"
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        for name in NAME.findall(str(node.value.value))
        if not is_there(name)
    }

    assert stale == set()


def test_files_on_the_map_of_the_architecture_are_there() -> None:
    """Paths are those of `slurm_dl`, or of the checkout."""
    paths = NAME.findall((ROOT / "docs/develop/architecture.md").read_text("utf-8"))

    assert [path for path in paths if "/" in path and not is_there(path)] == []


@pytest.mark.parametrize("name", ["Snapshot.now_h", "engine.nothing", "engine/nothing.py"])
def test_a_stale_name_is_found(name: str) -> None:
    """Its container may be there, and another name of it."""
    assert not is_there(name)
