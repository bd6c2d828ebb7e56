"""dlrun and the job API under real Slurm: signal, acknowledgement, requeue, resume.

What runs in the jobs is a copy of `slurm_dl/job` alone under the system's Python, as an
unprivileged user: that is all a compute node needs to have.
"""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from slurm_dl.sandbox import Sandbox

pytestmark = pytest.mark.slurm

ROOT = Path(__file__).parents[2]
PYTHON = "/usr/bin/python3"
"""Debian's own: the interpreter of the tests may lie where other users cannot go."""
COMMENT = '{"slurm_dl":{"v":1,"sig":"USR1"},"mine":"a \\"b\\" |=, c"}'

Eventually = Callable[..., object]


@dataclass(frozen=True)
class Kit:
    """The sandbox, and what jobs in it need.

    Attributes:
        box: The cluster.
        library: Directory with the copy of the job API and the examples.
        eventually: Polls with a deadline.
    """

    box: Sandbox
    library: Path
    eventually: Eventually

    def submit(
        self, command: list[str], *options: str, dlrun: tuple[str, ...] = (), comment: str = COMMENT
    ) -> str:
        """Submit *command* under dlrun, as nobody; the job id."""
        inner = shlex.join([PYTHON, "-m", "slurm_dl.job.run", *dlrun, "--", *command])
        script = (
            "#!/bin/bash\ntrap '' USR1\n"
            f"export PYTHONPATH={shlex.quote(str(self.library))}\nexec {inner}\n"
        )
        fixed = ["--requeue", "--open-mode=append", "--nodes=1", "--output=%A_%a.out"]
        return self.box.run(
            ["sbatch", "--parsable", f"--comment={comment}", *fixed, *options],
            stdin=script,
            user="nobody",
        ).stdout.strip()

    def toy(self, steps: int, *options: str, step_s: float = 0.05) -> list[str]:
        """Command line of the toy training."""
        script = str(self.library / "examples" / "train_toy.py")
        return [PYTHON, script, "--steps", str(steps), "--step-s", str(step_s), *options]

    def field(self, job: str, name: str) -> str:
        """A field of the job's record without spaces in it."""
        text = self.box.run(["scontrol", "-o", "show", "job", job]).stdout
        return text.partition(f" {name}=")[2].partition(" ")[0]

    def ours(self, job: str) -> dict[str, object]:
        """Our part of the job's comment; the rest must be as it was."""
        comment = json.loads(
            self.box.run(["squeue", "-h", "-t", "all", "-j", job, "-o", "%k"]).stdout
        )
        assert comment["mine"] == json.loads(COMMENT)["mine"]
        part = comment["slurm_dl"]
        assert isinstance(part, dict)
        return part

    def lines(self, job: str, name: str) -> list[dict[str, float]]:
        """What the job wrote into a file of its run directory."""
        path = self.box.jobs_directory / f"slurm_dl-{job}" / name
        return [json.loads(s) for s in path.read_text().splitlines()] if path.exists() else []

    def steps(self, job: str) -> list[float]:
        """The steps the job has logged."""
        return [entry["step"] for entry in self.lines(job, "loss.jsonl")]

    def output(self, job: str) -> str:
        """What the job has printed."""
        path = self.box.jobs_directory / f"{job if '_' in job else job + '_4294967294'}.out"
        return path.read_text() if path.exists() else ""

    def wait_training(self, job: str, restart: int = 0, more: int = 5) -> None:
        """Wait until run *restart* has made some steps of its own."""

        def trains() -> bool:
            runs = [r for r in self.lines(job, "runs.jsonl") if r["restart"] == restart]
            return bool(runs) and len(self.steps(job)) >= runs[-1]["from_step"] + more

        self.eventually(trains, 60, what=f"run {restart} of {job} to train")

    def ask(self, job: str) -> None:
        """Signal the job as the daemon does."""
        self.box.run(["scancel", "--batch", "--signal=USR1", job])

    def wait_ack(self, job: str, run: int) -> None:
        """Wait until run *run* is acknowledged."""
        self.eventually(
            lambda: self.ours(job).get("ack") == run, 30, what=f"{job} to acknowledge run {run}"
        )

    def requeue(self, job: str) -> None:
        """Requeue the job as the daemon does."""
        self.box.run(["scontrol", "requeue", "Incomplete", job])

    def wait_end(self, job: str) -> str:
        """Wait until the job is over; its state."""
        over = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        self.eventually(lambda: self.field(job, "JobState") in over, 120, what=f"the end of {job}")
        return self.field(job, "JobState")

    def pid_of(self, job: str) -> int:
        """Process id of the job's dlrun, 0 if there is none."""
        marks = {f"SLURM_JOB_ID={job}".encode(), f"PYTHONPATH={self.library}".encode()}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                is_dlrun = b"slurm_dl.job.run" in (entry / "cmdline").read_bytes()
                environ = (entry / "environ").read_bytes().split(b"\0") if is_dlrun else []
            except OSError:
                continue
            if marks.issubset(environ):
                return int(entry.name)
        return 0


