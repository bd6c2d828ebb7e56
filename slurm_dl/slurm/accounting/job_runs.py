"""The runs of single jobs as Slurm's accounting has them: ``sacct --duplicates``.

A cluster may have no slurmdbd, or no sacct where we run. Then there is nothing to be told, which is
an error of its own, and nothing else depends on it. slurmctld is not asked at all.

No field that a user can write is asked for, so the bars of ``--parsable2`` cannot be forged.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slurm_dl.ledger.rebuild_from_accounting import ReportedRun
from slurm_dl.model.errors import ClusterError
from slurm_dl.slurm.read.tres import parse_gres
from slurm_dl.slurm.read.vocabulary import bounded_epoch_s, limit_s
from slurm_dl.slurm.tool_runner import Slurm

FIELDS = (
    "JobIDRaw",
    "UID",
    "Submit",
    "Eligible",
    "Start",
    "End",
    "State",
    "ElapsedRaw",
    "Suspended",
    "AllocTRES",
)
"""Asked of sacct, in this order. JobIDRaw is what squeue calls JobID, of array tasks and components
of het jobs too (measured on 22.05.8, 24.11.5, 26.05.5). Restarts is not asked for: 22.05 has none.
"""

IDS_AT_ONCE = 200
"""Jobs asked about in one call. All runs of 200 jobs are a small answer to one indexed query."""

_REQUEUED = frozenset({"REQUEUED", "PREEMPTED", "REQUEUE_HOLD"})
_DISABLED = "accounting storage is disabled"
_ID = re.compile(r"[0-9]{1,18}")
_MOST_GPUS = 1e6


class NoAccountingError(ClusterError):
    """There is no accounting to ask; asking again soon is of no use."""


@dataclass(frozen=True, slots=True)
class Told:
    """Result of one query of accounting."""

    runs: tuple[ReportedRun, ...]  # Records of the jobs in *asked*, in no order
    asked: frozenset[int]  # Ids of jobs about which it was asked; of some it may know nothing
    unreadable: int  # Records that could not be read and were left out


def run_arguments(job_ids: Sequence[int]) -> tuple[str, ...]:
    """Arguments for sacct that list every run of *job_ids*, however old.

    Without ``--starttime`` a list of ids means all times, which is what we rely on (measured on all
    three releases). ``--allusers``, because without it an Operator sees only jobs of its own.
    """
    return (
        *("--allusers", "--duplicates", "--allocations", "--noheader", "--parsable2"),
        f"--format={','.join(FIELDS)}",
        f"--jobs={','.join(map(str, job_ids))}",
    )


class Accounting:
    """Slurm's accounting, asked through sacct.

    Args:
        slurm: The commands.
        clock: Seconds that only go forward.
    """

    def __init__(self, slurm: Slurm, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._slurm = slurm
        self._clock = clock

    def runs(self, job_ids: Sequence[int], *, within_s: float) -> Told:
        """The runs of *job_ids*, of as many of them as can be asked about in the time.

        Args:
            within_s: No longer than this, seconds.

        Raises:
            NoAccountingError: This cluster has none, or sacct is not installed.
            ClusterError: It did not answer, or not readably; not even about the first jobs.
        """
        if not self._slurm.has("sacct"):
            msg = "sacct is not installed"
            raise NoAccountingError(msg)
        until_s = self._clock() + within_s
        runs: list[ReportedRun] = []
        asked: set[int] = set()
        unreadable = 0
        for first in range(0, len(job_ids), IDS_AT_ONCE):
            some = job_ids[first : first + IDS_AT_ONCE]
            left_s = until_s - self._clock()
            if left_s <= 0:
                break
            try:
                found, bad = read_runs(self._ask(some, left_s), frozenset(some))
            except ClusterError:
                if not asked:
                    raise
                break
            runs += found
            unreadable += bad
            asked.update(some)
        return Told(tuple(runs), frozenset(asked), unreadable)

    def _ask(self, job_ids: Sequence[int], within_s: float) -> str:
        try:
            return self._slurm.run("sacct", *run_arguments(job_ids), within_s=within_s)
        except ClusterError as err:
            if _DISABLED in str(err):
                msg = "Slurm's accounting storage is disabled"
                raise NoAccountingError(msg) from None
            raise


def read_runs(text: str, wanted: frozenset[int]) -> tuple[list[ReportedRun], int]:
    """The runs of the jobs *wanted* in sacct's output, and how many records cannot be read.

    Asked for the id of an array or a het job, sacct tells of all its tasks or components. Those
    that are not wanted are passed over.

    Raises:
        ClusterError: The output is cut short, or nothing in it is a record.
    """
    if text and not text.endswith("\n"):
        msg = "sacct's output stops in the middle of a record; nothing of it is used"
        raise ClusterError(msg)
    runs: list[ReportedRun] = []
    unreadable = 0
    lines = text.split("\n")[:-1]
    for line in lines:
        try:
            runs.append(_run(line.split("|")))
        except (ValueError, OverflowError):
            unreadable += 1
    # A single job may have a record that makes no sense, and be the only one asked about.
    if lines and all(line.count("|") != len(FIELDS) - 1 for line in lines):
        msg = f"none of {len(lines)} records of sacct can be read; is this Slurm supported?"
        raise ClusterError(msg)
    return [run for run in runs if run.job_id in wanted], unreadable


def _run(fields: list[str]) -> ReportedRun:
    """One record; ValueError if it is none."""
    job_id, uid, submit, eligible, start, end, state, elapsed, suspended, alloc = fields
    word = state.partition(" ")[0]
    submit_s, start_s, end_s = bounded_epoch_s(submit), bounded_epoch_s(start), bounded_epoch_s(end)
    gpus = parse_gres(alloc).gpus or None
    if not word or not submit_s or (end_s and end_s < start_s) or (gpus or 0) > _MOST_GPUS:
        msg = "no run of a job"
        raise ValueError(msg)
    return ReportedRun(
        job_id=_whole(job_id),
        uid=_whole(uid),
        submit_s=submit_s,
        eligible_s=bounded_epoch_s(eligible),
        # 22.05 gives the end as the start of a job that was cancelled while it waited.
        start_s=start_s if alloc else 0.0,
        end_s=end_s,
        elapsed_s=float(_whole(elapsed)),
        suspended_s=_span_s(suspended),
        gpus=gpus,
        is_suspended=word == "SUSPENDED",
        is_part=word == "RESIZING",
        is_requeued=word in _REQUEUED,
    )


def _whole(text: str) -> int:
    if not _ID.fullmatch(text):
        msg = f"{text[:40]!r} is no whole number"
        raise ValueError(msg)
    return int(text)


def _span_s(text: str) -> float:
    """A time span, ``[D-]HH:MM:SS``, in seconds."""
    found = limit_s(text)
    if found == float("inf"):
        msg = f"{text[:40]!r} is no time span"
        raise ValueError(msg)
    return found
