"""How good the ranges were: forecasts of jobs that waited, compared with their starts.

Of each job the first range counts. It held if the job started inside it; it did not if the job
started outside, or still waits when it is over. A job that is gone without a start says nothing.
The last `LAST` verdicts are the score; they and the open ranges are in the ledger.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Final

from slurm_dl.ledger.sqlite.store import StoreError
from slurm_dl.ledger.store_protocol import ForecastRange
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.jobs import PENDING, JobState
from slurm_dl.model.snapshot import Snapshot

LAST: Final = 200
MOST_OPEN: Final = 500  # Ranges that are waited for; beyond that the oldest are let go


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastScore:
    """The last verdicts in two numbers."""

    ranges: int  # How many there are
    held: int  # How many held
    median_error_s: float  # Median size of the error, seconds; NaN if there is none


def judged(said: ForecastRange, *, start_s: float | None, now_s: float) -> ForecastRange | None:
    """The range with its verdict; None while there is none.

    Args:
        start_s: When the job has started; None while it waits.
    """
    if start_s is not None:
        error_s = start_s - said.median_s
        return dataclasses.replace(
            said,
            held=said.low_s <= start_s <= said.high_s,
            error_s=error_s if math.isfinite(error_s) else None,
        )
    return dataclasses.replace(said, held=False) if now_s > said.high_s else None


class ForecastBook:
    """Ranges and their verdicts. For one thread at a time.

    Args:
        ledger: The ledger in use; None keeps nothing.
    """

    def __init__(self, ledger: Callable[[], Ledger] | None = None) -> None:
        self._ledger = ledger
        known = () if ledger is None else ledger().noted(ForecastRange)
        ranges = sorted(known, key=lambda one: (one.judged_s, one.asked_s))
        self._open = {one.job_id: one for one in ranges if one.held is None and not one.judged_s}
        self._verdicts = deque((one for one in ranges if one.held is not None), maxlen=LAST)
        self._news: dict[tuple[int, float], ForecastRange] = {}

    @property
    def score(self) -> ForecastScore:
        """The last verdicts."""
        errors = [abs(one.error_s) for one in self._verdicts if one.error_s is not None]
        return ForecastScore(
            ranges=len(self._verdicts),
            held=sum(bool(one.held) for one in self._verdicts),
            median_error_s=median(errors) if errors else math.nan,
        )

    def has(self, job_id: int) -> bool:
        """True if there is a range of the job already."""
        return job_id in self._open

    def say(self, said: ForecastRange) -> None:
        """Remember a range, unless there is one of the job; `see` stores it."""
        if said.job_id in self._open:
            return
        self._open[said.job_id] = said
        self._note(said)
        while len(self._open) > MOST_OPEN:
            self._let_go(next(iter(self._open)), said.asked_s)

    def see(self, snap: Snapshot) -> None:
        """Judge what *snap* decides."""
        rows, jobs = snap.jobs.rows if self._open else {}, snap.jobs
        for job_id, said in tuple(self._open.items()):
            row = rows.get(job_id)  # type: ignore[call-overload]
            if row is None:
                self._let_go(job_id, snap.now_s)
                continue
            state, start_s = int(jobs.state[row]), float(jobs.start_s[row])
            # One that is cancelled before it starts has its end for a start.
            if state == JobState.FAILED and start_s >= float(jobs.end_s[row]) > 0:
                self._let_go(job_id, snap.now_s)
                continue
            started = state != PENDING and start_s > 0
            verdict = judged(said, start_s=start_s if started else None, now_s=snap.now_s)
            if verdict is not None:
                self._verdicts.append(verdict)
                self._note(dataclasses.replace(verdict, judged_s=snap.now_s))
                del self._open[job_id]
        # That they cannot be stored costs a figure and nothing else; it is tried again.
        with contextlib.suppress(StoreError):
            if self._news and self._ledger is not None:
                self._ledger().note(tuple(self._news.values()))
            self._news.clear()

    def _let_go(self, job_id: int, now_s: float) -> None:
        self._note(dataclasses.replace(self._open.pop(job_id), judged_s=now_s))

    def _note(self, said: ForecastRange) -> None:
        self._news[said.job_id, said.asked_s] = said
