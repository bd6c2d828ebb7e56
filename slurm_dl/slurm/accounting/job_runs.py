"""The runs of single jobs as Slurm's accounting has them, for the ledger.

No field that a user can write is asked for.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from slurm_dl.ledger.rebuild_from_accounting import ReportedRun
from slurm_dl.model.errors import ClusterError
from slurm_dl.slurm.accounting.query import Record, arguments, ask, parse, whole
from slurm_dl.slurm.read.tres import parse_gres
from slurm_dl.slurm.read.vocabulary import bounded_epoch_s, limit_s
from slurm_dl.slurm.tool_runner import Slurm

FIELDS: Final = (
    *("JobIDRaw", "UID", "Submit", "Eligible", "Start", "End", "State"),
    *("ElapsedRaw", "Suspended", "AllocTRES"),
)
"""Asked of sacct, in this order. JobIDRaw is what squeue calls JobID, of array tasks and components
of het jobs too (measured on 22.05.8, 24.11.5, 26.05.5). Restarts is not asked for: 22.05 has none.
"""

IDS_AT_ONCE: Final = 200
"""Jobs asked about in one call. All runs of 200 jobs are a small answer to one indexed query."""

_REQUEUED: Final = frozenset({"REQUEUED", "PREEMPTED", "REQUEUE_HOLD"})
_MOST_GPUS: Final = 1e6


@dataclass(frozen=True, slots=True)
class Told:
    """Result of one query of accounting."""

    runs: tuple[ReportedRun, ...]  # Records of the jobs in *asked*, in no order
    asked: frozenset[int]  # Ids of jobs about which it was asked; of some it may know nothing
    unreadable: int  # Records that could not be read and were left out


def run_arguments(job_ids: Sequence[int]) -> tuple[str, ...]:
    """Arguments for sacct that list every run of *job_ids*, however old.

    Without ``--starttime`` a list of ids means all times, which is what we rely on (measured on all
    three releases).
    """
    return arguments(FIELDS, f"--jobs={','.join(map(str, job_ids))}")


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
                text = ask(self._slurm, *run_arguments(some), within_s=left_s)
                found, bad = read_runs(text, frozenset(some))
            except ClusterError:
                if not asked:
                    raise
                break
            runs += found
            unreadable += bad
            asked.update(some)
        return Told(tuple(runs), frozenset(asked), unreadable)


def read_runs(text: str, wanted: frozenset[int]) -> tuple[list[ReportedRun], int]:
    """The runs of the jobs *wanted* in sacct's output, and how many records cannot be read.

    Asked for the id of an array or a het job, sacct tells of all its tasks or components. Those
    that are not wanted are passed over.

    Raises:
        ClusterError: The output is cut short, or nothing in it is a record.
    """
    runs = []
    records, unreadable = parse(text, FIELDS, dict)
    for record in records:
        # A single job may have a record that makes no sense, and be the only one asked about.
        try:
            runs.append(reported_run(record))
        except (ValueError, OverflowError):
            unreadable += 1
    return [run for run in runs if run.job_id in wanted], unreadable


def reported_run(record: Record) -> ReportedRun:
    """One record; ValueError if it makes no sense."""
    word = record["State"].partition(" ")[0]
    submit_s, eligible_s, start_s, end_s = (
        bounded_epoch_s(record[name]) for name in ("Submit", "Eligible", "Start", "End")
    )
    gpus = parse_gres(record["AllocTRES"]).gpus or None
    suspended_s = limit_s(record["Suspended"])
    if (
        not word
        or not submit_s
        or 0 < end_s < start_s
        or (gpus or 0) > _MOST_GPUS
        or math.isinf(suspended_s)
    ):
        msg = "no run of a job"
        raise ValueError(msg)
    return ReportedRun(
        job_id=whole(record["JobIDRaw"]),
        uid=whole(record["UID"]),
        submit_s=submit_s,
        eligible_s=eligible_s,
        # 22.05 gives the end as the start of a job that was cancelled while it waited.
        start_s=start_s if record["AllocTRES"] else 0.0,
        end_s=end_s,
        elapsed_s=float(whole(record["ElapsedRaw"])),
        suspended_s=suspended_s,
        gpus=gpus,
        is_suspended=word == "SUSPENDED",
        is_part=word == "RESIZING",
        is_requeued=word in _REQUEUED,
    )
