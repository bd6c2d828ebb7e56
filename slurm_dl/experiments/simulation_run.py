"""One simulation as data: what to run, made ready, and what came of it.

Every command that simulates goes through here, so that a name means the same in all of them.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import numpy as np

from slurm_dl.config.parameters import POLICY
from slurm_dl.engine.settings import Preemption, Settings
from slurm_dl.experiments.oracle import Oracle
from slurm_dl.experiments.placement_choice import Named, Placing
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.jobs import F64
from slurm_dl.model.profile import Profile
from slurm_dl.model.trace import Trace
from slurm_dl.policies.base import Policy
from slurm_dl.simulation.cluster_shape import ClusterShape
from slurm_dl.simulation.ideal import presets
from slurm_dl.simulation.ideal.decision_times import DecisionTimes
from slurm_dl.simulation.ideal.simulator import simulate
from slurm_dl.simulation.ideal.start_costs import Costs
from slurm_dl.simulation.node_journal import NodeJournal
from slurm_dl.simulation.outcome import Outcome
from slurm_dl.simulation.slurm.job_behaviour import JobBehaviour, NodeFailures
from slurm_dl.simulation.slurm.overheads import SlurmCosts
from slurm_dl.simulation.slurm.scenario import Scenario, simulate_plain, simulate_slurm
from slurm_dl.text import shown

SIZES_FROM_TRACE = "sizes: those of all jobs of the trace, which no real cluster knows beforehand"
"""Told where a preset gives them to the policy."""

SLURM_ALONE = "slurm"
"""The name of no policy at all: Slurm's own first in, first out with backfill."""

NOTHING_MORE = Oracle()
"""How long jobs run is known exactly, GPUs are all alike, and nothing is due."""

CHECKPOINT_EVERY_S = 3600.0
"""On the simulated Slurm jobs save when they are asked to, and every hour by themselves."""

Progress = Callable[[int], None]


class ClusterKind(Protocol):
    """A kind of simulated cluster, with what it costs to use it."""

    @property
    def name(self) -> str:
        """The cost model as reports name it."""

    @property
    def place(self) -> str:
        """Who puts jobs on nodes, as reports name it; empty if that is not simulated."""

    def check(self, chosen: Chosen, /) -> None:
        """Raise if the policy that was chosen cannot run here.

        Raises:
            ConfigError: It cannot; says why.
        """

    def run(
        self, trace: Trace, shape: ClusterShape, chosen: Chosen, seed: int, progress: Progress, /
    ) -> Outcome:
        """Run *trace* under the policy that was chosen.

        Raises:
            ConfigError: It cannot run here.
            SimulationError: The policy stops time.
        """


@dataclass(frozen=True, slots=True)
class Ideal:
    """The papers' cluster with a cost model, its jobs on nodes if *placing* says where.

    Attributes:
        notes_nodes: Which nodes each run held is in the records, where there are nodes.
    """

    costs: Costs
    clockwork: DecisionTimes
    placing: Placing | None = None
    foresight: Oracle = NOTHING_MORE
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    notes_nodes: bool = False

    @property
    def name(self) -> str:
        """See `ClusterKind`."""
        return self.costs.name

    @property
    def place(self) -> str:
        """See `ClusterKind`."""
        return "" if self.placing is None else self.placing.label

    def check(self, chosen: Chosen, /) -> None:
        """See `ClusterKind`."""
        self._policy(chosen)

    @staticmethod
    def _policy(chosen: Chosen) -> Policy:
        if chosen.made is None:
            msg = f"policy {SLURM_ALONE!r} is Slurm without dlschedd: it needs --costs slurm"
            raise ConfigError(msg)
        if chosen.min_quantum_s is not None:
            msg = "--min-quantum: it is dlschedd that leaves runs alone: it needs --costs slurm"
            raise ConfigError(msg)
        return chosen.made

    def run(
        self, trace: Trace, shape: ClusterShape, chosen: Chosen, seed: int, progress: Progress, /
    ) -> Outcome:
        """See `ClusterKind`."""
        policy = self._policy(chosen)
        where = None
        known = self.foresight.of(trace, shape, self.profiles, seed)
        if self.placing is not None:
            if known.rates is not None:
                msg = "--gpu-speed: GPUs of types are counted, not placed; leave out --place"
                raise ConfigError(msg)
            journal = NodeJournal() if self.notes_nodes else None
            where = self.placing.begin(trace, shape, skips=policy.skips, journal=journal)
        return simulate(
            trace,
            shape,
            policy,
            costs=self.costs,
            clockwork=self.clockwork,
            whereabouts=where,
            known=known,
            seed=seed,
            progress=progress,
        )


