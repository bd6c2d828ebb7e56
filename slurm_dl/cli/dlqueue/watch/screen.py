"""A view of the queue as the lines of a screen: exactly as many as it has, none wider than it.

Only the jobs on the screen are rendered. Text that users wrote is made safe here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from slurm_dl.cli.dlqueue.command import COLUMNS, STYLES, cells
from slurm_dl.cli.dlqueue.watch.queue_view import SORT_KEYS, View
from slurm_dl.json_types import JsonObject
from slurm_dl.report.terminal_table import Column, fitted
from slurm_dl.text import ago, safe

_FRAME_LINES = 3
"""The state of things, the headings, and the line of keys."""

_MORE = (
    (Column(title="ACCOUNT", least=7), "account"),
    (Column(title="QOS", least=3), "qos"),
    (Column(title="NOTE", least=4), "note"),
)
"""Columns for terminals that have room for them, and the fields they show."""

_HINTS = "q quit  ? help  / filter  w why  m mine  < > - sort  arrows move"
_HINTS_PANE = "q back  arrows, PgUp, PgDn, g, G scroll"

HELP = (
    "arrows, j k   move the selection; PgUp PgDn, space: by a page; g G: to the ends",
    "              It stays on its job, and on the first place on that place.",
    "w, Enter      why the selected job is where it is; again, q or Esc: close",
    "/             show only jobs with this text in id, name, user, account,",
    "              partition or state; Enter takes it, Esc leaves it as it was",
    "Esc           all jobs again",
    "m             only my jobs, and all again",
    "q, Ctrl-C     quit; Ctrl-Z: stop for a while",
    "",
    "Sorting; the same key again, or -, turns it round; < > go through all words",
    *(f"{key}             by {word.removeprefix('-')}" for key, word in SORT_KEYS.items()),
)
"""Lines that 80 columns have room for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreenData:
    """What the daemon has said.

    Attributes:
        jobs: Rows of jobs that follow each other in the list.
        offset: Place of the first of them.
        sentences: Why the job of the pane is where it is.
        doing: What the daemon does, in its words.
        age_s: How old what it says is, seconds.
        away: Why it does not answer now; empty if it does.
    """

    jobs: Sequence[JsonObject] = ()
    offset: int = 0
    sentences: Sequence[str] = field(default_factory=tuple)
    doing: str = ""
    age_s: float = 0.0
    away: str = ""

    def at(self, place: int) -> JsonObject | None:
        """The job at *place* of the list; None if it is not known."""
        k = place - self.offset
        return self.jobs[k] if 0 <= k < len(self.jobs) else None


