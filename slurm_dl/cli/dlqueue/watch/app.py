"""``dlqueue --watch`` as a Textual application.

The table holds the jobs on the screen alone, and the daemon is asked for a screenful more on
either side, whatever the queue's length. Questions are asked in a thread, one at a time: a daemon
that is slow or away holds up no key.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from dataclasses import dataclass, replace
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.message import Message
from textual.widgets import DataTable, Footer, Input, Static

from slurm_dl.cli.dlqueue.columns import ALL_COLUMNS, MORE_COLUMNS, STYLES, rows_of
from slurm_dl.cli.dlqueue.watch.last_answer import Shown
from slurm_dl.daemon.control.client import Client, DaemonError
from slurm_dl.daemon.control.wire_format import SORTS, QueueRequest
from slurm_dl.json_types import JsonObject
from slurm_dl.report.terminal_table import Column, laid_out
from slurm_dl.text import safe

SORT_KEYS = {
    "r": "rank",
    "s": "running",
    "a": "attained",
    "d": "-gpus",
    "t": "-time",
    "u": "user",
    "c": "account",
    "p": "partition",
    "n": "name",
    "i": "job",
    "e": "-restarts",
}
"""What each key sorts by at first; the same key again reverses it."""

_LONGEST_SEARCH = 60
_SEARCHED = "only jobs with a text in id, name, user, account, partition or state"
_WHY = "why the selected job is where it is"

_KEYS = (
    Binding("ctrl+c", "quit", "quit", show=False, priority=True),
    Binding("q", "quit", "quit"),
    Binding("question_mark,h", "help", "keys", key_display="?"),
    Binding("slash", "search", "search", key_display="/", tooltip=_SEARCHED),
    Binding("escape", "escape", "all jobs again", show=False),
    Binding("w,enter", "why", "why", key_display="w", tooltip=_WHY),
    Binding("m", "mine", "mine", tooltip="my jobs, or all again"),
    Binding("up,k,ctrl+p", "move(-1)", "up", show=False),
    Binding("down,j,ctrl+n", "move(1)", "down", show=False),
    Binding("pageup,ctrl+b", "page(-1)", "page up", show=False),
    Binding("pagedown,space,ctrl+f", "page(1)", "page down", show=False),
    Binding("home,g", "move(-1e9)", "first job", show=False),
    Binding("end,G", "move(1e9)", "last job", show=False),
    Binding("less_than_sign", "next_sort(-1)", "previous sort", key_display="<", show=False),
    Binding("greater_than_sign", "next_sort(1)", "next sort", key_display=">", show=False),
    Binding("minus", "turn", "reverse the order", key_display="-", show=False),
    Binding("ctrl+z", "suspend_process", "stop for a while", show=False),
    *(
        Binding(key, f"sort('{word}')", f"sort by {word.removeprefix('-')}", show=False)
        for key, word in SORT_KEYS.items()
    ),
)


def run(client: Client, request: QueueRequest, shown: Shown, *, every_s: float, me: bool) -> int:
    """Show the queue until the user quits, or a signal says so; the exit status."""
    app = WatchApp(client, request, shown, every_s=every_s, me=me)

    async def until_it_ends() -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, app.exit)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            loop.add_signal_handler(number, app.exit, None, 128 + number)
        # The mouse stays the terminal's: people select and copy with it.
        await app.run_async(mouse=False)

    asyncio.run(until_it_ends())
    return app.return_code or 0


@dataclass
class Heard(Message):
    """What came of a question: an answer, or why there is none."""

    request: QueueRequest
    why_of: str
    answer: JsonObject | None = None
    sentences: tuple[str, ...] = ()
    error: str = ""


class Room(Message):
    """There is room for another number of jobs."""


class _Jobs(DataTable[Text]):
    """The jobs on the screen; its keys are the application's."""

    can_focus = False

    def on_resize(self) -> None:
        self.post_message(Room())


class _Pane(VerticalScroll):
    """Text below the table, which has the keys while it is open."""

    BINDINGS: ClassVar = [
        Binding("q,escape,enter,w,question_mark,h", "app.close", "back"),
        Binding("j", "scroll_down", show=False),
        Binding("k", "scroll_up", show=False),
        Binding("space", "page_down", show=False),
        Binding("g", "scroll_home", show=False),
        Binding("G", "scroll_end", show=False),
    ]


