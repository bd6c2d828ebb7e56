"""The tutorial, typed: each of its blocks in order, on a real Slurm, and it ends as it says."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import shown

from slurm_dl.sandbox.wait import eventually

pytestmark = pytest.mark.slurm

PAGE = shown.ROOT / "docs" / "tutorial.md"
THERE = "/var/tmp/try"  # noqa: S108 - as the page says


class Shell:
    """A bash in which one block after the other is typed."""

    def __init__(self, home: Path) -> None:
        self._home = home
        path = f"{shown.ROOT / '.venv/bin'}:{os.environ['PATH']}:/usr/sbin:/sbin"
        keep = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH"))}
        self._marks = 0
        self._printed = home.parent / "typed.out"
        self._out = self._printed.open("wb")
        self._process = subprocess.Popen(
            ["/bin/bash"],
            stdin=subprocess.PIPE,
            stdout=self._out,
            stderr=subprocess.STDOUT,
            cwd=shown.ROOT,
            env={**keep, "PATH": path},
            process_group=0,
        )

    def type(self, block: str, within_s: float = 90.0) -> str:
        """What *block* prints; its last command must succeed."""
        self._marks += 1
        end = f"---{self._marks}---"
        at = self._printed.stat().st_size
        assert self._process.stdin is not None
        self._process.stdin.write(
            f"{block.replace(THERE, str(self._home))}\necho {end}$?\n".encode()
        )
        self._process.stdin.flush()

        def printed() -> str:
            text = self._printed.read_bytes()[at:].decode()
            return text if re.search(rf"^{end}\d+$", text, re.MULTILINE) else ""

        text = eventually(printed, within_s, what=f"the end of: {block}")
        body, _, status = text.rpartition(end)
        assert int(status) == 0, text
        return body

    def close(self) -> None:
        """End it, and what it has left running."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        os.killpg(self._process.pid, signal.SIGTERM)
        self._process.wait(30)
        self._out.close()


@pytest.fixture
def shell() -> Iterator[Shell]:
    """A shell whose sandbox lies elsewhere than the page's, where other users may go."""
    with tempfile.TemporaryDirectory(prefix="sdl-", dir="/tmp") as parent:
        Path(parent).chmod(0o755)
        typed = Shell(Path(parent) / "try")
        try:
            yield typed
            typed.type(f"[ ! -e {THERE} ] || dlctl sandbox down {THERE} --remove")
        finally:
            typed.close()


def test_the_tutorial(shell: Shell) -> None:
    """The short job passes the long one, which resumes and trains each step once."""
    demo, source, up, start, status, long, short, queue, why, log, tidy = shown.blocks(PAGE)
    assert demo == "make demo\n"
    assert source == "source .venv/bin/activate\n"

    assert "n1" in shell.type(up)
    assert "slurm_dl.yaml: ok" in shell.type(start)
    eventually(lambda: "acting" in shell.type(f"{status.strip()} || true"), 60, 1, what="dlschedd")
    shell.type(long)
    eventually(lambda: re.search(r"long .* R +4 +1 ", shell.type(queue)), 90, 1, what="it to sink")
    shell.type(short)
    # The short one runs, the long one has been put back: what the page shows.
    eventually(
        lambda: re.search(r"(?s)short .* R .*long .* PD +4 +1 ", shell.type(queue)),
        60,
        0.5,
        what="the short job to run",
    )
    # The look that sees it wait is not yet the one that has counted.
    eventually(lambda: "preempted 1 time." in shell.type(why), 30, 1, what="the count")
    said = shell.type(why)
    assert "it acknowledged its checkpoint within" in said
    eventually(lambda: "done: 600 steps, run 1" in shell.type(log), 120, 1, what="the long job")
    steps = shell.type("wc -l < slurm_dl_runs/1/loss.jsonl")
    assert int(steps) == 600
    assert "directory removed" in shell.type(tidy)
