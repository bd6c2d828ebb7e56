"""Fields of each job that squeue is asked for, by release."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from slurm_dl.slurm.read.record_parser import output_format
from slurm_dl.slurm.releases import Release

JOB_FIELDS = (
    "JobID",
    "JobArrayID",
    "HetJobID",
    "State",
    "Reason",
    "Partition",
    "UserID",
    "UserName",
    "Account",
    "QOS",
    "NumNodes",
    "NumTasks",
    "Sockets",
    "NumCPUs",
    "tres-alloc",
    "tres-per-node",
    "tres-per-job",
    "tres-per-task",
    "tres-per-socket",
    "NodeList",
    "SubmitTime",
    "StartTime",
    "EndTime",
    "EligibleTime",
    "TimeLimit",
    "RestartCnt",
    "Requeue",
    "BatchFlag",
    "OverSubscribe",
    "PriorityLong",
    "Reservation",
    "ReqNodes",
    "Feature",
    "Deadline",
    # What users write comes last. A WCKey is told also where Slurm does not track it (22.05.8).
    "WCKey",
    "Name",
    "Comment",
)
"""What is read of each job, in this order; `job_fields` says how to ask for it."""

MOST_NAMED = 1000
"""Job ids in one command; an argument of Linux holds 128 KiB."""

# From 26.05 on Exclusive says so alone, and OverSubscribe is NO for nearly every job (Slurm's
# change log of 26.05.0rc1; measured on 26.05.5).
_HAS_EXCLUSIVE = Release(26, 5)
_OLDER_WORDS = {"NODE": "NO", "NO": "OK"}


def job_fields(release: Release) -> tuple[str, ...]:
    """`JOB_FIELDS` as squeue of *release* is to be asked for them."""
    if release < _HAS_EXCLUSIVE:
        return JOB_FIELDS
    return tuple("Exclusive" if name == "OverSubscribe" else name for name in JOB_FIELDS)


def of_jobs(job_ids: Collection[int]) -> tuple[str, ...]:
    """Arguments for squeue that restrict it to *job_ids*; none, so to all jobs, if they are many.

    A job that Slurm no longer has is no line. Named once alone it would be an error (exit 1); named
    twice it is not (measured on 22.05.8). An array's id also selects the records of its tasks.
    """
    if len(job_ids) > MOST_NAMED:
        return ()
    named = [str(int(job_id)) for job_id in sorted(job_ids)]
    return (f"--jobs={','.join(named if len(named) > 1 else named * 2)}",)


def queue_arguments(fields: Sequence[str], nonce: str) -> tuple[str, ...]:
    """Arguments for squeue that list every job it knows as *fields* separated by *nonce*."""
    return (
        # --array: without it squeue folds the pending records of an array into one, and a
        # requeued array task is not listed at all (measured on 22.05.8, 24.11.5 and 26.05.5; the
        # first alone knows --array-unique). --noconvert: 1024 nodes are not 1K.
        *("--noheader", "--all", "--local", "--noconvert", "--array", "--states=all"),
        f"--Format={output_format(fields, nonce)}",
    )


def in_known_words(records: list[list[str]], release: Release) -> list[list[str]]:
    """*records* as squeue of *release* told them, in the words that readers know.

    What is said of Exclusive gets the word that OverSubscribe had for it; *records* are changed.
    """
    if release < _HAS_EXCLUSIVE:
        return records
    at = JOB_FIELDS.index("OverSubscribe")
    for record in records:
        record[at] = _OLDER_WORDS.get(record[at], record[at])
    return records
