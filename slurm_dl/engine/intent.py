"""The policy's intent: the rank of each job, and the set of jobs that should hold GPUs.

This is the part of a decision that knows nothing of Slurm. On Slurm it is reached through
SiteFactors and hand-overs; in the papers' ideal cluster jobs start and stop in no time.

Hot path of the simulator: a few NumPy calls over the live jobs, whatever their number.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from slurm_dl.engine.failed_jobs import KIND as FAILED
from slurm_dl.engine.gangs import Gangs, as_wholes, gangs_in, in_part, led
from slurm_dl.engine.pass_bound import NOBODY_HELD_BACK, HeldBack, held_back
from slurm_dl.engine.settings import AS_SUBMITTED, NEVER_OVERDUE, Overdue, Resizing
from slurm_dl.engine.shape_lock import LOCKED
from slurm_dl.engine.short_lane import short_jobs
from slurm_dl.engine.sized_target import AS_RANKED, Movable, choose_sizes
from slurm_dl.engine.target import (
    NOBODY,
    PartitionPool,
    Rows,
    TypedResources,
    choose_target,
    pools,
    to_serve,
)
from slurm_dl.ledger.lease_credits import OWED, needs
from slurm_dl.ledger.run_contracts import BROKEN
from slurm_dl.model.jobs import COMPLETING, F64, I16, I32, PENDING, RUNNING, Bool, is_in
from slurm_dl.model.sizes import AS_ASKED, SIZE, Sizes, are_sizes, wanted_gpus
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.model.throttle import THROTTLE
from slurm_dl.policies.arithmetic.supply_and_demand import type_held
from slurm_dl.policies.base import Order, Policy, Preempts, displaces

_NO_POLICYS = frozenset({OWED, BROKEN, SIZE, LOCKED, THROTTLE, FAILED})  # Kinds of the engine's
_TURNS = 8  # From then on all gangs that are not served whole are left out: each costs a turn
_ROUNDING = 1e-6  # What the sums of a linear program's answer may be off


@dataclass(frozen=True, slots=True, eq=False)
class Intent:
    """A policy's wishes for one snapshot.

    Attributes:
        kind: ``(n,)`` type of GPUs that each job in the target should hold, -1 for the others;
            None where types were not told apart.
        overdue: Rows of jobs that are served before all others, see `_overdue_jobs`.
        lane: Rows of the short jobs among those, see `engine.short_lane`.
        back: Jobs that are not served, as they would delay another, see `pass_bound`.
        size: ``(n,)`` size that each job in the target should have, an index into `Snapshot.sizes`,
            or `AS_ASKED`; None: `AS_ASKED` for all.
    """

    order: Order  # What the policy said
    ranked: Rows  # Rows of the managed live jobs, best first
    target: Rows  # Rows of the jobs that should hold GPUs, gangs whole or not at all
    kind: I16 | None = None
    overdue: Rows = field(default_factory=lambda: NOBODY)
    lane: Rows = field(default_factory=lambda: NOBODY)
    back: HeldBack = NOBODY_HELD_BACK
    size: I32 | None = None

    def gpus(self, snap: Snapshot) -> F64:
        """``(n,)`` GPUs that each job should hold if it is in the target."""
        return wanted_gpus(snap.jobs.gpus, snap.sizes, self.size)

    def resized(self, snap: Snapshot) -> Rows:
        """Rows of the running jobs in the target that should have another size than theirs."""
        rows, sizes = self.target, snap.sizes
        if self.size is None or sizes is None:
            return NOBODY
        rows = rows[(self.size[rows] >= 0) & (snap.jobs.state[rows] == RUNNING)]
        size, jobs = self.size[rows], snap.jobs
        same = (sizes.gpus[size] == jobs.gpus[rows]) & (sizes.nodes[size] == jobs.n_nodes[rows])
        resized: Rows = rows[~same]
        return resized

    def rank(self) -> I32:
        """``(n,)`` place of each job, 0 is first; -1 for jobs that have none."""
        return places(self.ranked, len(self.order.tier))


def places(ranked: Rows, n: int) -> I32:
    """``(n,)`` place of each job in the order *ranked*, 0 is first; -1 for jobs that have none."""
    place = np.full(n, -1, dtype=np.int32)
    place[ranked] = np.arange(len(ranked), dtype=np.int32)
    return place


def intend(
    snap: Snapshot,
    policy: Policy,
    pinned: Rows = NOBODY,
    *,
    lease_s: float = 0.0,
    restart_s: float = 0.0,
    resizing: Resizing = AS_SUBMITTED,
) -> Intent:
    """Ask *policy* for its order, and serve the jobs by it.

    Args:
        pinned: Running jobs that cannot be moved; they are in the target whatever their rank.
        lease_s: Length of a lease, see `needs`.
        restart_s: What stopping a job costs it, see `needs`.
        resizing: Which sizes elastic jobs get.
    """
    order, need = ask(snap, policy, lease_s, restart_s)
    ranked = rank_jobs(snap, order, displaces(policy))
    return serve_ranked(snap, order, ranked, need, pinned, skips=policy.skips, resizing=resizing)


def ask(
    snap: Snapshot, policy: Policy, lease_s: float = 0.0, restart_s: float = 0.0
) -> tuple[Order, F64 | None]:
    """The order of *policy*, and what each job is owed, ``(n, t)`` seconds; None without shares.

    Args:
        lease_s: Length of a lease, see `needs`.
        restart_s: What stopping a job costs it, see `needs`.
    """
    gangs = gangs_in(snap)
    order = policy.order(as_wholes(snap, gangs))
    order = checked(order, policy, len(snap.jobs), snap.sizes)
    need = None if order.share is None else needs(snap, order.share, lease_s, restart_s)
    if need is not None:
        # Who is owed most comes first, whoever has no share last.
        order = dataclasses.replace(order, key=-need.max(axis=1, initial=-np.inf))
    return led(order, gangs), need


def serve_ranked(
    snap: Snapshot,
    order: Order,
    ranked: Rows,
    need: F64 | None,
    pinned: Rows = NOBODY,
    *,
    skips: bool,
    bound: Overdue = NEVER_OVERDUE,
    urgent: Rows = NOBODY,
    closed: Bool | None = None,
    roomless: Bool | None = None,
    resizing: Resizing = AS_SUBMITTED,
    movable: Movable = AS_RANKED,
) -> Intent:
    """Give GPUs to the jobs in their order, or by their need where it is known.

    Args:
        ranked: Rows of the managed live jobs, best first.
        need: See `ask`.
        pinned: Running jobs that cannot be moved; they are in the target whatever their rank.
        skips: Whether jobs behind one that does not fit are served.
        bound: When a job has waited for so long that it is served first.
        urgent: Rows that are served before those even so, best first.
        closed: ``(n,)`` bool, waiting jobs that could not start even if they were served; jobs
            behind them are, where the policy skips what does not fit. None: nobody.
        roomless: ``(n,)`` bool, waiting jobs that may displace nobody and find no room; they are
            served only once they are overdue. None: nobody.
        resizing: Which sizes elastic jobs get.
        movable: Pinned jobs that become smaller, and those that do not grow.
    """
    there = pools(snap)
    gangs = gangs_in(snap)
    serve = partial(
        _serve_whole, snap, order, ranked, need, gangs=gangs, roomless=roomless,
        pinned=pinned, there=there, skips=skips, resizing=resizing, movable=movable,
    )  # fmt: skip
    barred = _either(order.barred, closed if skips else None)
    intent, barred = serve(barred=barred)
    back = NOBODY_HELD_BACK
    if skips and need is None and bound.pass_s:
        # Who only waits for jobs that stay has a planned start, who was served in vain has none.
        hopeless = None if closed is None else closed & _unplanned(snap)
        back = held_back(
            snap,
            ranked,
            intent.target,
            pinned,
            there,
            barred=_either(order.barred, hopeless),
            waits_for_all=_either(closed, roomless),
            pass_s=bound.pass_s,
        )
    if len(back.rows):
        barred = _either(barred, is_in(np.arange(len(snap.jobs)), back.rows))
        intent, barred = serve(barred=barred)
    # A component by itself is neither short nor overdue.
    alone = _either(barred, is_in(np.arange(len(snap.jobs)), np.concatenate([NOBODY, *gangs])))
    lane = short_jobs(snap, alone, there=there, bound=bound)
    overdue = _overdue_jobs(snap, alone, ranked, target=intent.target, there=there, bound=bound)
    overdue = np.concatenate([lane, overdue[~is_in(overdue, lane)]])
    if len(overdue):
        intent, _ = serve(barred=barred, first=np.concatenate([urgent, overdue]))
    return dataclasses.replace(intent, overdue=overdue, back=back, lane=lane)


def _either(*masks: Bool | None) -> Bool | None:
    """``(n,)`` bool: what is in one of *masks*; None, there as here: nobody."""
    found = None
    for mask in masks:
        if mask is not None and mask.any():
            found = mask if found is None else found | mask
    return found


def _unplanned(snap: Snapshot) -> Bool:
    """``(n,)`` bool: jobs for which GPUs were freed in vain; all if reservations shut nodes."""
    unplanned: Bool = (snap.memory.fruitless > 0) | bool(snap.seen.blocked)
    return unplanned


def _serve_whole(
    *of: Any,  # noqa: ANN401 - of `_serve`
    gangs: Gangs,
    barred: Bool | None,
    roomless: Bool | None,
    first: Rows = NOBODY,
    **how: Any,  # noqa: ANN401 - of `_serve`
) -> tuple[Intent, Bool | None]:
    """What `_serve` gives with gangs whole or not at all, and *barred* with those left out."""
    for turn in range(len(gangs) + 1):
        intent = _serve(*of, barred=_either(barred, roomless), first=first, **how)
        short = in_part(intent.target, gangs, len(intent.order.key), others=turn >= _TURNS)
        if short is None:
            break
        barred, first = _either(barred, short), first[~short[first]]
    return intent, barred


def _serve(
    snap: Snapshot,
    order: Order,
    ranked: Rows,
    need: F64 | None,
    *,
    barred: Bool | None,
    pinned: Rows,
    there: tuple[PartitionPool, ...],
    skips: bool,
    resizing: Resizing,
    movable: Movable,
    first: Rows = NOBODY,
) -> Intent:
    """Serve the pools one after another.

    Args:
        barred: ``(n,)`` bool, waiting jobs that are not served; None: nobody.
        first: Rows that are served before all others, in this order, even if barred.
    """
    by_type = len(snap.seen.gpu_types) > 1 and not (snap.rates is None and order.gpu_type is None)
    by_type |= need is not None
    queue = ranked
    if len(first):
        queue = np.concatenate([first, ranked[~is_in(ranked, first)]])
        queue = np.concatenate(by_priority_tier(snap, queue))
        barred = None if barred is None else barred & ~is_in(np.arange(len(barred)), first)
    pinned = pinned[snap.jobs.gpus[pinned] > 0]
    target, kind = NOBODY, np.full(len(snap.jobs), -1, dtype=np.int16)
    may = order.size is not None or (resizing.expand and not by_type)
    elastic = may and snap.sizes is not None
    size = np.full(len(snap.jobs), AS_ASKED, dtype=np.int32) if elastic else None
    for pool in there:
        rows, fixed = pool.of(queue), pool.of(pinned)
        if len(target):
            rows = rows[~is_in(rows, target)]
        if size is not None:
            chosen = choose_sizes(
                snap, rows, fixed, order.size,
                skips=skips, barred=barred, pool=pool, steadiness=resizing.steadiness,
                movable=movable, kinds=order.gpu_type if by_type else None, at_least=order.least,
            )  # fmt: skip
            served = chosen.rows
            size[served], kind[served] = chosen.size, chosen.kind
        elif not by_type:
            served = choose_target(snap, rows, fixed, skips=skips, barred=barred, pool=pool)
        else:
            resources = TypedResources(snap, fixed, pool.nodes)
            to_all = to_serve(snap, rows, fixed, barred)
            served = fixed
            for equals in by_priority_tier(snap, to_all):
                late = equals[is_in(equals, first)]
                before = resources.by_rank(late, order.gpu_type, skips=skips)
                by_need = NOBODY if need is None else resources.by_need(equals, need)
                rest = resources.by_rank(equals, order.gpu_type, skips=skips)
                served = np.concatenate([served, before, by_need, rest])
            kind = np.where(resources.kind >= 0, resources.kind, kind)
        target = np.concatenate([target, served])
    # A policy that chooses sizes and no types counts all GPUs as one pool.
    by_type &= size is None or order.gpu_type is not None
    return Intent(order, ranked, target, kind if by_type else None, size=size)


def by_priority_tier(snap: Snapshot, rows: Rows) -> list[Rows]:
    """*rows* in their order, those of each PriorityTier apart, the highest first."""
    tiers = snap.priority_tiers()
    if tiers is None or not len(rows):
        return [rows]
    return [rows[tiers[rows] == tier] for tier in np.unique(tiers[rows])[::-1]]


def staying(snap: Snapshot, intent: Intent) -> Intent:
    """*intent* without the running jobs that should be on another type of GPUs.

    They go there once somebody else wants the GPUs they hold; nobody is stopped for nothing.
    """
    if intent.kind is None:
        return intent
    held = type_held(snap.seen, snap.on_type)[intent.target]
    moves = (held >= 0) & (held != intent.kind[intent.target])
    return dataclasses.replace(intent, target=intent.target[~moves])


def checked(order: Order, policy: Policy, n: int, sizes: Sizes | None = None) -> Order:
    """*order*, if it is one.

    Raises:
        ValueError: The policy returned nonsense; nothing may be done by it.
    """
    columns = (
        order.tie, order.barred, order.start_s, order.gpu_type, order.size, order.least,
        order.shielded, order.pressing, order.running,
    )  # fmt: skip
    shapes = [order.tier.shape, order.key.shape, order.promote.shape]
    shapes += [column.shape for column in columns if column is not None]
    if order.share is not None:
        shapes.append(order.share.shape[:1])
    if shapes != [(n,)] * len(shapes):
        msg = f"policy {policy.name}: columns of shapes {shapes} for {n} jobs"
        raise ValueError(msg)
    if order.tier.dtype != np.int16:
        msg = f"policy {policy.name}: tiers of type {order.tier.dtype}, not int16"
        raise ValueError(msg)
    # A negative tier is a very large one without its sign.
    if n and order.tier.view(np.uint16).max() >= order.tiers:
        msg = f"policy {policy.name}: tiers outside 0 to {order.tiers - 1}"
        raise ValueError(msg)
    for column in (order.key, order.tie):
        if n and column is not None and math.isnan(column.min()):
            msg = f"policy {policy.name}: a key or a tie is not a number"
            raise ValueError(msg)
    if order.share is not None and not _are_shares(order.share):
        msg = f"policy {policy.name}: shares that are no fractions of the time"
        raise ValueError(msg)
    if not all(size is None or are_sizes(size, sizes) for size in (order.size, order.least)):
        msg = f"policy {policy.name}: sizes that the jobs do not have"
        raise ValueError(msg)
    if taken := {entry.kind for entry in order.book} & _NO_POLICYS:
        msg = f"policy {policy.name}: entries of kind {min(taken)}, which is no policy's"
        raise ValueError(msg)
    return order


def _are_shares(share: F64) -> bool:
    fits = share.ndim == 2 and bool(np.isfinite(share).all())  # noqa: PLR2004 - jobs x types
    return fits and not (
        share.size and (share.min() < -_ROUNDING or share.sum(axis=1).max() > 1 + _ROUNDING)
    )


def rank_jobs(snap: Snapshot, order: Order, preempts: Preempts) -> Rows:
    """Rows of the managed live jobs in the order in which they are to be served, best first.

    Where a waiting job may not displace a running one, the running one comes first. A higher
    PriorityTier comes before all else, as in Slurm.
    """
    jobs, priority_tier = snap.jobs, snap.priority_tiers()
    rows = ((jobs.state < COMPLETING) & snap.managed_jobs).nonzero()[0]
    tier = order.tier[rows].astype(np.int32)
    waits = jobs.state[rows] == PENDING
    if preempts != "rank":
        tier = tier * 2 + waits if preempts == "tier" else tier + waits * order.tiers
    keys: list[npt.NDArray[Any]] = [
        # Job id last: ties must not depend on the order in which Slurm listed the jobs.
        jobs.job_id[rows],
        snap.memory.queued_s[rows],
        *([] if order.tie is None else [order.tie[rows]]),
        order.key[rows],
        tier,
    ]
    if priority_tier is not None:
        keys.append(-priority_tier[rows])
        if preempts == "never":
            keys.append(waits)
    ranked: Rows = rows[np.lexsort(keys)]
    return ranked


def _overdue_jobs(
    snap: Snapshot,
    barred: Bool | None,
    ranked: Rows,
    *,
    target: Rows,
    there: tuple[PartitionPool, ...],
    bound: Overdue,
) -> Rows:
    """Rows of the jobs that are served before all others of their PriorityTier, longest wait first.

    Many policies serve jobs behind one that does not fit, so small jobs can pass a gang for ever. A
    job that could start, has waited longer than the bound and is still not among those that should
    hold GPUs is overdue. Overdue jobs are served as far as their GPUs are no more than a share of
    their pool; the first is served whatever its size.

    Args:
        barred: ``(n,)`` bool, waiting jobs that could not start; None: nobody.
        ranked: Rows of the managed live jobs, best first.
        target: Rows of the jobs that should hold GPUs by the policy alone.
        there: The pools.
    """
    jobs, since_s = snap.jobs, snap.memory.waiting_since_s
    if not bound.after_s:
        return NOBODY
    late = ranked[(jobs.state[ranked] == PENDING) & (since_s[ranked] < snap.now_s - bound.after_s)]
    if not len(late):
        return NOBODY
    late = to_serve(snap, late, target, barred)
    late = late[np.lexsort([jobs.job_id[late], since_s[late]])]
    late = np.concatenate(by_priority_tier(snap, late))
    found = [NOBODY]
    for pool in there:
        rows, all_gpus = pool.of(late), pool.gpus(snap)
        rows = rows[jobs.gpus[rows] <= all_gpus]
        claimed = jobs.gpus[rows].cumsum() <= bound.share * all_gpus
        claimed[:1] = True
        found.append(rows[claimed & ~np.isin(rows, np.concatenate(found))])
    return np.concatenate(found)
