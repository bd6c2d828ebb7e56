"""The part that policies which choose sizes have in common: their table of jobs, and their order.

A job that is not elastic takes part with the one size it asks for.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from slurm_dl.model.jobs import F64, I64, Bool
from slurm_dl.model.parameter_bounds import Positive
from slurm_dl.model.sizes import AS_ASKED, NOT_NOW, wanted_gpus
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.arithmetic.sizing import NONE, Job, jobs_at
from slurm_dl.policies.arithmetic.supply_and_demand import contenders
from slurm_dl.policies.base import Order, PolicyDefaults, one_tier

FALLBACK: Final = (
    "a job without sizes has the one it asks for; one of unknown time left counts with the mean of "
    "the others"
)
"""Of each of these policies where an input is missing."""

SPEEDS_TOLD: Final = ("progress", "steps")
"""Reports by which a job's speed in a size is known."""

ONE_POOL: Final = "GPUs of all types, on all nodes that are up, count as one pool. "
"""The GPUs that each of these policies hands out, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizingPolicy(PolicyDefaults):
    """One tier; the sizes are the decision, and all that are chosen fit together.

    Attributes:
        quantum_s: Sizes are chosen anew this often, seconds, above 0.
    """

    quantum_s: Positive = 60.0

    def order(self, snap: Snapshot, /) -> Order:
        """Place every job of *snap*; see `Policy`."""
        rows, nodes = by_arrival(snap), snap.seen.nodes
        jobs, places = jobs_at(snap, rows)
        chosen = self.choose(jobs, float(nodes.gpus[nodes.up].sum()))
        size = np.full(len(snap.jobs), AS_ASKED, dtype=np.int32)
        for row, mine, at in zip(rows.tolist(), places, chosen, strict=True):
            size[row] = NOT_NOW if at == NONE else mine[at]
        gpus = wanted_gpus(snap.jobs.gpus, snap.sizes, size)
        key = np.where(size == NOT_NOW, math.inf, self.key(gpus))
        # Where no job is elastic the key says it all.
        return dataclasses.replace(one_tier(key), size=None if snap.sizes is None else size)

    def next_change_s(self, snap: Snapshot, order: Order, running: Bool, /) -> float:  # noqa: ARG002
        """After *quantum_s*, while jobs run and some are elastic; see `Policy`."""
        turns = snap.sizes is not None and bool(running.any())
        return snap.now_s + self.quantum_s if turns else math.inf

    @abc.abstractmethod
    def choose(self, jobs: Sequence[Job], gpus: float, /) -> list[int]:
        """The size of each job, or `NONE`, first eligible first; together at most so many GPUs."""

    def key(self, gpus: F64, /) -> F64:
        """``(n,)`` order in which those with a size are served: first eligible first.

        Args:
            gpus: ``(n,)`` GPUs of each in its size.
        """
        return np.zeros(len(gpus))


def by_arrival(snap: Snapshot) -> I64:
    """``(k,)`` rows of the jobs that take part, first eligible first."""
    rows: npt.NDArray[np.int64] = contenders(snap).nonzero()[0]
    return rows[np.lexsort([snap.jobs.job_id[rows], snap.memory.queued_s[rows]])]
