"""Victim sets against brute force, and hand-overs as the search drafts them."""

from __future__ import annotations

import dataclasses
import itertools

import build
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from used_clusters import used_clusters

from slurm_dl.engine.decide import decide
from slurm_dl.engine.placing.free_resources import FreeResources
from slurm_dl.engine.preemption.eligibility import victims
from slurm_dl.engine.preemption.handover_context import DisplacementRule
from slurm_dl.engine.preemption.victim_choice import choose_victims, reluctance
from slurm_dl.engine.settings import Preemption, Settings
from slurm_dl.model.contract import Claim, Contract
from slurm_dl.model.handover import Handover, Run, Victim
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.jobs import Held, JobRow, JobState
from slurm_dl.model.plan import OpenHandover, Plan, SetSiteFactor
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.placement.resource_request import ResourceRequest, ResourceRequests
from slurm_dl.policies.base import Order
from slurm_dl.policies.discrete_las import DiscreteLas

GPUS = 4
POLICY = DiscreteLas(thresholds_gpu_s=(1000.0, 5000.0))
LIMITS = Preemption(
    beneficiaries="all", commitment="ignored", min_quantum_s=100, cooldown_s=100, limit_reserve_s=0
)
SETTINGS = Settings(partitions=frozenset({"gpu"}), preemption=LIMITS)


def _plan(snap: Snapshot, **limits: object) -> Plan:
    chosen = Preemption(**{**{f: getattr(LIMITS, f) for f in LIMITS.__slots__}, **limits})  # type: ignore[arg-type]
    return decide(snap, POLICY, Settings(partitions=frozenset({"gpu"}), preemption=chosen))


def _opened(plan: Plan) -> list[Handover]:
    return [a.handover for a in plan.actions if isinstance(a, OpenHandover)]


BUSY = used_clusters(gpus=GPUS, least_nodes=1, most_jobs=7, most_share=GPUS)
"""Full of jobs of one to all nodes."""


def cost_of(snap: Snapshot, row: int) -> npt.NDArray[np.float64]:
    """What stopping each of the jobs before *row* costs."""
    return reluctance(snap, np.arange(row), np.zeros(row + 1, dtype=np.bool_), SETTINGS)


def _fits_without(snap: Snapshot, row: int, gone: tuple[int, ...]) -> bool:
    room = FreeResources.free_in(snap)
    for victim in gone:
        room.release(snap, victim)
    return room.place(ResourceRequests(snap).of(row)) is not None


@settings(max_examples=300)
@given(case=BUSY)
def test_victims_are_found_iff_they_exist_and_none_of_them_is_spare(
    case: tuple[Snapshot, int],
) -> None:
    """Against all subsets: a set is found exactly if one exists, and no part of it would do."""
    snap, row = case
    jobs = list(range(row))
    need = ResourceRequests(snap).of(row)
    everywhere = np.ones(len(snap.seen.nodes), dtype=np.bool_)
    subsets = [s for k in range(row + 1) for s in itertools.combinations(jobs, k)]
    possible = any(_fits_without(snap, row, s) for s in subsets)

    chosen = choose_victims(
        snap,
        FreeResources.free_in(snap),
        need,
        candidates=np.array(jobs, dtype=np.int64),
        reluctance_gpu_s=cost_of(snap, row),
        within=everywhere,
        at_most=100,
    )

    assert isinstance(chosen, tuple) == possible
    if isinstance(chosen, tuple):
        assert _fits_without(snap, row, chosen)
        for smaller in itertools.combinations(chosen, max(0, len(chosen) - 1)):
            assert not chosen or not _fits_without(snap, row, smaller)


