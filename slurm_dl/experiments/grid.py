"""Simulations as cells of a grid: each is run once, here or in processes, and measured.

compare, whatif, tune and study differ in the cells they ask for, in the measure they take of a
simulation and in the table they print. Cells do not depend on each other and draw from generators
of their own, so where they run changes no figure.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar, cast

import numpy as np

from slurm_dl.experiments import cluster_presets, simulation_run
from slurm_dl.experiments.bootstrap_interval import TimeBlocks, resampled
from slurm_dl.experiments.placement_choice import PLAIN, PlacementSetup
from slurm_dl.experiments.process_pool import WorkError, WorkFault, process_pool
from slurm_dl.experiments.simulation_run import Chosen, Cluster, PolicySpec, Result
from slurm_dl.model.completed_jobs import Records
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.trace import Trace
from slurm_dl.policies import policy_file
from slurm_dl.report import export, summary_metrics
from slurm_dl.simulation.cluster_shape import ClusterShape, parse_shape
from slurm_dl.simulation.outcome import SimulationError
from slurm_dl.traces.format_registry import read_trace
from slurm_dl.traces.workload_generator import tagged

MAX_CELLS: Final = 100_000
MIN_LOAD: Final = 0.001
MAX_LOAD: Final = 1000.0

Figures = dict[str, Any]  # The figures of one simulation as plain values; see `figures_of`

M = TypeVar("M")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Workload:
    """Jobs and the cluster they run on."""

    cluster: str  # As `parse_shape` reads it
    trace: Trace | None = None  # The jobs; None: those of *file*
    file: Path | None = None  # A trace, read where the cell runs
    tags: str = "none"  # As `tagged` took them, or takes them for those of *file*

    @property
    def jobs(self) -> Trace:
        """The jobs, as they were submitted."""
        if self.trace is not None:
            return self.trace
        assert self.file is not None  # noqa: S101 - one of them is there
        return _read(self.file, self.tags)


@functools.lru_cache(maxsize=2)
def _read(file: Path, tags: str) -> Trace:
    return tagged(read_trace(file, None), tags)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One simulation."""

    policy: PolicySpec = field(hash=False)
    workload: str = ""  # Its name in `Experiment.workloads`
    costs: str | None = None  # A word of ``--costs``; None: what the preset has
    load: float = 1.0  # How many times as fast as in the workload the jobs arrive
    resample: int = 0  # 0: the jobs of the workload itself; else the seed of `resampled`

    def __str__(self) -> str:
        costs = () if self.costs is None else (f"costs {self.costs}",)
        named = (self.workload, *costs, self.policy.short_label, f"load {self.load:g}")
        return ", ".join(word for word in (*named, f"resample {self.resample}") if word)


