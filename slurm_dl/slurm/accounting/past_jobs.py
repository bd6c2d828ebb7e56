"""Jobs that are over, out of Slurm's accounting: as policies learn from them, and as dumps.

A run belongs to the window of time in which it ended. What was read is kept, so that later reads
ask for what is new; accounting may be late, so the last hour is asked for again.
"""

from __future__ import annotations

import math
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from slurm_dl.model.completed_jobs import NO_PAST, Past
from slurm_dl.model.jobs import I32
from slurm_dl.slurm.accounting.query import FIELDS, NAMED_FIELDS, Record, ask, clock, whole, windows
from slurm_dl.slurm.read.comment_claims import tag_in
from slurm_dl.slurm.read.tres import parse_gres
from slurm_dl.slurm.read.vocabulary import bounded_epoch_s, epoch_s
from slurm_dl.slurm.tool_runner import Slurm

LATE_S: Final = 3600.0  # Accounting may learn of an end so much later
MOST_RUNS: Final = 500_000  # The last of them; half a gigabyte

OPEN: Final = frozenset(
    {"PENDING", "RUNNING", "SUSPENDED", "CONFIGURING", "COMPLETING", "RESIZING"}
)
"""States of runs that have not ended."""

GOES_ON: Final = OPEN | {"REQUEUED", "REQUEUE_HOLD"}  # States of runs of jobs that have not ended

FAILED: Final = frozenset(
    {"BOOT_FAIL", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT"}
)
_OVER: Final = FAILED | {"CANCELLED", "COMPLETED"}
_ID: Final = re.compile(r"([0-9]{1,18}(?:_[0-9]{1,10})?)(?:\+([0-9]{1,5}))?")
_LONGEST_TRES: Final = 1000
_LONGEST_NAME: Final = 1024
_MOST_GPUS: Final = 1e6


class AccountedRun(NamedTuple):
    """One run of a job, or of a component of a heterogeneous one."""

    job: str  # Its id, with that of its task
    component: int  # 0 but for components other than the leader
    user: str
    account: str
    gpus: float  # GPUs it held; 0 if none are known
    submit_s: float  # Submission that led to it, epoch seconds; a requeue is one
    ran_s: float  # Seconds, those of a suspension left out
    state: str  # Slurm's word, without what may follow
    name: str = ""  # Of the job
    start_s: float = 0.0  # Epoch seconds
    end_s: float = 0.0  # Epoch seconds; 0 if that is not told
    tag: str = ""  # See `Claim.tag`


def whole_job(runs: Sequence[AccountedRun]) -> tuple[AccountedRun, bool]:
    """All runs of all components of a job as one, and whether any of its components goes on.

    It has the words of the leader's last run. Its GPUs are those of the last run of each component
    of which they are known.
    """
    if len(runs) == 1:
        return runs[0], runs[0].state in GOES_ON
    parts: defaultdict[int, list[AccountedRun]] = defaultdict(list)
    for run in runs:
        parts[run.component].append(run)
    last = []
    gpus = 0.0
    for _, part in sorted(parts.items()):
        part.sort(key=lambda run: (run.submit_s, run.end_s))
        last.append(part[-1])
        gpus += next((run.gpus for run in reversed(part) if run.gpus), 0.0)
    job = last[0]._replace(
        gpus=gpus,
        submit_s=min(run.submit_s for run in runs),
        start_s=min(run.start_s for run in runs),
        end_s=max(run.end_s for run in runs),
        ran_s=max(sum(run.ran_s for run in part) for part in parts.values()),
    )
    return job, any(run.state in GOES_ON for run in last)


def gpus_in(tres: str) -> float:
    """GPUs in a TRES string, 0 if it lists none; ValueError or OverflowError if it is no such."""
    return parse_gres(tres[:_LONGEST_TRES]).gpus


def run_of(record: Record) -> AccountedRun | None:
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
    ran_s = float(whole(record["ElapsedRaw"]))
    gpus = gpus_in(record["AllocTRES"]) or gpus_in(record.get("ReqTRES", ""))
    if not (0 < gpus <= _MOST_GPUS and 0 < start_s <= end_s and ran_s > 0):
        return None
    return AccountedRun(
        job=found[1],
        component=int(found[2] or 0),
        user=record["User"][:_LONGEST_NAME],
        account=record.get("Account", "")[:_LONGEST_NAME],
        name=record.get("JobName", "")[:_LONGEST_NAME],
        gpus=gpus,
        submit_s=bounded_epoch_s(record["Submit"]),
        start_s=start_s,
        end_s=end_s,
        ran_s=ran_s,
        state=words[0].rstrip("+"),
        tag=tag_in(record.get("Comment", "")),
    )


def past_of(runs: Iterable[AccountedRun]) -> Past:
    """The jobs whose last run has none behind it; all runs of one together."""
    jobs: defaultdict[tuple[str, str], list[AccountedRun]] = defaultdict(list)
    for run in runs:
        jobs[run.job, run.user].append(run)
    over = [job for job, _ in map(whole_job, jobs.values()) if job.state in _OVER]
    if not over:
        return NO_PAST
    over.sort(key=lambda run: (run.end_s, run.job, run.user))
    accounts: dict[str, int] = {}
    users: dict[str, int] = {}
    names: dict[str, int] = {}
    tags: dict[str, int] = {}

    def numbers(words: Iterable[str], table: dict[str, int]) -> I32:
        return np.array([table.setdefault(word, len(table)) for word in words], dtype=np.int32)

    return Past(
        account=numbers((run.account for run in over), accounts),
        user=numbers((run.user for run in over), users),
        name=numbers((run.name for run in over), names),
        tag=numbers((run.tag for run in over), tags),
        gpus=np.array([run.gpus for run in over]),
        submit_s=np.array([run.submit_s for run in over]),
        start_s=np.array([run.start_s for run in over]),
        end_s=np.array([run.end_s for run in over]),
        ran_s=np.array([run.ran_s for run in over]),
        accounts=tuple(accounts),
        users=tuple(users),
        names=tuple(names),
        tags=tuple(tags),
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
        self._ask = partial(ask, slurm)
        self._back_s = days * 86_400.0
        self._clock = clock
        self._runs: dict[AccountedRun, None] = {}
        self._until_s = 0.0

    def read(self) -> Past:
        """The jobs that are over by now. May take minutes the first time.

        What was read before an error is kept, and the next call goes on from there.

        Raises:
            NoAccountingError: This cluster has none, or sacct is not installed.
            ClusterError: Accounting does not answer, or not readably.
        """
        now_s = float(int(self._clock()))
        since_s = now_s - self._back_s
        begin_s = max(since_s, self._until_s - LATE_S)
        told = windows(self._ask, NAMED_FIELDS, run_of, (begin_s, now_s))
        for first_s, last_s, runs, unreadable in told:
            ended = (run for run in runs if run and first_s <= run.end_s <= last_s)
            self._runs.update(dict.fromkeys(ended))
            self.unreadable += unreadable
            self._until_s = last_s
        self._runs = dict.fromkeys([run for run in self._runs if run.end_s >= since_s][-MOST_RUNS:])
        return past_of(self._runs)


HEADER: Final = "|".join(FIELDS)

_TIMES: Final = ("Submit", "Start", "End")
_CLUSTER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


@dataclass(slots=True)
class FetchTally:
    """Counts of the records fetched so far."""

    runs: int = 0  # Runs written
    with_gpus: int = 0  # Of those, runs that held GPUs or asked for some
    unreadable: int = 0  # Records left out
    first_s: float = math.inf  # Earliest submission of a run, epoch seconds
    first_gpu_s: float = math.inf  # Of a run with GPUs
    done: float = 0.0  # The part of the time that is done, from 0 to 1


@dataclass(slots=True)
class StandIns:
    """Names of people and projects replaced by numbers, in the order in which they come."""

    _known: defaultdict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))

    def name(self, kind: str, name: str) -> str:
        """The stand-in of *name*; nothing stays nothing."""
        known = self._known[kind]
        return f"{kind}-{known.setdefault(name, len(known) + 1)}" if name else ""


