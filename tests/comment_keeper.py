"""A Slurm that keeps one job's comment, for what dlrun writes into it."""

from __future__ import annotations

import json

from slurm_dl.job.controller import CallFailedError, JobController, JobStatus
from slurm_dl.job.run_files import RunId

COMMENT = '{"slurm_dl":{"v":1,"sig":"USR1","ack":2},"mine":"é"}'
RUN = RunId(2, 0)


class CommentKeeper(JobController):
    """A Slurm that keeps a comment, or is silent."""

    def __init__(self, comment: str = COMMENT) -> None:
        self.comment = comment
        self.silent = False
        self.label = "7"
        self._scontrol = "scontrol"
        self.updates = self.asked = 0

    def standing(self) -> JobStatus:
        """What it says of the job."""
        self.asked += 1
        if self.silent:
            msg = "silent"
            raise CallFailedError(msg)
        return JobStatus("RUNNING", None, self.comment)

    def _call(self, argv: list[str]) -> str:
        self.comment = argv[-1].removeprefix("Comment=")
        self.updates += 1
        return ""

    @property
    def rate(self) -> object:
        """The rate in the comment."""
        return json.loads(self.comment)["slurm_dl"].get("rate")

    @property
    def saved_s(self) -> object:
        """When the job last saved, as the comment says."""
        return json.loads(self.comment)["slurm_dl"].get("saved")
