"""One job read again, just before something is done to it."""

from __future__ import annotations

from dataclasses import dataclass

from slurm_dl.model.errors import ClusterError
from slurm_dl.model.handover import Run
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobState
from slurm_dl.slurm.read.job_arrays import whole_labels
from slurm_dl.slurm.read.record_parser import job_records, new_nonce
from slurm_dl.slurm.read.squeue_fields import queue_arguments
from slurm_dl.slurm.read.vocabulary import address, epoch_s, is_number, job_state
from slurm_dl.slurm.tool_runner import Slurm
from slurm_dl.text import escaped

_NOW_FIELDS = (
    "JobID",
    "JobArrayID",
    "State",
    "StartTime",
    "RestartCnt",
    "Requeue",
    "Reservation",
    # What users write comes last.
    "Comment",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobNow:
    """One job as Slurm has it at this moment."""

    address: str  # How the tools must name it
    state: JobState
    run: Run  # Its run, as Slurm tells it; of no meaning for a pending job
    requeueable: bool  # Its Requeue flag is set; the owner may change it at any time
    reservation: str  # Its ReservationName; ``(null)`` if it has none
    comment: str  # Its comment, with U+FFFD for what cannot be decoded


def job_now(slurm: Slurm, job_id: JobId) -> JobNow | None:
    """Read one job again; None if Slurm does not list it.

    Raises:
        ClusterError: Slurm is silent, or the answer cannot be read.
    """
    nonce = new_nonce()
    try:
        text = slurm.run(
            "squeue",
            f"--jobs={int(job_id)}",
            *queue_arguments(_NOW_FIELDS, nonce),
        )
    except ClusterError:
        # An id that Slurm has forgotten is an error too. A controller that answers is not down.
        slurm.run("scontrol", "ping")
        return None
    records, _ = job_records(text, nonce, len(_NOW_FIELDS))
    labels = {JobId(int(raw_id)): label for raw_id, label, *_ in records if is_number(raw_id)}
    for raw_id, _, state, start, restarts, requeue, reservation, comment in records:
        # An array's id is also the id of one of its records: only that one is meant.
        if raw_id == str(job_id):
            mine = {job_id: labels[job_id]}
            try:
                now = job_state(state)
                whole = whole_labels(slurm, labels, mine) if now is JobState.PENDING else mine
                if not whole:
                    msg = f"array job {mine[job_id][:40]} changed while it was read"
                    raise ClusterError(msg)
                return JobNow(
                    address=address(whole[job_id]),
                    state=now,
                    run=Run(job_id=job_id, start_s=epoch_s(start), restarts=int(restarts)),
                    requeueable=requeue == "1",
                    reservation=reservation,
                    comment=comment,
                )
            except ValueError as err:
                msg = f"job {job_id} cannot be read: {escaped(str(err))}"
                raise ClusterError(msg) from None
    return None
