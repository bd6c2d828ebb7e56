"""``dlqueue --watch`` without Textual: the first screenful, drawn again, and no keys but Ctrl-C."""

from __future__ import annotations

import signal
import sys
import time
from dataclasses import replace

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from slurm_dl.cli.dlqueue.command import STYLES
from slurm_dl.cli.dlqueue.watch.start import ALL_COLUMNS, MORE_COLUMNS, Shown, rows_of
from slurm_dl.daemon.control.client import Client, DaemonError
from slurm_dl.daemon.control.queue_request import QueueRequest
from slurm_dl.report.terminal_table import rich_table

_HINT = "Ctrl-C quits. Keys to sort, search and ask why: install slurm-dl[watch]"


def run_live(
    client: Client, request: QueueRequest, shown: Shown, console: Console, every_s: float
) -> int:
    """Show the queue until Ctrl-C; the terminal is given back whatever ends it."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
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
