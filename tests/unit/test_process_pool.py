"""Pieces of work in processes: what fails, what is killed, and what is left when all is over."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE

from slurm_dl.experiments.process_pool import WorkFault, process_pool


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
    assert fault.why.startswith("ZeroDivisionError: division by zero (test_process_pool.py:")
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
