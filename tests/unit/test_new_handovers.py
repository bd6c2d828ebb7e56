"""The search for GPUs to take back: each kind of job once, and the cheapest nodes first."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import numpy as np
import pytest
from build import NOW_S, observed, pending, running, snapshot
from hypothesis import given
from hypothesis import strategies as st
from used_clusters import used_clusters

from slurm_dl.engine.decide import decide
from slurm_dl.engine.placing.free_resources import FreeResources
from slurm_dl.engine.preemption import new_handovers
from slurm_dl.engine.preemption.handover_context import DisplacementRule
from slurm_dl.engine.preemption.victim_choice import _Clearing, choose_victims
from slurm_dl.engine.settings import Preemption, Settings
from slurm_dl.model.contract import Claim
from slurm_dl.model.ids import JobId
from slurm_dl.model.plan import OpenHandover
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.placement.resource_request import ResourceRequests
from slurm_dl.policies.discrete_las import DiscreteLas

POLICY = DiscreteLas(thresholds_gpu_s=(3000.0, 60_000.0))
SETTINGS = Settings(
    partitions=frozenset({"gpu", "other"}),
    preemption=Preemption(
        beneficiaries="all",
        commitment="ignored",
        max_handovers=3,
        max_victims=3,
        max_beneficiaries=3,
    ),
)


MARKS: dict[str, dict[str, Any]] = {
    "": {},
    "partition": {"partition": 1},
    "gpu_type": {"gpu_type": 1},
    "n_nodes": {"n_nodes": 4},
    "cpus": {"cpus": 1000},
    "mem_mb": {"mem_mb": 50_000},
    "exclusive": {"exclusive": True},
    "also_in": {"partition": 1},
    "choices": {},
    "excluded": {},
    "most_nodes": {},
    "fruitless": {},
}
"""What sets some jobs apart from others that are like them in all else, and its columns."""


def crowded(seed: int, mark: str = "", nodes: int = 6, waiting: int = 60) -> Snapshot:
    """Full nodes of 4 GPUs, and a queue of a few kinds of jobs, some with marks of their own.

    Args:
        mark: Of `MARKS`; half of the waiting jobs have it.
    """
    draw = np.random.default_rng(seed)
    rows, held = [], {}
    for node in range(nodes):
        for size in draw.permutation([1, 1, 2]).tolist():
            job_id = len(rows) + 1
            rows.append(running(job_id, size, ran_s=float(draw.integers(10, 50_000))))
            held[job_id] = {node: float(size)}
    marked: list[JobId] = []
    choices = {}
    for size in draw.choice([1, 2, 4, 8, 16], waiting).tolist():
        job_id = len(rows) + 1
        shape = {"n_nodes": max(1, size // 4), "tasks": int(draw.choice([1, 1, 1, 3]))}
        # Also in one partition only, where others name a second one.
        shape |= {"partition": 1} if mark == "also_in" else {}
        if draw.random() < 0.5:
            marked.append(JobId(job_id))
            shape |= MARKS[mark]
        rows.append(pending(job_id, size, **shape))
        if draw.random() < 0.1:
            choices[JobId(job_id)] = np.arange(nodes) >= draw.integers(nodes)
    ran_s = {row.job_id: NOW_S - row.start_s for row in rows if row.start_s}
    service = {row.job_id: ran_s[row.job_id] * row.gpus for row in rows if row.start_s}
    service |= {row.job_id: float(draw.choice([0.0, 5000.0])) for row in rows if not row.start_s}
    fruitless = {row.job_id: 1 for row in rows if not row.start_s and draw.random() < 0.1}
    fruitless |= dict.fromkeys(marked, 1) if mark == "fruitless" else {}
    last = np.arange(nodes) == nodes - 1
    choices |= dict.fromkeys(marked, last) if mark == "choices" else {}
    seen = observed(
        rows, nodes=(4.0,) * nodes, held=held, opted_in=list(range(1, len(rows) + 1, 2))
    )
    wide = marked if mark == "most_nodes" else ()
    seen = dataclasses.replace(
        seen,
        choices=choices,
        excluded=dict.fromkeys(marked, ~last) if mark == "excluded" else {},
        also_in=dict.fromkeys(marked, (0,)) if mark == "also_in" else {},
        claims={**seen.claims, **{j: Claim(most_nodes=4, cpus_per_gpu=1000) for j in wide}},
        nodes=dataclasses.replace(seen.nodes, gpu_type=last.astype(np.int16)),
        # The second partition has one node.
        node_in=np.array([np.ones(nodes, dtype=np.bool_), last]),
    )
    snap = snapshot(
        seen,
        memory={
            "ran_s": ran_s,
            "attained_gpu_s": service,
            "fruitless": fruitless,
            "last_fruitless_s": dict.fromkeys(fruitless, NOW_S - 60.0),
        },
    )
    return dataclasses.replace(snap, managed=np.array([True, True]))


@pytest.mark.parametrize("seed", [0, 1, 3, 4])
@pytest.mark.parametrize("mark", MARKS)
def test_the_plan_is_the_one_without_kinds(
    mark: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking for each job by itself finds the same hand-overs, and the same words."""
    snap = crowded(seed, mark)
    found = decide(snap, POLICY, SETTINGS)
    kinds = list(new_handovers._kinds(snap, np.arange(len(snap.jobs)), standing_of(snap)))
    monkeypatch.setattr(new_handovers, "_kinds", lambda _, waiting, __: [None] * len(waiting))
    alone = decide(snap, POLICY, SETTINGS)

    assert any(isinstance(action, OpenHandover) for action in found.actions)
    assert max(Counter(kind for kind in kinds if kind is not None).values()) > 3
    assert None in kinds
    assert found.actions == alone.actions
    assert found.notes == alone.notes


