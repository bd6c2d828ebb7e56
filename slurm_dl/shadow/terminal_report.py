"""The report in sentences, which the page shows too, and all of it for a terminal.

On a terminal it is 80 columns wide, in a pipe plain, one line a row. The functions that make the
sentences make nothing safe.
"""

from __future__ import annotations

import math
import sys
import textwrap
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import click

from slurm_dl.ledger.store_protocol import UNSEEN, PlannedHandover
from slurm_dl.report.terminal_table import Column, show
from slurm_dl.shadow.report_data import HOUR_S, Balance, Report, Simulated, Touched, sooner_s
from slurm_dl.text import ago, counted, safe

MOST_NAMED = 4  # Jobs of a list that are named; the others are counted
_FAR = 2.0
_FAR_S = 300.0  # The simulated Slurm is far from the real one if both are passed
_TWO_FIGURES = 10.0

PURPOSES = {"preempt": "preempt", "defragment": "move", "split": "part", "reshape": "upgrade"}
"""What a hand-over of each purpose does to its victims."""


def figures(report: Report) -> Iterator[tuple[str, str]]:
    """Headings and sentences of what was observed."""
    loss = report.loss
    seen = f"{ago(report.covered_s)} of {ago(report.to_s - report.from_s)} seen"
    looks = counted(report.looks, "look")
    yield "recorded", f"{utc(report.from_s)} to {utc(report.to_s)}, {seen} in {looks}"
    held = f"{report.gpus:,.0f} GPUs, {report.busy_share:.0%} of them held on average"
    yield "cluster", f"{held}; {counted(report.ended, 'job')} ended"
    yield "policy", f"{', '.join(report.policies)}; preemption {', '.join(report.modes)}"
    order = "never two jobs waited that could have started: there was nothing to order"
    if report.compared:
        order = (
            f"another job would have been first in {report.first_other / report.compared:.0%} of "
            f"the looks with a queue, and {report.others:.0%} of the first jobs would have been "
            "others"
        )
    yield "order", order
    if not report.wishes:
        yield "preemption", "it would have begun no hand-over"
        return
    begun = f"it would have begun {counted(len(report.wishes), 'hand-over')}"
    yield "preemption", f"{begun}, stopping {counted(loss.runs, 'run')} on {loss.gpus:,.0f} GPUs"
    saved = (
        f"at most {loss.if_saved_gpu_h:,.1f} GPU-hours if each job saves when it is asked (its "
        f"whole grace, and {report.restart_s:,.0f} s to start again)"
    )
    yield "its price", f"{saved}; {loss.if_not_gpu_h:,.1f} if none of them saves anything"


def doubts(report: Report) -> list[str]:
    """How sure this is, and what nobody can know; the most important first."""
    gap_s = report.to_s - report.from_s - report.covered_s
    has_gap = gap_s > max(600.0, 0.02 * report.covered_s)
    is_mixed = len(report.policies) > 1 or len(report.modes) > 1
    is_native = "native" in report.modes
    said: dict[str, object] = {
        f"Nobody looked for {ago(gap_s)} of the time: what happened then is missing.": has_gap,
        f"{report.missed:,} planned hand-overs or rows could not be kept, and {report.bad:,} rows "
        "could not be read: there may have been more hand-overs than are listed.": report.missed
        or report.bad,
        "The policy, or who preempts, was changed in this time; the list mixes them.": is_mixed,
        "With preemption.mode native Slurm chooses whom to stop, by the priorities that it is "
        "given. No plan of dlschedd says so beforehand, so no hand-over is listed.": is_native,
        f"In {counted(report.tripped, 'look')} a circuit breaker would have stopped preemption, "
        "until it re-armed or an admin reset it. Here it let go with its reason.": report.tripped,
        "Nothing was done, so each look planned from a queue that the earlier plans had not "
        "changed. Live, later plans would have been others: a wish that stays unfulfilled takes "
        "the place of those behind it, and limits on a job's preemptions never count.": True,
        "A hand-over counts once for each wait of the job it is for; the waiting tasks of an array "
        "count as one job. When a stopped job would have run again is not known.": report.wishes,
        **_of_simulation(report.simulated, report.why_not),
    }
    return [sentence for sentence, holds in said.items() if holds]


