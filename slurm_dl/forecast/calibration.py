"""How good the ranges were: what was said of jobs that waited, held against what became of them.

Of each job the first range counts. It held if the job started inside it; it did not if the job
started outside, or still waits when it is over. A job that is gone without a start says nothing.
The last `LAST` verdicts are kept in the state directory.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from slurm_dl.files import replace_file
from slurm_dl.json_types import JsonObject
from slurm_dl.model.jobs import PENDING, JobState
from slurm_dl.model.snapshot import Snapshot

FILE_NAME: Final = "when.json"
LAST: Final = 200
MOST_OPEN: Final = 500
"""Ranges that are waited for; beyond that the oldest are let go."""

_MOST_BYTES: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A range that was told, or might have been, of a job that waits; epoch seconds."""

    job_id: int
    asked_s: float
    low_s: float
    median_s: float  # Inf if more than half of the runs did not come to a start
    high_s: float  # Its end; inf if it has none within the horizon


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeVerdict:
    """What became of one range."""

    held: bool  # The job started inside it
    error_s: float  # Start less median, seconds; NaN where either is unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastScore:
    """The last verdicts in two numbers."""

    ranges: int  # How many there are
    held: int  # How many held
    median_error_s: float  # Median size of the error, seconds; NaN if there is none


def judged(said: Said, *, start_s: float | None, now_s: float) -> RangeVerdict | None:
    """The verdict on one range; None while there is none.

    Args:
        start_s: When the job has started; None while it waits.
    """
    if start_s is not None:
        inside = said.low_s <= start_s <= said.high_s
        error_s = start_s - said.median_s
        return RangeVerdict(held=inside, error_s=error_s if math.isfinite(error_s) else math.nan)
    return RangeVerdict(held=False, error_s=math.nan) if now_s > said.high_s else None


class ForecastBook:
    """What was said and what became of it. For one thread at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open: dict[int, Said] = {}
        self._verdicts: deque[RangeVerdict] = deque(maxlen=LAST)
        self._is_new = False
        self._read()

    @property
    def score(self) -> ForecastScore:
        """The last verdicts."""
        verdicts = tuple(self._verdicts)
        errors = sorted(abs(v.error_s) for v in verdicts if not math.isnan(v.error_s))
        middle = len(errors) // 2
        median_s = math.nan
        if errors:
            median_s = (errors[middle] + errors[-1 - middle]) / 2
        return ForecastScore(
            ranges=len(verdicts), held=sum(v.held for v in verdicts), median_error_s=median_s
        )

    def has(self, job_id: int) -> bool:
        """Whether something was said of the job already."""
        return job_id in self._open

    def say(self, said: Said) -> None:
        """Remember a range, unless there is one of the job; `see` stores it."""
        if said.job_id in self._open:
            return
        self._open[said.job_id] = said
        while len(self._open) > MOST_OPEN:
            del self._open[next(iter(self._open))]
        self._is_new = True

    def see(self, snap: Snapshot) -> None:
        """Judge what *snap* decides."""
        if not self._open:
            return
        row_of, jobs = snap.jobs.rows, snap.jobs
        for job_id, said in tuple(self._open.items()):
            row = row_of.get(job_id)  # type: ignore[call-overload]
            if row is None:
                self._let_go(job_id)
                continue
            state, start_s = int(jobs.state[row]), float(jobs.start_s[row])
            # One that is cancelled before it starts has its end for a start.
            never = state == JobState.FAILED and start_s >= float(jobs.end_s[row]) > 0
            started = state != PENDING and start_s > 0 and not never
            if never:
                self._let_go(job_id)
                continue
            verdict = judged(said, start_s=start_s if started else None, now_s=snap.now_s)
            if verdict is not None:
                self._verdicts.append(verdict)
                self._let_go(job_id)
        if self._is_new:
            self._write()
            self._is_new = False

    def _let_go(self, job_id: int) -> None:
        del self._open[job_id]
        self._is_new = True

    def _read(self) -> None:
        """Take up what is stored; what cannot be read is begun anew."""
        try:
            with self._path.open("rb") as file:
                content = json.loads(file.read(_MOST_BYTES))
            said = [_said(one) for one in content["open"]]
            self._open = {one.job_id: one for one in said[-MOST_OPEN:]}
            self._verdicts.extend(
                RangeVerdict(held=one["held"] is True, error_s=_number(one["error_s"]))
                for one in content["verdicts"]
            )
        except FileNotFoundError:
            return
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            OverflowError,
            RecursionError,
        ):
            self._open.clear()
            self._verdicts.clear()

    def _write(self) -> None:
        """Store it; that it cannot be stored costs a figure and nothing else."""
        content: JsonObject = {
            "open": [asdict(said) for said in self._open.values()],
            "verdicts": [asdict(verdict) for verdict in self._verdicts],
        }
        with (
            contextlib.suppress(OSError),
            replace_file(self._path, mode=0o640, durable=False) as file,
        ):
            file.write(json.dumps(content).encode("ascii"))


def _said(one: dict[str, object]) -> Said:
    return Said(
        job_id=int(_number(one["job_id"])),
        asked_s=_number(one["asked_s"]),
        low_s=_number(one["low_s"]),
        median_s=_number(one["median_s"]),
        high_s=_number(one["high_s"]),
    )


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        what = "a number was expected"
        raise TypeError(what)
    return float(value)
