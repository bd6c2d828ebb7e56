"""A job in which nothing takes the signal: how dlrun finds out, and how long it is waited for."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple, cast

import build
import pytest

from slurm_dl.engine.decide import decide
from slurm_dl.engine.settings import Preemption, Settings
from slurm_dl.job.child import Child, Process
from slurm_dl.job.controller import JobController
from slurm_dl.job.handler_watch import HandlerWatch
from slurm_dl.job.options import parse_options
from slurm_dl.job.run_files import IMPORTED_FILE, LISTENING_FILE, RunId, write_mark
from slurm_dl.model.contract import Claim, Contract
from slurm_dl.model.handover import Handover, Run, Seal, Victim, VictimState
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.plan import Requeue
from slurm_dl.policies.discrete_las import DiscreteLas

RUN = RunId(2, 0)
ANSWER = {"unhandled_run": 2, "unhandled_asked": True}


def process(pid: int, program: str = "python3", code: str = "1 kB", **more: bool) -> Process:
    """A process of the command; the first has the number 1."""
    flags = {"takes": False, "is_fork": False, **more}
    return Process(pid, program, code=f"{program} {code}", **flags)


class FakeChild:
    """A command whose processes are given."""

    def __init__(self) -> None:
        self.family: list[Process] = []

    pid = 1

    def program(self) -> str:
        """What it runs."""
        return self.family[0].program

    def ignores(self, signum: int) -> bool:
        """It ignores nothing."""
        del signum
        return False

    def processes(self, signum: int) -> list[Process]:
        """Those that are given."""
        del signum
        return self.family


class FakeController:
    """Remembers what dlrun claims."""

    unhandled: float | None = None
    asked = False

    def report(self, key: str, value: float | None, *, asked: bool) -> bool:
        """Remember it."""
        assert key == "unhandled"
        self.unhandled, self.asked = value, asked
        return True


AGENT, BASH, SRUN = process(1), process(1, "bash"), process(1, "srun", takes=True)
ONE, TWO = process(7), process(8)
SO_FAR, CLAIMED = "so far", "unhandled"
TAKES = process(7, takes=True)


class Look(NamedTuple):
    """What dlrun sees at one moment, and what then stands in the log or in the comment."""

    at_s: float
    family: list[Process]
    word: str
    asked: bool = False
    is_sent: bool = False
    mark: str = ""
    run: RunId = RUN


RUNS: dict[str, list[Look]] = {
    "torchrun": [Look(5, [AGENT, ONE, TWO], ""), Look(600, [AGENT, ONE, TWO], CLAIMED)],
    "torchrun: late workers": [
        Look(5, [AGENT], ""),
        Look(40, [AGENT, ONE], ""),
        Look(60, [AGENT, ONE], SO_FAR),
        Look(639, [AGENT, ONE], SO_FAR),
        Look(700, [AGENT, ONE], CLAIMED),
    ],
    "torchrun: handler in a worker": [
        Look(5, [AGENT, ONE], ""),
        Look(119, [AGENT, ONE, TAKES], ""),
    ],
    "torchrun: request file": [
        Look(5, [AGENT, ONE], ""),
        Look(119, [AGENT, ONE], "", mark=LISTENING_FILE),
    ],
    "srun": [Look(5, [SRUN, ONE, TWO], ""), Look(600, [SRUN, ONE, TWO], CLAIMED)],
    "srun: handler in a task": [
        Look(5, [SRUN, ONE], ""),
        Look(60, [SRUN, ONE, process(8, takes=True)], ""),
    ],
    "srun: no task here": [Look(t, [SRUN], "") for t in (5, 119)],
    "plain: shell before a handler": [
        Look(5, [BASH, TAKES], ""),
        Look(9, [BASH, TAKES], "", asked=True),
    ],
    "plain: shell with a trap that has run": [
        Look(5, [process(1, "bash", takes=True), process(3, "sleep")], "", asked=True),
        Look(9, [BASH, process(3, "cp")], "", is_sent=True),
        Look(20, [BASH], SO_FAR),
        Look(80, [BASH], CLAIMED),
    ],
    "plain: srun in a shell, no task here": [
        Look(5, [BASH, SRUN], ""),
        Look(9, [BASH, SRUN], "", asked=True),
    ]
    + [Look(t, [BASH, SRUN], SO_FAR, asked=True) for t in (12, 9000)],
    "plain: shell before a program that starts": [
        Look(5, [BASH], ""),
        Look(26, [BASH], SO_FAR),
        Look(70, [BASH, ONE], SO_FAR),
    ],
    "plain: the training is gone": [
        Look(5, [BASH, ONE], ""),
        Look(20, [BASH], ""),
        Look(75, [BASH], SO_FAR),
        Look(80, [BASH], CLAIMED),
    ],
    "plain: a shell that waits in a loop": [
        Look(t, [BASH, ONE, process(t, "sleep")], word)
        for t, word in ((5, ""), (55, SO_FAR), (599, SO_FAR), (660, CLAIMED))
    ],
    "plain: new loader workers": [
        Look(t, [process(1), process(t, is_fork=True)], word)
        for t, word in ((5, ""), (599, SO_FAR), (660, CLAIMED))
    ],
    "plain: the training is gone that read the request file": [
        Look(5, [BASH, ONE], "", mark=LISTENING_FILE),
        Look(10, [BASH], ""),
        Look(65, [BASH], SO_FAR),
        Look(71, [BASH], CLAIMED, asked=True),
    ],
    "plain: sleep": [Look(5, [process(1, "sleep")], CLAIMED)],
    "plain: handler after 10 minutes behind a shell": [
        Look(5, [BASH, ONE], ""),
        Look(30, [BASH, ONE, TWO], ""),
        Look(60, [BASH, ONE, TWO], SO_FAR),
        Look(625, [BASH, ONE, TWO], SO_FAR),
        Look(690, [BASH, ONE, TWO], CLAIMED),
        Look(750, [BASH, ONE, process(8, takes=True)], ""),
    ],
    "plain: first call of should_checkpoint after an epoch": [
        Look(5, [AGENT], "", mark=IMPORTED_FILE),
        Look(600, [AGENT], SO_FAR),
        Look(9000, [AGENT], SO_FAR, asked=True),
    ],
    "plain: the training is gone that might have looked": [
        Look(5, [BASH, ONE], "", mark=IMPORTED_FILE),
        Look(100, [BASH], ""),
        Look(160, [BASH], CLAIMED),
    ],
    "plain: still importing": [Look(t, [process(1, code=f"{t} kB")], "") for t in (5, 35, 65, 95)],
    "plain: handler after all": [
        Look(5, [AGENT], ""),
        Look(10, [AGENT], "", asked=True),
        Look(13, [AGENT], SO_FAR, asked=True),
        Look(599, [AGENT], SO_FAR, asked=True),
        Look(600, [AGENT], CLAIMED, asked=True),
        Look(601, [process(1, takes=True)], "", asked=True),
        Look(1300, [AGENT], "", asked=True),
    ],
    "plain: started anew in place": [
        Look(5, [AGENT], ""),
        Look(600, [AGENT], CLAIMED),
        Look(665, [AGENT], "", run=RunId(2, 1)),
    ],
}
"""By the launcher and what is special; what dlrun sees, look by look."""


@pytest.mark.parametrize("run", RUNS)
def test_a_run_is_unhandled_once_no_handler_is_to_be_expected(tmp_path: Path, run: str) -> None:
    """Whatever starts the training, and never while it may still be starting."""
    environ = {"SLURM_DL_RUN_DIR": str(tmp_path)}
    looks = RUNS[run]
    launcher = run.partition(":")[0]
    options = parse_options(["--launcher", launcher, "--", "train"], environ)
    child, controller, said = FakeChild(), FakeController(), list[str]()
    watch = HandlerWatch(options, cast("JobController", controller), said.append)
    watch.start(0)
    for look in looks:
        child.family = look.family
        if look.mark:
            write_mark(tmp_path / look.mark, RUN)
        if look.asked:
            watch.ask(look.at_s)
        if look.run != RUN:
            said.clear()
            watch.start(look.at_s - 5)
        watch.look(cast("Child", child), look.run, is_sent=look.is_sent, now_s=look.at_s)
        word = CLAIMED if controller.unhandled == RUN.restart else SO_FAR
        assert (word if said and "after all" not in said[-1] else "") == look.word, (look, said)

    assert watch.due_in_s(looks[-1].at_s) <= 60


def test_a_word_that_is_not_dlruns_does_not_outlive_the_first_look_that_finds_a_handler(
    tmp_path: Path,
) -> None:
    """The user may have written it, or copied it from another job."""
    options = parse_options(["--", "train"], {"SLURM_DL_RUN_DIR": str(tmp_path)})
    child, controller = FakeChild(), FakeController()
    controller.unhandled, child.family = 2, [process(1, takes=True)]
    watch = HandlerWatch(options, cast("JobController", controller), lambda _: None)
    watch.start(0)
    watch.look(cast("Child", child), RUN, is_sent=False, now_s=5)

    assert controller.unhandled is None


@pytest.mark.parametrize(("takes", "overwritten", "right"), [(False, None, 2), (True, 2, None)])
def test_a_comment_that_the_scheduler_wrote_over_is_set_right(
    tmp_path: Path, overwritten: float | None, right: float | None, *, takes: bool
) -> None:
    """It writes there just before it signals, and so may undo what dlrun wrote meanwhile."""
    options = parse_options(["--", "train"], {"SLURM_DL_RUN_DIR": str(tmp_path)})
    child, controller = FakeChild(), FakeController()
    child.family = [AGENT]
    watch = HandlerWatch(options, cast("JobController", controller), lambda _: None)
    watch.start(0)
    for at_s in (5, 600):
        watch.look(cast("Child", child), RUN, is_sent=False, now_s=at_s)
    child.family = [process(1, takes=takes)]
    watch.look(cast("Child", child), RUN, is_sent=False, now_s=660)
    assert (controller.unhandled, controller.asked) == (right, False)

    for at_s in (661, 671):
        controller.unhandled = overwritten
        watch.ask(at_s)
        watch.look(cast("Child", child), RUN, is_sent=False, now_s=at_s)

        assert (controller.unhandled, controller.asked) == (right, True)


@pytest.mark.parametrize(
    ("claim", "contract", "after_s", "goes"),
    [
        (ANSWER, {}, 5, True),
        (ANSWER, {"requeued_by": "job"}, 5, True),
        (ANSWER, {}, 4, False),
        (ANSWER, {"target": "steps"}, 50, False),
        (ANSWER, {"target": "full"}, 50, False),
        ({**ANSWER, "acked_run": 2}, {"requeued_by": "job"}, 50, False),
        ({**ANSWER, "unhandled_run": 1}, {}, 50, False),
        ({"unhandled_run": 2}, {}, 50, False),
        ({}, {}, 50, False),
    ],
)
def test_the_wait_ends_when_nothing_will_answer(
    claim: dict[str, Any], contract: dict[str, Any], after_s: float, *, goes: bool
) -> None:
    """In the run that was signalled, where dlrun alone is signalled, and not at once."""
    agreed = Contract(grace_s=60, **contract)
    seen = build.observed(
        [build.running(1, 4, restarts=2), build.pending(2, 4)],
        nodes=(4,),
        held={1: {0: 4.0}},
        claims={JobId(1): Claim(contract=agreed, **claim)},
    )
    snap = build.snapshot(seen)
    victim = Victim(
        run=Run(JobId(1), float(snap.jobs.start_s[0]), 2),
        gpus=4.0,
        contract=agreed,
        state=VictimState.SIGNALLED,
        signalled_s=snap.now_s - after_s,
    )
    handover = Handover(
        handover_id=HandoverId(1),
        opened_s=snap.now_s - after_s - 1,
        beneficiaries=(JobId(2),),
        victims=(victim,),
        nodes=("n1",),
        attached=(JobId(2),),
        seal=Seal.STANDING,
    )
    snap = dataclasses.replace(snap, handovers=(handover,), next_handover_id=HandoverId(2))
    limits = Settings(
        partitions=frozenset({"gpu"}),
        preemption=Preemption(beneficiaries="all", commitment="ignored"),
    )

    plan = decide(snap, DiscreteLas(thresholds_gpu_s=(60.0, 400.0)), limits)

    requeued = [action for action in plan.actions if isinstance(action, Requeue)]
    assert [action.run for action in requeued] == ([victim.run] if goes else [])
    assert all("USR1" in action.why for action in requeued)
