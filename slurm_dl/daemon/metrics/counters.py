"""Counters and distributions over the cycles, kept by the loop's thread.

Scrapes read single values, which are replaced and never changed, and so never wait for the loop nor
it for them. Counting starts at 0 with the daemon.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from slurm_dl.daemon.published_state import PublishedState
from slurm_dl.model.booking import Entry
from slurm_dl.model.handover import Handover, Victim, VictimState
from slurm_dl.model.jobs import COMPLETING, F64, I64
from slurm_dl.model.plan import Action, Book, CloseHandover, ForgetSteer, MarkGone, Requeue, Shrink
from slurm_dl.model.sizes import NO_HISTORY, size_histories
from slurm_dl.model.snapshot import Snapshot

COMMANDS_RUN: Final[Counter[str]] = Counter()
"""Runs of each Slurm command by this process, by the name of the tool.

One count for the process, because the parts of a daemon are made anew at each reload. Counted by
any thread; a call may rarely be missed.
"""

BUCKETS: Final[Mapping[str, tuple[float, ...]]] = {
    "cycle_seconds": (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
    "checkpoint_seconds": (5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0),
    "handover_seconds": (10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 3600.0, 7200.0),
    "steer_start_error_seconds": (10.0, 60.0, 300.0, 1200.0, 3600.0, 14400.0, 86400.0),
}
"""Each histogram by its name to the upper ends of its buckets."""

Key = tuple[str, ...]  # Values of a metric's labels, in their order


def snake(name: str) -> str:
    """``SetSteer`` as ``set_steer``, as the audit log has it."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


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
        columns: ``(3, n)`` GPU-seconds attained over all runs; GPUs held or asked for; and nothing
            after this was booked yet, epoch seconds. That is this look; but what a run that
            completes received before its end is booked once that is known.
    """

    now_s: float  # When it was, epoch seconds
    job_id: I64  # ``(n,)`` ids
    columns: F64

    @classmethod
    def of(cls, snap: Snapshot, before: _Look | None) -> _Look:
        """The look that *snap* is of, after *before*."""
        jobs, attained, now_s = snap.jobs, snap.memory.attained_gpu_s, snap.now_s
        completing = jobs.state == COMPLETING
        rows = np.flatnonzero(snap.managed_jobs & ((attained > 0) | completing))
        rows = rows[np.argsort(jobs.job_id[rows])]
        ids = jobs.job_id[rows]
        counted_s = np.full(len(rows), now_s)
        if before is not None:
            counted_s = np.where(completing[rows], before.beside(ids)[2], now_s)
        columns = np.array((attained[rows], snap.seen.weighted_gpus()[rows], counted_s))
        return cls(now_s=now_s, job_id=ids, columns=columns)

    def beside(self, ids: I64) -> F64:
        """``(3, m)`` columns of *ids*; of those not here 0, 0, `now_s`."""
        out = np.zeros((3, len(ids)))
        out[2] = self.now_s
        if len(self.job_id):
            at = np.minimum(np.searchsorted(self.job_id, ids), len(self.job_id) - 1)
            same = self.job_id[at] == ids
            out[:, same] = self.columns[:, at[same]]
        return out

    def served_since(self, before: _Look) -> float:
        """GPU-seconds that all jobs together have received since *before*."""
        attained, gpus, counted_s = before.beside(self.job_id)
        most = np.maximum(gpus, self.columns[1]) * np.maximum(self.now_s - counted_s, 0.0)
        # Less than before: the ledger was lost, or a job id is used anew.
        return float(np.clip(self.columns[0] - attained, 0.0, most).sum())


class MetricsTally:
    """Counts what cycles bring, by the metrics' names; a `Observer`."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, Key], Any] = {}
        self._last: _Look | None = None

    def value(self, name: str, *labels: str) -> Any:  # noqa: ANN401 - by the kind of the metric
        """The value of a counter, or the `Distribution` of a histogram."""
        none = Distribution((0,) * (len(BUCKETS[name]) + 1)) if name in BUCKETS else 0.0
        return self._values.get((name, labels), none)

    def on_cycle(self, now: PublishedState, /) -> None:
        """Count one cycle; what happens in it is known from its plan and its results."""
        cycle = now.cycle
        if cycle is None:
            return
        for phase in ("observe", "decide", "apply"):
            self._add("cycle_seconds", phase, by=getattr(now.durations, f"{phase}_ms") / 1e3)
        self._serve(cycle.snapshot)
        for done in cycle.done:
            kind = snake(type(done.action).__name__)
            self._add("actions_by_kind_total", kind, "failed" if done.error else "done")
            if done.error:
                continue
            if isinstance(done.action, Book):
                self._sized(cycle.snapshot.booked, done.action.entries)
            elif isinstance(done.action, ForgetSteer) and done.action.late_s is not None:
                start = "later" if done.action.late_s > 0 else "earlier"
                self._add("steer_start_error_seconds", start, by=abs(done.action.late_s))
            else:
                self._hand_over(cycle.snapshot, done.action)

    def _serve(self, snap: Snapshot) -> None:
        """Add what managed jobs have received since the last cycle.

        The ledger may learn of it late: of a job that a look missed, of one that was not managed,
        or of earlier runs from accounting. So no job counts for more than its GPUs times the time
        since the last look. Of the first cycle nothing is known to compare with.
        """
        before, self._last = self._last, _Look.of(snap, self._last)
        if before is not None:
            self._add("served_gpu_seconds_total", by=self._last.served_since(before))

    def _hand_over(self, snap: Snapshot, action: Action) -> None:
        """Count by the hand-over as it was when the cycle began."""
        if not isinstance(action, Requeue | Shrink | MarkGone | CloseHandover):
            return
        of = (h for h in snap.handovers if h.handover_id == action.handover_id)
        if (handover := next(of, None)) is None:
            return
        if isinstance(action, CloseHandover):
            self._closed(snap.now_s, handover, in_vain=bool(action.fruitless))
            return
        job_id = action.job_id if isinstance(action, MarkGone) else action.run.job_id
        victim = next((v for v in handover.victims if v.run.job_id == job_id), None)
        if victim is None:
            return
        if isinstance(action, MarkGone):
            self._gone(snap.now_s, handover, victim, action.outcome)
        elif victim.state is VictimState.SIGNALLED and victim.signalled_s:
            acked = snap.seen.has_acknowledged(action.run)
            how = "acknowledged" if acked else "grace"
            if isinstance(action, Requeue) and action.ended:
                how = "by_itself"
            self._add("checkpoint_seconds", how, by=snap.now_s - victim.signalled_s)

    def _gone(self, now_s: float, handover: Handover, victim: Victim, outcome: str) -> None:
        self._add("preemptions_total", handover.purpose, outcome)
        if outcome == "refused" or victim.state is VictimState.CHOSEN:
            return  # It kept its GPUs, or gave them up before it was told to.
        self._add("preempted_gpus_total", handover.purpose, by=victim.gives_gpus)
        if victim.then is not None and outcome in ("requeued", "shrunk"):
            alone = len(handover.victims) == 1
            way = "shrink" if handover.beneficiaries else "grow" if alone else "transfer"
            self._add("resizes_total", way)
        if not victim.signalled_s:
            return
        notice_s = max(0.0, now_s - victim.signalled_s)
        if victim.state is VictimState.SIGNALLED:
            self._add("checkpoint_seconds", "by_itself", by=notice_s)
        self._add("lost_gpu_seconds_total", "notice", by=victim.gpus * notice_s)

    def _sized(self, booked: Sequence[Entry], entries: Sequence[Entry]) -> None:
        """Count first starts in another size than asked for, and sizes that Slurm refused."""
        before = size_histories(booked)
        for job_id, after in size_histories(entries).items():
            was = before.get(job_id, NO_HISTORY)
            if was.now is None and after.now not in (None, after.asked):
                self._add("resizes_total", "start")
            self._add("resizes_total", "refused", by=len(after.refused - was.refused))

    def _closed(self, now_s: float, handover: Handover, *, in_vain: bool) -> None:
        ended = "in_vain" if in_vain else "served" if handover.signalled else "withdrawn"
        self._add("handover_seconds", ended, by=now_s - handover.opened_s)
        idle_gpu_s = sum(
            victim.gpus * max(0.0, now_s - victim.gone_s)
            for victim in handover.victims
            if victim.gone_s and victim.outcome != "refused"
        )
        self._add("lost_gpu_seconds_total", "idle", by=idle_gpu_s)

    def _add(self, name: str, *labels: str, by: float = 1.0) -> None:
        before = self.value(name, *labels)
        after = before.after(by, BUCKETS[name]) if name in BUCKETS else before + by
        self._values[name, labels] = after
