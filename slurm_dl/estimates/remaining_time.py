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

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import COMPLETING, F64, I8, PENDING, Bool, Origin
from slurm_dl.model.shape import Shape
from slurm_dl.model.sizes import AS_ASKED, SizeHistory, Sizes, Spent, size_histories, size_of
from slurm_dl.model.snapshot import Snapshot

LEAST_PROGRESS = 0.02  # Start-up takes a share of the first reports that nobody knows
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


def run_began(snap: Snapshot, row: int, history: SizeHistory, *, shrunk: bool = False) -> Spent:
    """Time and progress of the running job at *row* in all when its run, in this size, began.

    Its progress then is the one it reports now: of a run that was just seen for the first time.

    Args:
        shrunk: It has just given nodes back in the same run.
    """
    ran_s, start_s = float(snap.memory.ran_s[row]), float(snap.jobs.start_s[row])
    run_s = max(snap.now_s - start_s, 0.0) if start_s > 0 and not shrunk else 0.0
    return Spent(max(ran_s - run_s, 0.0), _progress(snap, row, history))


def spent_by_size(snap: Snapshot, row: int, history: SizeHistory) -> Mapping[Shape, Spent]:
    """Time and progress of the job at *row* in each size, its present run included.

    A run in a size that is not written down yet counts in that size.
    """
    held = size_of(snap.jobs, row) if _runs(snap, row) else None
    if held not in (None, history.now):
        history = history.begun(held, run_began(snap, row, history))
    if history.now is None:
        return history.spent
    now = Spent(float(snap.memory.ran_s[row]), _progress(snap, row, history))
    return history.begun(history.now, now).spent


def asked_seconds(snap: Snapshot, ran_s: F64, run_s: F64) -> tuple[F64, F64]:
    """Seconds that elastic jobs would have taken in the asked size for what they ran.

    A second in a size counts as its `Sizes.rate`. One before the first size that is known counts
    as 1, and so do all of a job of which nothing is written down: it has the size it asked for.

    Args:
        ran_s: ``(n,)`` seconds that each job ran in all.
        run_s: ``(n,)`` seconds of its present run.

    Returns:
        Both, in seconds of the asked size; of jobs that are not elastic as they were.
    """
    sizes = snap.sizes
    histories = {} if sizes is None else size_histories(snap.booked)
    if sizes is None or not histories:
        return ran_s, run_s
    work_s, run_work_s = ran_s.copy(), run_s.copy()
    for row in sizes.row.tolist():
        history = histories.get(JobId(int(snap.jobs.job_id[row])))
        if history is None:
            continue
        for shape, spent in spent_by_size(snap, row, history).items():
            work_s[row] += spent.ran_s * (_rate_in(sizes, row, shape) - 1.0)
        held = size_of(snap.jobs, row)
        run_work_s[row] *= 1.0 if held is None else _rate_in(sizes, row, held)
    return np.maximum(work_s, 0.0), run_work_s


def _rate_in(sizes: Sizes, row: int, shape: Shape) -> float:
    """Speed in *shape*; of one that is none of its sizes by its GPUs, between those next to it.

    With fewer than the least has, in proportion; with more than the largest has, as fast as that:
    a job that names fewer sizes has not got more done.
    """
    at = sizes.held(row, shape.gpus, shape.nodes)
    if at != AS_ASKED:
        return float(sizes.rate[at])
    own = list(sizes.of(row))
    return float(np.interp(shape.gpus, [0.0, *sizes.gpus[own]], [0.0, *sizes.rate[own]]))


def _runs(snap: Snapshot, row: int) -> bool:
    return PENDING < int(snap.jobs.state[row]) < COMPLETING


def _progress(snap: Snapshot, row: int, history: SizeHistory) -> float:
    """As it reports, else as it last did."""
    said = snap.seen.claim(JobId(int(snap.jobs.job_id[row]))).progress
    return history.since.progress if said is None else said
