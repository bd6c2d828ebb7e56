"""Booking of one observation: from the columns of `AttainedService` before it to those after.

Hot path: everything is a column over the jobs known so far, sorted by job id; no Python per job.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slurm_dl.ledger.attained_service import DTYPES, HOLDS, AttainedService, Column, EndedRun
from slurm_dl.ledger.run_contracts import note_contracts
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import (
    COMPLETED,
    COMPLETING,
    F64,
    NOT_HELD,
    PENDING,
    RUNNING,
    Bool,
    Held,
    Jobs,
    JobState,
    is_in,
)
from slurm_dl.model.snapshot import Observed
from slurm_dl.model.steer import Steer

FORGET_AFTER_S = 7 * 86400.0
"""A job Slurm has not listed for this long is dropped; far above MinJobAge and any outage."""

LEAVE_AFTER_S = 600.0
"""One that was over when Slurm listed it last leaves memory after this; the store keeps it. Only a
slurmctld that lost its state could bring it back, and then it is like one that nobody has seen."""

LONGEST_LOOK_S = 120.0
"""A look may be answered this much after it was begun, by a controller that comes back. So what
Slurm tells may be later than the look; by more than this, a clock was set."""

HELD_COARSE_S = 600.0
"""How far the time since which a held job waits, if it never ran, may lie in the past."""

_NO_PLACE = np.isin(np.array(Held), (Held.USER_OR_ADMIN, Held.DEPENDENCY, Held.DATA))
"""By `Held`: what a job's owner can bring about, so that it has no place in the queue meanwhile, as
without a begin time ahead. A limit or a reservation of the site's is waited for in the queue."""

_HOLD_SLACK_S = 60.0
"""A begin time this much after the interval that Slurm keeps each requeued job back is its
owner's."""

_HOLDS = np.isin(np.array(JobState), HOLDS)
_HOLDS_OR_WAITS = np.isin(np.array(JobState), (*HOLDS, JobState.PENDING))  # By `JobState`
_LAG_S = 1.0  # The submit time that a requeue gives may be this much after the end of the run


@dataclass(frozen=True, slots=True, eq=False)
class AppliedObservation:
    """Changes of the ledger by one observation.

    Attributes:
        forgotten: Ids of jobs that were dropped, and that nothing has to know any more.
    """

    service: AttainedService  # The new columns
    changed: Bool  # ``(k,)`` bool, rows that differ from before by more than being seen again
    ended: tuple[EndedRun, ...]  # Runs that are over
    forgotten: tuple[int, ...]


def apply_observation(
    before: AttainedService, seen: Observed, *, forget_before_s: float
) -> AppliedObservation:
    """Book one observation.

    Attained service never falls but when a job id comes back as another job.

    Args:
        forget_before_s: Jobs that Slurm listed last before this, epoch seconds, and that were not
            over then, are dropped; see `write_ahead`.
    """
    now_s = seen.now_s
    relevant = (seen.jobs.state < COMPLETED) | is_in(seen.jobs.job_id, before.job_id)
    jobs = seen.jobs
    if seen.weights:
        jobs = dataclasses.replace(jobs, gpus=seen.weighted_gpus())
    jobs = jobs if relevant.all() else jobs.take(relevant)
    if (jobs.job_id[1:] < jobs.job_id[:-1]).any():
        jobs = jobs.take(np.argsort(jobs.job_id, kind="stable"))

    new = ~is_in(jobs.job_id, before.job_id)
    merged = _with_rows(before, jobs, new, now_s)
    at = merged.rows_of(jobs.job_id)
    col = {name: column.copy() for name, column in merged.columns().items()}

    reborn = _reborn(merged, at, jobs)
    if reborn.any():
        for name, value in _fresh(jobs.take(reborn), now_s).columns().items():
            col[name][at[reborn]] = value

    _note_undone(col, at, jobs)
    _note_missed(col, at, jobs)
    booked_s = col["run_start_s"][at]
    ended = _close_runs(col, at, jobs, now_s)
    # After a requeue the last run may have begun and ended unseen, too.
    if _open_missed(col, at, jobs, booked_s):
        ended += _close_runs(col, at, jobs, now_s)
    _count_running(col, at, jobs, now_s)
    note_contracts(col, at, jobs, seen, new | reborn)
    _note_place(col, at, jobs, seen, np.where(new | reborn, 0.0, merged.last_seen_s[at]))
    # Only waiting for room is waiting: no job comes forward for having been held.
    kept = (jobs.state == PENDING) & (jobs.held != NOT_HELD)
    # Of a job that never ran a coarse time will do, and saves a write at each look.
    kept &= (col["ran_s"][at] > 0) | (col["waiting_since_s"][at] < now_s - HELD_COARSE_S)
    col["waiting_since_s"][at[kept]] = now_s

    settled = jobs.state != COMPLETING
    col["restarts"][at[settled]] = jobs.restarts[settled]
    col["last_seen_s"][at] = now_s
    col["over"][at] = jobs.state >= COMPLETED

    changed = np.zeros(len(merged), dtype=np.bool_)
    changed[at[new | reborn]] = True
    had = merged.columns()
    for name, column in col.items():
        if name != "last_seen_s":
            changed |= column != had[name]
    unseen_s = now_s - col["last_seen_s"]
    over = col["over"] != 0
    forget = ~over & (col["last_seen_s"] < forget_before_s)
    keep = ~forget & ~(over & (unseen_s > LEAVE_AFTER_S))
    after = AttainedService(**col)
    return AppliedObservation(
        service=after if keep.all() else after.take(keep),
        changed=changed[keep],
        ended=ended,
        forgotten=tuple(after.job_id[forget].tolist()),
    )


