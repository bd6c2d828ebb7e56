"""E-LAS: least attained service, put right by what jobs report of their progress.

A job that has had service s and has done the share p of its work still needs, if it goes on as it
went, as much as

    v = s x (1 - p) / p,

so that, and not s, says in which of the queues of `discrete_las` it is. A job that reports nothing,
or has not ended its first epoch (p = 0), counts with v = s. Inside a queue the first
eligible goes first, and who waits too long is promoted as there: where nobody reports, it is
`discrete_las`.

Source: Sultana, Chen, Xu and Yuan, "E-LAS: Design and Analysis of Completion-Time Agnostic
Scheduling for Distributed Deep Learning Cluster", ICPP 2020; its abstract says what is combined,
not how, so the formula is a reading.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slurm_dl.model.jobs import F64, Bool
from slurm_dl.model.parameter_bounds import Positive
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.base import About, Order
from slurm_dl.policies.discrete_las import DiscreteLas, Rows, edges_of, first_to_sink

_LEAST_PROGRESS = 1e-9
"""A share of the work below this is none: what follows from it would be no number."""

_NEARLY_NOTHING = 1e-9
"""Service a second, as a share of the true one, of a job that has all its work done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Elas(DiscreteLas):
    """K queues by remaining service, estimated from progress; first eligible first inside each.

    Attributes:
        thresholds_gpu_s: Least remaining service of a job in the next queue, GPU-seconds, strictly
            increasing, above 0. For a job that reports no progress, its attained service counts. K
            is one more than their number.
        quantum_s: While no job comes or goes, the queues of jobs that report progress are updated
            this often at most, seconds, above 0.
    """

    name = "elas"
    source = "E-LAS, ICPP 2020, abstract"
    about = About(
        row="A2",
        level="W3",
        formula=(
            "v = s (1 - p) / p for attained service s and progress p, v = s without progress; "
            "queue k: q_k <= v < q_(k+1); first eligible first inside it"
        ),
        needs=("progress",),
        fallback="a job without progress is placed by its attained service, as in discrete_las",
        starves="jobs of the last queue while new ones come, unless promote_knob is above 0",
        trusts=("progress",),
    )
    interpretation = (
        "The abstract gives no formula. v, the remaining service if progress stays linear, "
        "replaces the attained service of discrete_las, with its queues and its promotion. After "
        "a promotion only service since then counts. Node selection is not part of this policy."
    )

    quantum_s: Positive = 360.0

    def service(self, snap: Snapshot) -> F64:
        """``(n,)`` v: GPU-seconds, or seconds in one dimension."""
        # What a job says of its progress makes nothing of what it keeps.
        kept = snap.kept(self.dimensions)
        return (DiscreteLas.service(self, snap) - kept) * _needs_for_each_had(snap) + kept

    def rate(self, snap: Snapshot) -> F64:
        """``(n,)`` how much v grows in a second of running, until progress is reported anew."""
        factor = np.maximum(_needs_for_each_had(snap), _NEARLY_NOTHING)
        rate: F64 = DiscreteLas.rate(self, snap) * factor
        return rate

    def next_change_s(self, snap: Snapshot, order: Order, running: Bool, /) -> float:
        """The next change of queue; of jobs that report progress a quantum from now or later."""
        reports = _reports(snap)
        silent, tells = ((running & who).nonzero()[0] for who in (~reports, reports))
        change_s = first_to_sink(
            snap, left=self.left_in_queue(snap, order, silent), rate=self.rate(snap)[silent]
        )
        if len(tells):
            sinks_s = first_to_sink(
                snap, left=self.left_in_queue(snap, order, tells), rate=self.rate(snap)[tells]
            )
            rises_s = self._first_to_rise(snap, order, tells)
            change_s = min(change_s, max(min(sinks_s, rises_s), snap.now_s + self.quantum_s))
        return min(change_s, self._next_to_starve_s(snap, order, running))

    def _first_to_rise(self, snap: Snapshot, order: Order, rows: Rows) -> float:
        """When the first of the jobs at *rows* needs less than its queue, if it goes on so."""
        below = (order.tier[rows] > 0) & ~order.promote[rows]
        rows = rows[below]
        above = edges_of(self.thresholds_gpu_s)[order.tier[rows] - 1]
        still = self.service(snap)[rows] - above
        # It needs a second less after each second.
        return snap.now_s + float((still / DiscreteLas.rate(self, snap)[rows]).min(initial=np.inf))


def _reports(snap: Snapshot) -> Bool:
    """``(n,)`` jobs that have told how much of their work is done, and it is not nothing."""
    if snap.progress is None:
        return np.zeros(len(snap.jobs), dtype=np.bool_)
    reports: Bool = snap.progress > _LEAST_PROGRESS
    return reports


def _needs_for_each_had(snap: Snapshot) -> F64:
    """``(n,)`` service a job still needs for each that it has had, (1 - p) / p; 1 if not known."""
    n = len(snap.jobs)
    if snap.progress is None:
        return np.ones(n)
    left = np.maximum(1 - snap.progress, 0.0)
    return np.divide(left, snap.progress, out=np.ones(n), where=_reports(snap))
