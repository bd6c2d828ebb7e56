"""Backfill: first come, first served, and gaps are filled by jobs that hold nobody up.

Who knows how long jobs run can tell when the job that waits longest will have its GPUs. EASY
promises that to the first in the queue alone: a later job is started at once if it has ended by
then, or needs only GPUs that are left over then. The conservative kind promises every job a time,
each the earliest that holds up none before it, and starts those whose time is now. Nobody is
preempted.

    easy_backfill          start j now if  now + left_j <= shadow  or  GPUs_j <= extra
    conservative_backfill  start j now if  its reservation is now

where shadow is when the first in the queue can start, and extra what is free then beside it.

Source: Lifka, "The ANL/IBM SP scheduling system", JSSPP 1995 (EASY); Mu'alem and Feitelson,
"Utilization, predictability, workloads, and user runtime estimates in scheduling the IBM SP2 with
backfilling", IEEE TPDS 12(6), 2001, section 2 (both).
"""

from __future__ import annotations

import abc
import dataclasses
import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from slurm_dl.model.jobs import F64, I16, Bool
from slurm_dl.model.parameter_bounds import Count
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.arithmetic.availability import (
    ROUNDING_S,
    SLACK_GPUS,
    FreeGpuProfile,
    HeldGpus,
    WaitingJobs,
    held,
    waiting,
)
from slurm_dl.policies.base import About, Order, PolicyDefaults, one_tier

_FALLBACK = (
    "The time left is the time limit less the time run so far. A job without a limit is assumed "
    "to run for ever, and passes no job that waits for the GPUs it would take. If no job has a "
    "limit, the order is that of fifo."
)

_COUNTED = (
    "GPUs are counted by type over the whole cluster, each job on one type; their nodes are "
    "ignored. A job that asks for more GPUs than are up has no reservation and blocks no job. A "
    "job that has run longer than its estimate is expected to end at once."
)


