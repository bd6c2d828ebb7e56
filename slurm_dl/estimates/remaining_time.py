"""How long each job is still to run, from the best that is known of it, and where that is from.

In this order, each job by itself:

1. A simulation's own figure.
2. What it reports: with a share p of its work done in t seconds of running, t x (1 - p) / p are
   left; once p and t are large enough to tell.
3. History: the duration that earlier jobs like it lead to expect, less what it ran; while it has
   not outlived that. It is no longer than the time limit, at which jobs are ended.
4. The time limit less what it ran; once it ran for longer over all its runs, less the run under
   way, as work was lost in between.
5. Nothing: inf.

Of a job that changes size all of these are seconds in the size that it was submitted with: what it
ran in another one counts as the speed there (`asked_seconds`), t as well as what it ran.

A job that was requeued by another than the daemon has no time limit here. It may requeue itself at
the end of each, so the limit says nothing of how long it will run.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slurm_dl.estimates.spent_by_size import asked_seconds
from slurm_dl.model.jobs import COMPLETING, F64, I8, PENDING, Bool, Origin
from slurm_dl.model.sizes import size_histories
from slurm_dl.model.snapshot import Snapshot

LEAST_PROGRESS = 0.02
"""Start-up takes a share of the first reports that nobody knows."""

LEAST_RUN_S = 120.0


@dataclass(frozen=True, slots=True, eq=False)
class RemainingTime:
    """What is left of each job."""

    seconds: F64  # ``(n,)``; inf where nothing is known
    origin: I8  # ``(n,)`` int8, an `Origin`


def began_anew(snap: Snapshot) -> Bool:
    """``(n,)`` bool, jobs that were requeued more often than by the daemon.

    The daemon does it to preempt them, or to give them another size.
    """
    ours = snap.memory.preemptions
    resized = {j: h.requeues for j, h in size_histories(snap.booked).items() if h.requeues}
    if resized:
        row_of, ours = snap.jobs.rows, ours.copy()
        for job_id in resized.keys() & row_of.keys():
            ours[row_of[job_id]] += resized[job_id]
    anew: Bool = snap.jobs.restarts > ours
    return anew


def left_of(
    snap: Snapshot,
    expected_s: F64 | None = None,
    *,
    least_progress: float = LEAST_PROGRESS,
    least_run_s: float = LEAST_RUN_S,
) -> RemainingTime:
    """Seconds left of each job of *snap*.

    Args:
        snap: Its `Snapshot.progress` is what jobs report.
        expected_s: ``(n,)`` duration from beginning to end that history leads to expect; NaN where
            it says nothing. None: nowhere.
        least_progress: Reports of less say nothing yet.
        least_run_s: Nor do those of jobs that ran for less, seconds.
    """
    jobs, ran_s = snap.jobs, np.maximum(snap.memory.ran_s, 0.0)
    limit_s = np.where(began_anew(snap), np.inf, jobs.limit_s)
    seconds = np.full(len(jobs), np.inf)
    origin = np.full(len(jobs), Origin.PRIOR, dtype=np.int8)
    has_limit = np.isfinite(limit_s)
    runs = (jobs.state > PENDING) & (jobs.state < COMPLETING) & (jobs.start_s > 0)
    run_s = np.where(runs, np.maximum(snap.now_s - jobs.start_s, 0.0), 0.0)
    work_s, run_s = asked_seconds(snap, ran_s, run_s)
    counted_s = np.where((work_s >= limit_s) & (jobs.restarts > 0), run_s, work_s)
    seconds[has_limit] = np.maximum(limit_s - counted_s, 0.0)[has_limit]
    origin[has_limit] = Origin.DECLARED
    if expected_s is not None:
        until_s = np.minimum(expected_s, limit_s)
        # NaN is below nothing.
        young = (work_s < until_s) & np.isfinite(until_s)
        # A limit below what is expected is all that was said.
        young &= (expected_s <= limit_s) | ~has_limit
        seconds[young] = (until_s - work_s)[young]
        origin[young] = Origin.HISTORY
    if snap.progress is not None:
        done = np.minimum(snap.progress, 1.0)
        tells = (done >= max(least_progress, np.finfo(np.float64).tiny)) & (ran_s >= least_run_s)
        seconds[tells] = work_s[tells] * (1.0 - done[tells]) / done[tells]
        origin[tells] = Origin.REPORTED
    if snap.left_from is not None:
        known = snap.left_from == Origin.KNOWN
        seconds[known] = snap.left_s[known]
        origin[known] = Origin.KNOWN
    return RemainingTime(seconds, origin)
