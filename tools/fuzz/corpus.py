"""The corpus in the repository: for each target a directory of small inputs, named by their hash.

Every input that once broke a parser stays in it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tools.fuzz.target import Target

DIRECTORY: Final = Path(__file__).parent / "corpus"
MOST_FILES: Final = 12
"""Added at once for one target."""


def inputs(target: Target) -> Iterator[tuple[str, bytes]]:
    """Its seeds and what lies in its directory, with a name for each."""
    for number, seed in enumerate(target.seeds):
        yield f"seed {number}", seed
    for path in sorted((DIRECTORY / target.name).glob("*")):
        yield path.name, path.read_bytes()


def keep(target: Target, data: bytes, prefix: str = "") -> Path:
    """Put *data* into the target's directory."""
    directory = DIRECTORY / target.name
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{prefix}{hashlib.sha256(data).hexdigest()[:16]}"
    path.write_bytes(data)
    return path


def huge() -> Iterator[tuple[str, bytes]]:
    """What every parser must refuse or read quickly: sizes, depths and bytes out of all bounds."""
    yield "nothing", b""
    yield "zeros", bytes(30_000)
    yield "a long line", b"a" * 30_000
    yield "many lines", b"a\n" * 10_000
    yield "brackets", b"[" * 30_000
    yield "braces", b'{"a":' * 6_000
    yield "braces of ours", b'{"slurm_dl":' * 5_000
    yield "YAML in depth", b"- " * 10_000
    yield "YAML that multiplies", _multiplying()
    yield "a long number", b"9" * 30_000
    yield "a power", b"1e999999999"
    yield "many nodes", b"n[0-999999999]"
    yield "nodes times nodes", b"n[1-99999]" * 100
    yield "many tasks", b"7_[0-4000000:1,0-4000000,5-9]"
    yield "commas", b"," * 30_000
    yield "bars", b"|" * 30_000
    yield "equals", b"a=" * 15_000
    yield "parentheses", b"(" * 30_000
    yield "quotes", b'"' * 30_000
    yield "spaces", b" " * 30_000
    yield "a terminal's words", b"\x1b]0;x\x07\x1b[2J\x9b\r\n" * 100
    yield "bytes that are no UTF-8", bytes(range(256)) * 50
    yield "other digits", "١٢٣\u2028\u202e\ufeff".encode() * 10
    yield "half a character", b'"\\ud800"'


def _multiplying() -> bytes:
    lines = ["a0: &a0 [x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    return "\n".join(lines).encode()
