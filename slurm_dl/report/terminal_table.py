"""Tables for people: fitted to a terminal with rich, or one plain line a row for a pipe.

Cells are text that users wrote; they are made safe here and never read as markup.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import click

from slurm_dl.text import safe

_GAP = 1
_LONGEST_CELL = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column.

    Attributes:
        title: Its heading.
        short: Its heading where there is little room.
        right: Numbers stand to the right.
        least: Narrowest it may be made, characters; None if it must not be cut.
        folds: Where there is too little room it goes on in the next line, and is not cut.
    """

    title: str
    short: str = ""
    right: bool = False
    least: int | None = None
    folds: bool = False


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
    _rich(columns, cells, header=header, styles=styles or {}, width=width)


def _plain(columns: Sequence[Column], rows: list[list[str]], *, header: bool) -> None:
    lines = [[c.title for c in columns], *rows] if header else rows
    widths = [max((len(line[i]) for line in lines), default=0) for i in range(len(columns))]
    for line in lines:
        parts = [
            cell.rjust(w) if column.right else cell.ljust(w)
            for cell, w, column in zip(line, widths, columns, strict=True)
        ]
        click.echo(" ".join(parts).rstrip())


def _rich(
    columns: Sequence[Column],
    rows: list[list[str]],
    *,
    header: bool,
    styles: Mapping[int, str],
    width: int | None,
) -> None:
    from rich.cells import cell_len  # noqa: PLC0415 - 0.1 s that a pipe need not pay
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console(width=width, highlight=False, markup=False, emoji=False)

    def natural(titles: Sequence[str]) -> list[int]:
        lines = [titles, *rows] if header else rows
        return [max((cell_len(line[i]) for line in lines), default=1) for i in range(len(columns))]

    titles = [c.title for c in columns]
    if sum(natural(titles)) + _GAP * (len(columns) - 1) > console.width:
        titles = [c.short or c.title for c in columns]
    widths = fitted(columns, natural(titles), console.width)
    table = Table(
        box=None, pad_edge=False, padding=(0, _GAP, 0, 0), show_header=header, header_style="bold"
    )
    for column, title, w in zip(columns, titles, widths, strict=True):
        table.add_column(
            Text(title),
            justify="right" if column.right else "left",
            width=w,
            no_wrap=not column.folds,
            overflow="fold" if column.folds else "ellipsis",
        )
    for i, row in enumerate(rows):
        table.add_row(*(Text(cell) for cell in row), style=styles.get(i))
    console.print(table, crop=False, soft_wrap=False)


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
