"""Jobs pass the first waiting job only where they do not move its planned start."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from build import NOW_S, observed, pending, running, snapshot
from hypothesis import given
from hypothesis import strategies as st

from slurm_dl.engine.decide import decide
from slurm_dl.engine.settings import Overdue, Preemption, Settings
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobState
from slurm_dl.model.plan import Plan
from slurm_dl.policies.base import Policy
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.policies.fifo import Fifo, FifoSkip

HOUR_S = 3600.0
POLICY = DiscreteLas(thresholds_gpu_s=(1e6,))
GANG = 20
ALL = 4, 4.0
SETTINGS = Settings(
    partitions=frozenset({"gpu"}),
    preemption=Preemption(beneficiaries="all", commitment="ignored"),
    overdue=Overdue(after_s=0.0, pass_s=HOUR_S),
)


def plan_of(
    small: dict[int, float],
    *,
    left_s: tuple[float, ...] = (600.0, 900.0, 1200.0),
    gang: tuple[int, float] = (3, 4.0),
    waited_s: float = HOUR_S + 1,
    policy: Policy = POLICY,
    settings: Settings = SETTINGS,
    ending: frozenset[int] = frozenset(),
) -> Plan:
    """Four nodes of four GPUs: a job on each of the first ones, a gang that waits, and small jobs.

    Args:
        small: Expected run time of each, by id; each wants two GPUs.
        gang: Nodes that the gang wants, and GPUs on each.
        left_s: Of the running jobs, four GPUs each.
        ending: Those of them that are COMPLETING.
    """
    rows = [running(i, 4, limit_s=1e6) for i in range(1, 1 + len(left_s))]
    rows = [
        dataclasses.replace(row, state=JobState.COMPLETING) if row.job_id in ending else row
        for row in rows
    ]
    rows.append(pending(GANG, gang[0] * gang[1], n_nodes=gang[0]))
    rows += [pending(i, 2) for i in small]
    held = {i: {i - 1: 4.0} for i in range(1, 1 + len(left_s))}
    seen = observed(rows, held=held)
    since = {row.job_id: NOW_S - waited_s for row in rows}
    snap = snapshot(seen, memory={"waiting_since_s": since, "first_submit_s": since})
    expected = {**dict(enumerate(left_s, 1)), GANG: 100.0, **small}
    order = [expected[j] for j in snap.jobs.job_id.tolist()]
    return decide(dataclasses.replace(snap, left_s=np.array(order)), policy, settings)


@pytest.mark.parametrize(
    ("small", "more", "served"),
    [
        # Three whole nodes once two of the jobs have ended, in 900 s; the fourth is one of them.
        ({30: 800.0}, {}, {30}),
        ({30: 901.0, 31: 901.0, 32: 900.0}, {}, {32}),
        ({30: 1e5, **dict.fromkeys(range(31, 60), 901.0), 60: 800.0}, {}, {60}),
        # One small job has room beside it.
        ({30: 1e5, 31: 1e5}, {"gang": (3, 2.0)}, {30}),
        # GPUs alone would do in 600 s, but not on one node each.
        ({30: 700.0, 31: 1e5}, {"gang": (4, 3.0)}, {30}),
        ({30: 1e5, 31: 900.0}, {"gang": ALL}, {31}),
        ({30: math.inf, 31: math.inf}, {"gang": ALL}, set()),
        # Nothing is known of the running jobs: it has no planned start, and nothing moves it.
        ({30: 1e5, 31: 1e5}, {"gang": ALL, "left_s": (math.inf,) * 3}, {30, 31}),
        # The GPUs of a job that is COMPLETING are as good as free: the gang starts in 900 s.
        ({30: 1000.0, 31: 900.0}, {"left_s": (1e5, 900.0, 1200.0), "ending": {1}}, {31}),
        ({30: 1000.0, 31: 900.0}, {"left_s": (1e5, 900.0, 1200.0)}, {30, 31}),
        # It has not waited for long, or there is no bound.
        ({30: 1e5, 31: 1e5}, {"gang": ALL, "waited_s": HOUR_S - 1}, {30, 31}),
        (
            {30: 1e5, 31: 1e5},
            {"gang": ALL, "settings": dataclasses.replace(SETTINGS, overdue=Overdue(pass_s=0.0))},
            {30, 31},
        ),
        # It could never start.
        ({30: 1e5, 31: 1e5}, {"gang": (4, 4.25)}, {30, 31}),
        ({30: 1e5}, {"gang": ALL, "policy": FifoSkip()}, set()),
        ({30: 1e5}, {"gang": ALL, "policy": Fifo()}, set()),
    ],
)
def test_who_may_pass(small: dict[int, float], more: dict[str, object], served: set[int]) -> None:
    plan = plan_of(small, **more)  # type: ignore[arg-type]
    assert {j for j in plan.target if j >= GANG} == served


def start_of(gang: tuple[int, float], left_s: list[float], small: list[float]) -> float:
    """First time at which enough nodes have room; the *small* jobs are on node 4."""

    def free(t: float) -> list[float]:
        return [*(4.0 * (s <= t) for s in left_s), 4.0 - 2.0 * sum(s > t for s in small)]

    times = [0.0, *sorted(left_s + small)]
    return next(t for t in times if sum(g >= gang[1] for g in free(t)) >= gang[0])


LEFT = st.integers(1, 9).map(float)


@given(
    gang=st.sampled_from([(2, 3.0), (2, 4.0), (3, 2.0), (3, 3.0), (3, 4.0), (4, 2.0), (4, 4.0)]),
    left_s=st.lists(LEFT, min_size=3, max_size=3),
    small=st.lists(LEFT, max_size=6),
)
def test_the_planned_start_does_not_move(
    gang: tuple[int, float], left_s: list[float], small: list[float]
) -> None:
    """And a job that alone would not move it is not kept back by others that are."""
    jobs = dict(enumerate(small, 30))
    target = plan_of(jobs, left_s=tuple(left_s), gang=gang).target
    started = [jobs[j] for j in target if j in jobs]
    planned_s = start_of(gang, left_s, [])
    assert start_of(gang, left_s, started) == planned_s
    kept = [s for j, s in jobs.items() if j not in target]
    if len(started) < 2:
        assert all(start_of(gang, left_s, [*started, s]) > planned_s for s in kept)


A100, V100, EITHER = 0, 1, -1
LEFT_HALF, RIGHT_HALF = np.arange(4) < 2, np.arange(4) >= 2


@pytest.mark.parametrize(
    ("gang", "small", "served"),
    [
        ({"gpu_type": A100}, {"gpu_type": EITHER}, True),
        ({"gpu_type": A100}, {"gpu_type": A100}, False),
        ({"gpu_type": A100}, {"gpu_type": V100}, True),
        ({"choices": LEFT_HALF}, {}, True),
        ({"choices": LEFT_HALF}, {"choices": LEFT_HALF}, False),
        ({"choices": LEFT_HALF}, {"choices": RIGHT_HALF}, True),
        ({"excluded": RIGHT_HALF}, {"gpu_type": V100}, True),
        ({"partition": 1}, {}, True),
        ({"partition": 1}, {"choices": LEFT_HALF}, False),
        ({"partition": 1}, {"partition": 1}, False),
        # It starts once 2 and 3 have ended, and leaves four GPUs.
        ({}, {}, True),
    ],
)
def test_jobs_with_room_on_other_nodes_do_not_wait(
    gang: dict[str, object], small: dict[str, object], *, served: bool
) -> None:
    """Node 1 is free, of 2, 3 and 4 (v100s) jobs hold four, four and one GPUs."""
    asks = {GANG: dict(gang), 30: dict(small)}
    apart = {k: {j: a.pop(k) for j, a in asks.items() if k in a} for k in ("choices", "excluded")}
    rows = [
        running(1, 4, limit_s=5900.0, gpu_type=A100),
        running(2, 4, limit_s=5100.0),
        running(3, 1, limit_s=5100.0),
        pending(GANG, 8, n_nodes=2, limit_s=1e5, **asks[GANG]),  # type: ignore[arg-type]
        pending(30, 2, limit_s=1e5, **asks[30]),  # type: ignore[arg-type]
    ]
    held = {1: {1: 4.0}, 2: {2: 4.0}, 3: {3: 1.0}}
    node_in = np.array([LEFT_HALF | True, LEFT_HALF])
    seen = observed(rows, held=held, columns={"gpu_type": [0, 0, 1, 1]}, node_in=node_in, **apart)
    since = {row.job_id: NOW_S - HOUR_S - 1 for row in rows}
    snap = snapshot(seen, memory={"waiting_since_s": since, "first_submit_s": since})
    snap = dataclasses.replace(snap, managed=np.array([True, True]))
    settings = dataclasses.replace(SETTINGS, partitions=frozenset({"gpu", "other"}))
    target = decide(snap, POLICY, settings).target
    assert (30 in target) == served


def test_the_owner_is_told() -> None:
    plan = plan_of({30: 1e5}, gang=ALL)
    assert "planned start" in plan.notes[JobId(30)]
