"""Interface of a placement scheme.

A new published scheme is one file beside this one and one line in `scheme_registry`. Two kinds
compose: a *scheme* chooses among the nodes on which a job fits, and *rules* (`rule`) say on which
of them it may not or had better not be. A site picks one scheme and any rules, under any policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

from slurm_dl.model.jobs import Bool
from slurm_dl.model.profile import Profile
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.placement.candidate_nodes import CandidateNodes
from slurm_dl.placement.free_nodes import FreeNodes
from slurm_dl.placement.pending_job import PendingJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """Nodes on which a job may start now.

    Attributes:
        nodes: Rows in `Nodes`, ascending, as many as one of the job's ways has.
        why: In a few words, why there.
        expected_start_s: When it is expected to start, epoch seconds; None if nobody says.
    """

    nodes: tuple[int, ...]
    why: str
    expected_start_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Wait:
    """Nodes that a job should wait for, although it may fit elsewhere.

    Attributes:
        within: ``(m,)`` bool, nodes Slurm may start it on at any time; enough of them to hold it
            when they are empty. None: it is not to be started anywhere before the next look.
        for_s: Longest time it is to wait from now on, seconds; inf if there is no end to it.
        why: In a few words, what it waits for.
        expected_start_s: When it is expected to start, epoch seconds; None if nobody says.
    """

    within: Bool | None
    for_s: float
    why: str
    expected_start_s: float | None = None


Answer = Spot | Wait | None
"""None: it does not fit now, and where Slurm starts it later is all the same."""


class Placer(Protocol):
    """A scheme at work on one snapshot. It is asked about waiting jobs, the best first."""

    def place(self, want: PendingJob, offer: CandidateNodes, /) -> Answer:
        """Choose nodes for *want*.

        The nodes of a `Spot` are taken at once: who comes later does not see them.

        Args:
            offer: The nodes it may use; see `CandidateNodes`.
        """


@runtime_checkable  # Pydantic asks for it.
class Scheme(Protocol):
    """Chooses nodes. A frozen dataclass; its fields are its parameters, with units in the names."""

    name: ClassVar[str]
    source: ClassVar[str]
    """Paper and section the scheme comes from."""
    interpretation: ClassVar[str]
    """Where it reads the source in its own way, in words; empty if nowhere."""

    def begin(self, snap: Snapshot, stock: FreeNodes, profiles: Mapping[str, Profile], /) -> Placer:
        """Look at one snapshot.

        Must be pure: equal snapshots give equal answers, whatever order Slurm lists the jobs in.

        Args:
            stock: What is free; it changes as jobs are placed.
            profiles: Profiles by model, for the jobs that run already.
        """
