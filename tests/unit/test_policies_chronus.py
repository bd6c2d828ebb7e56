"""Chronus: deadlines are promised whole leases, and every promise is kept."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from promise_world import GRACE, LIMITS, PromiseWorld
from small_traces import make_trace

from slurm_dl.engine.settings import Preemption
from slurm_dl.model.promise import Promise, promises_in
from slurm_dl.model.value_curve import ValueCurve
from slurm_dl.policies.backfill import Easy
from slurm_dl.policies.base import Policy
from slurm_dl.policies.chronus import Chronus
from slurm_dl.policies.las import Las
from slurm_dl.simulation.cluster_shape import parse_shape
from slurm_dl.simulation.ideal.simulator import IdealCluster, simulate
from slurm_dl.simulation.job_knowledge import TraceKnowledge

MINUTE_S = 60.0
LEASE_S = 600.0
EXACT = Chronus(lease_length_s=LEASE_S, margin=0.0, restart_s=0.0)

Job = tuple[float, float, int, float | None]
"""Submitted at this minute, runs for so many, on so many GPUs, and is due at this one."""


class Told(dict[int, list[Promise]]):
    """Each state that the promise of a job has had."""

    def says(self) -> dict[int, str]:
        """The answer that each job got at last."""
        return {job: states[-1].says for job, states in self.items()}

    def leases(self, job: int) -> list[tuple[float, float]]:
        """The first plan of a job, in leases."""
        return [(b / LEASE_S, e / LEASE_S) for b, e, _ in self[job][0].plan]


def simulated(
    jobs: Sequence[Job],
    policy: Policy = EXACT,
    shape: str = "2x4",
    curves: Mapping[int, ValueCurve] | None = None,
) -> tuple[Told, Any, Any]:
    """What the jobs were told on the papers' ideal cluster, their deadlines and their ends."""
    submit_s = np.array([MINUTE_S * job[0] for job in jobs])
    lasts_s = np.array([MINUTE_S * job[1] for job in jobs])
    due_s = np.array([math.inf if j[3] is None else MINUTE_S * j[3] for j in jobs])
    told = Told()

    class Watched(IdealCluster):
        def _decide(self) -> None:
            super()._decide()
            for job, one in promises_in(self._jobs.snapshot(self._now_s).booked).items():
                told.setdefault(int(job), []).append(one)

    found = simulate(
        make_trace(submit_s, lasts_s, [job[2] for job in jobs]), parse_shape(shape), policy,
        known=TraceKnowledge(due_s=due_s, curves=curves or {}), kind=Watched,
    )  # fmt: skip
    return told, due_s, found.records.end_s


# --- plans -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "job", "leases"),
    [
        # ceil(left (1 + margin) (1 + (1 + log2 GPUs) restart / lease) / lease), the last before due
        ({}, (0, 20, 1, 65), [(4, 6)]),
        ({}, (0, 20.1, 1, 65), [(3, 6)]),
        ({"margin": 0.1}, (0, 18, 1, 60), [(4, 6)]),
        ({"margin": 0.1}, (0, 18.3, 1, 60), [(3, 6)]),
        ({"restart_s": 30.0}, (0, 19, 1, 60), [(4, 6)]),
        ({"restart_s": 30.0}, (0, 19, 2, 60), [(3, 6)]),
        ({"restart_s": 30.0}, (0, 16.6, 8, 60), [(4, 6)]),
        ({"restart_s": 30.0}, (0, 16.7, 8, 60), [(3, 6)]),
        # The lease under way does not count, but at its begin.
        ({}, (0, 20, 1, 20), [(0, 2)]),
        ({}, (1, 20, 1, 29), []),
        ({}, (1, 20, 1, 30), [(1, 3)]),
    ],
)
def test_leases_that_a_job_needs(
    policy: Mapping[str, Any], job: Job, leases: list[tuple[float, float]]
) -> None:
    told, _, _ = simulated([(0, 1, 1, None), job], dataclasses.replace(EXACT, **policy))
    assert told.leases(1) == leases


TIGHT: list[Job] = [(0, 30, 2, 50), (0, 10, 1, 20), (0, 10, 2, 30), (0, 20, 4, 50)]


