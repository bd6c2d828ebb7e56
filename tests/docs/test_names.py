"""Names of ours in docstrings and on the map of the architecture: what they name is there."""

from __future__ import annotations

import ast
import builtins
import pkgutil
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, pairwise
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "slurm_dl"
NAME = re.compile(r"(?<!`)`([A-Za-z_*][\w./*]*)`(?!`)")
FIELD = {
    **dict.fromkeys((ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.alias), "name"),
    ast.arg: "arg",
    ast.Attribute: "attr",
    ast.Name: "id",
}
STALE = ("Snapshot.now_h", "engine.nothing", "engine/nothing.py")


def pairs(path: Path, nodes: list[ast.AST]) -> Iterator[tuple[str, str]]:
    """Names that the module at *path* defines, each after that of its package, module or class."""
    own = path.parent if path.name == "__init__.py" else path.with_suffix("")
    yield own.parent.name, own.name
    inside = {node.name: ast.walk(node) for node in nodes if isinstance(node, ast.ClassDef)}
    for container, parts in {own.name: nodes, **inside}.items():
        for part in parts:
            if (field := FIELD.get(type(part))) and not isinstance(
                getattr(part, "ctx", None), ast.Load
            ):
                yield container, getattr(part, field)


def is_there(name: str, known: set[tuple[str, str]]) -> bool:
    """Whether *name* is a path, or in *known*, or can be imported from elsewhere."""
    if "/" in name:
        return any(any(top.glob(name.replace("NAME", "*"))) for top in (PACKAGE, ROOT))
    if known.issuperset(pairwise(name.split(".") if "." in name else ("", name))):
        return True
    with suppress(ImportError, AttributeError):
        return pkgutil.resolve_name(name) is not None
    return False


def test_names_in_docstrings_and_files_on_the_map_are_there() -> None:
    """A name in single back-ticks is one of the code; settings and commands have two."""
    known: set[tuple[str, str]] = set()
    used = {("", name) for name in STALE}
    for path in PACKAGE.rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_bytes())))
        known.update(pairs(path, nodes))
        alone = (n.value for n in nodes if isinstance(n, ast.Expr))
        texts = (str(value.value) for value in alone if isinstance(value, ast.Constant))
        used |= {(path.name, name) for text in texts for name in NAME.findall(text)}
    known |= {("", name) for name in {*dir(builtins), *chain(*known)}}
    on_the_map = NAME.findall((ROOT / "docs/develop/architecture.md").read_text("utf-8"))
    used |= {("architecture.md", name) for name in on_the_map if "/" in name}

    stale = {(where, name) for where, name in used if not is_there(name, known)}

    assert stale == {("", name) for name in STALE}
