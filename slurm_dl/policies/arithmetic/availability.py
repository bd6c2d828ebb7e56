"""Which GPUs come free when, as far as the run times that are known of jobs say.

What backfill needs: of each job how long it will hold how many GPUs of which type, and of each type
the GPUs that are free from now on as a step function of time. Times are seconds from now. A job has
all its GPUs on one type. One that has outrun its estimate ends in a moment, one without any never.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slurm_dl.model.jobs import COMPLETING, F64, I64, PENDING, Origin
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.arithmetic.supply_and_demand import contenders, gpus_by_type, rates_of

ROUNDING_S = 1e-6
"""Times this close are one: estimates that are exact differ by the rounding of sums."""

SLACK_GPUS = 1e-9  # Ten tenths of a GPU are one, whatever the rounding of their sum
_SOON_S = 1.0  # When a job ends that has outrun its estimate
_SHORTEST_S = 1e-3


@dataclass(frozen=True, slots=True, eq=False)
class WaitingJobs:
    """The jobs that wait for room, first eligible first, then job id; q of them.

    Attributes:
        rows: ``(q,)`` their rows.
        gpus: ``(q,)`` GPUs each wants.
        lasts_s: ``(q, t)`` how long each would hold GPUs of each type; inf: for ever, as far as
            is known; NaN: it cannot run there, or wants more than there are.
        slowness: ``(q, t)`` what is smaller for a faster type, finite.
    """

    rows: I64
    gpus: F64
    lasts_s: F64
    slowness: F64


@dataclass(frozen=True, slots=True, eq=False)
class HeldGpus:
    """GPUs of one type that jobs hold now.

    Attributes:
        there: GPUs of the type on nodes that are up.
        ends_s: ``(r,)`` when each holder ends, increasing, seconds from now; inf: never.
        gpus: ``(r,)`` GPUs it holds.
    """

    there: float
    ends_s: F64
    gpus: F64

    @property
    def free(self) -> float:
        """GPUs of the type that nobody holds; below 0 if jobs hold more than there are."""
        return self.there - float(self.gpus.sum())


def waiting(snap: Snapshot) -> WaitingJobs:
    """The jobs of *snap* that wait for room and nothing else."""
    jobs = snap.jobs
    rows = (contenders(snap) & (jobs.state == PENDING)).nonzero()[0]
    rows = rows[np.lexsort((jobs.job_id[rows], snap.memory.queued_s[rows]))]
    lasts_s = _lasts_s(snap, rows)
    lasts_s[jobs.gpus[rows, None] > gpus_by_type(snap) + SLACK_GPUS] = np.nan
    return WaitingJobs(rows, jobs.gpus[rows], lasts_s, slowness=-rates_of(snap)[rows])


def held(snap: Snapshot) -> list[HeldGpus]:
    """Who holds GPUs of each type, managed or not."""
    jobs, supply = snap.jobs, gpus_by_type(snap)
    rows = ((jobs.state > PENDING) & (jobs.state < COMPLETING) & (jobs.gpus > 0)).nonzero()[0]
    on = _held_by_type(snap, len(supply))[rows]
    ends_s = _lasts_s(snap, rows)
    found = []
    for kind, there in enumerate(supply.tolist()):
        here = on[:, kind] > 0
        # Where its speed is not known, or said to be nothing although it runs: for ever.
        end_s = np.where(np.isnan(ends_s[here, kind]), np.inf, ends_s[here, kind])
        by_end = np.lexsort((jobs.job_id[rows[here]], end_s))
        found.append(HeldGpus(there, end_s[by_end], on[here, kind][by_end]))
    return found


def _lasts_s(snap: Snapshot, rows: I64) -> F64:
    """``(len(rows), t)`` seconds that jobs will hold GPUs of each type; NaN where they cannot."""
    left_s = snap.left_s[rows]
    left_s = np.where(np.isnan(left_s), np.inf, left_s)
    left_s = np.where(left_s > 0, np.maximum(left_s, _SHORTEST_S), _SOON_S)
    rates = rates_of(snap)[rows]
    # A time limit is over when it is over, however fast the GPUs are.
    limits = snap.left_from is None
    speed = np.ones_like(rates) if limits else rates.copy()
    if snap.left_from is not None:
        speed[snap.left_from[rows] == Origin.DECLARED] = 1.0
    can = rates > 0
    lasts_s: F64 = np.divide(left_s[:, None], speed, out=np.full(rates.shape, np.nan), where=can)
    return lasts_s


def _held_by_type(snap: Snapshot, kinds: int) -> F64:
    """``(n, t)`` GPUs that each job holds of each type on nodes that are up."""
    seen, jobs = snap.seen, snap.jobs
    place, nodes = seen.held, seen.nodes
    by_type = place.gpus_by_type(nodes, len(seen.gpu_types)) * nodes.up[place.node]
    on: F64 = np.array([np.bincount(place.job, gpus, len(jobs)) for gpus in by_type]).T
    told = np.zeros(len(jobs), dtype=np.bool_)
    told[place.job] = True
    # Clusters without nodes, and jobs of which Slurm does not say yet where they are.
    rows = (~told).nonzero()[0]
    guess = jobs.gpu_type[rows] if snap.on_type is None else snap.on_type[rows]
    known = (guess >= 0) & (guess < kinds)
    on[rows[known], guess[known]] = jobs.gpus[rows[known]]
    # Nobody knows where these are: they may be missing anywhere.
    on[rows[~known]] = jobs.gpus[rows[~known], None]
    return on


class FreeGpuProfile:
    """GPUs of one type that are free from now on, as a step function of time.

    Beyond the last step lies the end of all times: what is promised there, to jobs of which nobody
    knows when they can start, is kept from those that never end.

    Attributes:
        at_last: GPUs free when everything has ended that ever ends; below 0 if too many are
            promised.
    """

    def __init__(self, now: HeldGpus) -> None:
        ends = now.ends_s < np.inf
        # Those that end together, all but for rounding, make one step.
        at_s, gpus = now.ends_s[ends], now.gpus[ends]
        new = np.diff(at_s, prepend=-np.inf) > ROUNDING_S
        steps = np.add.reduceat(gpus, new.nonzero()[0]) if len(gpus) else gpus
        self._at_s = np.append(0.0, at_s[new])
        self._free = now.free + np.append(0.0, steps.cumsum())
        self.at_last = float(self._free[-1])

    def earliest_s(self, gpus: float, lasts_s: float) -> float:
        """When so many are first free for so long, seconds from now; inf if never."""
        enough = np.empty(len(self._free) + 2, dtype=np.bool_)
        enough[0] = enough[-1] = False
        np.greater_equal(self._free, gpus - SLACK_GPUS, out=enough[1:-1])
        turns = (enough[1:] != enough[:-1]).nonzero()[0]
        begin, end = turns[::2], turns[1::2]
        if lasts_s == np.inf:
            begin = begin[(end == len(self._free)) & (self.at_last >= gpus - SLACK_GPUS)]
            return float(self._at_s[begin[0]]) if len(begin) else np.inf
        end_s = np.append(self._at_s, np.inf)[end]
        fits = end_s - self._at_s[begin] >= lasts_s - ROUNDING_S
        first = int(fits.argmax()) if len(fits) else 0
        return float(self._at_s[begin[first]]) if fits.any() else np.inf

    def take(self, gpus: float, start_s: float, lasts_s: float) -> None:
        """Promise so many from *start_s*, one of the steps or inf, for so long."""
        if start_s == np.inf:
            self.at_last -= gpus
            return
        begin = int(self._at_s.searchsorted(start_s))
        if lasts_s == np.inf:
            self._free[begin:] -= gpus
            self.at_last -= gpus
            return
        end_s = start_s + lasts_s
        end = int(self._at_s.searchsorted(end_s - ROUNDING_S))
        if end == len(self._at_s) or self._at_s[end] > end_s + ROUNDING_S:
            self._at_s = np.insert(self._at_s, end, end_s)
            self._free = np.insert(self._free, end, self._free[end - 1])
        self._free[begin:end] -= gpus
