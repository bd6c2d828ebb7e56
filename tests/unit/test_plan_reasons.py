"""What a user is told, sentence by sentence."""

from __future__ import annotations

import math

import build
import numpy as np
import pytest
from fake_cluster import FakeCluster

from slurm_dl.engine.cycle import Cycle, run_cycle
from slurm_dl.engine.decide import decide
from slurm_dl.engine.explain.past_reasons import moment, span
from slurm_dl.engine.explain.plan_reasons import why
from slurm_dl.engine.settings import Placement, Preemption, Settings
from slurm_dl.ledger.store_protocol import MemoryStore
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.contract import NO_CLAIM, Claim, Contract
from slurm_dl.model.handover import Handover, Run, Victim, VictimState
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.jobs import Held, JobRow
from slurm_dl.model.snapshot import JobText
from slurm_dl.model.steer import Steer
from slurm_dl.placement.best_fit import BestFit
from slurm_dl.policies.discrete_las import DiscreteLas

POLICY = DiscreteLas(thresholds_gpu_s=(3600.0, 36000.0))


def _cycle(rows: list[JobRow], **more: object) -> Cycle:
    memory = more.pop("memory", {})
    handovers = more.pop("handovers", ())
    steers = more.pop("steers", {})
    snap = build.snapshot(
        build.observed(rows, **more),  # type: ignore[arg-type]
        memory=memory,  # type: ignore[arg-type]
        handovers=handovers,  # type: ignore[arg-type]
        steers=steers,
    )
    limits = Preemption(commitment="ignored")
    plan = decide(snap, POLICY, Settings(partitions=frozenset({"gpu"}), preemption=limits))
    return Cycle(snap, plan, acting=False)


def _said(cycle: Cycle, job: int, history: tuple[dict[str, object], ...] = ()) -> str:
    return "\n".join(why(cycle, POLICY, JobId(job), history))


def test_a_waiting_job_learns_its_rank_and_who_is_ahead() -> None:
    """Rank, tier, service, the next in front, and Slurm's own word."""
    rows = [build.running(1, 8), build.pending(2, 4), build.pending(3, 2)]
    texts = {JobId(2): JobText(label="2_[0-9]"), JobId(3): JobText(label="3", reason="Priority")}
    said = _said(_cycle(rows, texts=texts, memory={"attained_gpu_s": {3: 1800.0}}), 3)

    assert "has been waiting for 2 GPUs" in said
    assert "rank 3 of 3, in tier 0, with 0.50 GPU-hours" in said
    assert "1 running and 1 waiting jobs, first 2_[0-9]." in said
    assert "moves to tier 1 after 0.50 more GPU-hours, 15 min of running." in said
    assert "Slurm's own reason: Priority." in said
    assert "has not opted in" in said


def test_the_first_is_told_that_nobody_is_ahead() -> None:
    """And nothing is said of a Slurm reason that is none."""
    said = _said(_cycle([build.pending(2)], texts={JobId(2): JobText(label="2", reason="None")}), 2)

    assert "No job is ahead of it." in said
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
        (VictimState.SIGNALLED, "sent USR2 and has 30 s left to save"),
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
        signalled_s=build.NOW_S - 60,
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


@pytest.mark.parametrize(
    ("grace_s", "words"),
    [
        (600, "If it is preempted it gets USR1 and up to 600 s"),
        (5000, "It is not preempted: its grace of 5000 s is above the site's limit of 600 s"),
    ],
)
def test_a_job_that_asks_for_too_long_a_grace_is_told_so(grace_s: float, words: str) -> None:
    """By the limit of the cycle, as `run_cycle` has it from the settings."""
    cluster = FakeCluster(nodes=1, gpus=4)
    job = cluster.submit(4, work_s=100, contract=Contract(grace_s=grace_s))
    settings = Settings(partitions=frozenset({"gpu"}), preemption=Preemption(max_grace_s=600))
    ledger, clock = Ledger(MemoryStore()), cluster.clock
    for acting in (True, False):
        cycle = run_cycle(cluster, ledger, POLICY, settings, clock=clock, acting=acting)
        told = [s for s in why(cycle, POLICY, job) if "give way" in s or "preempted" in s]
        assert len(told) == 1
        assert told[0].startswith(words)


