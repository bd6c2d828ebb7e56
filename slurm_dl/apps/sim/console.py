"""What the simulator's commands print besides their results: progress, and where figures go."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def console() -> Console:
    """Standard output; plain and 80 columns wide unless it is a terminal."""
    from rich.console import Console  # noqa: PLC0415 - 0.1 s that --json need not pay

    return Console() if sys.stdout.isatty() else Console(width=80, highlight=False)


@contextlib.contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on standard error for work of *total* steps; call with the steps done so far.

    Nothing is drawn unless standard error is a terminal.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import Progress  # noqa: PLC0415

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)
