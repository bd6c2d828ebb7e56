"""Orders of the waiting jobs of `situations` under policies that are fair to accounts or in time.

As `order_oracles`: worked out from the rows alone where no GPU is free. Nothing of slurm_dl's
policies or engine is called.
"""

from __future__ import annotations

import bisect
import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
from order_oracles import CLUSTER_GPUS, PAST, Queue, attained, left_s, numbers, ran_s, spent, waits
from scipy.optimize import brentq
from situations import CPUS, GPUS, NODES, RUNNING, SPEED_ON_V100, Queued

TYPE_GPUS: Final = NODES * GPUS
LEASE_S: Final = 1200.0
SETUP_S: Final = 60.0 + 121.0
"""Save and restore of a model of which nothing is known, and the time from a requeue to a start."""


def rest_s(one: Queued) -> float:
    """Seconds left on v100, a minute at least."""
    return max(left_s(one), 60.0)


def on_types(one: Queued) -> tuple[float, float]:
    """Its speeds on v100 and k80; that on v100 is 1."""
    return 1.0, 1.0 / SPEED_ON_V100[one.model]


def least_sum(
    jobs: Sequence[Queued], machines: Sequence[tuple[int, float]]
) -> dict[int, tuple[int, float]]:
    """By job, the type and the start, with the least sum of completion times: all are tried.

    Args:
        machines: Type of each, and when it becomes free, in seconds.
    """
    found: list[tuple[float, dict[int, tuple[int, float]]]] = []
    for where in itertools.product(range(len(machines)), repeat=len(jobs)):
        total, plan = 0.0, dict[int, tuple[int, float]]()
        for m, (kind, free_s) in enumerate(machines):
            at_s = free_s
            mine = [one for one, at in zip(jobs, where, strict=True) if at == m]
            # On one machine the shortest first is best.
            for one in sorted(mine, key=rest_s):
                plan[one.job] = kind, at_s
                at_s += rest_s(one) / on_types(one)[kind]
                total += at_s
        found.append((total, plan))
    return min(found, key=lambda one: one[0])[1]


def allox(queue: Queue) -> str:
    """One account of three takes part (alpha 0.1), its sizes apart, each with its part of a type.

    First who would start now on a machine that is the size's, and is kept GPUs of that type; then
    by planned start. Other accounts may have a type of which none are kept: they need not wait.
    """
    had = dict.fromkeys((one.account for one in waits(queue)), 0.0)
    for user in had:
        had[user] = sum(p.gpus * p.ran_s for p in PAST if p.account == user)
        had[user] += sum(attained(one) for one in queue if one.account == user)
    turn = min(had, key=lambda user: had[user])
    runs = [one for number in RUNNING for one in queue if one.job == number]
    mine = [one for one in waits(queue) if one.account == turn]
    work = sum(one.gpus * rest_s(one) for one in [*runs, *mine])
    plan: dict[int, tuple[int, float]] = {}
    for size in {one.gpus for one in mine}:
        same = [one for one in [*runs, *mine] if one.gpus == size]
        part = sum(one.gpus * rest_s(one) for one in same) / work
        count = max(1, math.floor(TYPE_GPUS * part / size + 1e-9))
        machines: list[tuple[int, float]] = []
        for kind, one in enumerate(runs):
            held = [rest_s(one) / on_types(one)[kind]] * (one.gpus == size)
            machines += [(kind, at_s) for at_s in (held + [0.0] * count)[:count]]
        plan |= least_sum([one for one in mine if one.gpus == size], machines)
    kept = {kind for kind, start_s in plan.values() if not start_s}
    last = len(kept) == len(runs)

    def place(one: Queued) -> tuple[bool, float]:
        return (one.job in plan) != last, plan.get(one.job, (0, 0.0))[1]

    return numbers(sorted(waits(queue), key=place))