def history(
    slurm: Slurm,
    since_s: float,
    until_s: float,
    *,
    tally: FetchTally,
    cluster: str = "",
    stand_ins: StandIns | None = None,
) -> Iterator[str]:
    """The lines of the dump without its header, each with its line end; by time of end.

    `slurm_dl.traces.slurm.sacct` reads them. Runs that have not ended belong to the last window, so
    none appears twice and none has to be remembered. No field that a user can write is asked for.

    Args:
        slurm: The commands.
        since_s: Runs that ended before are left out; epoch seconds.
        until_s: What happens from here on is not asked about; epoch seconds.
        tally: Kept up to date.
        cluster: Name of a cluster in the accounting; empty for the local one.
        stand_ins: Replaces users and accounts; None keeps them.

    Raises:
        ClusterError: Accounting does not answer, or not readably.
        ValueError: There is no time between the two, or *cluster* is no name.
    """
    if until_s <= since_s:
        msg = "there is no time between the beginning and the end"
        raise ValueError(msg)
    if cluster and not _CLUSTER.fullmatch(cluster):
        msg = f"{cluster!r} is no name of a cluster"
        raise ValueError(msg)
    run = partial(slurm.run, "sacct")
    told = windows(run, FIELDS, readable, (since_s, until_s), cluster=cluster)
    for begin_s, end_s, records, unreadable in told:
        tally.unreadable += unreadable
        for record in records:
            ended_s = epoch_s(record["End"])
            is_later = not ended_s or ended_s >= until_s
            if begin_s <= ended_s < end_s or (is_later and end_s == until_s):
                yield line_of(noted(record, tally, stand_ins))
        tally.done = (end_s - since_s) / (until_s - since_s)


def readable(record: Record) -> Record:
    """*record*; ValueError or OverflowError unless its times are times or not set."""
    for name in _TIMES:
        bounded_epoch_s(record[name])
    return record


def noted(record: Record, tally: FetchTally, stand_ins: StandIns | None) -> Record:
    """*record* as it is written, counted in *tally*."""
    told = dict(record)
    tally.runs += 1
    submit_s = epoch_s(told["Submit"])
    tally.first_s = min(tally.first_s, submit_s)
    if _has_gpus(told["AllocTRES"]) or _has_gpus(told["ReqTRES"]):
        tally.with_gpus += 1
        tally.first_gpu_s = min(tally.first_gpu_s, submit_s)
    for name in _TIMES:
        if when_s := epoch_s(told[name]):
            told[name] = clock(when_s)
    if stand_ins is not None:
        told["User"] = stand_ins.name("user", told["User"])
        told["Account"] = stand_ins.name("account", told["Account"])
        # "CANCELLED by 1000" names a user too.
        told["State"] = told["State"].partition(" ")[0]
    return told


def line_of(record: Record) -> str:
    """The line of the dump for *record*."""
    return "|".join(record[name] for name in FIELDS) + "\n"


def _has_gpus(tres: str) -> bool:
    try:
        return parse_gres(tres).gpus > 0
    except (ValueError, OverflowError):
        return False
