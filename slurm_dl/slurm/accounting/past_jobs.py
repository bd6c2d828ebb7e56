"""Jobs that are over, out of Slurm's accounting, as policies learn from them.

Names of jobs are asked for, in which their users write what they like, whole records among it. So
the fields end in a word drawn anew for each call (see `slurm_dl.slurm.read.record_parser`), and the
name comes first: a line that begins in it cannot pass for the end of a record.

A window of time is asked for after the other, and a run belongs to the one in which it ended. What
was read is kept, so that later reads ask for what is new; accounting may be late, so the last hour
is asked for again.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple

import numpy as np

from slurm_dl.model.completed_jobs import NO_PAST, Past
from slurm_dl.model.errors import ClusterError
from slurm_dl.model.jobs import I32
from slurm_dl.slurm.accounting import site_history
from slurm_dl.slurm.accounting.job_runs import NoAccountingError
from slurm_dl.slurm.read.record_parser import new_nonce
from slurm_dl.slurm.read.tres import parse_gres
from slurm_dl.slurm.read.vocabulary import bounded_epoch_s
from slurm_dl.slurm.tool_runner import Slurm

FIELDS: Final = ("JobName", *site_history.FIELDS)

WINDOW_S: Final = site_history.WINDOW.total_seconds()
SHORTEST_S: Final = site_history.SHORTEST.total_seconds()
"""A window that slurmdbd does not answer in time is halved, down to this."""

LATE_S: Final = 3600.0
"""Accounting may learn of an end so much later."""

MOST_RUNS: Final = 500_000
"""The last of them; half a gigabyte."""

_OVER: Final = frozenset(
    {
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "TIMEOUT",
    }
)
_ID: Final = re.compile(r"([0-9]{1,18}(?:_[0-9]{1,10})?)(?:\+([0-9]{1,5}))?")
_WHOLE: Final = re.compile(r"[0-9]{1,12}")
_LONGEST_TRES: Final = 1000
_LONGEST_NAME: Final = 1024
_MOST_GPUS: Final = 1e6
_NO_ANSWER: Final = "no answer in"
_DISABLED: Final = "accounting storage is disabled"


class AccountedRun(NamedTuple):
    """One run of a job, or of a component of a heterogeneous one, that held GPUs and has ended."""

    job: str  # Its id, with that of its task
    component: int  # 0 but for components other than the leader
    user: str
    account: str
    name: str
    gpus: float  # GPUs it held
    submit_s: float  # Submission that led to it, epoch seconds; a requeue is one
    start_s: float  # Epoch seconds
    end_s: float  # Epoch seconds
    ran_s: float  # Seconds, those of a suspension left out
    is_over: bool  # No further run follows


def run_of(record: Mapping[str, str]) -> AccountedRun | None:
    """The run that a record tells of, by the names of its fields; None of a job without GPUs.

    None also if it has not begun or not ended, or is a step.

    Raises:
        ValueError: It is no record of a job.
    """
    if "." in record["JobID"]:
        return None
    found = _ID.fullmatch(record["JobID"])
    words = record["State"].split()
    if found is None or not words:
        msg = "no run of a job"
        raise ValueError(msg)
    start_s, end_s = bounded_epoch_s(record["Start"]), bounded_epoch_s(record["End"])
    ran_s = float(_whole(record["ElapsedRaw"]))
    tres = (record.get("AllocTRES", ""), record.get("ReqTRES", ""))
    gpus = next((g for text in tres if (g := parse_gres(text[:_LONGEST_TRES]).gpus)), 0.0)
    if not (0 < gpus <= _MOST_GPUS and 0 < start_s <= end_s and ran_s > 0):
        return None
    return AccountedRun(
        job=found[1],
        component=int(found[2] or 0),
        user=record["User"][:_LONGEST_NAME],
        account=record["Account"][:_LONGEST_NAME],
        name=record["JobName"][:_LONGEST_NAME],
        gpus=gpus,
        submit_s=bounded_epoch_s(record["Submit"]),
        start_s=start_s,
        end_s=end_s,
        ran_s=ran_s,
        is_over=words[0].rstrip("+") in _OVER,
    )


def past_of(runs: Iterable[AccountedRun]) -> Past:
    """The jobs whose last run has none behind it; all runs of one together."""
    jobs: defaultdict[tuple[str, str], defaultdict[int, list[AccountedRun]]]
    jobs = defaultdict(lambda: defaultdict(list))
    for run in runs:
        jobs[run.job, run.user][run.component].append(run)
    over = [job for parts in jobs.values() if (job := _whole_job(parts)) is not None]
    if not over:
        return NO_PAST
    over.sort(key=lambda run: (run.end_s, run.job, run.user))
    accounts: dict[str, int] = {}
    users: dict[str, int] = {}
    names: dict[str, int] = {}

    def numbers(words: Iterable[str], table: dict[str, int]) -> I32:
        return np.array([table.setdefault(word, len(table)) for word in words], dtype=np.int32)

    return Past(
        account=numbers((run.account for run in over), accounts),
        user=numbers((run.user for run in over), users),
        name=numbers((run.name for run in over), names),
        gpus=np.array([run.gpus for run in over]),
        submit_s=np.array([run.submit_s for run in over]),
        start_s=np.array([run.start_s for run in over]),
        end_s=np.array([run.end_s for run in over]),
        ran_s=np.array([run.ran_s for run in over]),
        accounts=tuple(accounts),
        users=tuple(users),
        names=tuple(names),
    )


def _whole_job(parts: Mapping[int, list[AccountedRun]]) -> AccountedRun | None:
    """All runs of all components of a job as one; None if it goes on."""
    leader = max(parts[min(parts)], key=lambda run: (run.submit_s, run.end_s))
    if not leader.is_over:
        return None
    every = [run for part in parts.values() for run in part]
    last = [max(part, key=lambda run: (run.submit_s, run.end_s)) for part in parts.values()]
    return leader._replace(
        gpus=sum(run.gpus for run in last),
        submit_s=min(run.submit_s for run in every),
        start_s=min(run.start_s for run in every),
        end_s=max(run.end_s for run in every),
        ran_s=max(sum(run.ran_s for run in part) for part in parts.values()),
    )


class PastReader:
    """Reads the jobs of the last days, and from then on what is new.

    Args:
        slurm: The commands.
        days: How far back, above 0.
        clock: Epoch seconds.

    Attributes:
        unreadable: Records left out so far.
    """

    def __init__(
        self, slurm: Slurm, *, days: float, clock: Callable[[], float] = time.time
    ) -> None:
        self.unreadable = 0
        self._slurm = slurm
        self._back_s = days * 86_400.0
        self._clock = clock
        self._runs: dict[AccountedRun, None] = {}
        self._until_s = 0.0
        self._width_s = WINDOW_S

    def read(self) -> Past:
        """The jobs that are over by now. May take minutes the first time.

        What was read before an error is kept, and the next call goes on from there.

        Raises:
            NoAccountingError: This cluster has none, or sacct is not installed.
            ClusterError: Accounting does not answer, or not readably.
        """
        if not self._slurm.has("sacct"):
            msg = "sacct is not installed"
            raise NoAccountingError(msg)
        now_s = float(int(self._clock()))
        since_s = now_s - self._back_s
        begin_s = max(since_s, self._until_s - LATE_S)
        while begin_s < now_s:
            end_s = min(begin_s + self._width_s, now_s)
            if not self._read_window(begin_s, end_s):
                self._width_s /= 2
                continue
            begin_s = self._until_s = end_s
        self._width_s = WINDOW_S
        self._runs = dict.fromkeys([run for run in self._runs if run.end_s >= since_s][-MOST_RUNS:])
        return past_of(self._runs)

    def _read_window(self, begin_s: float, end_s: float) -> bool:
        """Keep the runs that ended in a window; False if it is too long to be answered."""
        nonce = new_nonce()
        try:
            text = self._slurm.run("sacct", *window_arguments(begin_s, end_s, nonce))
        except ClusterError as err:
            if _NO_ANSWER in str(err) and self._width_s > SHORTEST_S:
                return False
            if _DISABLED in str(err):
                msg = "Slurm's accounting storage is disabled"
                raise NoAccountingError(msg) from None
            raise
        runs, unreadable = read_runs(text, nonce)
        self.unreadable += unreadable
        self._runs.update((run, None) for run in runs if begin_s <= run.end_s <= end_s)
        return True


def window_arguments(begin_s: float, end_s: float, nonce: str) -> tuple[str, ...]:
    """Arguments for sacct that list every run that was there between the two instants."""

    def clock(when_s: float) -> str:
        # Slurm's commands run in UTC here.
        return datetime.fromtimestamp(when_s, UTC).strftime("%Y-%m-%dT%H:%M:%S")

    return (
        # With --parsable a separator also ends each record.
        *("--allusers", "--duplicates", "--allocations", "--noheader", "--parsable"),
        f"--delimiter={nonce}",
        f"--format={','.join(FIELDS)}",
        f"--starttime={clock(begin_s)}",
        f"--endtime={clock(end_s)}",
    )


def read_runs(text: str, nonce: str) -> tuple[list[AccountedRun], int]:
    """The runs in sacct's output, and how many of its records cannot be read.

    Raises:
        ClusterError: The output is cut short, or nothing in it can be read.
    """
    records = text.split(f"{nonce}\n")
    if records.pop() != "":
        msg = "sacct's output stops in the middle of a record; nothing of it is used"
        raise ClusterError(msg)
    runs, unreadable = [], 0
    for record in records:
        try:
            run = run_of(dict(zip(FIELDS, record.split(nonce), strict=True)))
        except (ValueError, OverflowError):
            unreadable += 1
        else:
            runs += [] if run is None else [run]
    if records and unreadable == len(records):
        msg = f"none of {len(records)} records of sacct can be read; is this Slurm supported?"
        raise ClusterError(msg)
    return runs, unreadable


def _whole(text: str) -> int:
    if not _WHOLE.fullmatch(text):
        msg = f"{text[:40]!r} is no whole number"
        raise ValueError(msg)
    return int(text)
