"""Carbyne: be done no later than under DRF, and leave to others what that does not take.

Each job knows when it would end if DRF divided the cluster (`FairWorld.finish_s`). Until its latest
start (`latest_start`) it can wait without ending later than that, so it yields its turn; from then
on it goes before all that can wait. What is yielded goes to the jobs that are nearest their
completion, and among those equally near to the one that packs best: whose demand lies most along
what is free,

    score = sum over r of  demand[r] free[r].

A job of which nobody knows how much it has left cannot tell what it could yield: it is served
whenever it has had less than its fair share of the time.

Source: Grandl, Chowdhury, Akella and Ananthanarayanan, "Altruistic Scheduling in Multi-Resource
Clusters", OSDI 2016; the score is that of Grandl et al., "Multi-resource packing for cluster
schedulers" (Tetris), SIGCOMM 2014.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Annotated, Final

import numpy as np
import numpy.typing as npt

from slurm_dl.model.jobs import COMPLETING, F64, PENDING, Bool
from slurm_dl.model.parameter_bounds import Bound, Positive, Weights
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.arithmetic.dominant_shares import (
    fluid_progress,
    parts,
    sum_by,
    weights_of,
)
from slurm_dl.policies.arithmetic.promise_needs import latest_start
from slurm_dl.policies.arithmetic.supply_and_demand import (
    contenders,
    gpus_by_type,
    rates_of,
    tenants,
)
from slurm_dl.policies.base import About, Order, PolicyDefaults, in_tiers

_INSTANT_S: Final = 1e-6  # Times this close are one instant: sums of run times are a little off

_SLACKS: Final = np.array([-8.0, -4.0, -2.0, -1.0, -0.01, 1.0])
"""Leases that a job can wait before it must run, which part the tiers of those that are late: one
that falls behind the others displaces them, so that all are a little late and none is very."""

_GRAINS: Final = 20.0  # In a lease; what happens in less is not looked at


_Tiers = Annotated[
    tuple[float, ...],
    Bound(
        "finite numbers above 0, strictly increasing",
        lambda edges: all(a < b for a, b in itertools.pairwise((0.0, *edges, math.inf))),
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Carbyne(PolicyDefaults):
    """DRF in which a job yields its turn while it can still meet its DRF finish time.

    Attributes:
        weights: Weights by account, above 0; 1 for accounts that are not named.
        left_tiers_s: Seconds left at which the tiers of yielding jobs begin, strictly increasing,
            above 0. Only a job of a nearer tier displaces a yielding job.
        lease_s: Length of a lease, seconds, above 0. A job stops yielding this much earlier than
            its latest start, because it may have to wait for a lease to end.
    """

    name = "carbyne"
    source = "Carbyne, OSDI 2016; packing score of Tetris, SIGCOMM 2014"
    about = About(
        row="A21",
        level="W3",
        formula=(
            "jobs past their latest start for the DRF finish first, by slack, then first due; "
            "then least left first, then largest demand . free"
        ),
        needs=("accounts", "left_s", "past", "rates"),
        fallback=(
            "without left_s a job yields nothing and is served while it is behind its fair share; "
            "without past the fair schedule contains only jobs that are still there"
        ),
        trusts=("progress",),
    )
    interpretation = (
        "Gangs cannot run on fewer GPUs, so a job yields its turn and starts late. The fair "
        "finish is that of DRF with everything divided, jobs of a tenant in equal parts, from "
        "when each could first start. Finished jobs ask there for as large a part of CPUs and "
        "memory as of GPUs. Jobs are displaced at the ends of leases, or none could start late. "
        "Among yielding jobs, only a job that is nearer to its completion by a tier displaces "
        "another. GPUs of all types are one resource."
    )
    preempts = "tier"

    weights: Weights = ()
    left_tiers_s: _Tiers = (3600.0, 14400.0, 86400.0)
    lease_s: Positive = 1200.0

    @property
    def tiers(self) -> int:
        """Those that cannot wait, alone or with others; then those that yield, by what is left."""
        return len(_SLACKS) + 1 + len(self.left_tiers_s) + 1

    def order(self, snap: Snapshot, /) -> Order:
        """Place every job of *snap*; see `Policy`."""
        n, now_s = len(snap.jobs), snap.now_s
        need = self._need(snap)
        tier, key = np.full(n, self.tiers - 1, dtype=np.int16), np.full(n, np.inf)
        key[need.rows] = need.left_s
        edges = np.array(self.left_tiers_s)
        tier[need.rows] = len(_SLACKS) + 1 + edges.searchsorted(need.left_s, side="right")
        presses = need.press_s <= now_s + _INSTANT_S
        # Together they need all GPUs, but of some it is not known yet who has to wait.
        tier[need.rows[presses]] = len(_SLACKS)
        slack = need.slack_s / self.lease_s
        late = presses & (slack <= _SLACKS[-1])
        tier[need.rows[late]] = _SLACKS.searchsorted(slack[late], side="left")
        key[need.rows[presses]] = need.due_s[presses]
        return in_tiers(tier, key, self.tiers, -_score(snap))

    def next_change_s(self, snap: Snapshot, order: Order, running: Bool, /) -> float:
        """When the next job cannot wait any longer, or has its fair share; see `Policy`."""
        need = self._need(snap, running)
        runs, now_s = running[need.rows], snap.now_s
        yields = order.tier[need.rows] > len(_SLACKS)
        # Those of which nothing is known fall behind while they wait and catch up while they run.
        gap_s, known = np.abs(need.ahead_s), np.isfinite(need.left_s)
        waits_s = np.where(known, need.press_s - now_s, _over(gap_s, need.part))
        runs_s = np.where(known, np.inf, _over(gap_s, 1 - need.part))
        # How late jobs are only matters at the ends of leases.
        ahead_s = np.concatenate([waits_s[~runs & yields], runs_s[runs & ~yields]])
        soonest_s = float(ahead_s.min(initial=np.inf))
        return now_s + max(soonest_s, self.lease_s / _GRAINS)

    def _need(self, snap: Snapshot, running: Bool | None = None) -> _Need:
        jobs, memory, now_s = snap.jobs, snap.memory, snap.now_s
        rates, supply = rates_of(snap), gpus_by_type(snap)
        able = (rates > 0) & (supply > 0) & (jobs.gpus[:, None] <= supply.sum())
        rows = (contenders(snap) & able.any(axis=1)).nonzero()[0]
        # Sums of floats depend on their order; that of the listing must not matter.
        rows = rows[np.argsort(jobs.job_id[rows], kind="stable")]
        rate = np.where(able, rates, 0.0).max(axis=1, initial=0.0)[rows]
        left_s = snap.left_s[rows] / rate
        fair = self._fair(snap, rows, left_s)
        known = np.isfinite(left_s)
        ahead_s = memory.ran_s[rows] - fair.served_s
        # What is not known has had its share, or is due at once, the more the farther behind.
        due_s = np.where(known, fair.finish_s, now_s + ahead_s)
        press_s = np.where(ahead_s > _INSTANT_S, np.inf, now_s)
        room = float(supply.sum()) - float((fair.part * jobs.gpus[rows])[~known].sum())
        by = known.nonzero()[0]
        by = by[np.lexsort([jobs.job_id[rows[by]], due_s[by]])]
        press_s[by] = latest_start(
            due_s[by] - self.lease_s,
            left_s[by],
            jobs.gpus[rows[by]],
            room=room,
            now_s=now_s,
            running=None if running is None else running[rows[by]],
        )
        slack_s = ahead_s.copy()
        slack_s[by] = due_s[by] - left_s[by] - now_s
        return _Need(rows, left_s, due_s, press_s, slack_s, ahead_s, fair.part)

    def _fair(self, snap: Snapshot, rows: npt.NDArray[np.int64], left_s: F64) -> FairWorld:
        """The fair world of the jobs at *rows*, with those that were there while they were."""
        memory, whose, gpus = snap.memory, tenants(snap), float(gpus_by_type(snap).sum())
        submit_s = memory.queued_s[rows]
        past = snap.past.since(float(submit_s.min(initial=snap.now_s)))
        # Tenants by name: those of the past may have nothing here any more.
        names = sorted({*whose.names, *past.accounts})
        place = {name: i for i, name in enumerate(names)}
        here = np.array([place[name] for name in whose.names], dtype=np.int64)
        gone = np.array([place[name] for name in past.accounts], dtype=np.int64)
        ask = parts(snap)[rows]
        had = np.repeat(past.gpus[:, None] / max(gpus, 1.0), ask.shape[1], axis=1)
        world = fair_world(
            np.concatenate([ask, had]),
            np.concatenate([here[whose.of[rows]], gone[past.account]]),
            np.concatenate([submit_s, past.submit_s]),
            np.concatenate([memory.ran_s[rows] + left_s, past.ran_s]),
            weight=weights_of(self.weights, tuple(names)),
            now_s=snap.now_s,
            grain_s=self.lease_s / _GRAINS,
        )
        n = len(rows)
        return FairWorld(
            served_s=world.served_s[:n], part=world.part[:n], finish_s=world.finish_s[:n]
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Need:
    """How long jobs can wait.

    Attributes:
        rows: ``(k,)`` the jobs.
        left_s: ``(k,)`` seconds each still runs; inf where nothing is known.
        due_s: ``(k,)`` its fair finish, epoch seconds; of those not known, now and as much earlier
            as they are behind.
        press_s: ``(k,)`` when it can wait no longer, with the others, epoch seconds.
        slack_s: ``(k,)`` seconds it can wait, whatever the others do, or is late if below 0; of
            those not known, how far they are ahead.
        ahead_s: ``(k,)`` seconds it has run more than in the fair world.
        part: ``(k,)`` its part of its speed in the fair world.
    """

    rows: npt.NDArray[np.int64]
    left_s: F64
    due_s: F64
    press_s: F64
    slack_s: F64
    ahead_s: F64
    part: F64


def _score(snap: Snapshot) -> F64:
    """``(n,)`` how well each job's demand lies along what is free of everything."""
    part, jobs = parts(snap), snap.jobs
    holds = (jobs.state > PENDING) & (jobs.state <= COMPLETING)
    order = np.argsort(jobs.job_id[holds], kind="stable")
    held = sum_by(part[holds][order], np.zeros(len(order), dtype=np.int64), 1)[0]
    score: F64 = part @ np.maximum(1.0 - held, 0.0)
    return score


