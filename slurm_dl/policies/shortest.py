"""The yardsticks of the field: SJF, SRTF, SRSF, fewest GPUs first, longest pending first.

With true run times SRTF minimises mean completion time on one server, and SRSF ("shortest remaining
service first") weighs the time with the GPUs it blocks. SJF is SRTF without preemption.

    sjf, srtf          key = seconds left
    srsf               key = seconds left x GPUs
    fewest_gpus        key = GPUs
    longest_pending    key = since when the job waits

What is left of a job is true in the simulator, unless it is told to guess; on a cluster it is the
best estimate there is, and without any what the time limit leaves.

Source: Schrage, "A proof of the optimality of the shortest remaining processing time discipline",
Operations Research 16(3), 1968; Gu et al., "Tiresias", NSDI 2019, section 3.2, and its simulator.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass

import numpy as np

from slurm_dl.model.jobs import F64
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.base import About, Order, PolicyDefaults, one_tier


class _ByKey(PolicyDefaults):
    """One tier, ordered by a key that nobody's waiting or running brings past another's."""

    def order(self, snap: Snapshot, /) -> Order:
        """Place every job of *snap*; see `Policy`."""
        # Equal keys keep the order they had; new jobs come behind.
        return one_tier(
            self.key(snap), tie=np.where(snap.memory.tier < 0, np.inf, snap.memory.place)
        )

    @abc.abstractmethod
    def key(self, snap: Snapshot, /) -> F64:
        """``(n,)`` smaller is served first."""


def _known(left_s: F64) -> F64:
    """*left_s* where it is a number, else inf: unknown is not zero."""
    return np.where(np.isnan(left_s), np.inf, left_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sjf(_ByKey):
    """Shortest job first among the waiting jobs; no running job is stopped."""

    name = "sjf"
    source = "baseline; Smith, Naval Research Logistics Quarterly 3, 1956 (SPT)"
    about = About(
        row="G2",
        level="W3",
        formula="of the waiting jobs, seconds left, smallest first; no job is preempted",
        needs=("left_s",),
        fallback="the time limit less the time run so far; last without a limit",
        starves="a long job, or one that asks for many GPUs, while shorter or smaller ones come",
    )
    interpretation = (
        "A requeued job counts with its remaining time. Jobs behind one that does not fit are "
        "served."
    )
    preempts = "never"

    def key(self, snap: Snapshot, /) -> F64:
        """``(n,)`` seconds left."""
        return _known(snap.left_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Srtf(_ByKey):
    """Shortest remaining time first."""

    name = "srtf"
    source = "baseline; Schrage, Operations Research 16(3), 1968 (SRPT)"
    about = About(
        row="G2",
        level="W3",
        formula="key = seconds left, smallest first",
        needs=("left_s",),
        fallback="the time limit less the time run so far; last without a limit",
        starves="a long job, while shorter ones come",
    )
    interpretation = "On a cluster the remaining time is the time limit less all time run so far."

    def key(self, snap: Snapshot, /) -> F64:
        """``(n,)`` seconds left."""
        return _known(snap.left_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Srsf(_ByKey):
    """Shortest remaining service first: seconds left x GPUs."""

    name = "srsf"
    source = "Tiresias, NSDI 2019, section 3.2 (SRSF)"
    about = About(
        row="G2",
        level="W3",
        formula="key = seconds left x GPUs, smallest first",
        needs=("left_s",),
        fallback="the time limit less the time run so far; last without a limit",
        starves="a large job, while smaller ones come",
    )
    interpretation = Srtf.interpretation

    def key(self, snap: Snapshot, /) -> F64:
        """``(n,)`` GPU-seconds left."""
        left_s, gpus = _known(snap.left_s), snap.jobs.gpus
        # Without GPUs and without a limit it would be no number at all.
        return np.multiply(left_s, gpus, out=np.zeros(len(gpus)), where=gpus > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class FewestGpus(_ByKey):
    """The job with the fewest GPUs first; larger running jobs are stopped for it."""

    name = "fewest_gpus"
    source = "baseline; 'sjf' of the Tiresias simulator (NSDI 2019)"
    about = About(
        row="G2",
        level="W3",
        formula="key = GPUs, smallest first",
        starves="a job that asks for many GPUs, while smaller ones come",
    )

    def key(self, snap: Snapshot, /) -> F64:
        """``(n,)`` GPUs."""
        return snap.jobs.gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class LongestPending(_ByKey):
    """The job that has waited longest first; the first that does not fit blocks the queue.

    Differs from `fifo` in jobs that were requeued: they wait since the end of their last run.
    """

    name = "longest_pending"
    source = "baseline; 'lpjf' of the Tiresias simulator (NSDI 2019)"
    about = About(
        row="G2",
        level="W3",
        formula="key = end of the last run, or first submission; smallest first; no preemption",
        idles="GPUs that the first job in the queue cannot use stay free until it starts",
    )
    interpretation = (
        "Waiting counts from the end of the last run, and only waiting for free resources counts."
    )
    preempts = "never"
    skips = False

    def key(self, snap: Snapshot, /) -> F64:
        """``(n,)`` since when each waits, epoch seconds."""
        return snap.memory.waiting_since_s
