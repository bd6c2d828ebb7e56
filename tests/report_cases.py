"""Lives of jobs for tests of reports: drawn, turned into records, and told in plain Python."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from slurm_dl.model.completed_jobs import Records, Runs

NAN = math.nan


@dataclass(frozen=True, kw_only=True)
class Life:
    """One job.

    Attributes:
        runs: (start, end) of each, seconds.
        ends: The last run was its end; an unfinished job was preempted and not started again.
        lost: GPU-seconds by cause.
    """

    submit: float
    runs: tuple[tuple[float, float], ...]
    ends: bool = True
    gpus: float = 1.0
    user: str = "ada"
    alone: float = NAN
    success: bool = True
    promotions: int = 0
    lost: tuple[tuple[str, float], ...] = ()

    @property
    def end(self) -> float:
        """End of the last run; NaN if that was not its end."""
        return self.runs[-1][1] if self.ends and self.runs else NAN

    @property
    def running(self) -> float:
        """Seconds in all runs."""
        return math.fsum(end - start for start, end in self.runs)

    @property
    def jct(self) -> float:
        """From submission to the end, seconds."""
        return self.end - self.submit


def life(submit: float, *runs: tuple[float, float], gpus: float = 1.0, **other: object) -> Life:
    """A job in few words."""
    return Life(submit=submit, runs=runs, gpus=gpus, **other)  # type: ignore[arg-type]


def records_of(lives: Sequence[Life]) -> Records:
    """The lives as columns, with all their runs in the order in which they ended."""
    users = tuple(sorted({one.user for one in lives}))
    causes = sorted({cause for one in lives for cause, _ in one.lost})
    runs = sorted((end, row, start) for row, one in enumerate(lives) for start, end in one.runs)

    def floats(values: Sequence[float]) -> np.ndarray:
        return np.array(values, dtype=np.float64)

    return Records(
        job_id=tuple(f"j{row}" for row in range(len(lives))),
        user=np.array([users.index(one.user) for one in lives], dtype=np.int32),
        users=users,
        gpus=floats([one.gpus for one in lives]),
        submit_s=floats([one.submit for one in lives]),
        start_s=floats([one.runs[0][0] if one.runs else NAN for one in lives]),
        end_s=floats([one.end for one in lives]),
        alone_s=floats([one.alone for one in lives]),
        service_gpu_s=floats([one.gpus * one.running for one in lives]),
        lost_gpu_s={
            cause: floats([dict(one.lost).get(cause, 0) for one in lives]) for cause in causes
        },
        preemptions=np.array([max(0, len(one.runs) - one.ends) for one in lives], dtype=np.int32),
        promotions=np.array([one.promotions for one in lives], dtype=np.int32),
        success=np.array(
            [one.success and not math.isnan(one.end) for one in lives], dtype=np.bool_
        ),
        runs=Runs(
            job=np.array([row for _, row, _ in runs], dtype=np.int32),
            start_s=floats([start for _, _, start in runs]),
            end_s=floats([end for end, _, _ in runs]),
            gpus=floats([lives[row].gpus for _, row, _ in runs]),
        ),
    )


@st.composite
def _lives(draw: st.DrawFn) -> Life:
    submit = now = draw(st.integers(0, 300))
    runs = []
    for _ in range(draw(st.integers(0, 3))):
        start = now + draw(st.integers(0, 60))
        now = start + draw(st.integers(1, 90))
        runs.append((float(start), float(now)))
    return Life(
        submit=float(submit),
        runs=tuple(runs),
        ends=bool(runs) and draw(st.sampled_from([True, True, True, False])),
        gpus=float(draw(st.sampled_from([1, 1, 2, 3, 4, 8, 16, 20]))),
        user=draw(st.sampled_from(["ada", "bob", "cyd"])),
        alone=draw(st.sampled_from([NAN, 1.0, 10.0, 25.0, 80.0])),
        success=draw(st.booleans()),
        promotions=draw(st.integers(0, 3)),
        lost=(("redone", float(draw(st.integers(0, 9)))), ("restart", 0.5)),
    )


workloads = st.lists(_lives(), max_size=14)
"""Jobs with zero to three runs each, some unfinished, some of unknown length."""
