"""Orders of the waiting jobs of `situations` by shares of time, from their rows.

An optimum of a linear program need not be the only one. So an oracle here tells pairs: the first
job of each goes before the second in *every* optimum. Jobs that are owed as much go by submission,
jobs that are alike too. Nothing of slurm_dl's policies or engine is called.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from fair_order_oracles import done_s, ideal_s, on_types, rest_s
from order_oracles import CLUSTER_GPUS, PAST, Queue, attained, left_s
from scipy.optimize import LinearConstraint, brentq, linprog, minimize
from situations import GPUS, NODES, RUNNING, SPEED_ON_V100, Queued

Pairs = set[tuple[int, int]]
Row = np.ndarray[Any, Any]
Rows = list[Row]

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

    def of(self, m: int, row: Sequence[float] | Row) -> Row:
        """The row ``row . X[m]``; its last entry is that of one more variable."""
        found = np.zeros(2 * self.n + 1)
        found[2 * m : 2 * m + 2] = row
        return found

    def at_least(self, row: Row, value: float) -> None:
        """Ask for it from now on."""
        self.below.append(-row)
        self.bound.append(-value)

    def least(self, cost: Row, more: Rows, most: Sequence[float] = ()) -> float | None:
        """The least value of *cost*; None if nothing fulfils all. *more*: rows up to *most*, 0."""
        found = linprog(
            cost,
            A_ub=np.array(self.below + more),
            b_ub=np.array(self.bound + list(most or [0.0] * len(more))),
            A_eq=np.array(self.equal) if self.equal else None,
            b_eq=np.zeros(len(self.equal)) if self.equal else None,
        )
        assert found.status in {0, 2}, found.message
        return None if found.status else float(found.fun)

    def largest_sum(self, value: Row) -> bool:
        """Keep to the largest sum of ``value x X``; False if nothing fulfils all."""
        row = np.append(value.ravel(), 0.0)
        least = self.least(-row, [])
        if least is not None:
            self.at_least(row, -least - ROOM)
        return least is not None

    def raise_levels(self, gain: Row, *, account: bool = False) -> None:
        """Keep to the largest least ``gain[m] . X[m]``, then to the next, and so on.

        With *account* levels rise by a job's part of those of its account that still rise.
        """
        gains = [self.of(m, gain[m]) for m in range(self.n)]
        level, floor = np.eye(2 * self.n + 1)[-1], [0.0] * self.n
        rises = set(range(self.n))
        while rises:
            of = [self.jobs[m].account if account else m for m in range(self.n)]
            many = Counter(of[m] for m in rises)
            rows = {m: level / many[of[m]] - gains[m] for m in rises}
            best = -self.must(-level, list(rows.values()), [ROOM - floor[m] for m in rows])
            for m in rises:
                floor[m] += best / many[of[m]]
                self.at_least(gains[m], floor[m] - ROOM)
            # Who can get more in some optimum goes on to rise.
            stuck = {m for m in rises if -self.must(-gains[m], []) < floor[m] * (1 + EQUAL)}
            assert stuck
            rises -= stuck

    def must(self, cost: Row, more: Rows, most: Sequence[float] = ()) -> float:
        """The least value of *cost*, of which there is one."""
        found = self.least(cost, more, most)
        assert found is not None
        return found

    def pairs(self, kept: Row | None = None) -> Pairs:
        """Waiting jobs; *kept* x the first one's best share is more in every optimum."""
        kept = np.ones(self.n) if kept is None else kept
        found = Pairs()
        waits = [m for m, one in enumerate(self.jobs) if one.job not in RUNNING]
        level = np.eye(2 * self.n + 1)[-1]
        lead = {
            # The least of: largest share of a - share of b, over the types of b.
            (a, b): min(
                self.must(
                    level - self.of(b, e), [self.of(a, f) - level for f in kept[a] * np.eye(2)]
                )
                for e in kept[b] * np.eye(2)
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


def max_min(queue: Queue, *, aware: bool = True, account: bool = False) -> Pairs:
    """Max min GPUs x thr(X) / thr(X proportional), then the next (4.1); by *account*: 4.3."""
    program = Program(queue, lambda one: (one.gpus, aware and one.model, account and one.account))
    rates = program.rates if aware else np.ones((program.n, 2))
    gain = rates / rates.mean(axis=1)[:, None]
    program.raise_levels(gain * program.gpus[:, None], account=account)
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


def least_worst(queue: Queue, whole_s: Callable[[Queue, Queued], float]) -> Pairs:
    """Min max (age + left / thr(X)) / T, then the largest sum of thr(X) over what each needs.

    *whole_s*: T, the time that the work of a job takes alone.
    """
    program = Program(queue, lambda one: one.job)
    age = np.array([one.first_submit_s for one in program.jobs])
    whole = np.array([whole_s(queue, one) for one in program.jobs])
    level = np.eye(2 * program.n + 1)[-1]

    def gains(ratio: float) -> Rows:
        """Rows that come to 1 where a job has the throughput for that ratio."""
        need = program.left / (ratio * whole - age)
        return [program.of(m, program.rates[m] / need[m]) for m in range(program.n)]

    low, high = (float(((age + k * program.left) / whole).max()) for k in (1e-3, 1e3))
    least = brentq(
        lambda ratio: 1 + program.must(-level, [level - gain for gain in gains(ratio)]),
        low, high, xtol=1e-12 * high, rtol=1e-14,
    )  # fmt: skip
    for gain in gains(least):
        program.at_least(gain, 1 - ROOM)
    assert program.largest_sum(np.sum(gains(least), axis=0)[:-1])
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


def fairest(queue: Queue) -> Row:
    """``(n,)`` thr(X) of each where the product of all is largest."""
    program = Program(queue, lambda one: one.job)
    rates, bound = program.rates, np.array(program.bound)

    def speed(x: Row) -> Row:
        return np.asarray((rates * x.reshape(rates.shape)).sum(axis=1))

    found = minimize(
        lambda x: -np.log(speed(x)).sum(),
        np.full(rates.size, 0.5 / program.n),
        jac=lambda x: -(rates / speed(x)[:, None]).ravel(),
        method="SLSQP",
        bounds=[(1e-12, 1.0)] * rates.size,
        constraints=LinearConstraint(np.array(program.below)[:, :-1] / bound[:, None], ub=1.0),
        options={"ftol": 1e-12, "maxiter": 1000},
    )
    best = speed(found.x)
    # The slope at the optimum: in no other shares is the sum of it more than one for each job.
    slope = np.append((rates / best[:, None]).ravel(), 0.0)
    assert -program.must(-slope, []) < program.n * (1 + 1e-5)
    return best


UNSURE: Final = 1e-5
"""Relative error of `fairest`, which differs with the processor and its load."""


def strategy_proof(queue: Queue) -> Pairs:
    """Largest product of thr(X); a job keeps prod of the others' over what it is without it."""
    program = Program(queue, lambda one: (one.gpus, one.model))
    logs = np.log(fairest(program.jobs))
    for m in range(program.n):
        program.at_least(program.of(m, program.rates[m] / np.exp(logs[m])), 1 - UNSURE)
    rest = [[*program.jobs[:m], *program.jobs[m + 1 :]] for m in range(program.n)]
    lost = [np.delete(logs, m) - np.log(fairest(some)) for m, some in enumerate(rest)]
    return program.pairs(kept=np.exp([some.sum() for some in lost]))


def alone_s(queue: Queue, one: Queued) -> float:
    """All its work on the n-th part of every type, at most all of the time (section 4.2)."""
    part = min(NODES * GPUS / len(queue) / one.gpus, 0.5)
    return (done_s(one) + rest_s(one)) / (part * sum(on_types(one)))


PAIRS: Final[Mapping[str, Callable[[Queue], Pairs]]] = {
    "astraea_ltgf": astraea_ltgf,
    "gandiva_fair": gandiva_fair,
    "gavel_cost": largest_sum,
    "gavel_cost_slo": largest_sum_in_time,
    "gavel_finish_time": lambda queue: least_worst(queue, alone_s),
    "gavel_gandiva": isolated,  # No pairs on Slurm
    "gavel_hierarchical": lambda queue: max_min(queue, account=True),
    "gavel_isolated": isolated,
    "gavel_makespan": makespan,
    "gavel_max_min": max_min,
    "gavel_max_min_agnostic": lambda queue: max_min(queue, aware=False),
    "gavel_strategy_proof": strategy_proof,
    "gavel_sum": largest_sum,
    "themis_convex": lambda queue: least_worst(queue, ideal_s),
}
"""By policy, pairs of waiting jobs whose order no other optimum could turn round."""
