"""Two plans of one snapshot beside each other: the same to the byte, or how they differ.

`differences` and `plan_bytes` go through the same plain form, field by field as `Plan` has them,
so there are differences exactly if the bytes differ.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from slurm_dl.json_types import Json, JsonObject
from slurm_dl.model.handover import Run
from slurm_dl.model.ids import JobId
from slurm_dl.model.plan import OpenHandover, Plan
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.recording.typed_json import to_plain

_LONGEST = 160


def plan_bytes(plan: Plan) -> bytes:
    """*plan* as bytes: two plans are equal exactly if these are.

    Every field counts, and every field of every action; floats to the last bit. Sets and mappings
    are sorted, the order of the actions is kept.
    """
    return _canonical(to_plain(plan, Plan)).encode("ascii")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing in which two plans differ.

    Attributes:
        what: The job or the action it is about; empty for the plan as a whole.
        field: The field of the plan, or of the action.
        recorded, now: Its values; empty where there is none.
    """

    what: str
    field: str
    recorded: str
    now: str

    def __str__(self) -> str:
        subject = f"{self.what}: {self.field}" if self.what else self.field
        return f"{subject}: recorded {self.recorded or 'nothing'}, now {self.now or 'nothing'}"


def differences(recorded: Plan, now: Plan, snap: Snapshot) -> Iterator[Difference]:
    """Everything in which two plans of *snap* differ, actions first."""
    then, new = to_plain(recorded, Plan), to_plain(now, Plan)
    both: Any = itertools.zip_longest(then.pop("actions"), new.pop("actions"), fillvalue={})
    for at, (a, b) in enumerate(both, 1):
        what = f"action {at} ({_action_name(a or b)})"
        for name in a | b:
            yield from _difference(what, name, a.get(name), b.get(name))
    for name in then:
        if _canonical(then[name]) == _canonical(new[name]):
            continue
        is_set = isinstance(getattr(recorded, name), frozenset)
        a, b = (_by_job(side[name], snap, is_set=is_set) for side in (then, new))
        for what in a | b:
            yield from _difference(what, name, a.get(what), b.get(what))


def count_actions(plan: Plan) -> Counter[str]:
    """Actions of *plan* by kind."""
    return Counter(type(action).__name__ for action in plan.actions)


def preempted(plan: Plan) -> frozenset[Run]:
    """The runs that *plan* begins to take GPUs back from."""
    return frozenset(
        victim.run
        for action in plan.actions
        if isinstance(action, OpenHandover)
        for victim in action.handover.victims
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """What another policy would have planned on the same snapshot.

    Attributes:
        gains: Jobs that would hold GPUs by it and not by the recorded plan.
        loses: The other way round.
        moved: Jobs whose rank differs.
        farthest: Most ranks that one of them moved.
        preempted: Runs it begins to take GPUs back from.
        preempted_then: Those of the recorded plan.
    """

    gains: frozenset[JobId]
    loses: frozenset[JobId]
    moved: int
    farthest: int
    preempted: frozenset[Run]
    preempted_then: frozenset[Run]

    @classmethod
    def of(cls, then: Plan, now: Plan) -> Contrast:
        """*now* against *then*, both of one snapshot."""
        moves = np.abs(now.rank.astype(np.int64) - then.rank)
        return cls(
            gains=now.target - then.target,
            loses=then.target - now.target,
            moved=int((moves > 0).sum()),
            farthest=int(moves.max(initial=0)),
            preempted=preempted(now),
            preempted_then=preempted(then),
        )


def _canonical(value: Json) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _difference(what: str, name: str, then: Json, now: Json) -> Iterator[Difference]:
    # Not ==, to which 0.0 and -0.0 are the same.
    a, b = ("" if value is None else _canonical(value) for value in (then, now))
    if a != b:
        a, b = (t if len(t) <= _LONGEST else f"{t[: _LONGEST - 1]}…" for t in (a, b))
        yield Difference(what=what, field=name, recorded=a, now=b)


def _by_job(value: Any, snap: Snapshot, *, is_set: bool) -> JsonObject:  # noqa: ANN401 - any JSON
    """One field of a plan as values by job; what is not by job goes without a name."""
    match value:
        case {"values": list(rows), **form} if len(rows) == len(snap.jobs):
            jobs = snap.jobs.job_id.tolist()
            return {"": form, **{f"job {j}": row for j, row in zip(jobs, rows, strict=True)}}
        case list() if is_set:
            return {f"job {job}": "in it" for job in value}
        case dict():
            return {f"job {job}": words for job, words in value.items()}
    return {"": value}


def _action_name(action: JsonObject) -> str:
    inside = action.get("run") or action.get("steer")
    job = action.get("job_id", inside.get("job_id") if isinstance(inside, dict) else None)
    name = str(action.get("is", ""))
    return f"{name} of job {job}" if job is not None else name
