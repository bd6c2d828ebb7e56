"""From where a job should go to what Slurm is told: nodes it is kept from, while it waits.

A pending job is steered by its ``ExcNodeList``, which every topology honours, and put off by its
begin time where it is not to start at all for now. Both are undone when their time is over or the
scheme has changed its mind, and compared with what Slurm really did once the job runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping

import numpy as np

from slurm_dl.engine.placing import Placed, named
from slurm_dl.engine.settings import Placement
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import Bool, JobState
from slurm_dl.model.plan import ClearSteer, ForgetSteer, SetSteer
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.model.steer import Steer
from slurm_dl.placement.base import Spot, Wait

SteerAction = SetSteer | ClearSteer | ForgetSteer

_ENDED = (JobState.COMPLETED, JobState.FAILED)


def steering(
    snap: Snapshot,
    rows: Mapping[JobId, int],
    placed: Placed,
    spoken_for: Collection[JobId],
    how: Placement,
) -> Iterator[SteerAction]:
    """What to write, and what to forget, so that jobs go where they were placed.

    Args:
        rows: Row in `Jobs` of each job id.
        spoken_for: Jobs that a hand-over makes room for; they must be free to go there.
    """
    pending = []
    for job_id, steer in sorted(snap.steers.items()):
        outcome = _outcome(snap, rows, steer)
        if outcome:
            yield ForgetSteer(job_id=job_id, outcome=outcome, why=_OUTCOMES[outcome])
        else:
            pending.append(job_id)
    wanted = _wanted(snap, rows, placed, how) if how.steer else {}
    for job_id in pending:
        if job_id in wanted or job_id in spoken_for:
            continue
        steer = snap.steers[job_id]
        yield ClearSteer(
            job_id=job_id,
            own=_own(snap, rows[job_id], steer),
            lift=steer.not_before_s > snap.now_s,
            why="it may go anywhere again",
        )
    for job_id, steer in wanted.items():
        before = snap.steers.get(job_id)
        if before is not None and not _differs(snap, before, steer, how):
            continue
        yield SetSteer(
            steer=steer,
            lift=before is not None and before.not_before_s > snap.now_s >= steer.not_before_s,
            why=steer.why,
        )


def cleared_for(
    snap: Snapshot, rows: Mapping[JobId, int], spoken_for: Collection[JobId]
) -> Iterator[ClearSteer]:
    """Undo what would keep the beneficiaries of hand-overs from the nodes that are freed."""
    for job_id in sorted(spoken_for):
        steer = snap.steers.get(job_id)
        row = rows.get(job_id)
        if steer is None or row is None or snap.jobs.state[row] != JobState.PENDING:
            continue
        yield ClearSteer(
            job_id=job_id,
            own=_own(snap, row, steer),
            lift=steer.not_before_s > snap.now_s,
            why="room is being made for it elsewhere",
        )


_OUTCOMES = {
    "honoured": "it has started where it should",
    "not honoured": "Slurm has started it on nodes it was kept from",
    "let go": "it has started after its steer was over",
    "gone": "it has left the queue",
}


def _outcome(snap: Snapshot, rows: Mapping[JobId, int], steer: Steer) -> str:
    """How the steer ended, one of `_OUTCOMES`; empty while the job waits."""
    row = rows.get(steer.job_id)
    if row is None:
        return "" if snap.seen.unreadable else "gone"
    state = snap.jobs.state[row]
    if state == JobState.PENDING:
        return ""
    if state in _ENDED:
        return "gone"
    if not steer.avoid:
        return "let go"
    held = snap.seen.held.nodes_of(row)
    return "not honoured" if named(snap.seen.nodes, steer.avoid)[held].any() else "honoured"


def _wanted(
    snap: Snapshot, rows: Mapping[JobId, int], placed: Placed, how: Placement
) -> dict[JobId, Steer]:
    """The steer of each placed job that needs one."""
    wanted: dict[JobId, Steer] = {}
    for job_id, spot in placed.spots.items():
        if snap.jobs.tasks[rows[job_id]] == 1:  # Else all tasks would go to the place of one.
            wanted[job_id] = _to_spot(snap, rows[job_id], spot, how)
    for job_id, wait in placed.waits.items():
        wanted[job_id] = _to_wait(snap, rows[job_id], wait, how)
    return wanted


def _to_spot(snap: Snapshot, row: int, spot: Spot, how: Placement) -> Steer:
    job_id, now_s = JobId(int(snap.jobs.job_id[row])), snap.now_s
    before = snap.steers.get(job_id)
    within = np.zeros(len(snap.seen.nodes), dtype=np.bool_)
    within[list(spot.nodes)] = True
    steer = Steer(
        job_id=job_id,
        kind="spot",
        avoid=_avoid(snap, row, within),
        own=_own(snap, row, before),
        since_s=now_s,
        until_s=now_s + how.steer_for_s,
        why=spot.why,
    )
    if before is None or before.kind == "wait":
        return steer
    if now_s < before.until_s:
        return dataclasses.replace(steer, since_s=before.since_s, until_s=before.until_s)
    return dataclasses.replace(
        steer,
        kind="over",
        avoid=(),
        since_s=before.since_s,
        until_s=before.until_s,
        why="Slurm has not started it where it should in time; it may go anywhere",
    )


def _to_wait(snap: Snapshot, row: int, wait: Wait, how: Placement) -> Steer:
    job_id, now_s = JobId(int(snap.jobs.job_id[row])), snap.now_s
    before = snap.steers.get(job_id)
    return Steer(
        job_id=job_id,
        kind="wait",
        avoid=() if wait.within is None else _avoid(snap, row, wait.within),
        own=_own(snap, row, before),
        since_s=now_s if before is None else before.since_s,
        until_s=now_s + wait.for_s,
        not_before_s=now_s + how.defer_s if wait.within is None else 0.0,
        why=f"it waits for {wait.why}",
    )


def _avoid(snap: Snapshot, row: int, within: Bool) -> tuple[str, ...]:
    """Names of the nodes the job could get that are not *within*, without its owner's, sorted."""
    own = frozenset(_own(snap, row, snap.steers.get(JobId(int(snap.jobs.job_id[row])))))
    names = snap.seen.nodes.name
    outside = np.flatnonzero(_reach(snap, row) & ~within).tolist()
    return tuple(sorted(names[n] for n in outside if names[n] not in own))


