"""The order of the waiting jobs of `situations`, worked out a second time from their rows alone.

Nothing of slurm_dl's policies or engine is called. It holds where no GPU is free (``full_*``): then
a policy's order of the waiting jobs is what is served.
"""

from __future__ import annotations

import bisect
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from situations import GPUS, NODES, RUNNING, Queued, overs

Queue = Sequence[Queued]
Oracle = Callable[[Queue], str]

STARTED_S: Final = 5.0
"""Seconds since the two running jobs started."""
CLUSTER_GPUS: Final = 2 * NODES * GPUS
THRESHOLDS: Final = (3250.0, 7200.0, 18000.0)
"""Tiresias' queues, GPU-seconds (systems.md A1)."""
PAST: Final = overs(0.0)
"""Its times are relative to now."""


def waits(queue: Queue) -> list[Queued]:
    """The waiting jobs by submission."""
    return sorted((one for one in queue if one.job not in RUNNING), key=lambda one: one.job)


def numbers(jobs: Iterable[Queued]) -> str:
    """The order as `situations.ROWS` writes it."""
    return "".join(str(one.job) for one in jobs)


def by(key: Callable[[Queued], Any]) -> Oracle:
    """Smallest key first; equal ones by submission."""
    return lambda queue: numbers(sorted(waits(queue), key=key))


def ran_s(one: Queued) -> float:
    """Seconds over all runs."""
    return one.had_s + (STARTED_S if one.job in RUNNING else 0.0)


def attained(one: Queued) -> float:
    """GPU-seconds over all runs."""
    return ran_s(one) * one.gpus


def tag_s(one: Queued) -> float:
    """Median run time of the past jobs of the same name and GPUs; all are of one user."""
    return statistics.median(p.ran_s for p in PAST if (p.name, p.gpus) == (one.name, one.gpus))


def left(one: Queued) -> tuple[float, bool]:
    """Seconds left, and if more than the time limit tells it (estimates.remaining_time)."""
    ran, past = ran_s(one), tag_s(one)
    if one.progress is not None and ran >= 120:
        return ran * (1 - one.progress) / one.progress, True
    if ran < past <= one.limit_s:
        return past - ran, True
    return max(one.limit_s - ran, 0.0), False


def left_s(one: Queued) -> float:
    """Seconds left."""
    return left(one)[0]


def predicted_s(one: Queued) -> float:
    """Seconds left; what the time limit tells is less worth than the mean of the user (A17)."""
    seconds, is_known = left(one)
    mean_s = statistics.mean(p.ran_s for p in PAST) - ran_s(one)
    return seconds if is_known or mean_s <= 0 else min(mean_s, seconds)


def queue_of(service: float) -> int:
    """Tiresias' queue: who is at a threshold has left the one before."""
    return bisect.bisect_right(THRESHOLDS, service)


def still_needs(one: Queued) -> float:
    """E-LAS' GPU-seconds: s (1 - p) / p with progress p (systems.md A2)."""
    factor = 1.0 if one.progress is None else (1 - one.progress) / one.progress
    return attained(one) * factor


def cost_of_one(age: float, until: float = math.inf) -> float:
    """Least expected service for one completion, 1 / G(age), over all aims up to *until*.

    By trying every size of the past as the aim D: E[min(S, D) - a | S > a] / P(S <= D | S > a).
    """
    sizes = [p.gpus * p.ran_s for p in PAST]
    above = [s for s in sizes if s > age]
    return min((spent(above, age, s) for s in above if s <= until), default=math.inf)


def spent(above: Sequence[float], age: float, aim: float) -> float:
    """Expected service up to *aim* for each job of sizes *above* that is done by then."""
    done = sum(s <= aim for s in above)
    return sum(min(s, aim) - age for s in above) / done if done else math.inf


def cost_in_queue(one: Queued) -> float:
    """1 / G where D is the rest of the queue, without end in the last (discrete_gittins)."""
    age = attained(one)
    above = [s for s in (p.gpus * p.ran_s for p in PAST) if s > age]
    return spent(above, age, (*THRESHOLDS, math.inf)[queue_of(age)])


def grouper(queue: Queue) -> str:
    """Jobs of one name are a stage; least of max(longest left, GPU-seconds / GPUs) first (F2)."""
    stages: dict[str, list[Queued]] = {}
    for one in queue:
        stages.setdefault(one.name, []).append(one)

    def place(one: Queued) -> tuple[float, int, float]:
        stage = stages[one.name]
        work = sum(left_s(m) * m.gpus for m in stage) / CLUSTER_GPUS
        size = max(work, *(left_s(m) for m in stage))
        return size, min(m.job for m in stage), -round(ran_s(one) + left_s(one), 3)

    return by(place)(queue)


