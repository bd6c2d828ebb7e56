"""Commands of ours on a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from typing import IO

from patience import PATIENCE


def on_terminal(
    program: str, *args: str, columns: int = 80, stdout: IO[bytes] | None = None
) -> str:
    """The text that *program* writes to a terminal of that width; it must end with status 0.

    Args:
        stdout: In place of the terminal, which then gets standard error alone.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    env = {k: v for k, v in os.environ.items() if k not in {"COLUMNS", "LINES", "NO_COLOR"}}
    main = f"from slurm_dl.cli.{program}.command import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", main, *args],
        stdin=theirs, stdout=stdout or theirs, stderr=theirs,
        env={**env, "TERM": "xterm-256color"},
    )  # fmt: skip
    os.close(theirs)
    said = b""
    try:
        while chunk := os.read(ours, 65_536):
            said += chunk
    except OSError:
        pass  # Linux says so that the other end is closed.
    os.close(ours)
    assert process.wait(60 * PATIENCE) == 0, said
    return said.decode()