def room(height: int, *, pane: bool) -> tuple[int, int]:
    """How many jobs a screen of so many lines has room for, and how many lines of a pane."""
    lines = max(1, height - _FRAME_LINES)
    if not pane:
        return lines, 0
    # One line of it is its title.
    pane_rows = max(1, min(lines - 2, lines * 2 // 3 - 1))
    return max(1, lines - pane_rows - 1), pane_rows


def pane_lines(view: View, known: ScreenData, width: int) -> list[str]:
    """What the pane says, in lines of at most so many cells."""
    if view.pane == "help":
        return [line for text in HELP for line in wrapped(text, width)]
    said = known.sentences or (known.away or "...",)
    return [line for text in said for line in wrapped(safe(text, 4000), width)]


def drawn(view: View, known: ScreenData, width: int, height: int) -> list[Text]:
    """The whole screen, line by line."""
    shown = [known.at(view.first + k) for k in range(min(view.rows, view.total - view.first))]
    lines = [_state(view, known, width), *_table(view, shown, width)]
    if view.pane:
        lines = lines[: view.rows + 2]
        lines += [_blank(width)] * (view.rows + 2 - len(lines))
        said = pane_lines(view, known, width)
        lines.append(_title(view, said, width))
        lines += [_line(text, width) for text in said[view.scroll : view.scroll + view.pane_rows]]
    lines = lines[: max(0, height - 1)]
    lines += [_blank(width)] * (height - 1 - len(lines))
    return [*lines, _foot(view, width)][-height:]


def wrapped(text: str, width: int) -> list[str]:
    """*text* in lines of at most so many cells, broken between words where there are any."""
    if cell_len(text) <= width:
        return [text]
    lines, line = [], ""
    for word in text.split(" "):
        piece = word
        if line and cell_len(line) + 1 + cell_len(piece) > width:
            lines.append(line)
            line = ""
        line = f"{line} {piece}" if line else piece
        while cell_len(line) > width:
            head = _head(line, width)
            lines.append(head)
            line = line[len(head) :]
    return [*lines, line] if line else lines


def _head(text: str, width: int) -> str:
    """The beginning of *text* that fits, at least one character."""
    end, used = 0, 0
    for character in text:
        used += cell_len(character)
        if used > width and end:
            break
        end += 1
    return text[:end]


def _state(view: View, known: ScreenData, width: int) -> Text:
    """What is shown, of how many, and whether the daemon is there."""
    last = min(view.total, view.first + view.rows)
    count = f"{view.first + 1}-{last} of {view.total}" if view.total else "no jobs"
    asked = [f"by {','.join(view.by)}"]
    asked += ["mine"] if view.mine else []
    asked += [f"with '{safe(view.search)}'"] if view.search else []
    says = safe(known.doing, 120)
    style = "reverse"
    if known.away:
        says, style = (
            f"AWAY, shown is {ago(known.age_s)} old: {safe(known.away, 300)}",
            "white on red",
        )
    return _line(f"dlqueue  {count}  {'  '.join(asked)}  {says}", width, style)


def _table(view: View, shown: Sequence[JsonObject | None], width: int) -> list[Text]:
    known = [job for job in shown if job is not None]
    columns, fields = list(COLUMNS), [""] * len(COLUMNS)
    body = [[safe(cell) for cell in cells(job)] for job in known]
    titles = [column.title for column in columns]
    if _natural(titles, body) > width:
        titles = [column.short or column.title for column in columns]
    for column, name in _MORE:
        longer = [
            [*row, safe(str(job.get(name) or "-"))] for row, job in zip(body, known, strict=True)
        ]
        if _natural([*titles, column.title], longer) > width:
            break
        columns.append(column)
        titles.append(column.title)
        fields.append(name)
        body = longer
    widths = fitted(columns, _widest(titles, body), width)
    lines = [_line(_row(columns, titles, widths), width, "bold")]
    of_known = iter(zip(known, body, strict=True))
    for k, job in enumerate(shown):
        if job is None:
            lines.append(_line("...", width, "reverse" if view.first + k == view.cursor else "dim"))
            continue
        _, row = next(of_known)
        style = STYLES.get(str(job["state"]), "")
        if view.first + k == view.cursor:
            style = f"{style} reverse".strip()
        lines.append(_line(_row(columns, row, widths), width, style))
    return lines


def _widest(titles: Sequence[str], body: Sequence[Sequence[str]]) -> list[int]:
    return [max(cell_len(line[i]) for line in (titles, *body)) for i in range(len(titles))]


def _natural(titles: Sequence[str], body: Sequence[Sequence[str]]) -> int:
    return sum(_widest(titles, body)) + len(titles) - 1


def _row(columns: Sequence[Column], row: Sequence[str], widths: Sequence[int]) -> str:
    return " ".join(
        _cell(cell, w, right=column.right)
        for column, cell, w in zip(columns, row, widths, strict=True)
    )


def _cell(text: str, width: int, *, right: bool) -> str:
    if cell_len(text) > width:
        return set_cell_size(text, max(0, width - 1)) + "…"
    pad = " " * (width - cell_len(text))
    return pad + text if right else text + pad


def _title(view: View, said: Sequence[str], width: int) -> Text:
    what = "keys" if view.pane == "help" else f"why {safe(view.why_of)}"
    end = min(len(said), view.scroll + view.pane_rows)
    where = f"  lines {view.scroll + 1}-{end} of {len(said)}" if view.most_scroll else ""
    return _line(f"-- {what}{where} ", width, "bold")


def _foot(view: View, width: int) -> Text:
    if view.typing is not None:
        # The end of what is typed is what is looked at.
        text = f"/{safe(view.typing)}"
        while cell_len(text) >= width and len(text) > 1:
            text = text[1:]
        return _line(f"{text}_", width)
    return _line(_HINTS_PANE if view.pane else _HINTS, width, "dim")


def _blank(width: int) -> Text:
    return Text(" " * width)


def _line(text: str, width: int, style: str = "") -> Text:
    return Text(set_cell_size(text, width), style=style, no_wrap=True, overflow="crop")
