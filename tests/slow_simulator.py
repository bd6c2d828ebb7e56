"""A second simulator of the ideal cluster, slow and plain, as an oracle for the fast one.

Objects in lists and exact fractions instead of columns of floats; what is left of a job is counted
down from event to event instead of its end being computed ahead. Written from what the policies'
docstrings say, and shares no code with them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from slurm_dl.model.trace import Trace

Key = tuple[Fraction | int, ...]


@dataclass(eq=False)
class SlowJob:
    """One job and its life; times in seconds."""

    row: int
    submit_s: Fraction
    gpus: Fraction
    left_s: Fraction
    lag_s: Fraction = Fraction(0)
    ran_s: Fraction = Fraction(0)
    forgiven_s: Fraction = Fraction(0)
    lost_s: Fraction = Fraction(0)
    running: bool = False
    last_start_s: Fraction = Fraction(0)
    waiting_since_s: Fraction = Fraction(0)
    end_s: Fraction | None = None
    preemptions: int = 0
    promotions: int = 0
    runs: list[tuple[Fraction, Fraction]] = field(default_factory=list)

    @property
    def age(self) -> Key:
        """Earlier submission, then smaller id."""
        return (self.submit_s, self.row)


class Rule:
    """A policy in the slow simulator: who comes first, and when to look again."""

    skips = True

    def promote(self, now_s: Fraction, jobs: list[SlowJob]) -> None:
        """Forgive service where it is due."""

    def rank(self, jobs: list[SlowJob]) -> list[SlowJob]:
        """*jobs*, which stand in their last order with new ones behind, best first."""
        raise NotImplementedError

    def wake_s(self, now_s: Fraction, jobs: list[SlowJob]) -> Fraction | None:  # noqa: ARG002
        """When the order changes by itself; None if never."""
        return None


class InTurn(Rule):
    """First in, first out, nobody preempted: who runs goes on."""

    def __init__(self, *, skips: bool) -> None:
        self.skips = skips

    def rank(self, jobs: list[SlowJob]) -> list[SlowJob]:
        """See `Rule`."""
        return sorted(jobs, key=lambda j: (not j.running, *j.age))


class Smallest(Rule):
    """The smallest of something first; equals keep the order they had, new ones behind."""

    def __init__(self, size: Callable[[SlowJob], Fraction]) -> None:
        self.size = size

    def rank(self, jobs: list[SlowJob]) -> list[SlowJob]:
        """See `Rule`."""
        return sorted(jobs, key=self.size)


class Queues(Rule):
    """Discretised least attained service."""

    def __init__(self, edges: Sequence[int], *, knob: float, two_dimensions: bool) -> None:
        self.edges = [Fraction(e) for e in edges]
        self.knob = Fraction(knob)
        self.two_dimensions = two_dimensions

    def rate(self, job: SlowJob) -> Fraction:
        """Service a second adds."""
        return job.gpus if self.two_dimensions else Fraction(1)

    def service(self, job: SlowJob) -> Fraction:
        """Service since the last promotion."""
        return (job.ran_s - job.forgiven_s) * self.rate(job)

    def queue(self, job: SlowJob) -> int:
        """How many thresholds the service has reached."""
        return sum(1 for edge in self.edges if self.service(job) >= edge)

    def starves_s(self, job: SlowJob) -> Fraction | None:
        """When the job has waited *knob* times what it has run; None if it does not starve."""
        ran_s = job.ran_s - job.forgiven_s
        if not self.knob or job.running or not ran_s:
            return None
        return job.waiting_since_s + self.knob * ran_s

    def promote(self, now_s: Fraction, jobs: list[SlowJob]) -> None:
        """See `Rule`."""
        for job in jobs:
            at_s = self.starves_s(job)
            if at_s is not None and at_s <= now_s:
                job.forgiven_s = job.ran_s
                job.promotions += 1

    def rank(self, jobs: list[SlowJob]) -> list[SlowJob]:
        """See `Rule`."""
        return sorted(jobs, key=lambda j: (self.queue(j), not j.running, *j.age))

    def wake_s(self, now_s: Fraction, jobs: list[SlowJob]) -> Fraction | None:
        """See `Rule`."""
        at = [s for j in jobs if (s := self.starves_s(j)) is not None]
        for job in jobs:
            ahead = self.edges[self.queue(job) :]
            if job.running and ahead:
                at.append(now_s + (ahead[0] - self.service(job)) / self.rate(job))
        return min(at, default=None)


class LeastServed(Rule):
    """Continuous least attained service; a turn is a quantum at least."""

    def __init__(
        self, quantum_s: Fraction, *, two_dimensions: bool, at_every_quantum: bool = False
    ) -> None:
        self.quantum_s = quantum_s
        self.two_dimensions = two_dimensions
        self.at_every_quantum = at_every_quantum

    def rate(self, job: SlowJob) -> Fraction:
        """Service a second adds."""
        return job.gpus if self.two_dimensions else Fraction(1)

    def service(self, job: SlowJob) -> Fraction:
        """Service so far."""
        return job.ran_s * self.rate(job)

    def rank(self, jobs: list[SlowJob]) -> list[SlowJob]:
        """See `Rule`."""
        return sorted(jobs, key=lambda j: (self.service(j), *j.age))

    def wake_s(self, now_s: Fraction, jobs: list[SlowJob]) -> Fraction | None:
        """See `Rule`."""
        waiting = [j for j in jobs if not j.running]
        going = [j for j in jobs if j.running]
        if self.at_every_quantum:
            return now_s + self.quantum_s if waiting and going else None
        passes_s = [
            (self.service(w) - self.service(r)) / self.rate(r)
            for r in going
            for w in waiting
            if self.service(w) >= self.service(r)
        ]
        return now_s + max(min(passes_s), self.quantum_s) if passes_s else None


def run(
    trace: Trace,
    gpus: int,
    rule: Rule,
    *,
    restart_s: Callable[[SlowJob], Fraction] = lambda _: Fraction(0),
    first_s: Fraction = Fraction(0),
    round_s: int = 0,
    tick_s: int = 0,
) -> list[SlowJob]:
    """Every job of *trace* after its life on a cluster of *gpus* GPUs under *rule*.

    Args:
        restart_s: Seconds without progress at every start but the first.
        first_s: The same at the first start.
        round_s: Decisions only at multiples of it after the first submission; 0: at any event.
        tick_s: What the rule asks for happens at multiples of it, counted alike; 0: when it asks.
    """
    columns = zip(
        trace.submit_s.tolist(), trace.gpus.tolist(), trace.duration_s.tolist(), strict=True
    )
    jobs = [
        SlowJob(i, Fraction(s), Fraction(g), Fraction(d), waiting_since_s=Fraction(s))
        for i, (s, g, d) in enumerate(columns)
    ]

    def lag_s(job: SlowJob) -> Fraction:
        return restart_s(job) if job.runs else first_s

    coming = list(jobs)
    live: list[SlowJob] = []
    wake_s: Fraction | None = None
    now_s = zero_s = jobs[0].submit_s if jobs else Fraction(0)
    while True:
        at = [now_s + j.lag_s + j.left_s for j in live if j.running]
        at += [j.submit_s for j in coming[:1]] + ([] if wake_s is None else [wake_s])
        if not at:
            return jobs
        passed_s, now_s = min(at) - now_s, min(at)
        _let_run(live, passed_s)
        for job in [j for j in live if j.running and not j.lag_s + j.left_s]:
            _halt(job, now_s)
            job.end_s = now_s
            live.remove(job)
        while coming and coming[0].submit_s <= now_s:
            live.append(coming.pop(0))
        late_s = (now_s - zero_s) % round_s if round_s else Fraction(0)
        if late_s:
            wake_s = now_s - late_s + round_s
            continue
        rule.promote(now_s, live)
        live = rule.rank(live)
        _serve(live, gpus, now_s, lag_s, skips=rule.skips)
        wake_s = rule.wake_s(now_s, live)
        if wake_s is not None and tick_s:
            wake_s = zero_s + math.ceil((wake_s - zero_s) / tick_s) * tick_s


def _let_run(live: list[SlowJob], passed_s: Fraction) -> None:
    for job in live:
        if job.running:
            lag_s = min(job.lag_s, passed_s)
            job.ran_s += passed_s
            job.lost_s += lag_s
            job.lag_s -= lag_s
            job.left_s -= passed_s - lag_s


def _serve(
    ranked: list[SlowJob],
    gpus: int,
    now_s: Fraction,
    lag_s: Callable[[SlowJob], Fraction],
    *,
    skips: bool,
) -> None:
    free = Fraction(gpus)
    wanted = set()
    for job in ranked:
        if job.gpus <= free:
            free -= job.gpus
            wanted.add(job)
        elif not skips:
            break
    for job in ranked:
        if job.running and job not in wanted:
            _halt(job, now_s)
            job.preemptions += 1
            job.waiting_since_s = now_s
        elif not job.running and job in wanted:
            job.lag_s = lag_s(job)
            job.running = True
            job.last_start_s = now_s


def _halt(job: SlowJob, now_s: Fraction) -> None:
    job.running = False
    job.lag_s = Fraction(0)
    job.runs.append((job.last_start_s, now_s))
