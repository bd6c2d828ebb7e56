"""AlloX: which job waits for which type of GPUs, so that the sum of completion times is least.

A job may be worth waiting for faster GPUs, or not. The jobs that wait are matched to places in the
queues of machines (see `matching`): the k-th from last on a machine adds D + k P to the sum of
completion times. Each free machine then starts the job whose k is largest.

So that nobody is forgotten, only jobs of the users who were served least take part: a fraction
alpha of the users, doubled while GPUs would stay idle.

A machine here is as many GPUs of one type as a job asks for. Jobs of different sizes are matched
apart, each size with its part of every type, by the work it has.

Source: Le et al., "AlloX: Compute Allocation in Hybrid Clusters", EuroSys 2020.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from slurm_dl.model.jobs import F64, I16, I64, PENDING, Bool
from slurm_dl.model.parameter_bounds import Bound, Count
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.arithmetic.matching import coarse, match
from slurm_dl.policies.arithmetic.service_history import bucket_edges, served
from slurm_dl.policies.arithmetic.supply_and_demand import (
    contenders,
    gpus_by_type,
    rates_of,
    tenants,
    type_held,
)
from slurm_dl.policies.base import About, Order, PolicyDefaults, one_tier
from slurm_dl.policies.gavel.pool import LEAST_LEFT_S

_DAY_S = 86_400.0
_BUCKETS = 24
_SLACK_GPUS = 1e-9  # Ten tenths of a GPU are one, whatever the rounding of their sum
_MOST_MATCHED = 1000  # Beyond it a matching takes too long

_Window = Annotated[Count, Bound("1000 or less", lambda n: n <= _MOST_MATCHED)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Allox(PolicyDefaults):
    """Minimum-cost matching of the jobs of the least served users to GPUs.

    Attributes:
        alpha: Fraction of the users that take part with their jobs, the least served ones; above 0,
            1: all. At least one user takes part.
        window: Most waiting jobs that are matched; 1 to 1000.
    """

    name = "allox"
    source = "AlloX, EuroSys 2020 (min-cost bipartite matching, fairness alpha)"
    about = About(
        row="A7",
        level="W3",
        formula=(
            "matching of jobs to (machine i, k-th from last) with least sum of D[i] + k P[i, j]; "
            "only the ceil(alpha x users) least served users; largest k of a free machine starts"
        ),
        needs=("left_s", "rates", "accounts", "history"),
        fallback=(
            "The run time is the time limit over the rate. Without a limit it is that of the "
            "longest known job, or a day if none is known. Without rates every type counts as "
            "equally fast. Without accounts users are Slurm's users. Without finished jobs only "
            "the GPU time of live jobs counts."
        ),
        starves=(
            "a user's long job while shorter ones of the same user come; where alpha admits "
            "several users, also while shorter ones of the other admitted users come"
        ),
        idles=(
            "a job waits for a faster type if it ends sooner there; GPUs are kept for a gang that "
            "is next and does not fit yet"
        ),
    )
    interpretation = (
        "A machine is as many GPUs of a type as the job asks for. Jobs of one size are matched "
        "together. A type's GPUs are divided among the sizes by running and waiting work, at "
        "least one machine each. GPUs that a size does not use are open to the others, in the "
        "order of their planned starts. Users are Slurm's accounts. Users are ordered by GPU time "
        "in the last 24 hours, then by GPUs held. Beyond the window the longest jobs of the best "
        "served users are left out. A job that starts with few users admitted also starts if "
        "alpha doubles. The times at which busy machines become free are rounded to at most 8 "
        "levels."
    )
    preempts = "never"

    alpha: Annotated[float, Bound("above 0 and at most 1", lambda part: 0 < part <= 1)] = 0.1
    window: _Window = 300

    def order(self, snap: Snapshot, /) -> Order:
        """Place every job of *snap*; see `Policy`."""
        n = len(snap.jobs)
        key: F64 = np.full(n, np.inf)
        barred: Bool = np.zeros(n, dtype=np.bool_)
        kind: I16 = np.full(n, -1, dtype=np.int16)
        start_s = np.full(n, np.inf)
        scene = _scene(snap)
        if len(scene.waits):
            plan = self._plan(snap, scene)
            key[plan.rows] = np.arange(len(plan.rows))
            kind[plan.rows] = plan.kind.astype(np.int16)
            # Who is not matched may have what nobody else wants, but for what is kept.
            open_to = (np.isfinite(scene.run_s[scene.waits]) & ~plan.kept).any(axis=1)
            barred[scene.waits] = ~open_to
            barred[plan.rows] = plan.barred
            start_s[plan.rows] = snap.now_s + plan.start_s
        return dataclasses.replace(one_tier(key), barred=barred, start_s=start_s, gpu_type=kind)

    def _plan(self, snap: Snapshot, scene: _Scene) -> _Plan:
        """The plan of as few users as leave no GPUs idle that others could use.

        Whose turn it is with few users in keeps its turn when more are let in.
        """
        whose, turn = _turns(snap, scene)
        users, gpus = len(turn), snap.jobs.gpus
        alpha, plan = self.alpha, _Plan.empty(scene)
        while True:
            count = min(users, max(1, math.ceil(alpha * users - 1e-9)))
            waits = ~np.isin(scene.waits, plan.rows[: plan.settled])
            enters = waits & (turn[whose] < count)
            inside = scene.waits[enters]
            best_s = scene.run_s[inside].min(axis=1)
            by = np.lexsort((snap.jobs.job_id[inside], best_s, turn[whose][enters]))
            plan = _planned(snap, scene, plan, inside[by[: self.window]])
            outside = scene.waits[waits & ~enters]
            fits = gpus[outside, None] <= plan.idle + _SLACK_GPUS
            if not (fits & np.isfinite(scene.run_s[outside])).any():
                return plan
            alpha *= 2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Scene:
    """What there is to be matched.

    Attributes:
        waits: Rows of the waiting jobs that some type could run, by job id.
        runs: Rows of the jobs that hold GPUs.
        on: ``(len(runs),)`` the type that each holds.
        run_s: ``(n, t)`` seconds that each job would still run on each type; inf where it cannot.
        capacity: ``(t,)`` GPUs of each type.
        idle: ``(t,)`` those that nobody holds.
    """

    waits: I64
    runs: I64
    on: I64
    run_s: F64
    capacity: F64
    idle: F64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Plan:
    """What the matched jobs are to do.

    Attributes:
        rows: Their rows, in the order in which they are served.
        settled: How many of them, the first, start now or are kept GPUs for.
        kind: ``(k,)`` type that each had best run on.
        barred: ``(k,)`` bool, it had better wait.
        start_s: ``(k,)`` seconds from now to its planned start; inf: as soon as its gang fits.
        idle: ``(t,)`` GPUs that are left, and kept for nobody.
        kept: ``(t,)`` bool, free GPUs of the type are kept for a gang.
    """

    rows: I64
    settled: int
    kind: I64
    barred: Bool
    start_s: F64
    idle: F64
    kept: Bool

    @classmethod
    def empty(cls, scene: _Scene) -> _Plan:
        """Nobody is matched."""
        return cls(
            rows=np.zeros(0, dtype=np.int64),
            settled=0,
            kind=np.zeros(0, dtype=np.int64),
            barred=np.zeros(0, dtype=np.bool_),
            start_s=np.zeros(0),
            idle=scene.idle,
            kept=np.zeros(len(scene.idle), dtype=np.bool_),
        )


def _scene(snap: Snapshot) -> _Scene:
    jobs = snap.jobs
    rows = contenders(snap).nonzero()[0]
    rows = rows[np.argsort(jobs.job_id[rows], kind="stable")]
    capacity = gpus_by_type(snap)
    left = np.where(np.isnan(snap.left_s), np.inf, snap.left_s)
    known = left[rows][np.isfinite(left[rows])]
    left = np.where(np.isfinite(left), left, known.max() if len(known) else _DAY_S)
    left = np.maximum(left, LEAST_LEFT_S)
    rates = np.nan_to_num(rates_of(snap), nan=0.0, posinf=0.0, neginf=0.0)
    can = (rates > 0) & (jobs.gpus[:, None] <= capacity + _SLACK_GPUS)
    run_s: F64 = np.divide(left[:, None], rates, out=np.full(rates.shape, np.inf), where=can)
    pending = jobs.state[rows] == PENDING
    waits = rows[pending & can[rows].any(axis=1)]
    runs = rows[~pending]
    held = type_held(snap.seen, snap.on_type)[runs].astype(np.int64)
    # Of those of which nobody says where they are: on the type that is fastest for them.
    guess = np.argmax(rates[runs], axis=1) if len(runs) else held
    on = np.where((held >= 0) & (held < len(capacity)), held, guess)
    idle = capacity - np.bincount(on, weights=jobs.gpus[runs], minlength=len(capacity))
    return _Scene(
        waits=waits,
        runs=runs,
        on=on,
        run_s=run_s,
        capacity=capacity,
        idle=np.maximum(idle, 0.0),
    )


def _turns(snap: Snapshot, scene: _Scene) -> tuple[I64, I64]:
    """``(w,)`` whose each waiting job is, and ``(u,)`` the place of each user, the least served 0.

    Users without a waiting job do not count.
    """
    who = tenants(snap)
    there, whose = np.unique(who.of[scene.waits], return_inverse=True)
    window = bucket_edges(snap.now_s, 3600.0, _BUCKETS)
    had_gpu_s = served(snap, who, window).sum(axis=1)
    holds = np.bincount(who.of[scene.runs], weights=snap.jobs.gpus[scene.runs], minlength=len(who))
    by = np.lexsort((there, holds[there], had_gpu_s[there]))
    turn = np.empty(len(there), dtype=np.int64)
    turn[by] = np.arange(len(there))
    return whose.reshape(-1), turn


def _planned(snap: Snapshot, scene: _Scene, before: _Plan, rows: I64) -> _Plan:
    """Match the jobs at *rows*, size by size, and see who can start besides those settled."""
    jobs, k = snap.jobs, len(rows)
    rows = rows[np.argsort(jobs.job_id[rows], kind="stable")]
    gpus = jobs.gpus[rows]
    kind, start_s = np.full(k, -1, dtype=np.int64), np.full(k, np.inf)
    first = np.zeros(k, dtype=np.bool_)
    old = slice(0, before.settled)
    runs = np.concatenate([scene.runs, before.rows[old]])
    on = np.concatenate([scene.on, before.kind[old]])
    part = _parts(snap, scene, np.concatenate([runs, rows]))
    for size in np.unique(gpus).tolist():
        mine = (gpus == size).nonzero()[0]
        same = jobs.gpus[runs] == size
        machine_kind, avail_s, free = _machines(
            scene, runs[same], on[same], size=size, part=part[size], n=len(mine)
        )
        found = match(scene.run_s[rows[mine]], machine_kind, coarse(avail_s))
        kind[mine] = machine_kind[found.machine]
        start_s[mine] = found.start_s
        first[mine] = found.firsts(free)
    end_s = start_s + scene.run_s[rows, kind]
    came_s = snap.memory.queued_s[rows]
    # Whose turn it is, first eligible first; then who comes next on its machine.
    by = np.lexsort((jobs.job_id[rows], came_s, np.where(first, 0.0, start_s), ~first))
    idle, kept = before.idle.copy(), before.kept.copy()
    barred = np.ones(k, dtype=np.bool_)
    for i in by.tolist():
        if first[i]:
            idle[kind[i]] -= gpus[i]
            barred[i] = idle[kind[i]] < -_SLACK_GPUS
            kept[kind[i]] |= barred[i]
            continue
        now_s = np.where(gpus[i] <= idle + _SLACK_GPUS, scene.run_s[rows[i]], np.inf)
        best = int(np.argmin(now_s))
        if now_s[best] <= end_s[i]:
            kind[i], barred[i] = best, False
            idle[best] -= gpus[i]
    settles = (first | ~barred)[by]
    by = np.concatenate([by[settles], by[~settles]])
    return _Plan(
        rows=np.concatenate([before.rows[old], rows[by]]),
        settled=before.settled + int(settles.sum()),
        kind=np.concatenate([before.kind[old], kind[by]]),
        barred=np.concatenate([before.barred[old], barred[by]]),
        start_s=np.concatenate([before.start_s[old], np.where(first, np.inf, start_s)[by]]),
        idle=np.maximum(idle, 0.0),
        kept=kept,
    )


def _parts(snap: Snapshot, scene: _Scene, every: I64) -> dict[float, float]:
    """By size, the part that its jobs are of the work of the jobs at *every*."""
    gpus = snap.jobs.gpus[every]
    left_s = scene.run_s[every].min(axis=1)
    # What runs where it should not by our lights is work all the same.
    left_s = np.where(np.isfinite(left_s), left_s, snap.left_s[every])
    left_s = np.where(np.isfinite(left_s), left_s, _DAY_S)
    sizes, of = np.unique(gpus, return_inverse=True)
    work = np.bincount(of.reshape(-1), weights=gpus * left_s, minlength=len(sizes))
    return dict(zip(sizes.tolist(), (work / work.sum()).tolist(), strict=True))


def _machines(
    scene: _Scene, runs: I64, on: I64, *, size: float, part: float, n: int
) -> tuple[I64, F64, Bool]:
    """Type of each machine of a size, seconds until it is free, and whether it is free now.

    Args:
        runs: Rows of the jobs of that size that have a machine.
        on: Its type.
        part: The part of every type that is the size's.
        n: Jobs to be matched.
    """
    kinds: list[I64] = []
    avail_s: list[F64] = []
    free: list[Bool] = []
    for t, capacity in enumerate(scene.capacity.tolist()):
        if capacity + _SLACK_GPUS < size:
            continue
        count = max(1, math.floor(capacity * part / size + _SLACK_GPUS))
        ends_s = scene.run_s[runs[on == t], t]
        ends_s = np.sort(np.where(np.isfinite(ends_s), ends_s, _DAY_S))[:count]
        # No more than n machines are needed.
        more = min(count - len(ends_s), n)
        kinds.append(np.full(more + len(ends_s), t, dtype=np.int64))
        avail_s.append(np.concatenate([np.zeros(more), ends_s]))
        free.append(np.arange(more + len(ends_s)) < more)
    return np.concatenate(kinds), np.concatenate(avail_s), np.concatenate(free)
