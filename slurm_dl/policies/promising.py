"""The part that policies which promise deadlines have in common: their tiers, and their order.

Jobs are served in this order:

    running under a promise; waiting whose GPUs are promised from now on, first due first; all
    others by the order of *others*
"""

from __future__ import annotations

import abc
import dataclasses
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

import numpy as np
import numpy.typing as npt

from slurm_dl.model.booking import of_kind
from slurm_dl.model.jobs import I64, PENDING, Bool
from slurm_dl.model.parameter_bounds import Bound, NotNegative
from slurm_dl.model.promise import KIND, NodeGroup, PromiseTerms, SharePlace
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.arithmetic.promises import Promised
from slurm_dl.policies.base import Order, Policy, PolicyDefaults
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


def asks(snap: Snapshot) -> bool:
    """True if a job has a deadline or a promise."""
    return snap.due_s is not None or bool(of_kind(snap.booked, KIND))


def ranked_rows(snap: Snapshot, order: Order) -> I64:
    """``(k,)`` rows of the managed jobs in an order, best first."""
    tie = order.key if order.tie is None else order.tie
    keys = (snap.jobs.job_id, snap.memory.queued_s, tie, order.key, order.tier)
    ranked = np.lexsort(keys).astype(np.int64)
    managed: I64 = ranked[snap.managed_jobs[ranked]]
    return managed


STARVES: Final = (
    "as others; and a job that may not be preempted and asks for more GPUs than promises leave, "
    "while deadlines come"
)
IDLES: Final = (
    "its GPUs are promised to others before it would give them back, or it would take the window "
    "of another promise"
)
"""Of policies that promise windows; see `About`."""

_Others = Annotated[
    str, Bound(f"one of {', '.join(sorted(PLAIN))}", PLAIN.__contains__, " (got {value!r})")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Promising(PolicyDefaults):
    """Two tiers for promises, and those of another policy behind them.

    Attributes:
        others: Policy of all other jobs, with its default parameters.
        margin: Share that is added to run times that are no time limits, 0 or more.
    """

    counts_commitment = True
    _ours: ClassVar[int] = 2  # Tiers before those of the other policy

    others: _Others = "discrete_las"
    margin: NotNegative = 0.1

    @property
    def tiers(self) -> int:
        """Two for promises, and those of others: each for running jobs and for waiting ones."""
        return self._ours + 2 * self._others().tiers

    @property
    def promises(self) -> bool:
        """True if its entries in the book are promises; see `engine.promise_terms`."""
        return True

    @abc.abstractmethod
    def keep(self, snap: Snapshot, terms: PromiseTerms, ranked: I64, /) -> Promised:
        """The promises that stand after a look.

        Args:
            ranked: Rows of the managed jobs in the order of *others*, best first.
        """

    def order(self, snap: Snapshot, /) -> Order:
        """Place every job of *snap*; see `Policy`."""
        base, order = self._behind(snap)
        if not (asks(snap) or ("sizes" in self.about.needs and snap.sizes is not None)):
            return order
        found = self.keep(snap, snap.terms or ideal_terms(snap), ranked_rows(snap, order))
        tier, key = order.tier, order.key
        tier[found.running], tier[found.pressing] = 0, 1
        ours = found.running | found.pressing
        if found.later is not None:
            tier[found.later], ours = 2, ours | found.later
        key[ours] = found.due_s[ours]
        return dataclasses.replace(
            order,
            barred=found.barred if base.barred is None else found.barred | base.barred,
            start_s=found.begin_s,
            book=(*base.book, *found.book),
            shielded=found.running,
            pressing=found.pressing,
            size=found.size,
            least=found.least,
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

    def _behind(self, snap: Snapshot) -> tuple[Order, Order]:
        """The order of others, and ours if no job had a promise.

        Displaced are the jobs that others lets be.
        """
        others = self._others()
        base = others.order(snap)
        tier, waits = base.tier.astype(np.int32), snap.jobs.state == PENDING
        match others.preempts:
            case "tier":
                tier = 2 * tier + waits
            case "never":
                tier = tier + others.tiers * waits
        mine: npt.NDArray[np.int16] = (self._ours + tier).astype(np.int16)
        return base, dataclasses.replace(base, tier=mine, key=base.key.copy(), tiers=self.tiers)
