"""A shell into which the statements of a page are typed, and a terminal for those that follow."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from patience import eventually

BIN = Path(sys.executable).parent


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """Of a person at our checkout: nothing of a job or of another Slurm, our commands first."""
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH"))}
    env = {**keep, **more}
    return {**env, "PATH": f"{BIN}:{env['PATH']}:/usr/sbin:/sbin"}


class Shell:
    """A bash in which one statement after the other is typed: what they set stays set.

    Attributes:
        process: The bash, first of a process group of its own.
    """

    def __init__(self, *, cwd: Path, printed: Path, env: Mapping[str, str]) -> None:
        self._marks = 0
        self._printed = printed
        self._out = printed.open("wb")
        self.process = subprocess.Popen(
            ["/bin/bash"],
            stdin=subprocess.PIPE,
            stdout=self._out,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env=env,
            process_group=0,
        )
        # What the first of two programs says of its options counts.
        self.type("set -o pipefail")

    def type(
        self, statement: str, within_s: float = 120.0, allowed: frozenset[int] = frozenset({0})
    ) -> str:
        """What *statement* prints; its last command must end with a status that is *allowed*."""
        self._marks += 1
        end = f"---{self._marks}---"
        at = self._printed.stat().st_size
        # Nothing that is typed may read what is typed next.
        typed = f"{{\n{statement}\n}} </dev/null\necho {end}$?\n"
        self.process.stdin.write(typed.encode())
        self.process.stdin.flush()

        def ended() -> re.Match[str] | None:
            text = self._printed.read_bytes()[at:].decode(errors="replace")
            assert self.process.poll() is None, f"the shell has ended: {statement}\n{text}"
            # What runs in the background may print behind it.
            return re.search(rf"(.*){end}(\d+)$", text, re.MULTILINE | re.DOTALL)

        found = eventually(ended, within_s, 0.1, what=f"the end of: {statement}")
        body, status = found.groups()
        assert int(status) in allowed, f"{statement}\nended with {status}:\n{body}"
        assert "Traceback" not in body, f"{statement}\n{body}"
        return body

    def close(self) -> None:
        """End it, and what it has left running."""
        self.process.stdin.close()
        os.killpg(self.process.pid, signal.SIGTERM)
        self.process.wait(30)
        self._out.close()


def follow(
    argv: list[str], *, cwd: Path, env: Mapping[str, str], until: Callable[[str], object]
) -> str:
    """Run what goes on until it is interrupted, in a terminal, until *until* likes what it shows.

    Returns:
        What it has shown. It ends with status 0 or 130 at Ctrl-C.
    """
    process_id, ours = pty.fork()
    if process_id == 0:  # pragma: no cover - the other process
        os.chdir(cwd)
        os.execvpe(argv[0], argv, dict(env))  # noqa: S606 - none is wanted
    shown = b""

    def read() -> bool:
        nonlocal shown
        try:
            while select.select([ours], [], [], 0)[0]:
                part = os.read(ours, 65536)
                if not part:
                    return True
                shown += part
        except OSError:
            # What reading a terminal gives that nobody has open any more.
            return True
        return False

    def satisfied() -> bool:
        over = read()
        if until(shown.decode(errors="replace")):
            return True
        assert not over, f"{argv} has ended: {shown.decode(errors='replace')}"
        return False

    try:
        eventually(satisfied, 60.0, 0.1, what=f"what {argv} shows")
        os.write(ours, b"\x03")
        ended = eventually(lambda: (read(), _ended(process_id))[1], 60.0, 0.1, what=f"end: {argv}")
    except BaseException:
        os.kill(process_id, signal.SIGKILL)
        os.waitpid(process_id, 0)
        raise
    finally:
        os.close(ours)
    assert ended[0] in {0, 130, -signal.SIGINT}, shown
    return shown.decode(errors="replace")


def _ended(process_id: int) -> tuple[int] | None:
    done, status = os.waitpid(process_id, os.WNOHANG)
    return (os.waitstatus_to_exitcode(status),) if done else None
