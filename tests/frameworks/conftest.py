"""What the tests of frameworks share: the Python that has them, and a job that is preempted."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from patience import eventually

from slurm_dl.job.checkpoint import recorded
from slurm_dl.model.contract import SignalTarget
from slurm_dl.model.handover import Run
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.jobs import JobState
from slurm_dl.model.plan import Requeue, Signal
from slurm_dl.sandbox import Sandbox
from slurm_dl.slurm.tool_runner import Slurm
from slurm_dl.slurm.write.actions import Actor
from slurm_dl.slurm.write.current_job import job_now

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "frameworks"
ENOUGH = 4
"""Steps of a run before it is stopped."""

Entry = dict[str, float]


@dataclass(frozen=True)
class Frameworks:
    """The Python that has the frameworks, and a cluster to run them on."""

    python: str
    box: Sandbox
    home: Path

    @property
    def env(self) -> dict[str, str]:
        """Environment of a user who has activated that Python's environment."""
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH"))}
        path = f"{Path(self.python).parent}:{os.environ['PATH']}"
        config = self.home / "slurm_dl.yaml"
        return {
            **clean,
            **self.box.env,
            "PATH": path,
            "PYTHONPATH": f"{ROOT}:{EXAMPLES}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
            "SLURM_DL_CONFIG": str(config),
            # torchrun leaves a directory of its own there, and the compiler its cache.
            "TMPDIR": str(self.temporary),
        }

    @property
    def temporary(self) -> Path:
        """Where programs put what is of no use after them."""
        place = self.home / "tmp"
        place.mkdir(exist_ok=True)
        return place

    def needs(self, *modules: str) -> None:
        """Skip, or fail where the frameworks must be there, if a module cannot be found."""
        needs(self.python, *modules)

    def run(self, *argv: str) -> str:
        """Run a command as that user; what it printed."""
        done = subprocess.run(
            argv,
            env=self.env,
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    def alone(self, argv: Sequence[str]) -> list[Entry]:
        """The loss curve of a training that nobody disturbs, as a plain process."""
        return self.alone_by_rank(argv, 1)[0]

    def alone_by_rank(self, argv: Sequence[str], ranks: int) -> list[list[Entry]]:
        """The same for each rank of a command that starts several."""
        place = self.home / "alone"
        place.mkdir()
        env = {**self.env, "SLURM_DL_RUN_DIR": str(place)}
        done = subprocess.run(
            argv, env=env, cwd=place, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return [losses(place, rank) for rank in range(ranks)]

    def under_dlrun(self, *argv: str, within_s: float) -> subprocess.CompletedProcess[str]:
        """Run ``dlrun`` as that user, in no job; what it started has ended when this is over."""
        place = self.home / "run"
        process = subprocess.Popen(
            [str(Path(sys.executable).parent / "dlrun"), *argv],
            env={**self.env, "SLURM_DL_RUN_DIR": str(place)},
            cwd=self.home,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            said = process.communicate(timeout=within_s)[0]
        finally:
            # Ended by SIGTERM it takes its command along: ranks that wait for each other, too.
            process.terminate()
            process.communicate(timeout=60)
        return subprocess.CompletedProcess(process.args, process.returncode, said)

    def dlctl(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Run ``dlctl test-signal``, as that user."""
        return subprocess.run(
            [str(Path(sys.executable).parent / "dlctl"), "test-signal", *args],
            env=self.env,
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    @contextmanager
    def dlctl_meanwhile(self, *args: str) -> Iterator[subprocess.Popen[str]]:
        """``dlctl test-signal`` beside the test; it has ended when this is over."""
        # Where the tests run under nohup SIGHUP is ignored.
        env = ["/usr/bin/env", "--default-signal=HUP,INT,TERM"]
        process = subprocess.Popen(
            [*env, str(Path(sys.executable).parent / "dlctl"), "test-signal", *args],
            env=self.env,
            cwd=self.home,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    @contextmanager
    def background(self, *argv: str) -> Iterator[None]:
        """Run a command beside the test; it has ended when this is over."""
        with (self.home / "background.log").open("wb") as log:
            process = subprocess.Popen(argv, env=self.env, cwd=self.home, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.terminate()
            process.wait(30)

    def tasks(self, wanted: int) -> list[str]:
        """Ids of running jobs in the order of their tasks; none until there are enough.

        Tasks that wait have the array's own id.
        """
        what = ["-t", "RUNNING", "-O", "ArrayTaskID:12,JobID:12"]
        text = self.box.run(["squeue", "-h", "-r", *what]).stdout
        rows = sorted(line.split() for line in text.splitlines())
        return [job for _, job in rows] if len(rows) >= wanted else []

    def trained(self, job: str, place: Path) -> Trained:
        """A job that was submitted by other means, which writes to *place*."""
        return Trained(self, job, place)

    def submit(self, gpus: int, *command: str, options: Sequence[str] = ()) -> Trained:
        """Submit with dlsubmit."""
        dlsubmit = str(Path(sys.executable).parent / "dlsubmit")
        argv = [dlsubmit, "--parsable", f"--gpus={gpus}", "--grace=60", *options, "--", *command]
        job = self.run(*argv).strip()
        return Trained(self, job, self.home / "slurm_dl_runs" / job)


@dataclass(frozen=True)
class Trained:
    """One job, and where it writes."""

    lab: Frameworks
    job: str
    place: Path

    @property
    def losses(self) -> list[Entry]:
        """What it has logged, in the order in which it did."""
        return losses(self.place)

    def by_rank(self, ranks: int) -> list[list[Entry]]:
        """The same for each rank."""
        return [losses(self.place, rank) for rank in range(ranks)]

    @property
    def checkpoints(self) -> list[Path]:
        """Those that it has recorded, newest first."""
        return [Path(str(entry["path"])) for entry in recorded(self.place)]

    def now(self) -> tuple[JobState, Run]:
        """State and run as Slurm has them."""
        seen = job_now(self._slurm, JobId(int(self.job)))
        return seen.state, seen.run

    def until_trains(self, run: int) -> None:
        """Wait until run *run* has made some steps."""

        def trains() -> bool:
            told = [e["run"] == run for e in self.losses if "run" in e]
            # Where steps do not tell their run, each run before has made some, too.
            return sum(told) >= ENOUGH or len(self.losses) - len(told) >= ENOUGH * (run + 1)

        eventually(
            trains,
            300,
            what=f"run {run} of {self.job} to train",
        )

    def signal(self, name: str = "USR1", target: SignalTarget = "batch") -> None:
        """Signal it exactly as the daemon does."""
        run = self.now()[1]
        action = Signal(
            handover_id=HandoverId(1), run=run, signal=name, target=target, why="a test"
        )
        finish = self._actor.apply(action)
        assert finish is not None
        assert finish(30.0)

    def preempt(self, run: int) -> None:
        """Signal it, wait for the acknowledgement of *run*, requeue it; as the daemon does."""
        self.signal()
        eventually(lambda: self.acked() == run, 120, what=f"the acknowledgement of run {run}")
        self._actor.apply(Requeue(handover_id=HandoverId(1), run=self.now()[1], why="a test"))

    def acked(self) -> object:
        """The run it has acknowledged."""
        return self.contract().get("ack")

    def contract(self) -> dict[str, object]:
        """Our part of its comment."""
        text = self.lab.box.run(["squeue", "-h", "-t", "all", "-j", self.job, "-o", "%k"]).stdout
        ours = json.loads(text)["slurm_dl"]
        assert isinstance(ours, dict)
        return ours

    def until_completed(self) -> None:
        """Wait for its end, which must be a good one."""
        over = (JobState.COMPLETED, JobState.FAILED)
        eventually(lambda: self.now()[0] in over, 300, what=f"the end of {self.job}")
        assert self.now()[0] is JobState.COMPLETED

    @property
    def _slurm(self) -> Slurm:
        return Slurm(slurm_conf=Path(self.lab.box.env["SLURM_CONF"]))

    @property
    def _actor(self) -> Actor:
        actor = Actor(self._slurm)
        actor.know({}, no_preemption="")
        return actor


def needs(python: str, *modules: str) -> None:
    """Skip, or fail where the frameworks must be there, if *python* does not find a module."""
    code = (
        "import importlib.util, sys; "
        "missing = [m for m in sys.argv[1:] if importlib.util.find_spec(m) is None]; "
        "sys.exit(' '.join(missing) or 0)"
    )
    done = subprocess.run(
        [python, "-c", code, *modules], capture_output=True, text=True, check=False
    )
    if done.returncode:
        reason = f"{python} has no {done.stderr.strip()}: run 'make frameworks'"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)


def losses(place: Path, rank: int = 0) -> list[Entry]:
    """The lines of a rank's ``loss.jsonl`` in *place*."""
    path = place / (f"loss.{rank}.jsonl" if rank else "loss.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture(scope="session")
def framework_python() -> str:
    """The Python that has torch; `make frameworks` installs the others beside it."""
    ours = ROOT / ".venv-torch" / "bin" / "python"
    return os.environ.get("SLURM_DL_TORCH_PYTHON") or (
        str(ours) if ours.exists() else sys.executable
    )


@pytest.fixture(scope="session")
def framework_needs(framework_python: str) -> Callable[..., None]:
    """`needs` for that Python."""
    return functools.partial(needs, framework_python)


@pytest.fixture
def lab(
    sandbox: Sandbox,
    short_directory: Path,
    framework_python: str,
    empty_queue: Callable[[Sandbox], None],
) -> Iterator[Frameworks]:
    """A place for one training; its jobs have ended when it goes away."""
    made = Frameworks(framework_python, sandbox, short_directory)
    config = {
        "cluster": {"slurm_conf": sandbox.env["SLURM_CONF"]},
        "manage": {"partitions": ["gpu"]},
    }
    (short_directory / "slurm_dl.yaml").write_text(json.dumps(config))
    yield made
    empty_queue(sandbox)
