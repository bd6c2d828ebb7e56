"""Limits on what jobs hold together, and licences: shared by jobs, whichever nodes they run on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import F64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Quotas:
    """The limits that waiting jobs count in.

    Attributes:
        counts: Quotas that a pending or running job counts in, as indices, and its units.
        one_at_a_time: Quotas for limits that are not known: each is one hand-over at a time. What
            Slurm starts without one does not count.
    """

    names: tuple[str, ...]  # Each in words, such as ``QOS games: MaxTRESPU gres/gpu=8``
    most: F64  # ``(q,)`` units that jobs may hold
    used: F64  # ``(q,)`` units that running jobs hold
    counts: Mapping[JobId, tuple[tuple[int, float], ...]]
    one_at_a_time: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        self.most.setflags(write=False)
        self.used.setflags(write=False)