def without_ours(seen: Observed, steers: Mapping[JobId, Steer]) -> Observed:
    """*seen*, in which jobs that only we put off wait for room, as they do.

    They may be preempted for, and their waiting counts. So do those whose begin time is over and
    of which Slurm does not know it yet.
    """
    if not seen.begins:
        return seen
    jobs, now_s = seen.jobs, seen.now_s
    over = {job_id for job_id, begin_s in seen.begins.items() if begin_s <= now_s}
    ours = {
        job_id: steer.since_s
        for job_id, steer in steers.items()
        if steer.puts_off(now_s, seen.begins.get(job_id))
    }
    held = jobs.held.copy()
    named = is_in(jobs.job_id, [*over, *ours])
    for row in (named & (held == Held.BEGIN_TIME)).nonzero()[0].tolist():
        job_id = JobId(int(jobs.job_id[row]))
        if job_id in over or jobs.submit_s[row] <= ours[job_id]:
            held[row] = Held.NO
    return dataclasses.replace(seen, jobs=dataclasses.replace(jobs, held=held))


def _fresh(jobs: Jobs, now_s: float) -> AttainedService:
    """Rows for jobs seen for the first time."""
    col: dict[str, Column] = {name: np.zeros(len(jobs), dtype=dt) for name, dt in DTYPES.items()}
    col["job_id"] = jobs.job_id
    col["first_submit_s"] = jobs.submit_s
    col["waiting_since_s"] = jobs.submit_s
    col["restarts"] = jobs.restarts
    col["last_seen_s"] = np.full(len(jobs), now_s)
    # Slurm tells of the present run alone, and of that not how long it was suspended.
    col["incomplete"] = (jobs.restarts > 0) | (jobs.state == JobState.SUSPENDED)
    return AttainedService(**col)


def _with_rows(before: AttainedService, jobs: Jobs, new: Bool, now_s: float) -> AttainedService:
    if not new.any():
        return before
    fresh = _fresh(jobs.take(new), now_s).columns()
    old = before.columns()
    joined = {name: np.concatenate([old[name], fresh[name]]) for name in old}
    order = np.argsort(joined["job_id"], kind="stable")
    return AttainedService(**{name: column[order] for name, column in joined.items()})


def _reborn(service: AttainedService, at: npt.NDArray[np.int64], jobs: Jobs) -> Bool:
    """Jobs whose id Slurm has given to another job since (ids wrap at MaxJobId).

    Fewer restarts alone do not say so: a slurmctld that died may have forgotten the last seconds.
    """
    before = service.restarts[at]
    later = (jobs.state < COMPLETED) & (jobs.submit_s > service.last_seen_s[at])
    reborn: Bool = later & (
        (jobs.restarts < before) | (service.over[at] & (jobs.restarts == before))
    )
    return reborn


