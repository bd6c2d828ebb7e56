"""One parser as a fuzzer sees it: a function of bytes that may raise its own errors alone."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

MOST_BYTES = 60_000
"""Longer input is cut: some targets put it through a pipe, and bounds are tested by their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One parser.

    Attributes:
        name: What the command, the corpus and the table in the documents call it.
        parse: Gives the bytes to the parser.
        own: The errors that the parser may raise; none: it must understand or pass over anything.
        source: Who wrote what it reads, for the table.
        parser: Module and function, below ``slurm_dl``.
        seeds: Inputs of the right form, to begin with.
    """

    name: str
    parse: Callable[[bytes], object]
    own: tuple[type[BaseException], ...] = ()
    source: str
    parser: str
    seeds: tuple[bytes, ...]

    def run(self, data: bytes) -> None:
        """Parse *data*; whatever leaves this is a bug of the parser."""
        try:
            self.parse(data[:MOST_BYTES])
        except self.own:
            return


def text(data: bytes) -> str:
    """What Slurm's tools said, as the project decodes it."""
    return data.decode("utf-8", errors="replace")


def argument(data: bytes) -> str:
    """A word of a command line, as Python decodes it: no NUL, any other bytes."""
    return data.replace(b"\0", b"").decode("utf-8", errors="surrogateescape")


_FOLDERS: list[Path] = []


def folder() -> Path:
    """A directory for what is parsed out of files; where temporary files go, unless set before."""
    if not _FOLDERS:
        _FOLDERS.append(Path(tempfile.mkdtemp(prefix="slurm_dl-fuzz-")))
    return _FOLDERS[0]


def a_file(data: bytes, name: str = "input") -> Path:
    """*data* in a file of its own; the same file each time."""
    path = folder() / name
    path.write_bytes(data)
    return path
