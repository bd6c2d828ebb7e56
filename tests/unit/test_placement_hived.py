"""Cells of accounts: who is guaranteed what, where others may go, and who gives way."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import build
import numpy as np
import pytest
from fake_cluster import FakeCluster
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_dl.engine.decide import decide
from slurm_dl.engine.intent import intend, rank_jobs
from slurm_dl.engine.placing.guarantees import guarantee, tiers_of
from slurm_dl.engine.placing.place_waiting import place_waiting
from slurm_dl.engine.settings import Native, Placement, Preemption, Settings
from slurm_dl.engine.waiting_line import labels_in
from slurm_dl.ledger.store_protocol import MemoryStore
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.contract import Contract
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.handover import Handover, Run, Victim
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.jobs import JobRow, JobState
from slurm_dl.model.plan import OpenHandover, SetSiteFactor, Signal
from slurm_dl.model.snapshot import JobText, Observed, Snapshot
from slurm_dl.placement.cells.hived import Cells
from slurm_dl.placement.scheme import Promise, Spot, Wait
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.policies.fifo import Fifo, FifoSkip
from slurm_dl.policies.list_las import ListLas

B = 1000
LIMITS = Preemption(
    beneficiaries="all",
    commitment="ignored",
    min_quantum_s=0.0,
    cooldown_s=0.0,
    limit_reserve_s=0.0,
)


HALF = labels_in(B) // 2 * B
"""SiteFactors above this are those of guaranteed jobs."""


def site(cells: Mapping[str, Mapping[str, int]], **more: Any) -> Settings:  # noqa: ANN401
    """Settings of a site that steers jobs to these cells."""
    return Settings(
        partitions=frozenset({"gpu"}),
        band_width=B,
        preemption=LIMITS,
        placement=Placement(scheme=Cells(cells=cells), steer=True),
        **more,
    )


def snap_of(
    rows: Sequence[JobRow],
    accounts: Mapping[int, str],
    *,
    memory: Mapping[str, Mapping[int, float]] | None = None,
    leaves: Sequence[int] | None = None,
    down: Sequence[int] = (),
    **more: Any,  # noqa: ANN401
) -> Snapshot:
    """A snapshot in which jobs have accounts, and nodes leaves."""
    seen = build.observed(
        rows,
        texts=build.texts(account=accounts),
        columns={} if leaves is None else {"leaf": leaves},
        **more,
    )
    up = ~np.isin(np.arange(len(seen.nodes)), list(down))
    seen = dataclasses.replace(seen, nodes=dataclasses.replace(seen.nodes, up=up))
    return build.snapshot(seen, memory=memory)


def promise_of(snap: Snapshot, settings: Settings) -> Promise:
    """What is promised to jobs in the order of their submission."""
    promise = guarantee(snap, Fifo().order(snap), Fifo.preempts, settings).promise
    assert promise is not None
    return promise


def guaranteed(snap: Snapshot, settings: Settings) -> set[int]:
    """Ids of the jobs that are guaranteed something."""
    return set(snap.jobs.job_id[promise_of(snap, settings).guaranteed].tolist())


def answers(snap: Snapshot, settings: Settings) -> dict[int, Spot | Wait]:
    """Where the waiting jobs should go."""
    given_ = guarantee(snap, Fifo().order(snap), Fifo.preempts, settings)
    rows = np.array([i for i, s in enumerate(snap.jobs.state) if s == JobState.PENDING])
    rows = rows[np.argsort(~given_.promise.guaranteed[rows], kind="stable")]  # type: ignore[union-attr]
    placed = place_waiting(snap, rows, (), given_.placement)
    return {**placed.spots, **placed.waits}


def test_a_job_that_its_accounts_cells_hold_is_guaranteed_and_the_next_is_not() -> None:
    """One node cell: the first job gets it, the second is opportunistic."""
    rows = [build.pending(1, 4), build.pending(2, 4), build.pending(3, 4)]
    snap = snap_of(rows, {1: "vision", 2: "vision", 3: "other"})

    assert guaranteed(snap, site({"vision": {"node": 1}})) == {1}


def test_small_jobs_share_a_cell_of_their_account() -> None:
    """A node cell holds two halves; the third is opportunistic."""
    rows = [build.pending(i, 2) for i in (1, 2, 3)]
    snap = snap_of(rows, dict.fromkeys((1, 2, 3), "vision"))
    both = promise_of(snap, site({"vision": {"node": 1}}))

    assert guaranteed(snap, site({"vision": {"node": 1}})) == {1, 2}
    assert both.cells[0].tolist() == both.cells[1].tolist()


def test_running_jobs_come_before_waiting_ones_and_by_their_start() -> None:
    """The cell belongs to the job that has run longest; nobody waiting displaces it."""
    rows = [build.pending(1, 4), build.running(2, 4, ran_s=10), build.running(3, 4, ran_s=20)]
    snap = snap_of(rows, dict.fromkeys((1, 2, 3), "vision"), held={2: {0: 4}, 3: {1: 4}})

    assert guaranteed(snap, site({"vision": {"node": 1}})) == {3}


def test_who_stands_in_a_guaranteed_band_keeps_its_cell() -> None:
    """Job 2 started first but was opportunistic; that it now has a right takes none from job 3.

    A third account owns a leaf: one of the two must stay clear of guaranteed jobs.
    """
    rows = [build.running(2, 4, ran_s=20), build.running(3, 4, ran_s=10)]
    cells: dict[str, dict[str, int]] = {"a": {"node": 1}, "b": {"node": 1}, "c": {"leaf": 1}}
    held = {2: {0: 4}, 3: {2: 4}}
    where: dict[str, Any] = {"leaves": [0, 0, 1, 1], "held": held, "opted_in": (2, 3)}
    accounts = {2: "a", 3: "b"}

    as_new = snap_of(rows, accounts, **where)
    known = snap_of(rows, accounts, memory={"site_factor": {2: B, 3: HALF + B}}, **where)

    assert guaranteed(as_new, site(cells)) == {2}
    assert guaranteed(known, site(cells)) == {3}


def test_a_gang_takes_nodes_of_its_own_or_one_leaf() -> None:
    """Two half-node cells hold no gang: nobody can promise that they are on two nodes."""
    gang = build.pending(1, 4, n_nodes=2)
    snap = snap_of([gang], {1: "a"}, leaves=[0, 0, 1, 1])

    assert guaranteed(snap, site({"a": {"2": 2}})) == set()
    assert guaranteed(snap, site({"a": {"node": 1}})) == set()
    assert guaranteed(snap, site({"a": {"node": 2}})) == {1}
    in_leaf = promise_of(snap, site({"a": {"leaf": 1}})).cells[0]
    assert in_leaf.tolist() in ([True, True, False, False], [False, False, True, True])


def test_a_guaranteed_job_starts_on_its_cell_or_waits_for_it() -> None:
    """Free: a spot. Taken by others: it waits there, without end, and nowhere else."""
    free = snap_of([build.pending(1, 4)], {1: "a"}, nodes=(4, 4))
    rows = [build.pending(1, 4), *(build.running(i, 4) for i in (2, 3))]
    held = {2: {0: 4}, 3: {1: 4}}
    full = snap_of(rows, {1: "a"}, nodes=(4, 4), held=held, opted_in=(2, 3))

    assert answers(free, site({"a": {"node": 1}}))[1] == Spot(
        nodes=(0,), why="cells of its account"
    )
    wait = answers(full, site({"a": {"node": 1}}))[1]
    assert wait.within.tolist() == [True, False]
    assert wait.for_s == float("inf")


def test_an_idle_cell_goes_before_one_that_others_have_to_leave() -> None:
    """Nobody is displaced where a node is idle and no guarantee needs it."""
    rows = [build.pending(1, 4), build.running(2, 4)]
    snap = snap_of(rows, {1: "a"}, nodes=(4, 4), held={2: {0: 4}}, opted_in=(2,))

    assert answers(snap, site({"a": {"node": 1}}))[1] == Spot(
        nodes=(1,), why="cells of its account"
    )


def test_a_job_that_cannot_be_taken_back_stays_off_what_may_be_claimed() -> None:
    """Of 4 nodes two are owned: without a contract a job gets one of the two others only."""
    rows = [build.pending(1, 4), build.pending(2, 4), build.pending(3, 4)]
    snap = snap_of(rows, {})
    said = answers(snap, site({"a": {"node": 2}}))

    assert {said[1].nodes, said[2].nodes} == {(2,), (3,)}  # type: ignore[union-attr]
    wait = said[3]
    assert wait.within.tolist() == [False, False, True, True]
    assert wait.why == "nodes that no account's cells need, as it cannot be taken back"


def test_where_everything_is_owned_such_a_job_starts_nowhere() -> None:
    """The guarantee is worth more than a job that would not give its GPUs back."""
    wait = answers(snap_of([build.pending(1, 4)], {}), site({"a": {"node": 4}}))[1]

    assert wait.within is None


def test_an_opportunistic_job_prefers_what_nobody_is_promised() -> None:
    """Then nodes on which jobs of its kind are already."""
    rows = [build.pending(1, 1), build.running(2, 1)]
    more: dict[str, Any] = {"held": {2: {1: 1}}, "opted_in": (1, 2)}
    snap = snap_of(rows, {}, **more)

    assert answers(snap, site({"a": {"node": 3}}))[1].nodes != (1,)  # type: ignore[union-attr]
    assert answers(snap, site({"a": {"node": 4}}))[1].nodes == (1,)  # type: ignore[union-attr]


def test_among_equals_it_goes_to_its_own_kind_not_to_the_fullest_node() -> None:
    """A node that a guaranteed job half fills is left to guaranteed jobs."""
    rows = [build.pending(1, 1), build.running(2, 1), build.running(3, 2)]
    held = {2: {1: 1}, 3: {2: 2}}
    snap = snap_of(rows, {3: "a"}, held=held, opted_in=(1, 2))

    assert answers(snap, site({"a": {"node": 4}}))[1].nodes == (1,)  # type: ignore[union-attr]


def test_opportunistic_jobs_keep_off_nodes_that_a_job_waits_for_by_right() -> None:
    """What is free of a cell that is being cleared is not given away again."""
    rows = [build.pending(1, 4), build.pending(2, 1), build.running(3, 3)]
    snap = snap_of(rows, {1: "a"}, nodes=(4,), held={3: {0: 3}}, opted_in=(2, 3))

    wait = answers(snap, site({"a": {"node": 1}}))[2]

    assert wait.within is None
    assert wait.why == "nodes that no job waits for by right"


def test_down_nodes_break_a_guarantee_and_everybody_concerned_is_told() -> None:
    """Nothing is hidden: the waiting jobs of the account say what is missing."""
    snap = snap_of([build.pending(1, 4, n_nodes=1), build.pending(2, 4)], {1: "a"}, down=[0, 1, 2])
    settings_ = site({"a": {"node": 2}})

    assert "1 of the node cells of a" in decide(snap, Fifo(), settings_).notes[JobId(1)]
    assert "guarantee" not in decide(snap, Fifo(), settings_).notes.get(JobId(2), "")


def test_a_job_that_stays_on_somebodys_cell_is_told_too() -> None:
    """It ran before cells were configured; the account's whole cluster is not whole."""
    rows = [build.running(1, 1), build.pending(2, 4)]
    snap = snap_of(rows, {2: "a"}, nodes=(4,), held={1: {0: 1}})

    assert "cannot be had" in promise_of(snap, site({"a": {"node": 1}})).broken["a"]


