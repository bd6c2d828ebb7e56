"""What a user is told, sentence by sentence."""

from __future__ import annotations

import build
import pytest

from slurm_dl.engine.decide import decide
from slurm_dl.engine.explain import span, why
from slurm_dl.engine.loop import Cycle
from slurm_dl.engine.settings import Settings
from slurm_dl.model.contract import Contract
from slurm_dl.model.handover import Handover, Run, Victim, VictimState
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.jobs import JobRow
from slurm_dl.model.snapshot import JobText
from slurm_dl.policies.discrete_las import DiscreteLas

POLICY = DiscreteLas(thresholds_gpu_s=(3600.0, 36000.0))


def _cycle(rows: list[JobRow], **more: object) -> Cycle:
    memory = more.pop("memory", {})
    handovers = more.pop("handovers", ())
    snap = build.snapshot(
        build.observed(rows, **more),  # type: ignore[arg-type]
        memory=memory,  # type: ignore[arg-type]
        handovers=handovers,  # type: ignore[arg-type]
    )
    plan = decide(snap, POLICY, Settings(partitions=frozenset({"gpu"})))
    return Cycle(snap, plan, acting=False)


def _said(cycle: Cycle, job: int, history: tuple[dict[str, object], ...] = ()) -> str:
    return "\n".join(why(cycle, POLICY, JobId(job), history))


def test_a_waiting_job_learns_its_rank_and_who_is_ahead() -> None:
    """Rank, tier, service, the next in front, and Slurm's own word."""
    rows = [build.running(1, 8), build.pending(2, 4), build.pending(3, 2)]
    texts = {JobId(2): JobText(label="2_[0-9]"), JobId(3): JobText(label="3", reason="Priority")}
    said = _said(_cycle(rows, texts=texts, memory={"attained_gpu_s": {3: 1800.0}}), 3)

    assert "waits for 2 GPUs" in said
    assert "rank 3 of 3, in tier 0, with 0.50 GPU-hours" in said
    assert "1 running and 1 waiting jobs, first 2_[0-9]." in said
    assert "sinks into tier 1 after 0.50 more GPU-hours, 15 min of running." in said
    assert "Slurm's own reason: Priority." in said
    assert "has not opted in" in said


def test_the_first_is_told_that_nobody_is_ahead() -> None:
    """And nothing is said of a Slurm reason that is none."""
    said = _said(_cycle([build.pending(2)], texts={JobId(2): JobText(label="2", reason="None")}), 2)

    assert "Nobody is ahead of it." in said
    assert "Slurm's own reason" not in said


def test_a_job_in_the_last_tier_does_not_sink() -> None:
    """There is no next tier to speak of."""
    cycle = _cycle([build.running(1)], memory={"attained_gpu_s": {1: 1e6}})

    assert "It is in the last tier." in _said(cycle, 1)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (VictimState.CHOSEN, "chosen to give way"),
        (VictimState.SIGNALLING, "being sent USR2"),
        (VictimState.SIGNALLED, "sent USR2 and has 90 s to save"),
        (VictimState.REQUEUING, "being requeued"),
        (VictimState.GONE, "has given way"),
    ],
)
def test_both_sides_of_a_hand_over_are_told(state: VictimState, words: str) -> None:
    """The victim learns who it is for, the beneficiary who gives way and where."""
    victim = Victim(
        run=Run(JobId(1), build.NOW_S - 5000, 0),
        gpus=4.0,
        contract=Contract(signal="USR2", grace_s=90.0),
        state=state,
        outcome="requeued",
    )
    handover = Handover(
        handover_id=HandoverId(6),
        opened_s=build.NOW_S,
        beneficiaries=(JobId(2),),
        victims=(victim,),
        nodes=("n1",),
    )
    cycle = _cycle(
        [build.running(1, 4), build.pending(2, 4)],
        held={1: {0: 4}},
        opted_in=[1],
        handovers=[handover],
    )

    assert "Hand-over 6 for 2: it" in _said(cycle, 1)
    assert words in _said(cycle, 1)
    assert "Hand-over 6 is freeing GPUs for it: 1 give way on n1." in _said(cycle, 2)


def test_what_was_done_is_told_with_its_time() -> None:
    """The audit trail of the job comes last, as it is."""
    entry = {"time": "T", "action": "requeue", "reason": "its grace is over", "result": "ok"}

    assert _said(_cycle([build.pending(1)]), 1, (entry,)).endswith(
        "T: requeue: its grace is over (ok)"
    )


def test_a_job_slurm_has_forgotten_still_has_its_history() -> None:
    """Nothing is invented about it."""
    entry = {"time": "T", "action": "requeue", "reason": "r", "result": "ok"}
    said = why(_cycle([]), POLICY, JobId(9), (entry,))

    assert said == ["Slurm does not list job 9 any more.", "T: requeue: r (ok)"]


def test_a_job_elsewhere_is_told_that_it_is_not_ours() -> None:
    """Only managed partitions are ordered."""
    assert "only Slurm orders it" in _said(_cycle([build.pending(1, partition=1)]), 1)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(-3, "0 s"), (59.4, "59 s"), (60, "1 min"), (3725, "1 h 2 min"), (90000, "1 d 1 h")],
)
def test_durations_are_said_in_two_units(seconds: float, words: str) -> None:
    """As a person would say them."""
    assert span(seconds) == words
