"""What became of jobs that were put back into the queue, told by what is seen of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import build
import pytest

from slurm_dl.ledger.attained_service import AttainedService
from slurm_dl.ledger.restarts import FOLLOWED_S, SOON_S, Restarts
from slurm_dl.ledger.store_protocol import MemoryStore
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.breaker import NOT_OURS, Fate, Restart
from slurm_dl.model.contract import Claim, Contract
from slurm_dl.model.handover import Handover, Run, Victim, VictimState
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.jobs import Held, JobRow, JobState
from slurm_dl.model.plan import MarkGone, OpenHandover, Signal
from slurm_dl.model.snapshot import JobText, LeftOut, Observed

JOB = JobId(7)
UID = 1001
START_S = build.NOW_S
OPTED_IN: Mapping[JobId, Claim] = {JOB: Claim(contract=Contract())}


def seen(after_s: float, *rows: JobRow, reason: str = "", **more: Any) -> Observed:  # noqa: ANN401
    """These jobs, so long after job 7 was first seen running; *reason* is Slurm's word for it."""
    values: dict[str, Any] = {"claims": OPTED_IN, **more}
    texts = {JOB: JobText(label=str(JOB), reason=reason)}
    return build.observed(list(rows), now_s=START_S + after_s, texts=texts, **values)


def job(state: JobState, restarts: int = 1, **more: Any) -> JobRow:  # noqa: ANN401
    """Job 7 in one look."""
    values = {"submit_s": START_S - 10, "gpus": 4.0, "uid": UID, **more}
    return JobRow(job_id=JOB, state=state, restarts=restarts, **values)


RUNNING = job(JobState.RUNNING, 0, start_s=START_S - 5)
WAITING = job(JobState.PENDING, held=Held.BEGIN_TIME)


def lived(*looks: Observed) -> list[Restart]:
    """What is known after job 7 ran, was put back, and *looks*."""
    ledger = Ledger(MemoryStore())
    for look in (seen(0, RUNNING), seen(10, WAITING), *looks):
        ledger.book(look)
    return list(ledger.snapshot(looks[-1] if looks else seen(10, WAITING), frozenset()).restarts)


def fate(*looks: Observed) -> Fate:
    """The same, in a word."""
    (restart,) = lived(*looks)
    return restart.fate


def test_a_job_that_opted_in_is_followed_from_its_requeue_on() -> None:
    """Whoever put it back: Slurm does not say."""
    (restart,) = lived()

    assert restart == Restart(
        job_id=JOB, restarts=0, gpus=4.0, requeued_s=START_S + 10, handover_id=NOT_OURS, uid=UID
    )
    ledger = Ledger(MemoryStore())
    ledger.book(seen(0, RUNNING, claims={}))
    ledger.book(seen(10, WAITING, claims={}))
    assert ledger.snapshot(seen(10, WAITING), frozenset()).restarts == ()


def _held(held: Held, priority: int, reason: str, restarts: int = 1) -> Observed:
    row = job(JobState.PENDING, restarts, held=held, priority=priority)
    return seen(600, row, reason=reason)


@pytest.mark.parametrize(
    ("look", "expected"),
    [
        # A turn in the queue takes as long as it takes.
        (_held(Held.NO, 5, "Priority"), "open"),
        (_held(Held.NO, 5, "Resources"), "open"),
        (_held(Held.LIMIT, 5, "QOSMaxGRESPerUser"), "open"),
        (_held(Held.DEPENDENCY, 5, "Dependency"), "open"),
        (_held(Held.USER_OR_ADMIN, 0, "JobHeldUser"), "open"),
        (_held(Held.USER_OR_ADMIN, 0, "JobHeldAdmin"), "open"),
        # Slurm gave up on it.
        (_held(Held.UNAVAILABLE, 0, "launch failed requeued held", 2), "stuck"),
        (_held(Held.UNAVAILABLE, 0, "launch_failed_requeued_held", 2), "stuck"),
        (_held(Held.USER_OR_ADMIN, 0, "JobHeldAdmin", 2), "stuck"),
        (_held(Held.USER_OR_ADMIN, 0, "JobHoldMaxRequeue", 2), "stuck"),
        (_held(Held.UNAVAILABLE, 0, "BadConstraints"), "stuck"),
        (_held(Held.UNAVAILABLE, 3, "BadConstraints"), "open"),
        # Put back once more, by whomever.
        (_held(Held.NO, 5, "Priority", 2), "unknown"),
        (_held(Held.USER_OR_ADMIN, 0, "JobHeldUser", 2), "unknown"),
    ],
)
def test_waiting_is_no_failure_and_being_put_aside_is(look: Observed, expected: Fate) -> None:
    """Slurm's own words for a job that it cannot start, and priority 0."""
    assert fate(look) == expected


def _over(state: JobState, ran_s: float, **more: Any) -> Observed:  # noqa: ANN401
    start_s = START_S + 100
    row = job(state, start_s=start_s, end_s=start_s + ran_s)
    return seen(100 + ran_s + 5, row, **more)


CUT = {"cut_short": frozenset({JOB})}