@pytest.mark.parametrize(
    ("jobs", "policy", "leases"),
    [
        # In the order of their submission, each behind the plans of the others.
        ([(0, 10, 4, 20)] * 3, {}, [[(1, 2)], [(0, 1)], []]),
        ([(0, 20, 4, 40), (0, 20, 2, 40)], {}, [[(2, 4)], [(0, 2)]]),
        # The second is first given lease 2, and moves for the third.
        ([(0, 20, 1, 20), (0, 10, 2, 30), (0, 20, 4, 40)], {}, [[(0, 2)], [(1, 2)], [(2, 4)]]),
        # The greedy rule finds no room for the last one, but there is some.
        (TIGHT, {}, [[(2, 5)], [(1, 2)], [(2, 3)], []]),
        (TIGHT, {"milp": True}, [[(1, 3), (4, 5)], [(1, 2)], [(2, 3)], [(0, 1), (3, 4)]]),
    ],
)
def test_plans_of_newcomers(
    jobs: list[Job], policy: Mapping[str, Any], leases: list[list[tuple[float, float]]]
) -> None:
    """Four GPUs, and jobs that are submitted together; the exact packing may be another one."""
    told, due_s, end_s = simulated(jobs, dataclasses.replace(EXACT, **policy), "1x4")
    found = [told.leases(job) for job in range(len(jobs))]
    assert found == leases or (policy and all(found))
    for job, says in told.says().items():
        assert says == "no" or end_s[job] <= due_s[job] + 1e-3


def test_the_plan_of_a_running_job_follows_what_it_has_done() -> None:
    """It runs ahead of its leases, and each that it did without is dropped, the earliest first."""
    told, _, _ = simulated([(0, 20, 4, 60), (5, 1, 1, None), (15, 1, 1, None)], EXACT, "1x4")
    plans = dict.fromkeys(one.plan for one in told[0])
    assert list(plans) == [((2400, 3600, 4.0),), ((3000, 3600, 4.0),)]


def test_leases_to_come_of_a_running_job_are_its_own() -> None:
    told, _, _ = simulated([(0, 40, 4, 40), (5, 10, 4, 40), (5, 10, 4, 50)], EXACT, "1x4")
    assert told.says() == {0: "yes", 1: "no", 2: "yes"}
    assert told.leases(2) == [(4, 5)]


def test_a_refused_job_is_told_the_earliest_end() -> None:
    told, _, _ = simulated([(0, 20, 4, 20), (0, 10, 4, 20)], EXACT, "1x4")
    assert (told[1][0].says, told[1][0].nearest_s) == ("no", 3 * LEASE_S)


def test_of_soft_deadlines_the_highest_value_that_fits_is_promised() -> None:
    """Four GPUs are promised until minute 20: of 15, 25 and 30 minutes the second fits."""
    curve = ValueCurve((900.0, 1500.0 + LEASE_S, 3000.0), (10.0, 8.0, 5.0))
    jobs: list[Job] = [(0, 20, 4, 20), (0, 10, 4, 15)]
    told, _, end_s = simulated(jobs, EXACT, "1x4", {1: curve})
    assert {one.due_s for one in told[1]} == {2100}
    assert told.leases(1) == [(2, 3)]
    assert end_s[1] <= 2100
    told, _, _ = simulated(jobs, EXACT, "1x4")
    assert told.says() == {0: "yes", 1: "no"}


# --- promises are kept -------------------------------------------------------------------------

JOBS = st.lists(
    st.tuples(
        st.integers(0, 90),
        st.integers(1, 40),
        st.sampled_from([1, 2, 4, 8]),
        st.none() | st.floats(1.0, 6.0),  # Deadline, in run times
    ),
    min_size=2,
    max_size=14,
)
PARAMETERS = st.sampled_from([{}, {"milp": True}, {"margin": 0.1, "restart_s": 30.0}])


@settings(max_examples=100)
@given(JOBS, PARAMETERS)
def test_one_more_job_breaks_no_promise(
    drawn: list[tuple[int, int, int, float | None]], parameters: Mapping[str, Any]
) -> None:
    """Who was promised before the last one came still is, and all promises are kept."""
    jobs: list[Job] = [
        (at, lasts, gpus, None if slack is None else at + lasts * slack)
        for at, lasts, gpus, slack in sorted(drawn, key=lambda job: job[0])
    ]
    policy = dataclasses.replace(EXACT, **parameters)
    before, _, _ = simulated(jobs[:-1], policy)
    told, due_s, end_s = simulated(jobs, policy)
    for job, states in told.items():
        assert {one.says for one in states} == {states[0].says}
        if job in before:
            assert states[0].says == before[job][0].says
        if states[0].says == "yes":
            assert not any(one.broken or one.missed for one in states)
            assert end_s[job] <= due_s[job] + 1e-3