@pytest.mark.parametrize(
    ("cells", "match"),
    [
        ({"a": {"rack": 1}}, "'rack' of account a is no level"),
        ({"a": {"0": 1}}, "is no level"),
        ({"a": {":node": 1}}, "is no level"),
        ({"a": {"node": -1}}, "must be 0 or more"),
        ({"": {"node": 1}}, "has a name"),
    ],
)
def test_levels_that_are_none_are_refused(
    cells: Mapping[str, Mapping[str, int]], match: str
) -> None:
    """A mistake in the configuration is found before any cluster is seen."""
    with pytest.raises(ValueError, match=match):
        Cells(cells=cells)


@pytest.mark.parametrize(
    ("cells", "match"),
    [
        ({"a": {"node": 3}, "b": {"node": 2}}, "1 of the node cells of a, b"),
        ({"a": {"leaf": 3}}, "1 of the leaf cells of a"),
        ({"a": {"3": 1}}, "cells of 3 GPUs, of account a"),
        ({"a": {"8": 1}}, "cells of 8 GPUs, of account a"),
        ({"a": {"h100:node": 1}}, "no GPUs of type 'h100' for account a"),
    ],
)
def test_cells_that_do_not_fit_the_cluster_are_refused(
    cells: Mapping[str, Mapping[str, int]], match: str
) -> None:
    """It says which, and whose."""
    snap = snap_of([], {}, leaves=[0, 0, 1, 1])

    with pytest.raises(ConfigError, match=match):
        Cells(cells=cells).check(snap)
    Cells(cells={"a": {"leaf": 1, "4": 1}, "b": {"a100:2": 2}}).check(snap)