@pytest.fixture
def kit(sandbox: Sandbox, eventually: Eventually) -> Kit:
    library = sandbox.jobs_directory / "library"
    if not library.exists():
        library.mkdir(mode=0o755)
        for part in ("slurm_dl/job", "examples"):
            shutil.copytree(ROOT / part, library / part)
        shutil.copy(ROOT / "slurm_dl" / "__init__.py", library / "slurm_dl")
        for path in library.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
    return Kit(sandbox, library, eventually)


def test_a_job_is_preempted_twice_and_loses_no_step(kit: Kit) -> None:
    """Signal, ack, requeue, resume, as an unprivileged owner; an old ack does not count again."""
    job = kit.submit(kit.toy(120, "--checkpoint-every", "1000"))
    stops = []
    for run in (0, 1):
        kit.wait_training(job, run)
        assert kit.ours(job).get("ack") == (None, 0)[run]
        kit.ask(job)
        kit.wait_ack(job, run)
        assert kit.field(job, "JobState") == "RUNNING"
        stops.append(kit.steps(job)[-1])
        kit.requeue(job)

    assert kit.wait_end(job) == "COMPLETED"
    assert kit.field(job, "Restarts") == "2"
    assert [r["from_step"] for r in kit.lines(job, "runs.jsonl")] == [0, *stops]
    assert kit.steps(job) == list(range(1, 121))


def test_a_job_that_ignores_the_signal_resumes_from_its_last_checkpoint(kit: Kit) -> None:
    """Requeued after its grace it loses the steps since then, and only those."""
    job = kit.submit(kit.toy(60, "--checkpoint-every", "10", "--ignore-signal"))
    kit.wait_training(job, more=12)
    kit.ask(job)
    kit.wait_training(job, more=15)
    assert "ack" not in kit.ours(job)
    kit.requeue(job)

    assert kit.wait_end(job) == "COMPLETED"
    second = kit.lines(job, "runs.jsonl")[1]["from_step"]
    assert second >= 10
    assert second % 10 == 0
    assert kit.steps(job) == list(range(1, 61))


def test_an_array_task_acknowledges_in_its_own_record(kit: Kit) -> None:
    """The last task has the array's id, and its ack must not reach the others."""
    array = kit.submit(kit.toy(10_000), "--array=1-3")
    for task in "123":
        kit.wait_training(f"{array}_{task}")
    kit.ask(f"{array}_3")
    kit.wait_ack(f"{array}_3", 0)

    assert "ack" not in kit.ours(f"{array}_1")
    assert "ack" not in kit.ours(f"{array}_2")


def test_without_a_daemon_the_job_requeues_itself(kit: Kit) -> None:
    """The owner may do so on a stock Slurm, and the next run goes on."""
    job = kit.submit(kit.toy(60, "--checkpoint-every", "1000"), dlrun=("--ack-wait", "1"))
    kit.wait_training(job)
    kit.ask(job)
    kit.eventually(lambda: kit.field(job, "Restarts") == "1", 30, what="the requeue")

    assert kit.wait_end(job) == "COMPLETED"
    assert len(kit.lines(job, "runs.jsonl")) == 2
    assert kit.steps(job) == list(range(1, 61))


def test_a_refused_requeue_goes_on_in_place_without_ack(kit: Kit) -> None:
    """Slurm refuses a --no-requeue job; the work must not stop for that."""
    job = kit.submit(
        kit.toy(60, "--checkpoint-every", "1000"), "--no-requeue", dlrun=("--ack-wait", "1")
    )
    kit.wait_training(job)
    kit.ask(job)

    assert kit.wait_end(job) == "COMPLETED"
    assert "requeue failed: scontrol failed with status 1" in kit.output(job)
    assert kit.field(job, "Restarts") == "0"
    assert len(kit.lines(job, "runs.jsonl")) == 2
    assert "ack" not in kit.ours(job)
    assert kit.steps(job) == list(range(1, 61))


