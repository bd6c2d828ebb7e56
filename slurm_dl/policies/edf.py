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

from dataclasses import dataclass

import numpy as np

from slurm_dl.model.jobs import COMPLETING, I64
from slurm_dl.model.promise import PromiseTerms
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.arithmetic.promises import Promised, promised
from slurm_dl.policies.base import About, Order
from slurm_dl.policies.promising import IDLES, STARVES, Promising


@dataclass(frozen=True, slots=True, kw_only=True)
class Edf(Promising):
    """Deadlines are promised or refused; promised ones first, from the begin of their window on.

    Attributes:
        admits: False: nothing is promised, and jobs with a deadline come first, first due first.
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
        starves=STARVES,
        idles=IDLES,
        trusts=("its deadline",),
    )
    interpretation = (
        "Earliest deadline first is the order of jobs whose windows have begun; which jobs these "
        "are is admission by whole windows, which no paper has in this form. Of equal deadlines "
        "the first submitted is promised first. Jobs behind one that does not fit are served, "
        "whatever others says."
    )
    admits: bool = True

    @property
    def promises(self) -> bool:
        """True if its entries in the book are promises; see `engine.promise_terms`."""
        return self.admits

    def order(self, snap: Snapshot, /) -> Order:
        """Place every job of *snap*; see `Policy`."""
        if self.admits:
            return Promising.order(self, snap)
        _, order = self._behind(snap)
        due_s = np.full(len(order.key), np.inf) if snap.due_s is None else snap.due_s
        first = np.isfinite(due_s) & (snap.jobs.state < COMPLETING)
        order.tier[first], order.key[first] = 0, due_s[first]
        return order

    def keep(self, snap: Snapshot, terms: PromiseTerms, ranked: I64, /) -> Promised:
        """See `Promising`."""
        return promised(snap, terms, ranked, self.margin)
