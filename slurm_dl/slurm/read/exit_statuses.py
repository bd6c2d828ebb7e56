"""With which status preemptible jobs have failed: asked of squeue until it tells, for each run."""

from __future__ import annotations

from contextlib import suppress

from slurm_dl.model.errors import ClusterError
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
        self._told: dict[tuple[JobId, int], int] = {}
        self.known: dict[JobId, int | None] = {}

    def learn(self, table: JobTable) -> None:
        """Set *known* to the statuses of the jobs in *table*, as a shell has them.

        None of those of which squeue tells nothing now: they are asked for again next time.
        """
        restarts = dict(zip(table.job_id, table.restarts, strict=True))
        failed = {
            job: (job, restarts[job])
            for job, claim in table.claims.items()
            if claim.contract is not None and table.texts[job].ending == "FAILED"
        }
        self._told = {run: self._told[run] for run in failed.values() if run in self._told}
        if new := [job for job, run in failed.items() if run not in self._told]:
            with suppress(ClusterError):
                told = self._ask(new)
                self._told |= {failed[job]: how for job, how in told.items() if job in failed}
        self.known = {job: self._told.get(run) for job, run in failed.items()}

    def _ask(self, jobs: list[JobId]) -> dict[JobId, int]:
        nonce = new_nonce()
        text = self._slurm.run("squeue", *of_jobs(jobs), *queue_arguments(_FIELDS, nonce))
        records, _ = job_records(text, nonce, len(_FIELDS))
        return {JobId(int(job)): shell_status(how) or 0 for job, how in records if is_number(job)}


def shell_status(text: str) -> int | None:
    """The exit status in a shell of what squeue says; None if that is no status.

    22.05 gives the wait status as a number, 24.11 and 26.05 ``status:signal``.
    """
    code, colon, by = text.partition(":")
    if not (is_number(code) and (is_number(by) or not colon)):
        return None
    signal = int(by) if colon else int(code) & 0x7F
    return 128 + signal if signal else int(code) if colon else int(code) >> 8
