"""What the simulator's commands print besides their results: progress, and where figures go."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def console(width: int = 80) -> Console:
    """Standard output; plain unless it is a terminal.

    Args:
        width: Columns where it is none.
    """
    from rich.console import Console  # noqa: PLC0415 - 0.1 s that --json need not pay

    return Console() if sys.stdout.isatty() else Console(width=width, highlight=False)


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of progress; call it with the steps done so far."""

    done: Callable[[float], None]  # Told the steps
    tell: Callable[[str], None]  # Told what is under way

    def __call__(self, done: float) -> None:
        """Show that so many steps are done."""
        self.done(done)


@contextlib.contextmanager
def progress(what: str, total: int) -> Iterator[Bar]:
    """A bar on standard error for work of *total* steps.

    Nothing is drawn unless standard error is a terminal.
    """
    if not sys.stderr.isatty():
        yield Bar(lambda _: None, lambda _: None)
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import Progress  # noqa: PLC0415

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield Bar(
            lambda done: bar.update(task, completed=done),
            lambda now: bar.update(task, description=f"{what}: {now}"),
        )
