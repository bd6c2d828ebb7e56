"""Tables for people, fitted to a terminal with rich or plain for a pipe; figures; bars of progress.

Cells are text that users wrote; they are made safe here and never read as markup.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import click

from slurm_dl.text import safe


@dataclass(frozen=True, slots=True)
class TimeUnit:
    """A unit of time: its sign, and what it is in seconds."""

    sign: str
    in_s: float


SECONDS: Final = TimeUnit("s", 1.0)
UNITS: Final = (TimeUnit("d", 86400.0), TimeUnit("h", 3600.0), TimeUnit("min", 60.0), SECONDS)
_NEARLY: Final = 1.999  # A unit is used from twice itself on, rounding apart: 1.5 h are 90 min
NONE: Final = "-"  # Written where there is no figure
_EXACT: Final = 2**53


def unit_of(times_s: Iterable[float]) -> TimeUnit:
    """The one unit that suits these times: the largest that their geometric mean fills."""
    logs = [math.log(t) for t in times_s if t > 0 and math.isfinite(t)]
    middle_s = math.exp(math.fsum(logs) / len(logs)) if logs else 0.0
    return next((unit for unit in UNITS if middle_s > _NEARLY * unit.in_s), SECONDS)


def number(value: float) -> str:
    """*value* with three digits that count, or all of its digits before the point."""
    if not math.isfinite(value):
        return NONE
    size = abs(value)
    digits = next((d for limit, d in ((99.95, 0), (9.995, 1), (0.9995, 2)) if size >= limit), 3)
    return f"{value:,.{digits}f}" if value else "0"


def duration(time_s: float) -> str:
    """*time_s* in the unit that suits it."""
    unit = unit_of([time_s])
    return f"{number(time_s / unit.in_s)} {unit.sign}" if math.isfinite(time_s) else NONE


def percent(share: float) -> str:
    """*share* of 1 as a percentage."""
    return f"{100 * share:.1f}%" if math.isfinite(share) else NONE


def plain_number(value: float) -> str:
    """*value* for a machine: digits alone if it is whole, else what reads back as the same.

    NaN, where there is no figure, is empty.
    """
    if math.isnan(value):
        return ""
    if float(value).is_integer() and abs(value) < _EXACT:
        return str(int(value))
    return repr(float(value))


if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text


_GAP = 1
_LONGEST_CELL = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column.

    Attributes:
        folds: Where there is too little room it goes on in the next line, and is not cut.
    """

    title: str  # Its heading
    short: str = ""  # Its heading where there is little room
    right: bool = False  # Numbers stand to the right
    least: int | None = None  # Narrowest it may be made, characters; None if it must not be cut
    folds: bool = False
    may_go: bool = False  # It is left out where the narrowest table has no room for it


def show(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    *,
    header: bool = True,
    styles: Mapping[int, str] | None = None,
    width: int | None = None,
    longest: int = _LONGEST_CELL,
) -> None:
    """Print a table.

    Args:
        header: With headings.
        styles: Rich style of a row, by its index; only on a terminal.
        width: Characters a line may have on a terminal; asked of the terminal if None.
        longest: Characters of a cell; what is beyond is cut off, everywhere.
    """
    cells = [[safe(cell, longest) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        _plain(columns, cells, header=header)
        return
    from rich.console import Console  # noqa: PLC0415 - 0.1 s that a pipe need not pay

    console = Console(width=width, highlight=False, markup=False, emoji=False)
    made = rich_table(columns, cells, width=console.width, header=header, styles=styles)
    console.print(made, crop=False, soft_wrap=False)


def _plain(columns: Sequence[Column], rows: list[list[str]], *, header: bool) -> None:
    lines = [[c.title for c in columns], *rows] if header else rows
    widths = [max((len(line[i]) for line in lines), default=0) for i in range(len(columns))]
    for line in lines:
        parts = [
            cell.rjust(w) if column.right else cell.ljust(w)
            for cell, w, column in zip(line, widths, columns, strict=True)
        ]
        click.echo(" ".join(parts).rstrip())


def rich_table(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    *,
    width: int,
    header: bool = True,
    styles: Mapping[int, str] | None = None,
    optional: int = 0,
) -> Table:
    """*rows*, which are safe to print, as a table of at most *width* characters; see `laid_out`."""
    kept, titles, widths = laid_out(columns, rows, width, header=header, optional=optional)
    shown = [[row[i] for i in kept] for row in rows]
    columns = [columns[i] for i in kept]
    return table(columns, shown, header=header, titles=titles, widths=widths, styles=styles)


def table(
    columns: Sequence[Column],
    rows: Iterable[Sequence[str | Text]],
    *,
    header: bool = True,
    titles: Sequence[str] | None = None,
    widths: Sequence[int] | None = None,
    styles: Mapping[int, str] | None = None,
) -> Table:
    """A table for rich; cells are not made safe here.

    Args:
        titles: In place of those of the columns.
        widths: Of the columns; None: rich fits those that fold.
        styles: Style of a row, by its index.
    """
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    made = Table(
        box=None, pad_edge=False, padding=(0, _GAP, 0, 0), show_header=header, header_style="bold"
    )
    for i, column in enumerate(columns):
        made.add_column(
            Text(titles[i] if titles else column.title),
            justify="right" if column.right else "left",
            width=widths[i] if widths else None,
            no_wrap=not column.folds,
            overflow="fold" if column.folds else "ellipsis",
        )
    for i, row in enumerate(rows):
        cells = (Text(cell) if isinstance(cell, str) else cell for cell in row)
        made.add_row(*cells, style=(styles or {}).get(i))
    return made


def laid_out(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    width: int,
    *,
    header: bool = True,
    optional: int = 0,
) -> tuple[list[int], list[str], list[int]]:
    """The columns, headings and widths of a table that fits *width*, if that can be.

    Args:
        optional: How many columns, from the last, may be left out where there is no room.
    """
    from rich.cells import cell_len  # noqa: PLC0415

    def natural(kept: Sequence[int], titles: Sequence[str]) -> list[int]:
        lines = [titles, *rows] if header else rows
        return [max((cell_len(line[i]) for line in lines), default=1) for i in kept]

    full, short = [c.title for c in columns], [c.short or c.title for c in columns]
    kept, titles, widths = list[int](), full, list[int]()
    for n in range(len(columns), len(columns) - optional - 1, -1):
        kept = list(range(n))
        for titles in (full, short):
            widths = natural(kept, titles)
            if sum(widths) + _GAP * (n - 1) <= width:
                return kept, titles[:n], widths
    while True:
        made = fitted([columns[i] for i in kept], widths, width)
        going = [i for i in kept if columns[i].may_go]
        if not going or sum(made) + _GAP * (len(made) - 1) <= width:
            return kept, [titles[i] for i in kept], made
        kept.remove(going[-1])
        widths = natural(kept, titles)


def fitted(columns: Sequence[Column], natural: Sequence[int], width: int) -> list[int]:
    """Column widths whose sum fits *width*, if that can be: the widest columns give way first."""
    widths = list(natural)
    spare = width - _GAP * (len(widths) - 1) - sum(widths)
    while spare < 0:
        soft = [i for i, c in enumerate(columns) if c.least is not None and widths[i] > c.least]
        if not soft:
            break
        widest = max(soft, key=lambda i: widths[i])
        widths[widest] -= 1
        spare += 1
    return widths


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
