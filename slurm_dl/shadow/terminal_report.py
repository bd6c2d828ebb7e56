"""The report in sentences, which the page shows too, and all of it for a terminal.

On a terminal it is 80 columns wide, in a pipe plain, one line a row. The functions that make the
sentences make nothing safe.
"""

from __future__ import annotations

import math
import sys
import textwrap
from collections.abc import Iterator
from datetime import UTC, datetime

import click

from slurm_dl.report.terminal_table import Column, show
from slurm_dl.shadow.counterfactual import Balance, Simulated
from slurm_dl.shadow.records import WishedHandover
from slurm_dl.shadow.report_data import Report, Touched, sooner_s
from slurm_dl.text import ago, counted, safe

MOST_NAMED = 4
"""Jobs of a list that are named; the others are counted."""

_FAR = 2.0
_FAR_S = 300.0
"""The simulated Slurm is far from the real one if both are passed."""

_TWO_FIGURES = 10.0

PURPOSES = {"preempt": "preempt", "defragment": "move", "split": "part", "reshape": "upgrade"}
"""What a hand-over of each purpose does to its victims."""


def figures(report: Report) -> Iterator[tuple[str, str]]:
    """Headings and sentences of what was observed."""
    span_s = report.to_s - report.from_s
    yield (
        "recorded",
        (
            f"{utc(report.from_s)} to {utc(report.to_s)}, {ago(report.covered_s)} of "
            f"{ago(span_s)} seen in {counted(report.looks, 'look')}"
        ),
    )
    yield (
        "cluster",
        (
            f"{report.gpus:,.0f} GPUs, {report.busy_share:.0%} of them held on average; "
            f"{counted(report.ended, 'job')} ended"
        ),
    )
    yield "policy", f"{', '.join(report.policies)}; preemption {', '.join(report.modes)}"
    yield "order", order(report)
    yield "preemption", wished(report)
    if report.wishes:
        yield "its price", price(report)


def order(report: Report) -> str:
    """How far the queue's order would have been another one."""
    if not report.compared:
        return "never two jobs waited that could have started: there was nothing to order"
    first = report.first_other / report.compared
    return (
        f"another job would have been first in {first:.0%} of the looks with a queue, and "
        f"{report.others:.0%} of the first jobs would have been others"
    )


def wished(report: Report) -> str:
    """How many hand-overs it would have begun."""
    if not report.wishes:
        return "it would have begun no hand-over"
    return (
        f"it would have begun {counted(len(report.wishes), 'hand-over')}, stopping "
        f"{counted(report.loss.runs, 'run')} on {report.loss.gpus:,.0f} GPUs"
    )


def price(report: Report) -> str:
    """What that would have cost."""
    loss = report.loss
    return (
        f"at most {loss.if_saved_gpu_h:,.1f} GPU-hours if each job saves when it is asked (its "
        f"whole grace, and {report.restart_s:,.0f} s to start again); "
        f"{loss.if_not_gpu_h:,.1f} if none of them saves anything"
    )


def doubts(report: Report) -> Iterator[str]:
    """How sure this is, and what nobody can know; the most important first."""
    gap = report.to_s - report.from_s - report.covered_s
    if gap > max(600.0, 0.02 * report.covered_s):
        yield f"Nobody looked for {ago(gap)} of the time: what happened then is missing."
    if report.missed or report.bad:
        yield (
            f"{report.missed:,} looks or lines were missed and {report.bad:,} lines could not be "
            "read: there may have been more hand-overs than are listed."
        )
    if len(report.policies) > 1 or len(report.modes) > 1:
        yield "The policy, or who preempts, was changed in this time; the list mixes them."
    if "native" in report.modes:
        yield (
            "With preemption.mode native Slurm chooses whom to stop, by the priorities that it is "
            "given. No plan of dlschedd says so beforehand, so no hand-over is listed."
        )
    if report.tripped:
        yield (
            f"In {counted(report.tripped, 'look')} a circuit breaker would have stopped "
            "preemption, until it re-armed or an admin reset it. Here it let go with its reason."
        )
    yield (
        "Nothing was done, so each look planned from a queue that the earlier plans had not "
        "changed. Live, later plans would have been others: a wish that stays unfulfilled takes "
        "the place of those behind it, and limits on a job's preemptions never count."
    )
    if report.wishes:
        yield (
            "A hand-over counts once for each wait of the job it is for; the waiting tasks of an "
            "array count as one job. When a stopped job would have run again is not known."
        )
    yield from _doubts_of_simulation(report)