@settings(max_examples=200)
@given(case=BUSY)
def test_on_one_node_the_cheapest_set_is_close_to_the_best(case: tuple[Snapshot, int]) -> None:
    """One-node jobs on nodes of four GPUs: at most twice the cost of the best of all sets."""
    snap, row = case
    spans = np.bincount(snap.seen.held.job, minlength=row)
    if snap.jobs.n_nodes[row] > 1 or (spans > 1).any():
        return
    jobs = list(range(row))
    cost = cost_of(snap, row)
    feasible = [
        sum(cost[j] for j in s)
        for k in range(row + 1)
        for s in itertools.combinations(jobs, k)
        if _fits_without(snap, row, s)
    ]
    chosen = choose_victims(
        snap,
        FreeResources.free_in(snap),
        ResourceRequests(snap).of(row),
        candidates=np.array(jobs, dtype=np.int64),
        reluctance_gpu_s=cost,
        within=np.ones(len(snap.seen.nodes), dtype=np.bool_),
        at_most=100,
    )
    if feasible:
        assert isinstance(chosen, tuple)
        assert sum(cost[j] for j in chosen) <= 2 * min(feasible)


def _full(**rows_more: object) -> Snapshot:
    """One opted-in 16-GPU job in the last tier, and a pending job of 1 GPU."""
    big = build.running(1, 16, n_nodes=4, **rows_more)  # type: ignore[arg-type]
    seen = build.observed(
        [big, build.pending(2, 1)],
        held={1: dict.fromkeys(range(4), 4.0)},
        opted_in=[1],
    )
    return build.snapshot(seen, memory={"attained_gpu_s": {1: 80000.0}})


def test_a_demoted_job_gives_way_to_a_new_one() -> None:
    """The main case: the job in the last tier is the victim, its nodes are sealed."""
    [handover] = _opened(_plan(_full()))

    assert [v.run for v in handover.victims] == [Run(JobId(1), build.NOW_S - 5000, 0)]
    assert handover.beneficiaries == (JobId(2),)
    assert handover.nodes == ("n1", "n2", "n3", "n4")


def test_jobs_of_one_tier_never_preempt_each_other() -> None:
    """Inside a queue the earlier goes first and keeps what it has."""
    snap = _full()
    same = build.snapshot(snap.seen, memory={"attained_gpu_s": {1: 999.0}})

    plan = _plan(same)
    assert not _opened(plan)
    assert "no job of a lower tier" in plan.notes[JobId(2)]


def test_all_that_fits_into_the_freed_room_is_served_together() -> None:
    """The seal must not keep the GPUs from the next jobs in the order."""
    big = build.running(1, 16, n_nodes=4)
    small = [build.pending(i, 1) for i in range(2, 20)]
    seen = build.observed([big, *small], held={1: dict.fromkeys(range(4), 4.0)}, opted_in=[1])
    snap = build.snapshot(seen, memory={"attained_gpu_s": {1: 80000.0}})

    [handover] = _opened(_plan(snap))
    assert handover.beneficiaries == tuple(JobId(i) for i in range(2, 18))


def test_a_job_that_should_not_run_does_not_share_the_room_of_the_victims() -> None:
    """The seal is for those that come before the victims, and only for them."""

    class Barring(DiscreteLas):
        def order(self, snap: Snapshot, /) -> Order:
            return dataclasses.replace(super().order(snap), barred=snap.jobs.job_id == 3)

    rows = [build.running(1, 16, n_nodes=4), build.pending(2, 1), build.pending(3, 1)]
    seen = build.observed(rows, held={1: dict.fromkeys(range(4), 4.0)}, opted_in=[1])
    snap = build.snapshot(seen, memory={"attained_gpu_s": {1: 20000.0}})
    settings = Settings(partitions=frozenset({"gpu"}), preemption=LIMITS)
    together, apart = (_opened(decide(snap, p, settings)) for p in (POLICY, Barring()))

    assert [h.beneficiaries for h in together] == [(JobId(2), JobId(3))]
    assert [h.beneficiaries for h in apart] == [(JobId(2),)]


