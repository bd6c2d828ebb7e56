"""ElasticFlow: jobs with deadlines have the least size that is in time, and more on free GPUs.

Where a size is chosen once, a promise is one window of the least size that fits before the
deadline; see `arithmetic.promises`. Where sizes may change it is a plan with a size in each slot;
see `arithmetic.elastic_plans`.

Source: Gu et al., "ElasticFlow: An Elastic Serverless Training Platform for Distributed Deep
Learning", ASPLOS 2023, section 4.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from slurm_dl.model.booking import updated
from slurm_dl.model.jobs import COMPLETING, I64, Bool
from slurm_dl.model.parameter_bounds import Positive
from slurm_dl.model.promise import PromiseTerms, promises_in
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.arithmetic.elastic_plans import planned
from slurm_dl.policies.arithmetic.promises import Promised, promised
from slurm_dl.policies.arithmetic.slots import slot_at
from slurm_dl.policies.base import About, Order
from slurm_dl.policies.elastic.sizing_policy import SPEEDS_TOLD
from slurm_dl.policies.promising import IDLES, STARVES, Promising


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticFlow(Promising):
    """Deadlines are promised with the least size that meets them, or refused.

    Attributes:
        once: A job keeps the size with which it starts. False: plans have a size for each slot, as
            in the paper, and a change of size is taken to cost nothing.
        slot_s: Length of a slot, seconds, above 0, rounded up to whole ones. Plans begin and end
            with one.
    """

    name = "elasticflow"
    source = "ElasticFlow, ASPLOS 2023, section 4 (minimum satisfactory share, admission)"
    about = About(
        row="A15",
        level="W3",
        formula=(
            "least size with which the work is done by the deadline behind all other promises; "
            "spare GPUs to the job that saves most GPU time by each"
        ),
        needs=("due_s", "left_s", "sizes"),
        fallback=(
            "a job without sizes has the one it asks for; one without a time limit or an estimate "
            "is promised nothing"
        ),
        starves=STARVES,
        idles=IDLES,
        trusts=("its deadline", *SPEEDS_TOLD),
    )
    interpretation = (
        "With once, its default, a plan is one window of one size, as a change of size is a "
        "restart on Slurm. Jobs are admitted one by one, by submission. If all plans cannot be "
        "made anew, the ones that were promised are kept. GPU time is saved, not spent, by the job "
        "that grows first; the artefact has the opposite sign. Nodes are not buddies: GPUs are "
        "counted in powers of two. Jobs without a deadline, or refused, are served by others."
    )
    _ours: ClassVar[int] = 3

    once: bool = True
    slot_s: Positive = 60.0

    def keep(self, snap: Snapshot, terms: PromiseTerms, ranked: I64, /) -> Promised:
        """See `Promising`."""
        if self.once:
            return promised(snap, terms, ranked, self.margin, self._whole_slot_s)
        return planned(snap, terms, ranked, margin=self.margin, slot_s=self._whole_slot_s)

    @property
    def _whole_slot_s(self) -> int:
        """Promises are kept in whole seconds."""
        return math.ceil(self.slot_s)

    def next_change_s(self, snap: Snapshot, order: Order, running: Bool, /) -> float:
        """When a plan next has other GPUs, or as for all policies that promise; see `Policy`."""
        change_s = Promising.next_change_s(self, snap, order, running)
        if self.once:
            return change_s
        waits = (snap.jobs.state < COMPLETING) & ~running
        standing = promises_in(updated(snap.booked, order.book)).values()
        begins_s = [float(b) for p in standing if p.is_kept for b, *_ in p.plan if b > snap.now_s]
        if waits.any() and begins_s:
            slot_s = self._whole_slot_s
            begins_s.append((slot_at(snap.now_s, slot_s) + 1) * slot_s)
        return min([change_s, *begins_s])
