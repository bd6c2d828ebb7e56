"""``dlsim report``: schedules as one HTML page that needs nothing beside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

import click

from slurm_dl.cli.commandline import EXIT_FAILED
from slurm_dl.cli.dlsim.simulation_options import (
    check_outputs,
    check_place,
    cluster_options,
    foresight_options,
    parameters_option,
    place_options,
    policies_option,
    quiet_option,
    read_value,
    trace_argument,
)
from slurm_dl.experiments import cluster_presets, placement_choice, simulation_run, sweep
from slurm_dl.experiments.oracle import parse_foresight
from slurm_dl.experiments.placement_choice import PlacementSetup
from slurm_dl.experiments.simulation_run import PolicySpec, Result
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.job_record import Records
from slurm_dl.model.trace import Trace
from slurm_dl.report.atomic_files import write_whole
from slurm_dl.report.console import progress
from slurm_dl.report.html import page
from slurm_dl.report.html.page_data import Schedule, Subject, page_data
from slurm_dl.simulation.cluster_shape import ClusterShape, parse_shape
from slurm_dl.text import safe
from slurm_dl.traces.format_registry import read_trace
from slurm_dl.traces.recorded_schedule import RecordedSchedule, read_recorded

_MOST_POLICIES: Final = 9
"""The page's keys 1 to 9 switch between them."""

RECORDED: Final = "recorded"
"""What the schedule is called that really was."""


@click.command(name="report")
@trace_argument
@cluster_options
@policies_option("What is shown, 1 to 9 of them. 'dlsim policies' lists names and presets.")
@click.option(
    "--recorded",
    is_flag=True,
    help="Show what really happened beside them, or alone; TRACE must be of Slurm's accounting.",
)
@parameters_option
@place_options(several=False)
@foresight_options
@click.option(
    "--out",
    "out_path",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="Write the page here (.html).",
)
@quiet_option
def report_command(
    *,
    trace: Path,
    format_name: str | None,
    cluster: str,
    costs: str | None,
    seed: int,
    policies: str | None,
    recorded: bool,
    parameters: tuple[str, ...],
    place: str | None,
    rules: tuple[str, ...],
    profiles: Path | None,
    widths: Literal["any", "fewest"],
    contention: str | None,
    gpu_speed: str | None,
    estimate_error: float,
    due: str | None,
    out_path: Path,
    quiet: bool,
) -> None:
    """Draw what becomes of TRACE under one or more policies, as one page for a browser.

    The page shows the jobs on the GPUs over time, to zoom and to search, how long jobs took and
    waited, how much of the cluster was in use, and how users fared. It is one file, holds all of
    its data and loads nothing. Names of jobs and users are in it: see who may read it.

    Ends with status 1 if not every job finished; the page is written all the same.

    \b
    Examples:
      dlsim report traces/tiresias/60_job.csv --cluster 4x4 --policies discrete_las,fifo \\
        --out report.html
      dlsim report traces/tiresias-derived/itp10.csv --cluster 2x8 --policies srtf,las \\
        --out report.html
      dlsim report history.txt --cluster 8x8 --recorded --policies discrete_las --out week.html
    """  # noqa: D301 - \b is click's mark
    check_outputs(out_path)
    if out_path.suffix.lower() not in (".html", ".htm"):
        msg = f"--out {out_path}: name a file that ends with .html"
        raise click.UsageError(msg)
    shape = parse_shape(cluster)
    given = simulation_run.parse_parameters(parameters, read_value)
    scheme = None if place is None else placement_choice.parse_scheme(place, read_value)
    check_place(given=scheme is not None)
    if policies is None and not recorded:
        msg = "say what is to be shown: --policies NAME, or --recorded for what really happened"
        raise click.UsageError(msg)
    wishes: Sequence[PolicySpec] = []
    if policies is not None:
        parsed = sweep.parse_policies(policies, given)
        wishes = sweep.with_places(parsed, [scheme] if scheme else [])
        sweep.check_counts(wishes, (1.0,), 1)
    if len(wishes) + recorded > _MOST_POLICIES:
        msg = f"--policies: a page shows at most {_MOST_POLICIES} (got {len(wishes) + recorded})"
        raise click.UsageError(msg)
    ground = placement_choice.parse_ground(rules, profiles, widths, contention, read_value)
    ground = dataclasses.replace(ground, foresight=parse_foresight(gpu_speed, estimate_error, due))
    jobs = read_trace(trace, format_name)
    schedules = [_real_schedule(trace, read_recorded(trace, jobs))] if recorded else []
    results = _simulate(wishes, jobs, shape, costs=costs, ground=ground, seed=seed)
    schedules += [
        Schedule(label=wish.label, about=_about(result), records=result.outcome.records)
        for wish, result in zip(wishes, results, strict=True)
    ]
    told = _write(out_path, jobs, shape, schedules)
    if not quiet:
        click.echo(told)
    if recorded:
        _say_unknown(schedules[0].records)
    _say_unfinished(wishes, results)


