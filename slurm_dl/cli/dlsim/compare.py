"""``dlsim compare``: one trace under several policies, here or as an array of a Slurm cluster."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Unpack

import click

from slurm_dl.cli.commandline import EXIT_FAILED
from slurm_dl.cli.dlsim import comparison_text
from slurm_dl.cli.dlsim.asked import (
    PlacementOptions,
    check_outputs,
    check_picture,
    given_options,
    manifest,
    placement_of,
    run_all,
)
from slurm_dl.experiments import array_job, comparison, grid, policy_words
from slurm_dl.experiments.array_job import ArrayRequest, Folder
from slurm_dl.experiments.cell_store import Manifest, Store
from slurm_dl.experiments.comparison import Compared, Comparison, Refused
from slurm_dl.experiments.grid import Cell, Experiment, Figures, Workload
from slurm_dl.experiments.option_words import parse_parameters
from slurm_dl.experiments.process_pool import WorkFault
from slurm_dl.report import export
from slurm_dl.report.terminal_table import progress, unit_of
from slurm_dl.simulation.cluster_shape import parse_shape
from slurm_dl.simulation.ideal import presets
from slurm_dl.text import safe
from slurm_dl.traces.format_registry import read_trace
from slurm_dl.traces.workload_generator import tagged

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_A_DAY_S = 86_400.0
_MOST_TOLD = 20
_DRAWN: Final = 28
_BARS: Final = ("avg_jct_s", "p95_jct_s", "max_rho")
_IN_FOLDER = (
    "trace", "format_name", "parameters", "places", "rules", "cluster", "costs", "policies",
    "profiles", "widths", "contention", "loads", "resamples", "seeds", "seed", "block_days",
    "tags", "gpu_speed", "estimate_error", "due", "rates", "elastic", "expand", "steadiness",
    "pairs",
)  # fmt: skip
"""Options whose values stand in the folder of an array."""


def compare(
    *,
    trace: Path | None,
    format_name: str | None,
    cluster: str | None,
    costs: tuple[str, ...],
    policies: str | None,
    parameters: tuple[str, ...],
    tags: str,
    loads: str,
    resamples: int,
    seed: int,
    block_days: int | None,
    processes: int | None,
    json_path: Path | None,
    csv_path: Path | None,
    plot_path: Path | None,
    quiet: bool,
    where: str,
    directory: Path | None,
    resume: bool,
    partition: str | None,
    time_limit: str | None,
    array_limit: int | None,
    within_s: float | None,
    **placed: Unpack[PlacementOptions],
) -> None:
    """Run ``dlsim compare``; the arguments are its options."""
    _check_where(where, directory)
    check_outputs(json_path, csv_path, plot_path)
    check_picture(plot_path)
    if plot_path and len(costs) > 1 and "," in loads:
        msg = "--plot: several --costs and several --loads are too much for one picture"
        raise click.UsageError(msg)
    request = ArrayRequest(partition=partition, time=time_limit, most_at_once=array_limit)
    refused: Refused = {}
    if resume and directory is not None:
        folder = Folder.open(directory)
        experiment, refused = folder.experiment, folder.refused
        made = manifest(experiment, folder.cells)
        found = _gathered(folder, request, within_s, quiet=quiet)
    else:
        if cluster is None and policies is not None:
            asked = policy_words.parse_policies(policies, parse_parameters(parameters))
            cluster = presets.cluster_of(spec.preset for spec in asked)
        missing = {"TRACE": trace, "--cluster": cluster, "--policies": policies}
        if trace is None or cluster is None or policies is None:
            names = ", ".join(name for name, value in missing.items() if value is None)
            msg = f"what is compared? give {names}"
            raise click.UsageError(msg)
        given = parse_parameters(parameters)
        schemes, ground = placement_of(**placed)
        specs = policy_words.with_places(policy_words.parse_policies(policies, given), schemes)
        cells = grid.product(
            specs,
            costs=costs or (None,),
            loads=policy_words.parse_loads(loads),
            resamples=resamples,
        )
        jobs = tagged(read_trace(trace, format_name), tags)
        experiment = Experiment(
            workloads={"": Workload(cluster=cluster, trace=jobs, tags=tags)},
            ground=ground,
            seed=seed,
            block_days=block_days,
        )
        lenient = policy_words.names_all(policies)
        cells, refused = comparison.planned(experiment, cells, lenient=lenient)
        made = manifest(experiment, cells)
        if where == "local":
            store = None if directory is None else Store(directory, experiment).begin()
            title = _title(experiment, cells)
            found = run_all(title, experiment, cells, grid.figures_of, processes, store=store)
        else:
            assert directory is not None  # noqa: S101 - `_check_where` asks for it
            folder = Folder.create(directory, experiment, cells, refused)
            found = _gathered(folder, request, within_s, quiet=quiet)
    ran = comparison.compared(experiment, found, refused)
    _report(made, ran, json_path=json_path, csv_path=csv_path, plot_path=plot_path, quiet=quiet)


def _report(
    made: Manifest,
    ran: Compared,
    *,
    json_path: Path | None,
    csv_path: Path | None,
    plot_path: Path | None,
    quiet: bool,
) -> None:
    """Print and write everything; status 1 if simulations failed or left jobs undone."""
    jobs = ran.experiment.workloads[""].jobs
    if not quiet:
        comparison_text.show(jobs, ran)
    if json_path:
        export.write_json(json_path, {"manifest": made, **comparison.as_json(jobs, ran)})
    if csv_path:
        export.write_csv(csv_path, comparison.as_csv(ran), made)
    if plot_path:
        _draw(ran.comparisons, plot_path, made)
    _end(ran)


def _title(experiment: Experiment, cells: tuple[Cell, ...]) -> str:
    return f"{experiment.workloads[''].jobs.name}: {len(cells)} simulations"


def _check_where(where: str, directory: Path | None) -> None:
    """Refuse options that belong to the other place, or whose values a folder holds."""
    given = given_options()
    for_slurm = ("resume", "partition", "time_limit", "array_limit", "within_s")
    wrong: list[str] = []
    if where == "local":
        wrong = [f"{given[name]} is for --on slurm" for name in for_slurm if name in given]
        if "resume" in given:
            wrong = ["--resume is for --on slurm; here the same command with --dir goes on"]
    elif directory is None:
        wrong = ["--on slurm needs --dir, a folder on a file system that all nodes see"]
    elif "processes" in given:
        wrong = ["-j is for --on local; with --on slurm --array-limit says how many run at a time"]
    elif "resume" in given:
        wrong = [
            f"{given[name]} stands in the folder that --resume goes on with; leave it out"
            for name in _IN_FOLDER
            if name in given
        ]
    if wrong:
        raise click.UsageError(wrong[0])


def _gathered(
    folder: Folder, request: ArrayRequest, within_s: float | None, *, quiet: bool
) -> dict[Cell, Figures | WorkFault]:
    """Run what is missing on Slurm, and wait for it."""
    try:
        array_job.submit(folder, request, os.environ, (lambda _: None) if quiet else _say)
        with progress(_title(folder.experiment, folder.cells), len(folder.cells)) as report:
            within_s = within_s or _A_DAY_S
            return dict(array_job.wait(folder, os.environ, within_s=within_s, progress=report))
    except KeyboardInterrupt:
        if ids := " ".join(map(str, folder.submitted())):
            _say(f"the array goes on: 'scancel {ids}' ends it, --dir and --resume gather it")
        raise


def _say(text: str) -> None:
    click.echo(f"dlsim compare: {safe(text, 1000)}", err=True)


def _end(ran: Compared) -> None:
    """Name the simulations that failed or left jobs undone; status 1 if there are any."""
    (workload,) = ran.experiment.workloads.values()
    gpus = parse_shape(workload.cluster).gpus
    lines = [fault.why for fault in ran.failed.values()]
    lines += [line for c in ran.comparisons for line in comparison_text.unfinished(c, gpus)]
    for line in lines[:_MOST_TOLD]:
        _say(line)
    if len(lines) > _MOST_TOLD:
        _say(f"and so in {len(lines) - _MOST_TOLD} more simulations")
    if lines:
        raise SystemExit(EXIT_FAILED)


def sweep_cell(*, directory: Path, task: int) -> None:
    """Run ``dlsim sweep-cell``."""
    failed = Folder.open(directory).run_task(task)
    for text in failed:
        click.echo(f"dlsim sweep-cell: {text}", err=True)
    if failed:
        raise SystemExit(EXIT_FAILED)


def _draw(comparisons: Sequence[Comparison], path: Path, manifest: Manifest) -> None:
    """Write one picture to *path*.

    Args:
        comparisons: Under different cost models; with several loads only the first is drawn.
    """
    from slurm_dl.report import plots, style  # noqa: PLC0415 - matplotlib takes 0.5 s

    first = comparisons[0]
    if len(first.loads) > 1:
        style.save(_over_loads(first), path, manifest)
        return
    names = _drawn_names([policy.short_label for c in comparisons for policy in c.policies])
    runs = {
        one.costs_name: {
            names[row.label]: {
                "jobs": row.jobs,
                "finished": row.jobs - row.unfinished,
                **{name: row.figures[name].own.value for name in _BARS},
            }
            for row in one.best_first(one.loads[0])
        }
        for one in comparisons
    }
    style.save(plots.ranking(runs), path, manifest)


def _drawn_names(labels: Sequence[str]) -> dict[str, str]:
    """Names of policies in a picture: of a name that is cut there the preset alone."""
    presets = {label: label.partition(":")[2] for label in labels}
    drawn = list(presets.values())
    return {
        label: preset if len(label) > _DRAWN and drawn.count(preset) == 1 else label
        for label, preset in presets.items()
    }


def _over_loads(comparison: Comparison) -> Figure:
    """Mean JCT against the load, with the ranges as bands where there are resamples."""
    import numpy as np  # noqa: PLC0415 - with matplotlib, for pictures alone
    from matplotlib.ticker import (  # noqa: PLC0415
        FixedLocator,
        FuncFormatter,
        LogLocator,
        NullFormatter,
        NullLocator,
    )

    from slurm_dl.report import style  # noqa: PLC0415

    loads = np.array(sorted(comparison.loads))
    means_s = [row.mean_jct_s for row in comparison.rows]
    unit = unit_of(means_s)
    with style.styled():
        figure = style.canvas(height=4.2)
        axes = figure.add_subplot()
        axes.set_title("Mean job completion time")
        axes.set_xlabel("load, times the trace's arrival rate (log scale)")
        axes.set_ylabel(f"mean JCT ({unit.sign}, log scale)")
        if not any(math.isfinite(m) for m in means_s):
            style.nothing(axes, "no job finished")
            return figure
        axes.set_xscale("log")
        axes.set_yscale("log")
        lines = []
        labels = [policy.short_label for policy in comparison.policies]
        names = _drawn_names(labels)
        for i, label in enumerate(labels):
            rows = sorted((r for r in comparison.rows if r.label == label), key=lambda r: r.load)
            own = [row.figures["avg_jct_s"].own for row in rows]
            low, at, high = (
                np.array([getattr(one, end) for one in own]) / unit.in_s
                for end in ("low", "value", "high")
            )
            line = style.line(axes, loads, at, i)
            line.set(marker="o", markersize=4)
            if own[0].is_known:
                axes.fill_between(loads, low, high, color=style.colour(i), alpha=0.15, lw=0)
            lines.append((style.label_of(names[label]), line))
        axes.xaxis.set_major_locator(FixedLocator(loads.tolist()))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.grid(visible=True, axis="y")
        style.key_below(figure, lines)
        return figure
