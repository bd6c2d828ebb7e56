"""State and time of slurmctld, as ``sdiag`` prints them.

Everything is optional but the time: releases print more or less (22.05 to 26.05), and a number that
is missing is unknown, not zero. Nothing in it comes from users but the names in the table of RPCs
by user, which is not read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from slurm_dl.model.errors import ClusterError
from slurm_dl.slurm.tool_runner import Slurm

DUMP = "REQUEST_JOB_INFO"
"""The RPC by which squeue reads the whole queue."""

_AT = re.compile(r"^sdiag output at .{0,60}\((\d{1,12})\)\s*$", re.MULTILINE | re.ASCII)
# Between and behind the figures newer releases have more of them (with enable_rpc_queue).
_RPC = re.compile(
    r"^[ \t]+(?P<name>[A-Z_]{1,60})[ \t]*\([ \t]*\d{1,6}\)[^\n]{0,80}?"
    r"\bcount:(?P<count>\d{1,18})\b[^\n]{0,80}?\btotal_time:(?P<total_us>\d{1,18})\b",
    re.MULTILINE | re.ASCII,
)
# The same words from 22.05 to 26.05.
_BACKFILLING = "obtained in the middle of backfilling"
_BY_TYPE = "statistics by message type"
_BY_USER = "statistics by user"
_LONGEST_CHARS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerStatus:
    """One answer of slurmctld about itself; None where it does not say.

    Attributes:
        mean_cycle_s: How long they take in the mean since the last reset, seconds.
    """

    now_s: float  # Its clock when it answered, whole epoch seconds
    threads: int | None = None  # Threads that serve RPCs now; Slurm has 256 at most
    agent_queue: int | None = None  # Messages to nodes that wait to be sent
    dbd_queue: int | None = None  # Messages to slurmdbd that wait to be sent
    last_cycle_s: float | None = None  # How long the last cycle of its main scheduler took, seconds
    mean_cycle_s: float | None = None
    dumps: int = 0  # Times it has listed all jobs for anybody since the last reset
    dump_total_s: float = 0.0  # How long that took it in all, seconds
    backfilling: bool = False  # A pass of its backfill scheduler was under way

    def dump_s_since(self, before: ControllerStatus | None) -> float | None:
        """Mean seconds of one listing of all jobs since *before*; None if there was none.

        Slurm's own mean is over a day: an hour that was slow would make it slow until midnight.
        """
        dumps, total_s = self.dumps, self.dump_total_s
        if before is not None and before.dumps <= dumps and before.dump_total_s <= total_s:
            dumps, total_s = dumps - before.dumps, total_s - before.dump_total_s
        return total_s / dumps if dumps else None


def read_health(text: str) -> ControllerStatus:
    """Parse the output of ``sdiag``.

    Raises:
        ClusterError: It does not say what time it is.
    """
    text = text[:_LONGEST_CHARS]
    at = _AT.search(text)
    if at is None:
        msg = "sdiag: its answer does not begin with the time at slurmctld"
        raise ClusterError(msg)
    head, _, rest = text.partition(_BY_TYPE)
    dump = next(
        (m for m in _RPC.finditer(rest.partition(_BY_USER)[0]) if m["name"] == DUMP),
        None,
    )
    main = head.partition("Main schedule statistics")[2].partition("Backfilling stats")[0]
    return ControllerStatus(
        now_s=float(at[1]),
        threads=_number(head, "Server thread count"),
        agent_queue=_number(head, "Agent queue size"),
        dbd_queue=_number(head, "DBD Agent queue size"),
        last_cycle_s=_micros(main, "Last cycle"),
        mean_cycle_s=_micros(main, "Mean cycle"),
        dumps=int(dump["count"]) if dump else 0,
        dump_total_s=int(dump["total_us"]) / 1e6 if dump else 0.0,
        backfilling=_BACKFILLING in head,
    )


def rpcs_of(text: str) -> dict[str, tuple[int, float]]:
    """Each RPC by its name: how often it was served since the last reset, and for how long in all.

    Seconds. The part of ``sdiag``'s table that is by message type.
    """
    table = text[:_LONGEST_CHARS].partition(_BY_TYPE)[2].partition(_BY_USER)[0]
    return {m["name"]: (int(m["count"]), int(m["total_us"]) / 1e6) for m in _RPC.finditer(table)}


def _number(text: str, label: str) -> int | None:
    found = re.search(rf"^\s*{re.escape(label)}:\s*(\d{{1,12}})\s*$", text, re.MULTILINE | re.ASCII)
    return int(found[1]) if found else None


def _micros(text: str, label: str) -> float | None:
    found = _number(text, label)
    return None if found is None else found / 1e6


# Which of Slurm's controllers acts, as ``scontrol ping`` tells it.
#
# It lists them in the order of slurm.conf. A backup that stands by answers, too: of those that are
# UP the first one acts (seen on a pair of 22.05.8). While the backup waits for SlurmctldTimeout
# nobody does, and what is said here is who will.
_LINE = re.compile(r"^Slurmctld\([^)]*\) at (?P<host>\S+) is (?P<state>UP|DOWN)\b", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ControllerHost:
    """One slurmctld: its host as slurm.conf names it, and whether it answers."""

    host: str
    is_up: bool


def read_ping(text: str) -> tuple[ControllerHost, ...]:
    """The controllers, in their order; lines that are none of them are passed over."""
    return tuple(ControllerHost(m["host"], m["state"] == "UP") for m in _LINE.finditer(text))


def controllers(slurm: Slurm) -> tuple[ControllerHost, ...]:
    """All controllers of the cluster.

    Raises:
        ClusterError: None of them answers, or the answer cannot be read.
    """
    found = read_ping(slurm.run("scontrol", "ping"))
    if not found:
        msg = "scontrol ping: the answer names no controller"
        raise ClusterError(msg)
    return found


def acting(found: tuple[ControllerHost, ...]) -> str:
    """The host of the one that acts; empty if none answers."""
    return next((c.host for c in found if c.is_up), "")


def same_host(one: str, other: str) -> bool:
    """Whether two names are one host's; one may have its domain and the other not."""
    one, other = one.casefold(), other.casefold()
    if "." in one and "." in other:
        return one == other
    return one.partition(".")[0] == other.partition(".")[0]
