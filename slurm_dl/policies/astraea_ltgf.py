"""ASTRAEA: every account gets its part of the GPU time in the long run, and every job in it.

An account's quota is its part of the cluster's GPUs. Free GPUs are handed out one job at a time.
First comes an account that would hold less than a fifth of its quota, then the one with

    smallest  (GPU-seconds had in the last 24 hours + GPUs given now x lease) / (quota x time),

so who was short of GPUs yesterday is ahead today. Inside an account the next job is

1. one that has waited four hours since it last ran, first eligible first;
2. by fairness f = utilised / deserved, in steps: a job deserves, for every second since it was
   submitted, ``min(its GPUs, quota / jobs of the account)`` GPU-seconds;
3. by the chance that it ends within the next lease, over its GPUs: those who free most soon;
4. first eligible first.

Jobs hold their GPUs for a lease; at its end all is handed out anew.

Source: Ye et al., "ASTRAEA: A Fair Deep Learning Scheduler for Multi-Tenant GPU Clusters", IEEE
TPDS 33(11), 2022 (long-term GPU-time fairness, two-phase scheduling), and its public simulator.
"""

from __future__ import annotations

import functools
import heapq
import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt

from slurm_dl.model.completed_jobs import Past
from slurm_dl.model.jobs import F64, I16, PENDING
from slurm_dl.model.parameter_bounds import Count, Figures, Part, Positive, Table, above_0
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.arithmetic.service_history import bucket_edges, served, tenant_of_past
from slurm_dl.policies.arithmetic.supply_and_demand import (
    Tenants,
    contenders,
    gpus_by_type,
    tenants,
)
from slurm_dl.policies.base import About, Order, PolicyDefaults, one_tier


@dataclass(frozen=True, slots=True, eq=False)
class Lifetimes:
    """Run times of finished jobs, counted in leases, apart for each number of GPUs.

    Numbers of GPUs of which few jobs are known borrow the histogram of all jobs, as in the public
    simulator.

    Attributes:
        lease_s: Width of a bin of the histograms, seconds, above 0.
        ran_s: ``(k,)`` run times of all, seconds, not decreasing.
        by_gpus: The same for those of each number of GPUs of which there are enough.
    """

    lease_s: float
    ran_s: F64
    by_gpus: dict[float, F64]

    def chance(self, gpus: F64, ran_s: F64) -> F64:
        """``(n,)`` how likely jobs of so many *gpus* that ran *ran_s* end in the lease they are in.

        1 beyond the longest known run time; NaN where no run time is known at all.
        """
        found: F64 = np.full(len(gpus), np.nan)
        if not len(self.ran_s):
            return found
        for count in np.unique(gpus).tolist():
            rows = gpus == count
            found[rows] = self._of(self.by_gpus.get(count, self.ran_s), ran_s[rows])
        return found

    def _of(self, known_s: F64, ran_s: F64) -> F64:
        bin_s = np.floor(ran_s / self.lease_s) * self.lease_s
        lasted = len(known_s) - known_s.searchsorted(bin_s)
        longer = len(known_s) - known_s.searchsorted(bin_s + self.lease_s)
        return 1 - np.divide(longer, lasted, out=np.zeros(len(ran_s)), where=lasted > 0)


@functools.lru_cache(maxsize=4)
def lifetimes(past: Past, lease_s: float, least_samples: int) -> Lifetimes:
    """The histograms of *past*.

    Args:
        least_samples: Numbers of GPUs with fewer finished jobs have no histogram of their own.
    """
    rows = np.lexsort((past.ran_s, past.gpus))
    gpus, ran_s = past.gpus[rows], past.ran_s[rows]
    counts, firsts = np.unique(gpus, return_index=True)
    parts = np.split(ran_s, firsts[1:]) if len(gpus) else []
    return Lifetimes(
        lease_s=lease_s,
        ran_s=np.sort(ran_s),
        by_gpus={
            count: part
            for count, part in zip(counts.tolist(), parts, strict=True)
            if len(part) >= least_samples
        },
    )


Rows = npt.NDArray[np.int64]

_SLACK_GPUS = 1e-9  # Ten tenths of a GPU are one, whatever the rounding of their sum


