"""Gandiva_fair: every tenant gets GPU time by its tickets, and tenants trade fast GPUs for slow.

The GPUs of each type are filled up by tickets: all tenants rise together, each by its tickets,
until it has what its jobs can use; what one leaves goes to the others. With g_m the GPUs of job m
and x[u, j] what tenant u has of type j, each of its jobs that can run there deserves the share of
the time

    X[m, j] = x[u, j] / (sum of g over those jobs),

so GPU time, not the number of turns, is in proportion to tickets. Where jobs are known to be faster
on one type than on another, tenants then trade (`trade`). Trade makes no tenant slower.

Source: Chaudhary et al., "Balancing Efficiency and Fairness in Heterogeneous GPU Clusters for Deep
Learning", EuroSys 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from slurm_dl.model.jobs import F64, Bool
from slurm_dl.model.parameter_bounds import Positive, Weights
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.arithmetic.dominant_shares import weights_of
from slurm_dl.policies.arithmetic.supply_and_demand import (
    contenders,
    gpus_by_type,
    rates_of,
    tenants,
)
from slurm_dl.policies.base import About, Order, PolicyDefaults, by_share

_FULL: Final = 1e-12  # A share of what there is, or is wanted, below which nothing is left


@dataclass(frozen=True, slots=True, kw_only=True)
class GandivaFair(PolicyDefaults):
    """GPU time by tickets, with trading between GPU types.

    Attributes:
        tickets: Tickets by account, above 0; 1 for accounts that are not named.
        lease_s: Length of a lease, seconds, above 0.
    """

    name = "gandiva_fair"
    source = "Gandiva_fair, EuroSys 2020 (gang-aware stride, trading)"
    about = About(
        row="A4",
        level="W3",
        formula="x[u,j] by tickets, filled up; then trade at the second-highest speed-up; "
        "X[m,j] = x[u,j] / GPUs of the tenant's jobs",
        needs=("accounts", "rates"),
        fallback=(
            "without rates every type counts as equally fast and no tenant trades; without "
            "accounts each user is a tenant"
        ),
        trusts=(),
    )
    interpretation = (
        "The engine's credits replace strides: the job that is owed most runs next, and gangs "
        "that do not fit are skipped. A tenant's tickets are divided among its jobs by their "
        "GPUs, so its jobs get equal time. The trader is all of a tenant's jobs that can run on "
        "the same types; its speed-up is the ratio of their summed speeds. Pairs of types trade "
        "one after another, those farthest apart in speed first. Without another bidder the price "
        "is the seller's own speed-up. Node selection is not part of this policy."
    )

    tickets: Weights = ()
    lease_s: Positive = 1200.0

    def order(self, snap: Snapshot, /) -> Order:
        """Place every job of *snap*; see `Policy`."""
        supply, rates = gpus_by_type(snap), rates_of(snap)
        share = np.zeros_like(rates)
        able = (rates > 0) & (supply > 0) & (snap.jobs.gpus[:, None] <= supply)
        rows = (contenders(snap) & able.any(axis=1)).nonzero()[0]
        if not len(rows):
            return by_share(share)
        # Sums of floats depend on their order; that of the listing must not matter.
        rows = rows[np.argsort(snap.jobs.job_id[rows], kind="stable")]
        whose = tenants(snap)
        groups = _groups(whose.of[rows], able[rows])
        gpus = snap.jobs.gpus[rows]
        wants: F64 = np.bincount(groups.of, weights=gpus).astype(np.float64)
        has = fill(wants, groups.able, groups.tenant, weights_of(self.tickets, whose.names), supply)
        speed = np.zeros_like(has)
        np.add.at(speed, groups.of, gpus[:, None] * rates[rows])
        has = trade_types(has, wants, speed, groups.able)
        share[rows] = np.minimum(has / wants[:, None], 1.0)[groups.of]
        # Rounding alone can bring a job's time above all there is.
        total = share[rows].sum(axis=1, keepdims=True)
        share[rows] /= np.maximum(total, 1.0)
        return by_share(share)


@dataclass(frozen=True, slots=True, eq=False)
class _Groups:
    """Jobs of one tenant that can run on the same types.

    Attributes:
        of: ``(n,)`` the group of each job.
        tenant: ``(k,)`` whose each group is.
        able: ``(k, t)`` bool, where its jobs can run.
    """

    of: npt.NDArray[np.int64]
    tenant: npt.NDArray[np.int64]
    able: Bool


def _groups(tenant: npt.NDArray[np.int64], able: Bool) -> _Groups:
    rows, of = np.unique(
        np.column_stack([tenant, able.astype(np.int64)]), axis=0, return_inverse=True
    )
    return _Groups(of.reshape(-1), rows[:, 0], rows[:, 1:] > 0)


def fill(wants: F64, able: Bool, tenant: npt.NDArray[np.int64], tickets: F64, supply: F64) -> F64:
    """Fill up the GPUs of every type by tickets.

    All tenants rise together. On each type a tenant rises by its tickets and the size of the type;
    of its groups that still want some, each by what it wants.

    Args:
        wants: ``(k,)`` GPUs that each group of jobs can use, above 0.
        able: ``(k, t)`` bool, where its jobs can run; somewhere, all of them.
        tenant: ``(k,)`` whose each group is, an index into *tickets*.
        tickets: Tickets of each tenant, above 0.
        supply: ``(t,)`` GPUs there are.

    Returns:
        ``(k, t)`` GPUs of each group.
    """
    has = np.zeros(able.shape)
    rises = able & (supply > 0)
    # Each step fills a type or satisfies a group.
    for _ in range(len(wants) + len(supply)):
        if not rises.any():
            break
        mine = np.zeros((len(tickets), len(supply)))
        np.add.at(mine, tenant, rises * wants[:, None])
        part = np.divide(
            wants[:, None], mine[tenant], out=np.zeros_like(has), where=rises & (mine[tenant] > 0)
        )
        speed = part * tickets[tenant][:, None] * supply
        free, lacks = supply - has.sum(axis=0), wants - has.sum(axis=1)
        by_type, by_group = speed.sum(axis=0), speed.sum(axis=1)
        step = min(
            float((free[by_type > 0] / by_type[by_type > 0]).min()),
            float((lacks[by_group > 0] / by_group[by_group > 0]).min()),
        )
        has += speed * max(step, 0.0)
        full = supply - has.sum(axis=0) <= _FULL * supply
        sated = wants - has.sum(axis=1) <= _FULL * wants
        rises &= ~full & ~sated[:, None]
    return has


def trade_types(has: F64, wants: F64, speed: F64, able: Bool) -> F64:
    """``(k, t)`` GPUs of each group of jobs after trade between every two types.

    Every trader has time on fast and on slow GPUs, and a speed-up: how many times as much it gets
    done on a fast one. In each round the trader with the highest speed-up that has slow time left
    buys, and the one with the lowest speed-up that has fast time left sells. The price of a fast
    GPU, in slow ones, is the second-highest speed-up of those that have slow time left, as in an
    auction at the second price, but never below what it is worth to the seller. The price lies
    between the two speed-ups, so no trade makes anybody slower than before, and what there is of
    each type stays.

    Args:
        has: ``(k, t)`` GPUs of each before.
        wants: ``(k,)`` GPUs that each can use.
        speed: ``(k, t)`` what each gets done on a GPU, in any unit of its own.
        able: ``(k, t)`` bool, where its jobs can run.
    """
    after, kinds = has.copy(), has.shape[1]
    # How fast a type is, as those see it that can run on the first they can.
    typical = np.array(
        [float(np.median(s)) if len(s := _relative(speed, able, j)) else 0.0 for j in range(kinds)]
    )
    pairs = [
        (a, b) for a in range(kinds) for b in range(kinds) if (typical[a], a) > (typical[b], b)
    ]
    pairs.sort(key=lambda ab: (typical[ab[1]] - typical[ab[0]], ab))
    for fast, slow in pairs:
        both = (able[:, fast] & able[:, slow]).nonzero()[0]
        if not len(both):
            continue
        elsewhere = after[both].sum(axis=1) - after[both, fast] - after[both, slow]
        after[both, fast], after[both, slow] = trade(
            after[both, fast],
            after[both, slow],
            speed[both, fast] / speed[both, slow],
            wants[both] - elsewhere,
        )
    return after


def _relative(speed: F64, able: Bool, kind: int) -> F64:
    there = able[:, kind]
    relative: F64 = speed[there, kind] / speed[there].max(axis=1)
    return relative


_NOTHING: Final = 1e-9  # A share of what there is in all, below which it is nothing


def trade(fast: F64, slow: F64, speed_up: F64, most: F64 | None = None) -> tuple[F64, F64]:
    """What each trader has of fast and slow GPUs after trading.

    Args:
        fast: ``(k,)`` fast GPUs of each before, 0 or more.
        slow: ``(k,)`` slow GPUs of each before, 0 or more.
        speed_up: ``(k,)`` what a fast GPU is worth to each, in slow ones, above 0.
        most: ``(k,)`` the most GPUs each can use, of both types together; None: any number.

    Returns:
        ``(k,)`` fast and ``(k,)`` slow GPUs of each.
    """
    fast, slow = fast.copy(), slow.copy()
    limit = np.full(len(fast), np.inf) if most is None else most
    nothing = _NOTHING * float(fast.sum() + slow.sum())
    # Each round uses up a buyer's slow time, a seller's fast time, or the room of one of them.
    sated = np.zeros(len(fast), dtype=np.bool_)
    for _ in range(4 * len(fast)):
        bids = np.where((slow > nothing) & ~sated, speed_up, -np.inf)
        asks = np.where((fast > nothing) & ~sated, speed_up, np.inf)
        if not len(bids):
            break
        buyer, seller = int(bids.argmax()), int(asks.argmin())
        if not speed_up[buyer] > speed_up[seller] or np.isinf([bids[buyer], asks[seller]]).any():
            break
        bids[buyer] = -np.inf
        price = max(float(bids.max()), float(speed_up[seller]))
        sold = min(float(slow[buyer]) / price, float(fast[seller]))
        # Who gets more GPUs than it gives must have work for them.
        grows = seller if price > 1 else buyer
        room = float(limit[grows] - fast[grows] - slow[grows])
        if price != 1 and sold * abs(price - 1) >= room - nothing:
            sold = min(sold, max(room, 0.0) / abs(price - 1))
            sated[grows] = True
        fast[buyer] += sold
        fast[seller] -= sold
        slow[buyer] -= sold * price
        slow[seller] += sold * price
    return np.maximum(fast, 0.0), np.maximum(slow, 0.0)
