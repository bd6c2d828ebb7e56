"""Reports of dlrun in the job's comment while the command runs: last checkpoint, progress, speed.

The scheduler prefers victims that have just saved, because they lose least, and compares the speed
of a job that shares a GPU with the model's speed alone, to see whether sharing pays. Users see in
``dlqueue`` how far a job is, and its remaining time is estimated from that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from slurm_dl.job.controller import CallFailedError, JobController, lacks_contract
from slurm_dl.job.run_files import PROGRESS_FILE, STATE_FILE, RunId, read_object

STEP = 0.0099  # Not 0.01, by which rounded shares differ a little less
"""A smaller change of the share that is done is not reported."""


class CommentReport:
    """When the next report is due, and where its content comes from and goes to.

    Args:
        run_dir: The job's directory, with the files that the script's side writes.
        every_s: Least time from one report to the next, seconds.
        log: Where to say what went wrong.
    """

    _next_s = 0.0

    def __init__(
        self,
        run_dir: Path,
        controller: JobController,
        *,
        every_s: float,
        log: Callable[[str], None],
    ) -> None:
        self._run_dir = run_dir
        self._controller = controller
        self._every_s = every_s
        self._log = log

    def due_in_s(self, now_s: float) -> float:
        """Seconds until it is to look again, by a clock that is never set."""
        return max(0.0, self._next_s - now_s)


LOOK_S = 15.0  # How often to look at the record of checkpoints

DEFAULT_EVERY_S = 300.0
"""Least time from one report to the next, seconds.

Each is one squeue and one update at slurmctld: 10,000 jobs make at most 33 of both a second with
each kind of report.
"""

_LATEST_S = 2**40


class SaveReport(CommentReport):
    """Writes the time of the last checkpoint into the job's comment, if there is a newer one.

    Of a job that has not opted in to preemption nothing is written.
    `look` is called while the command runs, and so never while an acknowledgement stands.
    See `CommentReport`.
    """

    _told_s = 0

    def look(self, run: RunId, now_s: float) -> None:
        """Report if the run has a checkpoint that is not reported.

        Args:
            now_s: By a clock that is never set.
        """
        if now_s < self._next_s:
            return
        self._next_s = now_s + min(LOOK_S, self._every_s)
        saved_s = self._last_save_s(run)
        if saved_s is None or saved_s <= self._told_s:
            return
        self._next_s = now_s + self._every_s
        try:
            if not self._told_s and lacks_contract(self._controller.standing().comment):
                self._next_s = math.inf  # It is nobody's victim.
                return
            told = self._controller.report("saved", saved_s)
        except CallFailedError as err:
            self._log(f"the last checkpoint could not be reported: {err}")
            return
        self._told_s = saved_s
        if not told:
            self._next_s = math.inf
            self._log(
                "checkpoints are not reported: no comment of slurm_dl's, or one that is too long"
            )

    def _last_save_s(self, run: RunId) -> int | None:
        """When the last checkpoint of this run was complete, whole epoch seconds."""
        try:
            content = read_object(self._run_dir / STATE_FILE)
        except (OSError, ValueError):
            return None
        checkpoints = None if content is None else content.get("checkpoints")
        newest = checkpoints[0] if isinstance(checkpoints, list) and checkpoints else None
        if not isinstance(newest, dict) or newest.get("restart") != run.restart:
            return None
        time_s = newest.get("time_s")
        # The user's script writes the file: bounds keep out what no whole number holds.
        if not isinstance(time_s, (int, float)) or not 0 < time_s < _LATEST_S:
            return None
        return int(time_s)


class ProgressReport(CommentReport):
    """Writes the share of the work that is done into the job's comment, if the script tells it.

    See `CommentReport`.
    """

    _told: float | None = None

    def look(self, run: RunId, now_s: float) -> None:
        """Report if the share has changed by a hundredth: long jobs are many, and slurmctld one.

        Args:
            now_s: By a clock that is never set.
        """
        if now_s < self._next_s:
            return
        self._next_s = now_s + min(LOOK_S, self._every_s)
        share = share_done(self._run_dir, run)
        if share is None or (self._told is not None and abs(share - self._told) < STEP):
            return
        self._next_s = now_s + self._every_s
        try:
            told = self._controller.report("progress", share)
        except CallFailedError as err:
            self._log(f"the progress could not be reported: {err}")
            return
        self._told = share
        if not told:
            self._next_s = math.inf
            self._log("progress is not reported: no comment of slurm_dl's, or one that is too long")


def share_done(run_dir: Path, run: RunId) -> float | None:
    """Share of its work, 0 to 1, that the script has reported in *run*; None without a total."""
    try:
        content = read_object(run_dir / PROGRESS_FILE)
    except (OSError, ValueError):
        return None
    if content is None or content.get("restart") != run.restart:
        return None
    step, total = content.get("step"), content.get("total")
    # The user's script writes the file. The share is below 1 until the last step is done.
    if type(step) is not int or type(total) is not int or step < 0 or total <= 0:
        return None
    return 1.0 if step >= total else step * _SHARES // total / _SHARES


_SHARES = 1000
_DIGITS = 4
_MOST_STEPS = 2**53


class Progress(NamedTuple):
    """Last report of the script."""

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
