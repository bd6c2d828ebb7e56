"""Shares of time become turns: who is owed most runs next.

A policy of shares says that job m deserves the fraction X[m, j] of the time on GPUs of type j. Its
credit there grows by X[m, j] a second and falls by one second for each that it runs there. Whoever
would be owed most at the end of the coming lease, if it did not get it, gets it::

    need[m, j] = credit[m, j] + X[m, j] * lease

For one-GPU jobs whose shares can be had at all, no job is ever owed more than about one lease, so
after k leases its fraction is within 1/k of X. Nobody's credit falls below minus two leases: who
had GPUs that nobody else wanted need not pay for it for ever.

Source: the round-based mechanism of Narayanan et al., "Heterogeneity-aware cluster scheduling
policies for deep learning workloads" (Gavel), OSDI 2020, section 5, which divides X by the fraction
received where this subtracts it: a difference forgets the past by being bounded, a ratio does not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from slurm_dl.json_types import JsonObject
from slurm_dl.model.booking import Entry, of_kind
from slurm_dl.model.jobs import COMPLETING, F64, I16, I32, I64, PENDING, Bool
from slurm_dl.model.snapshot import Observed, Snapshot
from slurm_dl.policies.arithmetic.supply_and_demand import type_held

LEAST_LEASES: Final = -2.0
MOST_LEASES: Final = 20.0
OWED: Final = "owed"
"""Bounds of a credit: a job that could not be started for long must not rule for as long after."""


def accrue(credit_s: F64, share: F64, ran_s: F64, passed_s: float, lease_s: float) -> F64:
    """``(n, t)`` credits after some time.

    Args:
        credit_s: ``(n, t)`` credits before.
        share: ``(n, t)`` what each job deserved meanwhile.
        ran_s: ``(n, t)`` seconds that each job ran meanwhile on each type.
        passed_s: How long that was, seconds.
    """
    after: F64 = np.clip(
        credit_s + share * passed_s - ran_s, LEAST_LEASES * lease_s, MOST_LEASES * lease_s
    )
    return after


def needs(snap: Snapshot, share: F64, lease_s: float, restart_s: float = 0.0) -> F64:
    """``(n, t)`` what each job would be owed after a lease without GPUs; -inf without a share.

    Args:
        restart_s: What a checkpoint and a restore cost: a running job is displaced only by one that
            is owed more by so much.
    """
    credit_s = np.zeros_like(share) if snap.credit_s is None else snap.credit_s
    # Without credits the solver's tolerance does not decide who is first.
    rounded = share.round(6)
    # Without leases who deserves more goes first, whatever has been.
    need: F64 = credit_s + rounded * lease_s if lease_s > 0 else rounded
    if restart_s and lease_s > 0:
        on = type_held(snap.seen, snap.on_type)
        rows = (on >= 0).nonzero()[0]
        need[rows, on[rows]] += restart_s
    need[share <= 0] = -np.inf
    return need


@dataclass(frozen=True, slots=True, eq=False)
class Owed:
    """Shares and credits of jobs as of the last decision."""

    job_id: I64  # ``(k,)`` ascending
    share: F64  # ``(k, t)`` see `Order`
    credit_s: F64  # ``(k, t)`` credits at *at_s*
    on: I16  # ``(k,)`` type that each ran on then; -1 if it did not run
    tasks: I32  # ``(k,)`` jobs in the record: the pending tasks of an array
    gpu_types: tuple[str, ...]  # Names of the t types
    at_s: float  # When, epoch seconds
    lease_s: float  # Length of a lease

    @classmethod
    def stored(cls, booked: Iterable[Entry]) -> Owed | None:
        """Shares and credits as they were written down last; None if they never were.

        Raises:
            ValueError: They are not what `body` gives; likewise `KeyError` and `TypeError`.
        """
        body: Any = of_kind(booked, OWED).get("")
        if body is None:
            return None
        k, kinds = len(body["job_id"]), max(1, len(body["gpu_types"]))
        if body["job_id"] != sorted(body["job_id"]) or max(body["on"], default=-1) >= kinds:
            msg = "credits of jobs in no order, or on GPU types that are not there"
            raise ValueError(msg)
        return cls(
            job_id=np.array(body["job_id"], dtype=np.int64),
            share=np.array(body["share"], dtype=np.float64).reshape(k, kinds),
            credit_s=np.array(body["credit_s"], dtype=np.float64).reshape(k, kinds),
            on=np.array(body["on"], dtype=np.int16).reshape(k),
            tasks=np.array(body["tasks"], dtype=np.int32).reshape(k),
            gpu_types=tuple(body["gpu_types"]),
            at_s=float(body["at_s"]),
            lease_s=float(body["lease_s"]),
        )

    def body(self) -> JsonObject:
        """All of it as JSON; `stored` reads it."""
        columns = ("job_id", "share", "credit_s", "on", "tasks")
        return {
            **{name: getattr(self, name).tolist() for name in columns},
            "gpu_types": list(self.gpu_types),
            "at_s": self.at_s,
            "lease_s": self.lease_s,
        }

    def is_of_lease(self, other: Owed | None) -> bool:
        """True if *other* is of the same lease; without leases credits do not count."""
        if other is None or other.lease_s != self.lease_s:
            return False
        return self.lease_s <= 0 or self.at_s // self.lease_s == other.at_s // self.lease_s

    @classmethod
    def after(cls, snap: Snapshot, share: F64, lease_s: float) -> Owed:
        """Shares and credits after a decision about *snap*."""
        order = np.argsort(snap.jobs.job_id, kind="stable")
        # A job that was displaced is completing for a while before it waits.
        order = order[snap.jobs.state[order] <= COMPLETING]
        credit_s = np.zeros_like(share) if snap.credit_s is None else snap.credit_s
        return cls(
            job_id=snap.jobs.job_id[order],
            share=share[order],
            credit_s=credit_s[order],
            on=type_held(snap.seen, snap.on_type)[order],
            tasks=snap.jobs.tasks[order],
            gpu_types=snap.seen.gpu_types,
            at_s=snap.now_s,
            lease_s=lease_s,
        )

    def at(self, seen: Observed) -> F64:
        """``(n, t)`` credits of the jobs in *seen*; 0 for those that are new."""
        on = type_held(seen)
        jobs, kinds = seen.jobs, max(1, len(seen.gpu_types))
        now = np.zeros((len(jobs), kinds))
        if self.gpu_types != seen.gpu_types or not len(self.job_id):
            return now  # Types came or went: nothing of before means anything.
        at = np.minimum(self.job_id.searchsorted(jobs.job_id), len(self.job_id) - 1)
        known = self.job_id[at] == jobs.job_id
        at = at[known]
        passed_s = max(0.0, seen.now_s - self.at_s)
        # Slurm tells the start of a run that is under way, and the instant of a requeue as the
        # time of submission; of anything else between two looks nothing is known.
        began_s = np.clip(seen.now_s - jobs.start_s[known], 0.0, passed_s)
        ended_s = np.clip(jobs.submit_s[known] - self.at_s, 0.0, passed_s)
        runs: Bool = on[known] >= 0
        over = jobs.state[known] == COMPLETING
        ran: Bool = (self.on[at] >= 0) & ~runs & ((jobs.state[known] == PENDING) | over)
        ended_s[over] = passed_s
        spent_s = np.zeros((len(at), kinds))
        rows = np.arange(len(at))
        spent_s[rows[runs], on[known][runs]] = began_s[runs]
        spent_s[rows[ran], self.on[at][ran]] = ended_s[ran]
        # Tasks that have left an array's record have a lease each, and ids of their own.
        started = np.maximum(self.tasks[at] - jobs.tasks[known], 0)
        best = self.share[at].argmax(axis=1)
        spent_s[rows, best] += started * self.lease_s
        now[known] = accrue(self.credit_s[at], self.share[at], spent_s, passed_s, self.lease_s)
        return now
