"""From where a job should go to what Slurm is told: nodes it is kept from, while it waits.

A pending job is steered by its ``ExcNodeList``, which every topology honours, and put off by its
begin time where it is not to start at all for now. Both are undone when their time is over or the
scheme has changed its mind, and compared with what Slurm really did once the job runs. Slurm
changes no list of a running job and keeps it over a requeue, so it is undone when the job waits
again; tasks of an array take theirs along.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Collection, Iterator

import numpy as np
import numpy.typing as npt

from slurm_dl.engine.placing.place_waiting import Placed, named
from slurm_dl.engine.settings import Placement
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import Bool, Held, JobState
from slurm_dl.model.plan import ClearSteer, ForgetSteer, SetSteer
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.model.steer import Steer
from slurm_dl.placement.scheme import Spot, Wait

HELD_AT_FIRST_STEP = 20  # So many jobs at most are put off by the shortest time

LONGEST_DEFER_S = 600.0
"""A job that is put off again and again is so for as long again as it has been, at most this."""

SteerAction = SetSteer | ClearSteer | ForgetSteer

_ENDED = (JobState.COMPLETED, JobState.FAILED)
_OUTCOMES = {
    "honoured": "it has started where it should",
    "not honoured": "Slurm has started it on nodes it was kept from",
    "let go": "it has started after its steer was over",
    "gone": "it has left the queue",
}


def steering(
    snap: Snapshot,
    placed: Placed,
    reserved: Collection[JobId],
    how: Placement,
) -> Iterator[SteerAction]:
    """Actions that write, change or forget steers, so that jobs start on their chosen nodes.

    Args:
        reserved: Jobs that a hand-over makes room for; they must be free to go there.
    """
    waiting: dict[JobId, _Waiting] = {}
    arrays = _arrays_listed(snap)
    for job_id, steer in sorted(snap.steers.items()):
        outcome = _outcome(snap, steer, arrays)
        if outcome:
            why, late_s = _OUTCOMES[outcome], _late_s(snap, steer, outcome)
            if late_s is not None:
                when = "later" if late_s > 0 else "earlier"
                why += f", {abs(late_s):.0f} s {when} than expected"
            yield ForgetSteer(job_id=job_id, outcome=outcome, why=why, late_s=late_s)
        elif _is_pending(snap, job_id):
            waiting[job_id] = _Waiting(snap, snap.jobs.rows[job_id])
    for job_id in sorted(_inheriting(snap)):
        waiting[job_id] = _Waiting(snap, snap.jobs.rows[job_id])
    if not how.steer:
        kept = {j: w for j, w in placed.waits.items() if j in placed.held}
        placed = Placed({}, kept, placed.held)
    wanted = dict(_wanted(snap, placed, how))
    for job_id, job in sorted(waiting.items()):
        if job_id not in wanted and job_id not in reserved:
            yield from job.undo(how, "it may go anywhere again")
    for job_id, steer in wanted.items():
        job = waiting.get(job_id) or _Waiting(snap, snap.jobs.rows[job_id])
        yield from job.steer(steer, how)


def cleared_for(
    snap: Snapshot,
    reserved: Collection[JobId],
    how: Placement,
) -> Iterator[SteerAction]:
    """Undo what would keep the beneficiaries of hand-overs from the nodes that are freed."""
    for job_id in sorted(reserved):
        if _is_pending(snap, job_id):
            job = _Waiting(snap, snap.jobs.rows[job_id])
            if job.before is not None:
                yield from job.undo(how, "room is being made for it elsewhere")


class _Waiting:
    """A pending job: what stands in its ExcNodeList, and whose that is.

    Attributes:
        before: What we know to have written for it, or for the array it is a task of; None if
            nothing.
        there: Names of the nodes that it is kept from now, by whomever.
        own: Those of them that are its owner's.
        known: Slurm's answer is known and understood, so far as we can tell.
    """

    def __init__(self, snap: Snapshot, row: int) -> None:
        self._snap = snap
        self._row = row
        self.job_id = JobId(int(snap.jobs.job_id[row]))
        excluded = snap.seen.excluded.get(self.job_id)
        choice = snap.seen.choices.get(self.job_id)
        self.there = _names(snap, excluded)
        self.own = snap.owner_excludes(self.job_id)
        self.known = excluded is not None or choice is None or bool(choice.any())
        self.before = _before(snap, row)

    @property
    def ours(self) -> frozenset[str]:
        """Those of its excluded nodes that we excluded."""
        return self.there - self.own

    @property
    def put_off(self) -> bool:
        """Whether it is we who keep it from starting for a while."""
        begin_s = self._snap.seen.begins.get(self.job_id)
        return self.before is not None and self.before.puts_off(self._snap.now_s, begin_s)

    def steer(self, steer: Steer, how: Placement) -> Iterator[SetSteer]:
        """Tell Slurm of *steer*, if that is anything new."""
        if not self.known:
            return
        own = tuple(sorted(self.own))
        steer = dataclasses.replace(steer, job_id=self.job_id, own=own)
        if self._is_news(steer, how):
            steer = dataclasses.replace(steer, left=self._left())
            lift = self.put_off and steer.not_before_s <= self._snap.now_s
            yield SetSteer(steer=steer, lift=lift, why=steer.why)

    def undo(self, how: Placement, why: str) -> Iterator[SetSteer | ClearSteer]:
        """Let it go anywhere its owner lets it."""
        before = self.before
        if before is None or not self.known:
            return
        refused = self._snap.jobs.held[self._row] == Held.UNAVAILABLE and bool(self.ours)
        if refused and how.steer:
            until_s = self._snap.now_s + how.steer_for_s
            yield from self.steer(_let_go(before, before.since_s, until_s, _REFUSED), how)
        elif self._snap.is_of_array(self.job_id) or (how.steer and before.kind == "over"):
            # Its tasks that run have our list; and it must not be begun with all over again.
            if self.ours or self.put_off:
                steer = _let_go(before, before.since_s, before.until_s, why)
                yield from self.steer(steer, how)
        else:
            own = tuple(sorted(self.own))
            yield ClearSteer(job_id=self.job_id, own=own, lift=self.put_off, why=why)

    def _is_news(self, steer: Steer, how: Placement) -> bool:
        """Whether Slurm has to be told, or it has to be written down that it means another now."""
        before, now_s = self.before, self._snap.now_s
        if before is None:
            return bool(steer.avoid) or steer.not_before_s > now_s
        if self.there != steer.excluded or before.kind != steer.kind:
            return True
        if before.job_id != self.job_id:
            return True
        if steer.not_before_s <= now_s:
            return self.put_off
        # A write that failed, or the owner's, leaves an earlier begin time than is written down.
        begin_s = self._snap.seen.begins.get(self.job_id, math.inf)
        return min(begin_s, before.not_before_s) - now_s <= how.defer_s / 2

    def _left(self) -> tuple[str, ...]:
        ours = self.ours
        if self.before is not None and self._snap.is_of_array(self.job_id):
            # Tasks that started long ago may have any of it.
            ours |= {*self.before.left, *self.before.avoid}
        return tuple(sorted(ours))


_REFUSED = "Slurm does not find enough nodes for it among those left; it may go anywhere"


def _before(snap: Snapshot, row: int) -> Steer | None:
    """The job's steer, as it counts now: of one that has run since only the list does."""
    job_id = JobId(int(snap.jobs.job_id[row]))
    steer = snap.steers.get(job_id) or snap.array_steer(job_id)
    if steer is None or (steer.job_id != job_id and job_id not in snap.seen.excluded):
        return None
    # It was requeued since: what it waits out is Slurm's interval, which is not ours to end.
    if snap.jobs.submit_s[row] > steer.since_s:
        return dataclasses.replace(steer, kind="started", not_before_s=0.0)
    return steer


