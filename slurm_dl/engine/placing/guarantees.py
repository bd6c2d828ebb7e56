"""Jobs that are guaranteed their nodes come before all others, and others give way to them.

A scheme of placement may promise nodes to some jobs. Every tier of the policy is then there twice:
first for guaranteed jobs, then for the others. All that follows (SiteFactors, hand-overs, what
Slurm itself preempts) is what it is for any two tiers. A guaranteed job that runs is nobody's
victim, and GPUs are taken back for one that waits on the nodes that are its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from slurm_dl.engine.intent import rank_jobs
from slurm_dl.engine.placing.eligible_nodes import EligibleNodes, anywhere
from slurm_dl.engine.placing.free_resources import HOLDING
from slurm_dl.engine.placing.place_waiting import to_place
from slurm_dl.engine.preemption.eligibility import Victims
from slurm_dl.engine.settings import External, Native, Placement, Settings
from slurm_dl.engine.site_factors import levels_of
from slurm_dl.engine.waiting_line import labels_in
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import Bool, JobState, is_in
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.placement.scheme import GuaranteeQueue, Promise, Promising, Rows, Scheme
from slurm_dl.policies.base import Order, Policy, Preempts, displaces

SHIELD = "it is guaranteed the nodes it runs on"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Guarantee:
    """Guarantees of jobs, with the order and the placement that keep them."""

    order: Order  # The policy's order, with guaranteed jobs before all others
    preempts: Preempts  # Whom a waiting job may displace in that order
    placement: Placement  # The placement, with the scheme holding to its promise
    promise: Promise | None = None  # What is promised; None if the scheme promises nothing

    @property
    def guaranteed(self) -> Bool | None:
        """``(n,)`` bool, jobs that are guaranteed nodes; None if the scheme promises nothing."""
        return None if self.promise is None else self.promise.guaranteed

    @property
    def within(self) -> EligibleNodes:
        """Nodes on which room may be made, by waiting job."""
        return anywhere if self.promise is None else self.promise.within

    def shielded(self, candidates: Victims) -> Victims:
        """*candidates*, of whom guaranteed ones may not be preempted."""
        if self.promise is None:
            return candidates
        return candidates.sparing(self.promise.guaranteed, SHIELD)

    def notes(self, snap: Snapshot, notes: Mapping[JobId, str]) -> dict[JobId, str]:
        """*notes*, and for the waiting jobs of an account what it lacks of its guarantee."""
        messages = dict(notes)
        broken = {} if self.promise is None else self.promise.broken
        if not broken:
            return messages
        pending = snap.jobs.job_id[snap.jobs.state == JobState.PENDING].tolist()
        for job_id in map(JobId, pending):
            text = snap.seen.texts.get(job_id)
            if text is not None and text.account in broken:
                lack = f"its account's guarantee is broken: {broken[text.account]}"
                messages[job_id] = f"{messages[job_id]}; {lack}" if job_id in messages else lack
        return messages


def guarantee(snap: Snapshot, order: Order, preempts: Preempts, settings: Settings) -> Guarantee:
    """Compute the guarantees. If the scheme promises nothing, all stays as it is.

    A site that does not steer only wants to be told where jobs would go: nothing is promised.

    Args:
        order: The policy's order.
        preempts: Whom the policy lets a waiting job displace.
    """
    how = settings.placement
    if not how.steer or not isinstance(how.scheme, Promising):
        return Guarantee(order=order, preempts=preempts, placement=how)
    gpus = snap.jobs.gpus
    queue = GuaranteeQueue(
        running=_running(snap, settings),
        waiting=to_place(
            snap, rank_jobs(snap, order, preempts), (gpus > 0) & (gpus == np.floor(gpus)), how
        ),
        returnable=_returnable(snap, settings),
    )
    promise = how.scheme.promise(snap, queue)
    return Guarantee(
        order=first_in_order(order, preempts, promise.guaranteed),
        preempts="tier",
        placement=dataclasses.replace(how, scheme=how.scheme.keeping(promise)),
        promise=promise,
    )


def first_in_order(order: Order, preempts: Preempts, guaranteed: Bool) -> Order:
    """*order*, each of its tiers first for *guaranteed* jobs, then for the others.

    Where the policy's own tiers displace nobody they become part of the key, and only the two that
    are left do. HiveD (OSDI 2020): guaranteed jobs before opportunistic ones.
    """
    others = (~guaranteed).astype(np.int16)
    if preempts == "tier":
        tier = (order.tier + others * order.tiers).astype(np.int16)
        return dataclasses.replace(order, tier=tier, tiers=2 * order.tiers)
    key = order.key
    if order.tiers > 1:
        pairs = np.column_stack([order.tier.astype(np.float64), key])
        key = np.unique(pairs, axis=0, return_inverse=True)[1].reshape(-1).astype(np.float64)
    return dataclasses.replace(order, tier=others, key=key, tiers=2)


def tiers_of(policy: Policy, scheme: Scheme | None) -> int:
    """Number of tiers in orders of *policy* under *scheme*, if jobs are steered by it."""
    if not isinstance(scheme, Promising):
        return levels_of(policy)
    return 2 * policy.tiers if displaces(policy) == "tier" else 2


def _running(snap: Snapshot, settings: Settings) -> Rows:
    """Rows of the jobs that hold GPUs, by their start.

    First those with the SiteFactor of a guaranteed job: who was guaranteed its nodes keeps them
    when another running job comes to have a right to some.
    """
    jobs = snap.jobs
    rows = np.flatnonzero(is_in(jobs.state, HOLDING) & (jobs.gpus > 0))
    half = labels_in(settings.band_width) // 2
    stood = snap.memory.site_factor[rows] > half * settings.band_width
    # Where Slurm preempts by itself a shielded job stands as high.
    stood &= isinstance(settings.mode, External)
    ordered: Rows = rows[np.lexsort([jobs.job_id[rows], jobs.start_s[rows], ~stood])]
    return ordered


def _returnable(snap: Snapshot, settings: Settings) -> Bool:
    """``(n,)`` bool, jobs whose GPUs can be taken back, now or after their minimum quantum."""
    jobs, limits = snap.jobs, settings.preemption
    if not limits.enabled:
        return np.zeros(len(jobs), dtype=np.bool_)
    contracts = {j: c.contract for j, c in snap.seen.claims.items() if c.contract is not None}
    patient = [j for j, c in contracts.items() if c.grace_s <= limits.max_grace_s]
    may: Bool = is_in(jobs.job_id, patient) & jobs.requeueable & (jobs.gpus == np.floor(jobs.gpus))
    may &= snap.memory.preemptions < limits.max_preemptions
    may &= snap.managed_jobs
    if isinstance(settings.mode, Native):
        inside = [j for j, t in snap.seen.texts.items() if t.qos == settings.mode.qos]
        may &= is_in(jobs.job_id, inside)
    return may
