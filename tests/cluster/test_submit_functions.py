"""Functions as jobs on a real Slurm: saved, preempted and resumed; an array of which one fails."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest
import pythons

from slurm_dl import submit
from slurm_dl.sandbox import Sandbox
from slurm_dl.submit import function_job

pytestmark = pytest.mark.slurm

WORK = """
import sys, time
from pathlib import Path
from slurm_dl import job
from slurm_dl.submit import DelayedSubmission

def count(steps, until):
    saved = job.resume_from()
    done = [int(x) for x in saved.read_text().split()] if saved else []
    first = len(done)
    while len(done) < steps or not Path(until).exists():
        time.sleep(0.05)
        done.append(len(done))
        print("step", len(done), flush=True)
        if job.should_checkpoint():
            path = job.run_dir() / "saved"
            path.write_text(" ".join(map(str, done)))
            job.checkpoint_saved(path, step=len(done))
            job.exit_for_requeue()
    return first, done, job.restart_count()

class Count:
    def __init__(self):
        self.done = []

    def __call__(self, steps, until):
        first = len(self.done)
        while len(self.done) < steps or not Path(until).exists():
            time.sleep(0.05)
            self.done = [*self.done, len(self.done)]
            print("step", len(self.done), flush=True)
        return first, self.done, job.restart_count()

    def checkpoint(self, *args):
        return DelayedSubmission(self, *args)

def inverse(x):
    return 1 / x, sys.version_info[:2]
"""


@pytest.fixture
def desk(
    sandbox: Sandbox, short_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A user's directory with the module ``work``; commands of this process go to the sandbox."""
    for name, value in sandbox.env.items():
        monkeypatch.setenv(name, value)
    (short_directory / "functions_at_work.py").write_text(WORK)
    monkeypatch.syspath_prepend(str(short_directory))
    monkeypatch.chdir(short_directory)
    yield short_directory
    sys.modules.pop("functions_at_work", None)


@pytest.mark.parametrize("name", ["count", "Count"])
def test_a_function_is_preempted_and_its_result_is_of_all_its_runs(
    sandbox: Sandbox, desk: Path, eventually: Callable[..., object], name: str
) -> None:
    """It saves when asked and is requeued: not done in between, then each step once."""
    executor = submit.Executor(desk / "calls")
    executor.update_parameters(gpus=1, timeout_min=10, grace=40)
    found = getattr(import_module("functions_at_work"), name)
    call = found() if name == "Count" else found
    job = executor.submit(call, 20, str(desk / "until"))
    eventually(lambda: "step 5\n" in (job.stdout() or ""), 60, what=f"{job} to count")
    sandbox.run(["scancel", "--batch", "--signal=USR1", job.job_id])
    squeue = ["squeue", "-h", "-t", "all", "-j", job.job_id, "-o", "%k"]
    eventually(lambda: '"ack":0' in sandbox.run(squeue).stdout, 30, what="the acknowledgement")
    sandbox.run(["scontrol", "requeue", "Incomplete", job.job_id])
    assert (job.done(), job.wait(0.1)) == (False, False)
    (desk / "until").touch()

    first, done, restarts = job.result()
    assert 5 <= first < len(done)
    assert (done, restarts) == ([*range(len(done))], 1)


@pytest.mark.parametrize("version", ["3.8", ".".join(map(str, sys.version_info[:2]))])
def test_an_array_of_which_one_fails(
    desk: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """In a Python that has nothing installed; what dlsubmit and sbatch do not know is an error."""
    monkeypatch.setattr(function_job, "LAG_S", 0.0)
    executor = submit.Executor(desk / "calls", python=str(pythons.python(version)))
    executor.update_parameters(gpus=1, timeout_min=10, array_parallelism=2)
    jobs = executor.map_array(import_module("functions_at_work").inverse, [1, 0, 4])
    later = executor.submit(abs, 1)
    later.cancel()

    told = tuple(map(int, version.split(".")))
    assert [jobs[0].result(), jobs[2].result()] == [(1.0, told), (0.25, told)]
    assert isinstance(jobs[1].exception(), ZeroDivisionError)
    assert "division by zero" in (jobs[1].stderr() or "")
    assert jobs[0].job_id.endswith("_0")
    with pytest.raises(submit.JobFailedError, match="CANCELLED"):
        later.result()
    for option, said in (("gpuz", "gpuz"), ("slurm_tim", "--tim")):
        other = submit.Executor(desk / "calls")
        other.update_parameters(gpus=1, **{option: 1})
        with pytest.raises(submit.SubmitError, match=said):
            other.submit(abs, 1)
