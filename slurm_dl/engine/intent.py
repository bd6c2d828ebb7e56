"""What the policy wants: everybody's place, and the set of jobs that should hold GPUs.

This is the part of a decision that knows nothing of Slurm. On Slurm it is reached through
SiteFactors and hand-overs; in the papers' ideal cluster jobs start and stop in no time.

Hot path of the simulator: a few NumPy calls over the live jobs, whatever their number.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from slurm_dl.engine.placing.typed_resources import TypedResources
from slurm_dl.ledger.lease_credits import needs
from slurm_dl.model.jobs import COMPLETING, F64, I16, I32, NOT_HELD, PENDING, Bool
from slurm_dl.model.nodes import Nodes
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.arithmetic.gpu_type_held import type_held
from slurm_dl.policies.base import Order, Policy, Preempts

Rows = npt.NDArray[np.int64]

NOBODY: Rows = np.zeros(0, dtype=np.int64)
"""No row at all."""

_ROUNDING = 1e-6
"""What the sums of a linear program's answer may be off."""

_SLACK_GPUS = 1e-9
"""Ten tenths of a GPU are one, whatever the rounding of their sum."""


@dataclass(frozen=True, slots=True, eq=False)
class Intent:
    """A policy's wishes for one snapshot.

    Attributes:
        order: What the policy said.
        ranked: Rows of the managed live jobs, best first.
        target: Rows of the jobs that should hold GPUs, gangs whole or not at all.
        kind: ``(n,)`` type of GPUs that each job in the target should hold, -1 for the others;
            None where types were not told apart.
    """

    order: Order
    ranked: Rows
    target: Rows
    kind: I16 | None = None

    def rank(self) -> I32:
        """``(n,)`` place of each job, 0 is first; -1 for jobs that have none."""
        rank = np.full(len(self.order.tier), -1, dtype=np.int32)
        rank[self.ranked] = np.arange(len(self.ranked), dtype=np.int32)
        return rank


def intend(
    snap: Snapshot,
    policy: Policy,
    pinned: Rows = NOBODY,
    *,
    lease_s: float = 0.0,
    restart_s: float = 0.0,
) -> Intent:
    """Ask *policy* for its order, and serve the jobs by it.

    Args:
        pinned: Running jobs that cannot be moved; they are in the target whatever their rank.
        lease_s: Length of a lease, see `needs`.
        restart_s: What stopping a job costs it, see `needs`.
    """
    order, need = ask(snap, policy, lease_s, restart_s)
    ranked = rank_jobs(snap, order, policy.preempts)
    return serve_ranked(snap, order, ranked, need, pinned, skips=policy.skips)


def ask(
    snap: Snapshot, policy: Policy, lease_s: float = 0.0, restart_s: float = 0.0
) -> tuple[Order, F64 | None]:
    """The order of *policy*, and what each job is owed, ``(n, t)`` seconds; None without shares.

    Args:
        lease_s: Length of a lease, see `needs`.
        restart_s: What stopping a job costs it, see `needs`.
    """
    order = checked(policy.order(snap), policy, len(snap.jobs))
    need = None if order.share is None else needs(snap, order.share, lease_s, restart_s)
    if need is not None:
        order = dataclasses.replace(order, key=_key_of(need))
    return order, need


def serve_ranked(
    snap: Snapshot,
    order: Order,
    ranked: Rows,
    need: F64 | None,
    pinned: Rows = NOBODY,
    *,
    skips: bool,
) -> Intent:
    """Give GPUs to the jobs in their order, or by their need where it is known.

    Args:
        ranked: Rows of the managed live jobs, best first.
        need: See `ask`.
        pinned: Running jobs that cannot be moved; they are in the target whatever their rank.
        skips: Whether jobs behind one that does not fit are served.
    """
    several = len(snap.seen.gpu_types) > 1
    if need is None and not (several and (snap.rates is not None or order.gpu_type is not None)):
        target = choose_target(snap, ranked, pinned, skips=skips, barred=order.barred)
        return Intent(order, ranked, target)
    pinned = pinned[snap.jobs.gpus[pinned] > 0]
    resources = TypedResources(snap, pinned)
    open_to_all = _to_serve(snap, ranked, pinned, order.barred)
    by_need = NOBODY if need is None else resources.by_need(open_to_all, need)
    rest = resources.by_rank(open_to_all, order.gpu_type, skips=skips)
    return Intent(order, ranked, np.concatenate([pinned, by_need, rest]), resources.kind)


def _key_of(need: F64) -> F64:
    """``(n,)`` who is owed most first, whoever has no share last."""
    key: F64 = -need.max(axis=1, initial=-np.inf)
    return key


def staying(snap: Snapshot, intent: Intent) -> Intent:
    """*intent* without the running jobs that should be on another type of GPUs.

    They go there once somebody else wants the GPUs they hold; nobody is stopped for nothing.
    """
    if intent.kind is None:
        return intent
    held = type_held(snap.seen, snap.on_type)[intent.target]
    moves = (held >= 0) & (held != intent.kind[intent.target])
    return dataclasses.replace(intent, target=intent.target[~moves])


def checked(order: Order, policy: Policy, n: int) -> Order:
    """*order*, if it is one.

    Raises:
        ValueError: The policy returned nonsense; nothing may be done by it.
    """
    columns = (order.tie, order.barred, order.gpu_type)
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
    return order


def _are_shares(share: F64) -> bool:
    fits = share.ndim == 2 and bool(np.isfinite(share).all())  # noqa: PLR2004 - jobs x types
    return fits and not (share.size and (share.min() < -_ROUNDING or _most(share) > 1 + _ROUNDING))