def standing_of(snap: Snapshot) -> new_handovers.JobRanking:
    """Everybody in one tier."""
    n = len(snap.jobs)
    return new_handovers.JobRanking(
        rule=DisplacementRule(
            target=np.zeros(n, dtype=np.bool_),
            tier=np.zeros(n, dtype=np.int16),
            by_target=True,
            by_tier=True,
            may=np.ones(n, dtype=np.bool_),
        ),
        rank=np.arange(n, dtype=np.int32),
        placed=np.ones(n, dtype=np.bool_),
        target=frozenset(),
    )


def test_a_long_queue_of_one_kind_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand jobs that want the same and cannot have it cost what one does."""
    rows = [running(1, 4, ran_s=10.0), *(pending(i, 4) for i in range(2, 1002))]
    snap = snapshot(observed(rows, nodes=(4.0,), held={1: {0: 4.0}}))
    asked: list[int] = []
    needs: Any = new_handovers.ResourceRequests.of

    def of(self: new_handovers.ResourceRequests, row: int) -> new_handovers.ResourceRequest:
        asked.append(row)
        need: new_handovers.ResourceRequest = needs(self, row)
        return need

    monkeypatch.setattr(new_handovers.ResourceRequests, "of", of)
    plan = decide(snap, POLICY, SETTINGS)

    assert len(plan.notes) >= 1000
    assert len([row for row in asked if row > 0]) < 20


def test_who_may_go_to_other_nodes_is_another_kind() -> None:
    """In vain for a job that is confined to one node is not in vain for the next one."""
    rows = [running(1, 4, ran_s=40_000), running(2, 4, ran_s=40_000), pending(3, 4), pending(4, 4)]
    seen = observed(rows, nodes=(4.0, 4.0), held={1: {0: 4.0}, 2: {1: 4.0}}, opted_in=[2])
    seen = dataclasses.replace(seen, choices={JobId(3): np.array([True, False])})
    snap = snapshot(seen, memory={"attained_gpu_s": {1: 160_000.0, 2: 160_000.0}})
    opened = [a for a in decide(snap, POLICY, SETTINGS).actions if isinstance(a, OpenHandover)]

    assert [a.handover.beneficiaries for a in opened] == [(JobId(4),)]


def test_who_is_of_another_tier_is_told_other_words() -> None:
    """Who has nobody below is told that; for the better one there is somebody, but protected."""
    rows = [running(1, 4, ran_s=40_000), pending(2, 4), pending(3, 4)]
    snap = snapshot(
        observed(rows, nodes=(4.0,), held={1: {0: 4.0}}),
        memory={"attained_gpu_s": {1: 160_000.0, 3: 160_000.0}},
    )
    notes = decide(snap, POLICY, SETTINGS).notes

    assert "may be stopped" in notes[JobId(2)]
    assert notes[JobId(3)] == "no job of a lower tier is running"


def chosen(
    held: list[dict[int, float]], cost: list[float], order: list[int], n: int, gpus: int = 4
) -> set[int]:
    """Ids of the victims for a job of *n* nodes with *gpus* of their 4 GPUs each.

    Args:
        held: What each running job holds on which node.
        cost: What it costs to stop each.
        order: Rows of the jobs, most dispensable first.
    """
    rows = [running(i + 1, int(sum(on.values())), n_nodes=len(on)) for i, on in enumerate(held)]
    rows.append(pending(99, gpus * n, n_nodes=n))
    nodes = 1 + max(max(on) for on in held)
    snap = snapshot(
        observed(rows, nodes=(4.0,) * nodes, held={i + 1: on for i, on in enumerate(held)})
    )
    found = choose_victims(
        snap,
        FreeResources.free_in(snap),
        ResourceRequests(snap).of(len(held)),
        candidates=np.array(order),
        reluctance_gpu_s=np.array([*cost, 0.0]),
        within=np.ones(nodes, dtype=np.bool_),
        at_most=9,
    )
    assert not isinstance(found, str), found
    return {row + 1 for row in found}


def test_of_nodes_that_cost_the_same_the_one_with_the_most_dispensable_job_is_cleared() -> None:
    """By the most dispensable of the jobs on it, not by the one that is listed last."""
    held = [{0: 2.0}, {0: 2.0}, {1: 2.0}, {1: 2.0}]

    assert chosen(held, [50.0] * 4, [2, 0, 1, 3], 1) == {3, 4}


def test_a_node_that_has_become_cheaper_is_cleared_next() -> None:
    """Once a gang over two nodes goes, the second one costs what is left on it."""
    held = [{0: 2.0, 1: 2.0}, {0: 2.0}, {1: 2.0}, {2: 2.0}, {2: 2.0}]

    assert chosen(held, [100.0, 100.0, 150.0, 120.0, 121.0], [0, 1, 2, 3, 4], 2) == {1, 2, 3}


def test_a_node_costs_what_is_stopped_on_it_and_not_who_is_spared_again() -> None:
    """Job 1 is the cheapest, but stopping it does not help once job 2 is stopped as well."""
    held = [{0: 1.0}, {0: 3.0}, {1: 4.0}]

    assert chosen(held, [10.0, 50.0, 55.0], [0, 1, 2], 1, gpus=3) == {2}


@given(
    case=used_clusters(gpus=8, least_nodes=1, most_jobs=12, most_share=5),
    cost=st.lists(st.integers(0, 40), min_size=13, max_size=13),
    halves=st.booleans(),
)
def test_what_clearing_costs_is_the_same_for_all_nodes_at_once(
    case: tuple[Snapshot, int], cost: list[int], *, halves: bool
) -> None:
    """Against the choice of jobs on one node after the other; never above it, and all but equal."""
    snap, row = case
    reluctance_gpu_s = np.array(cost[: len(snap.jobs)]) / (2.0 if halves else 1.0)
    clearing = _Clearing(
        snap,
        FreeResources.free_in(snap),
        ResourceRequests(snap).of(row),
        candidates=np.arange(row),
        reluctance_gpu_s=reluctance_gpu_s,
        usable=np.ones(len(snap.seen.nodes), dtype=np.bool_),
    )
    at_once, _ = clearing._shares.cost_of(clearing._short())

    for node in np.flatnonzero(clearing._is_held).tolist():
        exact = float(reluctance_gpu_s[clearing._jobs_to_stop(node)].sum())
        assert at_once[node] <= exact
        assert at_once[node] == pytest.approx(exact, rel=1e-8, abs=0)
