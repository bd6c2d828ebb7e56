"""First in, first out: the order every queue has when nobody thinks about it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from slurm_dl.model.jobs import Bool
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.base import About, Order, Preempts, one_tier


@dataclass(frozen=True, slots=True, kw_only=True)
class Fifo:
    """Serve jobs in the order of their first submission; who does not fit is waited for.

    Nobody is ever preempted.
    """

    name: ClassVar[str] = "fifo"
    source: ClassVar[str] = "baseline; what Slurm does with priority/basic and no backfill"
    about: ClassVar[About] = About(
        row="G1",
        level="W3",
        formula="first submission first; nobody passes a job that does not fit",
        idles="GPUs that the first job in the queue cannot use wait with it",
    )
    interpretation: ClassVar[str] = ""
    preempts: ClassVar[Preempts] = "never"
    skips: ClassVar[bool] = False

    @property
    def tiers(self) -> int:
        """One: all jobs are alike."""
        return 1

    def order(self, snap: Snapshot, /) -> Order:
        """Place every job of *snap*; see `Policy`."""
        return one_tier(snap.memory.first_submit_s)

    def next_change_s(self, snap: Snapshot, order: Order, running: Bool, /) -> float:  # noqa: ARG002
        """Never; see `Policy`."""
        return math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class FifoSkip(Fifo):
    """Serve jobs in the order of their first submission, those that do not fit left aside.

    A large job may wait for ever behind small ones that always fit.
    """

    name: ClassVar[str] = "fifo_skip"
    source: ClassVar[str] = "baseline; 'fit job first' of the Tiresias simulator (NSDI 2019)"
    about: ClassVar[About] = About(
        row="G1",
        level="W3",
        formula="first submission first; a job that does not fit is passed",
        starves="a job that wants many GPUs, while smaller ones come",
    )
    skips: ClassVar[bool] = True
