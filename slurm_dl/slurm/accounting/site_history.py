"""A site's own history: every run that accounting has of some time, window by window.

What is written is what `slurm_dl.traces.slurm.sacct` reads. A run belongs to the window in which
it ended, and those that have not ended to the last one, so none appears twice and none has to be
remembered. No field that a user can write is asked for.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from slurm_dl.slurm.accounting.query import FIELDS, Record, clock, windows
from slurm_dl.slurm.read.tres import parse_gres
from slurm_dl.slurm.read.vocabulary import bounded_epoch_s, epoch_s
from slurm_dl.slurm.tool_runner import Slurm

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
