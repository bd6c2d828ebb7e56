"""One simulation as data: what to run, made ready, and what came of it.

Every command that simulates goes through here, so that a name means the same in all of them.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from slurm_dl.config.parameters import POLICY
from slurm_dl.engine.settings import AS_SUBMITTED, Placement, Preemption, Resizing, Settings
from slurm_dl.experiments.option_words import made
from slurm_dl.experiments.placement_choice import PLAIN, Named, PlacementSetup
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.jobs import F64
from slurm_dl.model.trace import Trace
from slurm_dl.policies import policy_file
from slurm_dl.policies.base import Policy
from slurm_dl.simulation.cluster_shape import ClusterShape
from slurm_dl.simulation.ideal import presets
from slurm_dl.simulation.ideal.decision_times import AT_EVENTS, DecisionTimes
from slurm_dl.simulation.ideal.gavel_rounds import GavelRounds
from slurm_dl.simulation.ideal.jobs_on_nodes import OnNodes
from slurm_dl.simulation.ideal.measured_jobs import OnMeasured
from slurm_dl.simulation.ideal.placement_model import PlacementModel
from slurm_dl.simulation.ideal.shared_gpus import SharedGpus
from slurm_dl.simulation.ideal.simulator import IdealCluster, simulate
from slurm_dl.simulation.ideal.start_costs import Costs
from slurm_dl.simulation.job_knowledge import JobSizes, TraceKnowledge
from slurm_dl.simulation.outcome import NodeJournal, Outcome
from slurm_dl.simulation.slurm.job_columns import JobBehaviour, NodeFailures
from slurm_dl.simulation.slurm.overheads import SlurmCosts
from slurm_dl.simulation.slurm.scenario import Scenario, simulate_plain, simulate_slurm
from slurm_dl.text import shown

SIZES_FROM_TRACE = "sizes: those of all jobs of the trace, which no real cluster knows beforehand"
"""Told where a preset gives them to the policy."""

SLURM_ALONE = "slurm"  # The name of no policy at all: Slurm's own first in, first out with backfill

CHECKPOINT_EVERY_S = 3600.0
"""On the simulated Slurm jobs save when they are asked to, and every hour by themselves."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cluster:
    """A simulated cluster: that of the papers, or a Slurm with dlschedd beside it or alone."""

    costs: Costs | SlurmCosts  # Of starting on the papers' cluster, or every cost of a Slurm
    name: str  # The cost model as reports name it
    clockwork: DecisionTimes = AT_EVENTS  # When the papers' cluster decides
    placement: Placement = field(default_factory=Placement)  # Without a scheme GPUs are counted
    place: str = ""  # Scheme and rules as reports name them; empty if there is no scheme
    ground: PlacementSetup = PLAIN  # What goes with them, and what is known of the jobs
    rates: F64 | None = None  # ``(n, t)`` speed of each job on each GPU type; None: all are alike
    resizing: Resizing = AS_SUBMITTED  # Which sizes elastic jobs get
    steps_per_s: F64 | None = None  # ``(n,)`` at rate 1, in `gavel_rounds`; None: not counted
    measured: bool = False  # The papers' cluster is that of `measured_jobs`
    failures: NodeFailures | None = None  # When nodes of a Slurm break; None: never
    notes_nodes: bool = False  # Records have the nodes of each run, where there are nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySpec:
    """A policy as somebody asked for it."""

    policy: str  # A name in the registry, `SLURM_ALONE`, or ``FILE.py:CLASS``
    preset: str | None = None  # A name in `presets.PRESETS`; None: ``none``
    parameters: Mapping[str, object] = field(default_factory=dict)  # What was set of it
    place: Named | None = None  # Scheme that puts its jobs on nodes; None: GPUs are only counted
    min_quantum_s: float | None = None  # A run is left alone so long; None: the daemon's default
    name: str = ""  # As reports call it; empty: made of the others

    @property
    def short_label(self) -> str:
        """The policy, its preset, its least time of a run and its scheme, as asked for."""
        policy = policy_file.short(self.policy)
        policy = policy if self.preset is None else f"{policy}:{self.preset}"
        quantum = "" if self.min_quantum_s is None else f" min-quantum {self.min_quantum_s:g}"
        place = "" if self.place is None else f" on {self.place}"
        return f"{self.name or policy}{quantum}{place}"

    @property
    def label(self) -> str:
        """A short name, unlike that of any other wish for the same comparison."""
        given = (f"{name}={value}" for name, value in self.parameters.items())
        return " ".join((self.short_label, *given))


