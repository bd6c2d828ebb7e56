"""Modules and files of a command, and its time beside a Python that does nothing."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from patience import PATIENCE

HEAVY = frozenset(
    {
        *("numpy", "pydantic", "pydantic_core", "yaml", "rich", "annotated_types", "asyncio"),
        *("typing_extensions", "ClusterShell", "structlog", "textual", "scipy", "secrets"),
        *("slurm_dl.config", "slurm_dl.engine", "slurm_dl.policies", "slurm_dl.model.jobs"),
    }
)
"""Modules that no command of users waits for."""

_PROBE = """
import atexit, importlib, sys
report, name = open(sys.argv.pop(1), "w"), sys.argv.pop(1)
read = []
def note(event, args):
    if event == "open" and "/slurm_dl.yaml" in str(args[0]):
        read.append(f"OPENED:{args[0]}")
sys.addaudithook(note)
atexit.register(lambda: print(*sys.modules, *read, file=report))
sys.exit(importlib.import_module(f"slurm_dl.cli.{name}.command").main())
"""


def loaded(name: str, *args: str, env: Mapping[str, str], cwd: Path) -> tuple[str, set[str]]:
    """Output of a command, and its modules; ``OPENED:PATH`` if it opens a slurm_dl.yaml.

    Raises:
        CalledProcessError: It failed.
    """
    report = cwd / "loaded"
    done = subprocess.run(
        [sys.executable, "-I", "-c", _PROBE, str(report), name, *args],
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60 * PATIENCE,
        check=True,
    )
    return done.stdout, set(report.read_text("utf-8").split())


def times_as_long(argv: Sequence[str], *, env: Mapping[str, str], cwd: Path) -> float:
    """How many times as long *argv* takes as ``python -I -c pass``, each at its best of nine."""

    def took_s(words: Sequence[str]) -> float:
        began_s = time.perf_counter()
        subprocess.run(words, cwd=cwd, env=env, capture_output=True, check=True)
        return time.perf_counter() - began_s

    nothing = [sys.executable, "-I", "-c", "pass"]
    pairs = [(took_s(nothing), took_s(argv)) for _ in range(9)]
    return min(took for _, took in pairs) / min(took for took, _ in pairs)
