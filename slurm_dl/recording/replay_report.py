"""Recorded snapshots decided upon once more: what comes out, beside what was planned then.

Each snapshot is decided by itself. Another policy is asked what it would do in the situations that
the recorded one led to; where its own decisions would have led is for the simulator to say.

`differences` and `plan_bytes` go through the same plain form, field by field as `Plan` has them,
so there are differences exactly if the bytes differ.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from slurm_dl.config.parameters import POLICY
from slurm_dl.engine.decide import decide
from slurm_dl.json_types import Json, JsonObject, as_list, number
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.handover import Run
from slurm_dl.model.jobs import JobState
from slurm_dl.model.plan import OpenHandover, Plan
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.base import Policy
from slurm_dl.recording.cycles_file import RecordedCycle, RecordingError, Setup
from slurm_dl.recording.snapshot_file import to_plain
from slurm_dl.text import counted, duration, safe
from slurm_dl.yaml_places import parse

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
        recorded, now: Its values; empty where there is none.
    """

    what: str  # The job or the action it is about; empty for the plan as a whole
    field: str  # The field of the plan, or of the action
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


MOST_PER_CYCLE = 5  # Differences of one cycle that are told; the first ones say where it began

HEADER = f"{'TIME (UTC)':<19}  {'JOBS':>6} {'RUNNING':>7} {'WAITING':>7}  ACTIONS"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPolicy:
    """The policy to decide with: what was recorded, but for what the user says.

    Attributes:
        values: Parameters given by hand; the others are as recorded, or the policy's own defaults
            if it is another policy.
    """

    policy: str | None  # Name of another policy; None: the recorded one
    values: Mapping[str, object]

    @classmethod
    def of(cls, policy: str | None, options: Sequence[str]) -> ReplayPolicy:
        """The choice that ``--policy`` and the ``-p KEY=VALUE`` stand for; values are YAML.

        Raises:
            ConfigError: An option is malformed, or there is no such policy.
        """
        if policy is not None:
            try:
                POLICY.check(policy)
            except ValueError as err:
                msg = f"--policy: {err}"
                raise ConfigError(msg) from None
        values: dict[str, object] = {}
        for option in options:
            key, equals, text = option.partition("=")
            if not equals or not key:
                msg = f"-p {safe(option, 80)}: must be KEY=VALUE, such as promote_knob=2"
                raise ConfigError(msg)
            document = parse(text, f"-p {safe(option, 80)}", flag=1)
            if document.problems:
                raise ConfigError("\n".join(map(str, document.problems)))
            values[key] = document.value
        return cls(policy=policy, values=values)

    @property
    def is_other(self) -> bool:
        """Whether it may differ from what was recorded."""
        return self.policy is not None or bool(self.values)

    def make(self, setup: Setup) -> Policy:
        """The policy for cycles recorded under *setup*.

        Raises:
            ConfigError: The policy does not take the parameters.
        """
        name = self.policy or setup.policy
        if not self.is_other:
            return setup.make()
        given = dict(self.values)
        if name == setup.policy:
            recorded = setup.make()
            names = [f.name for f in dataclasses.fields(recorded)]  # type: ignore[arg-type] # see Setup.of
            given = {n: getattr(recorded, n) for n in names} | given
        whole, mistakes = POLICY.complete(name, given)
        if mistakes:
            lines = [f"-p {'.'.join(map(str, m.loc)) or name}: {m.text}" for m in mistakes]
            raise ConfigError("\n".join(lines))
        return POLICY.make(name, whole)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Replayed:
    """One recorded cycle, decided upon once more."""

    recorded: RecordedCycle
    plan: Plan  # The plan of now
    policy: Policy  # The policy that made it
    then: Plan | None  # The recorded plan; None if it is not known and not needed

    @property
    def is_equal(self) -> bool:
        """Whether both plans are the same to the byte; True if there is no other."""
        return self.then is None or plan_bytes(self.then) == plan_bytes(self.plan)

    def differences(self) -> list[Difference]:
        """The first things in which the plans differ; empty if they are equal."""
        if self.then is None or self.is_equal:
            return []
        found = differences(self.then, self.plan, self.recorded.snapshot)
        return list(itertools.islice(found, MOST_PER_CYCLE))

    def as_object(self) -> JsonObject:
        """For ``--json``."""
        state = self.recorded.snapshot.jobs.state
        running = np.isin(state, (JobState.RUNNING, JobState.SUSPENDED, JobState.CONFIGURING))
        content: JsonObject = {
            "line": self.recorded.line,
            "now_s": self.recorded.snapshot.now_s,
            "jobs": len(state),
            "running": int(running.sum()),
            "waiting": int((state == JobState.PENDING).sum()),
            "actions": dict(sorted(count_actions(self.plan).items())),
            "differences": [d._asdict() for d in self.differences()],
        }
        if self.then is None:
            return content
        moves = np.abs(self.plan.rank.astype(np.int64) - self.then.rank)
        content |= {
            "equal": self.is_equal,
            "target_gained": [*sorted(self.plan.target - self.then.target)],
            "target_lost": [*sorted(self.then.target - self.plan.target)],
            "ranks_moved": int((moves > 0).sum()),
            "farthest_move": int(moves.max(initial=0)),
            "preempted": [*sorted(run.job_id for run in preempted(self.plan))],
            "preempted_then": [*sorted(run.job_id for run in preempted(self.then))],
        }
        return content