def _let_go(before: Steer, since_s: float, until_s: float, why: str) -> Steer:
    return dataclasses.replace(
        before,
        kind="over",
        avoid=(),
        since_s=since_s,
        until_s=until_s,
        not_before_s=0.0,
        why=why,
    )


def _is_pending(snap: Snapshot, job_id: JobId) -> bool:
    row = snap.jobs.rows.get(job_id)
    return row is not None and bool(snap.jobs.state[row] == JobState.PENDING)


def _arrays_listed(snap: Snapshot) -> frozenset[int]:
    """Ids of the arrays of which tasks are listed; looked for only where a steered job is over."""
    state = snap.jobs.state
    if all(
        job_id in snap.jobs.rows and state[snap.jobs.rows[job_id]] not in _ENDED
        for job_id in snap.steers
    ):
        return frozenset()
    heads = (text.label.partition("_") for text in snap.seen.texts.values())
    return frozenset(int(array) for array, task, _ in heads if task)


def _inheriting(snap: Snapshot) -> Iterator[JobId]:
    """Pending tasks that took our list along when they were split off an array."""
    if not snap.steers:
        return
    for job_id in snap.seen.excluded:
        if job_id in snap.steers or not _is_pending(snap, job_id):
            continue
        if snap.array_steer(job_id) is not None and _Waiting(snap, snap.jobs.rows[job_id]).ours:
            yield job_id


