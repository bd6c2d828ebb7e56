"""Resamples of a trace by blocks of its time, to see how sure a figure of it is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from slurm_dl.model.jobs import I64
from slurm_dl.model.trace import Trace

_DAY_S: Final = 86_400.0
_FEWEST_DAYS: Final = 10
_PARTS: Final = 20
_LONGEST: Final = 3


@dataclass(frozen=True, slots=True)
class TimeBlocks:
    """The time of a trace, cut for resampling."""

    unit_s: float  # Days; of a trace of fewer than ten, a twentieth of its time
    units: I64  # Of each job, the one in which it was submitted, from 0
    count: int  # How many units there are
    length: int  # Units that are drawn together

    @classmethod
    def of(cls, trace: Trace, block_days: int | None = None) -> TimeBlocks:
        """The blocks of *trace*, which has jobs.

        Args:
            block_days: None: a tenth of the time, at most three days.
        """
        after_s = trace.submit_s - trace.submit_s[0]
        unit_s = _DAY_S
        if block_days is None and after_s[-1] < _FEWEST_DAYS * _DAY_S:
            # The last job is inside the last part; any unit does where all jobs come at once.
            unit_s = float(after_s[-1]) / _PARTS * (1 + 1e-9) or _DAY_S
        unit = (after_s // unit_s).astype(np.int64)
        count = int(unit[-1]) + 1
        usual = min(_LONGEST, max(1, count // 10))
        return cls(unit_s, unit, count, min(count, block_days or usual))

    @property
    def independent(self) -> float:
        """The number of blocks that can have jobs, no two of which have a unit in common."""
        return min(self.count / self.length, float(len(np.unique(self.units))))


def resampled(
    trace: Trace, seed: int, block_days: int | None = None, *, wraps: bool = True
) -> Trace:
    """A bootstrap of *trace*: blocks of its time with the jobs submitted in them.

    Blocks keep how jobs that follow each other, and the queue before them, belong together. As much
    time is drawn with replacement, in blocks that begin at any unit; the last one is cut. Each job
    keeps its time of the day.

    Args:
        seed: Of NumPy's default generator; 0 gives *trace* itself, and so does a draw without jobs.
        block_days: See `TimeBlocks.of`.
        wraps: The first day follows the last, so that each day is drawn as often as any other:
            the first and the last are rarely like the others.

    Source: Kunsch, "The jackknife and the bootstrap for general stationary observations", Annals of
    Statistics 17(3), 1989; with wraps Politis and Romano, "A circular block-resampling procedure
    for stationary data", in Exploring the Limits of Bootstrap, 1992.
    """
    if not seed or not len(trace):
        return trace
    cut = TimeBlocks.of(trace, block_days)
    count, length = cut.count, cut.length
    begins = np.random.default_rng(seed).integers(
        count if wraps else count - length + 1, size=math.ceil(count / length)
    )
    drawn = ((begins[:, None] + np.arange(length)) % count).ravel()[:count]
    rows = [np.flatnonzero(cut.units == unit) for unit in drawn.tolist()]
    at = np.concatenate(rows)
    if not len(at):
        return trace
    moved_s = np.repeat((np.arange(count) - drawn) * cut.unit_s, [len(r) for r in rows])
    # Rounding may put the last of a unit behind the first of the next.
    submit_s = np.maximum.accumulate(trace.submit_s[at] + moved_s)
    return trace.of_jobs(at, job_id=tuple(map(str, range(len(at)))), submit_s=submit_s)
