"""The demo plays on real daemons, tells the truth about what it saw, and leaves nothing behind."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from patience import PATIENCE

pytestmark = [pytest.mark.full("runs the whole demo twice"), pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]

Eventually = Callable[..., object]


def directories_of(demo: subprocess.Popen[str]) -> list[Path]:
    """What a demo has in /tmp; its process id is in the name."""
    return [*Path("/tmp").glob(f"slurm_dl-demo-{demo.pid}-*")]  # noqa: S108 - it makes them there


def play(*options: str, within_s: float) -> tuple[subprocess.Popen[str], str, str]:
    """Run the demo to its end; the process, what it printed, what it said on standard error."""
    demo = subprocess.Popen(
        command(*options),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        printed, said = demo.communicate(timeout=within_s)
    finally:
        if demo.poll() is None:
            demo.terminate()
            demo.communicate(timeout=60 * PATIENCE)
    return demo, printed, said


def processes_in(directory: Path) -> list[int]:
    """Processes that were started in or for *directory*."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:
            continue
        if os.fsencode(directory) in words:
            found.append(int(entry.name))
    return found


def command(*options: str) -> list[str]:
    return [sys.executable, "-m", "demo", *options]


@pytest.mark.slurm
def test_a_quick_demo_preempts_resumes_and_leaves_nothing(tmp_path: Path) -> None:
    """All jobs finish in both arms, one of them after a preemption, and all traces are gone."""
    output = tmp_path / "result.json"

    demo, printed, said = play("--quick", "--json", f"--output={output}", within_s=240)

    assert demo.returncode == 0, said
    result = json.loads(printed)
    assert result == json.loads(output.read_text())
    assert result["complete"] is True
    plain, ours = result["plain_slurm"], result["slurm_dl"]
    assert (plain["completed"], ours["completed"]) == (7, 7)
    assert (plain["preemptions"], plain["lost_gpu_s"]) == (0, 0)
    assert ours["preemptions"] >= 1
    assert 0 < ours["lost_gpu_s"] < ours["service_gpu_s"]
    assert "llm16 resumes at step" in said
    assert ours["short_jobs"]["mean_jct_s"] < plain["short_jobs"]["mean_jct_s"]
    assert directories_of(demo) == []


@pytest.mark.slurm
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_demo_that_is_stopped_ends_all_that_it_started(
    number: signal.Signals, tmp_path: Path, eventually: Eventually
) -> None:
    """Ctrl-C while jobs run: no daemon, no job and no directory is left, and the status says so."""
    with (tmp_path / "said").open("w") as said:
        demo = subprocess.Popen(
            command("--quick", f"--output={tmp_path / 'result.json'}"),
            cwd=ROOT,
            stdout=said,
            stderr=said,
            text=True,
        )
    try:

        def made() -> Path | None:
            return next((d for d in directories_of(demo) if _logged_steps(d)), None)

        directory = eventually(made, 60, what="a job of the demo to train")
        assert isinstance(directory, Path)
        assert len(processes_in(directory)) > 5
        demo.send_signal(number)
        status = demo.wait(60 * PATIENCE)
    finally:
        if demo.poll() is None:
            demo.terminate()
            demo.wait(60 * PATIENCE)

    assert status == 128 + number, (tmp_path / "said").read_text()
    assert processes_in(directory) == []
    assert not directory.exists()


def _logged_steps(directory: Path) -> bool:
    return any(path.stat().st_size for path in directory.glob("plain/*/loss.jsonl"))


