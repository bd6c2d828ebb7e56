"""``dlsim run``: one trace, one policy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click
from rich.text import Text

from slurm_dl.cli.commandline import EXIT_FAILED
from slurm_dl.cli.dlsim.asked import (
    PlacementOptions,
    check_outputs,
    manifest,
    placement_of,
    read_lines,
)
from slurm_dl.experiments import grid
from slurm_dl.experiments.cell_store import Manifest, Store
from slurm_dl.experiments.grid import Cell, Experiment, Simulated, Workload
from slurm_dl.experiments.option_words import parse_parameters
from slurm_dl.experiments.simulation_run import PolicySpec, Result
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.trace import Trace
from slurm_dl.policies import policy_file
from slurm_dl.report import export, summary_metrics
from slurm_dl.report.tables import run_tables, sizes_table, users_table
from slurm_dl.report.terminal_table import console, number, percent, progress
from slurm_dl.simulation.cluster_shape import ClusterShape, parse_shape
from slurm_dl.simulation.ideal import presets
from slurm_dl.simulation.outcome import Lay
from slurm_dl.text import counted, safe
from slurm_dl.traces.format_registry import read_trace
from slurm_dl.traces.workload_generator import tagged

if TYPE_CHECKING:
    from rich.console import RenderableType

_PLACE = 60
_TABLES = {"size": sizes_table, "user": users_table}
_RUNGS = {"skew": "by skew"}


def run(
    *,
    trace: Path,
    format_name: str | None,
    cluster: str | None,
    costs: str | None,
    seed: int,
    policy: str,
    preset: str | None,
    parameters: tuple[str, ...],
    min_quantum_s: float | None,
    tags: str,
    node_failures: str | None,
    directory: Path | None,
    json_path: Path | None,
    csv_path: Path | None,
    plots_dir: Path | None,
    by: tuple[str, ...],
    quiet: bool,
    **placed: Unpack[PlacementOptions],
) -> None:
    """Run ``dlsim run``; the arguments are its options."""
    check_outputs(json_path, csv_path, plots_dir)
    cluster = cluster or presets.cluster_of([preset])
    if cluster is None:
        msg = "Missing option '--cluster'."
        raise click.UsageError(msg)
    shape = parse_shape(cluster)
    given = parse_parameters(parameters)
    jobs = tagged(read_trace(trace, format_name), tags)
    schemes, ground = placement_of(**placed)
    spec = PolicySpec(
        policy=policy, preset=preset, parameters=given, min_quantum_s=min_quantum_s,
        place=schemes[0] if schemes else None,
    )  # fmt: skip
    workload = Workload(cluster=cluster, trace=jobs, tags=tags)
    experiment = Experiment(
        workloads={"": workload}, ground=ground, seed=seed, failures=node_failures
    )
    cell = Cell(policy=spec, costs=costs)
    made = manifest(experiment, [cell])
    store = None if directory is None else Store(directory, experiment).begin()
    with progress(f"{safe(jobs.name)}: {safe(spec.short_label, 60)}", 1) as report:
        whole = experiment.simulate(cell, report)
    result, records = whole.result, whole.result.outcome.records
    if not quiet:
        _show(jobs, shape, result, by)
    if json_path:
        export.write_json(json_path, {"manifest": made, **grid.simulation_json(whole, by)})
    if csv_path:
        export.write_csv(csv_path, export.jobs_csv(records), made)
    if plots_dir:
        _draw(whole, plots_dir, made)
    if store is not None:
        store.put(cell, grid.figures_of(whole), records)
    unfinished = int((~records.finished).sum())
    if unfinished:
        why = _why(jobs, shape, result)
        click.echo(f"dlsim run: {unfinished} of {len(jobs)} jobs did not finish: {why}", err=True)
        raise SystemExit(EXIT_FAILED)


def _show(trace: Trace, shape: ClusterShape, result: Result, by: tuple[str, ...]) -> None:
    out = console()
    for line in read_lines(trace):
        out.print(line, markup=False, highlight=False)
    for table in _tables(shape, result, by):
        out.print()
        out.print(table)


def _why(trace: Trace, shape: ClusterShape, result: Result) -> str:
    large = int((trace.gpus > shape.gpus).sum())
    if not large and result.outcome.lay is not None:
        return "the policy never served them, or no place would do: see --place and --rule"
    if not large:
        return "the policy never served them, or starting them takes for ever"
    asks = "1 asks" if large == 1 else f"{large} ask"
    passes = result.chosen.made is None or result.chosen.made.skips
    others = "" if passes else "; this policy passes nobody by, so those behind wait for ever"
    return f"{asks} for more than the {shape.gpus} GPUs there are{others}"


def _draw(simulated: Simulated, directory: Path, manifest: Manifest) -> None:
    """Write the pictures of a simulation into *directory*."""
    from slurm_dl.report import plots, style  # noqa: PLC0415 - matplotlib takes half a second

    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        msg = f"--plots {directory}: {err.strerror}; name a directory that can be made"
        raise ConfigError(msg) from err
    records = {simulated.cell.policy.label: simulated.result.outcome.records}
    style.save(plots.jct_distribution(records), directory / "jct.png", manifest)
    over_time = plots.over_time(records, gpus=simulated.shape.gpus)
    style.save(over_time, directory / "over_time.png", manifest)


def _tables(shape: ClusterShape, result: Result, by: tuple[str, ...]) -> Iterator[RenderableType]:
    """The figures of one simulation."""
    records = result.outcome.records
    chosen = result.chosen
    policy = policy_file.short(chosen.wish.policy)
    title = f"{policy} on {shape}, preset {chosen.preset}, costs {result.costs}"
    yield run_tables(summary_metrics.summarise(records, gpus=shape.gpus), title=title)
    if result.outcome.lay is not None:
        yield _lay_lines(result.place, result.outcome.lay)
    if (due := result.outcome.deadlines) is not None:
        promised = f"; {due.promised:,} promised, {due.kept:,} of them met" if due.promised else ""
        share = f"{percent(due.met / due.jobs)}, by GPU time {percent(due.met_gpu_frac)}"
        yield f"{due.met:,} of {due.jobs:,} deadlines met, {share}{promised}"
    if (pairs := result.outcome.pairs) is not None:
        yield f"{counted(pairs, 'pair')} of jobs on the same GPUs"
    yield (
        f"{result.outcome.decisions:,} decisions at {result.outcome.events:,} instants in "
        f"{result.wall_s:.2f} s"
    )
    yield from chosen.notes
    for word, table in _TABLES.items():
        if word in by:
            yield table(grid.GROUPS[word](records, gpus=shape.gpus))


def _lay_lines(place: str, lay: Lay) -> Text:
    lines = [
        f"placed by {safe(place, _PLACE)}",
        f"  nodes of a job       {number(lay.mean_nodes)} on average",
        f"  skewed jobs spread   {percent(lay.skewed_spread_frac)}",
        f"  speed of a job       {percent(lay.mean_speed)} of its best place's, on average",
    ]
    if lay.rungs:
        counts = ", ".join(f"{n:,} {_RUNGS.get(rung, rung)}" for rung, n in lay.rungs.items())
        lines.append(f"  speeds of jobs that were spread: {counts}")
    return Text("\n".join(lines))
