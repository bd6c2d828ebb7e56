"""The jobs that would hold GPUs where some may change their size, and the size and type of each.

The policy says which size each job should have (`Order.size`), and may say on which GPU type
(`Order.gpu_type`). Or each has its least size, and what is left over goes to the jobs that gain
most by it (`Resizing.expand`). Sizes are given in the order of the jobs, and no running job changes
its own, or its type, for less than its restart costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from slurm_dl.engine.target import EVERYTHING, NOBODY, SLACK_GPUS, PartitionPool, Rows, to_serve
from slurm_dl.model.jobs import F64, I16, I32, PENDING, Bool, is_in
from slurm_dl.model.sizes import AS_ASKED, NOT_NOW, Sizes, wanted_gpus
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.arithmetic.sizing import by_gain, jobs_at
from slurm_dl.policies.arithmetic.supply_and_demand import gpus_by_type, rates_of, type_held


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Movable:
    """Running elastic jobs beside the rules of preemption.

    Attributes:
        giving: Rows of jobs that are pinned, and give back what is above their least size.
    """

    giving: Rows = field(default_factory=lambda: NOBODY)
    may_grow: Bool | None = None  # ``(n,)`` bool, jobs that may grow now; None: all


AS_RANKED = Movable()


class Chosen(NamedTuple):
    """The jobs of a pool that would hold GPUs, in the order they are served."""

    rows: Rows  # ``(k,)``
    size: I32  # ``(k,)`` indices into `Snapshot.sizes`, or `AS_ASKED`
    kind: I16  # ``(k,)`` GPU types; -1 where the policy tells none apart


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
    kinds: I16 | None = None,
    at_least: I32 | None = None,
) -> Chosen:
    """The jobs of one pool that would hold GPUs, and their sizes.

    Each has the size that is asked of it or, where that does not fit, the largest smaller one that
    does; of the type that is asked of it or, where no size fits, of another. Pinned jobs keep what
    they hold.

    Args:
        ranked: Managed live jobs, best first.
        pinned: Running jobs that cannot be moved; they are in whatever their rank.
        size: ``(n,)`` see `Order.size`; None: the least, and more of what is left over.
        skips: Whether jobs behind one that does not fit are served.
        barred: ``(n,)`` bool, waiting jobs that are not to start; None: nobody.
        pool: Whose GPUs are shared out.
        steadiness: See `steady`.
        movable: Pinned jobs that become smaller, and those that do not grow.
        kinds: ``(n,)`` see `Order.gpu_type`; None: GPUs of all types count as one pool.
        at_least: ``(n,)`` see `Order.least`.
    """
    jobs, sizes = snap.jobs, snap.sizes
    assert sizes is not None  # noqa: S101 - callers ask first
    pinned = pinned[jobs.gpus[pinned] > 0]
    stays = pinned[~is_in(pinned, movable.giving)]
    free = _FreeGpus(snap, pool, kinds)
    for row in stays.tolist():
        free.take(row, float(jobs.gpus[row]), free.held(row))
    least = _least(sizes, len(jobs))
    # These keep their least sizes, whoever comes before them.
    kept = {row: int(least[row]) for row in pinned[is_in(pinned, movable.giving)].tolist()}
    for row, i in kept.items():
        free.take(row, float(sizes.gpus[i]), free.held(row))
    rows = to_serve(snap, ranked, stays, barred)
    wants = least if size is None else _bounded(snap, sizes, size, movable.may_grow)
    served = [(row, AS_ASKED, free.held(row)) for row in stays.tolist()]
    for row, asked in zip(rows.tolist(), wants[rows].tolist(), strict=True):
        if row in kept:
            free.take(row, -float(sizes.gpus[kept[row]]), free.held(row))
        elif asked == NOT_NOW:
            continue
        waits = at_least is not None and jobs.state[row] == PENDING
        bound = int(at_least[row]) if at_least is not None and waits else NOT_NOW
        got, on = free.largest(sizes, row, asked, bound)
        if got == NOT_NOW and row not in kept:
            if not skips:
                break
            continue
        if got == NOT_NOW:
            got, on = kept[row], free.held(row)
        kept.pop(row, None)
        free.take(row, float(jobs.gpus[row] if got == AS_ASKED else sizes.gpus[got]), on)
        served.append((row, got, on))
    served += [(row, got, free.held(row)) for row, got in kept.items()]
    row_, got_, on_ = np.array(served, dtype=np.int64).reshape(-1, 3).T
    found = Chosen(row_, got_.astype(np.int32), on_.astype(np.int16))
    if size is None:
        more = found.rows[len(stays) :], found.size[len(stays) :]
        found.size[len(stays) :] = _grown(snap, *more, free.left[-1] + SLACK_GPUS, movable.may_grow)
    return steady(snap, found, steadiness=steadiness, capacity=free.capacity, at_least=at_least)


class _FreeGpus:
    """GPUs of each type that are left and, last, which -1 names, those of any.

    Where the policy says who is to have which type, those without a type name are of any; they are
    not bounded.
    """

    def __init__(self, snap: Snapshot, pool: PartitionPool, kinds: I16 | None) -> None:
        any_: I16 = np.full(len(snap.jobs), -1, dtype=np.int16)
        self._snap = snap
        self._wants = any_ if kinds is None else kinds
        self._held = any_ if kinds is None else type_held(snap.seen, snap.on_type)
        # Where types are not told apart, jobs may ask for one of several.
        asks = kinds is None and len(snap.seen.gpu_types) > 1
        self._asks = snap.jobs.gpu_type if asks else any_
        self._rates = None if kinds is None else rates_of(snap)
        self.capacity = np.append(
            gpus_by_type(snap, pool.nodes), pool.gpus(snap) if kinds is None else np.inf
        )
        self.left: list[float] = self.capacity.tolist()

    def held(self, row: int) -> int:
        """The type that the job at *row* holds; -1: any."""
        return int(self._held[row])

    def take(self, row: int, gpus: float, kind: int) -> None:
        """Give so many of type *kind* to the job at *row*."""
        for one in {kind, int(self._asks[row])}:
            self.left[one] -= gpus

    def largest(self, sizes: Sizes, row: int, asked: int, bound: int) -> tuple[int, int]:
        """The largest size of the job up to *asked* that fits, and its type; `NOT_NOW`: none.

        On the type that is asked, else the one it holds, else others.

        Args:
            bound: See `Sizes.down_from`.
        """
        down, asks = sizes.down_from(row, asked, bound), int(self._asks[row])
        for kind in self._kinds(row, down[0]) if down else ():
            most = min(self.left[kind], self.left[asks]) + SLACK_GPUS
            for i in down:
                gpus = self._snap.jobs.gpus[row] if i == AS_ASKED else sizes.gpus[i]
                if gpus <= most and speed_on(self._snap, self._rates, row, i, kind) > 0:
                    return i, kind
        return NOT_NOW, -1

    def _kinds(self, row: int, size: int) -> Iterable[int]:
        """Types for the job at *row*, the best first."""
        if self._rates is None:
            return (-1,)
        kinds, rates = range(len(self.left) - 1), self._rates
        others = sorted(kinds, key=lambda kind: -speed_on(self._snap, rates, row, size, kind))
        first = [k for k in (int(self._wants[row]), self.held(row)) if k >= 0]
        return dict.fromkeys([*first, *others])


def speed_on(snap: Snapshot, rates: F64 | None, row: int, size: int, kind: int) -> float:
    """Speed of the job at *row* in a size on a type of GPUs; 0 where it cannot run.

    Args:
        rates: See `rates_of`; None: types are not told apart.
        kind: -1: any type, or one without a name.
    """
    sizes = snap.sizes
    there = 1.0 if rates is None or kind < 0 else float(rates[row, kind])
    if sizes is None or size == AS_ASKED or not there > 0:
        return there
    return float(
        sizes.rate[size] if sizes.on_type is None or kind < 0 else sizes.on_type[size, kind]
    )


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


def steady(
    snap: Snapshot,
    wanted: Chosen,
    *,
    steadiness: float,
    capacity: F64,
    at_least: I32 | None = None,
) -> Chosen:
    """*wanted*, except that no running job changes its size or its type for too little.

    Running jobs give GPUs back only as far as others are to have them: those that wait, and those
    that grow or move. A job grows, as far as it may, or goes to another type if that saves it more
    than the jobs that give lose, and *steadiness* restarts of all of them.

    Args:
        capacity: ``(t + 1,)`` GPUs of each type, and of any, the kind -1.
        at_least: ``(n,)`` see `Order.least`; to these sizes jobs change whatever that costs.
    """
    if not steadiness > 0:
        return wanted
    needs = np.full(len(snap.jobs), AS_ASKED) if at_least is None else at_least
    return _Steady(snap, wanted, steadiness, capacity, needs).chosen()


class _Offer(NamedTuple):
    """A running job that would give GPUs back."""

    at: int  # Its place in *wanted*
    size: int  # The size that it would have
    kind: int  # The type that it would have
    gpus: float  # GPUs that it frees of the type it holds
    costs_s: float  # Seconds that it loses, and those of its restarts


class _Steady:
    """One decision of `steady`; jobs are named by their place in *wanted*."""

    def __init__(
        self, snap: Snapshot, wanted: Chosen, steadiness: float, capacity: F64, needs: I32
    ) -> None:
        jobs, sizes, rows = snap.jobs, snap.sizes, wanted.rows
        assert sizes is not None  # noqa: S101 - callers ask first
        self._snap, self._sizes, self._rows, self._wanted = snap, sizes, rows, wanted
        self._holds = jobs.gpus[rows]
        self._to, runs = wanted.kind, jobs.state[rows] != PENDING
        by_type = bool((self._to >= 0).any())
        self._rates = rates_of(snap) if by_type else None
        held = type_held(snap.seen, snap.on_type)[rows] if by_type else self._to
        self._on = np.where(runs, held, self._to)
        self._now = wanted.size.copy()
        self._left_s = snap.left_s[rows]
        restart_s = np.zeros(len(rows)) if snap.setup_s is None else snap.setup_s[rows]
        self._change_s = steadiness * restart_s
        self._grows, self._gives = list[int](), set[int]()
        gpus = wanted_gpus(self._holds, sizes, wanted.size)
        self._free = capacity.copy()
        np.subtract.at(self._free, self._on, np.where(runs, self._holds, gpus))
        changes = runs & ((gpus != self._holds) | (self._on != self._to))
        for at in changes.nonzero()[0].tolist():
            row = int(rows[at])
            old = sizes.held(row, float(self._holds[at]), int(jobs.n_nodes[row]))
            has_none = old == AS_ASKED and wanted.size[at] != AS_ASKED
            if has_none or old < needs[row] <= wanted.size[at]:
                # It has to change.
                self._free[self._on[at]] += self._holds[at]
                self._free[self._to[at]] -= gpus[at]
                self._on[at] = self._to[at]
                continue
            self._now[at] = old
            if gpus[at] > self._holds[at] or self._on[at] != self._to[at]:
                self._grows.append(at)
            if gpus[at] < self._holds[at] or self._on[at] != self._to[at]:
                self._gives.add(at)

    def chosen(self) -> Chosen:
        """The sizes, and the types."""
        # As -1 is the last.
        kinds = range(-1, len(self._free) - 1)
        while self._free[short := min(kinds, key=self._free.__getitem__)] < -SLACK_GPUS:
            given = self._given(-float(self._free[short]), short)
            if not given:
                break
            self._take(given)
        for at in sorted(
            self._grows, key=lambda at: -self._saves_s(at, self._end(at), int(self._to[at]))
        ):
            for size in range(self._end(at), self._least_growth(at), -1):
                if self._grow(at, size):
                    break
        return Chosen(self._rows, self._now, self._on)

    def _end(self, at: int) -> int:
        return int(self._wanted.size[at])

    def _least_growth(self, at: int) -> int:
        """The size that is too small, or the one before the only one on another type."""
        return int(self._now[at]) if self._on[at] == self._to[at] else self._end(at) - 1

    def _gpus(self, at: int, size: int) -> float:
        return float(self._holds[at] if size == AS_ASKED else self._sizes.gpus[size])

    def _grow(self, at: int, size: int) -> bool:
        to, now = int(self._to[at]), int(self._now[at])
        stays = self._on[at] == to
        more = self._gpus(at, size) - (self._gpus(at, now) if stays else 0.0)
        # What it leaves is there for those that give.
        room = self._free.copy()
        room[self._on[at]] += 0.0 if stays else self._gpus(at, now)
        given = self._given(more - self._free[to], to, room)
        enough = more <= self._free[to] + sum(one.gpus for one in given) + SLACK_GPUS
        costs_s = self._change_s[at] + sum(one.costs_s for one in given)
        if not enough or self._saves_s(at, size, to) <= costs_s:
            return False
        self._move(at, size, to)
        self._take(given)
        return True

    def _given(self, need: float, kind: int, room: F64 | None = None) -> list[_Offer]:
        """Offers of jobs that free so many GPUs of a type together, or all that they can.

        Args:
            room: ``(t,)`` GPUs for those that go to another type; None: as many as they need.
        """
        given = list[_Offer]()
        there = {at for at in self._gives if self._on[at] == kind}
        while need > SLACK_GPUS and (left := there.difference(one.at for one in given)):
            offers = [self._offer(at, need) for at in left]
            if room is not None:
                offers = [one for one in offers if self._takes(one) <= room[one.kind] + SLACK_GPUS]
            if not offers:
                break
            best = min(offers, key=lambda one: (one.costs_s / one.gpus, one.at))
            given.append(best)
            need -= best.gpus
            if room is not None:
                room[best.kind] -= self._takes(best)
        for one in list(given):
            # Others give enough without it.
            if need + one.gpus <= SLACK_GPUS:
                need += one.gpus
                given.remove(one)
        return given

    def _takes(self, one: _Offer) -> float:
        """GPUs that the job needs of the type to which it goes; 0 if it stays on its type."""
        return 0.0 if one.kind == self._on[one.at] else self._gpus(one.at, one.size)

    def _offer(self, at: int, need: float) -> _Offer:
        """Its largest smaller size that frees so many GPUs, or what it is to have."""
        now, least, kind = int(self._now[at]), self._end(at), int(self._to[at])
        size, frees = least, self._gpus(at, now)
        if kind == self._on[at]:
            gpus = self._sizes.gpus
            enough = (
                i for i in range(now - 1, least, -1) if gpus[now] - gpus[i] >= need - SLACK_GPUS
            )
            size = next(enough, least)
            frees -= self._gpus(at, size)
        costs_s = float(self._change_s[at]) - self._saves_s(at, size, kind)
        return _Offer(at, size, kind, frees, costs_s)

    def _speed(self, at: int, size: int, kind: int) -> float:
        return speed_on(self._snap, self._rates, int(self._rows[at]), size, kind)

    def _saves_s(self, at: int, size: int, kind: int) -> float:
        """Seconds that size and type save the job, below 0 if it loses some."""
        now = self._speed(at, int(self._now[at]), int(self._on[at]))
        then = self._speed(at, size, kind)
        if not now or not then:
            return -np.inf if now else np.inf  # It cannot stay as it is, or as it would be.
        part = 1 / now - 1 / then
        # Of endless time, too, equal speeds save nothing.
        return float(self._left_s[at]) * part if part else 0.0

    def _move(self, at: int, size: int, kind: int) -> None:
        self._free[self._on[at]] += self._gpus(at, int(self._now[at]))
        self._free[kind] -= self._gpus(at, size)
        self._now[at], self._on[at] = size, kind
        if size == self._end(at) and kind == self._to[at]:
            self._gives.discard(at)

    def _take(self, given: Sequence[_Offer]) -> None:
        for one in given:
            self._move(one.at, one.size, one.kind)
            if one.kind == self._to[one.at] and one.at in self._grows:
                self._grows.remove(one.at)
