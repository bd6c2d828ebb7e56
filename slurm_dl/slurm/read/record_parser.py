"""Records in Slurm's text output that nobody can forge, and the fields that squeue prints.

Job names and comments may hold newlines, bars and whole fake records (measured on 22.05.8:
sbatch takes them and squeue prints them raw). So the separators are a nonce drawn anew for each
call; text written before the call cannot contain it.

Whoever runs a tool of Slurm's imports this, users' commands too: nothing heavy.
"""

from __future__ import annotations

import string
from collections.abc import Collection, Iterable, Sequence

from slurm_dl.model.errors import ClusterError
from slurm_dl.slurm.read.grammar import tasks_as_one
from slurm_dl.slurm.releases import Release


class ArrayFold:
    """Squeue's output with one record for the pending tasks of an array, made while it comes.

    The tasks share an id and all else; their records differ in the label alone. Squeue spells out
    each task with all that its owner wrote, and an array may have millions: the whole output is
    never held.
    """

    def __init__(self, nonce: str) -> None:
        self._field, self._end = f"{nonce}f", f"{nonce}r\n"
        self._rest = b""
        self._labels: dict[tuple[str, str], list[str]] = {}

    def feed(self, chunk: bytes) -> None:
        """Take in the next part of the output."""
        *records, self._rest = (self._rest + chunk).split(self._end.encode())
        self.add(record.decode("utf-8", errors="replace") for record in records)

    def add(self, records: Iterable[str]) -> None:
        """Take in whole records, which begin with JobID and JobArrayID."""
        for record in records:
            at = record.find(self._field)
            first = at + len(self._field) if at >= 0 else len(record)
            end = record.find(self._field, first) % (len(record) + 1)  # -1 is the very end.
            around = record[:first], record[end:]
            self._labels.setdefault(around, []).append(record[first:end])

    def records(self) -> list[str]:
        """The records so far: one for the tasks of an array, others as they came."""
        found = []
        for (before, after), labels in self._labels.items():
            whole = tasks_as_one(labels) if len(labels) > 1 else None
            found += [before + one + after for one in (labels if whole is None else [whole])]
        return found

    def text(self) -> str:
        """The output so far."""
        rest = self._rest.decode("utf-8", errors="replace")
        return "".join(record + self._end for record in self.records()) + rest


def fold_of(args: Sequence[str]) -> ArrayFold | None:
    """The fold of squeue's output for *args*, if they list the tasks of arrays by id and label."""
    if "--array" not in args:
        return None
    fields = [word.partition(":") for word in args[-1].removeprefix("--Format=").split(",")]
    if [name for name, _, _ in fields[:2]] != ["JobID", "JobArrayID"]:
        return None
    return ArrayFold(fields[-1][2].removesuffix("r"))


_NONCE_CHARS = string.ascii_lowercase + string.digits


def new_nonce() -> str:
    """A separator that no text in the queue contains."""
    # In squeue's -O "FIELD:SUFFIX", leading digits or a dot of the suffix would be a width. It
    # stands behind every field of every job, so it is short: 46 bits, drawn for one call.
    import secrets  # noqa: PLC0415 - commands begin fast

    return "x" + "".join(secrets.choice(_NONCE_CHARS) for _ in range(9))


def output_format(fields: Sequence[str], nonce: str) -> str:
    """The ``-O`` argument that prints *fields* untruncated with separators made of *nonce*."""
    parts = [f"{name}:{nonce}f" for name in fields[:-1]]
    return ",".join([*parts, f"{fields[-1]}:{nonce}r"])


def raw_records(text: str, nonce: str) -> list[str]:
    """The records of *text*, not split into fields yet.

    Raises:
        ClusterError: The output stops in the middle of a record.
    """
    raw = text.split(f"{nonce}r\n")
    if raw.pop() != "":
        msg = "Slurm's output stops in the middle of a record; nothing of it is used"
        raise ClusterError(msg)
    return raw


def one_per_job(raw: list[str], nonce: str) -> tuple[list[str], int]:
    """The *raw* job records with one for each job id, and how many were left out for that.

    Pending tasks of an array become one record, see `ArrayFold`. No row may stand for two: of
    others with one id the first is kept.

    Args:
        raw: Records that begin with JobID and JobArrayID.
    """
    if len({record.partition(f"{nonce}f")[0] for record in raw}) == len(raw):
        return raw, 0
    fold = ArrayFold(nonce)
    fold.add(raw)
    records = fold.records()
    whole: dict[str, str] = {}
    for record in records:
        whole.setdefault(record.partition(f"{nonce}f")[0], record)
    return list(whole.values()), len(records) - len(whole)


def split_fields(raw: Sequence[str], nonce: str, width: int) -> list[list[str]]:
    """Those of the *raw* records that have exactly *width* fields."""
    separator = f"{nonce}f"
    return [fields for record in raw if len(fields := record.split(separator)) == width]


def split_records(text: str, nonce: str, width: int) -> tuple[list[list[str]], int]:
    """The records of *text* and how many others had not exactly *width* fields.

    Raises:
        ClusterError: The output stops in the middle of a record, or no record can be read.
    """
    return _all_split(raw_records(text, nonce), nonce, width)


def job_records(text: str, nonce: str, width: int) -> tuple[list[list[str]], int]:
    """The jobs of squeue's *text* and how many others cannot be read; see `one_per_job`.

    Raises:
        ClusterError: The output stops in the middle of a record, or no record can be read.
    """
    raw, left_out = one_per_job(raw_records(text, nonce), nonce)
    records, unreadable = _all_split(raw, nonce, width)
    return records, unreadable + left_out


def _all_split(raw: Sequence[str], nonce: str, width: int) -> tuple[list[list[str]], int]:
    records = split_fields(raw, nonce, width)
    if raw and not records:
        raise none_readable(len(raw))
    return records, len(raw) - len(records)


def none_readable(records: int) -> ClusterError:
    """The error for output of which nothing can be read: a Slurm that is not known, most likely."""
    return ClusterError(f"none of {records} records can be read; is this Slurm supported?")


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

MOST_NAMED = 1000  # Job ids in one command; an argument of Linux holds 128 KiB

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
