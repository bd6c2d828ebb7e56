"""Orders of the waiting jobs of `situations` by shares of time, from their rows.

An optimum of a linear program need not be the only one. So an oracle here tells pairs: the first
job of each goes before the second in *every* optimum. Jobs that are owed as much go by submission,
jobs that are alike too. Nothing of slurm_dl's policies or engine is called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from order_oracles import CLUSTER_GPUS, PAST, Queue, attained, left_s
from scipy.optimize import linprog
from situations import GPUS, NODES, RUNNING, SPEED_ON_V100, Queued

Pairs = set[tuple[int, int]]
Rows = list[np.ndarray[Any, Any]]

EQUAL: Final = 1e-5
"""Shares this close are one: programs are solved to 1e-7, and sums of them are further off."""
ROOM: Final = 1e-8
"""Tolerance of an optimum: its bounds are computed themselves."""


class Program:
    """Shares ``X[m, j]`` of jobs by number on v100 and k80 (Gavel, OSDI 2020, section 3.1).

    Args:
        alike: Of each job; jobs with equal ones get equal shares.
    """

    def __init__(self, queue: Queue, alike: Callable[[Any], object]) -> None:
        self.jobs = sorted(queue, key=lambda one: one.job)
        self.gpus = np.array([float(one.gpus) for one in self.jobs])
        self.rates = np.array([[1.0, 1.0 / SPEED_ON_V100[one.model]] for one in self.jobs])
        self.left = np.array([max(left_s(one), 60.0) for one in self.jobs])
        self.n = len(self.jobs)
        self.alike = [alike(one) for one in self.jobs]
        self.below: Rows = [self.of(m, (1.0, 1.0)) for m in range(self.n)]
        self.bound = [1.0] * self.n
        for kind in np.eye(2):
            used = [self.of(m, self.gpus[m] * kind) for m in range(self.n)]
            self.below.append(np.sum(used, axis=0))
            self.bound.append(float(NODES * GPUS))
        self.equal: Rows = []
        for m, like in enumerate(self.alike):
            first = self.alike.index(like)
            self.equal += [self.of(m, e) - self.of(first, e) for e in np.eye(2) if first < m]

    def of(self, m: int, row: Sequence[float] | np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The row ``row . X[m]``; its last entry is that of one more variable."""
        found = np.zeros(2 * self.n + 1)
        found[2 * m : 2 * m + 2] = row
        return found

    def at_least(self, row: np.ndarray[Any, Any], value: float) -> None:
        """Ask for it from now on."""
        self.below.append(-row)
        self.bound.append(-value)

    def least(self, cost: np.ndarray[Any, Any], more: Rows | None = None) -> float | None:
        """The least value of *cost*; None if nothing fulfils all. *more*: rows below 0."""
        more = more or []
        found = linprog(
            cost,
            A_ub=np.array(self.below + more),
            b_ub=np.array(self.bound + [0.0] * len(more)),
            A_eq=np.array(self.equal) if self.equal else None,
            b_eq=np.zeros(len(self.equal)) if self.equal else None,
        )
        assert found.status in {0, 2}, found.message
        return None if found.status else float(found.fun)

    def largest_sum(self, value: np.ndarray[Any, Any]) -> bool:
        """Keep to the largest sum of ``value x X``; False if nothing fulfils all."""
        row = np.append(value.ravel(), 0.0)
        least = self.least(-row)
        if least is not None:
            self.at_least(row, -least - ROOM)
        return least is not None

    def raise_levels(self, gain: np.ndarray[Any, Any]) -> None:
        """Keep to the largest least ``gain[m] . X[m]``, then to the next, and so on."""
        gains = [self.of(m, gain[m]) for m in range(self.n)]
        level = np.eye(2 * self.n + 1)[-1]
        rises = set(range(self.n))
        while rises:
            best = -self._must(-level, [level - gains[m] for m in rises])
            for m in rises:
                self.at_least(gains[m], best - ROOM)
            # Who can get more in some optimum goes on to rise.
            stuck = {m for m in rises if -self._must(-gains[m]) < best * (1 + EQUAL)}
            assert stuck
            rises -= stuck

    def _must(self, cost: np.ndarray[Any, Any], more: Rows | None = None) -> float:
        found = self.least(cost, more)
        assert found is not None
        return found

    def pairs(self) -> Pairs:
        """Waiting jobs of which the first is owed more on its best type in every optimum."""
        found = Pairs()
        waits = [m for m, one in enumerate(self.jobs) if one.job not in RUNNING]
        level = np.eye(2 * self.n + 1)[-1]
        lead = {
            # The least of: largest share of a - share of b, over the types of b.
            (a, b): min(
                self._must(level - self.of(b, e), [self.of(a, f) - level for f in np.eye(2)])
                for e in np.eye(2)
            )
            for a in waits
            for b in waits
            if a != b and self.alike[a] != self.alike[b]
        }
        for a in waits:
            for b in waits:
                alike = a < b and self.alike[a] == self.alike[b]
                ahead, behind = lead.get((a, b), -1.0), lead.get((b, a), -1.0)
                # Never behind, and first submitted: owed more or as much.
                if alike or ahead > EQUAL or (a < b and ahead > -EQUAL and behind > -EQUAL):
                    found.add((self.jobs[a].job, self.jobs[b].job))
        return found