def replayed(
    cycles: Iterable[RecordedCycle], choice: ReplayPolicy, *, path: Path, compared: bool
) -> Iterator[Replayed]:
    """Every cycle, decided upon once more.

    Args:
        path: The recording, for messages.
        compared: The recorded plans are needed.

    Raises:
        ConfigError: The policy or its parameters cannot be used, or the recording holds no plan
            to compare with.
    """
    setup: Setup | None = None
    for recorded in cycles:
        if recorded.setup is not setup:
            setup = recorded.setup
            policy, before = choice.make(setup), setup.make()
        then = recorded.plan
        if then is None and choice.is_other:
            # The recorded plan follows from the snapshot and from what was in force.
            then = decide(recorded.snapshot, before, setup.settings)
        if then is None and compared:
            msg = f"{path}:{recorded.line}: no plan was recorded, there is nothing to compare with"
            raise RecordingError(msg)
        plan = decide(recorded.snapshot, policy, setup.settings)
        yield Replayed(recorded=recorded, plan=plan, policy=policy, then=then)


class ReplaySummary:
    """All cycles together.

    Attributes:
        cycles: How many there were.
        different: In how many the plans differ.
    """

    def __init__(self) -> None:
        self.cycles = self.different = 0
        self._instants_s: list[float] = []
        self._policies: dict[str, None] = {}
        self._actions: Counter[str] = Counter()
        self._sums: Counter[str] = Counter()
        # Each run once, however often its preemption is planned.
        self._preempted: tuple[set[Run], set[Run]] = (set(), set())

    def add(self, cycle: Replayed) -> JsonObject:
        """Take one more cycle in; returns it as plain values."""
        row = cycle.as_object()
        self.cycles += 1
        self.different += not row.get("equal", True)
        now_s = cycle.recorded.snapshot.now_s
        self._instants_s = [*self._instants_s[:1], now_s]
        self._policies.setdefault(cycle.policy.name)
        self._actions += count_actions(cycle.plan)
        for runs, plan in zip(self._preempted, (cycle.plan, cycle.then), strict=True):
            runs.update(preempted(plan) if plan is not None else ())
        for name in ("target_gained", "target_lost"):
            self._sums[name] += len(as_list(row.get(name)))
        self._sums["ranks_moved"] += int(number(row.get("ranks_moved")))
        return row

    def as_object(self) -> JsonObject:
        """For ``--json``."""
        now, then = map(len, self._preempted)
        return {
            "cycles": self.cycles,
            "different": self.different,
            "first_s": self._instants_s[0] if self.cycles else 0.0,
            "last_s": self._instants_s[-1] if self.cycles else 0.0,
            "policies": list(self._policies),
            "actions": dict(sorted(self._actions.items())),
            "preempted_runs": now,
            "preempted_runs_then": then,
            **self._sums,
        }

    def lines(self, choice: ReplayPolicy, *, compared: bool) -> Iterator[str]:
        """In words."""
        now, then = (counted(len(runs), "run") for runs in self._preempted)
        span = duration(self._instants_s[-1] - self._instants_s[0])
        yield f"{self.cycles} cycles over {span} with {', '.join(self._policies)}"
        yield f"planned: {_counted(self._actions)}; {now} to be preempted"
        if choice.is_other:
            yield (
                f"against the recorded policy: {self._sums['target_gained']} times a job is in the "
                f"target that was not, {self._sums['target_lost']} times the other way round; "
                f"{self._sums['ranks_moved']} ranks differ; {then} to be preempted by the recorded "
                "policy"
            )
        if compared or choice.is_other:
            differ = f"{self.different} of {self.cycles} plans differ"
            yield differ if self.different else "all plans are equal to the byte"


def line_of(row: JsonObject, choice: ReplayPolicy) -> str:
    """One cycle, as `Replayed.as_object` has it, in one line."""
    actions = row["actions"]
    assert isinstance(actions, dict)  # noqa: S101 - narrows the type
    line = (
        f"{_instant(number(row['now_s']))}  {row['jobs']:>6} {row['running']:>7} "
        f"{row['waiting']:>7}  {_counted(actions)}"
    )
    if not choice.is_other or "equal" not in row:
        return line
    names = ("target_gained", "target_lost", "preempted", "preempted_then")
    gained, lost, stopped, stopped_then = (len(as_list(row[name])) for name in names)
    return (
        f"{line}; target +{gained} -{lost}, {row['ranks_moved']} ranks moved "
        f"(by {row['farthest_move']} at most), preempts {stopped} (then {stopped_then})"
    )


def _instant(now_s: float) -> str:
    try:
        return f"{datetime.fromtimestamp(now_s, UTC):%Y-%m-%d %H:%M:%S}"
    except (OverflowError, ValueError, OSError):
        return f"{now_s:<19.13g}"  # No calendar reaches so far; a simulated clock may.


def _counted(actions: Mapping[str, object]) -> str:
    return ", ".join(f"{kind} {n}" for kind, n in sorted(actions.items())) or "nothing"
