"""Give the cluster back to plain Slurm: what ``dlctl release-all`` does.

It needs squeue, sprio and scontrol (sacctmgr too, where Slurm preempts by itself) and nothing of
ours: no daemon, no ledger, no configuration beyond the names of the managed partitions and of the
QOS. It may be run any number of times.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from slurm_dl.backends.slurm.act import unseal, update_job
from slurm_dl.backends.slurm.arrays import doubtful_in, whole_labels
from slurm_dl.backends.slurm.command import Slurm, printable
from slurm_dl.backends.slurm.preflight import to_end_within
from slurm_dl.backends.slurm.read_jobs import queue_arguments
from slurm_dl.backends.slurm.read_nodes import read_reservations
from slurm_dl.backends.slurm.records import job_records, new_nonce
from slurm_dl.backends.slurm.words import job_state
from slurm_dl.model.errors import ClusterError
from slurm_dl.model.handover import RESERVATION_PREFIX
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobState

_FIELDS = ("JobID", "JobArrayID", "State", "Partition", "Reservation", "QOS")
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


def release_all(slurm: Slurm, partitions: Collection[str], *, within: str = "") -> Iterator[str]:
    """Undo whatever of ours is left in Slurm.

    SiteFactor 0 on the unfinished jobs of *partitions*, except where it is known to be 0; no
    pending job in a reservation of ours; no such reservation, or one that lapses by itself.

    Waiting jobs come first: from then on none has a higher priority than a running one. Where
    Slurm itself preempts inside a QOS, running jobs of that QOS keep what they have until it no
    longer does, or all of them would at once have to give way to whoever has waited longest.

    Args:
        within: QOS inside which Slurm may preempt by itself; empty: none.

    Yields:
        One line for each thing done or refused.

    Raises:
        ClusterError: Slurm is silent, or something was refused or kept (after all else was done).
    """
    kept = _why_keep(slurm, within) if within else ""
    refused = 0
    todo, keeping = _job_steps(slurm, frozenset(partitions), keep_running_of=within if kept else "")
    for label, setting in todo:
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
    if keeping:
        msg = f"{keeping} running jobs of QOS {within} keep their SiteFactor: {kept}"
        raise ClusterError(msg)
    if refused:
        msg = f"{refused} things could not be released (jobs may just have ended); run it again"
        raise ClusterError(msg)


def _why_keep(slurm: Slurm, qos: str) -> str:
    """Why running jobs of *qos* keep their SiteFactor for now; empty if they need not."""
    try:
        end = to_end_within(slurm, qos)
    except ClusterError as err:
        return (
            f"whether Slurm preempts inside it cannot be found out ({err}); "
            f"sacctmgr modify qos {qos} set PreemptMode=REQUEUE, and run this again"
        )
    if not end:
        return ""
    return (
        "Slurm preempts inside it and would stop them for whoever has waited longer; "
        f"{end}, and run this again"
    )


def _job_steps(
    slurm: Slurm, managed: frozenset[str], *, keep_running_of: str
) -> tuple[list[tuple[str, str]], int]:
    """What to set on which record, by its label, and how many running jobs are to be kept."""
    factors = site_factors(slurm)
    waiting, running, kept = [], [], 0
    for job_id, label, state, partitions, reservation, qos in _unfinished(slurm):
        if state is JobState.PENDING and reservation.startswith(RESERVATION_PREFIX):
            waiting.append((label, "ReservationName="))
        if not managed.intersection(partitions.split(",")) or factors.get(job_id) == 0:
            continue
        if state is JobState.PENDING:
            waiting.append((label, "SiteFactor=0"))
        elif keep_running_of and qos == keep_running_of:
            kept += 1
        else:
            running.append((label, "SiteFactor=0"))
    return [*waiting, *running], kept


def _unfinished(slurm: Slurm) -> Iterator[tuple[JobId, str, JobState, str, str, str]]:
    nonce = new_nonce()
    text = slurm.run("squeue", *queue_arguments(_FIELDS, nonce))
    records, unreadable = job_records(text, nonce, len(_FIELDS))
    if unreadable:
        msg = f"{unreadable} records of the queue cannot be read; nothing is released"
        raise ClusterError(msg)
    labels = {JobId(int(job_id)): label for job_id, label, *_ in records}
    labels |= whole_labels(slurm, labels, doubtful_in(labels))
    for raw_id, _, word, partition, reservation, qos in records:
        try:
            state = job_state(word)
        except ValueError as err:
            raise ClusterError(printable(str(err))) from None
        if state in _UNFINISHED:
            job_id = JobId(int(raw_id))
            yield job_id, labels[job_id], state, partition, reservation, qos
