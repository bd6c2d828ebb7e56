"""Interfaces of placement schemes, and of those that guarantee nodes to some jobs.

A new published scheme is one file beside this one and one line in `scheme_registry`. Two kinds
compose: a *scheme* chooses among the nodes on which a job fits, and *rules* (`rule`) say on which
of them it may not or had better not be. A site picks one scheme and any rules, under any policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from slurm_dl.model.jobs import Bool
from slurm_dl.model.profile import Profile
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.placement.candidate_nodes import CandidateNodes
from slurm_dl.placement.free_nodes import FreeNodes
from slurm_dl.placement.resource_request import PendingJob


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
    source: ClassVar[str]  # Paper and section the scheme comes from
    interpretation: ClassVar[str]
    """Where it reads the source in its own way, in words; empty if nowhere."""

    def begin(self, snap: Snapshot, stock: FreeNodes, profiles: Mapping[str, Profile], /) -> Placer:
        """Look at one snapshot.

        Must be pure: equal snapshots give equal answers, whatever order Slurm lists the jobs in.

        Args:
            stock: What is free; it changes as jobs are placed.
            profiles: Profiles by model, for the jobs that run already.
        """


Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GuaranteeQueue:
    """The jobs to whom something may be promised.

    Attributes:
        running: Rows in `Jobs` of all that hold GPUs, in the order in which they are considered.
        waiting: Rows of the managed ones that wait for room, best first.
        returnable: ``(n,)`` bool, jobs whose GPUs can be taken back once they run.
    """

    running: Rows
    waiting: Rows
    returnable: Bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Promise:
    """The guarantees in one snapshot.

    Attributes:
        guaranteed: ``(n,)`` bool, jobs on nodes, or waiting for nodes, that are theirs by right.
        cells: ``(m,)`` bool by row in `Jobs`, the nodes of each guaranteed job that waits.
        claimed: ``(m,)`` bool, nodes of any of these.
        outside: ``(m,)`` bool, nodes that nobody's guarantee needs.
        returnable: ``(n,)`` bool, see `GuaranteeQueue`.
        broken: By account, in words, what it is guaranteed and could not be given.
    """

    guaranteed: Bool
    cells: Mapping[int, Bool]
    claimed: Bool
    outside: Bool
    returnable: Bool
    broken: Mapping[str, str] = field(default_factory=dict)

    def within(self, row: int) -> Bool | None:
        """``(m,)`` bool, nodes the waiting job at *row* may be on; None: on any.

        A job whose GPUs cannot be taken back is kept from all that may be claimed by right.
        """
        if row in self.cells:
            return self.cells[row]
        if not self.returnable[row]:
            return None if self.outside.all() else self.outside
        return ~self.claimed if self.claimed.any() else None


@runtime_checkable
class Promising(Scheme, Protocol):
    """A scheme that guarantees nodes.

    The engine serves the guaranteed jobs before all others, and takes GPUs back for them on the
    nodes that are theirs.
    """

    def promise(self, snap: Snapshot, queue: GuaranteeQueue, /) -> Promise:
        """Compute its guarantees in this snapshot.

        Must be pure: equal snapshots and queues give equal promises.
        """

    def keeping(self, promise: Promise, /) -> Scheme:
        """The scheme, placing jobs as it has promised."""