@pytest.fixture
def evidence(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The demo's module of that name; the demo lies beside the package and is not installed."""
    monkeypatch.syspath_prepend(ROOT)
    yield importlib.import_module("demo.evidence")
    for name in [n for n in sys.modules if n == "demo" or n.startswith("demo.")]:
        monkeypatch.delitem(sys.modules, name)


class Case:
    """A training of 6 steps that was preempted at step 4, and whatever a test breaks of it."""

    def __init__(self, evidence: ModuleType) -> None:
        logs = importlib.import_module("demo.logs")
        workload = importlib.import_module("demo.workload")
        site = importlib.import_module("demo.site")
        self.evidence = evidence
        self.logs = logs
        self.span = evidence.Span
        self.job = evidence.Evidence(
            training=workload.Training(
                name="a",
                kind=workload.Kind.LONG,
                gpus=8,
                arrive_s=0,
                steps=6,
                step_s=0.5,
                seed=1,
                limit_min=10,
            ),
            slurm=site.SlurmJob("7|CD|130|130|134|1|n[1-2]|"),
            life=evidence.Life(
                submit_s=100,
                runs=(
                    evidence.Span(start_s=110, end_s=120),
                    evidence.Span(start_s=130, end_s=134),
                ),
            ),
            log=logs.TrainingLog(
                losses=tuple((n, 1 / n) for n in range(1, 7)),
                runs=(
                    logs.RunStart(restart=0, from_step=0, at_s=110.5),
                    logs.RunStart(restart=1, from_step=4, at_s=131.0),
                ),
            ),
            between={1: logs.Between(reached_step=4, saved_step=4)},
            signals=[117.0],
        )

    def problems(self) -> str:
        """All of them in one text."""
        return "; ".join(self.evidence.problems_of(self.job))


@pytest.fixture
def case(evidence: ModuleType) -> Case:
    return Case(evidence)


def test_a_training_that_went_on_from_its_checkpoint_is_no_problem(case: Case) -> None:
    """Two runs, each step once, the second run begins where the checkpoint is."""
    assert case.problems() == ""


def test_a_preemption_costs_stopping_and_restoring(case: Case) -> None:
    """8 GPUs x (117 to 120 + 130 to 131); the service is that of both runs; JCT from 100 on."""
    record = case.evidence.record_of(case.job)

    assert record.lost_gpu_s == pytest.approx(8 * (3 + 1))
    assert record.service_gpu_s == 8 * (10 + 4)
    assert (record.jct_s, record.preemptions, record.completed) == (34, 1, True)


def test_work_that_was_done_again_is_lost(case: Case) -> None:
    """Step 4 was reached, the checkpoint is of step 2: two steps of 0.5 s on 8 GPUs are lost."""
    runs = (case.job.log.runs[0], replace(case.job.log.runs[1], from_step=2))
    case.job = replace(
        case.job,
        log=replace(case.job.log, runs=runs),
        between={1: case.logs.Between(reached_step=4, saved_step=2)},
    )

    assert case.problems() == ""
    assert case.evidence.record_of(case.job).lost_gpu_s == pytest.approx(8 * (3 + 1 + 1))


@pytest.mark.parametrize(
    "steps",
    [(1, 2, 3, 4, 5), (1, 2, 4, 5, 6), (1, 2, 3, 3, 4, 5, 6), (2, 1, 3, 4, 5, 6), ()],
    ids=["too few", "one missing", "one twice", "out of order", "none"],
)
def test_steps_that_are_not_each_once_in_order_are_a_problem(
    case: Case, steps: tuple[int, ...]
) -> None:
    """The log is the training's own: it must have 1 to the last step, once each."""
    losses = tuple((n, 1.0) for n in steps)
    case.job = replace(case.job, log=replace(case.job.log, losses=losses))

    assert "each of its 6 steps once in order" in case.problems()


@pytest.mark.parametrize(
    ("from_step", "between", "expected"),
    [
        (4, (4, 3), "its checkpoint was at 3"),
        (2, (4, 4), "its checkpoint was at 4"),
        (0, (4, 0), "began anew, there was no checkpoint"),
        (4, None, "was not seen"),
    ],
)
def test_a_run_that_did_not_go_on_from_the_checkpoint_is_a_problem(
    case: Case, from_step: int, between: tuple[int, int] | None, expected: str
) -> None:
    """Neither earlier nor later, and not from the beginning; what was not seen is no proof."""
    runs = (case.job.log.runs[0], replace(case.job.log.runs[1], from_step=from_step))
    stood = {}
    if between:
        stood = {1: case.logs.Between(reached_step=between[0], saved_step=between[1])}
    case.job = replace(case.job, log=replace(case.job.log, runs=runs), between=stood)

    assert expected in case.problems()


def test_a_job_that_failed_is_a_problem(case: Case) -> None:
    """Whatever its log says, Slurm's word counts."""
    case.job.slurm.state = "F"

    assert "ended in state F" in case.problems()
    assert not case.evidence.record_of(case.job).completed


def test_a_restart_nobody_logged_is_a_problem(case: Case) -> None:
    """Slurm counts two restarts, the training began twice."""
    case.job.slurm.restarts = 2

    assert "Slurm restarted it 2 times" in case.problems()


def test_a_ledger_that_differs_from_slurm_is_a_problem(case: Case) -> None:
    """The comparison is computed from it: runs missing, or another time of the last one."""
    whole = case.job.life
    case.job = replace(case.job, life=replace(whole, runs=whole.runs[1:]))
    assert "2 runs by Slurm, 1 in the ledger" in case.problems()

    late = case.span(start_s=130, end_s=140)
    case.job = replace(case.job, life=replace(whole, runs=(whole.runs[0], late)))
    assert "differ about when its last run was" in case.problems()


def test_other_losses_than_in_the_other_arm_are_a_problem(case: Case) -> None:
    """A resumed training must be the same training, to the last bit."""
    nearly = (*case.job.log.losses[:-1], (6, 1 / 6 + 1e-12))
    other = replace(case.job, log=replace(case.job.log, losses=nearly))

    assert list(case.evidence.same_training([case.job], [case.job])) == []
    assert "other losses" in " ".join(case.evidence.same_training([case.job], [other]))


def test_both_arms_get_the_same_workload_and_each_seed_another(
    evidence: ModuleType,
) -> None:
    """It is a function of seed and speed; speed scales gaps and lengths and nothing else."""
    assert evidence is not None
    mixed = importlib.import_module("demo.workload").mixed

    assert mixed(1) == mixed(1)
    assert mixed(1) != mixed(2)
    slow, fast = mixed(3).jobs, mixed(3, 2.0).jobs
    assert [job.steps for job in fast] == [job.steps for job in slow]
    assert [job.arrive_s for job in fast] == pytest.approx([job.arrive_s / 2 for job in slow])


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (["--quick", "--speed=2"], "--quick has its own pace"),
        (["--output=/nowhere/at/all.json"], "--output /nowhere/at/all.json"),
        (["--speed=0"], "--speed"),
    ],
)
def test_a_wrong_command_line_is_said_before_anything_starts(options: list[str], what: str) -> None:
    """One line, status 2, and no cluster."""
    demo, _, said = play(*options, within_s=60)

    assert demo.returncode == 2
    assert what in said
    assert len(said.splitlines()) == 1
    assert directories_of(demo) == []
