"""First in, first out, and static priority: the orders that clusters have without any thought.

    fifo, fifo_skip    first eligible first
    static_priority    larger priority of the job's QOS first, first eligible first inside it

Source: what Slurm, YARN and Borg do by default; Verma et al., "Large-scale cluster management at
Google with Borg", EuroSys 2015, section 3.2 (the queue is gone through from high to low priority).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from slurm_dl.model.ids import JobId
from slurm_dl.model.parameter_bounds import Bound, Figures, Table
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.base import About, Order, PolicyDefaults, in_tiers, one_tier


@dataclass(frozen=True, slots=True, kw_only=True)
class Fifo(PolicyDefaults):
    """Serve jobs first eligible first; the first that does not fit blocks the queue.

    No job is ever preempted.
    """

    name = "fifo"
    source = "baseline; what Slurm does with priority/basic and no backfill"
    about = About(
        row="G1",
        level="W3",
        formula="first eligible first; a job that does not fit blocks all jobs behind it",
        idles="GPUs that the first job in the queue cannot use stay free until it starts",
    )
    preempts = "never"
    skips = False

    def order(self, snap: Snapshot, /) -> Order:
        """Place every job of *snap*; see `Policy`."""
        return one_tier(snap.memory.queued_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class FifoSkip(Fifo):
    """Serve jobs first eligible first; jobs that do not fit are skipped.

    A large job may wait for ever behind small ones that always fit.
    """

    name = "fifo_skip"
    source = "baseline; 'fit job first' of the Tiresias simulator (NSDI 2019)"
    about = About(
        row="G1",
        level="W3",
        formula="first eligible first; a job that does not fit is passed",
        starves="a job that asks for many GPUs, while smaller ones come",
    )
    skips = True


_Priorities = Annotated[
    Table,
    Figures(
        math.isfinite,
        wrong="{name} must give finite numbers (got {value} for {key!r})",
        twice="{name} must name each QOS once (got {key!r} twice)",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticPriority(PolicyDefaults):
    """Serve jobs by the priority of their QOS, then first eligible first.

    No job is ever preempted; jobs that do not fit are skipped.

    Attributes:
        priority_by_qos: Name of each QOS and its priority, a finite number; larger is served first.
        default_priority: Priority of jobs of any other QOS, and where no QOS is known; finite.
    """

    name = "static_priority"
    source = "baseline; Borg, EuroSys 2015, section 3.2 (scan by priority)"
    about = About(
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
    interpretation = (
        "Jobs of one priority are served first eligible first; Borg takes users in turn. No job "
        "is preempted. The site sets the priorities."
    )
    preempts = "never"

    priority_by_qos: _Priorities = ()
    default_priority: Annotated[float, Bound("a finite number", math.isfinite)] = 0.0

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
        return in_tiers(tier, snap.memory.queued_s, len(tier_of))

    def _priorities(self) -> list[float]:
        """All that a job may have, the largest first."""
        listed = {priority for _, priority in self.priority_by_qos}
        return sorted(listed | {self.default_priority}, reverse=True)
