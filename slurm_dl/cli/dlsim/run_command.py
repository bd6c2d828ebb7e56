"""``dlsim run``: one trace, one policy."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

import click

from slurm_dl.cli.commandline import EXIT_FAILED
from slurm_dl.cli.dlsim.simulation_options import (
    check_outputs,
    check_place,
    cluster_options,
    foresight_options,
    min_quantum_option,
    place_options,
    quiet_option,
    read_value,
    tags_option,
    trace_argument,
)
from slurm_dl.experiments import cluster_presets, placement_choice, results, simulation_run
from slurm_dl.experiments.oracle import parse_foresight
from slurm_dl.experiments.simulation_run import Result
from slurm_dl.model.trace import Trace
from slurm_dl.report.console import console, progress
from slurm_dl.simulation.cluster_shape import ClusterShape, parse_shape
from slurm_dl.text import safe
from slurm_dl.traces.format_registry import read_trace
from slurm_dl.traces.made_tags import tagged


@click.command(name="run")
@trace_argument
@cluster_options
@click.option(
    "--policy",
    metavar="NAME",
    required=True,
    help="'dlsim policies' lists them; slurm: with --costs slurm, Slurm alone.",
)
@click.option(
    "--preset",
    metavar="NAME",
    help="Whose reading of the policy, see 'dlsim policies'; if not given, none: the policy's own "
    "parameters, as under dlschedd.",
)
@click.option(
    "-p", "parameters", metavar="KEY=VALUE", multiple=True, help="Set a parameter of the policy."
)
@place_options(several=False)
@min_quantum_option("a run is left alone for so long before it may be preempted; 900 if not given.")
@foresight_options
@tags_option
@click.option(
    "--node-failures",
    metavar="DAYS:HOURS",
    help="With --costs slurm: nodes break once in so many days, and are back after so many hours, "
    "both on average.",
)
@click.option(
    "--json", "json_path", type=click.Path(path_type=Path), help="Write the figures here."
)
@click.option(
    "--jobs-csv", "csv_path", type=click.Path(path_type=Path), help="Write every job here."
)
@click.option(
    "--plots",
    "plots_dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write pictures into this directory: JCT distribution, utilisation and queue over time.",
)
@click.option("--by", type=click.Choice(["size", "user"]), multiple=True, help="Also by group.")
@quiet_option
def run_command(
    *,
    trace: Path,
    format_name: str | None,
    cluster: str,
    costs: str | None,
    seed: int,
    policy: str,
    preset: str | None,
    parameters: tuple[str, ...],
    place: str | None,
    rules: tuple[str, ...],
    profiles: Path | None,
    widths: Literal["any", "fewest"],
    contention: str | None,
    min_quantum_s: float | None,
    gpu_speed: str | None,
    estimate_error: float,
    due: str | None,
    tags: str,
    node_failures: str | None,
    json_path: Path | None,
    csv_path: Path | None,
    plots_dir: Path | None,
    by: tuple[str, ...],
    quiet: bool,
) -> None:
    """Run TRACE under a policy and say what became of the jobs.

    Ends with status 1 if not every job finished.

    Times in the results are those of the trace. A discrete-event simulation: no time passes but in
    it, and the same trace, policy and seed give the same result.

    \b
    Examples:
      dlsim run traces/tiresias/60_job.csv --cluster 4x4 --policy discrete_las
      dlsim run traces/muri/trace3.csv --cluster 8x8 --policy srtf --preset muri
      dlsim run traces/tiresias/60_job.csv --cluster 4x4@2 --policy discrete_las \\
        --place consolidate:skew_threshold=0.5 --contention 1250
      dlsim run traces/tiresias-derived/itp10.csv --cluster 2x8 --policy discrete_las \\
        --preset tiresias-artifact -p promote_knob=8 --json out.json --jobs-csv jobs.csv
    """  # noqa: D301 - \b is click\'s mark
    check_outputs(json_path, csv_path, plots_dir)
    shape = parse_shape(cluster)
    given = simulation_run.parse_parameters(parameters, read_value)
    jobs = tagged(read_trace(trace, format_name), tags)
    scheme = None if place is None else placement_choice.parse_scheme(place, read_value)
    check_place(given=scheme is not None)
    ground = placement_choice.parse_ground(rules, profiles, widths, contention, read_value)
    ground = dataclasses.replace(ground, foresight=parse_foresight(gpu_speed, estimate_error, due))
    wish = simulation_run.PolicySpec(
        policy=policy, preset=preset, parameters=given, place=scheme, min_quantum_s=min_quantum_s
    )
    chosen = simulation_run.choose(wish, jobs, on_slurm=cluster_presets.is_slurm(costs))
    simulated = cluster_presets.find(costs, chosen.preset, jobs)
    simulated = cluster_presets.with_failures(simulated, node_failures)
    simulated = cluster_presets.with_ground(simulated, scheme, ground)
    simulated.check(chosen)
    with progress(f"{safe(jobs.name)}: {policy}", len(jobs)) as report:
        result = simulation_run.run(chosen, jobs, simulated, shape, seed=seed, progress=report)
    if not quiet:
        _show(jobs, shape, result, by)
    if json_path:
        results.write_json(json_path, jobs, shape, result, by)
    if csv_path:
        results.write_jobs(csv_path, result)
    if plots_dir:
        results.draw({wish.label: result}, shape, plots_dir)
    unfinished = int((~result.outcome.records.finished).sum())
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