def _real_schedule(path: Path, real: RecordedSchedule | None) -> Schedule:
    """What really happened, as a schedule.

    Raises:
        ConfigError: The trace does not tell.
    """
    if real is None:
        msg = (
            f"--recorded: {path} does not tell when jobs really ran; "
            "make a trace of Slurm's accounting: dlsim history --since DATE OUT"
        )
        raise ConfigError(msg)
    if not real.knows_runs:
        msg = f"--recorded: {path} has no column Start, or no time in it; 'dlsim history' writes it"
        raise ConfigError(msg)
    about = ("as Slurm's accounting has it", "GPUs of the jobs of this trace alone")
    return Schedule(label=RECORDED, about=about, records=real.records)


def _simulate(
    wishes: Sequence[PolicySpec],
    jobs: Trace,
    shape: ClusterShape,
    *,
    costs: str | None,
    ground: PlacementSetup,
    seed: int,
) -> list[Result]:
    prepared = []
    # What is wrong with any of them is told before the first runs.
    for wish in wishes:
        chosen = simulation_run.choose(wish, jobs, on_slurm=cluster_presets.is_slurm(costs))
        simulated = cluster_presets.find(costs, chosen.preset, jobs)
        simulated = cluster_presets.with_ground(simulated, wish.place, ground)
        simulated = cluster_presets.with_nodes_noted(simulated)
        simulated.check(chosen)
        prepared.append((wish, chosen, simulated))
    results = []
    for wish, chosen, simulated in prepared:
        with progress(f"{safe(jobs.name, 60)}: {safe(wish.label, 60)}", len(jobs)) as told:
            results.append(
                simulation_run.run(chosen, jobs, simulated, shape, seed=seed, progress=told)
            )
    return results


def _write(
    path: Path,
    jobs: Trace,
    shape: ClusterShape,
    schedules: Sequence[Schedule],
) -> str:
    """Write the page; says how large it is."""
    names = [jobs.models[m] if m >= 0 else "" for m in jobs.model.tolist()]
    subject = Subject(
        title=jobs.name,
        cluster=str(shape),
        node_gpus=tuple(g.gpus for g in shape.groups for _ in range(g.nodes)),
        names=names if any(names) else None,
        accounts=jobs.account_names,
    )
    content = page(page_data(subject, schedules)).encode("utf-8")
    write_whole(path, content)
    runs = sum(len(schedule.records.runs) for schedule in schedules)
    return f"{safe(str(path))}: {len(jobs):,} jobs, {runs:,} runs, {len(content) / 1e3:,.0f} KB"


def _about(result: Result) -> tuple[str, ...]:
    placed = (f"placed by {result.place}",) if result.place else ()
    return (
        f"preset {result.chosen.preset}",
        f"costs {result.costs}",
        *placed,
        f"seed {result.seed}",
        *result.chosen.notes,
    )


def _say_unknown(records: Records) -> None:
    """How many jobs of what really happened have no run that could be drawn."""
    unknown = int((~records.finished).sum())
    if unknown:
        text = f"of {unknown:,} of {len(records):,} jobs it is not known when they ran"
        click.echo(f"dlsim report: {text}; they are not drawn under {RECORDED}", err=True)


def _say_unfinished(wishes: Sequence[PolicySpec], results: Sequence[Result]) -> None:
    """Name the policies under which jobs did not finish; status 1 if there are any."""
    failed = False
    for wish, result in zip(wishes, results, strict=True):
        records = result.outcome.records
        unfinished = int((~records.finished).sum())
        if unfinished:
            failed = True
            text = f"{unfinished:,} of {len(records):,} jobs did not finish under {wish.label}"
            click.echo(f"dlsim report: {safe(text)}", err=True)
    if failed:
        raise SystemExit(EXIT_FAILED)
