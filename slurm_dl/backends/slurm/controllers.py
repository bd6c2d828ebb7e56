"""Which of Slurm's controllers acts, as ``scontrol ping`` tells it.

It lists them in the order of slurm.conf. A backup that stands by answers, too: of those that are
UP the first one acts (seen on a pair of 22.05.8). While the backup waits for SlurmctldTimeout
nobody does, and what is said here is who will.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from slurm_dl.backends.slurm.command import Slurm
from slurm_dl.model.errors import ClusterError

_LINE = re.compile(r"^Slurmctld\([^)]*\) at (?P<host>\S+) is (?P<state>UP|DOWN)\b", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Controller:
    """One slurmctld: its host as slurm.conf names it, and whether it answers."""

    host: str
    is_up: bool


def read_ping(text: str) -> tuple[Controller, ...]:
    """The controllers, in their order; lines that are none of them are passed over."""
    return tuple(Controller(m["host"], m["state"] == "UP") for m in _LINE.finditer(text))


def controllers(slurm: Slurm) -> tuple[Controller, ...]:
    """All controllers of the cluster.

    Raises:
        ClusterError: None of them answers, or the answer cannot be read.
    """
    found = read_ping(slurm.run("scontrol", "ping"))
    if not found:
        msg = "scontrol ping: the answer names no controller"
        raise ClusterError(msg)
    return found


def acting(found: tuple[Controller, ...]) -> str:
    """The host of the one that acts; empty if none answers."""
    return next((c.host for c in found if c.is_up), "")


def same_host(one: str, other: str) -> bool:
    """Whether two names are one host's; one may have its domain and the other not."""
    one, other = one.casefold(), other.casefold()
    if "." in one and "." in other:
        return one == other
    return one.partition(".")[0] == other.partition(".")[0]
