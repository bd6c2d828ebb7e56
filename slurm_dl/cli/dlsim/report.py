"""``dlsim report``: schedules as one HTML page that needs nothing beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Unpack

import click

from slurm_dl.cli.commandline import EXIT_FAILED
from slurm_dl.cli.dlsim.asked import (
    PlacementOptions,
    check_outputs,
    manifest,
    placement_of,
    run_all,
)
from slurm_dl.experiments import grid, policy_words
from slurm_dl.experiments.cell_store import Manifest
from slurm_dl.experiments.grid import Cell, Experiment, Simulated, Workload
from slurm_dl.experiments.option_words import parse_parameters
from slurm_dl.experiments.simulation_run import Result
from slurm_dl.model.completed_jobs import Records
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.trace import Trace
from slurm_dl.report.export import write_whole
from slurm_dl.report.html import page
from slurm_dl.report.html.page_data import Schedule, Subject, page_data
from slurm_dl.simulation.cluster_shape import ClusterShape, parse_shape
from slurm_dl.text import safe
from slurm_dl.traces.format_registry import read_trace
from slurm_dl.traces.recorded_schedule import RecordedSchedule, read_recorded

_MOST_POLICIES: Final = 9  # The page's keys 1 to 9 switch between them
RECORDED: Final = "recorded"  # What the schedule is called that really was


def report(
    *,
    trace: Path,
    format_name: str | None,
    cluster: str,
    costs: str | None,
    seed: int,
    policies: str | None,
    recorded: bool,
    parameters: tuple[str, ...],
    out_path: Path,
    quiet: bool,
    **placed: Unpack[PlacementOptions],
) -> None:
    """Run ``dlsim report``; the arguments are its options."""
    check_outputs(out_path)
    if out_path.suffix.lower() not in (".html", ".htm"):
        msg = f"--out {out_path}: name a file that ends with .html"
        raise click.UsageError(msg)
    shape = parse_shape(cluster)
    given = parse_parameters(parameters)
    schemes, ground = placement_of(**placed)
    if policies is None and not recorded:
        msg = "say what is to be shown: --policies NAME, or --recorded for what really happened"
        raise click.UsageError(msg)
    cells: tuple[Cell, ...] = ()
    if policies is not None:
        specs = policy_words.parse_policies(policies, given)
        cells = grid.product(policy_words.with_places(specs, schemes), costs=(costs,))
    if len(cells) + recorded > _MOST_POLICIES:
        msg = f"--policies: a page shows at most {_MOST_POLICIES} (got {len(cells) + recorded})"
        raise click.UsageError(msg)
    jobs = read_trace(trace, format_name)
    workload = Workload(cluster=cluster, trace=jobs)
    experiment = Experiment(workloads={"": workload}, ground=ground, seed=seed, notes_nodes=True)
    schedules = [_real_schedule(trace, read_recorded(trace, jobs))] if recorded else []
    for cell in cells:
        experiment.ready(cell)
    made = manifest(experiment, cells)
    results = grid.all_of(run_all(jobs.name, experiment, cells, _result_of, None))
    schedules += [
        Schedule(label=cell.policy.label, about=_about(result), records=result.outcome.records)
        for cell, result in results.items()
    ]
    told = _write(out_path, jobs, shape, schedules, made)
    if not quiet:
        click.echo(told)
    if recorded:
        _say_unknown(schedules[0].records)
    _say_unfinished(results)


def _real_schedule(path: Path, real: RecordedSchedule | None) -> Schedule:
    """What really happened, as a schedule."""
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


def _result_of(simulated: Simulated) -> Result:
    return simulated.result


def _write(
    path: Path, jobs: Trace, shape: ClusterShape, schedules: Sequence[Schedule], made: Manifest
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
    content = page({**page_data(subject, schedules), "manifest": made}).encode("utf-8")
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


def _say_unfinished(results: Mapping[Cell, Result]) -> None:
    """Name the policies under which jobs did not finish; status 1 if there are any."""
    failed = False
    for cell, result in results.items():
        records = result.outcome.records
        unfinished = int((~records.finished).sum())
        if unfinished:
            failed = True
            label = cell.policy.label
            text = f"{unfinished:,} of {len(records):,} jobs did not finish under {label}"
            click.echo(f"dlsim report: {safe(text)}", err=True)
    if failed:
        raise SystemExit(EXIT_FAILED)