def _note_undone(col: dict[str, Column], at: npt.NDArray[np.int64], jobs: Jobs) -> None:
    """Go on with runs that were booked as over, and that Slurm takes for running again.

    A slurmctld that died does, if it had not saved their end. They are counted from where they
    were booked to.
    """
    before = col["restarts"][at]
    fewer = jobs.restarts < before
    undone = (
        _HOLDS[jobs.state]
        & (col["run_start_s"][at] == 0)
        & (fewer | (col["over"][at] & (jobs.restarts == before)))
        & (jobs.start_s < col["waiting_since_s"][at])
    ).nonzero()[0]
    k = at[undone]
    col["run_start_s"][k] = jobs.start_s[undone]
    col["counted_to_s"][k] = col["waiting_since_s"][k]
    col["run_gpus"][k] = jobs.gpus[undone]
    col["incomplete"][k] = True
    # Else the next requeue would not be taken for one.
    col["restarts"][k] = jobs.restarts[undone]


def _note_missed(col: dict[str, Column], at: npt.NDArray[np.int64], jobs: Jobs) -> None:
    """Mark jobs of which a run began and was requeued between two looks."""
    settled = jobs.state != COMPLETING
    # One requeue is that of the run under way, or of one that was seen to end.
    seen = (col["run_start_s"][at] > 0) | col["over"][at]
    missed = settled & (jobs.restarts - col["restarts"][at] > seen)
    col["incomplete"][at[missed]] = True


def _open_missed(
    col: dict[str, Column], at: npt.NDArray[np.int64], jobs: Jobs, booked_s: F64
) -> bool:
    """Take up last runs that began and ended between two looks; whether there were any.

    Args:
        booked_s: Start of the run of each job that was under way before this look: by a clock that
            was set back it seems to begin after its own end was booked.
    """
    missed = (
        (jobs.state >= COMPLETED)
        & ~col["over"][at]
        & (col["run_start_s"][at] == 0)
        & (jobs.start_s > 0)
        & (jobs.start_s != booked_s)
        & (jobs.start_s >= col["waiting_since_s"][at])
        & (jobs.end_s > jobs.start_s)
    ).nonzero()[0]
    k = at[missed]
    col["run_start_s"][k] = col["counted_to_s"][k] = jobs.start_s[missed]
    col["run_gpus"][k] = jobs.gpus[missed]
    return len(missed) > 0


def _note_place(
    col: dict[str, Column],
    at: npt.NDArray[np.int64],
    jobs: Jobs,
    seen: Observed,
    before_s: F64,
) -> None:
    """Since when each job could have started; 0 of those that may not yet.

    A requeue keeps it. A job that its owner holds again loses it, even after a run: else jobs would
    be submitted early, and held after one look or one short run.

    Args:
        before_s: ``(n,)`` when each job was looked at before, epoch seconds; 0: never.
    """
    later = jobs.held == Held.BEGIN_TIME
    again = (later & ((jobs.restarts > 0) | (col["ran_s"][at] > 0))).nonzero()[0]
    begins_s = np.array([seen.begins.get(JobId(j), 0.0) for j in jobs.job_id[again].tolist()])
    later[again] = begins_s > jobs.submit_s[again] + seen.requeue_hold_s + _HOLD_SLACK_S
    waits = (jobs.state == PENDING) & (_NO_PLACE[jobs.held] | later)
    col["queued_s"][at[waits]] = 0
    here = (~waits & (col["queued_s"][at] == 0)).nonzero()[0]
    k, now_s = at[here], seen.now_s
    told_s = np.array([seen.eligible.get(JobId(j), 0.0) for j in col["job_id"][k].tolist()])
    # At the look before it waited: what was so earlier was before it was held.
    since_s = np.where(told_s >= before_s[here] - _LAG_S, told_s, now_s)
    start_s = np.where(jobs.start_s[here] > 0, jobs.start_s[here], now_s)
    since_s = np.maximum(since_s, col["first_submit_s"][k])
    col["queued_s"][k] = np.minimum(since_s, np.minimum(start_s, now_s))