@pytest.mark.parametrize(
    ("claim", "row", "told", "untold"),
    [
        (NO_CLAIM, {}, "submit it with dlsubmit", "If it is preempted"),
        (
            Claim(contract=Contract(grace_s=5000)),
            {},
            "submit it with a shorter one",
            "If it is preempted",
        ),
        (Claim(contract=Contract()), {"requeueable": False}, "--no-requeue", "If it is preempted"),
        (Claim(contract=Contract()), {}, "If it is preempted", "no job is preempted"),
    ],
    ids=["no contract", "grace too long", "no requeue", "opted in"],
)
def test_whoever_displaces_nobody_is_told_why(
    claim: Claim, row: dict[str, bool], told: str, untold: str
) -> None:
    """And what to do about it; it is promised no grace, since it will not be stopped."""
    rows = [build.running(1, 4, ran_s=5000), build.pending(2, 4, **row)]
    claims = {JobId(1): Claim(contract=Contract()), JobId(2): claim}
    seen = build.observed(rows, nodes=[4], held={1: {0: 4.0}}, claims=claims)
    snap = build.snapshot(seen, memory={"attained_gpu_s": {1: 20000.0}})
    settings = Settings(partitions=frozenset({"gpu"}))
    cycle = Cycle(snap, decide(snap, POLICY, settings), acting=True, settings=settings)
    said = _said(cycle, 2)

    assert told in said
    assert untold not in said


ASKED = Contract(signal="USR2")


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        (Claim(contract=ASKED, unhandled_run=2), "its run 2 had a handler for USR2"),
        (Claim(contract=ASKED, unhandled_run=2, acked_run=1), "its run 2 had a handler for USR2"),
        (Claim(contract=ASKED, unhandled_run=2, acked_run=2), ""),
        (Claim(contract=ASKED), ""),
        (Claim(unreadable=True), "the contract in it is unreadable"),
        (Claim(contract=ASKED, sizes_unreadable=True), "Its sizes are unreadable"),
        (NO_CLAIM, "It has not opted in to preemption and is never"),
    ],
)
def test_what_is_wrong_with_a_contract_is_told(claim: Claim, words: str) -> None:
    """A shell around the training, or quotes that got lost: nobody else tells the owner."""
    cycle = _cycle([build.running(1, 8)], claims={JobId(1): claim})
    said = _said(cycle, 1)

    assert words in said
    assert ("had a handler" in said, "unreadable" in said, "It has not opted in" in said) == (
        "had a handler" in words,
        "unreadable" in words,
        "It has not opted in" in words,
    )


def _steer(**more: object) -> Steer:
    values: dict[str, object] = {
        "job_id": JobId(2),
        "kind": "spot",
        "avoid": ("n1", "n2"),
        "since_s": build.NOW_S - 60,
        "until_s": build.NOW_S + 300,
        "why": "the fullest nodes it fits on",
    }
    return Steer(**{**values, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (
            {},
            "It is kept from 2 nodes for 5 min: left to it are n3 (the fullest nodes it fits on).",
        ),
        ({"avoid": ("n1",)}, "It is kept from 1 node for 5 min: left to it are n2, n3 ("),
        (
            {"avoid": ("n1", "n2", "n3"), "kind": "wait", "until_s": math.inf, "why": "it waits"},
            "It is kept from 3 nodes: no node that is up is left to it (it waits).",
        ),
        (
            {"avoid": (), "kind": "wait", "not_before_s": build.NOW_S + 90, "why": "it waits"},
            "It is put off for 1 min 30 s, and at each look anew (it waits).",
        ),
        (
            {"avoid": (), "kind": "over"},
            "It was to go elsewhere than Slurm would have it, and may start anywhere now.",
        ),
    ],
)
def test_a_waiting_job_is_told_what_is_left_to_it(more: dict[str, object], words: str) -> None:
    """Which nodes, until when, and why; nodes that its owner excludes are not left to it."""
    steer = _steer(own=("n4",), **more)
    excluded = {JobId(2): np.array([n in steer.excluded for n in ("n1", "n2", "n3", "n4")])}
    rows = [build.running(1, 4), build.pending(2, 4)]
    cycle = _cycle(rows, excluded=excluded, steers={JobId(2): steer})

    said = _said(cycle, 2).splitlines()

    assert [s for s in said if s.startswith(words)], said