def max_min(queue: Queue, *, aware: bool) -> Pairs:
    """Max min GPUs x thr(X) / thr(X proportional), then the next least (section 4.1)."""
    program = Program(queue, lambda one: (one.gpus, aware and one.model))
    rates = program.rates if aware else np.ones((program.n, 2))
    gain = rates / rates.mean(axis=1)[:, None]
    program.raise_levels(gain * program.gpus[:, None])
    return program.pairs()


def makespan(queue: Queue) -> Pairs:
    """Max min thr(X) / left, then the next least (section 4.2)."""
    program = Program(queue, lambda one: (one.gpus, one.model, left_s(one)))
    program.raise_levels(program.rates * (program.left.mean() / program.left)[:, None])
    return program.pairs()


def largest_sum(queue: Queue) -> Pairs:
    """Max sum of thr(X); without prices also the cost's (section 4.2)."""
    program = Program(queue, lambda one: (one.gpus, one.model))
    program.largest_sum(program.rates)
    return program.pairs()


def largest_sum_in_time(queue: Queue) -> Pairs:
    """The same with thr(X) >= left / (due - now); without, if that cannot be had by all."""
    floor = {
        one.job: max(left_s(one), 60.0) / one.due_s
        for one in queue
        if one.due_s is not None and max(left_s(one), 60.0) <= one.due_s
    }
    program = Program(queue, lambda one: (one.gpus, one.model, floor.get(one.job)))
    for m, one in enumerate(program.jobs):
        if one.job in floor:
            program.at_least(program.of(m, program.rates[m]), floor[one.job])
    if not program.largest_sum(program.rates):
        return largest_sum(queue)
    return program.pairs()


def by_share(queue: Queue, share: Mapping[int, float]) -> Pairs:
    """All pairs of waiting jobs by their largest *share* on a type."""
    waits = [one.job for one in queue if one.job not in RUNNING]
    order = sorted(waits, key=lambda job: (-round(share[job], 9), job))
    return {(a, b) for i, a in enumerate(order) for b in order[i + 1 :]}


def isolated(queue: Queue) -> Pairs:
    """GPUs of the type / (jobs x GPUs of the job), at most half of the time on each of two."""
    part = CLUSTER_GPUS / 2 / len(queue)
    return by_share(queue, {one.job: min(part / one.gpus, 0.5) for one in queue})


