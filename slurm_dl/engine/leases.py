"""Leases: who has GPUs keeps them for a while, so that shares of time cost few restarts.

All leases of a policy end together, at whole multiples of their length, because only GPUs that come
free at the same time make room for a gang. What is decided in between starts jobs on free GPUs and
stops nobody. A lease of length L that costs a restart of d seconds loses at most d / L of the time.

A daemon looks now and then and takes GPUs back in steps: for it a lease ends not at an instant but
in a window after it. In the papers' ideal cluster the window has no length.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Final

import numpy as np

from slurm_dl.engine.settings import Settings
from slurm_dl.model.jobs import COMPLETING, PENDING, Bool
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.base import Policy

INSTANT_S: Final = 1e-6  # Times this close are one instant: sums of run times are a little off
_NO_LIMIT: Final = 2**31 - 1
LEASED: Final = "its lease is not over"  # Why a running job is left alone


def lease_of(policy: Policy) -> float:
    """Length of the leases that jobs have under *policy*, seconds; 0 if none."""
    # An isinstance of a protocol takes ten times as long.
    return float(getattr(policy, "lease_s", 0.0))


def bounded_by_leases(settings: Settings) -> Settings:
    """*settings* for a policy with leases: however often a job gives way, leases bound its loss.

    A site that allows no preemption at all (``max_preemptions`` 0) has none.
    """
    if not settings.preemption.max_preemptions:
        return settings
    limits = dataclasses.replace(settings.preemption, max_preemptions=_NO_LIMIT)
    return dataclasses.replace(settings, preemption=limits)


def under_lease(snap: Snapshot, lease_s: float, window_s: float = 0.0) -> Bool:
    """``(n,)`` bool: the job runs and may not be displaced now.

    A run that began in the course of a lease may be cut short at its end: were it kept for one
    whole lease, jobs that come and go all the time would keep a gang from its GPUs for ever. Each
    GPU changes hands once at most at each end, so the loss is bounded all the same.

    Args:
        lease_s: Length of a lease; 0: there are none.
        window_s: How long after its end a lease may still be ended, less than *lease_s*.
    """
    jobs, now_s = snap.jobs, snap.now_s
    runs: Bool = (jobs.state > PENDING) & (jobs.state < COMPLETING)
    if lease_s <= 0:
        return np.zeros(len(jobs), dtype=np.bool_)
    since_s = now_s - _last_end_s(now_s, lease_s)
    if since_s > window_s + INSTANT_S:
        return runs
    began: Bool = runs & (jobs.start_s >= now_s - since_s - INSTANT_S)
    return began


def next_end_s(now_s: float, lease_s: float) -> float:
    """The next end of leases after *now_s*, epoch seconds; inf if there are none."""
    return _last_end_s(now_s, lease_s) + lease_s if lease_s > 0 else math.inf


def _last_end_s(now_s: float, lease_s: float) -> float:
    return math.floor((now_s + INSTANT_S) / lease_s) * lease_s
