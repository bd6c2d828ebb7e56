"""Reservations, ours and others', read from scontrol."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from slurm_dl.model.errors import ClusterError
from slurm_dl.model.handover import RESERVATION_PREFIX
from slurm_dl.model.ids import JobId
from slurm_dl.model.nodes import Nodes
from slurm_dl.model.snapshot import Blocked
from slurm_dl.slurm.read.hostlists import expand
from slurm_dl.slurm.read.vocabulary import epoch_s
from slurm_dl.text import escaped

_RESERVATION = re.compile(
    r"ReservationName=(?P<name>\S+) .*?\bStartTime=(?P<start>\S+) .*?\bEndTime=(?P<end>\S+) "
    r".*?\bNodes=(?P<nodes>\S*) (?:.*?\bTRES=(?P<tres>\S*) )?.*?\bState=(?P<state>\S+)"
)
_CPUS = re.compile(r"(?:^|,)cpu=([0-9]{1,9})(?:,|$)")


@dataclass(frozen=True, slots=True)
class ReservationSeen:
    """One reservation, ours or not."""

    name: str
    start_s: float
    end_s: float
    nodes: tuple[str, ...]
    active: bool
    cpus: int | None  # CPUs reserved on all *nodes* together; None if that is not told

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
            start_s, end_s = epoch_s(found["start"]), epoch_s(found["end"])
        except ValueError:
            name = escaped(found["name"][:80])
            msg = f"reservation {name} cannot be read: its start or end is no time"
            raise ClusterError(msg) from None
        cpus = _CPUS.search(found["tres"] or "")
        seen.append(
            ReservationSeen(
                name=found["name"],
                start_s=start_s,
                end_s=end_s,
                nodes=expand(found["nodes"]),
                active=found["state"] == "ACTIVE",
                cpus=None if cpus is None else int(cpus[1]),
            )
        )
    return tuple(seen)


def blocked_by(
    reservations: Collection[ReservationSeen],
    nodes: Nodes,
    inside: Mapping[JobId, Collection[str]],
    now_s: float,
) -> tuple[Blocked, ...]:
    """Nodes that other reservations keep from jobs; ended ones keep none.

    One of cores leaves the rest of its nodes to all jobs (22.05.8), and one of licences has no
    nodes: neither is meant.

    Args:
        inside: Names of the reservations that each job is in or asks for.
    """
    blocked = []
    for one in reservations:
        if one.is_ours or one.end_s <= now_s:
            continue
        mask = np.isin(nodes.name, one.nodes)
        whole = one.cpus is None or one.cpus >= int(nodes.cpus[mask].sum())
        if not (mask.any() and whole):
            continue
        mask.setflags(write=False)
        jobs = frozenset(job for job, names in inside.items() if one.name in names)
        blocked.append(Blocked(start_s=one.start_s, end_s=one.end_s, nodes=mask, jobs=jobs))
    return tuple(blocked)


def last_end_s(
    reservations: Collection[ReservationSeen], inside: Mapping[JobId, Collection[str]]
) -> dict[JobId, float]:
    """Last end of the reservations that a job is in or asks for; see `Observed.reserved_until`."""
    ends_s = {one.name: one.end_s for one in reservations}
    return {
        job: max((ends_s.get(name, 0.0) for name in names), default=0.0)
        for job, names in inside.items()
    }
