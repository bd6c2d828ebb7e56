"""The loop of ``dlqueue --watch``: ask the daemon, take keys, draw.

Questions are asked in a thread, one at a time, so a daemon that is slow or away holds up no key.
Each asks for the jobs on the screen and a screenful before and after, whatever the queue's length.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import click
from rich.console import Console

from slurm_dl.cli.dlqueue.watch.keys import Keys
from slurm_dl.cli.dlqueue.watch.queue_view import View
from slurm_dl.cli.dlqueue.watch.screen import ScreenData, drawn, pane_lines, room
from slurm_dl.cli.dlqueue.watch.terminal import Terminal
from slurm_dl.daemon.control.client import Client, DaemonError, stale_note
from slurm_dl.json_types import Json, JsonObject

_ESCAPE_S = 0.05
"""What follows an escape within this time belongs to it."""

Filters = Mapping[str, Sequence[Json]]


@dataclass(frozen=True, slots=True)
class WatchQuery:
    """What is asked at once: a part of the queue, and why of a job, if it is not empty."""

    fields: Mapping[str, Json]
    why_of: str


@dataclass(frozen=True, slots=True)
class Heard:
    """What came of a question: an answer, or why there is none."""

    question: WatchQuery
    page: JsonObject | None = None
    sentences: tuple[str, ...] = ()
    error: str = ""


class Asker:
    """Asks one question at a time, in a thread.

    Args:
        client: Whom to ask.
        told: Called in that thread once there is something to take.
    """

    def __init__(self, client: Client, told: Callable[[], None]) -> None:
        self._client = client
        self._told = told
        self._heard: queue.SimpleQueue[Heard] = queue.SimpleQueue()
        self.busy = False

    def ask(self, question: WatchQuery) -> None:
        """Begin to ask; nothing may be under way."""
        self.busy = True
        # It only waits for an answer: the program need not wait for it.
        threading.Thread(target=self._ask, args=(question,), name="ask", daemon=True).start()

    def take(self) -> Heard | None:
        """What came of the question; None while nothing has."""
        try:
            heard = self._heard.get_nowait()
        except queue.Empty:
            return None
        self.busy = False
        return heard

    def _ask(self, question: WatchQuery) -> None:
        try:
            heard = answered(self._client, question)
        except DaemonError as err:
            heard = Heard(question, error=str(err))
        self._heard.put(heard)
        self._told()


def answered(client: Client, question: WatchQuery) -> Heard:
    """What the daemon says.

    Raises:
        DaemonError: Nothing, or that it will not say so.
    """
    page = client.ask("queue", **question.fields)
    sentences: tuple[str, ...] = ()
    if question.why_of:
        try:
            said = client.ask("why", job=question.why_of).get("sentences")
            sentences = tuple(map(str, said)) if isinstance(said, list) else ()
        except DaemonError as err:
            # The job may be gone, and the queue is still there.
            sentences = (str(err),)
    return Heard(question, page, sentences)


def asked(view: View, known: ScreenData, filters: Filters) -> WatchQuery:
    """What to ask for this view: a screenful more on either side than it shows."""
    offset = max(0, view.first - view.rows)
    fields: dict[str, Json] = {name: list(values) for name, values in filters.items()}
    if view.mine:
        fields["user"] = [str(os.getuid())]
    fields |= {
        "sort": list(view.by),
        "search": view.search,
        "offset": offset,
        "limit": view.first - offset + 2 * view.rows,
    }
    selected = known.at(view.cursor)
    if view.follows and selected is not None:
        fields["locate"] = selected["job_id"]
    return WatchQuery(fields, view.why_of if view.pane == "why" else "")


def same_list(one: WatchQuery, other: WatchQuery) -> bool:
    """Whether both are about the same list, whichever part of it."""
    parts = {"offset", "limit", "locate"}
    return {k: v for k, v in one.fields.items() if k not in parts} == {
        k: v for k, v in other.fields.items() if k not in parts
    }


def after(view: View, known: ScreenData, heard: Heard, filters: Filters) -> tuple[View, ScreenData]:
    """The view and what is known, once *heard* has come."""
    if heard.page is None:
        return view, replace(known, away=heard.error)
    page = heard.page
    doing = stale_note(page) or str(page.get("doing") or "")
    known = replace(known, away="", doing=doing, age_s=_number(page, "age_s"))
    if heard.question.why_of == view.why_of:
        known = replace(known, sentences=heard.sentences)
    if not same_list(heard.question, asked(view, known, filters)):
        return view, known  # Another list is looked at by now.
    listed, at = page.get("jobs"), page.get("at")
    jobs = [job for job in listed if isinstance(job, dict)] if isinstance(listed, list) else []
    # Keys may have moved the selection since it was asked for.
    selected = known.at(view.cursor)
    same = selected is not None and selected["job_id"] == heard.question.fields.get("locate")
    view = view.heard(int(_number(page, "total")), at if same and isinstance(at, int) else None)
    return view, replace(known, jobs=jobs, offset=int(_number(page, "offset")))


def missing(view: View, known: ScreenData) -> bool:
    """Whether jobs are on the screen that are not known."""
    last = min(view.total, view.first + view.rows) - 1
    return view.total > 0 and (known.at(view.first) is None or known.at(last) is None)


def _number(answer: JsonObject, name: str) -> float:
    value = answer.get(name)
    return float(value) if isinstance(value, int | float) else 0.0


def watch(client: Client, filters: Filters, by: Sequence[str], *, every_s: float, me: bool) -> None:
    """Show the queue until somebody has seen enough.

    Args:
        filters: What goes with each question.
        by: What it is sorted by at first.
        every_s: Seconds from one look to the next.
        me: Begin with one's own jobs alone.

    Raises:
        click.UsageError: There is no terminal.
        DaemonError: The first question was not answered.
    """
    console = Console(highlight=False, markup=False, emoji=False)
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or console.is_dumb_terminal:
        msg = "--watch needs a terminal; in a pipe print the list once, without it, or use --json"
        raise click.UsageError(msg)
    terminal = Terminal(sys.stdin.fileno(), console)
    mine = {**filters, "user": ()} if me else filters
    view = View(by=tuple(by) or ("rank",), mine=me)
    watcher = _Watcher(client, mine, view, terminal, every_s)
    # A mistake in the filters, or no daemon at all, is said at once and in the usual way.
    watcher.first_look()
    with terminal.held():
        watcher.run()


class _Watcher:
    """The state of the loop."""

    def __init__(
        self, client: Client, filters: Filters, view: View, terminal: Terminal, every_s: float
    ) -> None:
        self._client = client
        self._filters = filters
        self._view = view
        self._known = ScreenData()
        self._terminal = terminal
        self._asker = Asker(client, terminal.wake)
        self._every_s = every_s
        self._next_s = time.monotonic() + every_s
        self._asked: WatchQuery | None = None
        self._heard_s = time.monotonic()
        self._told_age_s = 0.0

    def first_look(self) -> None:
        """Ask once, and wait for the answer.

        Raises:
            DaemonError: There is none.
        """
        self._fit()
        question = asked(self._view, self._known, self._filters)
        self._take(answered(self._client, question))

    def run(self) -> None:
        """Ask, take keys and draw, until it is over."""
        pressed = Keys()
        self._draw()
        while not self._view.over:
            left_s = _ESCAPE_S if pressed.waits else max(0.0, self._next_s - time.monotonic())
            # While a question is under way its answer wakes us.
            if self._asker.busy and not pressed.waits:
                left_s = self._every_s
            try:
                raw = self._terminal.wait(left_s)
            except (EOFError, KeyboardInterrupt):
                return
            before = asked(self._view, self._known, self._filters)
            for key in pressed.feed(raw) if raw else pressed.flush():
                self._press(key)
            if heard := self._asker.take():
                self._take(heard)
            now = asked(self._view, self._known, self._filters)
            if not same_list(before, now) or now.why_of != before.why_of:
                self._next_s = 0.0
            self._ask_if_due()
            self._draw()

    def _press(self, key: str) -> None:
        selected = self._known.at(self._view.cursor)
        was = self._view.why_of
        self._view = self._view.pressed(key, str(selected["job"]) if selected else "")
        if self._view.why_of != was:
            self._known = replace(self._known, sentences=())
        self._fit()

    def _take(self, heard: Heard) -> None:
        if heard.page is not None:
            self._heard_s = time.monotonic()
        self._view, known = after(self._view, self._known, heard, self._filters)
        if heard.page is not None:
            self._told_age_s = known.age_s
        self._known = known

    def _ask_if_due(self) -> None:
        due = time.monotonic() >= self._next_s
        question = asked(self._view, self._known, self._filters)
        # What the same question has not brought it will not bring at once.
        lacks = missing(self._view, self._known) and question != self._asked
        if self._asker.busy or not (due or lacks):
            return
        self._next_s = time.monotonic() + self._every_s
        self._asked = question
        self._asker.ask(question)

    def _fit(self) -> None:
        width, height = self._terminal.size
        rows, pane_rows = room(height, pane=bool(self._view.pane))
        said = len(pane_lines(self._view, self._known, width)) if self._view.pane else 0
        self._view = self._view.sized(rows, pane_rows, said)

    def _draw(self) -> None:
        self._fit()
        width, height = self._terminal.size
        age_s = self._told_age_s + time.monotonic() - self._heard_s
        self._terminal.draw(drawn(self._view, replace(self._known, age_s=age_s), width, height))