@dataclass(frozen=True, slots=True)
class UnderSlurm:
    """A Slurm that takes its time, with dlschedd's own loop beside it, or without.

    Attributes:
        notes_nodes: Which nodes each run held is in the records.
    """

    costs: SlurmCosts
    name: str
    failures: NodeFailures | None = None
    foresight: Oracle = NOTHING_MORE
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    notes_nodes: bool = False
    place: ClassVar[str] = ""

    def check(self, _: Chosen, /) -> None:
        """See `ClusterKind`; every policy can, whether or not it was shown to on a real Slurm."""

    def run(  # its progress is not told
        self, trace: Trace, shape: ClusterShape, chosen: Chosen, seed: int, _: Progress, /
    ) -> Outcome:
        """See `ClusterKind`."""
        known = self.foresight.of(trace, shape, self.profiles, seed)
        if known.rates is not None:
            msg = "--gpu-speed: on the simulated Slurm all GPUs are as fast; use other costs"
            raise ConfigError(msg)
        scenario = Scenario(
            trace=trace,
            shape=shape,
            costs=self.costs,
            habits=JobBehaviour(checkpoint_every_s=CHECKPOINT_EVERY_S),
            seed=seed,
            failures=self.failures,
            known=known,
            journal=NodeJournal() if self.notes_nodes else None,
        )
        if chosen.made is None:
            return simulate_plain(scenario)
        limits = Preemption()
        if chosen.min_quantum_s is not None:
            limits = dataclasses.replace(limits, min_quantum_s=chosen.min_quantum_s)
        settings = Settings(partitions=frozenset({"gpu"}), preemption=limits)
        return simulate_slurm(scenario, policy=chosen.made, settings=settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySpec:
    """A policy as somebody asked for it.

    Attributes:
        policy: Its name in the registry.
        preset: A name in `presets.PRESETS`; None: ``none``.
        parameters: What was set of it.
        place: The scheme that puts its jobs on nodes; None: GPUs are only counted.
        min_quantum_s: A run is left alone for this long, seconds; None: the daemon's default.
        name: As reports call it; empty: made of the others.
    """

    policy: str
    preset: str | None = None
    parameters: Mapping[str, object] = field(default_factory=dict)
    place: Named | None = None
    min_quantum_s: float | None = None
    name: str = ""

    @property
    def short_label(self) -> str:
        """The policy, its preset, its least time of a run and its scheme, as asked for."""
        policy = self.policy if self.preset is None else f"{self.policy}:{self.preset}"
        quantum = "" if self.min_quantum_s is None else f" min-quantum {self.min_quantum_s:g}"
        place = "" if self.place is None else f" on {self.place}"
        return f"{self.name or policy}{quantum}{place}"

    @property
    def label(self) -> str:
        """A short name, unlike that of any other wish for the same comparison."""
        words = [self.short_label]
        words += [f"{name}={value}" for name, value in self.parameters.items()]
        return " ".join(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A wish with every default filled in.

    Attributes:
        policy: The name that was asked for.
        preset: The preset that was meant.
        made: The policy itself; None: Slurm's own order and backfill, without a daemon.
        notes: What was filled in that nobody would guess.
        min_quantum_s: See `PolicySpec`.
    """

    policy: str
    preset: str
    made: Policy | None
    notes: tuple[str, ...] = ()
    min_quantum_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Result:
    """One simulation and how it was made.

    Attributes:
        seed: Of all that was drawn.
        wall_s: Seconds the simulation took, reading the trace not counted.
        place: Scheme and rules as reports name them; empty if GPUs were only counted.
    """

    chosen: Chosen
    costs: str
    outcome: Outcome
    wall_s: float
    seed: int = 0
    place: str = ""


def choose(wish: PolicySpec, trace: Trace, *, on_slurm: bool = False) -> Chosen:
    """The policy that *wish* is for.

    Args:
        on_slurm: It is to run on a Slurm, where no preset can say when to decide.

    Raises:
        ConfigError: The policy, the preset or a parameter is unknown or wrong; says all of it.
    """
    if wish.policy == SLURM_ALONE:
        if wish.preset or wish.parameters or wish.min_quantum_s is not None:
            msg = f"policy {SLURM_ALONE!r} is Slurm without dlschedd: it has nothing to set"
            raise ConfigError(msg)
        return Chosen(policy=wish.policy, preset="none", made=None)
    reading = presets.reading_of(wish.policy, wish.preset)
    preset = wish.preset or "none"
    found = presets.find(preset)
    if on_slurm and found.is_of_its_own:
        msg = (
            f"preset {preset!r} says itself when to decide and what starting costs: not on a Slurm"
        )
        raise ConfigError(msg)
    given = {**reading.parameters, **wish.parameters}
    whole, mistakes = POLICY.complete(reading.policy, given)
    if mistakes:
        msg = "; ".join(
            f"-p {'.'.join(str(part) for part in m.loc) or wish.policy}: {m.text}" for m in mistakes
        )
        raise ConfigError(msg)
    notes: tuple[str, ...] = ()
    if found.knows_sizes and "sizes_gpu_s" not in wish.parameters:
        per_job = trace.duration_s * (1.0 if whole.get("dimensions") == 1 else trace.gpus)
        whole["sizes_gpu_s"] = tuple(_evenly(per_job).tolist())
        notes = (SIZES_FROM_TRACE,)
    try:
        made = POLICY.make(reading.policy, whole)
    except ValueError as err:
        msg = f"policy {wish.policy}: {err}"
        raise ConfigError(msg) from err
    return Chosen(
        policy=wish.policy,
        preset=preset,
        made=made,
        notes=notes,
        min_quantum_s=wish.min_quantum_s,
    )


def run(
    chosen: Chosen,
    trace: Trace,
    cluster: ClusterKind,
    shape: ClusterShape,
    *,
    seed: int = 0,
    progress: Progress = lambda _: None,
) -> Result:
    """Simulate, and take the time.

    Raises:
        SimulationError: The policy stops time.
    """
    began_s = time.perf_counter()
    outcome = cluster.run(trace, shape, chosen, seed, progress)
    wall_s = time.perf_counter() - began_s
    return Result(
        chosen=chosen,
        costs=cluster.name,
        outcome=outcome,
        wall_s=wall_s,
        seed=seed,
        place=cluster.place,
    )


def parameters(policy: Policy | None) -> dict[str, object]:
    """What *policy* was made of, short enough to print."""
    if policy is None:
        return {}
    values = {f.name: getattr(policy, f.name) for f in dataclasses.fields(policy)}  # type: ignore[arg-type]
    return {
        name: f"{len(value)} values" if isinstance(value, tuple) and len(value) > _MOST else value
        for name, value in values.items()
    }


def parse_parameters(words: tuple[str, ...], read: Callable[[str], object]) -> dict[str, object]:
    """Parameters from ``key=value`` words.

    Args:
        read: A value from its text.

    Raises:
        ConfigError: A word has no ``=``, or a key comes twice.
    """
    parsed: dict[str, object] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key.strip():
            msg = f"-p {shown(word)}: must be key=value, for example -p promote_knob=8"
            raise ConfigError(msg)
        if key.strip() in parsed:
            msg = f"-p {key.strip()}: is given twice"
            raise ConfigError(msg)
        parsed[key.strip()] = read(text)
    return parsed


def _evenly(sizes: F64) -> F64:
    """*sizes*, or as many as suffice for a distribution, evenly spread over its quantiles."""
    if len(sizes) <= _MOST_SIZES:
        return sizes
    at = (np.arange(_MOST_SIZES) + 0.5) / _MOST_SIZES
    chosen: F64 = np.quantile(sizes, at, method="inverted_cdf")
    return chosen


_MOST = 8
_MOST_SIZES = 1000
