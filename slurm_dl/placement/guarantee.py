"""Interface of schemes that guarantee nodes to some jobs, for which others are preempted.

Most schemes promise nothing. One that does offers `Promising.promise`; the engine then serves the
guaranteed jobs before all others, and takes GPUs back for them on the nodes that are theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from slurm_dl.model.jobs import Bool
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.placement.scheme import Scheme

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
    """A scheme that guarantees nodes."""

    def promise(self, snap: Snapshot, queue: GuaranteeQueue, /) -> Promise:
        """Compute its guarantees in this snapshot.

        Must be pure: equal snapshots and queues give equal promises.
        """

    def keeping(self, promise: Promise, /) -> Scheme:
        """The scheme, placing jobs as it has promised."""
