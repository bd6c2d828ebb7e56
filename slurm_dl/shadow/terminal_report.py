"""The report for a terminal, 80 columns wide, or plain for a pipe, one line a row."""

from __future__ import annotations

import math
import sys
import textwrap

import click

from slurm_dl.report.terminal_table import Column, show
from slurm_dl.shadow.effects_by_group import Balance
from slurm_dl.shadow.report_data import Report, Touched
from slurm_dl.shadow.sentences import doubts, figures, span, wish_cells
from slurm_dl.text import safe

MOST_WISHES = 12
MOST_GROUPS = 10
_WIDTH = 79
_INDENT = 13

_WISHES = (
    Column(title="WHEN"),
    Column(title="WHAT"),
    Column(title="FOR"),
    Column(title="FROM"),
    Column(title="GPUS", right=True),
    Column(title="IN REALITY"),
    Column(title="WHY"),
)
_TOUCHED = (
    Column(title="GROUP", least=8),
    Column(title="SOONER", right=True),
    Column(title="BY AT LEAST", right=True),
    Column(title="STOPPED", right=True),
    Column(title="GPU-H AT MOST", right=True),
)
_BALANCES = (
    Column(title="GROUP", least=8),
    Column(title="JOBS", right=True),
    Column(title="HELPED", right=True),
    Column(title="HURT", right=True),
    Column(title="SAME", right=True),
    Column(title="WAIT", right=True),
    Column(title="NEW", right=True),
    Column(title="JCT", right=True),
    Column(title="NEW", right=True),
    Column(title="WORST", right=True),
)


def print_report(report: Report) -> None:
    """Print it."""
    for title, text in figures(report):
        _wrapped(text, first=f"{title + ':':<{_INDENT}}", subsequent=" " * _INDENT)
    if report.wishes:
        _heading("Hand-overs it would have begun, in order of time")
        _wishes([wish_cells(w, report.to_s) for w in report.wishes])
        for what, groups in report.touched.items():
            _heading(f"Whom that would have touched, by {what}, as observed")
            show(_TOUCHED, [touched_cells(t) for t in groups[:MOST_GROUPS]])
            _rest(len(groups) - MOST_GROUPS)
    if report.simulated is not None:
        _simulated(report)
    _heading("How sure this is")
    for doubt in doubts(report):
        _wrapped(doubt, first="- ", subsequent="  ")


def _wishes(rows: list[list[str]]) -> None:
    """A line each into a pipe, all of them; on a terminal the first few, with room for reasons."""
    if not sys.stdout.isatty():
        show(_WISHES, rows)
        return
    for when, what, lead, victims, gpus, outcome, why in rows[:MOST_WISHES]:
        _wrapped(
            f"{when}  {what} {victims} ({gpus} GPUs) for {lead}: {outcome}; {why}",
            subsequent=" " * (len(when) + 2),
        )
    _rest(len(rows) - MOST_WISHES)


def _wrapped(text: str, *, first: str = "", subsequent: str) -> None:
    for line in textwrap.wrap(
        safe(text, 1000), _WIDTH, initial_indent=first, subsequent_indent=subsequent
    ):
        click.echo(line)


def _simulated(report: Report) -> None:
    sim = report.simulated
    assert sim is not None  # noqa: S101 - narrows the type
    what = "A sample of the jobs" if sim.is_sample else "The same jobs"
    _heading(f"{what} in the simulator: plain Slurm, and the policy (NEW)")
    show(_BALANCES, [balance_cells(sim.total)])
    click.echo(
        safe(f"{sim.preemptions:,} preemptions, {sim.lost_gpu_h:,.1f} GPU-hours lost by them")
    )
    for what, groups in sim.by.items():
        _heading(f"In the simulator, by {what}")
        show(_BALANCES, [balance_cells(b) for b in groups[:MOST_GROUPS]])
        _rest(len(groups) - MOST_GROUPS)


def balance_cells(balance: Balance) -> list[str]:
    """One group of the counterfactual."""
    b = balance
    times = (b.plain_wait_s, b.policy_wait_s, b.plain_jct_s, b.policy_jct_s)
    return [
        b.group,
        *(f"{n:,}" for n in (b.jobs, b.helped, b.hurt, b.same)),
        *("-" if math.isnan(t) else span(t) for t in times),
        span(b.worst_s) if b.hurt else "-",
    ]


def touched_cells(touched: Touched) -> list[str]:
    """One group of what was observed."""
    return [
        touched.group,
        f"{touched.sooner:,}",
        span(touched.sooner_s) if touched.sooner else "-",
        f"{touched.stopped:,}",
        f"{touched.if_saved_gpu_h:,.1f}" if touched.stopped else "-",
    ]


def _heading(text: str) -> None:
    click.echo()
    click.echo(text)


def _rest(more: int) -> None:
    if more > 0:
        click.echo(f"... and {more:,} more; --json and --html have them")
