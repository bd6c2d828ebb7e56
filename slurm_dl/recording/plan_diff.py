"""Two plans of one snapshot beside each other: the same to the byte, or how they differ.

`differences` and `plan_bytes` go through the same plain form, field by field as `Plan` has them,
so there are differences exactly if the bytes differ.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

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
    names = [field.name for field in dataclasses.fields(Plan)]
    for name in sorted(names, key=lambda n: n != "actions"):
        a, b = then[name], new[name]
        if _canonical(a) == _canonical(b):
            continue
        if name == "actions":
            yield from _actions(a, b)
        elif isinstance(getattr(recorded, name), frozenset):
            yield from _members(name, a, b)
        elif isinstance(getattr(recorded, name), np.ndarray) and b is not None:
            yield from _rows(name, a, b, snap)
        elif isinstance(a, dict) and isinstance(b, dict):
            yield from _keys(name, a, b)
        else:
            yield Difference(what="", field=name, recorded=_shown(a), now=_shown(b))


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


def _shown(value: Json) -> str:
    text = _canonical(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _actions(then: Json, now: Json) -> Iterator[Difference]:
    a, b = _objects(then), _objects(now)
    for at in range(max(len(a), len(b))):
        old, new = (a[at] if at < len(a) else {}), (b[at] if at < len(b) else {})
        place = f"action {at + 1}"
        if old.get("is") != new.get("is"):
            yield Difference(
                what=place, field="kind", recorded=_action_name(old), now=_action_name(new)
            )
            continue
        for name in old:
            if _canonical(old[name]) != _canonical(new[name]):
                yield Difference(
                    what=f"{place} ({_action_name(old)})",
                    field=name,
                    recorded=_shown(old[name]),
                    now=_shown(new[name]),
                )


def _objects(value: Json) -> list[JsonObject]:
    return [v for v in value if isinstance(v, dict)] if isinstance(value, list) else []


def _action_name(action: JsonObject) -> str:
    inside = action.get("run") or action.get("steer")
    job = action.get("job_id", inside.get("job_id") if isinstance(inside, dict) else None)
    name = str(action.get("is", ""))
    return f"{name} of job {job}" if job is not None else name


def _members(name: str, then: Json, now: Json) -> Iterator[Difference]:
    a, b = (set(v) if isinstance(v, list) else set() for v in (then, now))
    for job in sorted(a ^ b, key=str):
        said = ("in it", "not in it")
        recorded, here = said if job in a else said[::-1]
        yield Difference(what=f"job {job}", field=name, recorded=recorded, now=here)


def _rows(name: str, then: Json, now: Json, snap: Snapshot) -> Iterator[Difference]:
    assert isinstance(then, dict)  # noqa: S101 - a column; narrows the type
    assert isinstance(now, dict)  # noqa: S101
    a, b = then["values"], now["values"]
    same_form = then["dtype"] == now["dtype"] and isinstance(a, list) and isinstance(b, list)
    if not same_form or len(a) != len(b):  # type: ignore[arg-type] # lists by then
        yield Difference(what="", field=name, recorded=_form(then), now=_form(now))
        return
    for job_id, old, new in zip(snap.jobs.job_id.tolist(), a, b, strict=True):  # type: ignore[arg-type]
        if _canonical(old) != _canonical(new):
            yield Difference(
                what=f"job {job_id}", field=name, recorded=_shown(old), now=_shown(new)
            )


def _form(column: JsonObject) -> str:
    values = column["values"]
    rows = len(values) if isinstance(values, list) else 0
    return f"{rows} values of type {column['dtype']}"


def _keys(name: str, then: JsonObject, now: JsonObject) -> Iterator[Difference]:
    for key in sorted(then.keys() | now.keys(), key=lambda k: (len(k), k)):
        old, new = ("" if key not in side else _shown(side[key]) for side in (then, now))
        if old != new:
            yield Difference(what=f"job {key}", field=name, recorded=old, now=new)
