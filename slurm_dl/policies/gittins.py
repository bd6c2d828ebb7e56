"""Two-dimensional Gittins: serve the job that is likeliest to be done for the service it costs.

Knows how sizes are distributed, not how large a job is. With attained service a and sizes S,

    G(a) = sup over D > 0 of  P(S - a <= D | S > a) / E[min(S - a, D) | S > a],

and the largest index goes first. Where the chance of finishing only falls with age (sizes as
heavy-tailed as those of training jobs) that is the least attained service; so without any sizes
the order is that of `las`.

Source: Gittins, "Bandit processes and dynamic allocation indices", J. Royal Statistical Society B
41(2), 1979; Aalto, Ayesta and Righter, "On the Gittins index in the M/G/1 queue", Queueing Systems
63, 2009; Gu et al., "Tiresias", NSDI 2019, section 3.2 (2D-Gittins).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from slurm_dl.model.jobs import COMPLETING, F64, Bool
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.base import Order, Preempts

_STEP = 1.01
"""Between ages at which the index is looked up, besides the sizes themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gittins:
    """The largest Gittins index first.

    Attributes:
        sizes_gpu_s: Sizes of finished jobs, GPU-seconds, each above 0; the distribution. None:
            the order of least attained service. In one dimension they are seconds.
        dimensions: 2: service is GPUs x seconds. 1: seconds alone.
        quantum_s: How long a turn is at least, seconds, above 0.
    """

    name: ClassVar[str] = "gittins"
    source: ClassVar[str] = "Gittins 1979; Tiresias, NSDI 2019, section 3.2 (2D-Gittins)"
    interpretation: ClassVar[str] = (
        "not discretised into queues; the index is that of the theory, with the age taken off the "
        "sizes; a turn takes a quantum at least; without sizes least attained service"
    )
    preempts: ClassVar[Preempts] = "rank"
    skips: ClassVar[bool] = True

    sizes_gpu_s: tuple[float, ...] = ()
    dimensions: Literal[1, 2] = 2
    quantum_s: float = 360.0

    def __post_init__(self) -> None:
        if not all(math.isfinite(s) and s > 0 for s in self.sizes_gpu_s):
            msg = "sizes_gpu_s must be finite numbers above 0"
            raise ValueError(msg)
        if not (math.isfinite(self.quantum_s) and self.quantum_s > 0):
            msg = f"quantum_s must be a finite number above 0 (got {self.quantum_s})"
            raise ValueError(msg)

    @property
    def tiers(self) -> int:
        """One: the index says it all."""
        return 1

    def order(self, snap: Snapshot, /) -> Order:
        """Place every job of *snap*; see `Policy`."""
        n = len(snap.jobs)
        service = snap.memory.ran_s if self.dimensions == 1 else snap.memory.attained_gpu_s
        key = service
        if self.sizes_gpu_s:
            ages, index = _table(self.sizes_gpu_s)
            key = -index[ages.searchsorted(service, side="right") - 1]
        return Order(
            tier=np.zeros(n, dtype=np.int16),
            key=key,
            promote=np.zeros(n, dtype=np.bool_),
            tiers=1,
        )

    def next_change_s(self, snap: Snapshot, order: Order, running: Bool, /) -> float:  # noqa: ARG002
        """A quantum from now while jobs run and others wait; see `Policy`."""
        waiting = (snap.jobs.state < COMPLETING) & ~running
        turns = bool(waiting.any() and running.any())
        return snap.now_s + self.quantum_s if turns else math.inf


def gittins_index(sizes: F64, age: float) -> float:
    """G(*age*) of the empirical distribution of *sizes*; 0 beyond the largest.

    The supremum is attained where a size is reached, so only those intervals are looked at.
    """
    more = np.sort(sizes[sizes > age]) - age
    n = len(more)
    if not n:
        return 0.0
    done = np.arange(1, n + 1)
    # Expected service up to each size: the finished ones in full, the rest cut off there.
    spent = np.cumsum(more) + more * (n - done)
    return float((done / spent).max())


@functools.lru_cache(maxsize=8)
def _table(sizes: tuple[float, ...]) -> tuple[F64, F64]:
    """Ages, increasing from 0, and the index at each."""
    column = np.sort(np.array(sizes, dtype=np.float64))
    steps = 1 + math.ceil(math.log(column[-1] / column[0]) / math.log(_STEP))
    between = column[0] * _STEP ** np.arange(-steps, steps)
    ages = np.unique(np.concatenate([[0.0], column, between[between < column[-1]]]))
    index = np.array([gittins_index(column, age) for age in ages.tolist()])
    return ages, index