def _reach(snap: Snapshot, row: int) -> Bool:
    """``(m,)`` bool, nodes the job could get by its partitions and GPU type, up or not."""
    jobs, seen = snap.jobs, snap.seen
    job_id = JobId(int(jobs.job_id[row]))
    partitions = [int(jobs.partition[row]), *seen.also_in.get(job_id, ())]
    reach = np.array(seen.node_in[partitions].any(axis=0), dtype=np.bool_)
    if jobs.gpu_type[row] >= 0:
        reach &= seen.nodes.gpu_type == jobs.gpu_type[row]
    return reach


def _own(snap: Snapshot, row: int, steer: Steer | None) -> tuple[str, ...]:
    """Names of the nodes that the job's owner excludes, sorted.

    Where what stands there is not what we wrote, the owner has changed it: all of it that is not
    ours is the owner's.
    """
    excluded = snap.seen.excluded.get(JobId(int(snap.jobs.job_id[row])))
    names = snap.seen.nodes.name
    there = [] if excluded is None else [names[n] for n in np.flatnonzero(excluded).tolist()]
    if steer is None:
        return tuple(sorted(there))
    if frozenset(there) == steer.excluded or not there:
        return steer.own
    return tuple(sorted(frozenset(there) - frozenset(steer.avoid)))


def _differs(snap: Snapshot, before: Steer, after: Steer, how: Placement) -> bool:
    """Whether Slurm has to be told."""
    excluded = snap.seen.excluded.get(before.job_id)
    names = snap.seen.nodes.name
    there = [] if excluded is None else [names[n] for n in np.flatnonzero(excluded).tolist()]
    if frozenset(there) != after.excluded:
        return True
    if after.not_before_s <= snap.now_s:
        return before.not_before_s > snap.now_s
    return before.not_before_s - snap.now_s < how.defer_s / 2
