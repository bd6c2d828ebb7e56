"""First in, first out, and static priority: the orders that clusters have without any thought.

    fifo, fifo_skip    first eligible first
    static_priority    larger priority of the job's QOS first, first eligible first inside it

Source: what Slurm, YARN and Borg do by default; Verma et al., "Large-scale cluster management at
Google with Borg", EuroSys 2015, section 3.2 (the queue is gone through from high to low priority).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import Bool
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.base import About, Order, Preempts, one_tier


@dataclass(frozen=True, slots=True, kw_only=True)
class Fifo:
    """Serve jobs first eligible first; the first that does not fit blocks the queue.

    No job is ever preempted.
    """

    name: ClassVar[str] = "fifo"
    source: ClassVar[str] = "baseline; what Slurm does with priority/basic and no backfill"
    about: ClassVar[About] = About(
        row="G1",
        level="W3",
        formula="first eligible first; a job that does not fit blocks all jobs behind it",
        idles="GPUs that the first job in the queue cannot use stay free until it starts",
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
        return one_tier(snap.memory.queued_s)

    def next_change_s(self, snap: Snapshot, order: Order, running: Bool, /) -> float:  # noqa: ARG002
        """Never; see `Policy`."""
        return math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class FifoSkip(Fifo):
    """Serve jobs first eligible first; jobs that do not fit are skipped.

    A large job may wait for ever behind small ones that always fit.
    """

    name: ClassVar[str] = "fifo_skip"
    source: ClassVar[str] = "baseline; 'fit job first' of the Tiresias simulator (NSDI 2019)"
    about: ClassVar[About] = About(
        row="G1",
        level="W3",
        formula="first eligible first; a job that does not fit is passed",
        starves="a job that asks for many GPUs, while smaller ones come",
    )
    skips: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticPriority:
    """Serve jobs by the priority of their QOS, then first eligible first.

    No job is ever preempted; jobs that do not fit are skipped.

    Attributes:
        priority_by_qos: Name of each QOS and its priority, a finite number; larger is served first.
        default_priority: Priority of jobs of any other QOS, and where no QOS is known; finite.
    """

    name: ClassVar[str] = "static_priority"
    source: ClassVar[str] = "baseline; Borg, EuroSys 2015, section 3.2 (scan by priority)"
    about: ClassVar[About] = About(
        row="G1",
        level="W3",
        formula="larger priority of the QOS first; first eligible first inside it",
        needs=("texts",),
        fallback="jobs with an unknown QOS, or one that is not listed, have default_priority",
        starves=(
            "a job of a low priority, while ones of a higher come; a job that asks for many GPUs, "
            "while smaller ones come"
        ),
    )
    interpretation: ClassVar[str] = (
        "Jobs of one priority are served first eligible first; Borg takes users in turn. No job "
        "is preempted. The site sets the priorities."
    )
    preempts: ClassVar[Preempts] = "never"
    skips: ClassVar[bool] = True

    priority_by_qos: tuple[tuple[str, float], ...] = ()
    default_priority: float = 0.0

    def __post_init__(self) -> None:
        for qos, priority in self.priority_by_qos:
            if not math.isfinite(priority):
                msg = f"priority_by_qos must give finite numbers (got {priority} for {qos!r})"
                raise ValueError(msg)
        names = sorted(qos for qos, _ in self.priority_by_qos)
        for one, other in itertools.pairwise(names):
            if one == other:
                msg = f"priority_by_qos must name each QOS once (got {one!r} twice)"
                raise ValueError(msg)
        if not math.isfinite(self.default_priority):
            msg = f"default_priority must be a finite number (got {self.default_priority})"
            raise ValueError(msg)

    @property
    def tiers(self) -> int:
        """One for each priority that a job may have."""
        return len(self._priorities())

    def order(self, snap: Snapshot, /) -> Order:
        """Place every job of *snap*; see `Policy`."""
        tier_of = {priority: tier for tier, priority in enumerate(self._priorities())}
        by_qos = {qos: tier_of[priority] for qos, priority in self.priority_by_qos}
        other = tier_of[self.default_priority]
        tier = np.full(len(snap.jobs), other, dtype=np.int16)
        texts = snap.seen.texts
        if texts and by_qos:
            for row, job_id in enumerate(snap.jobs.job_id.tolist()):
                text = texts.get(JobId(job_id))
                if text is not None:
                    tier[row] = by_qos.get(text.qos, other)
        return Order(
            tier=tier,
            key=snap.memory.queued_s,
            promote=np.zeros(len(tier), dtype=np.bool_),
            tiers=len(tier_of),
        )

    def next_change_s(self, snap: Snapshot, order: Order, running: Bool, /) -> float:  # noqa: ARG002
        """Never; see `Policy`."""
        return math.inf

    def _priorities(self) -> list[float]:
        """All that a job may have, the largest first."""
        listed = {priority for _, priority in self.priority_by_qos}
        return sorted(listed | {self.default_priority}, reverse=True)
