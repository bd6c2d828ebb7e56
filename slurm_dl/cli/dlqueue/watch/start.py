"""Start ``dlqueue --watch``, and what both of its displays show."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from time import monotonic

import click
from rich.console import Console

from slurm_dl.cli.dlqueue.command import COLUMNS, cells, number
from slurm_dl.daemon.control.client import Client, stale_note
from slurm_dl.daemon.control.queue_request import QueueRequest
from slurm_dl.json_types import JsonObject
from slurm_dl.report.terminal_table import Column
from slurm_dl.text import ago, safe

MORE_COLUMNS = {
    "account": Column(title="ACCOUNT", least=7),
    "qos": Column(title="QOS", least=3),
    "note": Column(title="NOTE", least=4),
}
"""Columns for terminals that have room for them, by the field that they show."""

ALL_COLUMNS = (*COLUMNS, *MORE_COLUMNS.values())


def watch(client: Client, request: QueueRequest, *, every_s: float, me: bool) -> int:
    """Show the queue until the user quits, and give the exit status.

    Args:
        every_s: Seconds from one question to the next.
        me: Begin with one's own jobs alone.

    Raises:
        click.UsageError: There is no terminal.
        DaemonError: The daemon does not answer now, or refuses the request.
    """
    console = Console(highlight=False, markup=False, emoji=False)
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or console.is_dumb_terminal:
        msg = "--watch needs a terminal; in a pipe print the list once, without it, or use --json"
        raise click.UsageError(msg)
    # A mistake in the filters, or no daemon at all, is said before the screen is taken.
    shown = Shown()
    shown.hear(client.ask("queue", **replace(request, limit=console.height).fields()))
    try:
        from slurm_dl.cli.dlqueue.watch.app import run  # noqa: PLC0415 - Textual may be missing
    except ImportError:
        from slurm_dl.cli.dlqueue.watch.live import run_live  # noqa: PLC0415

        return run_live(client, request, shown, console, every_s)
    return run(client, request, shown, every_s=every_s, me=me)


@dataclass(slots=True)
class Shown:
    """What the daemon said last.

    Attributes:
        answer: To the last request that it answered.
        away: Why it does not answer now; empty if it does.
        heard_s: When it answered last, by `monotonic`.
    """

    answer: JsonObject = field(default_factory=dict)
    away: str = ""
    heard_s: float = 0.0

    def hear(self, answer: JsonObject) -> None:
        """Take *answer*."""
        self.answer, self.away, self.heard_s = answer, "", monotonic()

    @property
    def jobs(self) -> list[JsonObject]:
        """The jobs of the answer."""
        listed = self.answer.get("jobs")
        return [job for job in listed if isinstance(job, dict)] if isinstance(listed, list) else []

    def number(self, name: str) -> int:
        """A whole number of the answer; 0 if it has none."""
        return int(number(self.answer.get(name)))

    def head(self, request: QueueRequest, first: int, rows: int, *, mine: bool = False) -> str:
        """The line above the table: the part that is shown, its order, what the daemon does.

        Args:
            first: Place of the first job on the screen, from 0.
            rows: Jobs that the screen has room for.
        """
        total = self.number("total")
        words = [f"{first + 1}-{min(total, first + rows)} of {total}" if total else "no jobs"]
        words += [f"by {','.join(request.sort) or 'rank'}"]
        words += ["mine"] if mine else []
        words += [f"with '{safe(request.search)}'"] if request.search else []
        if self.away:
            age_s = number(self.answer.get("age_s")) + monotonic() - self.heard_s
            words += [f"AWAY, shown is {ago(age_s)} old: {safe(self.away, 300)}"]
        else:
            words += [safe(stale_note(self.answer) or str(self.answer.get("doing") or ""), 300)]
        return "  ".join(["dlqueue", *words])


def rows_of(jobs: Sequence[JsonObject]) -> list[list[str]]:
    """*jobs* as the cells of `ALL_COLUMNS`, safe to print."""
    more = [[str(job.get(name) or "-") for name in MORE_COLUMNS] for job in jobs]
    return [
        [safe(cell) for cell in (*cells(job), *rest)] for job, rest in zip(jobs, more, strict=True)
    ]
