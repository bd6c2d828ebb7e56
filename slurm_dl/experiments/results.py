"""What a simulation amounts to, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from slurm_dl.experiments import placement_choice
from slurm_dl.experiments.placement_choice import LayFigures
from slurm_dl.experiments.simulation_run import Result, parameters
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.trace import Trace
from slurm_dl.report import export, summary_metrics
from slurm_dl.report.number_format import number, percent
from slurm_dl.report.tables import run_tables, sizes_table, users_table
from slurm_dl.simulation.cluster_shape import ClusterShape
from slurm_dl.text import safe
from slurm_dl.traces.summary import summarize

if TYPE_CHECKING:
    from rich.console import RenderableType

_S_PER_DAY = 86400.0
_PLACE = 60


def as_json(
    trace: Trace, shape: ClusterShape, result: Result, by: tuple[str, ...] = ()
) -> dict[str, object]:
    """One simulation as plain values; the keys are those of `docs/evaluate/simulator.md`."""
    records = result.outcome.records
    summary = summary_metrics.summarise(records, gpus=shape.gpus)
    groups: dict[str, object] = {}
    if "size" in by:
        groups["by_size"] = export.groups_json(summary_metrics.by_size(records, gpus=shape.gpus))
    if "user" in by:
        groups["by_user"] = export.groups_json(summary_metrics.by_user(records, gpus=shape.gpus))
    return {
        "trace": trace.name,
        "format": trace.format,
        "cluster": str(shape),
        "policy": result.chosen.policy,
        "preset": result.chosen.preset,
        "parameters": {
            k: list(v) if isinstance(v, tuple) else v
            for k, v in parameters(result.chosen.made).items()
        },
        "costs": result.costs,
        "place": result.place,
        "seed": result.seed,
        **export.summary_json(summary),
        **placement_choice.as_json(placement_choice.figures_of(result.outcome.lay)),
        "decisions": result.outcome.decisions,
        "events": result.outcome.events,
        "wall_s": result.wall_s,
        "notes": list(result.chosen.notes),
        **groups,
    }


def write_json(
    path: Path, trace: Trace, shape: ClusterShape, result: Result, by: tuple[str, ...] = ()
) -> None:
    """Write `as_json` to *path*.

    Raises:
        ConfigError: It cannot be written.
    """
    export.write_json(path, as_json(trace, shape, result, by))


def write_jobs(path: Path, result: Result) -> None:
    """Write every job to *path* as CSV.

    Raises:
        ConfigError: It cannot be written.
    """
    export.write_jobs_csv(path, result.outcome.records)


def draw(results: Mapping[str, Result], shape: ClusterShape, directory: Path) -> list[Path]:
    """Write the pictures of these simulations into *directory*, and say which."""
    from slurm_dl.report import plots, style  # noqa: PLC0415 - matplotlib takes half a second

    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        msg = f"--plots {directory}: {err.strerror}; name a directory that can be made"
        raise ConfigError(msg) from err
    records = {name: r.outcome.records for name, r in results.items()}
    figures = {
        "jct": plots.jct_distribution(records),
        "over_time": plots.over_time(records, gpus=shape.gpus),
        "comparison": plots.comparison(
            {name: summary_metrics.summarise(r, gpus=shape.gpus) for name, r in records.items()}
        ),
    }
    if len(results) == 1:
        del figures["comparison"]
    written = []
    for name, figure in figures.items():
        path = directory / f"{name}.png"
        style.save(figure, path)
        written.append(path)
    return written


def read_lines(trace: Trace) -> Iterator[str]:
    """What was read, and what was left out and why."""
    summary = summarize(trace)
    yield (
        f"{summary.name} ({summary.format}): {summary.jobs:,} jobs, "
        f"{summary.gpu_hours:,.1f} GPU-hours over {summary.span_s / _S_PER_DAY:.1f} days"
    )
    for kind in summary.left_out:
        yield f"left out {kind.lines:,} lines: {kind.reason} ({kind.examples[0]})"


def tables(shape: ClusterShape, result: Result, by: tuple[str, ...]) -> Iterator[RenderableType]:
    """The figures of one simulation."""
    records = result.outcome.records
    chosen = result.chosen
    title = f"{chosen.policy} on {shape}, preset {chosen.preset}, costs {result.costs}"
    yield run_tables(summary_metrics.summarise(records, gpus=shape.gpus), title=title)
    figures = placement_choice.figures_of(result.outcome.lay)
    if figures is not None:
        yield _lay_lines(result.place, figures)
    yield (
        f"{result.outcome.decisions:,} decisions at {result.outcome.events:,} instants in "
        f"{result.wall_s:.2f} s"
    )
    yield from chosen.notes
    if "size" in by:
        yield sizes_table(summary_metrics.by_size(records, gpus=shape.gpus))
    if "user" in by:
        yield users_table(summary_metrics.by_user(records, gpus=shape.gpus))


def _lay_lines(place: str, figures: LayFigures) -> Text:
    lines = [
        f"placed by {safe(place, _PLACE)}",
        f"  nodes of a job       {number(figures.mean_nodes)} on average",
        f"  skewed jobs spread   {percent(figures.skewed_spread_frac)}",
        f"  speed of a job       {percent(figures.mean_speed)} of its best place's, on average",
    ]
    if figures.about_speeds:
        lines.append(f"  {figures.about_speeds}")
    return Text("\n".join(lines))