def product(
    policies: Sequence[PolicySpec],
    *,
    costs: Sequence[str | None] = (None,),
    loads: Sequence[float] = (1.0,),
    resamples: int = 0,
) -> tuple[Cell, ...]:
    """All simulations of one workload: by costs, load, resample, policy.

    Args:
        resamples: How many of the workload, beside itself.

    Raises:
        ConfigError: Something is there twice or out of range, or it would be too many simulations.
    """
    for option, words in (
        ("--policies", [policy.short_label for policy in policies]),
        ("--costs", [str(word) for word in costs]),
    ):
        for word in words:
            if words.count(word) > 1:
                msg = f"{option}: {word} is given twice"
                raise ConfigError(msg)
    for load in loads:
        if not MIN_LOAD <= load <= MAX_LOAD or loads.count(load) > 1:
            msg = f"--loads: {load:g} is given twice or is not from {MIN_LOAD:g} to {MAX_LOAD:g}"
            raise ConfigError(msg)
    count = len(policies) * len(costs) * len(loads) * (1 + resamples)
    if not 1 <= count <= MAX_CELLS:
        msg = (
            f"policies x costs x loads x workloads: 1 to {MAX_CELLS:,} simulations (got {count:,})"
        )
        raise ConfigError(msg)
    return tuple(
        Cell(policy=policy, costs=word, load=load, resample=resample)
        for word, load, resample, policy in itertools.product(
            costs, loads, range(1 + resamples), policies
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Simulated:
    """A cell that was simulated, for a measure to be taken of it."""

    cell: Cell
    jobs: Trace
    shape: ClusterShape
    result: Result
    blocks: float = 0.0
    """Of which resamples of the workload are drawn; see `TimeBlocks.independent`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Experiment:
    """Everything that the cells of an experiment share, as plain data."""

    workloads: Mapping[str, Workload]  # By name; a single one has no name
    files: Mapping[str, str] = field(default_factory=dict)  # Copies, by the original path
    ground: PlacementSetup = PLAIN  # What goes with the schemes that place jobs
    seed: int = 0  # Of all that is drawn for resample 0; for resample k it is k above
    failures: str | None = None  # ``--node-failures``; None: nodes do not break
    block_days: int | None = None  # Of resamples; see `resampled`
    notes_nodes: bool = False  # See `Cluster`

    def file(self, path: str | None) -> str | None:
        """The copy of *path*, if there is one, else *path*."""
        return None if path is None else self.files.get(path, path)

    def costs_of(self, cell: Cell) -> str | None:
        """Costs of *cell* as `cluster_presets.find` takes them."""
        path = cluster_presets.file_of(cell.costs)
        return cell.costs if path is None else self.file(path)

    def policy_of(self, cell: Cell) -> str:
        """The policy of *cell* as `registry.find` takes it."""
        name = cell.policy.policy
        path = policy_file.path_of(name)
        return name if path is None else f"{self.file(path)}:{policy_file.parts(name)[1]}"

    @property
    def ground_here(self) -> PlacementSetup:
        """`ground` with the copies of its files."""
        known = self.ground.foresight
        known = dataclasses.replace(known, rates=self.file(known.rates))
        profiles = self.file(self.ground.profiles)
        return dataclasses.replace(self.ground, profiles=profiles, foresight=known)

    def ready(self, cell: Cell, jobs: Trace | None = None) -> tuple[Chosen, Cluster]:
        """The policy and the cluster of *cell*.

        Args:
            jobs: The jobs of the cell; None: those of the workload, as a check needs no others.

        Raises:
            ConfigError: The policy, a parameter, the cluster or the costs are wrong.
        """
        workload = self.workloads[cell.workload]
        shape = parse_shape(workload.cluster)
        jobs = workload.jobs if jobs is None else jobs
        costs = self.costs_of(cell)
        wish = dataclasses.replace(cell.policy, policy=self.policy_of(cell))
        chosen = simulation_run.choose(wish, jobs, on_slurm=cluster_presets.is_slurm(costs))
        ground = self.ground_here
        cluster = cluster_presets.find(costs, chosen.preset, jobs, cell.policy.place, ground)
        cluster = cluster_presets.with_failures(cluster, self.failures)
        speeds = cluster.ground.foresight.speeds(jobs, shape, cluster.placement.profiles)
        chosen = dataclasses.replace(chosen, notes=(*chosen.notes, *speeds.notes))
        return chosen, dataclasses.replace(
            cluster, rates=speeds.rates, steps_per_s=speeds.steps_per_s,
            notes_nodes=self.notes_nodes,
        )  # fmt: skip

    def simulate(self, cell: Cell, progress: Callable[[float], None] = lambda _: None) -> Simulated:
        """Run one simulation.

        Args:
            progress: Told the share of its jobs that are done, 0 to 1.

        Raises:
            ConfigError: It cannot run.
            SimulationError: The policy stops time.
        """
        workload = self.workloads[cell.workload]
        jobs = faster(resampled(workload.jobs, cell.resample, self.block_days), cell.load)
        chosen, cluster = self.ready(cell, jobs)
        shape = parse_shape(workload.cluster)
        try:
            result = simulation_run.run(
                chosen, jobs, cluster, shape, seed=self.seed + cell.resample,
                progress=lambda done: progress(done / max(1, len(jobs))),
            )  # fmt: skip
        except SystemExit as err:
            msg = f"policy {cell.policy.short_label} ended the program: status {err.code}"
            raise SimulationError(msg) from err
        blocks = TimeBlocks.of(workload.jobs, self.block_days).independent if len(jobs) else 0.0
        return Simulated(cell=cell, jobs=jobs, shape=shape, result=result, blocks=blocks)


def refusals(experiment: Experiment, cells: Sequence[Cell]) -> dict[tuple[str, str | None], str]:
    """Policies that cannot run under a cost model, as (label, costs), and why.

    Raises:
        ConfigError: A cluster or a cost model is wrong, whatever the policy.
    """
    for cluster in {experiment.workloads[cell.workload].cluster for cell in cells}:
        parse_shape(cluster)
    for costs in {experiment.costs_of(cell) for cell in cells}:
        cluster_presets.is_slurm(costs)
    whys = {}
    for cell in {(cell.policy.short_label, cell.costs): cell for cell in reversed(cells)}.values():
        try:
            experiment.ready(cell)
        except ConfigError as err:
            whys[cell.policy.short_label, cell.costs] = str(err)
    return whys


class CellStore(Protocol):
    """Figures that are kept; see `cell_store.Store`."""

    def get(self, cell: Cell, /) -> Figures | None:
        """The figures of *cell*; None if they are not there."""

    def put(self, cell: Cell, figures: Figures, records: Records, /) -> None:
        """Keep the figures and the jobs of *cell*."""


def run(
    experiment: Experiment,
    cells: Sequence[Cell],
    measure: Callable[[Simulated], M],
    *,
    processes: int = 1,
    store: CellStore | None = None,
    begin: Callable[[Cell], None] = lambda _: None,
    progress: Callable[[float], None] = lambda _: None,
) -> Iterator[tuple[Cell, M | WorkFault]]:
    """Each cell with its measure, or why it failed; what *store* has is not run again.

    Args:
        measure: Goes to other processes by pickle, as its results do.
        processes: Simulations at a time; 1: all in this process.
        store: Of the measure `figures_of` alone.
        begin: Told each cell when it begins.
        progress: Told the share of a simulation that is done, if it runs in this process.
    """
    left = []
    for cell in cells:
        kept = None if store is None else store.get(cell)
        if kept is None:
            left.append(cell)
        else:
            yield cell, cast("M", kept)
    if not left:
        return
    at_a_time = min(processes, len(left))
    told = progress if at_a_time == 1 else None
    work = functools.partial(_measured, experiment, measure, store, told)
    with process_pool(work, at_a_time) as pool:
        for number, found in pool(left, begin=begin):
            cell = left[number]
            if isinstance(found, WorkFault):
                yield cell, dataclasses.replace(found, why=f"{cell}: {found.why}")
            else:
                yield cell, found


def _measured(
    experiment: Experiment,
    measure: Callable[[Simulated], M],
    store: CellStore | None,
    progress: Callable[[float], None] | None,
    cell: Cell,
) -> M:
    simulated = experiment.simulate(cell, progress or (lambda _: None))
    found = measure(simulated)
    if store is not None:
        store.put(cell, cast("Figures", found), simulated.result.outcome.records)
    return found


def all_of(found: Mapping[Cell, M | WorkFault]) -> dict[Cell, M]:
    """*found*, of which nothing failed.

    Raises:
        WorkError: Something did; says what.
    """
    for value in found.values():
        if isinstance(value, WorkFault):
            raise WorkError(value.text)
    return {cell: value for cell, value in found.items() if not isinstance(value, WorkFault)}


def figures_of(simulated: Simulated) -> Figures:
    """The figures of one simulation: ``preset``, ``parameters``, ``costs``, ``notes``,
    ``too_large`` (jobs that want more GPUs than there are), ``blocks`` (of which resamples are
    drawn), those of `export.summary_json`,
    ``placement``, ``deadlines``, ``pairs``, ``decisions``, ``events`` and ``wall_s``, which alone
    differs from run to run.
    """  # noqa: D205 - one list
    result, shape = simulated.result, simulated.shape
    outcome = result.outcome
    return {
        "preset": result.chosen.preset,
        "parameters": simulation_run.parameters(result.chosen.made),
        "costs": result.costs,
        "notes": list(result.chosen.notes),
        "too_large": int((simulated.jobs.gpus > shape.gpus).sum()),
        "blocks": simulated.blocks,
        **export.summary_json(summary_metrics.summarise(outcome.records, gpus=shape.gpus)),
        "placement": None if outcome.lay is None else outcome.lay.as_json(),
        "deadlines": export.plain(outcome.deadlines),
        "pairs": outcome.pairs,
        "decisions": outcome.decisions,
        "events": outcome.events,
        "wall_s": result.wall_s,
    }


GROUPS: Final = {"size": summary_metrics.by_size, "user": summary_metrics.by_user}
"""By the words of ``--by``."""


def simulation_json(simulated: Simulated, by: tuple[str, ...] = ()) -> dict[str, object]:
    """One simulation as plain values; the keys are those of `docs/evaluate/simulator.md`."""
    trace, shape, result = simulated.jobs, simulated.shape, simulated.result
    records = result.outcome.records
    figures = figures_of(simulated)
    del figures["too_large"], figures["blocks"]
    return {
        "trace": trace.name,
        "format": trace.format,
        "cluster": str(shape),
        "policy": result.chosen.wish.policy,
        "place": result.place,
        "seed": result.seed,
        **figures,
        **{
            f"by_{word}": export.groups_json(group(records, gpus=shape.gpus))
            for word, group in GROUPS.items()
            if word in by
        },
    }


def faster(trace: Trace, load: float) -> Trace:
    """The same jobs, arriving *load* times as fast; the first one when it did."""
    if load == 1 or not len(trace):
        return trace
    first_s = trace.submit_s[0]
    arrives_s = first_s + (trace.submit_s - first_s) / load
    return trace.of_jobs(np.arange(len(trace)), submit_s=arrives_s)
