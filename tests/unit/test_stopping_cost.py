"""What stopping a job costs, against sums by hand, and who is stopped because of that."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import build
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_dl.engine.cycle import Cycle
from slurm_dl.engine.decide import decide
from slurm_dl.engine.explain.plan_reasons import why
from slurm_dl.engine.preemption.stopping_cost import setup_s, stopping_cost
from slurm_dl.engine.settings import Placement, Preemption, Settings
from slurm_dl.model.breaker import NOT_OURS, Restart, Taken
from slurm_dl.model.contract import Claim, Contract
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.plan import OpenHandover
from slurm_dl.model.profile import CheckpointCost, Profile
from slurm_dl.model.snapshot import DEFAULT_HOLD_S, Snapshot
from slurm_dl.policies.discrete_las import DiscreteLas

NOW_S = build.NOW_S
POLICY = DiscreteLas(thresholds_gpu_s=(1000.0,))
SETTINGS = Settings(
    partitions=frozenset({"gpu"}),
    preemption=Preemption(
        beneficiaries="all",
        commitment="ignored",
        min_quantum_s=0,
        cooldown_s=0,
        limit_reserve_s=0,
        checkpoint_cost_s=60,
        unsaved_share=0.5,
    ),
    placement=Placement(
        profiles={
            name: Profile(name=name, checkpoint=CheckpointCost(save_s=save_s, restore_s=restore_s))
            for name, save_s, restore_s in (
                ("quick", 5, 15),
                ("slow", 100, 100),
                ("half", 1, None),
            )
        }
    ),
)


def ago(seconds: float) -> int:
    """So many seconds ago, as a job claims it."""
    return int(NOW_S - seconds)


FIRST = dataclasses.replace(
    SETTINGS, preemption=dataclasses.replace(SETTINGS.preemption, max_handovers=1)
)


def victims_of(snap: Snapshot, limits: Settings = FIRST) -> set[int]:
    """Who is stopped for the first of the waiting jobs.

    Enough jobs wait for the policy to want none of those that run: what they cost decides alone.
    """
    return {
        int(victim.run.job_id)
        for action in decide(snap, POLICY, limits).actions
        if isinstance(action, OpenHandover)
        for victim in action.handover.victims
    }


PLAIN_GPU_S = 4 * (60 + 0.5 * 1000)
"""A job of 4 GPUs that has run for 1000 s and says nothing."""


@pytest.mark.parametrize("one", [1, 2])
@pytest.mark.parametrize(
    ("claim", "more", "gpu_s", "evictions"),
    [
        ({"saved_s": ago(100)}, {}, 4 * (60 + 0.5 * 100), 0),
        ({"saved_s": ago(100)}, {}, 4 * (60 + 0.5 * 100), 3),
        ({"saved_s": ago(-9000)}, {}, 4 * 60, 0),
        ({"saved_s": ago(9000)}, {"ran_s": 900}, 4 * (60 + 0.5 * 900), 0),
        ({"saved_s": ago(9000)}, {"ran_s": 1100}, 4 * (60 + 0.5 * 1100), 0),
        ({}, {"acked": True}, 4 * 60, 0),
        ({}, {"acked": False}, 4 * (60 + 1000), 0),
        ({"saved_s": ago(100)}, {"acked": False}, 4 * (60 + 100), 0),
        ({"saved_s": ago(900)}, {"acked": False}, 4 * (60 + 900), 0),
        ({"unhandled_run": 2}, {}, PLAIN_GPU_S, 1),
        ({"unhandled_run": 2}, {}, PLAIN_GPU_S, 0),
        ({"unhandled_run": 2}, {"ran_s": 999}, 4 * (60 + 0.5 * 999), 0),
        ({"unhandled_run": 2}, {"acked": True}, 4 * 60, 0),
        ({"unhandled_run": 1}, {"ran_s": 900}, 4 * (60 + 0.5 * 900), 0),
        ({"unhandled_run": 1}, {"others": 1}, PLAIN_GPU_S, 0),
        ({"model": "quick"}, {}, 4 * (20 + 0.5 * 1000), 0),
        ({"model": "slow"}, {}, 4 * (200 + 0.5 * 1000), 0),
        ({"model": "half"}, {"ran_s": 900}, 4 * (60 + 0.5 * 900), 0),
        ({}, {}, PLAIN_GPU_S, 1),
    ],
)
def test_of_two_jobs_the_one_that_costs_less_is_stopped(
    one: int, claim: dict[str, Any], more: dict[str, Any], gpu_s: float, evictions: int
) -> None:
    """Whichever of them is listed first; of equal cost it is who was stopped less often."""
    plain, others = 3 - one, more.get("others", 0)
    rows = [
        build.running(j, 4, ran_s=more.get("ran_s", 1000) if j == one else 1000, restarts=2)
        for j in (1, 2)
    ]
    seen = build.observed(
        [*rows, build.pending(3, 4), build.pending(4, 4)],
        nodes=(4, 4),
        held={1: {0: 4.0}, 2: {1: 4.0}},
        claims={
            JobId(one): Claim(contract=Contract(), **claim),
            JobId(plain): Claim(contract=Contract()),
        },
    )
    answers = {JobId(one): more["acked"]} if "acked" in more else {}
    snap = build.snapshot(
        seen,
        memory={
            "attained_gpu_s": {1: 9000.0, 2: 9000.0},
            "preemptions": {one: evictions, plain: others},
        },
        answers=answers,
    )

    costs = stopping_cost(snap, np.array([one - 1, plain - 1]), SETTINGS).gpu_s

    assert costs.tolist() == [gpu_s, PLAIN_GPU_S]
    cheapest = one if (gpu_s, evictions) < (PLAIN_GPU_S, others) else plain
    assert victims_of(snap) == {cheapest}


@settings(max_examples=100)
@given(
    sizes=st.lists(st.sampled_from([(4,), (2, 2), (1, 3), (1, 1, 2)]), min_size=2, max_size=4),
    since=st.lists(st.integers(0, 4), min_size=12, max_size=12),
    evictions=st.lists(st.integers(0, 2), min_size=12, max_size=12),
)
def test_a_whole_node_is_taken_where_that_costs_least(
    sizes: list[tuple[int, ...]], since: list[int], evictions: list[int]
) -> None:
    """All nodes are full and one is wanted whole: the cost of each is a sum by hand."""
    on = [node for node, jobs in enumerate(sizes) for _ in jobs]
    gpus = list(itertools.chain(*sizes))
    ids = range(1, len(gpus) + 1)
    seen = build.observed(
        [
            *(build.running(j, gpus[j - 1]) for j in ids),
            *(build.pending(90 + node, 4) for node in range(len(sizes))),
        ],
        nodes=[4.0] * len(sizes),
        held={j: {on[j - 1]: float(gpus[j - 1])} for j in ids},
        claims={JobId(j): Claim(contract=Contract(), saved_s=ago(100 * since[j - 1])) for j in ids},
    )
    memory = {
        "attained_gpu_s": dict.fromkeys(ids, 90_000.0),
        "preemptions": {j: evictions[j - 1] for j in ids},
    }
    price = {j: (gpus[j - 1] * (60 + 0.5 * 100 * since[j - 1]), evictions[j - 1]) for j in ids}

    chosen = victims_of(build.snapshot(seen, memory=memory))

    def total(jobs: set[int]) -> tuple[float, int]:
        return sum(price[j][0] for j in jobs), sum(price[j][1] for j in jobs)

    nodes = [{j for j in ids if on[j - 1] == node} for node in range(len(sizes))]
    assert chosen in nodes
    assert total(chosen) == min(map(total, nodes))


def test_who_was_stopped_more_often_is_spared_first() -> None:
    """On one node, of three equal jobs of which two must go."""
    seen = build.observed(
        [*(build.running(j, 1) for j in (1, 2, 3)), build.pending(4, 2), build.pending(5, 1)],
        nodes=(3,),
        held={j: {0: 1.0} for j in (1, 2, 3)},
        opted_in=(1, 2, 3),
    )
    for often in (1, 2, 3):
        memory = {
            "attained_gpu_s": dict.fromkeys((1, 2, 3), 90_000.0),
            "preemptions": {often: 1},
        }
        assert victims_of(build.snapshot(seen, memory=memory)) == {1, 2, 3} - {often}


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        (
            Claim(contract=Contract(), saved_s=ago(500)),
            ("about 1,240 GPU-s: 4 GPUs x (60 s ", " + 0.5 x 500 s since its last checkpoint)"),
        ),
        (Claim(contract=Contract()), ("about 2,240 GPU-s", "it has reported no checkpoint")),
        (Claim(), None),
        (Claim(contract=Contract(grace_s=9000)), None),
    ],
)
def test_what_stopping_it_would_cost_is_told(claim: Claim, words: tuple[str, ...] | None) -> None:
    """Of jobs that may be stopped, with the terms of the sum."""
    row = build.running(1, 4, ran_s=1000)
    snap = build.snapshot(build.observed([row], held={1: {0: 4.0}}, claims={JobId(1): claim}))
    cycle = Cycle(
        snap,
        decide(snap, POLICY, SETTINGS),
        acting=True,
        settings=SETTINGS,
    )
    said = " ".join(why(cycle, POLICY, JobId(1)))

    assert ("GPU-s" in said) == (words is not None)
    for each in words or ():
        assert each in said


LATE = dataclasses.replace(
    SETTINGS,
    preemption=dataclasses.replace(SETTINGS.preemption, beneficiary_delay_s=120),
)


@pytest.mark.parametrize(
    ("waited_s", "ran_s", "limits", "is_delayed"),
    [
        (40, 0, LATE, True),
        (119, 0, LATE, True),
        (121, 0, LATE, False),
        (40, 10, LATE, False),
        (0, 0, SETTINGS, False),
    ],
)
@pytest.mark.parametrize("opted", [True, False])
def test_nobody_is_stopped_for_a_job_that_has_not_waited_long_enough(
    waited_s: float, ran_s: float, limits: Settings, *, is_delayed: bool, opted: bool
) -> None:
    """Counted from when it became eligible; a job just like it that has waited is served."""
    if opted:
        opted_in = dataclasses.replace(limits.preemption, beneficiaries="opted_in")
        limits = dataclasses.replace(limits, preemption=opted_in)
    seen = build.observed(
        [*(build.running(j, 4) for j in (1, 2)), build.pending(3, 4), build.pending(4, 4)],
        nodes=(4, 4),
        held={1: {0: 4.0}, 2: {1: 4.0}},
        opted_in=(1, 2, 3, 4) if opted else (1, 2),
    )
    memory = {
        "attained_gpu_s": {1: 90_000.0, 2: 90_000.0},
        "ran_s": {3: ran_s},
        "waiting_since_s": {3: NOW_S - waited_s},
    }
    plan = decide(build.snapshot(seen, memory=memory), POLICY, limits)
    served = {
        int(job)
        for action in plan.actions
        if isinstance(action, OpenHandover)
        for job in action.handover.beneficiaries
    }

    assert served == ({4} if is_delayed else {3, 4})
    assert ("beneficiary_delay_s" in plan.notes.get(JobId(3), "")) == is_delayed
    assert "beneficiary_delay_s" not in plan.notes.get(JobId(4), "")


def test_a_delayed_job_is_told_so_beside_others_just_like_it() -> None:
    """One that is served, and one for which there are too many hand-overs."""
    limits = dataclasses.replace(
        LATE, preemption=dataclasses.replace(LATE.preemption, max_handovers=1)
    )
    seen = build.observed(
        [*(build.running(j, 4) for j in (1, 2)), *(build.pending(j, 4) for j in (3, 4, 5))],
        nodes=(4, 4),
        held={1: {0: 4.0}, 2: {1: 4.0}},
        opted_in=(1, 2),
    )
    memory = {
        "attained_gpu_s": {1: 90_000.0, 2: 90_000.0},
        "waiting_since_s": {5: NOW_S - 40},
    }

    plan = decide(build.snapshot(seen, memory=memory), POLICY, limits)

    assert "beneficiary_delay_s" in plan.notes[JobId(5)]
    assert not any("beneficiary_delay_s" in plan.notes.get(JobId(j), "") for j in (3, 4))


@pytest.mark.parametrize("often", [1, 2])
def test_of_victims_that_turn_out_not_to_be_needed_the_one_stopped_more_often_stays(
    often: int,
) -> None:
    """Two cheap jobs on a node each and a gang on two nodes are chosen, for a gang on three."""
    now = {"contract": Contract(), "saved_s": ago(0)}
    seen = build.observed(
        [
            build.running(1, 2),
            build.running(2, 2),
            build.running(3, 4, n_nodes=2),
            build.pending(4, 6, n_nodes=3),
            build.pending(5, 2),
        ],
        nodes=(2, 2, 2, 2),
        held={1: {0: 2.0}, 2: {1: 2.0}, 3: {2: 2.0, 3: 2.0}},
        claims={JobId(j): Claim(**now) for j in (1, 2, 3)},
    )
    memory = {"attained_gpu_s": dict.fromkeys((1, 2, 3), 90_000.0), "preemptions": {often: 1}}

    assert victims_of(build.snapshot(seen, memory=memory)) == {3, 3 - often}


COST_S = 60.0
"""Save and restore where nothing is known of them."""

PROFILES = {
    name: Profile(name=name, checkpoint=CheckpointCost(save_s=save_s, restore_s=restore_s))
    for name, save_s, restore_s in (("slow", 100.0, 100.0), ("half known", 5.0, None))
}


def taken(job_id: int, notice_s: float, at_s: float = 0.0) -> Taken:
    """GPUs of a job that was gone so long after the signal."""
    return Taken(
        at_s=build.NOW_S - 500 + at_s,
        job_id=JobId(job_id),
        gpus=1.0,
        notice_s=notice_s,
        handover_id=HandoverId(7),
    )


def restart(held_s: float | None, handover_id: int = 7) -> Restart:
    """A job that was put back, and started so long after; None: not yet."""
    at_s = build.NOW_S - 5000
    return Restart(
        job_id=JobId(99),
        restarts=0,
        gpus=1.0,
        requeued_s=at_s,
        handover_id=HandoverId(handover_id),
        restarted_s=at_s + held_s if held_s else 0.0,
    )


NEVER_TAKEN, TAKEN = 1, 2
UNKNOWN_S = COST_S + DEFAULT_HOLD_S


@pytest.mark.parametrize(
    ("measured", "models", "never_taken_s", "taken_s"),
    [
        pytest.param({}, {}, UNKNOWN_S, UNKNOWN_S, id="nothing"),
        pytest.param(
            {"taken": (taken(TAKEN, 40), taken(TAKEN, 8, 1), taken(7, 20), taken(8, 100))},
            {},
            60 / 2 + 30 + DEFAULT_HOLD_S,  # Of 8, 20, 40, 100 the median.
            60 / 2 + 8 + DEFAULT_HOLD_S,
            id="its own last notice, else the median of all",
        ),
        pytest.param(
            {"restarts": (restart(400), restart(130), restart(9, NOT_OURS), restart(None))},
            {},
            COST_S + 130,
            COST_S + 130,
            id="the shortest hold after a hand-over",
        ),
        pytest.param(
            {},
            {NEVER_TAKEN: "slow", TAKEN: "half known"},
            200 + DEFAULT_HOLD_S,
            UNKNOWN_S,
            id="a profile with both parts",
        ),
        pytest.param(
            {"taken": (taken(TAKEN, 10),), "restarts": (restart(50),)},
            {NEVER_TAKEN: "no such", TAKEN: "slow"},
            60 / 2 + 10 + 50,
            200 / 2 + 10 + 50,
            id="all of them",
        ),
    ],
)
def test_it_is_notice_hold_and_restore(
    measured: dict[str, Any], models: dict[int, str], never_taken_s: float, taken_s: float
) -> None:
    """Of a running job that was never preempted, and of a waiting one that was."""
    claims = {JobId(job_id): Claim(model=model) for job_id, model in models.items()}
    rows = [build.running(NEVER_TAKEN), build.pending(TAKEN)]
    snap = build.snapshot(build.observed(rows, claims=claims), **measured)

    assert setup_s(snap, PROFILES, COST_S).tolist() == [never_taken_s, taken_s]