def _outcome(snap: Snapshot, steer: Steer, arrays: Collection[int]) -> str:
    """The steer's end, one of `_OUTCOMES`; empty while the job waits, or if that was reported."""
    row = snap.jobs.rows.get(steer.job_id)
    if row is None:
        return "" if snap.seen.may_list(steer.job_id) or steer.job_id in arrays else "gone"
    state = snap.jobs.state[row]
    if state in _ENDED:
        return "" if steer.job_id in arrays else "gone"
    if state == JobState.PENDING or steer.kind == "started":
        return ""
    if not steer.avoid:
        return "let go"
    held = snap.seen.held.nodes_of(row)
    return "not honoured" if named(snap.seen.nodes, steer.avoid)[held].any() else "honoured"


def _late_s(snap: Snapshot, steer: Steer, outcome: str) -> float | None:
    """Seconds from the start that was expected of a job that has started to the real one."""
    if steer.expected_start_s is None or outcome == "gone":
        return None
    return float(snap.jobs.start_s[snap.jobs.rows[steer.job_id]]) - steer.expected_start_s


def _wanted(snap: Snapshot, placed: Placed, how: Placement) -> Iterator[tuple[JobId, Steer]]:
    for job_id, spot in placed.spots.items():
        if (
            snap.jobs.tasks[snap.jobs.rows[job_id]] == 1
        ):  # Else all tasks would go to the place of one.
            yield job_id, _to_spot(snap, snap.jobs.rows[job_id], spot, how)
    for job_id, wait in placed.waits.items():
        held = len(placed.held) if job_id in placed.held else 0
        yield job_id, _to_wait(snap, snap.jobs.rows[job_id], wait, how, held)


def _to_spot(snap: Snapshot, row: int, spot: Spot, how: Placement) -> Steer:
    now_s, before = snap.now_s, _before(snap, row)
    within = np.zeros(len(snap.seen.nodes), dtype=np.bool_)
    within[list(spot.nodes)] = True
    steer = Steer(
        job_id=JobId(int(snap.jobs.job_id[row])),
        kind="spot",
        avoid=_avoid(snap, row, within),
        since_s=_since_s(snap, row),
        until_s=now_s + how.steer_for_s,
        why=spot.why,
        expected_start_s=spot.expected_start_s,
    )
    if before is None or before.kind in ("wait", "started"):
        return steer
    if before.kind == "spot" and now_s < before.until_s:
        return dataclasses.replace(steer, since_s=before.since_s, until_s=before.until_s)
    return _let_go(steer, before.since_s, before.until_s, _EXPIRED)