def _of_simulation(sim: Simulated | None, why_not: str) -> dict[str, object]:
    if sim is None:
        why = f"Waits under the policy were not simulated: {why_not}."
        return {f"{why} What was recorded, above, does not depend on it.": True}
    return {
        model(sim): True,
        sample(sim): sim.is_sample,
        f"{counted(sim.open_ended, 'job')} had not ended, or vanished: they take part with the "
        "time they ran until they were last seen, and are not counted.": sim.open_ended,
        f"{counted(sim.never_ran, 'job')} waited to the end of the record and never ran: how long "
        "they would run is not known, so they are left out, whom a policy may help most.": (
            sim.never_ran
        ),
        f"{counted(sim.unfit, 'job')} fit no equal shares of the nodes and are left out.": (
            sim.unfit
        ),
        "The simulated cluster begins with the jobs that ran then, without what they had had "
        "before. Partitions, limits, reservations, dependencies, placement and node failures "
        "are left out; who agreed to preemption is drawn in the recorded proportion; users do "
        "not react.": True,
    }


def subject(sim: Simulated) -> str:
    """The jobs that were simulated."""
    return "A sample of the jobs" if sim.is_sample else "The same jobs"


def sample(sim: Simulated) -> str:
    """What a sample stands for."""
    return (
        f"All jobs would have taken too long, so this is a sample: {sim.jobs_taken:,} of "
        f"{sim.jobs_in_all:,} jobs, short and long in equal shares, on "
        f"{sim.gpus:,.0f} of {sim.gpus_in_all:,.0f} GPUs. All counts are the sample's; shares and "
        "means are those of all jobs but for its chance, and on fewer nodes large jobs wait longer."
    )


def model(sim: Simulated) -> str:
    """How far the simulated Slurm is to be believed."""
    if math.isnan(sim.real_wait_s):
        return "No job that came in this time has ended, so the simulated Slurm is not checked."
    low_s, high_s = sorted((sim.real_wait_s, sim.model_wait_s))
    far = high_s > _FAR * low_s and high_s - low_s > _FAR_S
    worth = "So far the table of helped and hurt is to be believed."
    if far:
        worth = "That is far apart: do not believe the table of helped and hurt."
    return (
        f"In reality the jobs that came or waited took {ago(sim.real_wait_s)} to start on average; "
        f"the simulated plain Slurm says {ago(sim.model_wait_s)}. {worth}"
    )


def wish_rows(report: Report) -> list[list[str]]:
    """The wishes: when, what, for whom, from whom, GPUs, what came of it, why, sooner by."""
    return [
        [
            *(utc(wish.begin_s), PURPOSES.get(wish.purpose, wish.purpose)),
            *(_jobs(wish.beneficiaries) or "-", _jobs([v.job_id for v in wish.victims])),
            *(f"{wish.gpus:g}", _outcome(wish, report.to_s), wish.why),
            ago(sooner_s(wish, report.to_s)) if wish.lead else "-",
        ]
        for wish in report.wishes
    ]


def _outcome(wish: PlannedHandover, end_s: float) -> str:
    waits = "waits for" if wish.lead else "for"
    return {
        "started": f"started {ago(wish.started_s - wish.begin_s)} later",
        "gone": "never started",
        "over": "over",
        UNSEEN: "nobody saw",
    }.get(wish.end, f"{waits} {ago(end_s - wish.begin_s)}")


def _jobs(numbers: Sequence[int]) -> str:
    """Job ids, the first few of them."""
    more = len(numbers) - MOST_NAMED
    named = ", ".join(map(str, numbers[:MOST_NAMED]))
    return f"{named} and {more} more" if more > 0 else named


