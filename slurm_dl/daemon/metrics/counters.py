"""Counters and distributions over the cycles, kept by the loop's thread.

Scrapes read single values, which are replaced and never changed, and so never wait for the loop nor
it for them. Counting starts at 0 with the daemon.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from slurm_dl.daemon.metrics import catalogue
from slurm_dl.daemon.metrics.catalogue import Metric
from slurm_dl.daemon.published_state import Durations, PublishedState
from slurm_dl.engine.cycle import AppliedAction, Cycle
from slurm_dl.model.booking import Entry
from slurm_dl.model.handover import Handover, Victim, VictimState
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.jobs import COMPLETING, F64, I64
from slurm_dl.model.plan import Book, CloseHandover, MarkGone, Requeue
from slurm_dl.model.size_history import NO_HISTORY, size_histories
from slurm_dl.model.snapshot import Snapshot

COMMANDS_RUN: Final[Counter[str]] = Counter()
"""Runs of each Slurm command by this process, by the name of the tool.

One count for the process, because the parts of a daemon are made anew at each reload. Counted by
any thread; a call may rarely be missed.
"""


Key = tuple[str, ...]
"""Values of a metric's labels, in their order."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """Values by bucket."""

    up_to: tuple[int, ...]  # So many up to each upper end; the last is all
    total: float = 0.0  # Sum of the values

    def after(self, value: float, upper_ends: tuple[float, ...]) -> Distribution:
        """This, and one value more. What is below 0 counts as 0: clocks are set."""
        value = max(0.0, value)
        ends = (*upper_ends, math.inf)
        up_to = (n + (value <= end) for n, end in zip(self.up_to, ends, strict=True))
        return Distribution(tuple(up_to), self.total + value)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Look:
    """Attained service of managed jobs at one look, n jobs sorted by id.

    Only jobs that have received anything, or are about to, are kept: 100,000 that wait cost
    nothing.

    Attributes:
        now_s: When it was, epoch seconds.
        job_id: ``(n,)`` ids.
        attained_gpu_s: ``(n,)`` GPU-seconds over all runs.
        gpus: ``(n,)`` GPUs held or asked for.
        counted_s: ``(n,)`` nothing after this was booked yet, epoch seconds. That is this look;
            but what a run that completes received before its end is booked once that is known.
    """

    now_s: float
    job_id: I64
    attained_gpu_s: F64
    gpus: F64
    counted_s: F64

    @classmethod
    def of(cls, snap: Snapshot, before: _Look | None) -> _Look:
        """The look that *snap* is of, after *before*."""
        jobs, attained = snap.jobs, snap.memory.attained_gpu_s
        completing = jobs.state == COMPLETING
        rows = np.flatnonzero(snap.managed_jobs & ((attained > 0) | completing))
        rows = rows[np.argsort(jobs.job_id[rows])]
        ids, now_s = jobs.job_id[rows], snap.now_s
        counted = np.full(len(rows), now_s)
        if before is not None:
            _, _, counted_s = before.beside(ids)
            counted = np.where(completing[rows], counted_s, now_s)
        return cls(
            now_s=now_s,
            job_id=ids,
            attained_gpu_s=attained[rows],
            gpus=snap.seen.weighted_gpus()[rows],
            counted_s=counted,
        )

    def beside(self, ids: I64) -> tuple[F64, F64, F64]:
        """Attained service, GPUs and time counted to of *ids*; of those not here 0, 0, `now_s`."""
        out = np.zeros(len(ids)), np.zeros(len(ids)), np.full(len(ids), self.now_s)
        if len(self.job_id):
            at = np.minimum(np.searchsorted(self.job_id, ids), len(self.job_id) - 1)
            same = self.job_id[at] == ids
            for into, column in zip(
                out, (self.attained_gpu_s, self.gpus, self.counted_s), strict=True
            ):
                into[same] = column[at[same]]
        return out

    def served_since(self, before: _Look) -> float:
        """GPU-seconds that all jobs together have received since *before*."""
        attained, gpus, counted_s = before.beside(self.job_id)
        most = np.maximum(gpus, self.gpus) * np.maximum(self.now_s - counted_s, 0.0)
        # Less than before: the ledger was lost, or a job id is used anew.
        return float(np.clip(self.attained_gpu_s - attained, 0.0, most).sum())


