"""Two plans of one snapshot beside each other: the same to the byte, or how they differ.

`differences` and `plan_bytes` go through the same plain form, field by field as `Plan` has them,
so there are differences exactly if the bytes differ.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from slurm_dl.json_types import Json
from slurm_dl.model.handover import Run
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


class Difference(NamedTuple):
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
    then, new = _values(recorded, snap), _values(now, snap)
    for place in then | new:
        a, b = then.get(place, ""), new.get(place, "")
        if a != b:
            yield Difference(*place, _cut(a), _cut(b))


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


def _canonical(value: Json) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _values(plan: Plan, snap: Snapshot) -> dict[tuple[str, str], str]:
    """The JSON of each value in *plan*, by the job or the action it is about and its field."""
    plain, jobs = to_plain(plan, Plan), snap.jobs.job_id.tolist()
    found: dict[tuple[str, str], Any] = {}
    for at, action in enumerate(plain.pop("actions"), 1):
        inside = action.get("run") or action.get("steer") or action
        of_job = f" of job {inside['job_id']}" if "job_id" in inside else ""
        what = f"action {at} ({action['is']}{of_job})"
        found |= {(what, name): value for name, value in action.items()}
    for name, value in plain.items():
        whole: Any = None
        match value:
            case {"values": list(rows), **form} if len(rows) == len(jobs):
                by_job, whole = dict(zip(jobs, rows, strict=True)), form
            case list() if isinstance(getattr(plan, name), frozenset):
                by_job = dict.fromkeys(value, "in it")
            case dict():
                by_job = value
            case _:
                by_job, whole = {}, value
        found |= {(f"job {job}", name): row for job, row in by_job.items()}
        found["", name] = whole
    return {place: _canonical(value) for place, value in found.items()}