@dataclass(frozen=True, slots=True)
class Chosen:
    """A wish with every default filled in."""

    wish: PolicySpec
    made: Policy | None  # The policy itself; None: Slurm's own order and backfill, without a daemon
    notes: tuple[str, ...] = ()  # What was filled in that nobody would guess

    @property
    def preset(self) -> str:
        """The preset that was meant."""
        return self.wish.preset or "none"


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """One simulation and how it was made."""

    chosen: Chosen
    costs: str
    place: str  # Scheme and rules as reports name them; empty if GPUs were only counted
    outcome: Outcome
    seed: int  # Of all that was drawn
    wall_s: float  # Seconds the simulation took, reading the trace not counted


def choose(wish: PolicySpec, trace: Trace, *, on_slurm: bool = False) -> Chosen:
    """The policy that *wish* is for.

    Args:
        on_slurm: It is to run on a Slurm, where no preset can say when to decide.

    Raises:
        ConfigError: The policy, the preset or a parameter is unknown or wrong, or cannot be there.
    """
    if wish.policy == SLURM_ALONE:
        is_set = bool(wish.preset or wish.parameters or wish.min_quantum_s is not None)
        if is_set or not on_slurm:
            why = "has nothing to set" if is_set else "needs --costs slurm"
            msg = f"policy {SLURM_ALONE!r} is Slurm without dlschedd: it {why}"
            raise ConfigError(msg)
        return Chosen(wish, None)
    reading = presets.reading_of(wish.policy, wish.preset)
    found = presets.find(wish.preset or "none")
    if on_slurm and found.is_of_its_own:
        what = "says itself when to decide and what starting costs"
        msg = f"preset {wish.preset!r} {what}: not on a Slurm"
        raise ConfigError(msg)
    if not on_slurm and wish.min_quantum_s is not None:
        msg = "--min-quantum: it is dlschedd that leaves runs alone: it needs --costs slurm"
        raise ConfigError(msg)
    given = {**reading.parameters, **wish.parameters}
    notes: tuple[str, ...] = ()
    if found.knows_sizes and "sizes_gpu_s" not in given:
        per_job = trace.duration_s * (1.0 if given.get("dimensions") == 1 else trace.gpus)
        given["sizes_gpu_s"] = _evenly(per_job).tolist()
        notes = (SIZES_FROM_TRACE,)
    return Chosen(wish, made(POLICY, "-p", reading.policy, given), notes)


def run(
    chosen: Chosen,
    trace: Trace,
    cluster: Cluster,
    shape: ClusterShape,
    *,
    seed: int = 0,
    progress: Callable[[int], None] = lambda _: None,
) -> Result:
    """Simulate, and take the time.

    Args:
        progress: Told how many jobs are done, but for those on a Slurm.

    Raises:
        ConfigError: What is known of the jobs, or a job, does not go with the cluster.
        SimulationError: The policy stops time.
    """
    began_s = time.perf_counter()
    known = cluster.ground.foresight.of(trace, cluster.rates, seed, cluster.steps_per_s, shape)
    chosen = dataclasses.replace(
        chosen, notes=(*chosen.notes, *_knowledge_notes(cluster, known, shape, chosen.made))
    )
    journal = NodeJournal() if cluster.notes_nodes else None
    if isinstance(cluster.costs, SlurmCosts):
        if known.rates is not None:
            msg = "--gpu-speed: on the simulated Slurm all GPUs are as fast; use other costs"
            raise ConfigError(msg)
        scenario = Scenario(
            trace=trace, shape=shape, costs=cluster.costs, seed=seed, failures=cluster.failures,
            habits=JobBehaviour(checkpoint_every_s=CHECKPOINT_EVERY_S),
            known=known, journal=journal,
        )  # fmt: skip
        outcome = _on_slurm(scenario, chosen, cluster.resizing)
    else:
        assert chosen.made is not None  # noqa: S101 - `choose` makes one where there is no Slurm
        where: PlacementModel | None = None
        if cluster.measured:
            adapts = chosen.wish.policy in presets.find(chosen.preset).adapts
            where = OnMeasured(trace, shape, adapts=adapts)
            known = dataclasses.replace(known, sizes=where.sizes)
        elif cluster.placement.scheme is not None:
            if known.rates is not None:
                msg = "speeds of GPU types: these GPUs are counted, not placed; leave out --place"
                raise ConfigError(msg)
            where = OnNodes(
                trace, shape, cluster.placement, skips=chosen.made.skips, journal=journal,
                widths=cluster.ground.widths, contention=cluster.ground.contention,
            )  # fmt: skip
        outcome = simulate(
            trace, shape, chosen.made, costs=cluster.costs, clockwork=cluster.clockwork,
            whereabouts=where, known=known, seed=seed, progress=progress,
            kind=_kind_of(cluster, known),
            resizing=cluster.resizing,
        )  # fmt: skip
    wall_s = time.perf_counter() - began_s
    return Result(chosen, cluster.name, cluster.place, outcome, seed, wall_s)