def test_by_gpu_time_it_meets_more_deadlines_than_las_and_backfill() -> None:
    """The paper's direction: 120 jobs on 8 GPUs for twice the time that there is."""
    rng = np.random.default_rng(11)
    lasts = np.clip(rng.lognormal(3.6, 1.0, 120), 10, 400)
    gpus = rng.choice([1, 2, 4, 8], 120, p=[0.5, 0.2, 0.2, 0.1])
    at = np.sort(rng.uniform(0, float(lasts @ gpus) / 16, 120))
    due = at + lasts * rng.uniform(1.5, 4.0, 120)
    jobs = list(zip(at.tolist(), lasts.tolist(), gpus.tolist(), due.tolist(), strict=True))
    weight, share = lasts * gpus, {}
    for policy in (EXACT, Las(), Easy()):
        told, due_s, end_s = simulated(jobs, policy, "1x8")
        met = end_s <= due_s + 1e-3
        share[policy.name] = float((met * weight).sum() / weight.sum())
        if policy is EXACT:
            assert met[[job for job, says in told.says().items() if says == "yes"]].all()
    assert share["chronus"] > 1.3 * max(share["las"], share["easy_backfill"]), share


# --- the engine's loop -------------------------------------------------------------------------

LIVE = Chronus(lease_length_s=300.0, restart_s=5.0)


def go(world: PromiseWorld, seconds: int, restart_at_s: int = -1) -> None:
    """Look every five seconds for so long."""
    for passed_s in range(0, seconds, 5):
        if passed_s == restart_at_s:
            world.restart()
        world.look()
        world.cluster.advance(5)


@pytest.mark.parametrize("restart_at_s", [-1, 700], ids=["", "restart"])
def test_gpus_change_hands_with_the_leases(tmp_path: Path, restart_at_s: int) -> None:
    """Two promised jobs of a whole node and one without a deadline: all are done, two in time."""
    world = PromiseWorld(tmp_path, nodes=1, policy=LIVE)
    filler = world.submit(4, 900, contract=GRACE, save_s=5.0)
    world.look()
    world.cluster.advance(5)
    due = [world.submit(4, 400, after, contract=GRACE, save_s=5.0) for after in (1600, 2500)]
    world.look()
    assert [world.promises[job].says for job in due] == ["yes", "yes"]
    go(world, 2600, restart_at_s)
    assert all(world.was_in_time(job) for job in due)
    assert world.cluster.jobs[filler].restarts > 0
    assert world.totals().kept == 2


def test_a_job_that_cannot_be_stopped_has_its_leases_in_a_row(tmp_path: Path) -> None:
    """It is not displaced, and neither it nor another takes the leases of the next."""
    world = PromiseWorld(tmp_path, nodes=1, policy=LIVE)
    world.submit(4, 5000, contract=GRACE, save_s=5.0)
    world.look()
    world.cluster.advance(40)
    ahead_s = int(-world.cluster.now_s % 300)
    second = world.submit(4, 200, ahead_s + 1800, contract=GRACE, save_s=5.0)
    first = world.submit(4, 400, ahead_s + 2100)
    world.look()
    # The lease before the deadline and the one before the other's are free, but apart.
    begins_s, ends_s = zip(
        *[world.promises[job].plan[0][:2] for job in (first, second)], strict=True
    )
    assert ends_s[0] == begins_s[1]
    assert [len(world.promises[job].plan) for job in (first, second)] == [1, 1]
    for _ in range(3):
        world.cluster.advance(100)
        world.submit(2, 2000)
    go(world, 3000)
    assert world.was_in_time(first)
    assert world.was_in_time(second)


@pytest.mark.parametrize(
    ("gpus", "limits", "policy", "word"),
    [
        (8, LIMITS, LIVE, "nodes"),
        (4, LIMITS, Chronus(lease_length_s=50.0), "lease"),
        (4, dataclasses.replace(LIMITS, max_gpus_per_hour=2.0), LIVE, "leases"),
        (4, dataclasses.replace(LIMITS, enabled=False), LIVE, "leases"),
    ],
    ids=["too large", "shorter than a hand-over", "over budget", "preemption off"],
)
def test_what_could_not_be_kept_is_refused(
    tmp_path: Path, gpus: int, limits: Preemption, policy: Policy, word: str
) -> None:
    world = PromiseWorld(tmp_path, nodes=1, policy=policy, limits=limits)
    world.submit(4, 5000, contract=GRACE)
    world.look()
    world.cluster.advance(5)
    job = world.submit(gpus, 400, 2000, contract=GRACE)
    world.look()
    assert world.promises[job].says == "no"
    assert word in world.promises[job].why
