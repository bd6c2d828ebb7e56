"""Start ``dlqueue --watch``, and what both of its displays show."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from time import monotonic

import click
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from slurm_dl.cli.dlqueue.command import COLUMNS, STYLES, cells, number
from slurm_dl.daemon.control.client import Client, DaemonError, stale_note
from slurm_dl.daemon.control.queue_request import QueueRequest
from slurm_dl.json_types import JsonObject
from slurm_dl.report.terminal_table import Column, rich_table
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
        return _run_live(client, request, shown, console, every_s)
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


_HINT = "Ctrl-C quits. Keys to sort, search and ask why: install slurm-dl[watch]"


def _run_live(
    client: Client, request: QueueRequest, shown: Shown, console: Console, every_s: float
) -> int:
    """Without Textual: the first screenful, drawn again, and no keys but Ctrl-C.

    The terminal is given back whatever ends it.
    """
    for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(signum, lambda got, _: sys.exit(128 + got))
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                rows = max(1, console.height - 3)
                live.update(_screen(shown, request, console.width, rows), refresh=True)
                time.sleep(every_s)
                try:
                    shown.hear(client.ask("queue", **replace(request, limit=rows).fields()))
                except DaemonError as err:
                    shown.away = str(err)
    except KeyboardInterrupt:
        return 0


def _screen(shown: Shown, request: QueueRequest, width: int, rows: int) -> Group:
    jobs = shown.jobs[:rows]
    style = "white on red" if shown.away else "reverse"
    head = Text(shown.head(request, 0, rows), style=style, no_wrap=True, overflow="ellipsis")
    styles = {i: STYLES.get(str(job["state"]), "") for i, job in enumerate(jobs)}
    table = rich_table(
        ALL_COLUMNS, rows_of(jobs), width=width, styles=styles, optional=len(MORE_COLUMNS)
    )
    return Group(head, table, Text(_HINT, style="dim", no_wrap=True, overflow="ellipsis"))
