"""``dlsim run``: one trace, one policy."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

import click

from slurm_dl.cli.commandline import EXIT_FAILED
from slurm_dl.cli.dlsim.asked import PlacementOptions, check_outputs, manifest, placement_of
from slurm_dl.experiments import grid, results
from slurm_dl.experiments.cell_store import Store
from slurm_dl.experiments.grid import Cell, Experiment, Workload
from slurm_dl.experiments.option_words import parse_parameters
from slurm_dl.experiments.simulation_run import PolicySpec, Result
from slurm_dl.model.trace import Trace
from slurm_dl.report import export
from slurm_dl.report.terminal_table import console, progress
from slurm_dl.simulation.cluster_shape import ClusterShape, parse_shape
from slurm_dl.text import safe
from slurm_dl.traces.format_registry import read_trace
from slurm_dl.traces.made_tags import tagged


def run(
    *,
    trace: Path,
    format_name: str | None,
    cluster: str,
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
    store = None if directory is None else Store(directory, experiment)
    if store is not None:
        store.begin()
    with progress(f"{safe(jobs.name)}: {safe(spec.short_label, 60)}", 1) as report:
        whole = experiment.simulate(cell, report)
    result, records = whole.result, whole.result.outcome.records
    if not quiet:
        _show(jobs, shape, result, by)
    if json_path:
        export.write_json(json_path, {"manifest": made, **results.as_json(whole, by)})
    if csv_path:
        export.write_csv(csv_path, export.jobs_csv(records), made)
    if plots_dir:
        results.draw(whole, plots_dir, made)
    if store is not None:
        store.put(cell, grid.figures_of(whole), records)
    unfinished = int((~records.finished).sum())
    if unfinished:
        why = _why(jobs, shape, result)
        click.echo(f"dlsim run: {unfinished} of {len(jobs)} jobs did not finish: {why}", err=True)
        raise SystemExit(EXIT_FAILED)


def _show(trace: Trace, shape: ClusterShape, result: Result, by: tuple[str, ...]) -> None:
    out = console()
    for line in results.read_lines(trace):
        out.print(line, markup=False, highlight=False)
    for table in results.tables(shape, result, by):
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