def _close_runs(
    col: dict[str, Column],
    at: npt.NDArray[np.int64],
    jobs: Jobs,
    now_s: float,
) -> tuple[EndedRun, ...]:
    """Book the end of every run that is no longer the one under way."""
    start = col["run_start_s"][at]
    requeues = jobs.restarts - col["restarts"][at]
    over = jobs.state >= COMPLETED
    other_run = _HOLDS_OR_WAITS[jobs.state] & (jobs.start_s != start)
    # While a requeued job is still completing Slurm shows the new restart count with the old
    # submit time (22.05.8): its run is closed once the time of the requeue is known.
    settled = jobs.state != COMPLETING
    closing = ((start > 0) & settled & ((requeues > 0) | over | other_run)).nonzero()[0]
    if not len(closing):
        return ()
    k = at[closing]
    # Slurm tells the exact end of a finished run, and the instant of a requeue as submit time.
    # Where runs were missed altogether nothing is known beyond what has been counted.
    counted = col["counted_to_s"][k]
    last = over & ((requeues == 0) | (jobs.start_s == start))
    reported_s = np.select(
        [last[closing], requeues[closing] == 1],
        [jobs.end_s[closing], jobs.submit_s[closing]],
        default=0.0,
    )
    # A run may have ended after the look began: a controller that comes back answers one that has
    # waited for it.
    latest = np.maximum(counted, now_s)
    waited = (reported_s <= latest + LONGEST_LOOK_S) & (
        over[closing] | (reported_s > latest + _LAG_S)
    )
    end = np.clip(reported_s, counted, np.where(waited, np.maximum(reported_s, latest), latest))
    more_s = end - counted
    col["ran_s"][k] += more_s
    col["run_gpu_s"][k] += more_s * col["run_gpus"][k]
    col["attained_gpu_s"][k] += more_s * col["run_gpus"][k]
    col["waiting_since_s"][k] = np.minimum(end, np.maximum(counted, now_s))
    ended = tuple(
        EndedRun(job_id=int(j), start_s=float(s), end_s=float(e), gpu_s=float(g))
        for j, s, e, g in zip(
            col["job_id"][k], col["run_start_s"][k], end, col["run_gpu_s"][k], strict=True
        )
    )
    for name in ("run_start_s", "counted_to_s", "run_gpus", "run_gpu_s"):
        col[name][k] = 0
    return ended


def _count_running(
    col: dict[str, Column],
    at: npt.NDArray[np.int64],
    jobs: Jobs,
    now_s: float,
) -> None:
    """Count the time since the last observation for every run under way."""
    running = (jobs.state == RUNNING) & (jobs.start_s > 0)
    paused = (jobs.state == JobState.SUSPENDED) & (jobs.start_s > 0)
    here = (running | paused).nonzero()[0]
    k = at[here]
    begun = col["run_start_s"][k] == 0
    col["run_start_s"][k[begun]] = jobs.start_s[here][begun]
    col["fruitless"][k[begun]] = 0
    anew = begun & ((col["ran_s"][k] == col["forgiven_ran_s"][k]) | (col["first_run_s"][k] == 0))
    col["first_run_s"][k[anew]] = jobs.start_s[here][anew]
    # A run that began while slurmctld kept the look waiting has had nothing before its start.
    start_s = jobs.start_s[here][begun]
    col["counted_to_s"][k[begun]] = np.where(start_s <= now_s + LONGEST_LOOK_S, start_s, now_s)
    # A run that was resized is counted at its old size up to now, the size is known no better.
    col["run_gpus"][k[begun]] = jobs.gpus[here][begun]
    more_s = np.maximum(now_s - col["counted_to_s"][k], 0.0)
    # Suspended time holds GPUs but is no service.
    served_s = np.where(running[here], more_s, 0.0)
    col["ran_s"][k] += served_s
    col["run_gpu_s"][k] += served_s * col["run_gpus"][k]
    col["attained_gpu_s"][k] += served_s * col["run_gpus"][k]
    col["counted_to_s"][k] += more_s
    col["waiting_since_s"][k] = col["counted_to_s"][k]
    col["run_gpus"][k] = jobs.gpus[here]
