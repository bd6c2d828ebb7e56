"""What only the sequence of cycles tells: counters and distributions, kept by the loop's thread.

Whoever scrapes reads `Tally.totals`, one immutable value that is replaced after each cycle, and so
never waits for the loop nor it for them. Counting starts at 0 with the daemon.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from slurm_dl.apps.metrics import catalogue
from slurm_dl.apps.metrics.catalogue import Metric
from slurm_dl.apps.published import Durations, Published
from slurm_dl.engine.loop import Cycle, Done
from slurm_dl.model.handover import Handover, Victim, VictimState
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.jobs import F64, I64
from slurm_dl.model.plan import CloseHandover, MarkGone, Requeue
from slurm_dl.model.snapshot import Snapshot

Key = tuple[str, ...]
"""Values of a metric's labels, in their order."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """Values by bucket.

    Attributes:
        counts: So many up to each upper end and above the one before; the last is above all.
        total: Sum of the values.
    """

    counts: tuple[int, ...]
    total: float = 0.0

    def after(self, value: float, upper_ends: tuple[float, ...]) -> Distribution:
        """This, and one value more. What is below 0 counts as 0: clocks are set."""
        value = max(0.0, value)
        at = bisect.bisect_left(upper_ends, value)
        counts = (*self.counts[:at], self.counts[at] + 1, *self.counts[at + 1 :])
        return Distribution(counts, self.total + value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """All counters and distributions as of one cycle.

    Attributes:
        counts: Counter and labels to value; what is not there is 0.
        spread: Histogram and labels to distribution.
    """

    counts: Mapping[tuple[str, Key], float] = field(default_factory=lambda: MappingProxyType({}))
    spread: Mapping[tuple[str, Key], Distribution] = field(
        default_factory=lambda: MappingProxyType({})
    )

    def count(self, metric: Metric, *labels: str) -> float:
        """The value of a counter."""
        return self.counts.get((metric.name, labels), 0.0)

    def distribution(self, metric: Metric, *labels: str) -> Distribution:
        """What a histogram has seen."""
        none = Distribution((0,) * (len(metric.buckets) + 1))
        return self.spread.get((metric.name, labels), none)


class Tally:
    """Counts what cycles bring; a `Watcher`."""

    def __init__(self) -> None:
        self.totals = Totals()
        self._counts: dict[tuple[str, Key], float] = {}
        self._spread: dict[tuple[str, Key], Distribution] = {}
        self._attained: tuple[I64, F64] | None = None

    def saw(self, now: Published, /) -> None:
        """Count one cycle; what happens in it is known from its plan and its results."""
        cycle = now.cycle
        if cycle is None:
            return
        self._time(now.durations)
        self._serve(cycle.snapshot)
        for done in cycle.done:
            self._add(
                catalogue.ACTIONS_BY_KIND,
                catalogue.snake(type(done.action).__name__),
                "failed" if done.error else "done",
            )
            if not done.error:
                self._hand_over(cycle, done)
        self.totals = Totals(counts=dict(self._counts), spread=dict(self._spread))

    def _time(self, took: Durations) -> None:
        for phase, took_ms in (
            ("observe", took.observe_ms),
            ("decide", took.decide_ms),
            ("apply", took.apply_ms),
        ):
            self._note(catalogue.CYCLE, took_ms / 1e3, phase)

    def _serve(self, snap: Snapshot) -> None:
        """Add what managed jobs have received since the last cycle.

        Only jobs that have received anything are kept: 100,000 that wait cost nothing. Of the
        first cycle nothing is known to compare with.
        """
        attained = snap.memory.attained_gpu_s
        rows = np.flatnonzero((attained > 0) & snap.is_managed())
        rows = rows[np.argsort(snap.jobs.job_id[rows])]
        ids, now = snap.jobs.job_id[rows], attained[rows]
        if self._attained is not None and len(ids):
            known, then = self._attained
            at = np.minimum(np.searchsorted(known, ids), max(len(known) - 1, 0))
            before = np.zeros(len(ids))
            if len(known):
                same = known[at] == ids
                before[same] = then[at[same]]
            # Less than before: the ledger was lost, or a job id is used anew.
            self._add(catalogue.SERVED, by=float(np.maximum(now - before, 0.0).sum()))
        self._attained = ids, now

    def _hand_over(self, cycle: Cycle, done: Done) -> None:
        match done.action:
            case Requeue(handover_id=handover_id, run=run):
                found = _victim(cycle, handover_id, run.job_id)
                if found is not None and found[1].state is VictimState.SIGNALLED:
                    claim = cycle.snapshot.seen.claim(run.job_id)
                    acked = claim.acked_run == run.restarts
                    self._noticed(cycle, found[1], "acknowledged" if acked else "grace")
            case MarkGone(handover_id=handover_id, job_id=job_id, outcome=outcome):
                found = _victim(cycle, handover_id, job_id)
                if found is not None:
                    self._gone(cycle, *found, outcome)
            case CloseHandover(handover_id=handover_id, fruitless=fruitless):
                handover = _open(cycle, handover_id)
                if handover is not None:
                    self._closed(cycle, handover, in_vain=bool(fruitless))
            case _:
                pass

    def _gone(self, cycle: Cycle, handover: Handover, victim: Victim, outcome: str) -> None:
        self._add(catalogue.PREEMPTIONS, handover.purpose, outcome)
        if outcome == "refused" or victim.state is VictimState.CHOSEN:
            return  # It kept its GPUs, or gave them up before it was told to.
        self._add(catalogue.PREEMPTED_GPUS, handover.purpose, by=victim.gpus)
        if not victim.signalled_s:
            return
        if victim.state is VictimState.SIGNALLED:
            self._noticed(cycle, victim, "by_itself")
        notice_s = max(0.0, cycle.snapshot.now_s - victim.signalled_s)
        self._add(catalogue.LOST, "notice", by=victim.gpus * notice_s)

    def _noticed(self, cycle: Cycle, victim: Victim, ended: str) -> None:
        if victim.signalled_s:
            waited_s = cycle.snapshot.now_s - victim.signalled_s
            self._note(catalogue.CHECKPOINT, waited_s, ended)

    def _closed(self, cycle: Cycle, handover: Handover, *, in_vain: bool) -> None:
        now_s = cycle.snapshot.now_s
        ended = "in_vain" if in_vain else "served" if handover.signalled else "withdrawn"
        self._note(catalogue.HANDOVER, now_s - handover.opened_s, ended)
        idle_gpu_s = sum(
            victim.gpus * max(0.0, now_s - victim.gone_s)
            for victim in handover.victims
            if victim.gone_s and victim.outcome != "refused"
        )
        self._add(catalogue.LOST, "idle", by=idle_gpu_s)

    def _add(self, metric: Metric, *labels: str, by: float = 1.0) -> None:
        key = (metric.name, labels)
        self._counts[key] = self._counts.get(key, 0.0) + by

    def _note(self, metric: Metric, value: float, *labels: str) -> None:
        before = self._spread.get(
            (metric.name, labels), Distribution((0,) * (len(metric.buckets) + 1))
        )
        self._spread[metric.name, labels] = before.after(value, metric.buckets)


def _open(cycle: Cycle, handover_id: HandoverId) -> Handover | None:
    """A hand-over as it was when the cycle began."""
    return next((h for h in cycle.snapshot.handovers if h.handover_id == handover_id), None)


def _victim(cycle: Cycle, handover_id: HandoverId, job_id: JobId) -> tuple[Handover, Victim] | None:
    handover = _open(cycle, handover_id)
    if handover is None:
        return None
    found: Iterator[Victim] = (v for v in handover.victims if v.run.job_id == job_id)
    victim = next(found, None)
    return None if victim is None else (handover, victim)