def test_what_is_left_is_named_briefly() -> None:
    """Four nodes, and that there are more."""
    cycle = _cycle([build.pending(2)], nodes=[4] * 8, steers={JobId(2): _steer()})

    assert "left to it are n3, n4, n5, n6 ... (" in _said(cycle, 2)


def test_a_running_job_is_told_nothing_of_its_steer() -> None:
    """It is remembered for a requeue only."""
    rows = [build.running(2, 4)]
    said = _said(_cycle(rows, steers={JobId(2): _steer(kind="started")}), 2)

    assert "kept from" not in said


def test_a_job_is_told_where_it_should_go_though_nobody_is_steered() -> None:
    """What the scheme chose is a note of the plan."""
    how = Placement(scheme=BestFit())
    snap = build.snapshot(build.observed([build.pending(2, 4)]))
    plan = decide(snap, POLICY, Settings(partitions=frozenset({"gpu"}), placement=how))
    said = _said(Cycle(snap, plan, acting=False), 2)

    assert "At the last look: it is to start on n1 (the fullest nodes it fits on)." in said


def test_a_job_that_we_put_off_is_told_what_for() -> None:
    """That Slurm calls it not eligible is our doing; other begin times are told as such."""
    how = Placement(scheme=BestFit(), steer=True)
    rows = [build.pending(j, 4, held=Held.BEGIN_TIME) for j in (2, 3)]
    steer = _steer(avoid=(), kind="wait", not_before_s=build.NOW_S + 60)
    snap = build.snapshot(build.observed(rows), steers={JobId(2): steer})
    plan = decide(snap, POLICY, Settings(partitions=frozenset({"gpu"}), placement=how))
    cycle = Cycle(snap, plan, acting=False)

    assert "At the last look: it is to start on n1 (" in _said(cycle, 2)
    assert "At the last look: it is not eligible yet" in _said(cycle, 3)


def test_what_was_done_is_told_with_its_time() -> None:
    """The audit trail of the job comes last, as it is."""
    entry = {"epoch_s": 1e6, "action": "requeue", "reason": "its grace is over", "result": "ok"}

    assert _said(_cycle([build.pending(1)]), 1, (entry,)).endswith(
        f"{moment(1e6)}: requeue: its grace is over (ok)"
    )


def test_a_job_slurm_has_forgotten_still_has_its_history() -> None:
    """Nothing is invented about it."""
    entry = {"epoch_s": 1e6, "action": "requeue", "reason": "r", "result": "ok"}
    said = why(_cycle([]), POLICY, JobId(9), (entry,))

    assert said == ["Slurm does not list job 9 any more.", f"{moment(1e6)}: requeue: r (ok)"]


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


def test_in_shadow_mode_both_sides_learn_what_would_be_done() -> None:
    """A hand-over that is planned and not begun is told as one that would be."""
    rows = [build.running(1, 4, ran_s=5000), build.pending(2, 4)]
    seen = build.observed(rows, nodes=[4], held={1: {0: 4.0}}, opted_in=[1, 2])
    snap = build.snapshot(seen, memory={"attained_gpu_s": {1: 20000.0}})
    plan = decide(snap, POLICY, Settings(partitions=frozenset({"gpu"})))
    looking, acting = Cycle(snap, plan, acting=False), Cycle(snap, plan, acting=True)

    for job in (1, 2):
        assert "If the daemon acted, it would begin a hand-over now" in _said(looking, job)
        assert "would begin" not in _said(acting, job)