def filled(jobs: Sequence[Queued]) -> dict[str, float]:
    """The part of its wants that each account gets if dominant shares rise together (A19).

    Every account needs GPUs and CPUs: all stop when the first is used up. Memory is never dominant.
    """
    want: dict[str, Any] = {}
    for one in jobs:
        asks = one.gpus / CLUSTER_GPUS, one.cpus * one.nodes / (2 * NODES * CPUS)
        want[one.account] = want.get(one.account, 0) + np.array(asks)

    def parts(level: float) -> dict[str, float]:
        return {user: min(1.0, level / max(asks)) for user, asks in want.items()}

    def over(level: float) -> float:
        return float(max(sum(part * want[user] for user, part in parts(level).items()))) - 1

    return parts(1.0 if over(1.0) <= 0 else brentq(over, 0.0, 1.0, xtol=1e-15))


def hug(queue: Queue) -> str:
    """Largest part of its account's wants first; stage 2 goes on where stage 1 ends (A20)."""
    part = filled(queue)
    return numbers(sorted(waits(queue), key=lambda one: -round(part[one.account], 9)))


def done_s(one: Queued) -> float:
    """Work done: by progress, else the run time at the mean speed of the types; at rate 1."""
    if one.progress is not None:
        return rest_s(one) * one.progress / (1 - one.progress)
    return ran_s(one) * sum(on_types(one)) / 2


def contention(queue: Queue, one: Queued) -> float:
    """Mean number of jobs that there were from its submission to now, itself included."""
    since_s = one.first_submit_s
    spans = [(other.first_submit_s, 0.0) for other in queue]
    spans += [(-over.submit_s, -over.end_s) for over in PAST]
    return sum(min(a, since_s) - min(b, since_s) for a, b in spans) / since_s


def ideal_s(queue: Queue, one: Queued) -> float:
    """T_ideal: its work on 1 / N of every type."""
    part = min(1.0, CLUSTER_GPUS / contention(queue, one) / one.gpus)
    return (done_s(one) + rest_s(one)) / (sum(on_types(one)) / 2 * part)


def themis(queue: Queue) -> str:
    """The latest two of eight jobs bid (f = 0.8); then all that is left is given away by rho.

    There is room for both: each wins, harms nobody and keeps all. Each job has as much as is left
    of the fastest type with enough for it, else of the fastest with any.
    """
    rho = {one: (one.first_submit_s + rest_s(one)) / ideal_s(queue, one) for one in queue}
    room, share = [TYPE_GPUS] * 2, dict[Queued, float]()
    for one in sorted(queue, key=lambda one: -rho[one]):
        # Every model is fastest on v100, the first.
        kind = max((0, 1), key=lambda kind: (room[kind] >= one.gpus, room[kind] > 0, -kind))
        share[one] = min(1.0, room[kind] / one.gpus)
        room[kind] -= min(one.gpus, room[kind])
    return numbers(sorted(waits(queue), key=lambda one: -share[one]))


def fair_ends(jobs: Sequence[Queued], came_s: list[float], lasts_s: list[float]) -> list[float]:
    """The end of each where everything can be divided, in seconds from now as *came_s*.

    From event to event; jobs of one account have the same part of their speed.
    """
    end_s, rest_s, at_s = [math.inf] * len(jobs), list(lasts_s), min(came_s)
    while left := [i for i, end in enumerate(end_s) if end == math.inf]:
        here = [i for i in left if came_s[i] <= at_s]
        part = filled([jobs[i] for i in here])
        takes_s = {i: rest_s[i] / part[jobs[i].account] for i in here}
        step_s = min([*takes_s.values(), *(came_s[i] - at_s for i in left if i not in takes_s)])
        at_s += step_s
        for i in here:
            rest_s[i] -= part[jobs[i].account] * step_s
            end_s[i] = at_s if takes_s[i] <= step_s + 1e-6 else math.inf
    return end_s


