"""Start ``dlqueue --watch``: by Textual, or without it by `rich.live`."""

from __future__ import annotations

import signal
import sys
import time
from dataclasses import replace

import click
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from slurm_dl.cli.dlqueue.columns import ALL_COLUMNS, MORE_COLUMNS, STYLES, rows_of
from slurm_dl.cli.dlqueue.watch.last_answer import Shown
from slurm_dl.daemon.control.client import Client, DaemonError
from slurm_dl.daemon.control.wire_format import QueueRequest
from slurm_dl.report.terminal_table import rich_table


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
