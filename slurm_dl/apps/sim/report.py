"""``dlsim report``: schedules as one HTML page that needs nothing beside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import click

from slurm_dl.apps.commandline import EXIT_FAILED, safe
from slurm_dl.apps.sim.console import progress
from slurm_dl.apps.sim.options import (
    check_outputs,
    check_place,
    cluster_options,
    foresight_options,
    place_options,
    read_value,
    trace_argument,
)

if TYPE_CHECKING:
    from slurm_dl.apps.sim.experiment import Result, Wish
    from slurm_dl.apps.sim.places import Ground
    from slurm_dl.backends.sim.shape import ClusterShape
    from slurm_dl.model.trace import Trace

_MOST_POLICIES: Final = 9
"""The page's keys 1 to 9 switch between them."""


@click.command(name="report")
@trace_argument
@cluster_options
@click.option(
    "--policies",
    "--policy",
    "policies",
    metavar="NAME[:PRESET],...",
    required=True,
    help="What is shown, 1 to 9 of them. 'dlsim policies' lists names and presets.",
)
@click.option(
    "-p",
    "parameters",
    metavar="KEY=VALUE",
    multiple=True,
    help="Set a parameter of those policies that have one of this name.",
)
@place_options(several=False)
@foresight_options
@click.option(
    "--out",
    "out_path",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="Write the page here (.html).",
)
@click.option(
    "--png",
    "png_path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also draw jobs on GPUs and jobs waiting here (.png), for up to 6 policies.",
)
@click.option(
    "--svg",
    "svg_path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The same picture as SVG (.svg).",
)
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
def report_command(
    *,
    trace: Path,
    format_name: str | None,
    cluster: str,
    costs: str | None,
    seed: int,
    policies: str,
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
    png_path: Path | None,
    svg_path: Path | None,
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
        --out report.html --png report.png
    """  # noqa: D301 - \b is click's mark
    from slurm_dl.apps.sim import experiment, places, sweep  # noqa: PLC0415 - numpy is slow
    from slurm_dl.apps.sim.foresight import parse_foresight  # noqa: PLC0415
    from slurm_dl.backends.sim.shape import parse_shape  # noqa: PLC0415
    from slurm_dl.backends.traces.registry import read_trace  # noqa: PLC0415

    check_outputs(out_path, png_path, svg_path)
    _check_ending("--out", out_path, ".html", ".htm")
    _check_ending("--png", png_path, ".png")
    _check_ending("--svg", svg_path, ".svg")
    shape = parse_shape(cluster)
    given = experiment.parse_parameters(parameters, read_value)
    scheme = None if place is None else places.parse_scheme(place, read_value)
    check_place(given=scheme is not None)
    wishes = sweep.with_places(sweep.parse_policies(policies, given), [scheme] if scheme else [])
    sweep.check_counts(wishes, (1.0,), 1)
    _check_count(wishes, draws=png_path is not None or svg_path is not None)
    ground = places.parse_ground(rules, profiles, widths, contention, read_value)
    ground = dataclasses.replace(ground, foresight=parse_foresight(gpu_speed, estimate_error, due))
    jobs = read_trace(trace, format_name)
    results = _simulate(wishes, jobs, shape, costs=costs, ground=ground, seed=seed)
    told = _write(out_path, jobs, shape, wishes, results)
    pictures = [path for path in (png_path, svg_path) if path is not None]
    if pictures:
        _draw(pictures, jobs, shape, wishes, results)
    if not quiet:
        click.echo(told)
        for path in pictures:
            click.echo(safe(str(path)))
    _say_unfinished(wishes, results)


def _check_ending(option: str, path: Path | None, *endings: str) -> None:
    """Refuse a file whose name says that it is something else.

    Raises:
        UsageError: Its ending is none of *endings*.
    """
    if path is not None and path.suffix.lower() not in endings:
        msg = f"{option} {path}: name a file that ends with {endings[0]}"
        raise click.UsageError(msg)


def _check_count(wishes: Sequence[Wish], *, draws: bool) -> None:
    """Refuse more policies than there is room for.

    Raises:
        UsageError: There are more.
    """
    most, where = (6, "a picture shows") if draws else (_MOST_POLICIES, "a page shows")
    if len(wishes) > most:
        msg = f"--policies: {where} at most {most} (got {len(wishes)})"
        raise click.UsageError(msg)


def _simulate(
    wishes: Sequence[Wish],
    jobs: Trace,
    shape: ClusterShape,
    *,
    costs: str | None,
    ground: Ground,
    seed: int,
) -> list[Result]:
    from slurm_dl.apps.sim import clusters, experiment  # noqa: PLC0415

    prepared = []
    # What is wrong with any of them is told before the first runs.
    for wish in wishes:
        chosen = experiment.choose(wish, jobs, on_slurm=clusters.is_slurm(costs))
        simulated = clusters.find(costs, chosen.preset, jobs)
        simulated = clusters.with_ground(simulated, wish.place, ground)
        simulated.check(chosen)
        prepared.append((wish, chosen, simulated))
    results = []
    for wish, chosen, simulated in prepared:
        with progress(f"{safe(jobs.name, 60)}: {safe(wish.label, 60)}", len(jobs)) as told:
            results.append(experiment.run(chosen, jobs, simulated, shape, seed=seed, progress=told))
    return results


def _write(
    path: Path,
    jobs: Trace,
    shape: ClusterShape,
    wishes: Sequence[Wish],
    results: Sequence[Result],
) -> str:
    """Write the page; says how large it is."""
    from slurm_dl.report.files import write_whole  # noqa: PLC0415
    from slurm_dl.report.html.columns import Schedule, Subject, page_data  # noqa: PLC0415
    from slurm_dl.report.html.page import page  # noqa: PLC0415

    names = [jobs.models[m] if m >= 0 else "" for m in jobs.model.tolist()]
    subject = Subject(
        title=jobs.name,
        cluster=str(shape),
        node_gpus=_node_gpus(shape),
        names=names if any(names) else None,
    )
    schedules = [
        Schedule(label=wish.label, about=_about(result), records=result.outcome.records)
        for wish, result in zip(wishes, results, strict=True)
    ]
    content = page(page_data(subject, schedules)).encode("utf-8")
    write_whole(path, content)
    runs = sum(len(result.outcome.records.runs) for result in results)
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


def _draw(
    paths: Sequence[Path],
    jobs: Trace,
    shape: ClusterShape,
    wishes: Sequence[Wish],
    results: Sequence[Result],
) -> None:
    from slurm_dl.report import gantt, style  # noqa: PLC0415 - matplotlib takes half a second

    named = [
        (wish.label, result.outcome.records) for wish, result in zip(wishes, results, strict=True)
    ]
    figure = gantt.schedules(named, title=jobs.name, node_gpus=_node_gpus(shape))
    for path in paths:
        style.save(figure, path)


def _node_gpus(shape: ClusterShape) -> tuple[int, ...]:
    return tuple(group.gpus for group in shape.groups for _ in range(group.nodes))


def _say_unfinished(wishes: Sequence[Wish], results: Sequence[Result]) -> None:
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