_EXPIRED = "Slurm has not started it where it should in time; it may go anywhere"


def _to_wait(snap: Snapshot, row: int, wait: Wait, how: Placement, held: int) -> Steer:
    """The steer of a job that waits; *held*: jobs that the policy bars, 0 if not this one."""
    now_s, before = snap.now_s, _before(snap, row)
    anew = before is None or before.kind == "started"
    steer = Steer(
        job_id=JobId(int(snap.jobs.job_id[row])),
        kind="wait",
        avoid=() if wait.within is None else _avoid(snap, row, wait.within),
        since_s=_since_s(snap, row) if anew or before is None else before.since_s,
        until_s=now_s + wait.for_s,
        not_before_s=_put_off_until_s(snap, row, how, held) if wait.within is None else 0.0,
        why=wait.why if held else f"it waits for {wait.why}",
        expected_start_s=wait.expected_start_s,
    )
    if not held and before is not None and before.kind == "over" and now_s < before.until_s:
        return before  # Slurm would not have it; it is left alone for a while.
    return steer


def _put_off_until_s(snap: Snapshot, row: int, how: Placement, held: int) -> float:
    """The begin time to write; 0 where the one that its owner wants does as well."""
    job_id = JobId(int(snap.jobs.job_id[row]))
    begin_s, before = snap.seen.begins.get(job_id), _before(snap, row)
    ours = before is not None and before.puts_off(snap.now_s, begin_s)
    # The more jobs are put off, the longer each is: the writes of a look stay as few.
    many_s = min(how.defer_s * held / HELD_AT_FIRST_STEP, LONGEST_DEFER_S)
    until_s = snap.now_s + max(how.defer_s, many_s)
    if before is not None and ours:
        # Hundreds that wait for hours must not use up the writes of a look.
        longer_s = min(snap.now_s - before.since_s, LONGEST_DEFER_S)
        until_s = max(until_s, snap.now_s + longer_s)
    if ours or snap.jobs.held[row] not in (Held.BEGIN_TIME, Held.DATA):
        return until_s
    return 0.0 if begin_s is not None and begin_s > until_s else until_s


def _since_s(snap: Snapshot, row: int) -> float:
    # A requeue sets the submit time: a later one than this is one.
    return max(snap.now_s, float(snap.jobs.submit_s[row]))


def _avoid(snap: Snapshot, row: int, within: Bool) -> tuple[str, ...]:
    """Names of the nodes the job could get that are not *within*, without its owner's, sorted."""
    own = snap.owner_excludes(JobId(int(snap.jobs.job_id[row])))
    names, order = _sorted(snap.seen.nodes.name)
    outside = (_reach(snap, row) & ~within)[order]
    return tuple(name for name in itertools.compress(names, outside.tolist()) if name not in own)


@functools.lru_cache(maxsize=4)
def _sorted(names: tuple[str, ...]) -> tuple[tuple[str, ...], npt.NDArray[np.int64]]:
    """*names* in their order, and where each was; thousands, the same for every job."""
    order = np.array(sorted(range(len(names)), key=names.__getitem__), dtype=np.int64)
    return tuple(names[n] for n in order.tolist()), order


def _reach(snap: Snapshot, row: int) -> Bool:
    """``(m,)`` bool, nodes the job could get by its partitions and GPU type, up or not."""
    jobs, seen = snap.jobs, snap.seen
    job_id = JobId(int(jobs.job_id[row]))
    partitions = [int(jobs.partition[row]), *seen.also_in.get(job_id, ())]
    reach = np.array(seen.node_in[partitions].any(axis=0), dtype=np.bool_)
    if jobs.gpu_type[row] >= 0:
        reach &= seen.nodes.with_type(int(jobs.gpu_type[row]))
    return reach


def _names(snap: Snapshot, mask: Bool | None) -> frozenset[str]:
    if mask is None:
        return frozenset()
    return frozenset(itertools.compress(snap.seen.nodes.name, mask.tolist()))
