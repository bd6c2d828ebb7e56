"""Pools of partitions, and jobs that find no nodes beside those that stay."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from build import NOW_S, observed, pending, running, snapshot

from slurm_dl.engine.decide import decide
from slurm_dl.engine.out_of_reach import out_of_reach
from slurm_dl.engine.settings import Preemption, Settings
from slurm_dl.engine.target import pools
from slurm_dl.model.ids import JobId
from slurm_dl.model.plan import OpenHandover
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.discrete_las import DiscreteLas

POLICY = DiscreteLas(thresholds_gpu_s=(1000.0,))
SETTINGS = Settings(
    partitions=frozenset({"gpu", "other"}),
    preemption=Preemption(
        beneficiaries="all", commitment="ignored", min_quantum_s=0, cooldown_s=0, limit_reserve_s=0
    ),
)


def two_partitions(node_in: list[list[int]]) -> Snapshot:
    """A full cluster of two nodes; eight jobs wait in the first partition, one in the second."""
    rows = [running(1, 4, ran_s=9000), running(2, 4, ran_s=9000, partition=1)]
    rows += [pending(i, 4) for i in range(3, 11)] + [pending(11, 4, partition=1)]
    seen = observed(rows, nodes=(4.0, 4.0), held={1: {0: 4.0}, 2: {1: 4.0}}, opted_in=[1, 2])
    seen = dataclasses.replace(seen, node_in=np.array(node_in, dtype=np.bool_))
    snap = snapshot(seen, memory={"attained_gpu_s": {1: 36_000.0, 2: 36_000.0}})
    return dataclasses.replace(snap, managed=np.array([True, True]))


@pytest.mark.parametrize(
    ("node_in", "groups", "target"),
    [
        ([[1, 0], [0, 1]], [{0}, {1}], {3, 11}),
        ([[1, 1], [0, 1]], [{0, 1}], {3, 4}),
    ],
)
def test_partitions_that_share_nodes_are_one_pool(
    node_in: list[list[int]], groups: list[set[int]], target: set[int]
) -> None:
    """The queue of one partition does not fill the target of another."""
    snap = two_partitions(node_in)
    plan = decide(snap, POLICY, SETTINGS)

    assert [set(pool.partitions or {0, 1}) for pool in pools(snap)] == groups
    assert plan.target == target


@pytest.mark.parametrize(
    ("n_nodes", "gpus", "choice", "staying", "expected"),
    [
        (2, 8, None, [0], True),
        (1, 4, None, [0], False),
        (2, 2, None, [0], False),
        (1, 4, [True, False], [0], True),
        (1, 4, [False, True], [0], False),
        (2, 8, None, [], False),
        (1, 16, None, [0], False),  # It would find none with nobody there either.
    ],
)
def test_a_job_is_out_of_reach_where_jobs_that_stay_hold_its_nodes(
    n_nodes: int, gpus: float, choice: list[bool] | None, staying: list[int], *, expected: bool
) -> None:
    """Two nodes of four GPUs; the job at row 0 holds two GPUs of the first."""
    rows = [running(1, 2), pending(2, gpus, n_nodes=n_nodes)]
    seen = observed(rows, nodes=(4.0, 4.0), held={1: {0: 2.0}})
    choices = {} if choice is None else {JobId(2): np.array(choice)}
    snap = snapshot(dataclasses.replace(seen, choices=choices))

    found = out_of_reach(snap, np.array(staying, dtype=np.int64), 900.0)

    assert found.tolist() == [False, expected]


@pytest.mark.parametrize("fruitless", [False, True])
def test_a_job_that_cannot_start_keeps_no_gpus_from_others(*, fruitless: bool) -> None:
    """Job 2 wants both nodes, and on one runs a job without a contract; or it was tried in vain."""
    rows = [running(1, 1), pending(2, 4 if fruitless else 8, n_nodes=1 if fruitless else 2)]
    rows += [running(3, 4, ran_s=9000), pending(4, 4)]
    seen = observed(rows, nodes=(4.0, 4.0), held={1: {0: 1.0}, 3: {1: 4.0}}, opted_in=[3])
    tried = {"fruitless": {2: 1.0}, "last_fruitless_s": {2: NOW_S - 60}} if fruitless else {}
    snap = snapshot(seen, memory={"attained_gpu_s": {3: 36_000.0}, **tried})
    plan = decide(snap, POLICY, SETTINGS)

    [opened] = [a.handover for a in plan.actions if isinstance(a, OpenHandover)]
    assert opened.beneficiaries == (JobId(4),)