def test_each_gpu_type_has_its_tree_and_has_to_be_named() -> None:
    """A cell is a cell of one type; a job of another type is not guaranteed one."""
    rows = [build.pending(1, 4, gpu_type=1), build.pending(2, 4, gpu_type=0)]
    texts = build.texts(account={1: "a", 2: "a"})
    snap = build.snapshot(build.observed(rows, columns={"gpu_type": [0, 0, 1, 1]}, texts=texts))

    assert guaranteed(snap, site({"a": {"v100:node": 1}})) == {1}
    with pytest.raises(ConfigError, match="types a100, v100; say which"):
        Cells(cells={"a": {"node": 1}}).check(snap)


@pytest.mark.parametrize(
    ("row", "cells", "holds"),
    [
        # One GPU and half of the CPUs do not go beside two others of half a node.
        (build.pending(1, 1, cpus=32), {"1": 1}, False),
        (build.pending(1, 1, cpus=32), {"2": 1}, True),
        (build.pending(1, 1, cpus=65), {"node": 1}, False),
        (build.pending(1, 1, exclusive=True), {"2": 2}, False),
        (build.pending(1, 1, exclusive=True), {"node": 1}, True),
        # A need of more GPUs than a node has is split over nodes, and that is a gang.
        (build.pending(1, 8), {"2": 4}, False),
        (build.pending(1, 8), {"node": 2}, True),
    ],
)
def test_a_job_needs_a_cell_of_all_that_it_asks_for(
    row: JobRow, cells: dict[str, int], *, holds: bool
) -> None:
    """CPUs and a node for itself, too; no cell is large enough for what Slurm cannot start."""
    assert guaranteed(snap_of([row], {1: "a"}), site({"a": cells})) == ({1} if holds else set())


