"""What the jobs and the nodes of a simulated Slurm are like, where the trace does not say.

A trace tells when a job came, how long it ran and on how many GPUs. Whether its owner opted in to
preemption, what it does when it is signalled, what time limit it asked for, and when nodes
break is drawn here, from a seed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from slurm_dl.model.contract import Contract
from slurm_dl.model.jobs import F64, I32, Bool
from slurm_dl.model.trace import Trace
from slurm_dl.simulation.slurm.events import Agenda, EventKind

MINUTE_S: Final = 60.0
"""Slurm's time limits are whole minutes."""


class OnSignal(IntEnum):
    """What a job does when it is asked for its GPUs."""

    SAVE = 0
    """Save, acknowledge, wait to be requeued."""
    IGNORE = 1
    """Nothing; only SIGKILL ends it."""
    FINISH = 2
    """End with success, as a job does that is about to be done."""
    REQUEUE_ITSELF = 3
    """Save and put itself back into the queue, as submitit and Lightning do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobBehaviour:
    """How users write their jobs.

    Attributes:
        grace_s: Longest wait between signal and requeue that jobs ask for, seconds; above 0.
        checkpoint_every_s: Seconds of work between two checkpoints that a job takes by itself;
            0: it saves only when it is asked to.
    """

    opted_in_frac: float = 1.0  # Share of the jobs that may be preempted
    ignore_frac: float = 0.0  # Of those, share that does nothing about the signal
    finish_frac: float = 0.0  # Of those, share that ends with success when it is signalled
    requeue_itself_frac: float = 0.0  # Of those, share that puts itself back
    grace_s: float = 120.0
    checkpoint_every_s: float = 0.0
    limit_factor: float = 3.0  # Time limit of a job over the time it needs, at least 1
    limit_least_s: float = 1800.0  # Time limits are at least this, seconds

    def __post_init__(self) -> None:
        shares = (self.ignore_frac, self.finish_frac, self.requeue_itself_frac)
        if not all(0 <= share <= 1 for share in (self.opted_in_frac, *shares, math.fsum(shares))):
            msg = "the shares of jobs must be between 0 and 1, those of their habits together too"
            raise ValueError(msg)
        if not (self.grace_s > 0 and self.checkpoint_every_s >= 0 and self.limit_least_s >= 0):
            msg = "grace_s must be above 0, checkpoint_every_s and limit_least_s 0 or more"
            raise ValueError(msg)
        if not self.limit_factor >= 1:
            msg = f"limit_factor must be 1 or more (got {self.limit_factor})"
            raise ValueError(msg)

    def limits(self, trace: Trace, *, overhead_s: float) -> F64:
        """``(n,)`` time limits, whole minutes, seconds.

        Args:
            overhead_s: What a run takes besides the work; a limit leaves room for it.
        """
        asked = np.maximum(trace.duration_s * self.limit_factor, self.limit_least_s)
        limits: F64 = np.ceil((asked + overhead_s) / MINUTE_S) * MINUTE_S
        return limits

    def draw(self, n: int, rng: np.random.Generator) -> tuple[Bool, npt.NDArray[np.int8]]:
        """``(n,)`` bool, who has opted in, and ``(n,)`` int8, an `OnSignal` for each job."""
        opted_in: Bool = rng.random(n) < self.opted_in_frac
        edges = np.cumsum([self.ignore_frac, self.finish_frac, self.requeue_itself_frac])
        which = np.searchsorted(edges, rng.random(n), side="right")
        kinds = np.array(
            [OnSignal.IGNORE, OnSignal.FINISH, OnSignal.REQUEUE_ITSELF, OnSignal.SAVE],
            dtype=np.int8,
        )
        return opted_in, kinds[which]

    def contract(self, on_signal: OnSignal) -> Contract:
        """The contract such a job declares."""
        itself = on_signal is OnSignal.REQUEUE_ITSELF
        return Contract(grace_s=self.grace_s, requeued_by="job" if itself else "daemon")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFailures:
    """Nodes break and are mended, each on its own; both times are exponentially distributed."""

    mtbf_s: float  # Mean time a node works until it breaks, seconds; a minute at least
    mttr_s: float  # Mean time until it is back, seconds; above 0

    def __post_init__(self) -> None:
        if not (math.inf > self.mtbf_s >= MINUTE_S and math.inf > self.mttr_s > 0):
            msg = f"mtbf_s must be 60 or more, mttr_s above 0 (got {self.mtbf_s}, {self.mttr_s})"
            raise ValueError(msg)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JobRequests:
    """What each job asks of Slurm."""

    n_nodes: I32  # ``(n,)`` nodes
    share: I32  # ``(n,)`` GPUs on each of them


def shapes(gpus: F64, node_gpus: F64) -> JobRequests:
    """The fewest nodes that hold each job evenly, whole GPUs only.

    Args:
        gpus: ``(n,)`` GPUs of each job; fractions count as whole GPUs.
        node_gpus: ``(m,)`` GPUs of each node.

    Raises:
        ValueError: A job fits no such cluster even when it is empty.
    """
    n_nodes, share = np.zeros(len(gpus), dtype=np.int32), np.zeros(len(gpus), dtype=np.int32)
    most = int(node_gpus.max(initial=0))
    for wanted in np.unique(gpus).tolist():
        whole = math.ceil(wanted)
        for nodes in range(max(1, -(-whole // max(1, most))), len(node_gpus) + 1):
            each = -(-whole // nodes)
            if whole % nodes == 0 and np.count_nonzero(node_gpus >= each) >= nodes:
                n_nodes[gpus == wanted], share[gpus == wanted] = nodes, each
                break
        else:
            msg = (
                f"{int(np.count_nonzero(gpus == wanted))} jobs of {wanted:g} GPUs fit no equal "
                f"shares of {len(node_gpus)} nodes with at most {most} GPUs"
            )
            raise ValueError(msg)
    return JobRequests(n_nodes=n_nodes, share=share)


# When nodes break, when Slurm notices, and when they are back.
class Breakage:
    """Puts the deaths and returns of nodes on the agenda.

    Args:
        failures: How often they break; None: never.
        lost_after_s: Slurm takes a silent node for lost after this, seconds.
        rng: Draws the times.
    """

    def __init__(
        self,
        failures: NodeFailures | None,
        agenda: Agenda,
        *,
        lost_after_s: float,
        rng: np.random.Generator,
    ) -> None:
        self._failures, self._agenda = failures, agenda
        self._lost_after_s, self._rng = lost_after_s, rng

    def begins(self, node: int, now_s: float) -> None:
        """*node* is whole from now on."""
        if self._failures is not None:
            dies_s = now_s + float(self._rng.exponential(self._failures.mtbf_s))
            self._agenda.add(dies_s, EventKind.NODE_DIES, subject=node)

    def died(self, node: int, now_s: float) -> None:
        """*node* has died; it is back no earlier than Slurm knows of it."""
        if self._failures is not None:
            mend_s = now_s + float(self._rng.exponential(self._failures.mttr_s))
            lost_s = now_s + self._lost_after_s
            self._agenda.add(lost_s, EventKind.NODE_LOST, subject=node)
            self._agenda.add(max(mend_s, lost_s), EventKind.NODE_BACK, subject=node)