@pytest.mark.parametrize(
    ("look", "expected"),
    [
        (_over(JobState.FAILED, SOON_S - 1), "failed"),
        (_over(JobState.FAILED, 0), "failed"),
        (_over(JobState.FAILED, SOON_S), "well"),
        (_over(JobState.COMPLETED, 1), "well"),
        (_over(JobState.FAILED, 1, **CUT), "unknown"),
        (_over(JobState.FAILED, SOON_S, **CUT), "well"),
        (_over(JobState.COMPLETING, 1), "open"),
    ],
)
def test_how_it_ended(look: Observed, expected: Fate) -> None:
    """A failure soon after the restart; not one of an hour later, nor a wish of its user."""
    assert fate(look) == expected


def _running(now_s: float) -> Observed:
    return seen(now_s, job(JobState.RUNNING, start_s=START_S + 100))


def test_running_on_for_a_while_is_well_and_stays_so() -> None:
    """It may fail an hour later for reasons of its own."""
    assert fate(_running(101)) == "open"
    assert fate(_running(100 + SOON_S - 1)) == "open"
    assert fate(_running(100 + SOON_S)) == "well"
    assert fate(_running(100 + SOON_S), _over(JobState.FAILED, 2 * SOON_S)) == "well"
    (restart,) = lived(_running(101), _over(JobState.FAILED, 20))
    assert (restart.fate, restart.restarted_s) == ("failed", START_S + 100)
    assert restart.settled_s == START_S + 125


def test_what_is_settled_stays_so() -> None:
    """A job that Slurm had put aside is released: that it did not come back by itself counts."""
    aside = _held(Held.UNAVAILABLE, 0, "launch failed requeued held", 2)
    released = seen(700, job(JobState.RUNNING, 2, start_s=START_S + 650))

    assert fate(aside, released) == "stuck"


def test_a_job_that_is_not_listed_any_more_says_nothing() -> None:
    """It may have completed; unless its record could not be read: then it is looked for again."""
    other = build.pending(99)

    assert fate(seen(600, other)) == "unknown"
    assert fate(seen(600, other, unreadable=1)) == "open"
    for job_id, word in ((JOB, "open"), (98, "unknown")):
        left_out = {JobId(job_id): LeftOut(uid=1, label=str(job_id))}
        assert fate(seen(600, other, unreadable=1, left_out=left_out)) == word


def test_a_job_cancelled_while_it_waited_says_nothing() -> None:
    """Slurm calls that an end without a start."""
    assert fate(seen(60, job(JobState.FAILED, end_s=START_S + 60))) == "unknown"


def test_another_job_with_its_number_says_nothing() -> None:
    """Ids come round."""
    assert fate(seen(60, job(JobState.FAILED, 0, start_s=START_S + 50, end_s=START_S + 55))) == (
        "unknown"
    )


def test_it_is_forgotten_after_a_day() -> None:
    """The ledger does not grow without end."""
    assert lived(_running(FOLLOWED_S + 9)) != []
    assert lived(_running(FOLLOWED_S + 10)) == []


def _handover() -> Handover:
    victim = Victim(run=Run(JOB, RUNNING.start_s, 0), gpus=4.0, contract=Contract())
    return Handover(
        handover_id=HandoverId(3),
        opened_s=START_S,
        beneficiaries=(JobId(9),),
        victims=(dataclasses.replace(victim, state=VictimState.CHOSEN),),
        nodes=("n1",),
    )


@pytest.mark.parametrize(
    ("told", "outcome", "expected"),
    [
        (True, "requeued", [HandoverId(3)]),
        (True, "finished", [NOT_OURS]),
        (False, "requeued", [NOT_OURS]),
    ],
)
def test_our_own_requeues_are_known_as_ours(
    told: bool,  # noqa: FBT001 - a parameter of the test
    outcome: str,
    expected: Sequence[HandoverId],
) -> None:
    """A victim that was told and is back in the queue; not one that put itself back unasked."""
    ledger = Ledger(MemoryStore())
    ledger.book(seen(0, RUNNING))
    handover = _handover()
    steps: list[OpenHandover | Signal] = [OpenHandover(handover=handover, why="")]
    if told:
        steps.append(
            Signal(
                handover_id=handover.handover_id,
                run=handover.victims[0].run,
                signal="USR1",
                target="batch",
                why="",
            )
        )
    for step in steps:
        ledger.begin(step)
        ledger.settle(step, START_S + 1)
    ledger.book(seen(10, WAITING))
    ledger.settle(
        MarkGone(handover_id=handover.handover_id, job_id=JOB, outcome=outcome, why=""),
        START_S + 10,
    )

    restarts = ledger.snapshot(seen(10, WAITING), frozenset()).restarts
    assert [(r.handover_id, r.uid) for r in restarts] == [(ours, UID) for ours in expected]


def test_whose_job_it_was_is_known_once_its_fate_is() -> None:
    """Written down by a hand-over, or a version, that did not know."""
    known = Restart(job_id=JOB, restarts=0, gpus=4.0, requeued_s=START_S + 10)
    nothing = AttainedService.empty()

    (restart,) = Restarts([known]).news(nothing, nothing, _over(JobState.FAILED, 20))
    assert (restart.fate, restart.uid) == ("failed", UID)
