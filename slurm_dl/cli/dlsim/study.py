"""``dlsim study default``: every policy on every shipped trace, kept in a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import click

from slurm_dl.cli.commandline import EXIT_FAILED
from slurm_dl.cli.dlsim.asked import check_outputs, manifest, run_each
from slurm_dl.experiments import grid, policy_words
from slurm_dl.experiments import study as studies
from slurm_dl.experiments.cell_store import Store
from slurm_dl.experiments.grid import Cell
from slurm_dl.experiments.process_pool import WorkFault
from slurm_dl.experiments.study import (
    BEST,
    NONE,
    TRACES,
    USUAL,
    StudyRow,
    StudyTrace,
    knows_run_times,
)
from slurm_dl.model.errors import ConfigError
from slurm_dl.report import export
from slurm_dl.report.terminal_table import number, plain_number
from slurm_dl.text import safe
from slurm_dl.traces.workload_generator import parse_sd

_BESIDE: Final = 5  # Traces in one table
_RULE: Final = "---"


def study(
    *,
    directory: Path,
    processes: int | None,
    traces: tuple[str, ...],
    policies: str | None,
    costs: tuple[str, ...],
    resamples: int,
    tags: tuple[str, ...],
    traces_dir: Path,
    show: bool,
    json_path: Path | None,
    quiet: bool,
) -> None:
    """Run ``dlsim study default``; the arguments are its options."""
    check_outputs(json_path)
    costs = _each(costs, "--costs")
    for word in tags:
        parse_sd(word)
    keys = studies.keys_of(_traces(traces), _policies(policies), costs, _each(tags, "--tags"))
    experiment = studies.experiment_of(keys, traces_dir)
    store = Store(directory, experiment).begin()
    # A policy can run on all of the traces, or on none.
    refused = grid.refusals(experiment, [key.cell(0) for key in keys])
    if refused and policies not in (None, policy_words.ALL):
        raise ConfigError("; ".join(refused.values()))
    order = studies.in_order([k for k in keys if (k.policy, k.costs) not in refused], resamples)
    cells = {key.cell(resample): (key, resample) for key, resample in order}
    made = manifest(experiment, tuple(cells)) if json_path else {}
    ran = run_each("study", experiment, tuple(cells), grid.figures_of, processes, store=store)
    failed, is_whole = ({}, True) if show else _failures(ran)
    found = {pair: kept for cell, pair in cells.items() if (kept := store.get(cell)) is not None}
    rows = [studies.row_of(key, resamples, found) for key in dict.fromkeys(key for key, _ in order)]
    if json_path:
        export.write_json(json_path, {"manifest": made, **studies.as_json(rows, found, failed)})
    if not quiet:
        for line in _lines(rows, costs):
            click.echo(line)
        for (policy, cost), why in refused.items():
            click.echo(f"not run: {policy}, costs {cost}: {safe(why, 500)}")
    if not is_whole:
        raise click.Abort
    if failed:
        raise SystemExit(EXIT_FAILED)


def _failures(ran: Iterator[tuple[Cell, object]]) -> tuple[dict[str, str], bool]:
    """Run all of it; why cells failed, and whether it was not ended by Ctrl-C."""
    failed = {}
    try:
        for cell, value in ran:
            if isinstance(value, WorkFault):
                failed[str(cell)] = value.why
                click.echo(f"dlsim study: {safe(f'failed: {value.why}', 1000)}", err=True)
    except KeyboardInterrupt:
        return failed, False
    return failed, True


def _each(words: tuple[str, ...], option: str) -> tuple[str, ...]:
    """*words*, of which none may be given twice; a number in one way only."""
    told = []
    for word in words:
        try:
            told.append(plain_number(float(word)))
        except ValueError:
            told.append(word)
    if len(set(told)) < len(told):
        msg = f"{option}: {', '.join(words)}: one is given twice"
        raise ConfigError(msg)
    return tuple(told)


def _traces(names: tuple[str, ...]) -> tuple[StudyTrace, ...]:
    known = {trace.name: trace for trace in TRACES}
    for name in names:
        if name not in known:
            msg = f"--trace {name}: there are {', '.join(known)}"
            raise ConfigError(msg)
    return tuple(known[name] for name in dict.fromkeys(names)) or TRACES


def _policies(words: str | None) -> tuple[str, ...]:
    if words is None:
        return studies.default_policies()
    if words == policy_words.ALL:
        return studies.all_policies()
    return tuple(dict.fromkeys(word.strip() for word in words.split(",")))


# The tables, in Markdown.


def _lines(rows: Sequence[StudyRow], costs: Sequence[str]) -> Iterator[str]:
    for cost in costs:
        of_costs = [row for row in rows if row.key.costs == cost]
        done, all_ = sum(row.done for row in of_costs), sum(row.workloads for row in of_costs)
        yield f"Costs {cost}: {done} of {all_} simulations are done.\n"
        yield f"Mean JCT over that of {BEST} at no cost; preemptions in brackets:\n"
        yield from _tables(of_costs, _mean_cell)
        yield f"p99 JCT, largest JCT and preemptions, each over that of {USUAL}:\n"
        yield from _tables(of_costs, _tail_cell)
    yield "*: is told the run times, in the simulation alone"
    yield "-: 95 % range by the workloads of a trace: itself and resamples by blocks of its time"
    yield "1/5: of 5 workloads, 1 is done. !: jobs did not finish"


def _tables(rows: Sequence[StudyRow], text: Callable[[StudyRow], str]) -> Iterator[str]:
    """A row for each policy, a column for each trace, so many traces in each table."""
    there = {row.key.trace.name for row in rows if row.done}
    traces = [trace.name for trace in TRACES if trace.name in there]
    names = dict.fromkeys((row.key.policy, row.key.tags) for row in rows)
    at = {(row.key.policy, row.key.tags, row.key.trace.name): row for row in rows}
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
    jct, preemptions = row.means["jct"], row.means["preemptions"]
    ends = f" {jct.low:.2f}-{jct.high:.2f}" if jct.is_known else ""
    return f"{number(jct.value)}{ends} ({preemptions.value:,.0f}){_marks(row)}"


def _tail_cell(row: StudyRow) -> str:
    if not row.done:
        return "-"
    ratios = (row.means[name] for name in ("p99", "largest", "preempted"))
    return f"{', '.join(number(ratio.value) for ratio in ratios)}{_marks(row)}"


def _marks(row: StudyRow) -> str:
    some = "" if row.done == row.workloads else f" {row.done}/{row.workloads}"
    return f"{'!' if row.unfinished else ''}{some}"