def carbyne(queue: Queue) -> str:
    """Jobs that cannot wait for their finish under DRF first, by lateness, then due (A21).

    Jobs have to start a lease before due - left, or when all due by then need every GPU. Those that
    can wait are ordered by what is left. Of past jobs CPUs are in proportion to GPUs.
    """
    past = [p for p in PAST if p.end_s >= -max(one.first_submit_s for one in queue)]
    cpus = 2 * NODES * CPUS // CLUSTER_GPUS
    gone = [
        Queued(job=0, gpus=int(p.gpus), cpus=cpus * int(p.gpus), account=p.account, limit_s=0)
        for p in past
    ]
    ends_s = fair_ends(
        [*queue, *gone],
        [-one.first_submit_s for one in queue] + [p.submit_s for p in past],
        [ran_s(one) + left_s(one) for one in queue] + [p.ran_s for p in past],
    )
    due_s = {one.job: end_s for one, end_s in zip(queue, ends_s, strict=False)}

    def together_s(until_s: float) -> float:
        work = sum(left_s(one) * one.gpus for one in queue if due_s[one.job] <= until_s)
        return until_s - LEASE_S - work / CLUSTER_GPUS

    def place(one: Queued) -> tuple[int, int, float]:
        mine_s, left = due_s[one.job], left_s(one)
        latest_s = min(
            mine_s - LEASE_S - left, *(together_s(d) for d in due_s.values() if d >= mine_s)
        )
        if latest_s > 0:
            return 1, bisect.bisect_right((3600.0, 14400.0, 86400.0), left), left
        slack = (mine_s - left) / LEASE_S
        return 0, bisect.bisect_left((-8.0, -4.0, -2.0, -1.0, -0.01, 1.0), slack), mine_s

    return numbers(sorted(waits(queue), key=place))


def learned_gittins(queue: Queue) -> str:
    """Fewest GPU-seconds expected for one completion first, by powers of two; setup costs too.

    All jobs are of one user, and numbers of GPUs tell nothing: the logarithm of a run time lies at
    (n y + k m) / (n + k), with y the mean of the n past jobs of the name and GPUs, m that of all.
    Its factor is one of those that past jobs had, over what was known when they ended.
    """
    logs: dict[tuple[str, float], list[float]] = {}
    mean = statistics.fmean(math.log(p.ran_s) for p in PAST)
    for p in PAST:
        logs.setdefault((p.name, p.gpus), []).append(math.log(p.ran_s))
    inside, outside = 0.0, 0.0
    for size in {p.gpus for p in PAST}:
        same = [logs[label] for label in logs if label[1] == size]
        outside += squares(itertools.chain.from_iterable(same))
        inside += sum(map(squares, same))
    # The variance of the numbers of GPUs counts like four more jobs inside the labels.
    above = outside / (len(PAST) - len({p.gpus for p in PAST}))
    within = (inside + 4 * above) / (len(PAST) - len(logs) + 4)
    k = within / (above - within)

    def middle_s(known: Sequence[float]) -> float:
        return math.exp((sum(known) + k * mean) / (len(known) + k))

    factors: list[float] = []
    seen: dict[tuple[str, float], list[float]] = {}
    for p in sorted(PAST, key=lambda p: p.end_s):
        known = seen.setdefault((p.name, p.gpus), [])
        if known:
            factors.append(p.ran_s / middle_s(known))
        known.append(math.log(p.ran_s))

    def place(one: Queued) -> int:
        beyond = {
            m: logs[m.name, m.gpus] for m in queue if (m.name, m.gpus) == (one.name, one.gpus)
        }
        # Who has run longer than expected counts as if it ended now.
        more = [math.log(ran_s(m)) for m, known in beyond.items() if ran_s(m) > middle_s(known)]
        at_s = middle_s(logs[one.name, one.gpus] + more)
        age, start_s = ran_s(one) / at_s, SETUP_S if ran_s(one) else 0.0
        longer, setup = [f for f in factors if f > age], (start_s + SETUP_S) / at_s
        costs = [
            spent(longer, age, aim) + setup * len(longer) / sum(f <= aim for f in longer)
            for aim in longer
        ]
        expected_s = min(costs, default=age + setup) * at_s - SETUP_S
        return math.floor(math.log2(one.gpus * min(expected_s, one.limit_s + start_s)))

    return numbers(sorted(waits(queue), key=place))


def squares(values: Iterable[float]) -> float:
    """Sum of the squares around the mean."""
    values = list(values)
    return statistics.pvariance(values) * len(values)


FAIR: Final = {
    "allox": allox,
    "carbyne": carbyne,
    "hug": hug,
    "learned_gittins": learned_gittins,
    "themis": themis,
}
"""By policy, with its default parameters."""
