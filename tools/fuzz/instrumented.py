"""A target in a process of atheris: instrumented once, forked for each target."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import atheris

from tools.fuzz.target import Target


def instrumented_targets() -> Mapping[str, Target]:
    """All targets; what they import is instrumented, which takes its time."""
    # It names each of some 300 modules.
    with (
        contextlib.redirect_stderr(io.StringIO()),
        atheris.instrument_imports(include=["slurm_dl", "yaml"]),
    ):
        from tools.fuzz.targets import TARGETS  # noqa: PLC0415 - instrumented as it is imported
    return TARGETS


def fuzz(target: Target, arguments: Sequence[str], *, log: Path, broke: Path) -> str:
    """Fuzz *target* with libFuzzer's *arguments* in a process of its own; what that said.

    Args:
        log: Where it says it.
        broke: Directory for an input that breaks the parser.
    """

    def once(data: bytes) -> None:
        try:
            target.run(data)
        except BaseException:
            (broke / "input").write_bytes(data)
            raise

    pid = os.fork()
    if not pid:
        # Nothing of this process may run on in the child, whatever happens.
        try:
            said = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(said, 1)
            os.dup2(said, 2)
            atheris.Setup([sys.argv[0], *arguments], once)
            atheris.Fuzz()
        finally:
            os._exit(70)
    os.waitpid(pid, 0)
    return log.read_text(encoding="utf-8", errors="replace")