def _doubts_of_simulation(report: Report) -> Iterator[str]:
    sim = report.simulated
    if sim is None:
        yield (
            f"Waits under the policy were not simulated: {report.why_not}. What was recorded, "
            "above, does not depend on it."
        )
        return
    yield model(sim)
    if sim.is_sample:
        yield sample(sim)
    if sim.open_ended:
        yield (
            f"{counted(sim.open_ended, 'job')} had not ended, or vanished: they take part with the "
            "time they ran until they were last seen, and are not counted."
        )
    if sim.never_ran:
        yield (
            f"{counted(sim.never_ran, 'job')} waited to the end of the record and never ran: how "
            "long they would run is not known, so they are left out, whom a policy may help most."
        )
    if sim.unfit:
        yield f"{counted(sim.unfit, 'job')} fit no equal shares of the nodes and are left out."
    yield (
        "The simulated cluster begins with the jobs that ran then, without what they had had "
        "before. Partitions, limits, reservations, dependencies, placement and node failures "
        "are left out; who agreed to preemption is drawn in the recorded proportion; users do "
        "not react."
    )


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
    worth = (
        "That is far apart: do not believe the table of helped and hurt."
        if far
        else "So far the table of helped and hurt is to be believed."
    )
    return (
        f"In reality the jobs that came or waited took {ago(sim.real_wait_s)} to start on average; "
        f"the simulated plain Slurm says {ago(sim.model_wait_s)}. {worth}"
    )


def wish_cells(wish: WishedHandover, end_s: float) -> list[str]:
    """One wish: when, what, for whom, from whom, GPUs, what came of it, why."""
    return [
        utc(wish.begin_s),
        PURPOSES.get(wish.purpose, wish.purpose),
        jobs(wish.beneficiaries) or "-",
        jobs([v.job_id for v in wish.victims]),
        f"{wish.gpus:g}",
        outcome(wish, end_s),
        wish.why,
    ]


def outcome(wish: WishedHandover, end_s: float) -> str:
    """What became of it in reality."""
    match wish.end:
        case "started":
            return f"started {ago(wish.started_s - wish.begin_s)} later"
        case "gone":
            return "never started"
        case "over":
            return "over"
        case "unseen":
            return "nobody saw"
        case _:
            waits_s = end_s - wish.begin_s
            return f"waits for {ago(waits_s)}" if wish.lead else f"for {ago(waits_s)}"


def gained(wish: WishedHandover, end_s: float) -> str:
    """Least time by which its job would have started sooner."""
    return ago(sooner_s(wish, end_s)) if wish.lead else "-"


def jobs(numbers: tuple[int, ...] | list[int]) -> str:
    """Job ids, the first few of them."""
    more = len(numbers) - MOST_NAMED
    named = ", ".join(map(str, numbers[:MOST_NAMED]))
    return f"{named} and {more} more" if more > 0 else named


def span(seconds: float) -> str:
    """A time with two figures at least, so that means of hours can be told apart."""
    for unit, unit_s, least_s in (("d", 86400.0, 172800.0), ("h", 3600.0, 3600.0)):
        if seconds >= least_s:
            number = seconds / unit_s
            return (
                f"{number:.1f} {unit}"
                if round(number, 1) < _TWO_FIGURES
                else f"{number:,.0f} {unit}"
            )
    return ago(seconds)


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
