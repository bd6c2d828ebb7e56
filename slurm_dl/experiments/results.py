"""What a simulation amounts to, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from slurm_dl.experiments.grid import Simulated, figures_of
from slurm_dl.experiments.manifest import Manifest
from slurm_dl.experiments.simulation_run import Result
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.trace import Trace
from slurm_dl.policies import policy_file
from slurm_dl.report import export, summary_metrics
from slurm_dl.report.number_format import number, percent
from slurm_dl.report.tables import run_tables, sizes_table, users_table
from slurm_dl.simulation.cluster_shape import ClusterShape
from slurm_dl.simulation.outcome import Lay
from slurm_dl.text import safe
from slurm_dl.traces.summary import summarize

if TYPE_CHECKING:
    from rich.console import RenderableType

_S_PER_DAY = 86400.0
_PLACE = 60
_GROUPS = {
    "size": (summary_metrics.by_size, sizes_table),
    "user": (summary_metrics.by_user, users_table),
}
_RUNGS = {"skew": "by skew"}


def as_json(simulated: Simulated, by: tuple[str, ...] = ()) -> dict[str, object]:
    """One simulation as plain values; the keys are those of `docs/evaluate/simulator.md`."""
    trace, shape, result = simulated.jobs, simulated.shape, simulated.result
    records = result.outcome.records
    figures = figures_of(simulated)
    del figures["too_large"], figures["blocks"]
    return {
        "trace": trace.name,
        "format": trace.format,
        "cluster": str(shape),
        "policy": result.chosen.wish.policy,
        "place": result.place,
        "seed": result.seed,
        **figures,
        **{
            f"by_{word}": export.groups_json(group(records, gpus=shape.gpus))
            for word, (group, _) in _GROUPS.items()
            if word in by
        },
    }


def draw(simulated: Simulated, directory: Path, manifest: Manifest) -> None:
    """Write the pictures of a simulation into *directory*.

    Raises:
        ConfigError: They cannot be written.
    """
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
    policy = policy_file.short(chosen.wish.policy)
    title = f"{policy} on {shape}, preset {chosen.preset}, costs {result.costs}"
    yield run_tables(summary_metrics.summarise(records, gpus=shape.gpus), title=title)
    if result.outcome.lay is not None:
        yield _lay_lines(result.place, result.outcome.lay)
    yield (
        f"{result.outcome.decisions:,} decisions at {result.outcome.events:,} instants in "
        f"{result.wall_s:.2f} s"
    )
    yield from chosen.notes
    for word, (group, table) in _GROUPS.items():
        if word in by:
            yield table(group(records, gpus=shape.gpus))


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