@pytest.mark.parametrize(
    ("waits", "by_target", "by_tier", "displaces"),
    [
        ("should run", True, False, {"should not"}),
        ("should run", True, True, {"should not", "should, worse tier"}),
        ("should not", True, True, set()),
        ("should not", False, True, {"should, worse tier"}),
        ("should run", False, False, set()),
    ],
)
def test_whom_a_waiting_job_displaces(
    waits: str, *, by_target: bool, by_tier: bool, displaces: set[str]
) -> None:
    """By the target, and by tier where the job should itself hold GPUs."""
    jobs = {"should run": (1, 0), "should not": (0, 0), "should, worse tier": (1, 1)}
    target, tier = np.array(list(jobs.values())).T
    rule = DisplacementRule(
        target=target.astype(np.bool_),
        tier=tier.astype(np.int16),
        by_target=by_target,
        by_tier=by_tier,
        may=np.ones(len(target), dtype=np.bool_),
    )
    row = list(jobs).index(waits)

    found = rule.displaceable(row, np.arange(3))

    assert {name for name, yes in zip(jobs, found.tolist(), strict=True) if yes} == displaces


def test_room_that_is_free_is_slurms_to_give() -> None:
    """Nobody is stopped for a job that fits already."""
    seen = build.observed(
        [build.running(1, 12, n_nodes=3), build.pending(2, 4)],
        held={1: dict.fromkeys(range(3), 4.0)},
        opted_in=[1],
    )
    plan = _plan(build.snapshot(seen, memory={"attained_gpu_s": {1: 80000.0}}))

    assert not _opened(plan)
    assert "there is room" in plan.notes[JobId(2)]


def test_half_a_victim_set_is_not_taken() -> None:
    """If stopping everybody allowed is not enough, nobody is stopped."""
    seen = build.observed(
        [
            build.running(1, 8, n_nodes=2),
            build.running(3, 8, n_nodes=2),
            build.pending(9, 16, n_nodes=4),
        ],
        held={1: {0: 4, 1: 4}, 3: {2: 4, 3: 4}},
        opted_in=[1],
    )
    memory = {"attained_gpu_s": {1: 80000.0, 3: 80000.0}}
    plan = _plan(build.snapshot(seen, memory=memory))

    assert not _opened(plan)
    assert "may not be stopped" in plan.notes[JobId(9)]


def test_the_one_outside_the_target_goes_before_the_one_inside() -> None:
    """Of two equal victims the one that ranks last is stopped."""
    seen = build.observed(
        [build.running(1, 4), build.running(2, 4), build.pending(9, 4)],
        nodes=(4, 4),
        held={1: {0: 4}, 2: {1: 4}},
        opted_in=[1, 2],
    )
    memory = {"attained_gpu_s": {1: 2000.0, 2: 80000.0}}
    [handover] = _opened(_plan(build.snapshot(seen, memory=memory)))

    assert [v.run.job_id for v in handover.victims] == [2]


PROTECTED = {
    "opted in": {"contract": None},
    "may not requeue": {"requeueable": False},
    "shares a GPU": {"gpus": 15.5},
    "minimum quantum": {"ran_s": 99.0},
    "most allowed": {"preemptions": 5},
    "preempted less than": {"preempted_s": build.NOW_S - 50},
    "time limit": {"limit_s": 5100.0},
    "above the site's limit": {"contract": Contract(grace_s=601)},
}


