"""What dlrun reports in the job's comment from time to time while the command runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from slurm_dl.job.controller import JobController


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