def test_an_array_gets_cells_for_as_many_tasks_as_there_are() -> None:
    """Its tasks wait on the nodes of these; one that cannot be taken back gets none."""
    array = build.pending(1, 4, tasks=10)
    with_contract = snap_of([array], {1: "a"}, opted_in=(1,))
    without = snap_of([array], {1: "a"})

    assert promise_of(with_contract, site({"a": {"node": 2}})).cells[0].sum() == 2
    assert guaranteed(without, site({"a": {"node": 2}})) == set()


def test_every_tier_is_there_twice() -> None:
    """Guaranteed jobs come before all others, inside them the policy's tiers."""
    rows = [build.pending(1, 4), build.pending(2, 4), build.pending(3, 4)]
    memory = {"attained_gpu_s": {1: 5000.0}}
    snap = snap_of(rows, {1: "a"}, memory=memory)
    policy = DiscreteLas(thresholds_gpu_s=(1000.0,))
    plan = decide(snap, policy, site({"a": {"node": 1}}))

    assert plan.tier.tolist() == [1, 2, 2]
    told = {a.job_id: a.value for a in plan.actions if isinstance(a, SetSiteFactor)}
    assert told[JobId(1)] > HALF >= told[JobId(2)] > told[JobId(3)] > 0
    assert tiers_of(policy, Cells(cells={})) == 4
    assert tiers_of(Fifo(), Cells(cells={})) == 2
    assert tiers_of(policy, None) == 2


def test_a_guaranteed_job_that_does_not_fit_is_before_others_that_do() -> None:
    """In the order of Slurm and in that which is shown; job 9 is inside its minimum quantum."""
    limits = dataclasses.replace(LIMITS, min_quantum_s=10_000.0)
    settings = dataclasses.replace(site({"a": {"node": 1}}), preemption=limits)
    rows = [build.running(9, 14, n_nodes=4), build.pending(1, 2), build.pending(2, 4)]
    held = {9: {0: 4, 1: 4, 2: 4, 3: 2}}
    snap = snap_of(rows, {2: "a"}, held=held, opted_in=(2, 9))
    plan = decide(snap, FifoSkip(), settings)

    told = {a.job_id: a.value for a in plan.actions if isinstance(a, SetSiteFactor)}
    assert plan.target == {9, 1}
    assert told[JobId(2)] > told[JobId(1)]
    assert plan.rank[2] < plan.rank[1]


def test_without_steering_nothing_is_promised() -> None:
    """A site that only wants to be told gets the order it has without cells."""
    snap = snap_of([build.pending(1, 4), build.pending(2, 4)], {1: "a"})
    told = site({"a": {"node": 1}})
    told = dataclasses.replace(told, placement=dataclasses.replace(told.placement, steer=False))

    plan = decide(snap, Fifo(), told)

    assert plan.tier.tolist() == [0, 0]
    assert "cells of its account" in plan.notes[JobId(1)]


def test_victims_are_looked_for_on_the_cell_only() -> None:
    """Both opportunistic jobs would do; the one on the cell of the account goes."""
    rows = [build.pending(9, 4), build.running(1, 4), build.running(2, 4), build.running(3, 4)]
    accounts = {9: "a", 1: "b"}
    snap = snap_of(
        rows,
        accounts,
        nodes=(4, 4, 4),
        held={1: {0: 4}, 2: {1: 4}, 3: {2: 4}},
        opted_in=(1, 2, 3),
    )
    cells: dict[str, dict[str, int]] = {"a": {"node": 1}, "b": {"node": 1}}
    plan = decide(snap, Fifo(), site(cells))

    opened = [a.handover for a in plan.actions if isinstance(a, OpenHandover)]
    assert [[v.run.job_id for v in h.victims] for h in opened] == [[2]]
    assert [h.nodes for h in opened] == [("n2",)]