def balance_rows(groups: Sequence[Balance]) -> list[list[str]]:
    """Groups of the counterfactual."""
    return [
        [
            b.group,
            *(f"{n:,}" for n in (b.jobs, b.helped, b.hurt, b.same)),
            *map(span, (b.plain_wait_s, b.policy_wait_s, b.plain_jct_s, b.policy_jct_s)),
            span(b.worst_s if b.hurt else math.nan),
        ]
        for b in groups
    ]


def touched_rows(groups: Sequence[Touched]) -> list[list[str]]:
    """Groups of those that were observed."""
    return [
        [
            *(t.group, f"{t.sooner:,}", span(t.sooner_s if t.sooner else math.nan)),
            *(f"{t.stopped:,}", f"{t.if_saved_gpu_h:,.1f}" if t.stopped else "-"),
        ]
        for t in groups
    ]


def span(seconds: float) -> str:
    """A time with two figures at least, so that means of hours can be told apart; - for NaN."""
    if not seconds >= HOUR_S:
        return "-" if math.isnan(seconds) else ago(seconds)
    unit_s, unit = (24 * HOUR_S, "d") if seconds >= 48 * HOUR_S else (HOUR_S, "h")
    number = seconds / unit_s
    return f"{number:,.{int(round(number, 1) < _TWO_FIGURES)}f} {unit}"


def utc(at_s: float) -> str:
    """A time for people, to the minute."""
    try:
        return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%MZ")
    except (ValueError, OverflowError, OSError):
        return "?"


MOST_WISHES = 12
MOST_GROUPS = 10
_WIDTH = 79
_INDENT = 13

_WISHES = ("WHEN", "WHAT", "FOR", "FROM", ">GPUS", "IN REALITY", "WHY")
_TOUCHED = ("GROUP", ">SOONER", ">BY AT LEAST", ">STOPPED", ">GPU-H AT MOST")
_BALANCES = (
    *("GROUP", ">JOBS", ">HELPED", ">HURT", ">SAME"),
    *(">WAIT", ">NEW", ">JCT", ">NEW", ">WORST"),
)
"""Headings of tables; what is under one with > stands to the right."""


def print_report(report: Report) -> None:
    """Print it."""
    for heading, text in figures(report):
        _wrapped(text, first=f"{heading + ':':<{_INDENT}}", subsequent=" " * _INDENT)
    if report.wishes:
        _wishes(wish_rows(report))
        for what, touched in report.touched.items():
            heading = f"Whom that would have touched, by {what}, as observed"
            _table(heading, _TOUCHED, touched_rows(touched))
    sim = report.simulated
    if sim is not None:
        heading = f"{subject(sim)} in the simulator: plain Slurm, and the policy (NEW)"
        _table(heading, _BALANCES, balance_rows([sim.total]))
        click.echo(f"{sim.preemptions:,} preemptions, {sim.lost_gpu_h:,.1f} GPU-hours lost by them")
        for what, groups in sim.by.items():
            _table(f"In the simulator, by {what}", _BALANCES, balance_rows(groups))
    click.echo("\nHow sure this is")
    for doubt in doubts(report):
        _wrapped(doubt, first="- ", subsequent="  ")


def _wishes(rows: list[list[str]]) -> None:
    """A line each into a pipe, all of them; on a terminal the first few, with room for reasons."""
    heading = "Hand-overs it would have begun, in order of time"
    if not sys.stdout.isatty():
        _table(heading, _WISHES, [row[: len(_WISHES)] for row in rows], most=len(rows))
        return
    click.echo(f"\n{heading}")
    for when, what, lead, victims, gpus, outcome, why, _ in rows[:MOST_WISHES]:
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


def _table(
    heading: str, titles: Sequence[str], rows: list[list[str]], *, most: int = MOST_GROUPS
) -> None:
    columns = [
        Column(title=t.lstrip(">"), right=t[0] == ">", least=8 if t == "GROUP" else None)
        for t in titles
    ]
    click.echo(f"\n{heading}")
    show(columns, rows[:most])
    _rest(len(rows) - most)


def _rest(more: int) -> None:
    if more > 0:
        click.echo(f"... and {more:,} more; --json and --html have them")
