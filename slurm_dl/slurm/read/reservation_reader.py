"""Reservations, ours and others', read from scontrol."""

from __future__ import annotations

import re
from dataclasses import dataclass

from slurm_dl.model.errors import ClusterError
from slurm_dl.model.handover import RESERVATION_PREFIX
from slurm_dl.slurm.read.hostlists import expand
from slurm_dl.slurm.read.vocabulary import epoch_s
from slurm_dl.slurm.tool_runner import printable

_RESERVATION = re.compile(
    r"ReservationName=(?P<name>\S+) .*?\bEndTime=(?P<end>\S+) "
    r".*?\bNodes=(?P<nodes>\S*) .*?\bState=(?P<state>\S+)"
)


@dataclass(frozen=True, slots=True)
class ReservationSeen:
    """One reservation, ours or not."""

    name: str
    end_s: float
    nodes: tuple[str, ...]
    active: bool

    @property
    def is_ours(self) -> bool:
        """Its name begins as all of ours do."""
        return self.name.startswith(RESERVATION_PREFIX)


def read_reservations(text: str) -> tuple[ReservationSeen, ...]:
    """Reservations out of ``scontrol show reservation -o``; only admins write into that text."""
    seen = []
    for line in text.split("\n"):
        found = _RESERVATION.match(line)
        if found is None:
            continue
        try:
            end_s = epoch_s(found["end"])
        except ValueError:
            msg = f"reservation {printable(found['name'][:80])} cannot be read: its end is no time"
            raise ClusterError(msg) from None
        seen.append(
            ReservationSeen(
                name=found["name"],
                end_s=end_s,
                nodes=expand(found["nodes"]),
                active=found["state"] == "ACTIVE",
            )
        )
    return tuple(seen)