_Weights = Annotated[
    Table,
    Figures(
        above_0,
        wrong="{name} must be finite numbers above 0 (got {value} for {key!r})",
        twice="{name} must name every account once",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class AstraeaLtgf(PolicyDefaults):
    """Long-term GPU-time fairness between accounts, and between the jobs of each.

    Attributes:
        weights: Weights of accounts, each above 0; other accounts weigh 1. An account's quota is
            its part of all GPUs by weight, among the accounts named here and those with jobs.
        lease_s: How long a job keeps its GPUs, seconds, above 0.
        bucket_s: Length of a bucket of the window in which GPU time is counted, seconds, above 0.
        buckets: Number of buckets of the window, including the current one; 1 or more.
        starves_after_s: A job that has waited this long since it last ran is ahead of the other
            jobs of its account, seconds, above 0.
        levels: Number of steps into which the fairness of jobs is divided, 1 or more.
        least_quota: An account that would hold less than this share of its quota is served before
            all others, 0 to 1.
        least_samples: Finished jobs of a number of GPUs that are needed to estimate the chance of
            ending for it.
    """

    name = "astraea_ltgf"
    source = "ASTRAEA, IEEE TPDS 33(11) 2022 (LTGF, two phases), public simulator"
    about = About(
        row="A13",
        level="W3",
        formula=(
            "account of least GPU time / (quota x time) first; in it starving jobs, then "
            "utilised / deserved in steps, then P(ends within a lease) / GPUs, then first eligible"
        ),
        needs=("accounts", "history"),
        fallback=(
            "without accounts each user is a tenant; without finished jobs the chance of ending "
            "is left out, and only live jobs' GPU time counts"
        ),
        starves=(
            "a wide job, if enough GPUs are never free when its account is next; every other job "
            "is ahead of its account once it has waited starves_after_s"
        ),
    )
    interpretation = (
        "The order is that of the end of a lease, when all GPUs are handed out again. It also "
        "fills GPUs that become free earlier. A job deserves from its submission on, also while "
        "it is held. Quotas are not rounded to whole GPUs. Jobs above "
        "their account's quota are served too. The current hour counts. The minimum of samples is "
        "counted in jobs; the public simulator counts bins. A starving job that does not fit does "
        "not block the other jobs of its account. Dynamic quotas (backfill up to 1.5 x quota) are "
        "not offered: GPUs that no account has a claim to go to the next account in turn anyway."
    )

    weights: _Weights = ()
    lease_s: Positive = 1800.0
    bucket_s: Positive = 3600.0
    buckets: Count = 24
    starves_after_s: Positive = 14400.0
    levels: Count = 5
    least_quota: Part = 0.2
    least_samples: Count = 5

    def order(self, snap: Snapshot, /) -> Order:
        """Place every job of *snap*; see `Policy`."""
        key: F64 = np.full(len(snap.jobs), np.inf)
        rows = contenders(snap).nonzero()[0]
        if len(rows):
            who = tenants(snap)
            quota = self.quotas(who, rows, _gpus(snap))
            queue = self._queue(snap, who, quota, rows)
            window = bucket_edges(snap.now_s, self.bucket_s, self.buckets)
            had_gpu_s = served(snap, who, window).sum(axis=1)
            place = self._hand_out(snap, who, quota, had_gpu_s, queue)
            key[queue[place]] = np.arange(len(rows))
        return one_tier(key)

    def quotas(self, who: Tenants, rows: Rows, gpus: float) -> F64:
        """``(len(who),)`` GPUs that are each tenant's own, above 0.

        Args:
            rows: The jobs that take part; their accounts count, and those with a weight.
            gpus: GPUs there are.
        """
        table = dict(self.weights)
        weight: F64 = np.array([table.pop(name, 1.0) for name in who.names])
        absent = math.fsum(table.values())
        there = np.isin(np.arange(len(who)), who.of[rows])
        there |= np.isin(np.array(who.names), [name for name, _ in self.weights])
        total = float(weight[there].sum()) + absent
        return weight / total * max(gpus, 1.0)

    def _queue(self, snap: Snapshot, who: Tenants, quota: F64, rows: Rows) -> Rows:
        """The *rows*, tenant by tenant, and in each as its jobs are to be served."""
        jobs, memory = snap.jobs, snap.memory
        waits = jobs.state[rows] == PENDING
        waits &= snap.now_s - memory.waiting_since_s[rows] >= self.starves_after_s
        ratio = fairness(memory.attained_gpu_s[rows], deserved(snap, who, quota)[rows])
        level = fairness_level(ratio, self.levels)
        known = lifetimes(snap.past, self.lease_s, self.least_samples)
        chance = np.nan_to_num(known.chance(jobs.gpus[rows], memory.ran_s[rows]), nan=0.0)
        reward = -chance / jobs.gpus[rows]
        # Starving jobs are first eligible first alone.
        level = np.where(waits, -1, level)
        reward = np.where(waits, 0.0, reward)
        keys = (jobs.job_id[rows], memory.queued_s[rows], reward, level, who.of[rows])
        queue: Rows = rows[np.lexsort(keys)]
        return queue

    def _hand_out(
        self, snap: Snapshot, who: Tenants, quota: F64, had_gpu_s: F64, queue: Rows
    ) -> Rows:
        """Places in *queue* in the order in which its jobs are served.

        First as long as GPUs are free, those that do not fit left out; then the rest in turns.
        """
        jobs = snap.jobs
        turns = Turns(
            quota=quota, had_gpu_s=had_gpu_s, lease_s=self.lease_s, least=self.least_quota
        )
        tenant, gpus = who.of[queue], jobs.gpus[queue]
        several = len(snap.seen.gpu_types) > 1
        kind = jobs.gpu_type[queue] if several else np.full(len(queue), -1, dtype=np.int16)
        picked = turns.picks(tenant, gpus, kind, gpus_by_type(snap), _gpus(snap))
        rest = np.ones(len(queue), dtype=np.bool_)
        rest[picked] = False
        left = rest.nonzero()[0]
        given: F64 = np.zeros(len(who))
        np.add.at(given, tenant[picked], gpus[picked])
        place: Rows = np.concatenate([picked, left[turns.sorted(tenant[left], gpus[left], given)]])
        return place


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Turns:
    """Whose turn it is when GPUs are handed out one job at a time.

    Attributes:
        quota: ``(t,)`` GPUs that are each tenant's own, above 0.
        had_gpu_s: ``(t,)`` GPU-seconds each has had in the window.
        lease_s: Seconds that what is given now is given for.
        least: Share of the quota that comes first.
    """

    quota: F64
    had_gpu_s: F64
    lease_s: Positive
    least: float

    def picks(self, tenant: Rows, gpus: F64, kind: I16, free: F64, room: float) -> Rows:
        """Places of the jobs that get GPUs, in the order of their turns.

        Args:
            tenant: ``(m,)`` whose each job is, not decreasing.
            gpus: ``(m,)`` GPUs each wants, above 0.
            kind: ``(m,)`` GPU type each must have, -1 for any.
            free: GPUs of each type.
            room: GPUs in all.
        """
        wants, types = gpus.tolist(), kind.tolist()
        room, of_type = room + _SLACK_GPUS, (free + _SLACK_GPUS).tolist()
        names, firsts = np.unique(tenant, return_index=True)
        ends = tenant.searchsorted(names, side="right")
        next_of = dict(zip(names.tolist(), firsts.tolist(), strict=True))
        end_of = dict(zip(names.tolist(), ends.tolist(), strict=True))
        quota, had = self.quota.tolist(), self.had_gpu_s.tolist()
        given = dict.fromkeys(next_of, 0.0)
        turns = [(*self._turn(0.0, had[t], quota[t]), t) for t in next_of]
        heapq.heapify(turns)
        found: list[int] = []
        while turns and room > _SLACK_GPUS:
            t = turns[0][-1]
            i, end = next_of[t], end_of[t]
            while i < end and (wants[i] > room or (types[i] >= 0 and wants[i] > of_type[types[i]])):
                i += 1
            if i < end:
                room -= wants[i]
                if types[i] >= 0:
                    of_type[types[i]] -= wants[i]
                given[t] += wants[i]
                found.append(i)
                i += 1
            next_of[t] = i
            if i < end:
                heapq.heapreplace(turns, (*self._turn(given[t], had[t], quota[t]), t))
            else:
                heapq.heappop(turns)
        return np.array(found, dtype=np.int64)

    def sorted(self, tenant: Rows, gpus: F64, given: F64) -> Rows:
        """Places of the jobs in the order of their turns, were there GPUs for all of them.

        What `picks` would say with room without end: a tenant's turn only gets later with what it
        is given, so the jobs can be sorted by the turn that each is picked at.

        Args:
            tenant: ``(m,)`` whose each job is, not decreasing.
            gpus: ``(m,)`` GPUs each wants.
            given: ``(t,)`` GPUs that each tenant has been given before.
        """
        before = np.cumsum(gpus) - gpus
        _, firsts, of = np.unique(tenant, return_index=True, return_inverse=True)
        before += given[tenant] - before[firsts][of]
        quota, had = self.quota[tenant], self.had_gpu_s[tenant]
        short = before / quota < self.least
        value = (had + before * self.lease_s) / quota
        keys = (np.arange(len(tenant)), tenant, value, np.where(short, before / quota, 0.0), ~short)
        return np.lexsort(keys)

    def _turn(self, given: float, had: float, quota: float) -> tuple[bool, float, float]:
        """Whose is smallest is next; the length of the window is the same for all."""
        short = given / quota < self.least
        return not short, given / quota if short else 0.0, (had + given * self.lease_s) / quota


def fairness(utilised_gpu_s: F64, deserved_gpu_s: F64) -> F64:
    """``(n,)`` utilised / deserved; 0 for jobs that had nothing, inf where nothing is deserved."""
    ratio: F64 = np.where(utilised_gpu_s > 0, np.inf, 0.0)
    return np.divide(utilised_gpu_s, deserved_gpu_s, out=ratio, where=deserved_gpu_s > 0)


def fairness_level(ratio: F64, levels: int) -> Rows:
    """``(n,)`` 0 for jobs that had nothing, else 1 to *levels*: the step that *ratio* is in.

    The steps are even in (1 + x / sqrt(1 + x^2)) / 2 with x = log(ratio), so they are fine around
    1 and alike for a ratio and its inverse.
    """
    x = np.log(np.clip(ratio, 1e-9, 1e9))
    high = (1 - x / np.sqrt(1 + x * x)) / 2
    step = np.clip(levels - np.floor(high * levels), 1, levels)
    found: Rows = np.where(ratio > 0, step, 0).astype(np.int64)
    return found


def deserved(snap: Snapshot, who: Tenants, quota: F64) -> F64:
    """``(n,)`` GPU-seconds each contender deserved since it was submitted; 0 for other jobs.

    The sum over time of ``min(its GPUs, quota / jobs that its tenant had then)``.

    Args:
        quota: ``(len(who),)`` GPUs that are each tenant's own.
    """
    found: F64 = np.zeros(len(snap.jobs))
    rows = contenders(snap).nonzero()[0]
    if not len(rows):
        return found
    now_s, past = snap.now_s, snap.past
    submit_s = np.minimum(snap.memory.first_submit_s[rows], now_s)
    first_s = float(submit_s.min())
    owner = tenant_of_past(snap, who)
    over = ((owner >= 0) & (past.end_s > first_s)).nonzero()[0]
    tasks = snap.jobs.tasks[rows].astype(np.float64)
    # Each life is an arrival and a departure; live jobs depart now.
    tenant = np.concatenate([np.tile(who.of[rows], 2), np.tile(owner[over], 2)])
    when_s = np.concatenate(
        [
            submit_s,
            np.full(len(rows), now_s),
            np.clip(past.submit_s[over], first_s, now_s),
            np.minimum(past.end_s[over], now_s),
        ]
    )
    change = np.concatenate([tasks, -tasks, np.ones(len(over)), -np.ones(len(over))])
    by_time = np.lexsort((when_s, tenant))
    live = np.cumsum(change[by_time])
    # Behind a tenant's last event nobody of it is left, so tenants do not mix.
    length_s = np.diff(when_s[by_time], append=now_s)
    share = np.divide(quota[tenant[by_time]], live, out=np.zeros_like(live), where=live > 0.5)  # noqa: PLR2004
    at = np.empty(len(by_time), dtype=np.int64)
    at[by_time] = np.arange(len(by_time))
    begins, ends = at[: len(rows)], at[len(rows) : 2 * len(rows)]
    gpus = snap.jobs.gpus[rows]
    for count in np.unique(gpus).tolist():
        mine = gpus == count
        earned = _running_sum(np.minimum(share, count) * length_s)
        found[rows[mine]] = earned[ends[mine]] - earned[begins[mine]]
    return found


def _running_sum(values: F64) -> F64:
    before: F64 = np.cumsum(values) - values
    return before


def _gpus(snap: Snapshot) -> float:
    nodes = snap.seen.nodes
    return float(nodes.gpus[nodes.up].sum())
