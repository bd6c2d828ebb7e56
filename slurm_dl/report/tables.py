"""Tables for people, 80 columns wide: one run and its groups.

They are rich renderables: colours on a terminal, plain text elsewhere. Names come from files and
are never read as markup.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from slurm_dl.report.summary_metrics import UNFAIR_RHO, Group, Spread, Summary
from slurm_dl.report.terminal_table import NONE, Column, duration, number, percent, table, unit_of
from slurm_dl.text import safe

_NAME: Final = 14
_CAUSE: Final = 20
_TITLE: Final = 70
_HOUR_S: Final = 3600.0


def run_tables(summary: Summary, *, title: str) -> RenderableType:
    """The figures of one run, in groups.

    Args:
        title: What was run, in the words of a person or of a file.
    """
    head = Text(safe(title, _TITLE), style="bold")
    return Stack(head, "", _totals(summary), "", _spreads(summary))


def sizes_table(groups: Sequence[Group]) -> RenderableType:
    """The figures for jobs of few and of many GPUs, in the order given."""
    return _groups_table(groups, what="GPUs", note="")


def users_table(groups: Sequence[Group], *, most: int = 20) -> RenderableType:
    """The figures of the users who used most, in that order.

    Args:
        most: Users shown.
    """
    shown = sorted(groups, key=lambda g: -g.summary.service_gpu_s)[:most]
    left_out = len(groups) - len(shown)
    note = f"the {most} with the most GPU-hours, {left_out:,} more left out; " if left_out else ""
    return _groups_table(shown, what="user", note=note)


def _groups_table(groups: Sequence[Group], *, what: str, note: str) -> RenderableType:
    columns = {
        "mean": [g.summary.jct_s.mean for g in groups],
        "median": [g.summary.jct_s.median for g in groups],
        "p99": [g.summary.jct_s.p99 for g in groups],
    }
    units = {title: unit_of(times_s) for title, times_s in columns.items()}
    titles = [f"{title}\nJCT {unit.sign}" for title, unit in units.items()]
    rows = [
        (
            safe(group.label, _NAME) or NONE,
            _short(s.jobs),
            *(number(times_s[i] / units[title].in_s) for title, times_s in columns.items()),
            number(s.slowdown.mean),
            number(s.rho.mean),
            number(s.service_gpu_s / _HOUR_S),
            _short(s.preemptions),
        )
        for i, group in enumerate(groups)
        for s in [group.summary]
    ]
    titles = [what, "jobs", *titles, "slow-\ndown", "rho", "GPU-h", "pre-\nempts"]
    return Stack(_figures_table(titles, rows), Text(f"{note}slow-down and rho: means", style="dim"))


def _totals(summary: Summary) -> Table:
    lost = {cause: gpu_s for cause, gpu_s in summary.lost_by_cause_gpu_s.items() if gpu_s > 0}
    by_cause = ", ".join(
        f"{safe(cause, _CAUSE)} {number(gpu_s / _HOUR_S)}" for cause, gpu_s in lost.items()
    )
    share = summary.lost_gpu_s / summary.service_gpu_s if summary.service_gpu_s > 0 else math.nan
    lines = {
        "jobs": f"{summary.jobs:,}, {summary.finished:,} finished,"
        f" {summary.completed:,} with success",
        "makespan": duration(summary.makespan_s),
        "GPUs used": f"{percent(summary.utilisation_frac)},"
        f" {number(summary.service_gpu_s / _HOUR_S)} GPU-hours",
        "steady state": f"{percent(summary.steady_utilisation_frac)} of GPUs, without"
        " filling and draining",
        "GPU-hours lost": f"{number(summary.lost_gpu_s / _HOUR_S)} ({percent(share)})"
        + (f": {by_cause}" if by_cause else ""),
        "preemptions": f"{summary.preemptions:,}, promotions {summary.promotions:,}",
        "unfair": f"{percent(summary.unfair_frac)} of jobs have a rho above {UNFAIR_RHO}",
        "evenness": f"{number(summary.jain)} (Jain's index over users; 1 is even)",
    }
    columns = (Column(title=""), Column(title="", folds=True))
    rows = [(Text(f"{title} ", style="dim"), text) for title, text in lines.items()]
    return table(columns, rows, header=False)


def _spreads(summary: Summary) -> Table:
    rows: list[tuple[str, Spread, Callable[[float], str]]] = [
        ("JCT", summary.jct_s, duration),
        ("queueing in all", summary.queue_s, duration),
        ("wait to first start", summary.wait_s, duration),
        ("slow-down", summary.slowdown, number),
        ("bounded slow-down", summary.bounded_slowdown, number),
        ("fairness (rho)", summary.rho, number),
    ]
    return _figures_table(
        ("finished jobs", "mean", "median", "p95", "p99", "max"),
        [(title, *map(write, (s.mean, s.median, s.p95, s.p99, s.max))) for title, s, write in rows],
    )


def _figures_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    numbers = (Column(title=title, right=True, folds=True) for title in titles[1:])
    return table((Column(title=titles[0]), *numbers), rows)


def _short(count: int) -> str:
    """*count* in at most six characters, up to 999 million."""
    for least, size, sign in ((1_000_000, 1_000_000, "M"), (10_000, 1000, "k")):
        if count >= least:
            return f"{number(count / size)}{sign}"
    return f"{count:,}"