def test_every_protection_protects_and_says_why() -> None:
    """Each rule alone keeps the job from being a victim, and its reason reaches ``why``."""
    for words, change in PROTECTED.items():
        big = build.running(
            1,
            float(change.get("gpus", 16)),  # type: ignore[arg-type]
            n_nodes=4,
            ran_s=float(change.get("ran_s", 5000.0)),  # type: ignore[arg-type]
            requeueable=bool(change.get("requeueable", True)),
            limit_s=float(change.get("limit_s", 1e9)),  # type: ignore[arg-type]
        )
        contract = change.get("contract", Contract())
        seen = build.observed(
            [big, build.pending(2, 1)],
            held={1: dict.fromkeys(range(4), 4.0)},
            claims={JobId(1): Claim(contract=contract)},  # type: ignore[arg-type]
        )
        memory = {
            "attained_gpu_s": {1: 80000.0},
            "preemptions": {1: float(change.get("preemptions", 0))},  # type: ignore[arg-type]
            "last_preempted_s": {1: float(change.get("preempted_s", 0))},  # type: ignore[arg-type]
        }
        limits = Preemption(
            beneficiaries="all",
            commitment="ignored",
            min_quantum_s=100,
            cooldown_s=100,
            limit_reserve_s=600,
        )
        snap = build.snapshot(seen, memory=memory)

        found = victims(snap, limits)
        assert words in found.reasons[found.rule[0]]
        plan = _plan(snap, limit_reserve_s=600)
        assert not _opened(plan), words
        assert words in plan.notes[JobId(2)]


def test_site_limits_stop_new_hand_overs() -> None:
    """Switched off, too many under way, too many victims, too many GPUs in the hour."""
    snap = _full()
    for limits, words in (
        ({"enabled": False}, "switched off"),
        ({"max_handovers": 0}, "under way"),
        ({"max_gpus_per_hour": 15.0}, "limit of 15"),
        ({"max_preemptions": 0}, "most allowed"),
    ):
        plan = _plan(snap, **limits)
        assert not _opened(plan)
        assert words in plan.notes[JobId(2)]
    assert len(_opened(_plan(snap, max_gpus_per_hour=16.0))) == 1


def test_nobody_is_stopped_for_a_job_that_could_not_start_anyway() -> None:
    """Held, dependent, over a limit: preempting for such a job would be for nothing."""
    for held in Held:
        big = build.running(1, 16, n_nodes=4)
        seen = build.observed(
            [big, build.pending(2, 1, held=held)],
            held={1: dict.fromkeys(range(4), 4.0)},
            opted_in=[1],
        )
        plan = _plan(build.snapshot(seen, memory={"attained_gpu_s": {1: 80000.0}}))
        assert bool(_opened(plan)) == (held is Held.NO)


def test_a_restricted_job_only_stops_jobs_on_nodes_it_may_use() -> None:
    """A job that excludes a node gains nothing from a victim there."""
    seen = build.observed(
        [build.running(1, 4), build.running(2, 4), build.pending(9, 4)],
        nodes=(4, 4),
        held={1: {0: 4}, 2: {1: 4}},
        opted_in=[1, 2],
        choices={JobId(9): np.array([True, False])},
    )
    memory = {"attained_gpu_s": {1: 2000.0, 2: 80000.0}}
    [handover] = _opened(_plan(build.snapshot(seen, memory=memory)))

    assert [v.run.job_id for v in handover.victims] == [1]


def test_jobs_of_other_partitions_are_left_alone() -> None:
    """Neither ordered, nor stopped, nor preempted for."""
    big = build.running(1, 16, n_nodes=4, partition=1)
    elsewhere = build.pending(3, 1, partition=-1)
    seen = build.observed(
        [big, build.pending(2, 1), elsewhere],
        held={1: dict.fromkeys(range(4), 4.0)},
        opted_in=[1],
    )
    plan = _plan(build.snapshot(seen, memory={"attained_gpu_s": {1: 80000.0}}))

    assert not _opened(plan)
    assert plan.rank.tolist() == [-1, 0, -1]
    assert {a.job_id for a in plan.actions if isinstance(a, SetSiteFactor)} == {2}


