"""When the job last saved, told to the scheduler: who has just saved loses least when stopped."""

from __future__ import annotations

import math

from slurm_dl.job.comment_report import CommentReport
from slurm_dl.job.controller import CallFailedError, lacks_contract
from slurm_dl.job.run_files import STATE_FILE, RunId, read_object

LOOK_S = 15.0
"""How often to look at the record of checkpoints."""

DEFAULT_EVERY_S = 300.0
"""Least time from one report to the next, seconds.

Each is one squeue and one update at slurmctld: 10,000 jobs make at most 33 of both a second.
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