def _most(share: F64) -> float:
    return float(share.sum(axis=1).max())


def rank_jobs(snap: Snapshot, order: Order, preempts: Preempts) -> Rows:
    """Rows of the managed live jobs in the order in which they are to be served, best first.

    Where a waiting job may not displace a running one, the running one comes first.
    """
    jobs = snap.jobs
    rows = ((jobs.state < COMPLETING) & snap.is_managed()).nonzero()[0]
    tier = order.tier[rows].astype(np.int32)
    if preempts != "rank":
        waits = jobs.state[rows] == PENDING
        tier = tier * 2 + waits if preempts == "tier" else tier + waits * order.tiers
    keys: list[npt.NDArray[Any]] = [
        # Job id last: ties must not depend on the order in which Slurm listed the jobs.
        jobs.job_id[rows],
        snap.memory.first_submit_s[rows],
        *([] if order.tie is None else [order.tie[rows]]),
        order.key[rows],
        tier,
    ]
    ranked: Rows = rows[np.lexsort(keys)]
    return ranked


def _to_serve(snap: Snapshot, ranked: Rows, pinned: Rows, barred: Bool | None) -> Rows:
    """Those of the rows *ranked* that may be given GPUs, in their order; none of the *pinned*.

    Jobs without GPUs take no part; held ones, those over a limit and those that the policy bars
    cannot be started.
    """
    jobs = snap.jobs
    rows = ranked
    if barred is not None or np.count_nonzero(jobs.held) or np.count_nonzero(jobs.gpus <= 0):
        kept = jobs.held != NOT_HELD if barred is None else (jobs.held != NOT_HELD) | barred
        apart = (jobs.gpus <= 0) | (kept & (jobs.state == PENDING))
        rows = ranked[~apart[ranked]]
    if len(pinned):
        rows = rows[~np.isin(rows, pinned)]
    return rows


def choose_target(
    snap: Snapshot, ranked: Rows, pinned: Rows, *, skips: bool, barred: Bool | None = None
) -> Rows:
    """The jobs that would hold GPUs if the policy alone decided, in the order they are served.

    GPUs are counted by type over the whole cluster, as in the paper's simulator; where on the
    nodes they are is `Room`'s business.

    Args:
        ranked: Managed live jobs, best first.
        pinned: Running jobs that cannot be moved; they are in whatever their rank.
        skips: Whether jobs behind one that does not fit are served.
        barred: ``(n,)`` bool, waiting jobs that are not to start; None: nobody.
    """
    jobs = snap.jobs
    if len(pinned):
        pinned = pinned[jobs.gpus[pinned] > 0]
    rows = _to_serve(snap, ranked, pinned, barred)
    if len(snap.seen.gpu_types) > 1 and (jobs.gpu_type[rows] >= 0).any():
        served = _serve_typed(snap, rows, pinned, skips=skips)
    else:
        free_gpus = _gpus_up(snap.seen.nodes) - float(jobs.gpus[pinned].sum())
        served = serve(jobs.gpus[rows], free_gpus, skips=skips)
    target: Rows = np.concatenate([pinned, rows[served]])
    return target


@functools.lru_cache(maxsize=4)
def _gpus_up(nodes: Nodes) -> float:
    return float(nodes.gpus[nodes.up].sum())


def serve(wants: F64, free_gpus: float, *, skips: bool) -> Bool:
    """``(k,)`` bool: who is served when each in turn takes what it wants, if that is left.

    Args:
        wants: ``(k,)`` GPUs, above 0, in the order of service.
        free_gpus: GPUs to share out.
        skips: Whether those behind one that gets nothing are served.
    """
    free_gpus += _SLACK_GPUS
    taken = wants.cumsum()
    first = int(taken.searchsorted(free_gpus, side="right"))
    served = np.zeros(len(wants), dtype=np.bool_)
    served[:first] = True
    if not skips or first == len(wants):
        return served
    if first:
        free_gpus -= float(taken[first - 1])
    rest = first + (wants[first:] <= free_gpus).nonzero()[0]
    # What does not fit now never will, so each pass shortens the rest.
    while len(rest):
        taken = wants[rest].cumsum()
        fit = int(taken.searchsorted(free_gpus, side="right"))
        served[rest[:fit]] = True
        free_gpus -= float(taken[fit - 1])
        rest = rest[fit:]
        rest = rest[wants[rest] <= free_gpus]
    return served


def _serve_typed(snap: Snapshot, rows: Rows, pinned: Rows, *, skips: bool) -> Bool:
    """`serve` where GPUs are of several types and some jobs want a certain one."""
    jobs, nodes = snap.jobs, snap.seen.nodes
    kinds = len(snap.seen.gpu_types) + 1
    free = np.bincount(
        nodes.gpu_type[nodes.up] + 1, weights=nodes.gpus[nodes.up], minlength=kinds
    ).tolist()
    total = sum(free) + _SLACK_GPUS
    for wanted, kind in zip(
        jobs.gpus[pinned].tolist(), jobs.gpu_type[pinned].tolist(), strict=True
    ):
        total -= wanted
        if kind >= 0:
            free[kind + 1] -= wanted
    served = np.zeros(len(rows), dtype=np.bool_)
    for i, (wanted, kind) in enumerate(
        zip(jobs.gpus[rows].tolist(), jobs.gpu_type[rows].tolist(), strict=True)
    ):
        if wanted <= total and (kind < 0 or wanted <= free[kind + 1] + _SLACK_GPUS):
            total -= wanted
            if kind >= 0:
                free[kind + 1] -= wanted
            served[i] = True
        elif not skips:
            break
        if total <= _SLACK_GPUS:
            break
    return served
