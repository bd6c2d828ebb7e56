"""``dlsim whatif`` with a deadline or a curve of value: one more job, at many instants."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import click
import numpy as np
from rich.console import RenderableType

from slurm_dl.cli.commandline import EXIT_FAILED
from slurm_dl.cli.dlsim.asked import given_options, head_lines, report
from slurm_dl.experiments.cell_store import Manifest
from slurm_dl.experiments.grid import Cell
from slurm_dl.experiments.process_pool import WorkError, WorkFault, process_pool
from slurm_dl.experiments.whatif_deadline import Probe, Probed, ProbeStudy, read_curve, summary
from slurm_dl.experiments.whatif_history import HOUR_S
from slurm_dl.model.trace import Trace
from slurm_dl.model.value_curve import ValueCurve
from slurm_dl.report import export
from slurm_dl.report.terminal_table import (
    Column,
    duration,
    number,
    percent,
    progress,
    table,
    unit_of,
)
from slurm_dl.simulation.cluster_shape import ClusterShape
from slurm_dl.text import counted, safe

_FOR_DEADLINE: Final = ("gpus", "time_s", "instants", "plot_path")
_PERCENTILES: Final = ("p10", "p50", "p90", "mean")


def probe_of(
    shape: ClusterShape,
    by: str | float,
    curve_path: Path | None,
    gpus: int | None,
    time_s: float | None,
) -> Probe | None:
    """The job that the options ask about; None if they rank policies by a figure.

    Raises:
        UsageError: Options contradict each other, or the job is not told.
    """
    given, ranks = given_options(), isinstance(by, str)
    alone = [given[name] for name in _FOR_DEADLINE if name in given]
    if ranks and curve_path is None and not alone:
        return None
    curve = None if curve_path is None else read_curve(curve_path)
    due_s = by if isinstance(by, float) else curve.due_s[0] if curve else 0.0
    curve = curve or ValueCurve((due_s or 1.0,), (1.0,))
    job, least_s = (gpus or 0, time_s or 0.0), min(due_s, curve.due_s[-1])
    wrong = {
        f"{''.join(alone[:1])} is for one more job: give its deadline, --by 5h, or --curve FILE":
            ranks and curve_path is None,
        f"--by {by} ranks policies, and --curve is of one job: give --by TIME or leave it out":
            ranks and "by" in given,
        "--block-days is for ranking by a figure: leave it out": "block_days" in given,
        "which job is to be done by then? give --gpus N and --time TIME, such as 2h": not all(job),
        f"the job runs {duration(job[1])}: it can't be done {duration(least_s)} after it came":
            job[1] > least_s,
        f"--gpus {gpus}: the cluster has {shape.gpus}": job[0] > shape.gpus,
    }  # fmt: skip
    for msg, is_so in wrong.items():
        if is_so:
            raise click.UsageError(msg)
    return Probe(gpus=job[0], duration_s=job[1], due_s=due_s, curve=curve)


def show(
    study: ProbeStudy,
    cells: Sequence[Cell],
    jobs: Trace,
    instants_s: Sequence[float],
    *,
    processes: int,
    manifest: Manifest,
    json_path: Path | None,
    plot_path: Path | None,
) -> None:
    """Simulate and tell; status 1 if jobs never ended."""
    probe, count = study.probe, len(instants_s)
    found = _run(study, [(cell, at_s) for cell in cells for at_s in instants_s], processes)
    rows: list[dict[str, Any]] = []
    for i, cell in enumerate(cells):
        mine = found[i * count : (i + 1) * count]
        chosen, cluster = study.experiment.ready(cell)
        rows.append({
            "policy": cell.policy.short_label, "costs": cluster.name, "notes": chosen.notes,
            **summary(probe, mine), "each": mine,
        })  # fmt: skip
    told = {
        "manifest": manifest,
        "cluster": str(study.shape),
        "jobs": len(study.history.trace),
        "before_days": study.before_days,
        "probe": {"gpus": probe.gpus, "time_s": probe.duration_s, "due_s": probe.due_s},
        "curve": [list(step) for step in probe.curve],
        "seed": study.experiment.seed,
        "instants_s": instants_s,
        "policies": rows,
    }
    report(export.plain(told), json_path, lines(study, jobs, rows))
    if plot_path is not None:
        from slurm_dl.report import plots, style  # noqa: PLC0415 - matplotlib takes 0.5 s

        finish_s = {row["policy"]: np.array([x.finish_s for x in row["each"]]) for row in rows}
        figure = plots.finish_distribution(finish_s, probe.curve, probe.due_s, _job(probe))
        style.save(figure, plot_path, manifest)
    if any(row["unfinished"] for row in rows):
        raise SystemExit(EXIT_FAILED)


def _run(study: ProbeStudy, pieces: Sequence[tuple[Cell, float]], processes: int) -> list[Probed]:
    """Each piece in its order, with a bar of progress."""
    found: dict[int, Probed] = {}
    at_a_time = min(processes, len(pieces))
    with progress("what if", len(pieces)) as bar, process_pool(study.probed, at_a_time) as pool:
        for at, one in pool(pieces, begin=lambda piece: bar.tell(safe(str(piece[0]), 60))):
            if isinstance(one, WorkFault):
                msg = f"{pieces[at][0]}: {one.text}"
                raise WorkError(msg)
            found[at] = one
            bar(len(found))
    return [found[at] for at in range(len(pieces))]


def lines(
    study: ProbeStudy, jobs: Trace, rows: Sequence[dict[str, Any]]
) -> Iterator[RenderableType]:
    """All of it for people, 80 columns wide."""
    probe, instants = study.probe, len(rows[0]["each"])
    ran = [(row["policy"], row["costs"], row["notes"]) for row in rows]
    yield from head_lines(
        jobs, study.history, study.shape, ran,
        f"one more job: {_job(probe)}, to be done in {duration(probe.due_s)}",
        f"submitted at {counted(instants, 'instant')} of "
        f"{counted(study.history.counted_days, 'day')}, seed {study.experiment.seed}, each with up "
        f"to {counted(study.before_days, 'day')} before it",
    )  # fmt: skip
    unit = unit_of([probe.due_s])
    titles = [f"{name}\n{unit.sign}" for name in _PERCENTILES]
    yield _table((*titles, "in time", "promised", "of these\nin time"), rows, lambda row: (
        *(number(row["finish_s"][name] / unit.in_s) for name in _PERCENTILES),
        *map(percent, (row["in_time"], row["promised"], row["kept"])),
    ))  # fmt: skip
    yield ""
    if len(probe.curve.due_s) > 1:
        yield "share of the instants at which it is done in, and its value then"
        titles = [f"{duration(due_s)}\n({value:g})" for due_s, value in probe.curve]
        yield _table((*titles, "mean\nvalue", "p10 to\np90"), rows, lambda row: (
            *map(percent, row["done_by"]), number(row["value"]["mean"]),
            f"{row['value']['p10']:g} to {row['value']['p90']:g}",
        ))  # fmt: skip
        yield ""
    yield "the other jobs, mean over the instants"
    titles = ["jobs\nlater", "jobs\nearlier", "job-hours\nadded", "each by\nh", "deadlines\nmissed"]
    yield _table(titles, rows, lambda row: (
        number(row["later"]), number(row["earlier"]), number(row["added_jct_s"] / HOUR_S),
        number(row["change_s"] / HOUR_S), number(row["missed"]),
    ))  # fmt: skip


def _table(
    titles: Sequence[str],
    rows: Sequence[dict[str, Any]],
    cells: Callable[[dict[str, Any]], Sequence[str]],
) -> RenderableType:
    columns = (Column(title=title, right=True, folds=True) for title in titles)
    made = [(safe(row["policy"], 52), *cells(row)) for row in rows]
    return table((Column(title="policy", folds=True), *columns), made)


def _job(probe: Probe) -> str:
    return f"{counted(int(probe.gpus), 'GPU')} for {duration(probe.duration_s)}"
