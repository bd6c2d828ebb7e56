"""Processes: what a tool runs ends with it, and pieces of work in several of them."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from patience import PATIENCE, eventually

from slurm_dl.experiments.process_pool import WorkFault, process_pool
from slurm_dl.job import controller, tool_process
from slurm_dl.job.controller import CallFailedError, JobController
from slurm_dl.model.errors import ClusterError
from slurm_dl.sandbox import process_control
from slurm_dl.slurm.tool_runner import TOOLS, Slurm
from slurm_dl.slurm.write.actions import SignalDelivery

TIMEOUT_S = 0.5
PLAIN = '"$0.real" "$@"'
REAL = """#!/bin/sh
echo $$ >"$0.pid"
case "$*" in *retrying*) echo "scancel: Job is in transitional state, retrying" >&2;; esac
exec sleep 60
"""


def tools(where: Path) -> Slurm:
    return Slurm(bin_dir=where, timeout_s=TIMEOUT_S)


def dlrun(where: Path) -> JobController:
    paths = {name: str(where / name) for name in ("scontrol", "squeue")}
    return JobController("5", **paths, environ={}, prepare=lambda: None)


def sandbox(where: Path) -> None:
    how = {"check": False, "user": None, "stdin": "", "cwd": "/", "env": {}}
    process_control.run([str(where / "scontrol")], TIMEOUT_S, **how)  # type: ignore[arg-type]


def has_ended(pid: str) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return "State:\tZ" in Path("/proc", pid, "status").read_text("utf-8")
    return True


@pytest.mark.parametrize(
    ("tool", "cut_off", "wrapper"),
    [
        ("scancel", lambda at: SignalDelivery(tools(at), ["1"]).finish(9), PLAIN),
        ("scancel", lambda at: SignalDelivery(tools(at), ["retrying"]).finish(9), PLAIN),
        ("scontrol", lambda at: tools(at).run("scontrol", "update", "JobId=1"), PLAIN),
        ("squeue", lambda at: tools(at).run("squeue", "--Format=JobID:x"), PLAIN),
        ("scontrol", lambda at: dlrun(at).requeue(), PLAIN),
        ("squeue", lambda at: dlrun(at).standing(), PLAIN),
        ("scontrol", sandbox, PLAIN),
        ("squeue", lambda at: tools(at).run("squeue"), 'timeout 60 "$0.real" "$@"'),
        ("squeue", lambda at: tools(at).run("squeue"), 'setsid -w "$0.real" "$@"'),
        ("squeue", lambda at: tools(at).run("squeue"), 'setsid "$0.real" "$@" & wait'),
    ],
)
def test_what_a_wrapper_runs_ends_with_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tool: str,
    cut_off: Callable[[Path], None],
    wrapper: str,
) -> None:
    """At the time limit, and where scancel is cut off because it has done its work."""
    monkeypatch.setattr(controller, "CALL_LIMIT_S", TIMEOUT_S)
    for name in TOOLS:
        for path, text in (
            (tmp_path / name, f"#!/bin/sh\n{wrapper}\nexit $?\n"),
            (tmp_path / f"{name}.real", REAL),
        ):
            path.write_text(text, "utf-8")
            path.chmod(0o755)

    with contextlib.suppress(ClusterError, CallFailedError):
        cut_off(tmp_path)

    pid = (tmp_path / f"{tool}.real.pid").read_text("utf-8").strip()
    eventually(lambda: has_ended(pid), 5.0, what=f"the end of the real {tool}")


def test_a_tool_that_complains_at_length_is_not_late() -> None:
    """Its standard output is taken while it comes, and so is what it says beside it."""
    fed: list[bytes] = []
    argv = ["sh", "-c", "head -c 200000 /dev/zero >&2; echo hi"]
    ended = tool_process.run(argv, timeout_s=5, feed=fed.append)
    assert (b"".join(fed), len(ended.stderr)) == (b"hi\n", 200_000)


def test_bytes_that_are_not_text_are_replaced_and_the_rest_is_kept() -> None:
    """Names hold any bytes, and messages name them."""
    argv = ["sh", "-c", r"printf 'a\377\r\n'; printf 'b\377\r\n' >&2"]
    ended = tool_process.run(argv, timeout_s=5)
    assert (ended.stdout, ended.stderr) == ("a\ufffd\r\n", "b\ufffd\r\n")


def inverse(piece: int) -> float:
    """1 / *piece*; of a negative one its process is killed."""
    if piece < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return 1 / piece


@pytest.mark.parametrize("processes", [1, 2])
def test_each_piece_is_told_with_its_number(processes: int) -> None:
    """A fault costs its own piece alone, and says where it is; the processes do the next run."""
    begun: list[int] = []
    with process_pool(inverse, processes) as run:
        told = dict(run([1, 0, 2, 4, 5], begin=begun.append))
        again = dict(run([10]))

    fault = told.pop(1)
    assert told == {0: 1, 2: 1 / 2, 3: 1 / 4, 4: 1 / 5}
    assert fault.why.startswith("ZeroDivisionError: division by zero (test_tool_process.py:")
    assert "Traceback" in fault.text
    assert again == {0: 1 / 10}
    assert begun == [1, 0, 2, 4, 5]
    assert not multiprocessing.active_children()


def test_a_killed_process_ends_the_work_that_is_left() -> None:
    """What was done before is told all the same, and nothing waits for ever."""
    with process_pool(inverse, 2) as run:
        told = dict(run([1, 2, 4, -1, -1, *[1] * 20]))

    lost = [said for said in told.values() if isinstance(said, WorkFault)]
    done = [said for said in told.values() if not isinstance(said, WorkFault)]
    assert len(done) >= 2  # one other was at work at most
    assert len(lost) >= 20
    assert len(lost + done) == 25
    assert {said.why for said in lost} == {
        "a worker process was killed (out of memory?); use a smaller -j"
    }
    assert not multiprocessing.active_children()


ALONE = """
import multiprocessing, time
from slurm_dl.experiments.process_pool import process_pool
if __name__ == "__main__":
    with process_pool(time.sleep, 2) as run:
        run = run([0, 1000, 1000])
        next(run)
        print(*(child.pid for child in multiprocessing.active_children()), flush=True)
        next(run)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_the_one_that_started_it(
    number: signal.Signals, tmp_path: Path
) -> None:
    """Even if that is killed. Its output ends when the last of them has."""
    script = tmp_path / "alone.py"
    script.write_text(ALONE, "utf-8")
    with subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        workers = process.stdout.readline().split()
        process.send_signal(number)
        try:
            process.communicate(timeout=20 * PATIENCE)
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)

    assert len(workers) == 2
    assert process.returncode == -number
