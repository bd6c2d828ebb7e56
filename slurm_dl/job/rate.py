"""How fast the job is just now, told to the scheduler: only for jobs that share a GPU.

Steps a second over the last stretch of time, from what the script reports of its progress. The
scheduler compares it with the model's speed alone on a GPU, to see whether sharing pays.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from slurm_dl.job.comment_report import CommentReport
from slurm_dl.job.controller import CallFailedError
from slurm_dl.job.run_files import PROGRESS_FILE, RunId, read_object

_DIGITS = 4
_MOST_STEPS = 2**53
_LATEST_S = 2.0**40


class Progress(NamedTuple):
    """What the script last reported."""

    restart: int  # In which run
    step: int  # How many steps are done
    time_s: float  # When, seconds since the epoch


class RateReport(CommentReport):
    """Writes the rate into the job's comment, at most once in *every_s* seconds.

    The first comes *every_s* seconds after `start`. See `CommentReport`.
    """

    _next_s = math.inf
    _since: Progress | None = None
    _started_s = 0.0

    def start(self, now_s: float, time_s: float) -> None:
        """The command starts now: what was reported before counts no more.

        Args:
            now_s: By a clock that is never set.
            time_s: By the clock of the day, as reports have it.
        """
        self._since = None
        self._started_s = time_s
        self._next_s = now_s + self._every_s

    def look(self, run: RunId, now_s: float) -> None:
        """Report, if it is time to and there is something to report.

        Args:
            now_s: By a clock that is never set.
        """
        if self._since is None:
            # The stretch begins with the first report: what comes before it is start-up.
            self._since = self._progress(run)
        if now_s < self._next_s:
            return
        self._next_s = now_s + self._every_s
        last = self._progress(run)
        if last is None or self._since is None:
            return
        rate = rate_between(self._since, last)
        if rate is None:
            return
        self._since = last
        try:
            told = self._controller.report("rate", rate)
        except CallFailedError as err:
            self._log(f"the rate could not be reported: {err}")
            return
        if not told:
            self._log("the rate is not reported: no comment of slurm_dl's, or one that is too long")

    def _progress(self, run: RunId) -> Progress | None:
        try:
            content = read_object(self._run_dir / PROGRESS_FILE)
        except (OSError, ValueError):
            return None
        if content is None or content.get("restart") != run.restart:
            return None
        step, time_s = content.get("step"), content.get("time_s")
        # The user's script writes the file: bounds keep out what no float holds.
        if type(step) is not int or not 0 <= step <= _MOST_STEPS:
            return None
        if not isinstance(time_s, (int, float)) or not self._started_s <= time_s <= _LATEST_S:
            return None
        at_s = float(time_s)
        return Progress(run.restart, step, at_s)


def rate_between(first: Progress, last: Progress) -> float | None:
    """Steps a second; None if there were none, or the clock was set back."""
    steps, seconds = last.step - first.step, last.time_s - first.time_s
    if first.restart != last.restart or steps <= 0 or seconds <= 0:
        return None
    return float(f"{steps / seconds:.{_DIGITS}g}")