@pytest.mark.full("the shortest time limit of Slurm is a minute")
def test_slurms_warning_before_the_time_limit_becomes_a_requeue(kit: Kit) -> None:
    """The job gets a fresh limit instead of ending in TIMEOUT."""
    job = kit.submit(kit.toy(100_000), "--time=1", "--signal=B:USR1@40")
    kit.eventually(lambda: kit.field(job, "Restarts") == "1", 120, what="the requeue")

    assert "requeueing itself in" in kit.output(job)
    kit.wait_training(job, 1)


def test_a_controller_restart_during_the_acknowledgement_is_survived(kit: Kit) -> None:
    """The ack is made when slurmctld is back."""
    job = kit.submit(kit.toy(10_000))
    kit.wait_training(job)
    # By kill: scancel needs slurmctld.
    pid = kit.pid_of(job)
    assert pid
    kit.box.stop_daemon("slurmctld")
    try:
        kit.box.run(["kill", "-USR1", str(pid)])
        kit.eventually(lambda: "acknowledgement failed" in kit.output(job), 60, what="a failed try")
    finally:
        kit.box.start_daemon("slurmctld")

    kit.wait_ack(job, 0)


def test_a_cancelled_job_ends_whole_and_at_once(kit: Kit) -> None:
    """Dlrun neither holds a cancelled job nor brings it back."""
    job = kit.submit(kit.toy(10_000))
    kit.wait_training(job)
    pid = kit.pid_of(job)
    assert pid
    kit.box.run(["scancel", job])

    assert kit.wait_end(job) == "CANCELLED"
    kit.eventually(lambda: not kit.pid_of(job), 20, what="dlrun to be gone")
    assert kit.field(job, "Restarts") == "0"


def test_tasks_under_srun_stop_by_the_request_file(kit: Kit) -> None:
    """No task is signalled, so no worker of theirs dies; every rank sees the request."""
    watcher = (
        "import os,time\n"
        "from slurm_dl import job\n"
        "rank = os.environ['SLURM_PROCID']\n"
        "job.install()\n"
        "(job.run_dir() / f'up-{rank}').touch()\n"
        "while not job.should_checkpoint(): time.sleep(0.05)\n"
        "(job.run_dir() / f'saved-{rank}').touch()\n"
        "job.checkpoint_saved(job.run_dir() / f'saved-{rank}')\n"
        "job.exit_for_requeue()\n"
    )
    job = kit.submit(
        ["srun", PYTHON, "-c", watcher], "--ntasks-per-node=2", dlrun=("--launcher", "srun")
    )
    place = kit.box.jobs_directory / f"slurm_dl-{job}"
    kit.eventually(
        lambda: (
            all((place / f"up-{r}").exists() for r in "01")
            and (place / "slurm_dl.listening").exists()
        ),
        60,
        what="both tasks",
    )
    kit.ask(job)
    kit.wait_ack(job, 0)

    assert (place / "saved-0").exists()
    assert (place / "saved-1").exists()
    assert "sent USR1" not in kit.output(job)
    assert "status 75" in kit.output(job)


# Trains until it is asked; then it has saved, runs a command and ends with the status it is given.
STOPPING = """
trap 'echo saved > "$SLURM_DL_RUN_DIR/checkpoint"; "${@:2}"; exit "$1"' USR1
if [ -e "$SLURM_DL_RUN_DIR/checkpoint" ]; then echo resumed; exit 0; fi
echo training
while :; do sleep 0.1; done
"""
FINAL = ("FAILED", "93:0", "0")


@pytest.mark.parametrize(
    ("status", "first", "end"),
    [
        ("0", ["true"], ("COMPLETED", "0:0", "1")),
        # As if a launcher had ended with 93 though the script had said that it is to be run again.
        ("93", [PYTHON, "-c", "from slurm_dl import job; job.exit_for_requeue()"], FINAL),
    ],
    ids=["--stops-with 0", "93 is final"],
)
def test_status_of_a_command_that_was_asked_to_save(
    kit: Kit, status: str, first: list[str], end: tuple[str, str, str]
) -> None:
    """With --stops-with 0 it is acknowledged, requeued and resumes; with 93 it is over."""
    command = ["/bin/bash", "-c", STOPPING, "train", status, *first]
    job = kit.submit(command, dlrun=("--stops-with", "0"))
    kit.eventually(lambda: "training" in kit.output(job), 60, what=f"{job} to train")

    kit.ask(job)
    if end != FINAL:
        kit.wait_ack(job, 0)
        kit.requeue(job)

    assert (kit.wait_end(job), kit.field(job, "ExitCode"), kit.field(job, "Restarts")) == end
    assert ("resumed" in kit.output(job)) == (end != FINAL)
    assert ("ack" in kit.ours(job)) == (end != FINAL)
