"""Two-dimensional Gittins: serve the job that is likeliest to be done for the service it costs.

Knows how sizes are distributed, not how large a job is. With attained service a and sizes S,

    G(a) = sup over D > 0 of  P(S - a <= D | S > a) / E[min(S - a, D) | S > a],

and the largest index goes first. The sizes are those given, or else those of the finished jobs that
the site's own accounting tells of. Where the chance of finishing only falls with age (sizes as
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
from typing import Literal

import numpy as np

from slurm_dl.model.completed_jobs import Past
from slurm_dl.model.jobs import F64, Bool
from slurm_dl.model.parameter_bounds import Positive, Sizes
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.base import About, Order, PolicyDefaults, one_tier, quantum_end_s

_NEARER = 0.8
"""Between two sizes the index is known at distances from the next size that shrink by this."""

_NEAREST = 1e-4  # The last of these distances, as a share of the gap
_LEAST_SAMPLES = 30  # Fewer finished jobs say nothing of how sizes are distributed
_MOST_SAMPLES = 200  # More of them change the index little and take long


@dataclass(frozen=True, slots=True, kw_only=True)
class Gittins(PolicyDefaults):
    """The largest Gittins index first.

    Attributes:
        sizes_gpu_s: Sizes of finished jobs, GPU-seconds, each above 0: the distribution. In one
            dimension they are seconds. Empty: the sizes of the finished jobs, once there are 30 of
            them; until then the order is that of least attained service.
        dimensions: 2: service is GPUs x seconds. 1: seconds alone.
        quantum_s: While no job comes or goes, the order is updated this often, seconds, above 0.
    """

    name = "gittins"
    source = "Gittins 1979; Tiresias, NSDI 2019, section 3.2 (2D-Gittins)"
    about = About(
        row="A1",
        level="W3",
        formula="G(a) = sup_D P(S-a <= D | S > a) / E[min(S-a, D) | S > a], largest first",
        needs=("history",),
        fallback="with fewer than 30 finished jobs, and no sizes given: least attained service",
        starves="a job with more service than the largest size, while others come",
    )
    interpretation = (
        "The index is not discretised into queues. It is that of the theory, with the age "
        "subtracted from the sizes. While no event happens, the order is updated every quantum. "
        "Jobs beyond the largest size come last. Of many finished jobs, evenly spaced quantiles "
        "are used. Without sizes the order is that of least attained service."
    )
    counts_commitment = True

    sizes_gpu_s: Sizes = ()
    dimensions: Literal[1, 2] = 2
    quantum_s: Positive = 360.0

    def order(self, snap: Snapshot, /) -> Order:
        """Place every job of *snap*; see `Policy`."""
        service, kept = snap.service(self.dimensions), snap.kept(self.dimensions)
        sizes = self.sizes_gpu_s or past_sizes(snap.past, self.dimensions)
        if not sizes:
            return one_tier(service)
        # Not as an age: a job could choose one at which the index is large.
        return one_tier(np.maximum(_cost_of_one(sizes, service - kept), kept))

    def next_change_s(self, snap: Snapshot, order: Order, running: Bool, /) -> float:  # noqa: ARG002
        """A quantum from now while jobs run and others wait; see `Policy`."""
        return quantum_end_s(snap, running, self.quantum_s)


@functools.lru_cache(maxsize=4)
def past_sizes(past: Past, dimensions: Literal[1, 2]) -> tuple[float, ...]:
    """Sizes of the jobs that are over, increasing; none if there are fewer than 30 of them.

    Of many the quantiles in the middle of 200 equal parts: what is looked up is built from them.

    Args:
        past: Of a given one the answer is remembered.
        dimensions: 2: GPU-seconds. 1: seconds.
    """
    sizes = past.ran_s if dimensions == 1 else past.size_gpu_s
    sizes = np.sort(sizes[np.isfinite(sizes) & (sizes > 0)])
    if len(sizes) < _LEAST_SAMPLES:
        return ()
    if len(sizes) > _MOST_SAMPLES:
        middle = (np.arange(_MOST_SAMPLES) + 0.5) / _MOST_SAMPLES
        sizes = sizes[(middle * len(sizes)).astype(np.int64)]
    return tuple(sizes.tolist())


def gittins_index(sizes: F64, age: float) -> float:
    """G(*age*) of the empirical distribution of *sizes*; 0 beyond the largest.

    The supremum is attained where a size is reached, so only those intervals are looked at.
    """
    above = np.sort(sizes[sizes > age])
    return 1 / float(_costs(above, np.array([age]))[0]) if len(above) else 0.0


def _costs(above: F64, ages: F64) -> F64:
    """``(m,)`` 1 / G at *ages*, where *above*, increasing, are the sizes above all of them."""
    more = above - ages[:, None]
    n = len(above)
    done = np.arange(1, n + 1)
    # Expected service up to each size: the finished ones in full, the rest cut off there.
    spent = more.cumsum(axis=1) + more * (n - done)
    costs: F64 = (spent / done).min(axis=1)
    return costs


def _cost_of_one(sizes: tuple[float, ...], ages: F64) -> F64:
    """``(n,)`` 1 / G: expected service for one job to finish; inf beyond the largest size."""
    table = _table(sizes)
    at = table.age.searchsorted(ages, side="right") - 1
    return table.here[at] + table.slope[at] * (ages - table.age[at])


@dataclass(frozen=True, slots=True, eq=False)
class _Table:
    """1 / G as straight pieces.

    Between two sizes it is the least of lines, one for each size that may be aimed at, and falls
    to 0 just before the next size; so between two ages of the table that have the same best aim it
    is exact, and elsewhere a little low.

    Attributes:
        age: ``(m,)`` where pieces begin, increasing from 0.
        here: ``(m,)`` 1 / G there.
        slope: ``(m,)`` how it goes on from there.
    """

    age: F64
    here: F64
    slope: F64


@functools.lru_cache(maxsize=8)
def _table(sizes: tuple[float, ...]) -> _Table:
    column = np.sort(np.array(sizes, dtype=np.float64))
    ends = np.unique(column)
    begins = np.concatenate([[0.0], ends[:-1]])
    share = _NEARER ** np.arange(math.ceil(math.log(_NEAREST) / math.log(_NEARER)))
    # In each gap: its begin, and ages ever nearer to its end.
    age = ends[:, None] - (ends - begins)[:, None] * share
    # In a gap of a few roundings they would fall on its end, where that size is done with.
    age = np.minimum(age, np.nextafter(ends, begins)[:, None])
    age[:, 0] = begins
    here = np.array([_costs(column[column >= end], a) for end, a in zip(ends, age, strict=True)])
    # Just before a size the cost of one more job is nothing.
    after = np.concatenate([here[:, 1:], np.zeros((len(ends), 1))], axis=1)
    length = np.diff(np.concatenate([age, ends[:, None]], axis=1), axis=1)
    slope = np.divide(after - here, length, out=np.zeros_like(here), where=length > 0)
    return _Table(
        age=np.append(age.ravel(), ends[-1]),
        here=np.append(here.ravel(), np.inf),
        slope=np.append(slope.ravel(), 0.0),
    )