class _Backfill(PolicyDefaults):
    """First eligible first; what may not start now is barred."""

    preempts = "never"

    def order(self, snap: Snapshot, /) -> Order:
        """Place every job of *snap*; see `Policy`."""
        jobs, queue = snap.jobs, waiting(snap)
        kind = np.full(len(jobs), -1, dtype=np.int16)
        start_s = np.full(len(jobs), np.inf)
        barred: Bool = np.zeros(len(jobs), dtype=np.bool_)
        on = held(snap)
        most = max(k.free for k in on)
        # Where nothing fits there is nothing to decide.
        if len(queue.rows) and queue.gpus.min() <= most + SLACK_GPUS:
            kind[queue.rows], after_s = self.start_on(queue, on)
            start_s[queue.rows] = snap.now_s + after_s
        barred[queue.rows] = kind[queue.rows] < 0
        # The first that does not fit delays no job before it, whenever it starts.
        late = [job for job in _places(queue)[: self.reserved] if kind[queue.rows[job]] < 0]
        barred[queue.rows[late[:1]]] = False
        return dataclasses.replace(
            one_tier(snap.memory.queued_s),
            barred=barred,
            start_s=start_s,
            gpu_type=kind if len(on) > 1 else None,
        )

    @property
    def reserved(self) -> int | None:
        """Jobs at the head of the queue that may have a reservation; None: all of them."""
        return None

    @abc.abstractmethod
    def start_on(self, queue: WaitingJobs, on: list[HeldGpus], /) -> tuple[I16, F64]:
        """Jobs of the queue that start now, and when the others are planned to.

        Returns:
            ``(q,)`` the type of GPUs on which each is to start now, -1: not now; ``(q,)`` its
            planned start, seconds from now, inf: none.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Easy(_Backfill):
    """Only the first job in the queue has a reservation; a job that does not delay it may pass."""

    name = "easy_backfill"
    source = "EASY: Lifka, JSSPP 1995; Mu'alem and Feitelson, TPDS 12(6), 2001"
    about = About(
        row="G1",
        level="W3",
        formula=(
            "first eligible first; behind the first that does not fit a job starts if it ends "
            "by the time at which that one can start, or uses only GPUs left over then"
        ),
        needs=("left_s",),
        fallback=_FALLBACK,
        idles=(
            "GPUs are kept free for the first job in the queue where another job would delay it"
        ),
    )
    interpretation = (
        _COUNTED + " No job starves while running jobs end: the first in the queue has its GPUs "
        "as soon as the running jobs have ended, and each of the others becomes the first."
    )

    def start_on(self, queue: WaitingJobs, on: list[HeldGpus], /) -> tuple[I16, F64]:
        """Only the first in the queue has a planned start."""
        starts = _Starts(queue, on)
        jobs = _places(queue)
        for job in jobs:
            if not starts.now(job):
                starts.reserve(job)
                break
        for job in jobs:
            if starts.full:
                break
            starts.now(job)
        return starts.kind, np.full(len(queue.rows), np.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conservative(_Backfill):
    """Every job has a reservation, made first eligible first, and starts when it is due.

    Attributes:
        window: Number of jobs that have reservations, the first in the queue, 1 or more; later jobs
            wait until they are among them.
    """

    name = "conservative_backfill"
    source = "Mu'alem and Feitelson, IEEE TPDS 12(6), 2001, section 2"
    about = About(
        row="G1",
        level="W3",
        formula=(
            "first eligible first each job is promised the earliest time at which its GPUs "
            "are free for as long as it runs; a job that is promised this moment starts"
        ),
        needs=("left_s",),
        fallback=_FALLBACK,
        idles="GPUs are kept free for jobs that a later one would delay, and behind the window",
    )
    interpretation = (
        _COUNTED + " All reservations are made again at each decision. With exact estimates none "
        "is ever postponed; where jobs end early, one may be. No job starves while running jobs "
        "end: only jobs eligible earlier go before it."
    )

    window: Count = 1000

    @property
    def reserved(self) -> int:
        """The window: jobs behind it have no reservation."""
        return self.window

    def start_on(self, queue: WaitingJobs, on: list[HeldGpus], /) -> tuple[I16, F64]:
        """Jobs whose reservation is now start; the others start when theirs is."""
        start_s, kind = reservations(queue, on, self.window)
        now = np.where(start_s == 0, kind, np.int16(-1)).astype(np.int16)
        return now, start_s


def reservations(queue: WaitingJobs, on: list[HeldGpus], window: int) -> tuple[F64, I16]:
    """When and on which type each job of *queue* is to start, made in their order.

    Returns:
        ``(q,)`` seconds from now, inf: nobody knows; ``(q,)`` type, -1 for those without a
        reservation: jobs that fit nowhere, and those behind the first *window* that do.
    """
    profiles = [FreeGpuProfile(k) for k in on]
    start_s = np.full(len(queue.rows), np.inf)
    kind = np.full(len(queue.rows), -1, dtype=np.int16)
    for job in _places(queue)[:window]:
        gpus = float(queue.gpus[job])
        lasts_s, slowness = queue.lasts_s[job].tolist(), queue.slowness[job].tolist()
        found = []
        for at, lasts in enumerate(lasts_s):
            if not math.isnan(lasts):
                begin_s = profiles[at].earliest_s(gpus, lasts)
                found.append(_Option(begin_s, profiles[at].at_last, slowness[at], at))
        begin_s, _, _, at = min(found, key=_best)
        profiles[at].take(gpus, begin_s, lasts_s[at])
        start_s[job], kind[job] = begin_s, at
    return start_s, kind


class _Option(NamedTuple):
    """A type of GPUs on which a job may be promised a time."""

    start_s: float
    free: float
    slowness: float
    kind: int


def _best(option: _Option) -> tuple[float, float, float, int]:
    """Smallest for the type to promise: the earliest, then the fastest; at last where most is."""
    known = option.start_s < math.inf
    return option.start_s, 0.0 if known else -option.free, option.slowness, option.kind


def _places(queue: WaitingJobs) -> list[int]:
    """Places in *queue* of the jobs that can run somewhere, in their order."""
    can: Bool = ~np.isnan(queue.lasts_s)
    return [job for job, kinds in enumerate(can.tolist()) if any(kinds)]


class _Starts:
    """Who starts now, while at most one job that cannot has a reservation."""

    def __init__(self, queue: WaitingJobs, on: list[HeldGpus]) -> None:
        self.kind: I16 = np.full(len(queue.rows), -1, dtype=np.int16)
        self._queue, self._on = queue, on
        self._gpus: list[float] = queue.gpus.tolist()
        self._lasts_s: list[list[float]] = queue.lasts_s.tolist()
        self._slowness: list[list[float]] = queue.slowness.tolist()
        self._free = [k.free for k in on]
        self._least = float(queue.gpus.min())
        self._reserved = -1
        """Type on which the reservation is; -1 while there is none."""
        self._shadow_s = self._extra = math.inf

    @property
    def full(self) -> bool:
        """Whether nobody can start any more."""
        return max(self._free) + SLACK_GPUS < self._least

    def now(self, job: int) -> bool:
        """Start *job* if it fits and keeps nobody from its reservation; whether it has started."""
        if self.kind[job] >= 0:
            return True
        gpus = self._gpus[job]
        fastest = sorted(
            (self._slowness[job][k], k)
            for k, lasts in enumerate(self._lasts_s[job])
            if gpus <= self._free[k] + SLACK_GPUS and not math.isnan(lasts)
        )
        for _, kind in fastest:
            lasts_s = self._lasts_s[job][kind]
            stays = kind == self._reserved and not (
                lasts_s <= self._shadow_s + ROUNDING_S and lasts_s < math.inf
            )
            if stays:
                if gpus > self._extra + SLACK_GPUS:
                    continue
                self._extra -= gpus
            self._free[kind] -= gpus
            self.kind[job] = kind
            return True
        return False

    def reserve(self, job: int) -> None:
        """Promise *job* the earliest time at which it can start."""
        gpus = self._gpus[job]
        options = [
            _Option(*self._when(kind, gpus), self._slowness[job][kind], kind)
            for kind, lasts_s in enumerate(self._lasts_s[job])
            if not math.isnan(lasts_s)
        ]
        self._shadow_s, free, _, self._reserved = min(options, key=_best)
        self._extra = free - gpus

    def _when(self, kind: int, gpus: float) -> tuple[float, float]:
        """When so many GPUs of a type are free, and how many are then; inf: never, and at last."""
        on = self._on[kind]
        own = self.kind == kind
        ends_s = np.append(on.ends_s, self._queue.lasts_s[own, kind])
        by_end = ends_s.argsort(kind="stable")
        ends_s = ends_s[by_end]
        freed = np.append(on.gpus, self._queue.gpus[own])[by_end].cumsum()
        last = int(ends_s.searchsorted(math.inf))
        free = self._free[kind] + np.append(0.0, freed[:last])
        first = int((free >= gpus - SLACK_GPUS).argmax())
        if free[first] < gpus - SLACK_GPUS:
            return math.inf, float(free[-1])
        # What ends at the same time, all but for rounding, is free then too.
        shadow_s = float(ends_s[first - 1])
        upto = int(ends_s[:last].searchsorted(shadow_s + ROUNDING_S, side="right"))
        return shadow_s, float(free[upto])
