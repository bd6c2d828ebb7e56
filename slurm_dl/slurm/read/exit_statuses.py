"""With which status preemptible jobs have failed: asked of squeue once for each run."""

from __future__ import annotations

from slurm_dl.model.ids import JobId
from slurm_dl.slurm.read.job_table import JobTable
from slurm_dl.slurm.read.record_parser import job_records, new_nonce
from slurm_dl.slurm.read.squeue_fields import of_jobs, queue_arguments
from slurm_dl.slurm.read.vocabulary import is_number
from slurm_dl.slurm.tool_runner import Slurm

_FIELDS = ("JobID", "exit_code")


class ExitStatuses:
    """Statuses of the listed jobs that have a contract and are in Slurm's state FAILED.

    The reason is no substitute: of a batch shell that died of a signal it is JobLaunchFailure
    (22.05.8).
    """

    def __init__(self, slurm: Slurm) -> None:
        """Ask *slurm*; nothing is asked yet."""
        self._slurm = slurm
        self._runs: dict[JobId, int] = {}
        self.known: dict[JobId, int] = {}

    def learn(self, table: JobTable) -> None:
        """Set *known* to the statuses of the jobs in *table*, as a shell has them.

        Raises:
            ClusterError: Slurm did not answer.
        """
        restarts = dict(zip(table.job_id, table.restarts, strict=True))
        failed = {
            job: restarts[job]
            for job, claim in table.claims.items()
            if claim.contract is not None and table.texts[job].ending == "FAILED"
        }
        new = [job for job, run in failed.items() if self._runs.get(job) != run]
        self.known = {job: s for job, s in self.known.items() if job in failed and job not in new}
        self._runs = failed
        if not new:
            return
        nonce = new_nonce()
        text = self._slurm.run("squeue", *of_jobs(new), *queue_arguments(_FIELDS, nonce))
        for raw_id, status in job_records(text, nonce, len(_FIELDS))[0]:
            code = shell_status(status)
            if code is not None and is_number(raw_id) and (job := JobId(int(raw_id))) in failed:
                self.known[job] = code


def shell_status(text: str) -> int | None:
    """The exit status in a shell of what squeue says; None if that is no status.

    22.05 gives the wait status as a number, 24.11 and 26.05 ``status:signal``.
    """
    code, colon, by = text.partition(":")
    if not (is_number(code) and (is_number(by) or not colon)):
        return None
    signal = int(by) if colon else int(code) & 0x7F
    return 128 + signal if signal else int(code) if colon else int(code) >> 8
