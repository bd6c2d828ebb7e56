"""The directories of a run of tests, and what ends all that an interrupted run has left."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
from pathlib import Path

from slurm_dl.model.errors import SlurmDlError
from slurm_dl.sandbox import Sandbox


def new_directory() -> Path:
    """An empty directory that every user can enter and whose name is short.

    It lies in the directory of the run that this process belongs to, if any, and is swept with it.
    """
    run = os.environ.get("SLURM_DL_TEST_RUN")
    made = tempfile.mkdtemp(dir=run) if run else tempfile.mkdtemp(prefix="sdl-", dir="/tmp")
    path = Path(made)
    path.chmod(0o755)
    return path


def sweep(run: Path) -> None:
    """End every process that a run has started and its sandboxes, and delete its directory *run*.

    A process names *run* in its command line or in the environment that it was started with.
    """
    # The tests first, as they start daemons and delete directories; not what Slurm has started.
    _kill(f"SLURM_DL_TEST_RUN={run}")
    for found in run.glob("*/*/sandbox.json"):
        with contextlib.suppress(SlurmDlError, OSError):
            Sandbox.open(found.parent).down(remove=True)
    _kill(str(run))
    shutil.rmtree(run, ignore_errors=True)


def _kill(name: str) -> None:
    """Kill the processes with *name* in command line or environment, but not this one."""
    for directory in Path("/proc").glob("[0-9]*"):
        pid = int(directory.name)
        if pid in {os.getpid(), os.getppid()}:
            continue
        with contextlib.suppress(OSError):
            words = (directory / "cmdline").read_bytes() + (directory / "environ").read_bytes()
            if os.fsencode(name) in words:
                os.kill(pid, signal.SIGKILL)