def test_a_guaranteed_job_that_runs_is_nobodys_victim() -> None:
    """Two accounts share a node by halves: the one's job does not displace the other's.

    It waits instead for the job that has no right to its half, whose minimum quantum is not over.
    """
    rows = [build.pending(9, 2), build.running(1, 2), build.running(2, 2, ran_s=10)]
    memory = {"attained_gpu_s": {1: 5000.0}}
    snap = snap_of(
        rows,
        {9: "a", 1: "b", 2: "other"},
        nodes=(4,),
        held={1: {0: 2}, 2: {0: 2}},
        opted_in=(1, 2),
        memory=memory,
    )
    cells: dict[str, dict[str, int]] = {"a": {"2": 1}, "b": {"2": 1}}
    policy = DiscreteLas(thresholds_gpu_s=(1000.0,))
    at_once = site(cells)
    later = dataclasses.replace(
        at_once, preemption=dataclasses.replace(LIMITS, min_quantum_s=900.0)
    )

    victims = [
        [
            v.run.job_id
            for a in plan.actions
            if isinstance(a, OpenHandover)
            for v in a.handover.victims
        ]
        for plan in (decide(snap, policy, at_once), decide(snap, policy, later))
    ]
    assert victims == [[2], []]


def test_who_gpus_are_taken_back_for_keeps_the_nodes_that_are_being_cleared() -> None:
    """Another node has become idle meanwhile; the victims have been asked already."""
    rows = [build.pending(1, 4), build.running(2, 4)]
    run = Run(JobId(2), build.NOW_S - 5000, 0)
    handover = Handover(
        handover_id=HandoverId(1),
        opened_s=build.NOW_S - 10,
        beneficiaries=(JobId(1),),
        victims=(Victim(run=run, gpus=4, contract=Contract()),),
        nodes=("n1",),
    )
    snap = snap_of(rows, {1: "a"}, nodes=(4, 4), held={2: {0: 4}}, opted_in=(2,))
    settings_ = site({"a": {"node": 1}})

    cleared = promise_of(dataclasses.replace(snap, handovers=(handover,)), settings_)

    assert cleared.cells[0].tolist() == [True, False]
    assert promise_of(snap, settings_).cells[0].tolist() == [False, True]


def test_gangs_share_a_leaf_of_their_account() -> None:
    """Two of two nodes are in one leaf of four; a third has no cell left."""
    rows = [build.pending(i, 8, n_nodes=2) for i in (1, 2, 3)]
    snap = snap_of(rows, dict.fromkeys((1, 2, 3), "a"), nodes=(4,) * 8, leaves=[0] * 4 + [1] * 4)
    promise = promise_of(snap, site({"a": {"leaf": 1}}))

    assert sorted(promise.cells) == [0, 1]
    assert promise.claimed.tolist() == [True] * 4 + [False] * 4


def test_a_gang_that_its_node_cells_do_not_hold_takes_a_leaf_and_else_both() -> None:
    """Four nodes of a leaf rather than two cells of their own; six only from both."""
    for n_nodes, expected in ((4, 4), (6, 6), (7, 0)):
        gang = build.pending(1, 4 * n_nodes, n_nodes=n_nodes)
        snap = snap_of([gang], {1: "a"}, nodes=(4,) * 8, leaves=[0] * 4 + [1] * 4)
        promise = promise_of(snap, site({"a": {"leaf": 1, "node": 2}}))

        assert int(promise.claimed.sum()) == expected
        if n_nodes == 4:
            assert promise.claimed.tolist() in ([True] * 4 + [False] * 4, [False] * 4 + [True] * 4)


def test_tiers_of_a_policy_that_displaces_nobody_become_part_of_the_order() -> None:
    """Only guaranteed jobs displace others then, and the policy's order stays what it was."""
    rows = [build.pending(i, 1) for i in (1, 2, 3)]
    memory = {"attained_gpu_s": {1: 1e9, 2: 5000.0}}
    snap = snap_of(rows, {}, memory=memory)
    policy = ListLas()
    given_ = guarantee(snap, policy.order(snap), policy.preempts, site({}))

    order = given_.order

    assert policy.order(snap).tiers == 3
    assert (order.tiers, set(order.tier.tolist())) == (2, {1})
    ranked = rank_jobs(snap, order, given_.preempts)
    assert ranked.tolist() == intend(snap, policy).ranked.tolist()
    assert given_.preempts == "tier"


def test_no_room_is_made_on_cells_for_a_job_that_would_not_give_it_back() -> None:
    """Not even for one that ranks higher: it would be where it may not be."""
    rows = [build.pending(9, 4), build.running(1, 4)]
    memory = {"attained_gpu_s": {1: 5000.0}}
    snap = snap_of(rows, {}, nodes=(4,), held={1: {0: 4}}, opted_in=(1,), memory=memory)
    policy = DiscreteLas(thresholds_gpu_s=(1000.0,))

    owned = decide(snap, policy, site({"a": {"node": 1}}))
    free = decide(snap, policy, site({}))

    assert not any(isinstance(a, OpenHandover) for a in owned.actions)
    assert any(isinstance(a, OpenHandover) for a in free.actions)


