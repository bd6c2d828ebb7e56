"""A policy in a file of its own: ``FILE.py:CLASS`` in place of a name.

The file stands alone: it may import what is installed, but not the files beside it, so that a copy
of it is the same policy. Reading it runs it.
"""

from __future__ import annotations

import difflib
import functools
import re
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location

from slurm_dl.model.errors import ConfigError
from slurm_dl.text import safe, shown

MODULE = "slurm_dl_policy_file_"
"""Modules of such files are called this and a number; no process but this one can import them."""

_FORM = re.compile(r"(.*?\.py)(?::([^:]*))?(?::(.*))?", re.DOTALL)
_LONGEST = 300


def is_file(word: str) -> bool:
    """True if *word* names a file, not an installed policy."""
    return "/" in word or _FORM.fullmatch(word) is not None


def split(word: str) -> tuple[str, str | None]:
    """The policy's name and the preset, None if there is none, of ``NAME[:PRESET]``.

    ``FILE.py:CLASS`` is a name, too.
    """
    match = _FORM.fullmatch(word) if is_file(word) else None
    if match is None:
        name, colon, preset = word.partition(":")
        return (word, None) if is_file(word) else (name, preset if colon else None)
    path, kind, preset = match.groups()
    return (path if kind is None else f"{path}:{kind}"), preset


def short(name: str) -> str:
    """*name* without the folder of a file."""
    return name.rpartition("/")[2] if is_file(name) else name


def parts(name: str) -> tuple[str, str]:
    """The file's path and the name of the class.

    Raises:
        ConfigError: *name* is not of this form.
    """
    path, colon, kind = name.rpartition(":")
    if not path.endswith(".py") or not colon or not kind.isidentifier():
        msg = f"policy {shown(name, _LONGEST)}: must be FILE.py:CLASS, such as ./mine.py:Mine"
        raise ConfigError(msg)
    if "," in path or ":" in path:
        msg = f"policy {shown(name, _LONGEST)}: no comma or colon may be in the path; rename it"
        raise ConfigError(msg)
    return path, kind


def path_of(name: str) -> str | None:
    """The path of the file; None if *name* names none."""
    return parts(name)[0] if is_file(name) else None


def find(name: str) -> type[object]:
    """The class that *name* stands for; the same one as long as the file's content is the same.

    Raises:
        ConfigError: There is no such file or class, or the file cannot be run.
    """
    path, wanted = parts(name)
    try:
        # Not by an import, which would leave compiled code beside the file.
        source = SourceFileLoader(MODULE, path).get_data(path)
    except OSError as err:
        msg = f"policy {shown(name, _LONGEST)}: {shown(path, _LONGEST)}: {err.strerror}"
        raise ConfigError(msg) from err
    module, members = _run(path, source)
    if not isinstance(kind := members.get(wanted), type):
        own = [n for n, v in members.items() if isinstance(v, type) and v.__module__ == module]
        near = difflib.get_close_matches(wanted, own, n=1, cutoff=0) or ["none"]
        said = f"there is no class {safe(wanted)}; the nearest is {near[0]}"
        msg = f"policy {shown(name, _LONGEST)}: {said}"
        raise ConfigError(msg)
    return kind


@functools.lru_cache(maxsize=64)
def _run(path: str, source: bytes) -> tuple[str, dict[str, object]]:
    """The name of the file's module, and what is in it."""
    name = f"{MODULE}{sum(known.startswith(MODULE) for known in list(sys.modules))}"
    loader = SourceFileLoader(name, path)
    spec = spec_from_file_location(name, path, loader=loader)
    assert spec is not None  # noqa: S101 - there is a loader
    module = module_from_spec(spec)
    # Dataclasses look up the types of their fields there.
    sys.modules[name] = module
    try:
        exec(loader.source_to_code(source, path), vars(module))  # noqa: S102
    except (Exception, SystemExit) as err:
        del sys.modules[name]
        why = safe(" ".join(f"{type(err).__name__}: {err}".split()), _LONGEST)
        msg = f"policy file {shown(path, _LONGEST)}, line {_line(err, path)}: {why}"
        raise ConfigError(msg) from err
    return name, vars(module)


def _line(err: BaseException, path: str) -> int:
    """The last line of the file at *path* that *err* came through."""
    line = (err.lineno or 0) if isinstance(err, SyntaxError) and err.filename == path else 0
    frame = err.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == path:
            line = frame.tb_lineno
        frame = frame.tb_next
    return line