class MetricsTally:
    """Counts what cycles bring; a `Observer`."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, Key], float] = {}
        self._spread: dict[tuple[str, Key], Distribution] = {}
        self._last: _Look | None = None

    def count(self, metric: Metric, *labels: str) -> float:
        """The value of a counter."""
        return self._counts.get((metric.name, labels), 0.0)

    def distribution(self, metric: Metric, *labels: str) -> Distribution:
        """The distribution of a histogram so far."""
        none = Distribution((0,) * (len(metric.buckets) + 1))
        return self._spread.get((metric.name, labels), none)

    def on_cycle(self, now: PublishedState, /) -> None:
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

    def _time(self, took: Durations) -> None:
        for phase, took_ms in (
            ("observe", took.observe_ms),
            ("decide", took.decide_ms),
            ("apply", took.apply_ms),
        ):
            self._note(catalogue.CYCLE, took_ms / 1e3, phase)

    def _serve(self, snap: Snapshot) -> None:
        """Add what managed jobs have received since the last cycle.

        The ledger may learn of it late: of a job that a look missed, of one that was not managed,
        or of earlier runs from accounting. So no job counts for more than its GPUs times the time
        since the last look. Of the first cycle nothing is known to compare with.
        """
        before, self._last = self._last, _Look.of(snap, self._last)
        if before is not None:
            self._add(catalogue.SERVED, by=self._last.served_since(before))

    def _hand_over(self, cycle: Cycle, done: AppliedAction) -> None:
        match done.action:
            case Requeue(handover_id=handover_id, run=run, ended=ended):
                found = _victim(cycle, handover_id, run.job_id)
                if found is not None and found[1].state is VictimState.SIGNALLED:
                    acked = cycle.snapshot.seen.has_acknowledged(run)
                    how = "by_itself" if ended else "acknowledged" if acked else "grace"
                    self._noticed(cycle, found[1], how)
            case MarkGone(handover_id=handover_id, job_id=job_id, outcome=outcome):
                found = _victim(cycle, handover_id, job_id)
                if found is not None:
                    self._gone(cycle, *found, outcome)
            case CloseHandover(handover_id=handover_id, fruitless=fruitless):
                handover = _open(cycle, handover_id)
                if handover is not None:
                    self._closed(cycle, handover, in_vain=bool(fruitless))
            case Book(entries=entries):
                self._sized(cycle.snapshot.booked, entries)
            case _:
                pass

    def _gone(self, cycle: Cycle, handover: Handover, victim: Victim, outcome: str) -> None:
        self._add(catalogue.PREEMPTIONS, handover.purpose, outcome)
        if outcome == "refused" or victim.state is VictimState.CHOSEN:
            return  # It kept its GPUs, or gave them up before it was told to.
        self._add(catalogue.PREEMPTED_GPUS, handover.purpose, by=victim.gives_gpus)
        if victim.then is not None and outcome == "requeued":
            alone = len(handover.victims) == 1
            way = "shrink" if handover.beneficiaries else "grow" if alone else "transfer"
            self._add(catalogue.RESIZES_ALL, way)
        if not victim.signalled_s:
            return
        if victim.state is VictimState.SIGNALLED:
            self._noticed(cycle, victim, "by_itself")
        notice_s = max(0.0, cycle.snapshot.now_s - victim.signalled_s)
        self._add(catalogue.LOST, "notice", by=victim.gpus * notice_s)

    def _sized(self, booked: Sequence[Entry], entries: Sequence[Entry]) -> None:
        """Count first starts in another size than asked for, and sizes that Slurm refused."""
        before = size_histories(booked)
        for job_id, after in size_histories(entries).items():
            was = before.get(job_id, NO_HISTORY)
            if was.now is None and after.now not in (None, after.asked):
                self._add(catalogue.RESIZES_ALL, "start")
            self._add(catalogue.RESIZES_ALL, "refused", by=len(after.refused - was.refused))

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
        self._counts[metric.name, labels] = self.count(metric, *labels) + by

    def _note(self, metric: Metric, value: float, *labels: str) -> None:
        before = self.distribution(metric, *labels)
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