def _over(gap_s: F64, pace: F64) -> F64:
    """``(k,)`` how long a gap lasts that closes at *pace*; inf if it does not."""
    lasts_s: F64 = np.divide(gap_s, pace, out=np.full(len(gap_s), np.inf), where=pace > 0)
    return lasts_s


PAST_STEPS: Final = 200
"""No step of the past is shorter than this part of it, where more arrivals and ends can be."""

AHEAD: Final = 0.02  # No step of the future is shorter than this part of the way there
_MOST_STEPS: Final = 600
_DONE_S: Final = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FairWorld:
    """How far each job is in the fair world.

    Attributes:
        served_s: ``(n,)`` seconds at full speed that each has had there.
        part: ``(n,)`` its part of its speed there now; 0 for those that are done.
        finish_s: ``(n,)`` when it ends there, epoch seconds; inf where its total is unknown.
    """

    served_s: F64
    part: F64
    finish_s: F64


def fair_world(
    ask: F64,
    tenant: npt.NDArray[np.int64],
    submit_s: F64,
    total_s: F64,
    *,
    weight: F64,
    now_s: float,
    grain_s: float,
) -> FairWorld:
    """Go through the fair world from the first arrival to the end.

    In this fair world a job gets, from its arrival on, the part of its speed that its
    tenant's dominant share allows (`dominant_shares`), whatever it gets in the real one; all jobs
    of a tenant get the same part. The world is gone through from step to step, from the oldest job
    that is still there to now, with those that are over in reality, and on to the end with nobody
    new.

    Steps end at arrivals and at the ends of jobs. Where these are so many that it would take too
    long they are taken together, at the cost of a little exactness: see `PAST_STEPS` and `AHEAD`.

    Source: the paper's finish under the fair allocation, which no altruistic job may exceed. The
    world of virtual time is that of Demers, Keshav and Shenker, "Analysis and simulation of a fair
    queueing algorithm", SIGCOMM 1989.

    Args:
        ask: ``(n, r)`` what each job asks for, as parts of what there is.
        tenant: ``(n,)`` whose each is, an index into *weight*.
        submit_s: ``(n,)`` when each came, epoch seconds.
        total_s: ``(n,)`` seconds at full speed that each takes; inf if unknown.
        weight: ``(k,)`` weights of the tenants, above 0.
        now_s: The present, epoch seconds; jobs that come later are as if submitted now.
        grain_s: No step of the future needs to be shorter, seconds, above 0.
    """
    n = len(ask)
    came_s = np.minimum(submit_s, now_s)
    at_s = float(came_s.min(initial=now_s))
    least_s = (now_s - at_s) / PAST_STEPS if 2 * n > PAST_STEPS else 0.0
    queue = np.argsort(came_s, kind="stable")
    arrivals = came_s[queue]
    served_s, part, finish_s = np.zeros(n), np.zeros(n), np.full(n, np.inf)
    snap_served, snap_part = served_s, part
    here, joined = np.zeros(0, dtype=np.int64), 0
    past = True
    for _ in range(_MOST_STEPS):
        if past and at_s >= now_s:
            past = False
        until = int(arrivals.searchsorted(at_s, side="right"))
        here = np.concatenate([here, queue[joined:until]])
        joined = until
        got = fluid_progress(sum_by(ask[here], tenant[here], len(weight)), weight)
        speed = got[tenant[here]]
        if not past and snap_part is part:
            part[here] = speed
            snap_served, snap_part = served_s.copy(), part.copy()
        left_s = total_s[here] - served_s[here]
        moves = speed > 0
        ends_s = np.divide(left_s, speed, out=np.full(len(here), np.inf), where=moves)
        step_s = float(ends_s.min(initial=np.inf))
        if past:
            coming_s = float(arrivals[joined]) if joined < n else now_s
            step_s = min(max(min(step_s, coming_s - at_s), least_s), now_s - at_s)
        else:
            if step_s == np.inf:
                break
            step_s = max(step_s, grain_s, AHEAD * (at_s - now_s))
        over: Bool = ends_s <= step_s + _DONE_S
        finish_s[here[over]] = at_s + ends_s[over]
        served_s[here] += speed * step_s
        at_s += step_s
        here = here[~over]
    # Whoever is still there when steps run out goes on at its present speed.
    rest = here[np.isfinite(total_s[here])]
    if len(rest):
        got = fluid_progress(sum_by(ask[here], tenant[here], len(weight)), weight)
        speed = got[tenant[rest]]
        left_s = np.maximum(total_s[rest] - served_s[rest], 0.0)
        finish_s[rest] = at_s + np.divide(
            left_s, speed, out=np.full(len(rest), np.inf), where=speed > 0
        )
    return FairWorld(served_s=np.minimum(snap_served, total_s), part=snap_part, finish_s=finish_s)
