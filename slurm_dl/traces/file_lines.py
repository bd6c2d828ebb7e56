"""Bytes of a trace file as lines: packed or not, of any size, never more than one line in memory.

A line that is too long is passed over, not read: a file without line ends must not fill the memory.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, cast

from slurm_dl.model.errors import ConfigError

MAX_LINE_BYTES: Final = 1 << 16
MAX_UNPACKED_BYTES: Final = 2 << 30
"""What a packed file may hold; the largest public trace is 2.0 GB, and a bomb is larger."""

_GZIP: Final = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Head:
    """What a file starts with, from which its format is told."""

    path: Path  # The file, or a directory
    text: str  # Its first bytes as text, `MAX_LINE_BYTES` at most; empty for a directory

    @property
    def first_line(self) -> str:
        """The first line that is not blank."""
        return next((line for line in self.text.splitlines() if line.strip()), "")


def file_sha256(path: Path, pattern: str = "*") -> str:
    """SHA-256 of *path* as it is stored, in hexadecimal.

    Args:
        pattern: Of a directory it is that of the files which match this, by their order.

    Raises:
        ConfigError: It cannot be read.
    """
    if path.is_dir():
        files = sorted(file for file in path.glob(pattern) if file.is_file())
        return hashlib.sha256(" ".join(map(file_sha256, files)).encode()).hexdigest()
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as err:
        msg = f"{path}: {err.strerror}"
        raise ConfigError(msg) from err


def words(header: str, delimiter: str) -> list[str]:
    """The column names of a header, in lower case, without quotes."""
    try:
        found = next(csv.reader([header], delimiter=delimiter, skipinitialspace=True), [])
    except csv.Error:
        found = header.split(delimiter)
    return [word.strip().strip('"').lower() for word in found]


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """The bytes of *path*, unpacked if it is packed with gzip.

    Raises:
        ConfigError: It cannot be read, also if that turns out on the way.
    """
    if path.exists() and not path.is_file():
        msg = f"{path}: not a file"
        raise ConfigError(msg)
    try:
        with path.open("rb") as plain:
            if plain.peek(len(_GZIP))[: len(_GZIP)] != _GZIP:
                yield plain
                return
            with gzip.open(plain) as unpacked:
                yield cast("BinaryIO", unpacked)
    except (OSError, EOFError, zlib.error) as err:
        reason = err.strerror if isinstance(err, OSError) and err.strerror else err
        msg = f"{path}: cannot be read: {reason}"
        raise ConfigError(msg) from err


def read_head(path: Path) -> Head:
    """The beginning of *path*.

    Raises:
        ConfigError: It cannot be read.
    """
    if path.is_dir():
        return Head(path, "")
    with opened(path) as stream:
        return Head(path, _text(stream.read(MAX_LINE_BYTES)).removeprefix("\ufeff"))


def numbered_lines(stream: BinaryIO, file: str) -> Iterator[tuple[int, str | None]]:
    """Each line that is not blank with its number, 1 is the first; None for one too long.

    Raises:
        ConfigError: There is more in a packed file than may be.
    """
    number = 0
    unpacked = 0
    while raw := stream.readline(MAX_LINE_BYTES):
        number += 1
        unpacked += len(raw)
        too_long = False
        while len(raw) == MAX_LINE_BYTES and not raw.endswith(b"\n"):
            too_long = True
            raw = stream.readline(MAX_LINE_BYTES)
            unpacked += len(raw)
        if unpacked > MAX_UNPACKED_BYTES:
            msg = f"{file}: more than {MAX_UNPACKED_BYTES >> 30} GiB; cut the trace into parts"
            raise ConfigError(msg)
        if too_long:
            yield number, None
            continue
        text = _text(raw).rstrip("\r\n")
        if number == 1:
            text = text.removeprefix("\ufeff")
        if text and not text.isspace():
            yield number, text


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", errors="replace")
