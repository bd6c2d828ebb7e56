"""Tables for people, 80 columns wide: one run, its groups, several runs side by side.

They are rich renderables: colours on a terminal, plain text elsewhere. Names come from files and
are never read as markup.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from slurm_dl.report.distribution import Spread
from slurm_dl.report.fairness import UNFAIR_RHO
from slurm_dl.report.number_format import NONE, TimeUnit, duration, number, percent, unit_of
from slurm_dl.report.summary_metrics import Group, Summary
from slurm_dl.text import safe

_NAME: Final = 14
_CAUSE: Final = 20
_TITLE: Final = 70
_HOUR_S: Final = 3600.0
_BEST: Final = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Time:
    """A column of a comparison: a time of which less is better."""

    title: str
    of: Callable[[Summary], float]


_COMPARED: Final = (
    _Time(title="mean\nJCT", of=lambda s: s.jct_s.mean),
    _Time(title="median\nJCT", of=lambda s: s.jct_s.median),
    _Time(title="p99\nJCT", of=lambda s: s.jct_s.p99),
    _Time(title="make-\nspan", of=lambda s: s.makespan_s),
)


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
    table = _table(what, "jobs", *titles, "slow-\ndown", "rho", "GPU-h", "pre-\nempts")
    for i, group in enumerate(groups):
        s = group.summary
        table.add_row(
            _name(group.label),
            _short(s.jobs),
            *(number(times_s[i] / units[title].in_s) for title, times_s in columns.items()),
            number(s.slowdown.mean),
            number(s.rho.mean),
            number(s.service_gpu_s / _HOUR_S),
            _short(s.preemptions),
        )
    return Stack(table, Text(f"{note}slow-down and rho: means", style="dim"))


def _compared(times_s: Sequence[float], unit: TimeUnit, *, best_s: float) -> list[Text]:
    """The cells of a column; the best is marked, and the others leave room for the mark."""
    cells = []
    for i, time_s in enumerate(times_s):
        text = number(time_s / unit.in_s)
        if i and times_s[0] > 0 and math.isfinite(time_s):
            text += f" x{time_s / times_s[0]:.2f}"
        is_best = time_s == best_s
        text += _BEST if is_best else " "
        cells.append(Text(text, style="bold green" if is_best else ""))
    return cells


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
        "GPU-hours lost": f"{number(summary.lost_gpu_s / _HOUR_S)} ({percent(share)})"
        + (f": {by_cause}" if by_cause else ""),
        "preemptions": f"{summary.preemptions:,}, promotions {summary.promotions:,}",
        "unfair": f"{percent(summary.unfair_frac)} of jobs have a rho above {UNFAIR_RHO}",
        "evenness": f"{number(summary.jain)} (Jain's index over users; 1 is even)",
    }
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for title, text in lines.items():
        table.add_row(title, Text(text))
    return table


def _spreads(summary: Summary) -> Table:
    def times(title: str, spread: Spread) -> tuple[str, ...]:
        return (title, *(duration(value) for value in _figures(spread)))

    def ratios(title: str, spread: Spread) -> tuple[str, ...]:
        return (title, *(number(value) for value in _figures(spread)))

    table = _table("finished jobs", "mean", "median", "p95", "p99", "max")
    table.add_row(*times("JCT", summary.jct_s))
    table.add_row(*times("queueing in all", summary.queue_s))
    table.add_row(*times("wait to first start", summary.wait_s))
    table.add_row(*ratios("slow-down", summary.slowdown))
    table.add_row(*ratios("bounded slow-down", summary.bounded_slowdown))
    table.add_row(*ratios("fairness (rho)", summary.rho))
    return table


def _figures(spread: Spread) -> Iterable[float]:
    return spread.mean, spread.median, spread.p95, spread.p99, spread.max


def _table(name: str, *numbers: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column(Text(name), no_wrap=True, overflow="ellipsis")
    for title in numbers:
        table.add_column(Text(title), justify="right", overflow="fold")
    return table


def _name(text: str) -> Text:
    return Text(safe(text, _NAME) or NONE)


def _short(count: int) -> str:
    """*count* in at most six characters, up to 999 million."""
    for least, size, sign in ((1_000_000, 1_000_000, "M"), (10_000, 1000, "k")):
        if count >= least:
            return f"{number(count / size)}{sign}"
    return f"{count:,}"