def test_where_slurm_preempts_only_jobs_of_its_qos_can_be_taken_back() -> None:
    """A job outside of it has a contract that nobody acts on."""
    snap = snap_of([build.pending(1, 4)], {}, opted_in=(1,))
    native = site({"a": {"node": 4}}, mode=Native(qos="normal"))

    assert isinstance(answers(snap, site({"a": {"node": 4}}))[1], Spot)
    assert isinstance(answers(snap, native)[1], Wait)


ACCOUNTS = ("a", "b", "other")


@st.composite
def crowds(draw: st.DrawFn) -> tuple[Snapshot, dict[str, dict[str, int]]]:
    """Any jobs anywhere on 5 nodes on two leaves, and cells that fit them."""
    cells: dict[str, dict[str, int]] = {
        who: {
            level: draw(st.integers(0, most))
            for level, most in (("leaf", 1), ("node", 1), ("2", 1))
        }
        for who in ("a", "b")
    }
    free = [4, 4, 4, 4, 4]
    rows: list[JobRow] = []
    held: dict[int, dict[int, float]] = {}
    for i in range(1, draw(st.integers(0, 12)) + 1):
        gpus, n_nodes = draw(st.sampled_from([(1, 1), (2, 1), (4, 1), (8, 2)]))
        each = gpus // n_nodes
        room = [n for n, f in enumerate(free) if f >= each]
        if draw(st.booleans()) and len(room) >= n_nodes:
            on = draw(st.permutations(room))[:n_nodes]
            for n in on:
                free[n] -= each
            held[i] = dict.fromkeys(on, float(each))
            rows.append(build.running(i, gpus, n_nodes=n_nodes, ran_s=draw(st.integers(1, 9))))
        else:
            rows.append(build.pending(i, gpus, n_nodes=n_nodes))
    accounts = {r.job_id: draw(st.sampled_from(ACCOUNTS)) for r in rows}
    opted_in = [r.job_id for r in rows if draw(st.booleans())]
    snap = snap_of(
        rows, accounts, nodes=(4,) * 5, held=held, opted_in=opted_in, leaves=[0, 0, 1, 1, 1]
    )
    return snap, cells


@settings(max_examples=100, deadline=None)
@given(crowds())
def test_what_is_promised_can_be_kept(
    case: tuple[Snapshot, dict[str, dict[str, int]]],
) -> None:
    """Guaranteed jobs fit beside each other and beside whatever stays; nobody is overtaken.

    Whoever gives way gives way: only guaranteed jobs and those that cannot be taken back count.
    """
    snap, cells = case
    promise = promise_of(snap, site(cells))
    held, jobs = snap.seen.held, snap.jobs
    used = np.zeros(5)
    stays = promise.guaranteed | ~promise.returnable
    mine = stays[held.job]
    used += np.bincount(held.node[mine], held.gpus[mine], 5)
    for row, mask in promise.cells.items():
        assert jobs.state[row] == JobState.PENDING
        assert mask.sum() == jobs.n_nodes[row]
        used[mask] += jobs.gpus[row] / jobs.n_nodes[row]

    assert (used <= 4).all()
    assert not (promise.claimed & promise.outside).any()
    owners = {i for i, j in enumerate(jobs.job_id) if snap.seen.texts[JobId(j)].account in cells}
    assert set(np.flatnonzero(promise.guaranteed).tolist()) <= owners


@settings(max_examples=30, deadline=None)
@given(crowds(), st.randoms())
def test_the_promise_does_not_depend_on_the_order_of_listing(
    case: tuple[Snapshot, dict[str, dict[str, int]]],
    random: Any,  # noqa: ANN401
) -> None:
    """Slurm may list jobs in any order."""
    snap, cells = case
    seen = snap.seen
    order = list(range(len(seen.jobs)))
    random.shuffle(order)
    place = {old: new for new, old in enumerate(order)}
    moved = sorted((place[j], i) for i, j in enumerate(seen.held.job.tolist()))
    at = np.array([i for _, i in moved], dtype=np.int64)
    held = dataclasses.replace(
        seen.held,
        job=np.array([j for j, _ in moved], dtype=np.int32),
        **{n: getattr(seen.held, n)[at] for n in ("node", "gpus", "cpus", "mem_mb")},
    )
    jobs = seen.jobs.take(np.array(order, dtype=np.int64))
    other = build.snapshot(dataclasses.replace(seen, jobs=jobs, held=held))

    assert guaranteed(snap, site(cells)) == guaranteed(other, site(cells))


@dataclasses.dataclass
class Live:
    """A job that runs in the story below."""

    account: str
    gpus: int
    nodes: tuple[int, ...]
    returnable: bool
    guaranteed: bool


OWNED: dict[str, dict[str, int]] = {"a": {"node": 2}, "b": {"2": 2}, "c": {"leaf": 1}}
LEAVES = [0, 0, 1, 1, 2, 2]
SHAPES = {"a": (4, 1), "b": (2, 1), "c": (8, 2), "": (2, 1)}
MOST = {"a": 2, "b": 2, "c": 1, "": 0}
"""Jobs of these shapes that the cells of each account hold."""


