"""Deadlines with promises: a job that can be promised its deadline is, and all else is as before.

A promise is one window of GPUs that ends by the deadline, see `arithmetic.promises`. Jobs are then
served in this order:

    running under a promise; waiting whose window has begun, first due first; all others by the
    order of *others*

Without admission it is plain earliest deadline first: under overload that meets few deadlines.

Source: earliest deadline first: Liu and Layland, "Scheduling Algorithms for Multiprogramming in a
Hard-Real-Time Environment", JACM 20(1), 1973; admission by a calendar of windows: ours.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt

from slurm_dl.model.booking import of_kind
from slurm_dl.model.jobs import COMPLETING, PENDING, Bool
from slurm_dl.model.parameter_bounds import Bound, NotNegative
from slurm_dl.model.promise import KIND, NodeGroup, PromiseTerms, SharePlace
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.arithmetic.promises import Promised, promised
from slurm_dl.policies.base import About, Order, Policy, PolicyDefaults
from slurm_dl.policies.plain import PLAIN


def ideal_terms(snap: Snapshot) -> PromiseTerms:
    """Terms where no engine sets any: a group of nodes for each GPU type that jobs ask for."""
    jobs, nodes = snap.jobs, snap.seen.nodes
    kinds, group = np.unique(jobs.gpu_type, return_inverse=True)
    groups = tuple(
        NodeGroup(nodes=nodes.up if kind < 0 else nodes.up & nodes.with_type(kind), kind=kind)
        for kind in kinds.tolist()
    )
    either = (jobs.gpu_type[:, None] < 0) | (kinds < 0)
    return PromiseTerms(
        groups=groups,
        group=group.reshape(-1).astype(np.int64),
        meets=either | (jobs.gpu_type[:, None] == kinds),
        places=(SharePlace(None, float(nodes.gpus[nodes.up].sum())),),
        returns_s=np.zeros(len(jobs)),
        holds_s=np.zeros(len(jobs)),
    )


_OURS = 2  # Tiers before those of the other policy: running under a promise, and window begun


_Others = Annotated[
    str, Bound(f"one of {', '.join(sorted(PLAIN))}", PLAIN.__contains__, " (got {value!r})")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Edf(PolicyDefaults):
    """Deadlines are promised or refused; promised ones first, from the begin of their window on.

    Attributes:
        others: Policy of all other jobs, with its default parameters.
        admits: False: nothing is promised, and jobs with a deadline come first, first due first.
        margin: Share that is added to run times that are no time limits, 0 or more.
    """

    name = "edf"
    source = "Liu and Layland, JACM 20(1), 1973; admission by windows is ours"
    about = About(
        row="G2",
        level="W3",
        formula=(
            "window [due - run time - lead, due), as late as the calendar of free GPUs lets it "
            "end; in tier 0 while it runs, in tier 1 from its begin on"
        ),
        needs=("due_s", "left_s"),
        fallback="a job without a time limit or an estimate is promised nothing",
        starves=(
            "as others; and a job that may not be preempted and asks for more GPUs than promises "
            "leave, while deadlines come"
        ),
        idles=(
            "its GPUs are promised to others before it would give them back, or it would take the "
            "window of another promise"
        ),
        trusts=("its deadline",),
    )
    interpretation = (
        "Earliest deadline first is the order of jobs whose windows have begun; which jobs these "
        "are is admission by whole windows, which no paper has in this form. Of equal deadlines "
        "the first submitted is promised first. Jobs behind one that does not fit are served, "
        "whatever others says."
    )
    counts_commitment = True

    others: _Others = "discrete_las"
    admits: bool = True
    margin: NotNegative = 0.1

    @property
    def tiers(self) -> int:
        """Two for promises, and those of others: each for running jobs and for waiting ones."""
        return _OURS + 2 * self._others().tiers

    @property
    def promises(self) -> bool:
        """True if its entries in the book are promises; see `engine.promise_terms`."""
        return self.admits

    def order(self, snap: Snapshot, /) -> Order:
        """Place every job of *snap*; see `Policy`."""
        base = self._others().order(snap)
        tier, key = self._behind(snap, base), base.key.copy()
        order = dataclasses.replace(base, tier=tier, key=key, tiers=self.tiers)
        if not self.admits:
            due_s = np.full(len(key), np.inf) if snap.due_s is None else snap.due_s
            first = np.isfinite(due_s) & (snap.jobs.state < COMPLETING)
            tier[first], key[first] = 0, due_s[first]
            return order
        if snap.due_s is None and not of_kind(snap.booked, KIND):
            return order
        found = self._promised(snap, order)
        tier[found.running], tier[found.pressing] = 0, 1
        ours = found.running | found.pressing
        key[ours] = found.due_s[ours]
        return dataclasses.replace(
            order,
            barred=found.barred if base.barred is None else found.barred | base.barred,
            start_s=found.begin_s,
            book=(*base.book, *found.book),
            shielded=found.running,
            pressing=found.pressing,
        )

    def next_change_s(self, snap: Snapshot, order: Order, running: Bool, /) -> float:
        """The begin of the next window, or the next change of others; see `Policy`."""
        others = self._others()
        base = others.order(snap)
        change_s = others.next_change_s(snap, base, running)
        if order.start_s is not None and order.pressing is not None:
            waits = (order.start_s > snap.now_s) & ~running
            change_s = min(change_s, float(order.start_s[waits].min(initial=np.inf)))
        return change_s

    def _others(self) -> Policy:
        return PLAIN[self.others]()

    def _behind(self, snap: Snapshot, base: Order) -> npt.NDArray[np.int16]:
        """The tier of each job if it had no promise; displaced are the jobs that others lets be."""
        others = self._others()
        tier, waits = base.tier.astype(np.int32), snap.jobs.state == PENDING
        match others.preempts:
            case "tier":
                tier = 2 * tier + waits
            case "never":
                tier = tier + others.tiers * waits
        return (_OURS + tier).astype(np.int16)

    def _promised(self, snap: Snapshot, order: Order) -> Promised:
        terms = snap.terms or ideal_terms(snap)
        tie = order.key if order.tie is None else order.tie
        keys = (snap.jobs.job_id, snap.memory.queued_s, tie, order.key, order.tier)
        ranked = np.lexsort(keys).astype(np.int64)
        ranked = ranked[snap.managed_jobs[ranked]]
        return promised(snap, terms, ranked, self.margin)
