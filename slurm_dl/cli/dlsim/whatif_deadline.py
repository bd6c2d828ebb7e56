"""``dlsim whatif`` with a deadline or a curve of value: one more job, at many instants."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import click
import numpy as np
from rich.console import RenderableType

from slurm_dl.cli.commandline import EXIT_FAILED
from slurm_dl.cli.dlsim.asked import check_picture, given_options, read_lines, report
from slurm_dl.experiments.cell_store import Manifest
from slurm_dl.experiments.grid import Cell
from slurm_dl.experiments.process_pool import WorkError, WorkFault, process_pool
from slurm_dl.experiments.whatif_deadline import Probe, Probed, ProbeStudy, read_curve, summary
from slurm_dl.model.value_curve import ValueCurve
from slurm_dl.report import export
from slurm_dl.report.terminal_table import (
    NONE,
    Column,
    duration,
    number,
    percent,
    progress,
    table,
    unit_of,
)
from slurm_dl.simulation.cluster_shape import parse_shape
from slurm_dl.text import counted, safe

NO_COSTS: Final = (
    "starting and stopping costs nothing here, which favours policies that preempt: see --costs"
)
_FOR_DEADLINE: Final = ("gpus", "time_s", "instants", "plot_path")
_PERCENTILES: Final = ("p10", "p50", "p90", "mean")
_HOUR_S: Final = 3600.0


def probe_of(
    by: str | float,
    curve_path: Path | None,
    gpus: int | None,
    time_s: float | None,
    plot_path: Path | None,
) -> Probe | None:
    """The job that the options ask about; None if they rank policies by a figure.

    Raises:
        UsageError: Options contradict each other, or the job is not told.
    """
    given = given_options()
    if isinstance(by, str) and curve_path is None:
        if wrong := [option for name, option in given.items() if name in _FOR_DEADLINE]:
            msg = f"{wrong[0]} is for one more job: give its deadline, --by 5h, or --curve FILE"
            raise click.UsageError(msg)
        return None
    if "by" in given and isinstance(by, str):
        msg = f"--by {by} ranks policies, and --curve is of one job: give --by TIME or leave it out"
        raise click.UsageError(msg)
    if "block_days" in given:
        msg = "--block-days is for ranking by a figure: leave it out"
        raise click.UsageError(msg)
    if gpus is None or time_s is None:
        msg = "which job is to be done by then? give --gpus N and --time TIME, such as 2h"
        raise click.UsageError(msg)
    check_picture(plot_path)
    curve = None if curve_path is None else read_curve(curve_path)
    due_s = by if isinstance(by, float) else curve.due_s[0] if curve else 0.0
    curve = curve or ValueCurve((due_s,), (1.0,))
    if time_s > (least_s := min(due_s, curve.due_s[-1])):
        msg = f"the job runs {duration(time_s)}: it can't be done {duration(least_s)} after it came"
        raise click.UsageError(msg)
    return Probe(gpus=gpus, duration_s=time_s, due_s=due_s, curve=curve)


def show(
    study: ProbeStudy,
    pieces: Sequence[tuple[Cell, float]],
    processes: int,
    manifest: Manifest,
    paths: tuple[Path | None, Path | None],
) -> None:
    """Simulate and tell; status 1 if jobs never ended.

    Args:
        paths: Of the figures and of the picture.
    """
    (workload,) = study.experiment.workloads.values()
    gpus, probe = parse_shape(workload.cluster).gpus, study.probe
    if probe.gpus > gpus:
        msg = f"--gpus {probe.gpus:g}: the cluster has {gpus}"
        raise click.UsageError(msg)
    found = _run(study, pieces, processes)
    rows = {}
    for cell in dict.fromkeys(cell for cell, _ in pieces):
        mine = [one for (of, _), one in zip(pieces, found, strict=True) if of is cell]
        chosen, cluster = study.experiment.ready(cell)
        rows[cell.policy.short_label] = {
            "costs": cluster.name,
            "notes": chosen.notes,
            **summary(probe, mine),
            "each": mine,
        }
    instants = [at_s for cell, at_s in pieces if cell is pieces[0][0]]
    told = export.plain({
        "manifest": manifest,
        "cluster": workload.cluster,
        "jobs": len(study.history.trace),
        "before_days": study.before_s / 86_400,
        "probe": {"gpus": probe.gpus, "time_s": probe.duration_s, "due_s": probe.due_s},
        "curve": [list(step) for step in probe.curve],
        "seed": study.experiment.seed,
        "instants_s": instants,
        "policies": [{"policy": label, **row} for label, row in rows.items()],
    })  # fmt: skip
    report(told, paths[0], lines(study, len(instants), rows))
    if paths[1] is not None:
        _draw(probe, rows, paths[1], manifest)
    if any(row["unfinished"] for row in rows.values()):
        raise SystemExit(EXIT_FAILED)


def _run(study: ProbeStudy, pieces: Sequence[tuple[Cell, float]], processes: int) -> list[Probed]:
    """Each piece in its order, with a bar of progress."""
    found: dict[int, Probed] = {}
    at_a_time = min(processes, len(pieces))
    with progress("what if", len(pieces)) as bar, process_pool(study.probed, at_a_time) as pool:
        begin: Callable[[tuple[Cell, float]], None] = lambda piece: bar.tell(  # noqa: E731
            safe(str(piece[0]), 60)
        )
        for at, one in pool(pieces, begin=begin):
            if isinstance(one, WorkFault):
                msg = f"{pieces[at][0]}: {one.text}"
                raise WorkError(msg)
            found[at] = one
            bar(len(found))
    return [found[at] for at in range(len(pieces))]


def lines(
    study: ProbeStudy, instants: int, rows: dict[str, dict[str, Any]]
) -> Iterator[RenderableType]:
    """All of it for people, 80 columns wide."""
    history, probe = study.history, study.probe
    yield from read_lines(history.trace)
    if history.too_large:
        yield f"left out {history.too_large:,} jobs that ask for more GPUs than there are"
    (workload,) = study.experiment.workloads.values()
    costs = "; ".join(dict.fromkeys(row["costs"] for row in rows.values()))
    yield f"on {workload.cluster}, costs {costs}"
    yield f"one more job: {_job(probe)}, to be done in {duration(probe.due_s)}"
    yield (
        f"submitted at {counted(instants, 'instant')} of {counted(history.counted_days, 'day')}, "
        f"seed {study.experiment.seed}, each with up to "
        f"{counted(round(study.before_s / 86_400), 'day')} before it"
    )
    if costs == "none":
        yield NO_COSTS
    notes = ((label, note) for label, row in rows.items() for note in row["notes"])
    yield from (f"{safe(label, 40)}: {note}" for label, note in notes)
    yield ""
    yield _finish_table(probe, rows)
    yield ""
    if len(probe.curve.due_s) > 1:
        yield "share of the instants at which it is done in, and its value then"
        yield _step_table(probe, rows)
        yield ""
    yield "the other jobs, mean over the instants"
    titles = ("jobs\nlater", "jobs\nearlier", "job-hours\nadded", "each by\nh", "deadlines\nmissed")
    yield _table(titles, rows, lambda row: (
        number(row["later"]), number(row["earlier"]), number(row["added_jct_s"] / _HOUR_S),
        number(row["change_s"] / _HOUR_S), number(row["missed"]),
    ))  # fmt: skip


def _table(
    titles: Sequence[str],
    rows: dict[str, dict[str, Any]],
    cells: Callable[[dict[str, Any]], Sequence[str]],
) -> RenderableType:
    columns = (Column(title=title, right=True, folds=True) for title in titles)
    made = [(safe(label, 52), *cells(row)) for label, row in rows.items()]
    return table((Column(title="policy", folds=True), *columns), made)


def _finish_table(probe: Probe, rows: dict[str, dict[str, Any]]) -> RenderableType:
    unit = unit_of([probe.due_s])
    titles = [f"{name}\n{unit.sign}" for name in _PERCENTILES]
    share: Callable[[float | None], str] = lambda x: NONE if x is None else percent(x)  # noqa: E731
    return _table(
        (*titles, "in time", "promised", "of these\nin time"), rows,
        lambda row: (
            *(number(row["finish_s"][name] / unit.in_s) for name in _PERCENTILES),
            percent(row["in_time"]), share(row["promised"]), share(row["kept"]),
        ),
    )  # fmt: skip


def _step_table(probe: Probe, rows: dict[str, dict[str, Any]]) -> RenderableType:
    titles = [f"{duration(due_s)}\n({value:g})" for due_s, value in probe.curve]
    return _table(
        (*titles, "mean\nvalue", "p10 to\np90"), rows,
        lambda row: (
            *map(percent, row["done_by"]), number(row["value"]["mean"]),
            f"{row['value']['p10']:g} to {row['value']['p90']:g}",
        ),
    )  # fmt: skip


def _draw(probe: Probe, rows: dict[str, dict[str, Any]], path: Path, manifest: Manifest) -> None:
    from slurm_dl.report import plots, style  # noqa: PLC0415 - matplotlib takes 0.5 s

    finish_s = {k: np.array([one.finish_s for one in row["each"]]) for k, row in rows.items()}
    figure = plots.finish_distribution(finish_s, probe.curve, probe.due_s, _job(probe))
    style.save(figure, path, manifest)


def _job(probe: Probe) -> str:
    return f"{counted(int(probe.gpus), 'GPU')} for {duration(probe.duration_s)}"
