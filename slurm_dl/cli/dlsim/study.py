"""``dlsim study default``: every policy on every shipped trace, kept in a folder."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import click

from slurm_dl.cli.commandline import EXIT_FAILED
from slurm_dl.cli.dlsim.simulation_options import (
    check_outputs,
    policies_option,
    processes_option,
    quiet_option,
)
from slurm_dl.experiments import study, study_cells
from slurm_dl.experiments.study import Figures, StudyFolder, StudyRow
from slurm_dl.experiments.study_cells import (
    BEST,
    NONE,
    TRACES,
    USUAL,
    StudyCell,
    StudyTrace,
    knows_run_times,
)
from slurm_dl.model.errors import ConfigError
from slurm_dl.report import export
from slurm_dl.report.number_format import duration, number
from slurm_dl.text import safe
from slurm_dl.traces.made_tags import parse_sd

_BESIDE = 5
"""Traces in one table."""

_RULE = "---"
_TOLD_EVERY_S = 30.0


@click.group(name="study")
def study_command() -> None:
    """Run the studies that the documents have figures of."""


@study_command.command(name="default")
@click.option(
    "--dir",
    "directory",
    metavar="DIR",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep the figures here. A second call runs what is not there.",
)
@processes_option
@click.option(
    "--trace",
    "traces",
    metavar="NAME",
    multiple=True,
    help="One of the shipped traces, such as itp10; given several times, these. Not given: all.",
)
@policies_option(
    "Not given: all that can run on a cluster, and some that know run times, for reference. all: "
    "those that know run times, too. slurm: Slurm alone, with --costs slurm. discrete_las is "
    "always run."
)
@click.option(
    "--costs",
    metavar="none|SECONDS|slurm",
    multiple=True,
    default=("none", "180", "slurm"),
    show_default=True,
    help="What starting and stopping cost: nothing, so many seconds of each start but the first, "
    "or what a real Slurm under dlschedd costs. May be given several times.",
)
@click.option(
    "--seeds",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="How many workloads of each trace, as in 'dlsim compare'.",
)
@click.option(
    "--tags",
    metavar="none|SD",
    multiple=True,
    default=("none",),
    show_default=True,
    help="Names of jobs: those of the trace, or made ones, within which the logarithm of the run "
    "time has this standard deviation. Applies to policies that learn from finished jobs. May be "
    "given several times.",
)
@click.option(
    "--traces-dir",
    metavar="DIR",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default="traces",
    show_default=True,
    help="The folder of the shipped traces.",
)
@click.option("--show", is_flag=True, help="Run nothing; print what DIR holds.")
@click.option(
    "--json", "json_path", type=click.Path(path_type=Path), help="Write all figures here."
)
@quiet_option
def default_command(
    *,
    directory: Path,
    processes: int | None,
    traces: tuple[str, ...],
    policies: str | None,
    costs: tuple[str, ...],
    seeds: int,
    tags: tuple[str, ...],
    traces_dir: Path,
    show: bool,
    json_path: Path | None,
    quiet: bool,
) -> None:
    """Run every policy on the shipped traces, to see which one should be the default.

    The first table of a cost model has the mean JCT over that of srsf at no cost on the same
    workloads, srsf being told the run times; the second holds the longest waits against
    discrete_las under the same costs. Simulations are run in such an order that the main traces
    and policies come first. Ctrl-C keeps what is done. Ends with status 1 if a simulation failed.

    \b
    Examples:
      dlsim study default --dir study -j 2
      dlsim study default --dir study --show --json study.json
      dlsim study default --dir study --trace itp10 --policies las,fifo_skip --costs none --seeds 1
    """  # noqa: D301 - \b is click's mark
    check_outputs(json_path)
    folder = study.StudyFolder(directory, traces_dir)
    folder.begin()
    costs = _each(costs, "--costs")
    cells = study_cells.cells_of(_traces(traces), _policies(policies), costs, _tags(tags), seeds)
    refused = study.refused(folder, cells)
    if refused and policies not in (None, study_cells.ALL):
        raise ConfigError("; ".join(refused.values()))
    cells = tuple(cell for cell in cells if (cell.policy, cell.costs) not in refused)
    figures = {cell: kept for cell in cells if (kept := folder.found(cell)) is not None}
    failed: dict[str, str] = {}
    is_stopped = False
    if not show:
        try:
            _run(folder, cells, processes or 1, figures, failed)
        except KeyboardInterrupt:
            is_stopped = True
    if json_path:
        export.write_json(json_path, study.as_json(cells, figures, failed))
    if not quiet:
        for line in _lines(study.rows_of(cells, figures), costs):
            click.echo(line)
        for (policy, cost), why in refused.items():
            click.echo(f"not run: {policy}, costs {cost}: {safe(why, 500)}")
    if is_stopped:
        raise click.Abort
    if failed:
        raise SystemExit(EXIT_FAILED)


def _each(words: tuple[str, ...], option: str) -> tuple[str, ...]:
    """*words*, of which none may be given twice; a number in one way only.

    Raises:
        ConfigError: One is.
    """
    told = []
    for word in words:
        try:
            told.append(f"{float(word):g}")
        except ValueError:
            told.append(word)
    if len(set(told)) < len(told):
        msg = f"{option}: {', '.join(words)}: one is given twice"
        raise ConfigError(msg)
    return tuple(told)


def _tags(words: tuple[str, ...]) -> tuple[str, ...]:
    for word in words:
        parse_sd(word)
    return _each(words, "--tags")


def _traces(names: tuple[str, ...]) -> tuple[StudyTrace, ...]:
    known = {trace.name: trace for trace in TRACES}
    for name in names:
        if name not in known:
            msg = f"--trace {name}: there are {', '.join(known)}"
            raise ConfigError(msg)
    return tuple(known[name] for name in dict.fromkeys(names)) or TRACES


def _policies(words: str | None) -> tuple[str, ...]:
    if words is None:
        return study_cells.default_policies()
    if words == study_cells.ALL:
        return study_cells.all_policies()
    return tuple(dict.fromkeys(word.strip() for word in words.split(",")))


def _run(
    folder: StudyFolder,
    cells: Sequence[StudyCell],
    processes: int,
    figures: dict[StudyCell, Figures],
    failed: dict[str, str],
) -> None:
    """Run the *cells* without *figures*, which get there, and tell of it on standard error."""
    left = study.TimeLeft()
    for cell, known in figures.items():
        left.add(cell, known["wall_s"])
    waiting = dict.fromkeys(cell for cell in cells if cell not in figures)
    if not waiting:
        return
    tell = _teller(len(cells))
    for cell, said in study.run(folder, tuple(waiting), processes):
        del waiting[cell]
        if isinstance(said, str):
            failed[cell.name] = said
            text = safe(f"failed: {cell.name}: {said}", 1000)
            click.echo(f"dlsim study: {text}", err=True)
        else:
            figures[cell] = said
            left.add(cell, said["wall_s"])
        tell(len(waiting), lambda: left.of(waiting) / processes)
    if sys.stderr.isatty():
        click.echo(err=True)


def _teller(total: int) -> Callable[[int, Callable[[], float]], None]:
    """What tells how many of *total* are left, and for about how long; not too often."""
    is_terminal = sys.stderr.isatty()
    told_s = -math.inf

    def tell(waiting: int, left_s: Callable[[], float]) -> None:
        nonlocal told_s
        every_s = 1.0 if is_terminal else _TOLD_EVERY_S
        if waiting and time.monotonic() - told_s < every_s:
            return
        told_s = time.monotonic()
        text = f"{total - waiting} of {total} simulations, about {duration(left_s())} left"
        click.echo(
            f"\r{text}   " if is_terminal else f"dlsim study: {text}", err=True, nl=not is_terminal
        )

    return tell


# The tables, in Markdown.


def _lines(rows: Sequence[StudyRow], costs: Sequence[str]) -> Iterator[str]:
    for cost in costs:
        of_costs = [row for row in rows if row.costs == cost]
        done, all_ = sum(row.done for row in of_costs), sum(row.workloads for row in of_costs)
        yield f"Costs {cost}: {done} of {all_} simulations are done.\n"
        yield f"Mean JCT over that of {BEST} at no cost; preemptions in brackets:\n"
        yield from _tables(of_costs, _mean_cell)
        yield f"p99 JCT, largest JCT and preemptions, each over that of {USUAL}:\n"
        yield from _tables(of_costs, _tail_cell)
    yield "*: is told the run times, in the simulation alone"
    yield "±: half of the 95 % interval by the workloads of a trace: itself and bootstraps of it"
    yield "1/5: of 5 workloads, 1 is done. !: jobs did not finish"


def _tables(rows: Sequence[StudyRow], text: Callable[[StudyRow], str]) -> Iterator[str]:
    """A row for each policy, a column for each trace, so many traces in each table."""
    there = {row.trace for row in rows if row.done}
    traces = [trace.name for trace in TRACES if trace.name in there]
    names = dict.fromkeys((row.policy, row.tags) for row in rows)
    at = {(row.policy, row.tags, row.trace): row for row in rows}
    for first in range(0, len(traces), _BESIDE):
        beside = traces[first : first + _BESIDE]
        table = [["policy", *beside], [_RULE] * (1 + len(beside))]
        for policy, tags in names:
            of_policy = [at.get((policy, tags, trace)) for trace in beside]
            if any(row is not None and row.done for row in of_policy):
                table.append([_name(policy, tags), *(text(r) if r else "" for r in of_policy)])
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        for line in table:
            fill = "-" if line[0] == _RULE else " "
            padded = (cell.ljust(w, fill) for cell, w in zip(line, widths, strict=True))
            yield f"| {' | '.join(padded)} |"
        yield ""


def _name(policy: str, tags: str) -> str:
    label = policy if tags == NONE else f"{policy}, tags {tags}"
    return f"{label} *" if knows_run_times(policy) else label


def _mean_cell(row: StudyRow) -> str:
    if not row.done:
        return "-"
    half = f" ±{row.jct.half:.2f}" if math.isfinite(row.jct.half) else ""
    return f"{number(row.jct.value)}{half} ({row.preemptions.value:,.0f}){_marks(row)}"


def _tail_cell(row: StudyRow) -> str:
    if not row.done:
        return "-"
    ratios = (row.p99, row.largest, row.preempted)
    return f"{', '.join(number(ratio.value) for ratio in ratios)}{_marks(row)}"


def _marks(row: StudyRow) -> str:
    some = "" if row.done == row.workloads else f" {row.done}/{row.workloads}"
    return f"{'!' if row.unfinished else ''}{some}"