def mlfs(queue: Queue) -> str:
    """Largest sum of parts of the largest: 1 / iteration, 1 / to due, 1 / left, waited (A16)."""

    def done(one: Queued) -> float:
        return one.progress if one.progress is not None else ran_s(one) / (ran_s(one) + left_s(one))

    terms: tuple[tuple[float, Callable[[Queued], float]], ...] = (
        (0.3, lambda one: 1 / (1 + min(math.floor(round(100 * done(one), 9)), 99))),
        (0.7 * 0.3, lambda one: 0.0 if one.due_s is None else 1 / max(one.due_s, 60)),
        (0.7 * 0.3, lambda one: 1 / max(left_s(one), 60)),
        (0.7 * 0.35, lambda one: 0.0 if one.job in RUNNING else one.waits_s),
    )
    tops = [max(map(term, queue)) or 1.0 for _, term in terms]
    return by(lambda one: -sum(w * t(one) / top for (w, t), top in zip(terms, tops, strict=True)))(
        queue
    )


def karuna(queue: Queue) -> str:
    """Deadlines last until their latest start, then first; others in queues by service (A22).

    The latest start is 300 s before due - left, or when all due by then need every GPU. Who is late
    for sure, by more than the time limit, has no deadline.
    """
    jobs = {one.job: one for one in queue}
    due = {
        one.job: float(one.due_s)
        for one in queue
        if one.due_s and (one.due_s > left_s(one) or not left(one)[1])
    }

    def together_s(until_s: float) -> float:
        work = sum(left_s(jobs[m]) * jobs[m].gpus for m, at_s in due.items() if at_s <= until_s)
        return until_s - work / CLUSTER_GPUS

    def place(one: Queued) -> tuple[int, float]:
        if one.job not in due:
            return queue_of(attained(one)), one.job
        mine_s = due[one.job]
        latest_s = min(mine_s - left_s(one), *(together_s(d) for d in due.values() if d >= mine_s))
        return (-1 if latest_s <= 300 else len(THRESHOLDS) + 1), mine_s

    return by(place)(queue)


def drf(queue: Queue) -> str:
    """Again and again the next job of the account of the least dominant share (A19).

    Memory is never dominant: each job asks for a thousandth of it.
    """
    used = {one.account: [0.0, 0.0] for one in queue}

    def add(one: Queued) -> None:
        used[one.account][0] += one.gpus / CLUSTER_GPUS
        used[one.account][1] += one.cpus * one.nodes / (2 * NODES * 64)

    for one in queue:
        if one.job in RUNNING:
            add(one)
    rest, served = waits(queue), []
    while rest:
        turn = min(rest, key=lambda one: (max(used[one.account]), one.account, one.job))
        add(turn)
        rest.remove(turn)
        served.append(turn)
    return numbers(served)


def gavel_sjf(queue: Queue) -> str:
    """Least left on the fastest type first, each on the fastest with room; all share 1 or 0 (A6).

    Every model is fastest on v100 and has speed 1 there. Those with a share come first.
    """
    room, chosen = [NODES * GPUS] * 2, set[int]()
    for one in sorted(queue, key=lambda one: (max(left_s(one), 60.0), one.job)):
        for kind in range(2):
            if one.job not in chosen and one.gpus <= room[kind]:
                room[kind] -= one.gpus
                chosen.add(one.job)
    return by(lambda one: one.job not in chosen)(queue)


fifo = by(lambda one: one.job)

ORACLES: Final[Mapping[str, Oracle]] = {
    "chronus": by(  # A14, where nothing can be promised: what is too late comes last
        lambda one: (bool(one.due_s) and one.due_s < left_s(one), left_s(one) * one.gpus)
    ),
    "conservative_backfill": fifo,  # Nothing is free: promises are made by submission (G1)
    "discrete_gittins": by(lambda one: (queue_of(attained(one)), cost_in_queue(one))),
    "discrete_las": by(lambda one: queue_of(attained(one))),  # A1
    "drf": drf,
    "easy_backfill": fifo,  # As conservative_backfill
    "edf": by(  # G2, without promises: first due first, then as discrete_las
        lambda one: (one.due_s is None, one.due_s or queue_of(attained(one)))
    ),
    "elas": by(lambda one: queue_of(still_needs(one))),
    "fewest_gpus": by(lambda one: one.gpus),  # G2
    "fifo": fifo,
    "fifo_skip": fifo,  # Nobody fits
    "gavel_fifo": fifo,  # The two that run fill both types; nobody else has a share (A6)
    "gavel_proportional": fifo,  # All have one share (A6)
    "gavel_sjf": gavel_sjf,
    "gittins": by(lambda one: cost_of_one(attained(one))),  # A1
    "grouper": grouper,
    "karuna": karuna,
    "las": by(attained),  # A1, without queues
    "longest_pending": by(lambda one: -one.waits_s),  # G2; Tiresias' lpjf
    "lucid": by(lambda one: predicted_s(one) * one.gpus),
    "mlfs": mlfs,
    "sjf": by(left_s),
    "srsf": by(lambda one: left_s(one) * one.gpus),
    "srtf": by(left_s),
    "static_priority": by(lambda one: one.qos != "high"),  # G1
    "tagged": by(tag_s),  # A24
}
"""By policy, with its default parameters and those of `situations.PARAMETERS`."""
