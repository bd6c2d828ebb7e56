"""The orders that know, or guess, how much a job has left: SRTF, SRSF, and fewest GPUs first.

They are the yardsticks of the field: with true run times SRTF minimises mean completion time on one
server, and SRSF ("shortest remaining service first") weighs the time with the GPUs it blocks. On a
cluster the remaining time is what the job's time limit leaves; in the simulator it is true.
"""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from slurm_dl.model.jobs import F64, Bool
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.base import About, Order, Preempts, one_tier


class _ByKey(abc.ABC):
    """One tier, ordered by a key that nobody's waiting or running brings past another's."""

    preempts: ClassVar[Preempts] = "rank"
    skips: ClassVar[bool] = True

    @property
    def tiers(self) -> int:
        """One: the key says it all."""
        return 1

    def order(self, snap: Snapshot, /) -> Order:
        """Place every job of *snap*; see `Policy`."""
        # Equal keys keep the order they had; new jobs come behind.
        return one_tier(
            self.key(snap), tie=np.where(snap.memory.tier < 0, np.inf, snap.memory.place)
        )

    def next_change_s(self, snap: Snapshot, order: Order, running: Bool, /) -> float:  # noqa: ARG002
        """Never: what a running job has left only falls, and it is ahead already; see `Policy`."""
        return math.inf

    @abc.abstractmethod
    def key(self, snap: Snapshot, /) -> F64:
        """``(n,)`` smaller is served first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Srtf(_ByKey):
    """Shortest remaining time first."""

    name: ClassVar[str] = "srtf"
    source: ClassVar[str] = "baseline; Schrage, Operations Research 16(3), 1968 (SRPT)"
    about: ClassVar[About] = About(
        row="G2",
        level="W3",
        formula="key = seconds left, smallest first",
        needs=("left_s",),
        fallback="the time limit less the time run so far; last without a limit",
        starves="a long job, while shorter ones come",
    )
    interpretation: ClassVar[str] = (
        "on a cluster the remaining time is the time limit less all time run so far"
    )

    def key(self, snap: Snapshot, /) -> F64:
        """``(n,)`` seconds left."""
        return snap.left_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Srsf(_ByKey):
    """Shortest remaining service first: seconds left x GPUs."""

    name: ClassVar[str] = "srsf"
    source: ClassVar[str] = "Tiresias, NSDI 2019, section 3.2 (SRSF)"
    about: ClassVar[About] = About(
        row="G2",
        level="W3",
        formula="key = seconds left x GPUs, smallest first",
        needs=("left_s",),
        fallback="the time limit less the time run so far; last without a limit",
        starves="a large job, while smaller ones come",
    )
    interpretation: ClassVar[str] = Srtf.interpretation

    def key(self, snap: Snapshot, /) -> F64:
        """``(n,)`` GPU-seconds left."""
        service: F64 = snap.left_s * snap.jobs.gpus
        return service


@dataclass(frozen=True, slots=True, kw_only=True)
class FewestGpus(_ByKey):
    """The job with the fewest GPUs first, stopping larger ones for it."""

    name: ClassVar[str] = "fewest_gpus"
    source: ClassVar[str] = "baseline; 'sjf' of the Tiresias simulator (NSDI 2019)"
    about: ClassVar[About] = About(
        row="G2",
        level="W3",
        formula="key = GPUs, smallest first",
        starves="a job that wants many GPUs, while smaller ones come",
    )
    interpretation: ClassVar[str] = ""

    def key(self, snap: Snapshot, /) -> F64:
        """``(n,)`` GPUs."""
        return snap.jobs.gpus
