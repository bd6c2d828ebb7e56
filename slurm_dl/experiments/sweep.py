"""A sweep as data: every policy at every load, on the trace and on resamples of it.

A cell is one simulation. Cells do not depend on each other and draw from generators of their own,
so where they run (here, in processes, as tasks of a Slurm array) changes no figure.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from slurm_dl.config.parameters import parameters_of
from slurm_dl.experiments import cluster_presets, placement_choice, simulation_run
from slurm_dl.experiments.placement_choice import PLAIN, LayFigures, Named, PlacementSetup
from slurm_dl.experiments.process_pool import WorkFault, process_pool
from slurm_dl.experiments.simulation_run import PolicySpec
from slurm_dl.model.errors import ConfigError, SlurmDlError
from slurm_dl.model.trace import Trace
from slurm_dl.policies import registry
from slurm_dl.report import summary_metrics
from slurm_dl.report.summary_metrics import Summary
from slurm_dl.simulation.cluster_shape import parse_shape
from slurm_dl.simulation.ideal import presets
from slurm_dl.text import shown

MAX_CELLS: Final = 100_000
MIN_LOAD: Final = 0.001
MAX_LOAD: Final = 1000.0

TRACE_ITSELF: Final = 0
"""The seed that draws nothing."""

ALL: Final = "all"
"""The word for every registered policy."""


class CellError(SlurmDlError):
    """A simulation of the sweep failed; says which and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepCell:
    """One simulation of a sweep.

    Attributes:
        index: Its place in `Sweep.cells`.
        wish: The place of its policy in `Sweep.wishes`.
        label: The policy as reports call it.
        load: How many times as fast as in the trace the jobs arrive.
        seed: 0: the jobs of the trace. Above: a resample by this seed; see `resampled`.
    """

    index: int
    wish: int
    label: str
    load: float
    seed: int

    def __str__(self) -> str:
        return f"{self.label}, load {self.load:g}, seed {self.seed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """What is compared.

    Attributes:
        wishes: The policies, in the order of the report; the first is what others are held
            against.
        loads: Multiples of the trace's arrival rate.
        seeds: How many workloads for each: seeds 0 to this minus 1.
        cluster: The cluster, as `parse_shape` reads it.
        costs: What ``--costs`` said; None: what each preset has.
        ground: What goes with the wishes' schemes of placement.
    """

    wishes: tuple[PolicySpec, ...]
    loads: tuple[float, ...]
    seeds: int
    cluster: str
    costs: str | None
    ground: PlacementSetup = PLAIN

    def __post_init__(self) -> None:
        check_counts(self.wishes, self.loads, self.seeds)

    @property
    def labels(self) -> tuple[str, ...]:
        """What reports call the policies; no two are alike."""
        return tuple(label_of(wish) for wish in self.wishes)

    @property
    def cells(self) -> tuple[SweepCell, ...]:
        """All simulations: by load, then seed, then policy."""
        whole = itertools.product(self.loads, range(self.seeds), enumerate(self.labels))
        return tuple(
            SweepCell(index=index, wish=wish, label=label, load=load, seed=seed)
            for index, (load, seed, (wish, label)) in enumerate(whole)
        )


def check_counts(wishes: Sequence[PolicySpec], loads: Sequence[float], seeds: int) -> None:
    """Raise if no sweep can be made of these.

    Raises:
        ConfigError: Something is there twice or out of range, or it would be too many simulations.
    """
    labels = [label_of(wish) for wish in wishes]
    for label in labels:
        if labels.count(label) > 1:
            msg = f"--policies: {label} is given twice"
            raise ConfigError(msg)
    for load in loads:
        if not MIN_LOAD <= load <= MAX_LOAD or loads.count(load) > 1:
            msg = f"--loads: {load:g} is given twice or is not from {MIN_LOAD:g} to {MAX_LOAD:g}"
            raise ConfigError(msg)
    count = len(wishes) * len(loads) * seeds
    if not 1 <= count <= MAX_CELLS:
        msg = f"policies x loads x seeds must be 1 to {MAX_CELLS:,} simulations (got {count:,})"
        raise ConfigError(msg)


@dataclass(frozen=True, slots=True, kw_only=True)
class CellResult:
    """What came of one simulation, without its jobs.

    Attributes:
        preset: The preset that was meant.
        parameters: What the policy was made of, as plain values.
        costs: The cost model.
        notes: What was filled in that nobody would guess.
        summary: The figures.
        too_large: Jobs that want more GPUs than the cluster has.
        decisions: How often the engine decided.
        events: Instants at which something happened.
        wall_s: Seconds the simulation took; the one value that differs from run to run.
        lay: How the jobs lay on nodes; None if GPUs were only counted.
    """

    preset: str
    parameters: dict[str, Any]
    costs: str
    notes: tuple[str, ...]
    summary: Summary
    too_large: int
    decisions: int
    events: int
    wall_s: float
    lay: LayFigures | None = None

    @property
    def unfinished(self) -> int:
        """Jobs that did not come to an end."""
        return self.summary.jobs - self.summary.finished


@dataclass(frozen=True, slots=True)
class Failure:
    """A simulation that could not be run.

    Attributes:
        why: In words, on one line.
    """

    cell: SweepCell
    why: str


def label_of(wish: PolicySpec) -> str:
    """``NAME`` or ``NAME:PRESET``, as it was asked for, and ``on SCHEME`` if jobs are placed."""
    return wish.short_label


def with_places(
    wishes: Sequence[PolicySpec], schemes: Sequence[Named | None]
) -> tuple[PolicySpec, ...]:
    """Each of *wishes* with each of *schemes*; as they are if there is no scheme."""
    if not schemes:
        return tuple(wishes)
    return tuple(dataclasses.replace(wish, place=scheme) for wish in wishes for scheme in schemes)


def parse_policies(text: str, given: Mapping[str, object]) -> tuple[PolicySpec, ...]:
    """Policies from ``NAME,NAME:PRESET,...``; ``all`` is every one not named beside it.

    Args:
        given: Parameters, each for all of these policies that have one of this name.

    Raises:
        ConfigError: A name is unknown, or none of the policies has one of the parameters.
    """
    wishes = []
    known: set[str] = set()
    for word, is_named in _words(text):
        name, colon, preset = word.strip().partition(":")
        if not name or (colon and not preset):
            msg = f"--policies: {shown(word)} is not NAME or NAME:PRESET; see 'dlsim policies'"
            raise ConfigError(msg)
        try:
            has = _settable(name, preset or None)
        except ConfigError:
            if is_named:
                raise
            has = set()
        known |= has
        wishes.append(
            PolicySpec(
                policy=name,
                preset=preset or None,
                parameters={k: v for k, v in given.items() if k in has},
            )
        )
    for key in given:
        if key not in known:
            msg = (
                f"-p {key}: none of these policies has such a parameter; they have "
                f"{', '.join(sorted(known)) or 'none at all'}"
            )
            raise ConfigError(msg)
    return tuple(wishes)


def names_all(text: str) -> bool:
    """Whether *text*, as `parse_policies` takes it, asks for every policy."""
    return ALL in (word.strip() for word in text.split(","))


def _words(text: str) -> list[tuple[str, bool]]:
    """The words of *text*, the other policies in place of `ALL`; and whether each was named."""
    words = text.split(",")
    named = {word.strip().partition(":")[0] for word in words}
    others = [(name, False) for name in registry.names() if name not in named]
    return [w for word in words for w in (others if word.strip() == ALL else [(word, True)])]


def _settable(policy: str, preset: str | None) -> set[str]:
    """Names of the parameters of what *preset* runs for *policy*."""
    reading = presets.reading_of(policy, preset)
    return {parameter.name for parameter in parameters_of(registry.find(reading.policy))}


def parse_loads(text: str) -> tuple[float, ...]:
    """Loads from ``0.5,1,2``.

    Raises:
        ConfigError: One is no number.
    """
    loads = []
    for word in text.split(","):
        try:
            load = float(word)
        except ValueError:
            load = math.nan
        if not math.isfinite(load):
            msg = f"--loads: {shown(word)} is no number; give some such as 0.5,1,2"
            raise ConfigError(msg)
        loads.append(load)
    return tuple(loads)


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
    if seed == TRACE_ITSELF:
        return trace
    drawn = np.random.default_rng(seed).integers(len(trace), size=len(trace))
    return trace.of_jobs(drawn, job_id=trace.job_id, submit_s=trace.submit_s)


def faster(trace: Trace, load: float) -> Trace:
    """The same jobs, arriving *load* times as fast; the first one when it did."""
    if load == 1 or not len(trace):
        return trace
    first_s = trace.submit_s[0]
    return dataclasses.replace(trace, submit_s=first_s + (trace.submit_s - first_s) / load)


def run_cell(sweep: Sweep, trace: Trace, cell: SweepCell) -> CellResult:
    """Run one simulation of *sweep*.

    Args:
        trace: The trace that the sweep is of, as it was read.

    Raises:
        CellError: It could not be run; names the cell.
    """
    try:
        shape = parse_shape(sweep.cluster)
        jobs = faster(resampled(trace, cell.seed), cell.load)
        chosen = simulation_run.choose(
            sweep.wishes[cell.wish], jobs, on_slurm=cluster_presets.is_slurm(sweep.costs)
        )
        simulated = _cluster(sweep, sweep.wishes[cell.wish], chosen.preset, jobs)
        result = simulation_run.run(chosen, jobs, simulated, shape, seed=cell.seed)
    except SlurmDlError as err:
        msg = f"{cell}: {err}"
        raise CellError(msg) from err
    made = simulation_run.parameters(chosen.made)
    return CellResult(
        preset=chosen.preset,
        parameters={k: list(v) if isinstance(v, tuple) else v for k, v in made.items()},
        costs=result.costs,
        notes=chosen.notes,
        summary=summary_metrics.summarise(result.outcome.records, gpus=shape.gpus),
        too_large=int((jobs.gpus > shape.gpus).sum()),
        decisions=result.outcome.decisions,
        events=result.outcome.events,
        wall_s=result.wall_s,
        lay=placement_choice.figures_of(result.outcome.lay),
    )


def _cluster(
    sweep: Sweep, wish: PolicySpec, preset: str, jobs: Trace
) -> simulation_run.ClusterKind:
    found = cluster_presets.find(sweep.costs, preset, jobs)
    return cluster_presets.with_ground(found, wish.place, sweep.ground)


def check(sweep: Sweep, trace: Trace) -> None:
    """Raise what is wrong with *sweep* before anything of it runs.

    Raises:
        ConfigError: A policy, a preset, a parameter, the cluster or the costs are wrong.
    """
    parse_shape(sweep.cluster)
    for wish in sweep.wishes:
        check_wish(sweep, wish, trace)


def check_wish(sweep: Sweep, wish: PolicySpec, trace: Trace) -> None:
    """Raise if *wish* cannot run in *sweep*.

    Raises:
        ConfigError: It cannot; says why.
    """
    chosen = simulation_run.choose(wish, trace, on_slurm=cluster_presets.is_slurm(sweep.costs))
    _cluster(sweep, wish, chosen.preset, trace).check(chosen)


def without(
    sweep: Sweep, results: Sequence[CellResult], failures: Collection[Failure]
) -> tuple[Sweep | None, list[CellResult]]:
    """*sweep* and its results without the policies of which a simulation failed; None if all did.

    Args:
        results: Of the cells that did not fail, in their order.
    """
    out = {failure.cell.wish for failure in failures}
    wishes = tuple(wish for i, wish in enumerate(sweep.wishes) if i not in out)
    if not wishes:
        return None, []
    failed = {failure.cell.index for failure in failures}
    ran = [cell for cell in sweep.cells if cell.index not in failed]
    kept = [r for cell, r in zip(ran, results, strict=True) if cell.wish not in out]
    return dataclasses.replace(sweep, wishes=wishes), kept


def run_cells(
    sweep: Sweep,
    trace: Trace,
    progress: Callable[[int], None],
    *,
    processes: int = 1,
    begin: Callable[[SweepCell], None] = lambda _: None,
    failed: Callable[[Failure], None] | None = None,
) -> list[CellResult]:
    """Run all cells, *processes* at a time; the results are in the order of the cells.

    Args:
        progress: Told how many are done.
        processes: 1: all in this process.
        begin: Told each cell when it begins.
        failed: Told which could not be run, and then the others are run all the same; None: the
            first that cannot be run is the end.

    Raises:
        CellError: One of them could not be run, or a process was killed. The others are ended.
    """
    cells = sweep.cells
    results: dict[int, CellResult] = {}
    work = functools.partial(run_cell, sweep, trace)
    with process_pool(work, min(processes, len(cells))) as run:
        for done, (number, said) in enumerate(run(cells, begin=begin), 1):
            if not isinstance(said, WorkFault):
                results[number] = said
            elif failed is None:
                raise CellError(_named(cells[number], said.text))
            else:
                failed(Failure(cells[number], _named(cells[number], said.why)))
            progress(done)
    return [results[number] for number in sorted(results)]


def _named(cell: SweepCell, why: str) -> str:
    """*why* with its cell; an error of a cell begins with it."""
    return why if why.startswith(f"{cell}: ") else f"{cell}: {why}"
