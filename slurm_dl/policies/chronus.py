"""Chronus (SoCC 2021): deadlines are promised leases of GPUs, and all else runs on what is left.

Time is cut into leases of equal length. A job with a deadline that is admitted gets a plan, so many
whole leases before its deadline; see `arithmetic.lease_plans`. Jobs are served in this order:

    those that have the lease under way; without a deadline or refused, least GPU time left first;
    promised, ahead of their leases, least slack x GPUs first; too late in any case

Source: Gao, Ye, Sun, Wen and Zhang, "Chronus: A Novel Deadline-aware Scheduler for Deep Learning
Training Jobs", SoCC 2021; S-Lab-System-Group/ChronusArtifact on GitHub.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from slurm_dl.model.jobs import COMPLETING, PENDING, Bool
from slurm_dl.model.parameter_bounds import Count, NotNegative, Positive
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.arithmetic.lease_plans import LeaseRules, leased
from slurm_dl.policies.arithmetic.slots import slot_at
from slurm_dl.policies.base import About, Order, PolicyDefaults, in_tiers
from slurm_dl.policies.promising import asks, ideal_terms, ranked_rows
from slurm_dl.policies.shortest import Srsf

_ROUNDING_S: Final = 1e-3  # Sums of run times are off by less
_NOW, _OTHERS, _AHEAD, _LOST = range(4)  # The tiers


@dataclass(frozen=True, slots=True, kw_only=True)
class Chronus(PolicyDefaults):
    """Deadlines are promised whole leases or refused; all else by the least GPU time left.

    Attributes:
        lease_length_s: Length of a lease, seconds, above 0.
        margin: Share that is added to run times that are no time limits, 0 or more.
        restart_s: Seconds that a job of one GPU loses at the begin of a lease, 0 or more; each
            doubling of its GPUs adds as many. On Slurm at least ``deadlines.lead_s`` counts.
        milp: Where the greedy rule finds no room, ask an integer program.
        node_limit: Branches that it may look at, 1 or more.
    """

    name = "chronus"
    source = "Gao et al., SoCC 2021, sections 3 and 4; ChronusArtifact"
    about = About(
        row="A14",
        level="W3",
        formula=(
            "leases = ceil(left (1 + margin) (1 + (1 + log2 GPUs) restart / lease) / lease), as "
            "late as can be before the deadline; tiers: lease now, others by left x GPUs, promised "
            "by slack x GPUs, lost"
        ),
        needs=("due_s", "left_s"),
        fallback="a job without a time limit or an estimate is promised nothing",
        starves=(
            "a large job without a promise, while smaller ones or promised ones come; one that is "
            "too late in any case, while any come"
        ),
        idles=(
            "it could not be stopped before its GPUs are somebody's lease, for instance in its "
            "minimum quantum"
        ),
        trusts=("its deadline",),
    )
    interpretation = (
        "Jobs are stopped often: on a trace of 3,875 jobs 5,900 times with leases of 20 minutes. "
        "The placement search and the profiler are not part of it: nodes are chosen by the "
        "placement scheme, run times are time limits or estimates. Of soft deadlines the highest "
        "value that fits is promised. A job shorter than a lease is refused where its deadline "
        "comes before the end of the next one. A job that may not be stopped has its leases in a "
        "row. GPUs that nobody leases go to others, not to the next lease."
    )
    preempts = "tier"
    counts_commitment = True

    # Not lease_s, see `base.Leasing`: only jobs with a promise keep their GPUs for a lease here.
    lease_length_s: Positive = 1200.0
    margin: NotNegative = 0.1
    restart_s: NotNegative = 30.0
    milp: bool = False
    node_limit: Count = 1000

    @property
    def tiers(self) -> int:
        """Four, see the module."""
        return 4

    @property
    def promises(self) -> bool:
        """True: its entries in the book are promises; see `engine.promise_terms`."""
        return True

    def order(self, snap: Snapshot, /) -> Order:
        """Place every job of *snap*; see `Policy`."""
        jobs, key = snap.jobs, Srsf().key(snap)
        tier = np.full(len(jobs), _OTHERS, dtype=np.int16)
        order = in_tiers(tier, key, self.tiers)
        if not asks(snap):
            return order
        terms = snap.terms or ideal_terms(snap)
        rules = LeaseRules(
            lease_s=self.lease_length_s,
            margin=self.margin,
            restart_s=self.restart_s,
            node_limit=self.node_limit if self.milp else 0,
        )
        found = leased(snap, terms, ranked_rows(snap, order), rules)
        promised = np.isfinite(found.due_s)
        ahead = promised & ~found.now
        tier[found.now], key[found.now] = _NOW, found.due_s[found.now]
        tier[ahead], key[ahead] = _AHEAD, (found.slack_s * jobs.gpus)[ahead]
        if snap.due_s is not None:
            late = np.isfinite(snap.left_s) & (snap.due_s - snap.now_s < snap.left_s - _ROUNDING_S)
            tier[late & ~promised] = _LOST
        waits = jobs.state == PENDING
        return dataclasses.replace(
            order,
            barred=found.barred,
            start_s=found.begin_s,
            book=found.book,
            shielded=found.now & ~waits,
            pressing=found.now & waits,
        )

    def next_change_s(self, snap: Snapshot, order: Order, running: Bool, /) -> float:
        """The end of the lease under way, while jobs wait for others; see `Policy`."""
        planned = order.start_s is not None and bool(np.isfinite(order.start_s).any())
        waits = (snap.jobs.state < COMPLETING) & ~running & (bool(running.any()) or planned)
        next_lease = slot_at(snap.now_s, self.lease_length_s) + 1
        return next_lease * self.lease_length_s if waits.any() else math.inf
