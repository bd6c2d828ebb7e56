"""Recorded snapshots decided upon once more: what comes out, beside what was planned then.

Each snapshot is decided by itself. Another policy is asked what it would do in the situations that
the recorded one led to; where its own decisions would have led is for the simulator to say.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from slurm_dl.config.parameters import POLICY
from slurm_dl.engine.decide import decide
from slurm_dl.json_types import Json, JsonObject
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.handover import Run
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobState
from slurm_dl.model.plan import Plan
from slurm_dl.policies.base import Policy
from slurm_dl.recording.cycles_file import RecordedCycle, RecordingError, Setup
from slurm_dl.recording.plan_diff import (
    Contrast,
    Difference,
    count_actions,
    differences,
    plan_bytes,
    preempted,
)
from slurm_dl.text import counted, duration, safe
from slurm_dl.yaml_places import parse

MOST_PER_CYCLE = 5
"""Differences of one cycle that are told; the first ones say where it began."""

HEADER = f"{'TIME (UTC)':<19}  {'JOBS':>6} {'RUNNING':>7} {'WAITING':>7}  ACTIONS"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPolicy:
    """The policy to decide with: what was recorded, but for what the user says.

    Attributes:
        policy: Name of another policy; None: the recorded one.
        values: Parameters given by hand; the others are as recorded, or the policy's own defaults
            if it is another policy.
    """

    policy: str | None
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
    """One recorded cycle, decided upon once more.

    Attributes:
        plan: What is planned now.
        policy: By whom.
        then: What was planned then; None if nobody knows and nobody asked.
    """

    recorded: RecordedCycle
    plan: Plan
    policy: Policy
    then: Plan | None

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

    def contrast(self) -> Contrast | None:
        """The plans side by side; None if there is only one."""
        return Contrast.of(self.then, self.plan) if self.then is not None else None

    def counts(self) -> tuple[int, int, int]:
        """Jobs in the snapshot, of which running, of which pending."""
        state = self.recorded.snapshot.jobs.state
        running = np.isin(state, (JobState.RUNNING, JobState.SUSPENDED, JobState.CONFIGURING))
        return len(state), int(running.sum()), int((state == JobState.PENDING).sum())


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
    policy: Policy | None = None
    before: Policy | None = None
    for recorded in cycles:
        if policy is None or before is None or recorded.setup is not setup:
            setup = recorded.setup
            policy, before = choice.make(setup), setup.make()
        then = recorded.plan
        if then is None and choice.is_other:
            # What was planned follows from the snapshot and from what was in force.
            then = decide(recorded.snapshot, before, setup.settings)
        if then is None and compared:
            msg = f"{path}:{recorded.line}: no plan was recorded, there is nothing to compare with"
            raise RecordingError(msg)
        plan = decide(recorded.snapshot, policy, setup.settings)
        yield Replayed(recorded=recorded, plan=plan, policy=policy, then=then)


@dataclass(slots=True)
class ReplaySummary:
    """All cycles together.

    Attributes:
        cycles: How many there were.
        different: In how many the plans differ.
        first_s, last_s: Instants of the first and the last, epoch seconds.
        policies: Names of the policies, in their order.
        actions: Actions planned, by kind.
        preempted: Runs that hand-overs would be begun for; each once, however often it is planned.
        preempted_then: The same by the other plans.
        gained, lost: Jobs in the target of one side only, summed over the cycles.
        moved: Ranks that differ, summed over the cycles.
    """

    cycles: int = 0
    different: int = 0
    first_s: float = 0.0
    last_s: float = 0.0
    policies: dict[str, None] = field(default_factory=dict)
    actions: Counter[str] = field(default_factory=Counter)
    preempted: set[Run] = field(default_factory=set)
    preempted_then: set[Run] = field(default_factory=set)
    gained: int = 0
    lost: int = 0
    moved: int = 0

    def add(self, cycle: Replayed) -> None:
        """Take one more cycle in."""
        now_s = cycle.recorded.snapshot.now_s
        self.first_s = now_s if not self.cycles else self.first_s
        self.last_s = now_s
        self.cycles += 1
        self.different += not cycle.is_equal
        self.policies.setdefault(cycle.policy.name)
        self.actions += count_actions(cycle.plan)
        self.preempted |= preempted(cycle.plan)
        contrast = cycle.contrast()
        if contrast is not None:
            self.preempted_then |= contrast.preempted_then
            self.gained += len(contrast.gains)
            self.lost += len(contrast.loses)
            self.moved += contrast.moved

    def lines(self, choice: ReplayPolicy, *, compared: bool) -> Iterator[str]:
        """In words."""
        span = duration(self.last_s - self.first_s)
        yield f"{self.cycles} cycles over {span} with {', '.join(self.policies)}"
        preempted = counted(len(self.preempted), "run")
        yield f"planned: {_counted(self.actions)}; {preempted} to be preempted"
        if choice.is_other:
            yield (
                f"against the recorded policy: {self.gained} times a job is in the target that was "
                f"not, {self.lost} times the other way round; {self.moved} ranks differ; "
                f"{counted(len(self.preempted_then), 'run')} to be preempted by the recorded policy"
            )
        if compared or choice.is_other:
            yield (
                f"{self.different} of {self.cycles} plans differ"
                if self.different
                else "all plans are equal to the byte"
            )

    def as_object(self) -> JsonObject:
        """For ``--json``."""
        return {
            "cycles": self.cycles,
            "different": self.different,
            "first_s": self.first_s,
            "last_s": self.last_s,
            "policies": list(self.policies),
            "actions": dict(sorted(self.actions.items())),
            "preempted_runs": len(self.preempted),
            "preempted_runs_then": len(self.preempted_then),
            "target_gained": self.gained,
            "target_lost": self.lost,
            "ranks_moved": self.moved,
        }


def line_of(cycle: Replayed, choice: ReplayPolicy) -> str:
    """One cycle in one line."""
    jobs, running, waiting = cycle.counts()
    when = _instant(cycle.recorded.snapshot.now_s)
    line = f"{when}  {jobs:>6} {running:>7} {waiting:>7}  {_counted(count_actions(cycle.plan))}"
    contrast = cycle.contrast() if choice.is_other else None
    if contrast is None:
        return line
    return (
        f"{line}; target +{len(contrast.gains)} -{len(contrast.loses)}, "
        f"{contrast.moved} ranks moved (by {contrast.farthest} at most), "
        f"preempts {len(contrast.preempted)} (then {len(contrast.preempted_then)})"
    )


def as_object(cycle: Replayed) -> JsonObject:
    """One cycle for ``--json``."""
    jobs, running, waiting = cycle.counts()
    content: JsonObject = {
        "line": cycle.recorded.line,
        "now_s": cycle.recorded.snapshot.now_s,
        "jobs": jobs,
        "running": running,
        "waiting": waiting,
        "actions": dict(sorted(count_actions(cycle.plan).items())),
        "differences": [d._asdict() for d in cycle.differences()],
    }
    contrast = cycle.contrast()
    if contrast is not None:
        content |= {
            "equal": cycle.is_equal,
            "target_gained": _ids(contrast.gains),
            "target_lost": _ids(contrast.loses),
            "ranks_moved": contrast.moved,
            "farthest_move": contrast.farthest,
            "preempted": _ids(run.job_id for run in contrast.preempted),
            "preempted_then": _ids(run.job_id for run in contrast.preempted_then),
        }
    return content


def _instant(now_s: float) -> str:
    try:
        return f"{datetime.fromtimestamp(now_s, UTC):%Y-%m-%d %H:%M:%S}"
    except (OverflowError, ValueError, OSError):
        return f"{now_s:<19.13g}"  # No calendar reaches so far; a simulated clock may.


def _counted(actions: Counter[str]) -> str:
    return ", ".join(f"{kind} {n}" for kind, n in sorted(actions.items())) or "nothing"


def _ids(jobs: Iterable[JobId]) -> list[Json]:
    return list(sorted(jobs))  # noqa: C413 - of the type that JSON has