def gandiva_fair(queue: Queue) -> Pairs:
    """GPUs by tickets, half of each type; then fast ones are sold at the second price (A4)."""
    who = sorted({one.account for one in queue})
    mine = {u: [one for one in queue if one.account == u] for u in who}
    wants = {u: float(sum(one.gpus for one in mine[u])) for u in who}
    has, room = dict[str, float](), float(CLUSTER_GPUS)
    for i, u in enumerate(sorted(who, key=lambda u: wants[u])):
        has[u] = min(wants[u], room / (len(who) - i))
        room -= has[u]
    fast, slow = ({u: has[u] / 2 for u in who} for _ in range(2))
    gain = {u: wants[u] / sum(one.gpus / SPEED_ON_V100[one.model] for one in mine[u]) for u in who}
    traders = set(who)
    while True:
        bids = sorted((gain[u], u) for u in traders if slow[u] > 1e-9)
        asks = sorted((gain[u], u) for u in traders if fast[u] > 1e-9)
        if not bids or not asks or bids[-1][0] <= asks[0][0]:
            break
        buyer, (worth, seller) = bids[-1][1], asks[0]
        price = max([worth, *(bid for bid, _ in bids[:-1])])
        sold = min(slow[buyer] / price, fast[seller])
        # The seller gets more GPUs than it gives, as far as it has work for them.
        lacks = wants[seller] - fast[seller] - slow[seller]
        if price > 1 and sold * (price - 1) >= lacks - 1e-9:
            sold = min(sold, max(lacks, 0.0) / (price - 1))
            traders.discard(seller)
        fast[buyer] += sold
        fast[seller] -= sold
        slow[buyer] -= sold * price
        slow[seller] += sold * price
    best = {u: max(fast[u], slow[u]) / wants[u] for u in who}
    return by_share(queue, {one.job: min(best[one.account], 1.0) for one in queue})


def astraea_ltgf(queue: Queue) -> Pairs:
    """The account of least GPU time for its quota next, after those with none of it now (A13).

    All of the past lies in the window. All waiting jobs have starved, so in an account they go by
    submission, and before its running job, of which it has one at most.
    """
    who = sorted({one.account for one in queue})
    quota, lease_s = CLUSTER_GPUS / len(who), 1800.0
    runs = [one.account for one in queue if one.job in RUNNING]
    assert len(set(runs)) == len(runs)
    assert all(one.waits_s >= 4 * 3600 for one in queue if one.job not in RUNNING)
    mine = {
        u: sorted(
            (one for one in queue if one.account == u), key=lambda o: (o.job in RUNNING, o.job)
        )
        for u in who
    }
    had = {
        u: sum(p.gpus * p.ran_s for p in PAST if p.account == u) + sum(map(attained, mine[u]))
        for u in who
    }
    given, order = dict.fromkeys(who, 0.0), list[int]()
    # First as long as GPUs are free, all being handed out anew; then the rest.
    for there in (float(CLUSTER_GPUS), float("inf")):
        room = there
        skipped: dict[str, list[Queued]] = {u: [] for u in who}
        while any(mine.values()):

            def turn(u: str) -> tuple[bool, float, float, str]:
                short = given[u] / quota < 0.2
                return not short, given[u] * short, had[u] + given[u] * lease_s, u

            u = min((u for u in who if mine[u]), key=turn)
            one = mine[u].pop(0)
            if one.gpus > room:
                skipped[u].append(one)
                continue
            room -= one.gpus
            given[u] += one.gpus
            order.append(one.job)
        mine = skipped
    return by_share(queue, {job: -float(place) for place, job in enumerate(order)})


PAIRS: Final[Mapping[str, Callable[[Queue], Pairs]]] = {
    "astraea_ltgf": astraea_ltgf,
    "gandiva_fair": gandiva_fair,
    "gavel_cost": largest_sum,
    "gavel_cost_slo": largest_sum_in_time,
    "gavel_isolated": isolated,
    "gavel_makespan": makespan,
    "gavel_max_min": lambda queue: max_min(queue, aware=True),
    "gavel_max_min_agnostic": lambda queue: max_min(queue, aware=False),
    "gavel_sum": largest_sum,
}
"""By policy, pairs of waiting jobs whose order no other optimum could turn round."""
