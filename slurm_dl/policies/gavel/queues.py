"""Gavel's policies that solve no program: queues that choose GPU types, and plain splits.

A queue goes through the jobs, in order of arrival or the quickest first, and gives each the fastest
type that has room for all its GPUs. A split gives each job a fixed part of every type; it is what
the other policies are measured by.

Source: Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning
Workloads", OSDI 2020, sections 4.1 (proportional), 4.2 (FIFO, shortest job first) and 7.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slurm_dl.model.jobs import F64, I64
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.arithmetic import linear_programs
from slurm_dl.policies.gavel import packed
from slurm_dl.policies.gavel.objectives import READING, SOURCE, isolated
from slurm_dl.policies.gavel.pool import Entrants, Sharing, about_gavel, left_of

_NO_RATES = "Every type counts as equally fast; the first of them with enough free GPUs is taken."
_SLACK_GPUS = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class GavelFifo(Sharing):
    """In order of arrival, each job on the fastest type with enough free GPUs.

    Attributes:
        packed: When all GPUs are taken, the next jobs in turn join one that has as many, while
            their speeds, relative to alone, add up to more than 1.5.
    """

    name = "gavel_fifo"
    source = f"{SOURCE}, section 4.2 (FIFO)"
    interpretation = (
        f"{READING} Jobs are taken one by one as in the paper's public code; the text maximises "
        "the sum of rate / best rate x (jobs behind it). The type of every job is chosen again "
        "each time."
    )
    about = about_gavel(
        formula=(
            "first eligible first: of the types with enough free GPUs the one with the highest rate"
        ),
        needs=("rates",),
        fallback=_NO_RATES,
        idles="no job behind the first one that no type has enough free GPUs for has a share",
    )

    packed: bool = False

    @property
    def packs(self) -> bool:
        """See `Sharing`."""
        return self.packed

    def shares(self, snap: Snapshot, who: Entrants, /) -> linear_programs.Solved:  # noqa: ARG002
        """See `Sharing`."""
        share, tail = fill(who, who.arrival.argsort(), skips=False)
        return packed.join_tail(who, share, tail)


@dataclass(frozen=True, slots=True, kw_only=True)
class GavelSjf(Sharing):
    """The job with the least time left on its fastest type first."""

    name = "gavel_sjf"
    source = f"{SOURCE}, section 4.2 (shortest job first)"
    interpretation = f"{READING} Jobs behind one that does not fit are served."
    about = about_gavel(
        formula=(
            "by left / best rate: of the types with enough free GPUs the one with the highest rate"
        ),
        needs=("left_s", "rates"),
        fallback=f"Jobs of unknown length are last, first eligible first. {_NO_RATES}",
        starves="a long job, while shorter ones come",
    )

    def shares(self, snap: Snapshot, who: Entrants, /) -> linear_programs.Solved:
        """See `Sharing`."""
        least = left_of(snap, who.rows) / who.rates.max(axis=1)
        share, _ = fill(who, np.lexsort((who.arrival, least)), skips=True)
        return linear_programs.Solved(share, "solved")


@dataclass(frozen=True, slots=True, kw_only=True)
class GavelIsolated(Sharing):
    """Each of n jobs gets the n-th part of the GPUs of every type."""

    name = "gavel_isolated"
    source = f"{SOURCE}, section 4.2 (X isolated)"
    interpretation = (
        f"{READING} The part is cut to its whole time for each job separately; the paper's public "
        "code divides all jobs by the largest."
    )
    about = about_gavel(
        formula="X = GPUs of the type / (jobs x GPUs of the job), at most 1 over all types",
        idles=(
            "a job with few GPUs has no more than its whole time, and none on types where it "
            "cannot run; the rest is in no job's share"
        ),
    )

    def shares(self, snap: Snapshot, who: Entrants, /) -> linear_programs.Solved:  # noqa: ARG002
        """See `Sharing`."""
        return linear_programs.Solved(isolated(who), "solved")


@dataclass(frozen=True, slots=True, kw_only=True)
class GavelProportional(Sharing):
    """Each job gets the same share of the time, divided among the types by their GPUs."""

    name = "gavel_proportional"
    source = f"{SOURCE}, section 4.1 (X equal)"
    interpretation = (
        f"{READING} Jobs of any number of GPUs get the same time, so that it fits in the cluster."
    )
    about = about_gavel(
        formula="X = GPUs of the type / all GPUs x min(1, all GPUs / GPUs asked for)",
        idles="the part of a type that a job cannot use is in no job's share",
    )

    def shares(self, snap: Snapshot, who: Entrants, /) -> linear_programs.Solved:  # noqa: ARG002
        """See `Sharing`."""
        return linear_programs.Solved(linear_programs.proportional(who.pool), "solved")


def fill(who: Entrants, order: I64, *, skips: bool) -> tuple[F64, I64]:
    """``(k, t)`` 1 where each job in turn runs: its fastest type with room for all its GPUs.

    And who comes behind the first for whom there is no room, or from it on if no GPU is free.

    Args:
        order: The jobs, the first to be served first.
        skips: Whether jobs behind one that fits nowhere are served.
    """
    pool = who.pool
    share: F64 = np.zeros(pool.may.shape)
    room = (pool.capacity + _SLACK_GPUS).tolist()
    best_first = np.argsort(-who.rates, axis=1, kind="stable").tolist()
    may, gpus = pool.may.tolist(), pool.gpus.tolist()
    tail = len(order)
    for at, job in enumerate(order.tolist()):
        kinds = (j for j in best_first[job] if may[job][j] and gpus[job] <= room[j])
        kind = next(kinds, None)
        if kind is not None:
            room[kind] -= gpus[job]
            share[job, kind] = 1.0
        elif not skips and not any(gpus[job] <= r for r in room):
            # As in Gavel's code, c4fa400, policies/fifo.py: a job that has looked at free GPUs is
            # no longer in the queue.
            tail = at + (max(room) >= 1)
            break
    return share, order[tail:]