def asked(live: Mapping[int, Live], job_id: int, who: str, opted_in: bool) -> Snapshot:  # noqa: FBT001
    """The snapshot in which a job of *who* has just been submitted."""
    gpus, n_nodes = SHAPES[who]
    rows = [build.pending(job_id, gpus, n_nodes=n_nodes)]
    rows += [
        build.running(i, j.gpus, n_nodes=len(j.nodes), ran_s=1000 - i) for i, j in live.items()
    ]
    return snap_of(
        rows,
        {job_id: who, **{i: j.account for i, j in live.items()}},
        nodes=(4,) * len(LEAVES),
        leaves=LEAVES,
        held={i: dict.fromkeys(j.nodes, j.gpus / len(j.nodes)) for i, j in live.items()},
        opted_in=[i for i, j in live.items() if j.returnable] + [job_id] * opted_in,
        memory={"site_factor": {i: B * (2 if j.guaranteed else 1) for i, j in live.items()}},
    )


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b", "c", "", "", "end"]), st.booleans(), st.integers(0, 20)
        ),
        max_size=30,
    )
)
def test_every_request_within_the_own_cells_is_met_whatever_came_before(
    story: list[tuple[str, bool, int]],
) -> None:
    """Jobs come and go; those that have no right give way, and no guaranteed job ever does.

    Who is within its cells is counted here by jobs: each account has jobs of one shape.
    """
    live: dict[int, Live] = {}
    for job_id, (who, opted_in, which) in enumerate(story, start=1):
        if who == "end":
            if live:
                del live[sorted(live)[which % len(live)]]
            continue
        snap = asked(live, job_id, who, opted_in)
        promise = promise_of(snap, site(OWNED))
        kept = {int(j) for j in snap.jobs.job_id[promise.guaranteed].tolist()}
        assert {i for i, j in live.items() if j.guaranteed} <= kept
        for i, job in live.items():
            job.guaranteed = i in kept
        mine = sum(j.guaranteed for j in live.values() if j.account == who)
        assert (job_id in kept) == (mine < MOST[who])
        gpus, n_nodes = SHAPES[who]
        if job_id not in kept:
            answer = answers(snap, site(OWNED)).get(job_id)
            if isinstance(answer, Spot):
                live[job_id] = Live(who, gpus, answer.nodes, opted_in, guaranteed=False)
            continue
        nodes = tuple(np.flatnonzero(promise.cells[0]).tolist())
        for i in [i for i, j in live.items() if j.returnable and not j.guaranteed]:
            if set(live[i].nodes) & set(nodes):
                del live[i]
        for n in nodes:
            there = sum(j.gpus // len(j.nodes) for j in live.values() if n in j.nodes)
            assert there + gpus // n_nodes <= 4
        live[job_id] = Live(who, gpus, nodes, opted_in, guaranteed=True)
        assert not promise.broken


class Accounts(FakeCluster):
    """A cluster in memory whose jobs have accounts."""

    def __init__(self, *, nodes: int, gpus: int) -> None:
        super().__init__(nodes=nodes, gpus=gpus)
        self.account: dict[JobId, str] = {}

    def observe(self) -> Observed:
        """What the cluster says, accounts too."""
        seen = super().observe()
        texts = {
            j: dataclasses.replace(t, account=self.account.get(j, ""))
            for j, t in seen.texts.items()
        }
        return dataclasses.replace(seen, texts=texts)


def cycles(cluster: Accounts, ledger: Ledger, settings_: Settings, number: int) -> None:
    """So many cycles, ten seconds apart."""
    for _ in range(number):
        build.cycle(cluster, ledger, FifoSkip(), settings_)
        cluster.advance(10)


def played(settings_: Settings) -> tuple[Accounts, JobId]:
    """Opportunistic jobs fill 4 nodes of 4 GPUs; then account *a* asks for two nodes."""
    cluster = Accounts(nodes=4, gpus=4)
    ledger = Ledger(MemoryStore())
    for _ in range(8):
        cluster.submit(2, work_s=100_000, contract=Contract(grace_s=30))
    cycles(cluster, ledger, settings_, 3)
    gang = cluster.submit(8, n_nodes=2, work_s=600)
    cluster.account[gang] = "a"
    cycles(cluster, ledger, settings_, 20)
    return cluster, gang


def test_a_guaranteed_gang_gets_its_cell_from_the_jobs_that_fill_the_cluster() -> None:
    """The 4 jobs on two nodes save and go, the gang starts there, the 4 others never notice."""
    cluster, gang = played(site({"a": {"node": 2}}))

    assert cluster.jobs[gang].state is JobState.RUNNING
    signalled = [j for j in cluster.jobs.values() if j.signals]
    assert len(signalled) == 4
    assert all(j.state is JobState.PENDING and j.saved_s > 0 for j in signalled)
    signals = [a for a in cluster.applied if isinstance(a, Signal)]
    assert len(signals) == 4


def test_without_cells_it_waits_for_ever_behind_them() -> None:
    """First come, first served with a quota: 8 GPUs are the account's, none is ever free."""
    cells = site({"a": {"node": 2}})
    cluster, gang = played(dataclasses.replace(cells, placement=Placement()))

    assert cluster.jobs[gang].state is JobState.PENDING
    assert not any(j.signals for j in cluster.jobs.values())


def test_where_preemption_is_off_nobody_can_be_taken_back() -> None:
    """A contract is worth nothing then: all but guaranteed jobs stay off what may be claimed."""
    snap = snap_of([build.pending(1, 4)], {}, opted_in=(1,))
    off = site({"a": {"node": 4}})
    off = dataclasses.replace(off, preemption=dataclasses.replace(LIMITS, enabled=False))

    assert isinstance(answers(snap, off)[1], Wait)


def test_nothing_is_found_where_the_owner_of_a_job_does_not_let_it_go() -> None:
    """It is opportunistic, and others' cells stay producible."""
    only = np.array([False, False, True, True])
    rows = [build.pending(1, 4), build.running(2, 4), build.running(3, 4)]
    held, choices = {2: {2: 4}, 3: {3: 4}}, {JobId(1): only}
    snap = snap_of(rows, {1: "a", 2: "a", 3: "a"}, held=held, choices=choices)

    assert guaranteed(snap, site({"a": {"node": 3}})) == {2, 3}


def test_a_job_that_its_owner_keeps_from_idle_nodes_displaces_others_on_the_rest() -> None:
    """Its cell is where it may go, if nobody loses one by that."""
    rows = [build.pending(1, 4), build.running(2, 4)]
    only = np.array([False, True])
    snap = snap_of(
        rows, {1: "a"}, nodes=(4, 4), held={2: {1: 4}}, opted_in=(2,), choices={JobId(1): only}
    )

    assert promise_of(snap, site({"a": {"node": 1}})).cells[0].tolist() == [False, True]


def test_what_is_broken_in_two_ways_is_told_in_both() -> None:
    """A cell of no size, and nodes that are down."""
    snap = snap_of([build.pending(1, 4)], {1: "a"}, down=[0, 1, 2, 3])
    broken = promise_of(snap, site({"a": {"node": 1, "3": 1}})).broken["a"]

    assert "cells of 3 GPUs" in broken
    assert "1 of the node cells" in broken


def test_nodes_of_another_size_are_in_no_cell() -> None:
    """They are for everybody; a job there is guaranteed nothing."""
    rows = [build.pending(1, 2), build.running(2, 2), build.running(3, 2)]
    snap = snap_of(rows, {2: "a"}, nodes=(4, 4, 8), held={2: {2: 2}, 3: {2: 2}}, opted_in=(1,))
    promise = promise_of(snap, site({"a": {"node": 2}}))

    assert promise.outside.tolist() == [False, False, True]
    assert not promise.guaranteed.any()
    assert not promise.broken


def test_jobs_that_cannot_be_taken_back_leave_the_owned_nodes_to_their_owner() -> None:
    """Four of them ask for a node each; two run, and the owner's gang starts without a signal."""
    cluster, ledger = Accounts(nodes=4, gpus=4), Ledger(MemoryStore())
    stubborn = [cluster.submit(4, work_s=100_000) for _ in range(4)]
    settings_ = site({"a": {"node": 2}})
    cycles(cluster, ledger, settings_, 6)
    assert [cluster.jobs[j].state for j in stubborn].count(JobState.RUNNING) == 2
    gang = cluster.submit(8, n_nodes=2, work_s=100_000)
    cluster.account[gang] = "a"
    cycles(cluster, ledger, settings_, 6)

    assert cluster.jobs[gang].state is JobState.RUNNING
    assert not any(isinstance(a, Signal) for a in cluster.applied)


def test_where_slurm_preempts_a_guaranteed_job_that_runs_is_exceeded_by_nobody() -> None:
    """It stands above all bands; an opportunistic one stands half a band above its own."""
    rows = [build.running(1, 4), build.running(2, 4)]
    texts = {JobId(j): JobText(label="", account=a, qos="normal") for j, a in ((1, "a"), (2, "b"))}
    seen = build.observed(rows, held={1: {0: 4}, 2: {1: 4}}, opted_in=(1, 2), texts=texts)
    native = site({"a": {"node": 1}}, mode=Native(qos="normal"))
    plan = decide(build.snapshot(seen), DiscreteLas(thresholds_gpu_s=(1000.0,)), native)

    assert {a.job_id: a.value for a in plan.actions if isinstance(a, SetSiteFactor)} == {
        1: 4 * B + B // 2,
        2: 2 * B + B // 2,
    }
