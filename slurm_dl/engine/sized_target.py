"""The jobs that would hold GPUs where some may change their size, and the size of each.

The policy says which size each job should have (`Order.size`). Or each has its least one, and what
is left over goes to the jobs that gain most by it (`Resizing.expand`). Sizes are given in the order
of the jobs, and no running job changes its own for less than its restart costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from slurm_dl.engine.target import EVERYTHING, NOBODY, SLACK_GPUS, PartitionPool, Rows, to_serve
from slurm_dl.model.jobs import I32, PENDING, Bool, is_in
from slurm_dl.model.sizes import AS_ASKED, NOT_NOW, Sizes, wanted_gpus
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.arithmetic.sizing import by_gain, jobs_at


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Movable:
    """Running elastic jobs beside the rules of preemption.

    Attributes:
        giving: Rows of jobs that are pinned, and give back what is above their least size.
    """

    giving: Rows = field(default_factory=lambda: NOBODY)
    may_grow: Bool | None = None  # ``(n,)`` bool, jobs that may grow now; None: all


AS_RANKED = Movable()


def choose_sizes(
    snap: Snapshot,
    ranked: Rows,
    pinned: Rows,
    size: I32 | None,
    *,
    skips: bool,
    barred: Bool | None = None,
    pool: PartitionPool = EVERYTHING[0],
    steadiness: float = 0.0,
    movable: Movable = AS_RANKED,
) -> tuple[Rows, I32]:
    """The jobs of one pool that would hold GPUs, in the order they are served, and their sizes.

    Each has the size that is asked of it or, where that does not fit, the largest smaller one that
    does. Pinned jobs keep what they hold.

    Args:
        ranked: Managed live jobs, best first.
        pinned: Running jobs that cannot be moved; they are in whatever their rank.
        size: ``(n,)`` see `Order.size`; None: the least, and more of what is left over.
        skips: Whether jobs behind one that does not fit are served.
        barred: ``(n,)`` bool, waiting jobs that are not to start; None: nobody.
        pool: Whose GPUs are shared out.
        steadiness: See `steady`.
        movable: Pinned jobs that become smaller, and those that do not grow.

    Returns:
        ``(k,)`` rows, and ``(k,)`` indices into `Snapshot.sizes`, or `AS_ASKED`.
    """
    jobs, sizes = snap.jobs, snap.sizes
    assert sizes is not None  # noqa: S101 - callers ask first
    pinned = pinned[jobs.gpus[pinned] > 0]
    stays = pinned[~is_in(pinned, movable.giving)]
    free = _FreeGpus(snap, pool)
    for row in stays.tolist():
        free.take(row, float(jobs.gpus[row]))
    least = _least(sizes, len(jobs))
    # These keep their least sizes, whoever comes before them.
    kept = {row: int(least[row]) for row in pinned[is_in(pinned, movable.giving)].tolist()}
    for row, i in kept.items():
        free.take(row, float(sizes.gpus[i]))
    rows = to_serve(snap, ranked, stays, barred)
    wants = least if size is None else _bounded(snap, sizes, size, movable.may_grow)
    served, chosen = stays.tolist(), [AS_ASKED] * len(stays)
    for row, asked in zip(rows.tolist(), wants[rows].tolist(), strict=True):
        if row in kept:
            free.take(row, -float(sizes.gpus[kept[row]]))
        elif asked == NOT_NOW:
            continue
        got = free.largest(sizes, row, asked)
        if got == NOT_NOW and row not in kept:
            if not skips:
                break
            continue
        got = kept.pop(row, got) if got == NOT_NOW else got
        kept.pop(row, None)
        free.take(row, float(jobs.gpus[row] if got == AS_ASKED else sizes.gpus[got]))
        served.append(row)
        chosen.append(got)
    served += kept.keys()
    chosen += kept.values()
    target, found = np.array(served, dtype=np.int64), np.array(chosen, dtype=np.int32)
    if size is None:
        more = target[len(stays) :], found[len(stays) :]
        found[len(stays) :] = _grown(snap, *more, free.total, movable.may_grow)
    if steadiness > 0:
        gpus = pool.gpus(snap)
        found = steady(snap, target, found, steadiness=steadiness, all_gpus=gpus)
    return target, found


class _FreeGpus:
    """GPUs that are left: in all and, where jobs ask for types, of each."""

    def __init__(self, snap: Snapshot, pool: PartitionPool) -> None:
        self._holds, self._type = snap.jobs.gpus, snap.jobs.gpu_type
        self.total = pool.gpus(snap) + SLACK_GPUS
        kinds = len(snap.seen.gpu_types)
        typed = kinds > 1 and bool((self._type >= 0).any())
        there = snap.seen.nodes.totals(pool.usable(snap), kinds)[1:].tolist() if typed else []
        self._of_type: list[float] = [gpus + SLACK_GPUS for gpus in there]

    def take(self, row: int, gpus: float) -> None:
        """Give them to the job at *row*."""
        self.total -= gpus
        if self._of_type and self._type[row] >= 0:
            self._of_type[self._type[row]] -= gpus

    def largest(self, sizes: Sizes, row: int, asked: int) -> int:
        """The largest size of the job up to *asked* that fits; `NOT_NOW`: none."""
        typed = self._of_type and self._type[row] >= 0
        most = min(self.total, self._of_type[self._type[row]]) if typed else self.total
        if asked == AS_ASKED:
            return AS_ASKED if self._holds[row] <= most else NOT_NOW
        smaller = range(max(asked, sizes.of(row).start), sizes.of(row).start - 1, -1)
        return next((i for i in smaller if sizes.gpus[i] <= most), NOT_NOW)


def _bounded(snap: Snapshot, sizes: Sizes, size: I32, may_grow: Bool | None) -> I32:
    """*size*, in which running jobs that may not grow have no more than they hold."""
    if may_grow is None:
        return size
    jobs, bounded = snap.jobs, size.copy()
    for row in ((size >= 0) & (jobs.state != PENDING) & ~may_grow).nonzero()[0].tolist():
        smaller = [i for i in sizes.of(row) if sizes.gpus[i] <= jobs.gpus[row] and i <= size[row]]
        bounded[row] = max(smaller, default=sizes.of(row).start)
    return bounded


def _least(sizes: Sizes, n: int) -> I32:
    """``(n,)`` the least size of each job."""
    least = np.full(n, AS_ASKED, dtype=np.int32)
    least[sizes.row] = sizes.first[:-1]
    return least


def _grown(snap: Snapshot, rows: Rows, chosen: I32, free_gpus: float, may_grow: Bool | None) -> I32:
    """``(k,)`` sizes of the jobs at *rows* from *chosen* on, if they get what is left over."""
    jobs, places = jobs_at(snap, rows)
    if may_grow is not None:
        grow = may_grow[rows] | (snap.jobs.state[rows] == PENDING)
        jobs = [
            job if grows else job._replace(gpus=job.gpus[: job.held + 1])
            for job, grows in zip(jobs, grow.tolist(), strict=True)
        ]
    gpus = wanted_gpus(snap.jobs.gpus[rows], snap.sizes, chosen)
    begin = [
        job.gpus.index(least) if least in job.gpus else 0
        for job, least in zip(jobs, gpus.tolist(), strict=True)
    ]
    ends = by_gain(jobs, begin, free_gpus)
    more = [
        mine[end] if end > at else old
        for mine, at, end, old in zip(places, begin, ends, chosen.tolist(), strict=True)
    ]
    return np.array(more, dtype=np.int32)


def steady(snap: Snapshot, served: Rows, chosen: I32, *, steadiness: float, all_gpus: float) -> I32:
    """``(k,)`` *chosen*, except that no running job changes its size for too little.

    Running jobs give GPUs back only as far as others are to have them: those that wait, and those
    that grow. A job grows, as far as it may, if that saves it more than the jobs that give lose,
    and *steadiness* restarts of all of them.

    Args:
        served: ``(k,)`` rows of the jobs that are to hold GPUs.
        chosen: ``(k,)`` their sizes.
        all_gpus: GPUs of the pool.
    """
    return _Steady(snap, served, chosen, steadiness, all_gpus).sizes()


class _Offer(NamedTuple):
    """A running job that would give GPUs back."""

    at: int  # Its place in *served*
    size: int  # The size that it would have
    gpus: float  # GPUs that it frees
    costs_s: float  # Seconds that it loses, and those of its restarts


class _Steady:
    """One decision of `steady`; jobs are named by their place in *served*."""

    def __init__(
        self, snap: Snapshot, served: Rows, chosen: I32, steadiness: float, all_gpus: float
    ) -> None:
        jobs, sizes = snap.jobs, snap.sizes
        assert sizes is not None  # noqa: S101 - callers ask first
        holds = jobs.gpus[served]
        wanted = wanted_gpus(holds, sizes, chosen)
        self._sizes, self._chosen, self._now = sizes, chosen, chosen.copy()
        self._left_s = snap.left_s[served]
        restart_s = np.zeros(len(served)) if snap.setup_s is None else snap.setup_s[served]
        self._change_s = steadiness * restart_s
        self._grows, self._gives = list[int](), set[int]()
        runs = jobs.state[served] != PENDING
        self._free = all_gpus - float(holds[runs].sum()) - float(wanted[~runs].sum())
        for at in (runs & (wanted != holds)).nonzero()[0].tolist():
            row = int(served[at])
            old = sizes.held(row, float(holds[at]), int(jobs.n_nodes[row]))
            if old == AS_ASKED:
                # It holds none of its sizes: it has to change.
                self._free -= float(wanted[at] - holds[at])
                continue
            self._now[at] = old
            if wanted[at] > holds[at]:
                self._grows.append(at)
            else:
                self._gives.add(at)

    def sizes(self) -> I32:
        """``(k,)`` the sizes."""
        if self._free < -SLACK_GPUS:
            self._take(self._given(-self._free))
        for at in sorted(self._grows, key=lambda at: -self._saves_s(at, int(self._chosen[at]))):
            for size in range(int(self._chosen[at]), int(self._now[at]), -1):
                if self._grow(at, size):
                    break
        return self._now

    def _grow(self, at: int, size: int) -> bool:
        more = float(self._sizes.gpus[size] - self._sizes.gpus[self._now[at]])
        given = self._given(more - self._free)
        enough = more <= self._free + sum(one.gpus for one in given) + SLACK_GPUS
        costs_s = self._change_s[at] + sum(one.costs_s for one in given)
        if not enough or self._saves_s(at, size) <= costs_s:
            return False
        self._take(given)
        self._free -= more
        self._now[at] = size
        return True

    def _given(self, need: float) -> list[_Offer]:
        """Offers of jobs that free so many GPUs together, or all that they can."""
        given = list[_Offer]()
        while need > SLACK_GPUS and (left := self._gives.difference(one.at for one in given)):
            offers = [self._offer(at, need) for at in left]
            best = min(offers, key=lambda one: (one.costs_s / one.gpus, one.at))
            given.append(best)
            need -= best.gpus
        for one in list(given):
            # Others give enough without it.
            if need + one.gpus <= SLACK_GPUS:
                need += one.gpus
                given.remove(one)
        return given

    def _offer(self, at: int, need: float) -> _Offer:
        """Its largest smaller size that frees so many GPUs, or the least that it is to have."""
        gpus, now, least = self._sizes.gpus, int(self._now[at]), int(self._chosen[at])
        enough = (i for i in range(now - 1, least, -1) if gpus[now] - gpus[i] >= need - SLACK_GPUS)
        size = next(enough, least)
        costs_s = float(self._change_s[at]) - self._saves_s(at, size)
        return _Offer(at, size, float(gpus[now] - gpus[size]), costs_s)

    def _saves_s(self, at: int, size: int) -> float:
        """Seconds that the size saves the job, below 0 if it loses some."""
        rate = self._sizes.rate
        part = float(1 / rate[self._now[at]] - 1 / rate[size])
        # Of endless time, too, equal speeds save nothing.
        return float(self._left_s[at]) * part if part else 0.0

    def _take(self, given: Sequence[_Offer]) -> None:
        for one in given:
            self._free += one.gpus
            self._now[one.at] = one.size
            if one.size == self._chosen[one.at]:
                self._gives.discard(one.at)
