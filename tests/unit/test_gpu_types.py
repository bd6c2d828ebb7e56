"""Types of GPUs in a decision: who may go where, and whom that may and may not displace."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import numpy as np
from build import observed, pending, running, snapshot

from slurm_dl.engine.decide import decide
from slurm_dl.engine.intent import intend
from slurm_dl.engine.placing.eligible_nodes import nodes_of_chosen_type
from slurm_dl.engine.settings import Preemption, Settings
from slurm_dl.engine.target import TypedResources
from slurm_dl.model.jobs import JobRow
from slurm_dl.model.plan import OpenHandover
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.arithmetic.supply_and_demand import gpus_by_type, rates_of
from slurm_dl.policies.base import Order
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.policies.fifo import Fifo
from slurm_dl.policies.gavel.queues import GavelFifo
from slurm_dl.policies.shortest import Srtf

SETTINGS = Settings(
    partitions=frozenset({"gpu"}),
    preemption=Preemption(
        beneficiaries="all", commitment="ignored", min_quantum_s=0, cooldown_s=0, limit_reserve_s=0
    ),
)
A100, V100 = 0, 1


def mixed(
    rows: list[JobRow],
    *,
    gpus: tuple[float, ...],
    kinds: tuple[int, ...],
    rates: tuple[float, float] = (2.0, 1.0),
    **more: Any,  # noqa: ANN401
) -> Snapshot:
    """Jobs on nodes of two types."""
    seen = observed(rows, nodes=gpus, columns={"gpu_type": kinds}, **more)
    return snapshot(seen, rates=np.tile(rates, (len(rows), 1)))


def test_nobody_is_displaced_because_the_fast_gpus_lie_in_pieces() -> None:
    """Types only helped to count: a whole slow node is room as well."""
    rows = [running(1, 3), running(2, 3), pending(3, 2)]
    snap = mixed(
        rows,
        gpus=(4, 4, 4),
        kinds=(A100, A100, V100),
        held={1: {0: 3}, 2: {1: 3}},
        opted_in=[1, 2, 3],
    )

    plan = decide(snap, DiscreteLas(), SETTINGS)

    assert not [a for a in plan.actions if isinstance(a, OpenHandover)]
    assert "there is room for it" in plan.notes[3]


def test_only_a_policy_that_chooses_types_confines_jobs_to_them() -> None:
    """Gavel's FIFO gives the first job the fast node; SRTF says nothing of types."""
    snap = mixed([pending(1, 4), pending(2, 4)], gpus=(4, 4), kinds=(V100, A100))

    chosen = nodes_of_chosen_type(snap, intend(snap, GavelFifo(), lease_s=1200.0))
    silent = nodes_of_chosen_type(snap, intend(snap, Srtf()))

    assert chosen(0) is not None
    assert chosen(0).tolist() == [False, True]  # type: ignore[union-attr]
    assert chosen(1).tolist() == [True, False]  # type: ignore[union-attr]
    assert silent(0) is None


def test_a_type_that_no_node_of_the_partition_has_is_out_of_reach() -> None:
    """However fast it is, and even where its speed is not known."""
    rows = [pending(1, partition=0), pending(2, partition=1), pending(3, partition=-1)]
    snap = mixed(
        rows, gpus=(4, 4), kinds=(A100, V100), node_in=np.array([[True, True], [False, True]]),
        rates=(float("inf"), 1.0),
    )  # fmt: skip

    assert rates_of(snap).tolist() == [[float("inf"), 1.0], [0.0, 1.0], [float("inf"), 1.0]]
    assert gpus_by_type(snap).tolist() == [4.0, 4.0]


def test_a_job_in_several_partitions_reaches_the_types_of_all() -> None:
    """Slurm starts it in any of them."""
    snap = mixed(
        [pending(1, partition=1)], gpus=(4, 4), kinds=(A100, V100),
        node_in=np.array([[True, False], [False, True]]),
    )  # fmt: skip
    also = dataclasses.replace(snap, seen=dataclasses.replace(snap.seen, also_in={1: (0,)}))

    assert rates_of(snap).tolist() == [[0.0, 1.0]]
    assert rates_of(also).tolist() == [[2.0, 1.0]]


def test_what_no_type_can_hold_keeps_nobody_waiting() -> None:
    """Eight and eight GPUs are not sixteen to a gang that is on one type."""
    snap = mixed([pending(1, 12), pending(2, 8), pending(3, 8)], gpus=(8, 8), kinds=(A100, V100))

    assert snap.jobs.job_id[intend(snap, Fifo()).target].tolist() == [2, 3]


def test_first_in_first_out_waits_for_a_gang_that_could_fit() -> None:
    """Nobody passes it."""
    rows = [pending(1, 6), pending(2, 6), pending(3, 4), pending(4, 2)]
    snap = mixed(rows, gpus=(8, 8), kinds=(A100, V100))

    assert snap.jobs.job_id[intend(snap, Fifo()).target].tolist() == [1, 2]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WantsV100(Srtf):
    """Shortest first, and each on a v100."""

    name: ClassVar[str] = "wants_v100"

    def order(self, snap: Snapshot, /) -> Order:
        """As its parent's, with a type."""
        kinds = np.full(len(snap.jobs), V100, dtype=np.int16)
        return dataclasses.replace(Srtf.order(self, snap), gpu_type=kinds)


def test_gpus_are_taken_back_on_the_type_that_was_chosen() -> None:
    """Although the job on the other type would be missed less."""
    rows = [running(1, 4, limit_s=9e5), running(2, 4, limit_s=8e5), pending(3, 4, limit_s=9e3)]
    snap = mixed(
        rows, gpus=(4, 4), kinds=(A100, V100), held={1: {0: 4}, 2: {1: 4}}, opted_in=[1, 2, 3]
    )

    plan = decide(snap, WantsV100(), SETTINGS)

    (opened,) = [a.handover for a in plan.actions if isinstance(a, OpenHandover)]
    assert [v.run.job_id for v in opened.victims] == [2]


def test_what_pinned_jobs_hold_is_not_given_away() -> None:
    """And a job is served once."""
    rows = [running(1, 4), pending(2, 4), pending(3, 4)]
    snap = mixed(rows, gpus=(4, 4), kinds=(A100, V100), held={1: {0: 4}})
    room = TypedResources(snap, np.array([0]))

    served = room.by_rank(np.array([0, 1, 2, 1]), None, skips=True)

    assert served.tolist() == [1]
    assert room.kind.tolist() == [A100, V100, -1]


def test_nobody_is_put_where_he_cannot_run() -> None:
    """By rank and by need."""
    snap = mixed([pending(1), pending(2)], gpus=(4, 4), kinds=(A100, V100), rates=(0.0, 1.0))
    need = np.array([[9.0, 1.0], [9.0, 1.0]])

    room = TypedResources(snap, np.zeros(0, dtype=np.int64))
    assert room.by_need(np.array([0]), need).tolist() == [0]
    assert room.by_rank(np.array([1]), None, skips=True).tolist() == [1]
    assert room.kind.tolist() == [V100, V100]
    full = mixed([running(1, 4), pending(2)], gpus=(4, 4), kinds=(A100, V100), rates=(0.0, 1.0),
                 held={1: {1: 4}})  # fmt: skip
    room = TypedResources(full, np.array([0]))
    assert room.by_rank(np.array([1]), None, skips=True).tolist() == []
