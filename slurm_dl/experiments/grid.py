"""Simulations as cells of a grid: each is run once, here or in processes, and measured.

compare, whatif, tune and study differ in the cells they ask for, in the measure they take of a
simulation and in the table they print. Cells do not depend on each other and draw from generators
of their own, so where they run changes no figure.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
import platform
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np

import slurm_dl
from slurm_dl.experiments import cluster_presets, simulation_run
from slurm_dl.experiments.placement_choice import PLAIN, PlacementSetup
from slurm_dl.experiments.process_pool import WorkError, WorkFault, process_pool
from slurm_dl.experiments.simulation_run import Chosen, Cluster, PolicySpec, Result
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.trace import Trace
from slurm_dl.recording.typed_json import to_bytes
from slurm_dl.report import export, summary_metrics
from slurm_dl.report.atomic_files import write_whole
from slurm_dl.simulation.cluster_shape import ClusterShape, parse_shape
from slurm_dl.text import safe, shown
from slurm_dl.traces.format_registry import read_trace
from slurm_dl.traces.made_tags import tagged

MAX_CELLS: Final = 100_000
MIN_LOAD: Final = 0.001
MAX_LOAD: Final = 1000.0

Figures = dict[str, Any]
"""The figures of one simulation as plain values; see `figures_of`."""

M = TypeVar("M")

_LONGEST_NAME: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Workload:
    """Jobs and the cluster they run on.

    Attributes:
        cluster: As `parse_shape` reads it.
        trace: The jobs; None: those of *file*.
        file: A trace, read where the cell runs.
        tags: As `made_tags.tagged` takes them; for *file*.
    """

    cluster: str
    trace: Trace | None = None
    file: Path | None = None
    tags: str = "none"

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
    """One simulation.

    Attributes:
        workload: Its name in `Experiment.workloads`.
        costs: A word of ``--costs``; None: what the preset has.
        load: How many times as fast as in the workload the jobs arrive.
        seed: 0: the jobs of the workload. Above: a resample by this seed; see `resampled`.
    """

    policy: PolicySpec = field(hash=False)
    workload: str = ""
    costs: str | None = None
    load: float = 1.0
    seed: int = 0

    def __str__(self) -> str:
        costs = () if self.costs is None else (f"costs {self.costs}",)
        named = (self.workload, *costs, self.policy.short_label, f"load {self.load:g}")
        return ", ".join(word for word in (*named, f"seed {self.seed}") if word)

    @property
    def file_name(self) -> str:
        """A name for a file that no other cell has; it begins with words for people."""
        words = re.sub(r"[^\w.,=-]+", "_", str(self))[:_LONGEST_NAME]
        return f"{words}-{hashlib.sha256(to_bytes(self, Cell)).hexdigest()[:12]}.json"


def product(
    policies: Sequence[PolicySpec],
    *,
    costs: Sequence[str | None] = (None,),
    loads: Sequence[float] = (1.0,),
    seeds: int = 1,
) -> tuple[Cell, ...]:
    """All simulations of one workload: by costs, load, seed, policy.

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
    count = len(policies) * len(costs) * len(loads) * seeds
    if not 1 <= count <= MAX_CELLS:
        msg = f"policies x costs x loads x seeds: 1 to {MAX_CELLS:,} simulations (got {count:,})"
        raise ConfigError(msg)
    return tuple(
        Cell(policy=policy, costs=word, load=load, seed=seed)
        for word, load, seed, policy in itertools.product(costs, loads, range(seeds), policies)
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Simulated:
    """A cell that was simulated, for a measure to be taken of it."""

    cell: Cell
    jobs: Trace
    shape: ClusterShape
    result: Result


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Experiment:
    """Everything that the cells of an experiment share, as plain data.

    Attributes:
        workloads: By name; a single one has no name.
        costs: Files of cost models, by the word that cells have for them.
        ground: What goes with the schemes that place jobs.
        seed: Of all that cost models draw, for cells of seed 0.
        notes_nodes: Which nodes each run held is in the records, where there are nodes.
    """

    workloads: Mapping[str, Workload]
    costs: Mapping[str, str] = field(default_factory=dict)
    ground: PlacementSetup = PLAIN
    seed: int = 0
    notes_nodes: bool = False

    def ready(self, cell: Cell, jobs: Trace | None = None) -> tuple[Chosen, Cluster]:
        """The policy and the cluster of *cell*.

        Args:
            jobs: The jobs of the cell; None: those of the workload, as a check needs no others.

        Raises:
            ConfigError: The policy, a parameter, the cluster or the costs are wrong.
        """
        workload = self.workloads[cell.workload]
        parse_shape(workload.cluster)
        jobs = workload.jobs if jobs is None else jobs
        costs = None if cell.costs is None else self.costs.get(cell.costs, cell.costs)
        chosen = simulation_run.choose(cell.policy, jobs, on_slurm=cluster_presets.is_slurm(costs))
        cluster = cluster_presets.find(costs, chosen.preset, jobs, cell.policy.place, self.ground)
        return chosen, dataclasses.replace(cluster, notes_nodes=self.notes_nodes)

    def simulate(self, cell: Cell, progress: Callable[[float], None] = lambda _: None) -> Simulated:
        """Run one simulation.

        Args:
            progress: Told the share of its jobs that are done, 0 to 1.

        Raises:
            ConfigError: It cannot run.
            SimulationError: The policy stops time.
        """
        workload = self.workloads[cell.workload]
        jobs = faster(resampled(workload.jobs, cell.seed), cell.load)
        chosen, cluster = self.ready(cell, jobs)
        shape = parse_shape(workload.cluster)
        result = simulation_run.run(
            chosen, jobs, cluster, shape, seed=self.seed + cell.seed,
            progress=lambda done: progress(done / max(1, len(jobs))),
        )  # fmt: skip
        return Simulated(cell=cell, jobs=jobs, shape=shape, result=result)


def refusals(experiment: Experiment, cells: Sequence[Cell]) -> dict[tuple[str, str | None], str]:
    """Policies that cannot run under a cost model, as (label, costs), and why.

    Raises:
        ConfigError: A cluster or a cost model is wrong, whatever the policy.
    """
    whys = {}
    for cell in {(cell.policy.short_label, cell.costs): cell for cell in reversed(cells)}.values():
        parse_shape(experiment.workloads[cell.workload].cluster)
        if cell.costs is not None:
            cluster_presets.is_slurm(experiment.costs.get(cell.costs, cell.costs))
        try:
            experiment.ready(cell)
        except ConfigError as err:
            whys[cell.policy.short_label, cell.costs] = str(err)
    return whys


def run(
    experiment: Experiment,
    cells: Sequence[Cell],
    measure: Callable[[Simulated], M],
    *,
    processes: int = 1,
    store: Store | None = None,
    begin: Callable[[Cell], None] = lambda _: None,
    progress: Callable[[float], None] = lambda _: None,
) -> Iterator[tuple[Cell, M | WorkFault]]:
    """Each cell with its measure, or why it failed; what *store* has is not run again.

    Args:
        measure: Goes to other processes by pickle, as its results do.
        processes: Simulations at a time; 1: all in this process.
        begin: Told each cell when it begins.
        progress: Told the share of a simulation that is done, if it runs in this process.
    """
    left = []
    for cell in cells:
        kept = None if store is None else store.get(cell)
        if kept is None:
            left.append(cell)
        else:
            yield cell, kept
    if not left:
        return
    at_a_time = min(processes, len(left))
    work = functools.partial(_measured, experiment, measure, progress if at_a_time == 1 else None)
    with process_pool(work, at_a_time) as pool:
        for number, found in pool(left, begin=begin):
            cell = left[number]
            if isinstance(found, WorkFault):
                yield cell, dataclasses.replace(found, why=f"{cell}: {found.why}")
                continue
            if store is not None:
                store.put(cell, found)
            yield cell, found


def _measured(
    experiment: Experiment,
    measure: Callable[[Simulated], M],
    progress: Callable[[float], None] | None,
    cell: Cell,
) -> M:
    return measure(experiment.simulate(cell, progress or (lambda _: None)))


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
    ``too_large`` (jobs that want more GPUs than there are), those of `export.summary_json`,
    ``placement``, ``decisions``, ``events`` and ``wall_s``, which alone differs from run to run.
    """  # noqa: D205 - one list
    result, shape = simulated.result, simulated.shape
    outcome = result.outcome
    return {
        "preset": result.chosen.preset,
        "parameters": simulation_run.parameters(result.chosen.made),
        "costs": result.costs,
        "notes": list(result.chosen.notes),
        "too_large": int((simulated.jobs.gpus > shape.gpus).sum()),
        **export.summary_json(summary_metrics.summarise(outcome.records, gpus=shape.gpus)),
        "placement": None if outcome.lay is None else outcome.lay.as_json(),
        "decisions": outcome.decisions,
        "events": outcome.events,
        "wall_s": result.wall_s,
    }


def resampled(trace: Trace, seed: int) -> Trace:
    """A bootstrap of *trace*: other jobs at the same times.

    As many jobs are drawn with replacement; what belongs to a job (duration, GPUs, user, account,
    model, ending) is drawn together, and put at the submissions and ids of the trace in their
    order. So the arrivals keep their bursts, and any tie between jobs that follow each other is
    lost.

    Args:
        seed: Of NumPy's default generator; 0 gives *trace* itself.

    Source: Efron, "Bootstrap methods: another look at the jackknife", Annals of Statistics 7(1),
    1979.
    """
    if not seed:
        return trace
    drawn = np.random.default_rng(seed).integers(len(trace), size=len(trace))
    return trace.of_jobs(drawn, job_id=trace.job_id, submit_s=trace.submit_s)


def faster(trace: Trace, load: float) -> Trace:
    """The same jobs, arriving *load* times as fast; the first one when it did."""
    if load == 1 or not len(trace):
        return trace
    first_s = trace.submit_s[0]
    return dataclasses.replace(trace, submit_s=first_s + (trace.submit_s - first_s) / load)


@dataclass(frozen=True, slots=True)
class Store:
    """A folder with the figures of each cell that is done, of one set of versions.

    ::

        versions.json    the versions that the figures are of
        cells/NAME.json  the figures of one simulation, there whole or not at all
    """

    path: Path

    def begin(self) -> None:
        """Make the folder, or see that what is in it may stand beside new figures.

        Raises:
            ConfigError: It holds something else or figures of other versions, or cannot be made.
        """
        mark, here = self.path / "versions.json", _versions()
        try:
            (self.path / "cells").mkdir(parents=True, exist_ok=True)
            there = json.loads(mark.read_text("utf-8")) if mark.exists() else None
        except (OSError, ValueError) as err:
            msg = f"--dir {self.path}: {err}"
            raise ConfigError(msg) from err
        if there is None:
            write_whole(mark, json.dumps(here).encode())
        elif there != here:
            msg = f"--dir {self.path}: is of {_told(there)}; here are {_told(here)}: name a new one"
            raise ConfigError(msg)

    def get(self, cell: Cell) -> Any:  # noqa: ANN401 - the measure that was put
        """The figures of *cell*; None if they are not there.

        Raises:
            ConfigError: They cannot be read.
        """
        path = self.path / "cells" / cell.file_name
        try:
            found = json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as err:
            found = str(err)
        if isinstance(found, dict) and {"jobs", "wall_s"} <= found.keys():
            return found
        msg = f"{path}: is no result ({shown(found)}); delete it, and it is computed again"
        raise ConfigError(msg)

    def put(self, cell: Cell, figures: object) -> None:
        """Put the figures of *cell* there, whole.

        Raises:
            ConfigError: They cannot be written.
        """
        write_whole(self.path / "cells" / cell.file_name, f"{json.dumps(figures)}\n".encode())


def _versions() -> dict[str, str]:
    modules = {module.__name__: str(module.__version__) for module in (slurm_dl, np)}
    return {**modules, "python": platform.python_version()}


def _told(versions: object) -> str:
    pairs = versions.items() if isinstance(versions, dict) else [("", versions)]
    return ", ".join(f"{name} {safe(str(version), 40)}" for name, version in pairs)