class WatchApp(App[None]):
    """The watch.

    Args:
        client: Whom to ask.
        request: The filters, and the order at first.
        shown: What the daemon says to it.
        every_s: Seconds from one question to the next.
        me: Begin with one's own jobs alone.
    """

    TITLE = "dlqueue --watch"
    AUTO_FOCUS = None
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #head { height: 1; background: $foreground; color: $background;
            text-wrap: nowrap; text-overflow: ellipsis; }
    #head.away { background: $error; color: $text; }
    _Jobs { height: 1fr; scrollbar-size: 0 0; }
    _Pane { height: auto; max-height: 66%; display: none; scrollbar-size-vertical: 1;
            border-top: solid $primary; }
    Input { height: 1; border: none; padding: 0; display: none; }
    """
    BINDINGS: ClassVar = [*_KEYS]

    def __init__(
        self,
        client: Client,
        request: QueueRequest,
        shown: Shown,
        *,
        every_s: float,
        me: bool = False,
    ) -> None:
        super().__init__()
        self._client = client
        # To show all again is to show everybody's.
        self._request = replace(request, user=()) if me else request
        self._mine = me
        self._every_s = every_s
        self._shown = shown
        self._first = self._cursor = 0
        self._why_of = ""
        self._busy = self._again = False

    def compose(self) -> ComposeResult:
        """The widgets, from the top."""
        yield Static(id="head", markup=False)
        yield _Jobs(cursor_type="row", cell_padding=0)
        with _Pane():
            yield Static(id="said", markup=False)
        yield Input(max_length=_LONGEST_SEARCH, select_on_focus=False)
        yield Footer()

    def on_mount(self) -> None:
        """Ask from now on. The timers are the table's, so that they end with it."""
        table = self.query_one(_Jobs)
        table.set_interval(self._every_s, self._ask)
        table.set_interval(1.0, self._show_head)

    def _wanted(self) -> QueueRequest:
        rows = self._rows
        offset = max(0, self._first - rows)
        selected = self._at(self._cursor)
        return replace(
            self._request,
            user=(str(os.getuid()),) if self._mine else self._request.user,
            offset=offset,
            limit=self._first - offset + 2 * rows,
            # On the top it stays on the top, whoever is there.
            locate=int(str(selected["job_id"])) if self._cursor and selected else None,
        )

    def _ask(self) -> None:
        if self._busy:
            self._again = True
            return
        self._busy, self._again = True, False
        question = Heard(self._wanted(), self._why_of)
        # It only waits for an answer: the program need not wait for it.
        threading.Thread(target=self._answer, args=(question,), daemon=True).start()

    def _answer(self, heard: Heard) -> None:
        try:
            heard.answer = self._client.ask("queue", **heard.request.fields())
            if heard.why_of:
                said = self._client.ask("why", job=heard.why_of).get("sentences")
                heard.sentences = tuple(map(str, said)) if isinstance(said, list) else ()
        except DaemonError as err:
            heard.error = str(err)
        self.post_message(heard)

    def on_heard(self, heard: Heard) -> None:
        """Show what was answered; nothing if the application is ending."""
        self._busy = False
        if not self.query(_Jobs):
            return
        now = self._wanted()
        if heard.answer is None:
            self._shown.away = heard.error
        elif replace(now, offset=0, limit=None, locate=None) == replace(
            heard.request, offset=0, limit=None, locate=None
        ):
            self._shown.hear(heard.answer)
            at = heard.answer.get("at")
            # Keys may have moved the selection since it was asked for.
            if isinstance(at, int) and now.locate == heard.request.locate:
                self._first, self._cursor = self._first + at - self._cursor, at
        if heard.why_of and heard.why_of == self._why_of:
            # The job may be gone while the queue is there.
            self._say(f"why {heard.why_of}", heard.sentences or (heard.error,))
        self._settle()
        # What the same question has not brought it will not bring at once.
        if self._again or (self._lacks and self._wanted() != heard.request):
            self._ask()

    def on_room(self) -> None:
        """Fill the screen."""
        if self.query(_Jobs):
            self._settle()
            self._ask()

    def _settle(self) -> None:
        """Show the selected job, and the screen filled as far as the list goes."""
        total, rows = self._shown.number("total"), self._rows
        self._cursor = max(0, min(self._cursor, total - 1))
        first = max(0, min(self._first, total - rows))
        self._first = min(max(first, self._cursor - rows + 1), self._cursor)
        self._show()

    @property
    def _lacks(self) -> bool:
        total = self._shown.number("total")
        last = min(self._first + self._rows, total) - 1
        return total > 0 and not (self._at(self._first) and self._at(last))

    @property
    def _rows(self) -> int:
        return max(1, self.query_one(_Jobs).size.height - 1)

    def _at(self, place: int) -> JsonObject | None:
        k = place - self._shown.number("offset")
        return self._shown.jobs[k] if 0 <= k < len(self._shown.jobs) else None

    def _show_head(self) -> None:
        text = self._shown.head(self._request, self._first, self._rows, mine=self._mine)
        head = self.query_one("#head", Static)
        head.update(Text(text))
        head.set_class(bool(self._shown.away), "away")

    def _show(self) -> None:
        self._show_head()
        table = self.query_one(_Jobs)
        end = min(self._first + self._rows, self._shown.number("total"))
        jobs = [self._at(place) for place in range(self._first, end)]
        rows = rows_of([job for job in jobs if job])
        kept, titles, widths = laid_out(
            ALL_COLUMNS, rows, table.size.width - 1, optional=len(MORE_COLUMNS)
        )
        table.clear(columns=True)
        for title, width in zip(titles, widths, strict=True):
            table.add_column(Text(title, no_wrap=True, overflow="ellipsis"), width=width + 1)
        columns = [ALL_COLUMNS[i] for i in kept]
        left = iter([[row[i] for i in kept] for row in rows])
        for job in jobs:
            style = STYLES.get(str(job["state"]), "") if job else "dim"
            row = next(left) if job else ["..."] + [""] * (len(titles) - 1)
            table.add_row(*_texts(columns, row, widths, style))
        table.move_cursor(row=self._cursor - self._first, scroll=False)

    def _say(self, title: str, lines: tuple[str, ...]) -> None:
        text = Text(f"{safe(title)}\n", style="bold")
        text.append("\n".join(safe(line, 4000) for line in lines), style="not bold")
        self.query_one("#said", Static).update(text)
        pane = self.query_one(_Pane)
        pane.display = True
        pane.focus()

    # Keys.

    def action_move(self, rows: float) -> None:
        """Select the job so many rows further; beyond an end of the list: the one there."""
        self._cursor = int(self._cursor + rows)
        self._settle()
        if self._lacks:
            self._ask()

    def action_page(self, pages: int) -> None:
        """Select the job so many screens further."""
        self._first += pages * self._rows
        self.action_move(pages * self._rows)

    def action_sort(self, word: str) -> None:
        """Sort by *word*, or reverse the order if it is sorted so."""
        if (self._request.sort or ("rank",))[0].removeprefix("-") == word.removeprefix("-"):
            self.action_turn()
        else:
            self._list(replace(self._request, sort=(word,)))

    def action_turn(self) -> None:
        """Reverse the order."""
        first, *others = self._request.sort or ("rank",)
        first = first[1:] if first.startswith("-") else f"-{first}"
        self._list(replace(self._request, sort=(first, *others)))

    def action_next_sort(self, step: int) -> None:
        """Sort by the word after the present one, or before it."""
        at = SORTS.index((self._request.sort or ("rank",))[0].removeprefix("-"))
        self._list(replace(self._request, sort=(SORTS[(at + step) % len(SORTS)],)))

    def action_mine(self) -> None:
        """Show one's own jobs, or all again."""
        self._mine = not self._mine
        self._list(self._request)

    def _list(self, request: QueueRequest) -> None:
        self._request = request
        self._first = self._cursor = 0
        self._show_head()
        self._ask()

    def action_search(self) -> None:
        """Let a text be typed."""
        self.action_close()
        box = self.query_one(Input)
        box.value = self._request.search
        box.cursor_position = len(box.value)
        box.display = True
        box.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Show the jobs with this text."""
        event.input.display = False
        self._list(replace(self._request, search=event.value))

    def action_escape(self) -> None:
        """Leave the search as it was; or, in the list, show all jobs again."""
        box = self.query_one(Input)
        if box.display:
            box.display = False
        elif self._request.search:
            self._list(replace(self._request, search=""))

    def action_why(self) -> None:
        """Say why the selected job is where it is, for as long as the pane is open."""
        if job := self._at(self._cursor):
            self._why_of = str(job["job"])
            self._say(f"why {self._why_of}", ("...",))
            self._ask()

    def action_help(self) -> None:
        """List the keys."""
        keys = ((b.key_display or b.key, b.tooltip or b.description) for b in _KEYS)
        self._say("keys", tuple(f"{key:22} {does}" for key, does in keys))

    def action_close(self) -> None:
        """Close the pane."""
        self._why_of = ""
        self.query_one(_Pane).display = False
        self.set_focus(None)


def _texts(columns: list[Column], row: list[str], widths: list[int], style: str) -> list[Text]:
    texts = []
    for column, cell, width in zip(columns, row, widths, strict=True):
        text = Text(cell, style=style, no_wrap=True)
        text.truncate(width, overflow="ellipsis")
        text.align("right" if column.right else "left", width)
        texts.append(text)
    return texts