def _knowledge_notes(
    cluster: Cluster, known: TraceKnowledge, shape: ClusterShape, policy: Policy | None
) -> Iterator[str]:
    """For people, which jobs can change size, and which may share.

    Raises:
        ConfigError: They cannot on such a cluster.
    """
    foresight = cluster.ground.foresight
    if known.sizes is not None and (
        len(shape.gpu_types) > 1 or cluster.placement.scheme is not None
    ):
        msg = "--elastic: sizes are GPUs of one type; leave out --place and types of GPUs"
        raise ConfigError(msg)
    if cluster.measured and foresight.elastic:
        msg = "--elastic: the jobs have the sizes that were measured: leave it out"
        raise ConfigError(msg)
    if cluster.resizing.expand and known.sizes is None and not cluster.measured:
        msg = "--expand: no job can change size: give --elastic SHARE as well"
        raise ConfigError(msg)
    if known.sizes is not None:
        yield _of_sizes(known.sizes, cluster.resizing, policy)
    if foresight.pairs is not None:
        yield _of_pairs(cluster, known, shape)


def _kind_of(cluster: Cluster, known: TraceKnowledge) -> type[IdealCluster]:
    if cluster.steps_per_s is not None:
        return GavelRounds
    return IdealCluster if known.pair_rates is None else SharedGpus


def _of_pairs(cluster: Cluster, known: TraceKnowledge, shape: ClusterShape) -> str:
    counted = cluster.placement.scheme is None and not cluster.measured
    is_slurm = isinstance(cluster.costs, SlurmCosts)
    if is_slurm or not counted or len(shape.gpu_types) > 1 or known.sizes is not None:
        msg = (
            "--pairs: GPUs are counted, of one type, and jobs keep their size; leave out --place, "
            "--elastic, types of GPUs, and --costs slurm"
        )
        raise ConfigError(msg)
    table, rates = cluster.ground.foresight.pairs, known.pair_rates
    assert table is not None  # noqa: S101 - the rates are of it
    assert rates is not None  # noqa: S101 - the caller has looked
    numbers = np.bincount(rates.kind, minlength=len(table.kinds)).tolist()
    jobs = ", ".join(f"{n} {shown(name)}" for name, n in zip(table.kinds, numbers, strict=True))
    return f"two jobs may share their GPUs: {jobs}"


def _of_sizes(sizes: Sequence[JobSizes | None], resizing: Resizing, policy: Policy | None) -> str:
    elastic = f"{sum(one is not None for one in sizes)} of {len(sizes)} jobs can change size"
    if resizing.expand or (policy is not None and "sizes" in policy.about.needs):
        return f"{elastic}, and grow if that saves more than {resizing.steadiness:g} restarts"
    return f"{elastic}; this policy leaves them as they are without --expand"


def _on_slurm(scenario: Scenario, chosen: Chosen, resizing: Resizing) -> Outcome:
    if chosen.made is None:
        return simulate_plain(scenario)
    quantum_s = chosen.wish.min_quantum_s
    limits = Preemption() if quantum_s is None else Preemption(min_quantum_s=quantum_s)
    settings = Settings(partitions=frozenset({"gpu"}), preemption=limits, resizing=resizing)
    return simulate_slurm(scenario, policy=chosen.made, settings=settings)


def parameters(policy: Policy | None) -> dict[str, object]:
    """What *policy* was made of, as plain values, short enough to print."""
    told: dict[str, object] = {}
    names = [] if policy is None else [f.name for f in dataclasses.fields(policy)]  # type: ignore[arg-type]
    for name in names:
        value = getattr(policy, name)
        if isinstance(value, tuple):
            value = list(value) if len(value) <= _MOST else f"{len(value)} values"
        told[name] = value
    return told


def _evenly(sizes: F64) -> F64:
    """*sizes*, or as many as suffice for a distribution, evenly spread over its quantiles."""
    if len(sizes) <= _MOST_SIZES:
        return sizes
    at = (np.arange(_MOST_SIZES) + 0.5) / _MOST_SIZES
    chosen: F64 = np.quantile(sizes, at, method="inverted_cdf")
    return chosen


_MOST = 8
_MOST_SIZES = 1000
