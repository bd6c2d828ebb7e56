"""A site's own history: every run that accounting has of some time, window by window.

What is written is what `slurm_dl.traces.slurm.sacct` reads. A run belongs to the window in which
it ended, and those that have not ended to the last one, so none appears twice and none has to be
remembered. No field that a user can write is asked for.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from slurm_dl.model.errors import ClusterError
from slurm_dl.slurm.read.tres import parse_gres
from slurm_dl.slurm.read.vocabulary import epoch_s
from slurm_dl.slurm.tool_runner import Slurm

FIELDS: Final = (
    "JobID",
    "User",
    "Account",
    "Submit",
    "Start",
    "End",
    "State",
    "ElapsedRaw",
    "ReqTRES",
    "AllocTRES",
)
"""JobID, not JobIDRaw: where it names the components of a heterogeneous job they are one job."""

HEADER: Final = "|".join(FIELDS)

WINDOW: Final = timedelta(days=1)
SHORTEST: Final = timedelta(minutes=15)
"""A window that slurmdbd does not answer in time is halved, down to this."""

_USER, _ACCOUNT = FIELDS.index("User"), FIELDS.index("Account")
_TIMES = tuple(FIELDS.index(name) for name in ("Submit", "Start", "End"))
_END, _STATE = FIELDS.index("End"), FIELDS.index("State")
_TRES = tuple(FIELDS.index(name) for name in ("AllocTRES", "ReqTRES"))
_CLUSTER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_LATEST_S = 1e11


@dataclass(slots=True)
class FetchTally:
    """Counts of the records fetched so far.

    Attributes:
        runs: Runs written.
        with_gpus: Of those, runs that held GPUs or asked for some.
        unreadable: Records left out.
        first_s: Earliest submission of a run, epoch seconds; inf if there is none.
        first_gpu_s: Of a run with GPUs.
        done: The part of the time that is done, from 0 to 1.
    """

    runs: int = 0
    with_gpus: int = 0
    unreadable: int = 0
    first_s: float = float("inf")
    first_gpu_s: float = float("inf")
    done: float = 0.0


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
    since: datetime,
    until: datetime,
    *,
    tally: FetchTally,
    cluster: str = "",
    stand_ins: StandIns | None = None,
) -> Iterator[str]:
    """The lines of the dump without its header, each with its line end; by time of end.

    Args:
        slurm: The commands.
        since: Runs that ended before are left out; with a time zone.
        until: What happens from here on is not asked about; with a time zone.
        tally: Kept up to date.
        cluster: Name of a cluster in the accounting; empty for the local one.
        stand_ins: Replaces users and accounts; None keeps them.

    Raises:
        ClusterError: Accounting does not answer, or not readably.
        ValueError: There is no time between the two, or *cluster* is no name.
    """
    if until <= since:
        msg = "there is no time between the beginning and the end"
        raise ValueError(msg)
    if cluster and not _CLUSTER.fullmatch(cluster):
        msg = f"{cluster!r} is no name of a cluster"
        raise ValueError(msg)
    begin, width = since, WINDOW
    while begin < until:
        end = min(begin + width, until)
        try:
            text = slurm.run("sacct", *window_arguments(begin, end, cluster))
        except ClusterError as err:
            if "no answer in" not in str(err) or width <= SHORTEST:
                raise
            width /= 2
            continue
        for record in _records(text, tally):
            ended_s = epoch_s(record[_END])
            is_last = end == until
            here = begin.timestamp() <= ended_s < end.timestamp()
            if here or (is_last and (not ended_s or ended_s >= end.timestamp())):
                yield written(record, tally, stand_ins)
        begin = end
        tally.done = (begin - since) / (until - since)


def window_arguments(begin: datetime, end: datetime, cluster: str = "") -> tuple[str, ...]:
    """Arguments for sacct that list every run that was there between *begin* and *end*."""
    clock = "%Y-%m-%dT%H:%M:%S"
    where = (f"--clusters={cluster}",) if cluster else ()
    return (
        *("--allusers", "--duplicates", "--allocations", "--noheader", "--parsable2", *where),
        f"--format={','.join(FIELDS)}",
        # Slurm's commands run in UTC here.
        f"--starttime={begin.astimezone(UTC).strftime(clock)}",
        f"--endtime={end.astimezone(UTC).strftime(clock)}",
    )


def _records(text: str, tally: FetchTally) -> Iterator[list[str]]:
    if text and not text.endswith("\n"):
        msg = "sacct's output stops in the middle of a record"
        raise ClusterError(msg)
    lines = text.split("\n")[:-1]
    readable = 0
    for line in lines:
        record = line.split("|")
        if len(record) == len(FIELDS) and is_readable(record):
            readable += 1
            yield record
        else:
            tally.unreadable += 1
    if lines and not readable:
        msg = f"none of {len(lines)} records of sacct can be read; is this Slurm supported?"
        raise ClusterError(msg)


def is_readable(record: list[str]) -> bool:
    """Whether the times of *record*, in the order of `FIELDS`, are times or not set."""
    try:
        return all(epoch_s(record[i]) <= _LATEST_S for i in _TIMES)
    except (ValueError, OverflowError):
        return False


def written(record: list[str], tally: FetchTally, stand_ins: StandIns | None) -> str:
    """The line of the dump for *record*, in the order of `FIELDS`, counted in *tally*."""
    tally.runs += 1
    submit_s = epoch_s(record[_TIMES[0]])
    tally.first_s = min(tally.first_s, submit_s)
    if any(_has_gpus(record[i]) for i in _TRES):
        tally.with_gpus += 1
        tally.first_gpu_s = min(tally.first_gpu_s, submit_s)
    if stand_ins is not None:
        record[_USER] = stand_ins.name("user", record[_USER])
        record[_ACCOUNT] = stand_ins.name("account", record[_ACCOUNT])
        # "CANCELLED by 1000" names a user too.
        record[_STATE] = record[_STATE].partition(" ")[0]
    for i in _TIMES:
        record[i] = _clock(record[i])
    return "|".join(record) + "\n"


def _has_gpus(tres: str) -> bool:
    try:
        return parse_gres(tres).gpus > 0
    except (ValueError, OverflowError):
        return False


def _clock(text: str) -> str:
    """A time as sacct writes it without a format of its own, in UTC; what is none stays."""
    seconds = epoch_s(text)
    if not seconds:
        return text
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