def test_sealed_nodes_are_nobody_elses() -> None:
    """While a hand-over is under way its nodes count neither as free nor as to be freed."""
    under_way = Handover(
        handover_id=HandoverId(7),
        opened_s=build.NOW_S,
        beneficiaries=(JobId(5),),
        victims=(Victim(run=Run(JobId(1), build.NOW_S - 5000, 0), gpus=4.0, contract=Contract()),),
        nodes=("n1", "n2"),
    )
    seen = build.observed(
        [build.running(1, 4), build.running(2, 4), build.pending(5, 4), build.pending(9, 4)],
        nodes=(4, 4, 4),
        held={1: {0: 4}, 2: {2: 4}},
        opted_in=[1, 2],
    )
    memory = {"attained_gpu_s": {1: 80000.0, 2: 80000.0}}
    [handover] = _opened(_plan(build.snapshot(seen, memory=memory, handovers=[under_way])))

    assert handover.handover_id == 8
    assert handover.beneficiaries == (JobId(9),)
    assert [v.run.job_id for v in handover.victims] == [2]


def test_a_pending_array_gets_as_many_seats_as_fit() -> None:
    """One record stands for many tasks; the room they take is counted."""
    array = build.pending(2, 1, tasks=40)
    seen = build.observed(
        [build.running(1, 16, n_nodes=4), array, build.pending(3, 1)],
        held={1: dict.fromkeys(range(4), 4.0)},
        opted_in=[1],
    )
    [handover] = _opened(_plan(build.snapshot(seen, memory={"attained_gpu_s": {1: 80000.0}})))

    assert handover.beneficiaries == (JobId(2),)


def _need(row: JobRow, **more: object) -> ResourceRequest:
    seen = build.observed([row], **more)  # type: ignore[arg-type]
    return ResourceRequests(build.snapshot(seen)).of(0)


def test_what_a_job_asks_of_each_node_is_an_even_share() -> None:
    """GPUs, CPUs and memory are split over the nodes; a share is never too small."""
    need = _need(build.pending(1, 8, n_nodes=2, cpus=13, mem_mb=101))

    assert (need.n_nodes, need.gpus, need.cpus, need.mem_mb) == (2, 4, 7, 51)


def test_gpus_without_a_node_count_get_as_few_nodes_as_can_hold_them() -> None:
    """For ``-G 10`` Slurm names one node as a minimum; on nodes of four it takes three."""
    assert _need(build.pending(1, 10, n_nodes=1)).n_nodes == 3


def test_only_nodes_of_the_type_and_partition_and_up_are_allowed() -> None:
    """A node must be all that the job asks for."""
    columns = {"gpu_type": [0, 1, 1, 1], "up": [True, True, False, True]}
    node_in = np.array([[True, True, True, False], [True] * 4])
    seen = build.observed([build.pending(1, 1, gpu_type=1)], columns=columns, node_in=node_in)

    allowed = ResourceRequests(build.snapshot(seen)).of(0).allowed
    assert allowed.tolist() == [False, True, False, False]


def _room_for(row: JobRow) -> list[bool]:
    """On which of two nodes the job fits; a small job runs on the first."""
    held = {1: {0: 1.0}}
    seen = build.observed([build.running(1), row], nodes=(4, 4), held=held)
    snap = build.snapshot(seen)
    return FreeResources.free_in(snap).fits_on(ResourceRequests(snap).of(1)).tolist()


def test_every_resource_can_be_what_is_missing() -> None:
    """GPUs, CPUs, memory, and company."""
    assert _room_for(build.pending(2, 3)) == [True, True]
    assert _room_for(build.pending(2, 4)) == [False, True]
    assert _room_for(build.pending(2, 1, cpus=64)) == [False, True]
    assert _room_for(build.pending(2, 1, mem_mb=1001)) == [False, False]
    assert _room_for(build.pending(2, 1, exclusive=True)) == [False, True]


def test_what_an_ending_job_holds_counts_as_free() -> None:
    """Nobody is stopped for what comes back by itself."""
    ending = JobRow(job_id=1, state=JobState.COMPLETING, gpus=4)
    seen = build.observed([ending, build.pending(2, 4)], nodes=(4,), held={1: {0: 4.0}})

    assert FreeResources.free_in(build.snapshot(seen)).gpus.tolist() == [4.0]
