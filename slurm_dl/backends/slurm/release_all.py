"""Give the cluster back to plain Slurm: what ``dlctl release-all`` does.

It needs squeue, sprio and scontrol and nothing of ours: no daemon, no ledger, no configuration
beyond the names of the managed partitions. It may be run any number of times.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from slurm_dl.backends.slurm.act import unseal, update_job
from slurm_dl.backends.slurm.command import Slurm, printable
from slurm_dl.backends.slurm.read_jobs import queue_arguments
from slurm_dl.backends.slurm.read_nodes import read_reservations
from slurm_dl.backends.slurm.records import new_nonce, split_records
from slurm_dl.backends.slurm.words import job_state
from slurm_dl.model.errors import ClusterError
from slurm_dl.model.handover import RESERVATION_PREFIX
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobState

_FIELDS = ("JobID", "JobArrayID", "State", "Partition", "Reservation")
_UNFINISHED = frozenset(JobState) - {JobState.COMPLETED, JobState.FAILED}


def site_factors(slurm: Slurm) -> dict[JobId, int]:
    """SiteFactor of each pending job that is eligible, by one sprio call.

    Slurm shows it in no other place, and of no other jobs (measured on 22.05.8). A job in
    several partitions may be listed for each; the value is the job's.

    Raises:
        ClusterError: Slurm is silent, or the answer cannot be read.
    """
    factors: dict[JobId, int] = {}
    for line in slurm.run("sprio", "--noheader", "--format=%i %S").splitlines():
        try:
            job_id, factor = line.split()
            factors[JobId(int(job_id))] = int(factor)
        except ValueError:
            msg = f"sprio says {printable(line)[:80]!r}, which is no job id and SiteFactor"
            raise ClusterError(msg) from None
    return factors


def release_all(slurm: Slurm, partitions: Collection[str]) -> Iterator[str]:
    """Undo whatever of ours is left in Slurm.

    SiteFactor 0 on the unfinished jobs of *partitions*, except where it is known to be 0; no
    pending job in a reservation of ours; no such reservation, or one that lapses by itself.

    Yields:
        One line for each thing done or refused.

    Raises:
        ClusterError: Slurm is silent, or something was refused (after all else was done).
    """
    refused = 0
    for label, setting in list(_job_steps(slurm, frozenset(partitions))):
        try:
            update_job(slurm, label, setting)
        except ClusterError as err:
            refused += 1
            yield f"job {label}: {setting} refused: {err}"
        else:
            yield f"job {label}: {setting}"
    shown = slurm.run("scontrol", "show", "reservation", "--oneliner")
    for name in [r.name for r in read_reservations(shown) if r.is_ours]:
        try:
            yield f"reservation {name}: {unseal(slurm, name)}"
        except ClusterError as err:
            refused += 1
            yield f"reservation {name}: refused: {err}"
    if refused:
        msg = f"{refused} things could not be released (jobs may just have ended); run it again"
        raise ClusterError(msg)


def _job_steps(slurm: Slurm, managed: frozenset[str]) -> Iterator[tuple[str, str]]:
    """What to set on which record, by its label."""
    factors = site_factors(slurm)
    for job_id, label, state, partitions, reservation in _unfinished(slurm):
        if state is JobState.PENDING and reservation.startswith(RESERVATION_PREFIX):
            yield label, "ReservationName="
        if managed.intersection(partitions.split(",")) and factors.get(job_id) != 0:
            yield label, "SiteFactor=0"


def _unfinished(slurm: Slurm) -> Iterator[tuple[JobId, str, JobState, str, str]]:
    nonce = new_nonce()
    text = slurm.run("squeue", *queue_arguments(_FIELDS, nonce))
    records, unreadable = split_records(text, nonce, len(_FIELDS))
    if unreadable:
        msg = f"{unreadable} records of the queue cannot be read; nothing is released"
        raise ClusterError(msg)
    for job_id, label, word, partition, reservation in records:
        try:
            state = job_state(word)
        except ValueError as err:
            raise ClusterError(printable(str(err))) from None
        if state in _UNFINISHED:
            yield JobId(int(job_id)), label, state, partition, reservation
