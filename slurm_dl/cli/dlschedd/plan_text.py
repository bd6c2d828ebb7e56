"""One cycle's plan for people: what ``dlschedd --once`` prints."""

from __future__ import annotations

import time

import click

from slurm_dl.cli.dlqueue.columns import COLUMNS, cells
from slurm_dl.daemon.audit_log import line_of
from slurm_dl.daemon.control.queue_query import page
from slurm_dl.daemon.control.wire_format import QueueRequest
from slurm_dl.engine.cycle import AppliedAction, Cycle
from slurm_dl.engine.explain.past_reasons import why_left_out
from slurm_dl.json_types import Json, JsonObject
from slurm_dl.report.terminal_table import Column, show
from slurm_dl.text import safe

_ACTIONS = (
    Column(title="ACTION"),
    Column(title="JOB", right=True),
    Column(title="HANDOVER", short="HO", right=True),
    Column(title="RESULT", least=6),
    Column(title="WHY", least=20),
)


def as_object(cycle: Cycle) -> JsonObject:
    """The cycle for ``--json``."""
    jobs: list[Json] = list(page(cycle, QueueRequest()).jobs)
    actions: list[Json] = [
        {
            "action": line["action"],
            "job": line["job"],
            "handover": line["handover"],
            "result": line["result"],
            "reason": line["reason"],
            "details": line["details"],
        }
        for line in _lines(cycle)
    ]
    return {
        "now_s": cycle.snapshot.now_s,
        "acting": cycle.acting,
        "jobs": jobs,
        "actions": actions,
        "left_out": _left_out(cycle),
    }


def show_plan(cycle: Cycle) -> None:
    """Print the queue and what is to be done, or was done."""
    show(COLUMNS, [cells(job) for job in page(cycle, QueueRequest()).jobs])
    for sentence in _left_out(cycle):
        click.echo(sentence)
    click.echo()
    lines = _lines(cycle)
    if not lines:
        click.echo("nothing to do")
        return
    show(
        _ACTIONS,
        [
            [
                str(line["action"]),
                "-" if line["job"] is None else str(line["job"]),
                "-" if line["handover"] is None else str(line["handover"]),
                safe(str(line["result"])),
                str(line["reason"]),
            ]
            for line in lines
        ],
    )


def _left_out(cycle: Cycle) -> list[Json]:
    return [why_left_out(job)[0] for job in cycle.snapshot.seen.left_out.values()]


def _lines(cycle: Cycle) -> list[JsonObject]:
    now_s = time.time()
    tried = [line_of(done, now_s).as_json() for done in cycle.done]
    left = [
        {**line_of(AppliedAction(a), now_s).as_json(), "result": "not done"} for a in cycle.left
    ]
    return [*tried, *left]
