"""What somebody who watches the queue looks at, and what each key makes of it.

It is pure: a view and a key give a view. What the daemon says of the queue comes in by `heard`.
The selection stays on its job wherever that goes; until somebody moves it, it stays on the top.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

from slurm_dl.cli.dlqueue.watch import keys
from slurm_dl.daemon.control.sort_keys import SORTS

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
"""What each key sorts by at first; the same key again turns it round."""

_LONGEST_SEARCH = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What is looked at.

    Attributes:
        by: By what the list is sorted, as in a request.
        mine: Only the jobs of whoever looks.
        search: Only jobs with this text.
        typing: What has been typed of another text; None while nothing is typed.
        pane: What is open below the list.
        why_of: The job that the pane ``why`` is about, as Slurm names it; else empty.
        scroll: Lines of the pane that are above its first.
        most_scroll: Lines that can be above it; the last line stays in sight.
        rows: Jobs that fit on the screen, at least 1.
        pane_rows: Lines of the pane that fit.
        total: Jobs in the list, on the screen or not.
        first: Place of the first job on the screen.
        cursor: Place of the selected one.
        follows: The selection stays on its job; else on its place.
        over: It is to end.
    """

    by: tuple[str, ...] = ("rank",)
    mine: bool = False
    search: str = ""
    typing: str | None = None
    pane: Literal["", "why", "help"] = ""
    why_of: str = ""
    scroll: int = 0
    most_scroll: int = 0
    rows: int = 1
    pane_rows: int = 0
    total: int = 0
    first: int = 0
    cursor: int = 0
    follows: bool = False
    over: bool = False

    def settled(self) -> View:
        """With every place inside the list, and the selected job on the screen."""
        cursor = max(0, min(self.cursor, self.total - 1))
        first = max(0, min(self.first, self.total - self.rows))
        first = min(max(first, cursor - self.rows + 1), cursor)
        scroll = max(0, min(self.scroll, self.most_scroll))
        return dataclasses.replace(self, cursor=cursor, first=first, scroll=scroll)

    def heard(self, total: int, at: int | None) -> View:
        """There are *total* jobs now, and the selected one is the one at *at*."""
        moved = self
        if self.follows and at is not None:
            # It stays on its line of the screen, so that the eye need not look for it.
            moved = dataclasses.replace(self, cursor=at, first=self.first + at - self.cursor)
        return dataclasses.replace(moved, total=total).settled()

    def sized(self, rows: int, pane_rows: int, pane_lines: int) -> View:
        """On a screen with room for *rows* jobs, and *pane_rows* of the pane's *pane_lines*."""
        most = max(0, pane_lines - pane_rows)
        return dataclasses.replace(
            self, rows=max(1, rows), pane_rows=pane_rows, most_scroll=most
        ).settled()

    def pressed(self, key: str, selected: str = "") -> View:
        """After *key*; *selected* is the name of the selected job, empty if it is not known."""
        if self.typing is not None:
            return self._typed(key, self.typing).settled()
        if self.pane:
            return self._in_pane(key).settled()
        return self._in_list(key, selected).settled()

    def _typed(self, key: str, text: str) -> View:
        match key:
            case keys.ENTER:
                return self._top(search=text, typing=None)
            case keys.ESCAPE:
                return dataclasses.replace(self, typing=None)
            case keys.BACKSPACE:
                return dataclasses.replace(self, typing=text[:-1])
            case keys.CLEAR:
                return dataclasses.replace(self, typing="")
            case character if len(character) == 1:
                return dataclasses.replace(self, typing=(text + character)[:_LONGEST_SEARCH])
            case _:
                return self

    def _in_pane(self, key: str) -> View:
        if key in {"q", keys.ESCAPE, keys.ENTER} or (key, self.pane) in {
            ("w", "why"),
            ("?", "help"),
        }:
            return dataclasses.replace(self, pane="", why_of="", scroll=0)
        step = {
            keys.UP: -1,
            "k": -1,
            keys.DOWN: 1,
            "j": 1,
            keys.PAGE_UP: -max(1, self.pane_rows - 1),
            keys.PAGE_DOWN: max(1, self.pane_rows - 1),
            " ": max(1, self.pane_rows - 1),
            keys.HOME: -self.scroll,
            "g": -self.scroll,
            keys.END: self.most_scroll,
            "G": self.most_scroll,
        }.get(key, 0)
        return dataclasses.replace(self, scroll=self.scroll + step)

    def _in_list(self, key: str, selected: str) -> View:
        match key:
            case "q":
                return dataclasses.replace(self, over=True)
            case "?" | "h":
                return dataclasses.replace(self, pane="help", scroll=0)
            case "w" | keys.ENTER if selected:
                return dataclasses.replace(self, pane="why", why_of=selected, scroll=0)
            case "/":
                return dataclasses.replace(self, typing=self.search)
            case _:
                return self._listed(key)

    def _listed(self, key: str) -> View:
        """After a key that makes another list, or moves in it."""
        match key:
            case keys.ESCAPE if self.search:
                return self._top(search="")
            case "m":
                return self._top(mine=not self.mine)
            case "-":
                return self._top(by=_turned(self.by))
            case "<" | ">":
                step = 1 if key == ">" else -1
                at = SORTS.index(self.by[0].removeprefix("-"))
                return self._top(by=(SORTS[(at + step) % len(SORTS)],))
            case _ if key in SORT_KEYS:
                return self._sorted(SORT_KEYS[key])
            case _:
                return self._moved(key)

    def _moved(self, key: str) -> View:
        last = max(0, self.total - 1)
        to = {
            keys.UP: self.cursor - 1,
            "k": self.cursor - 1,
            keys.DOWN: self.cursor + 1,
            "j": self.cursor + 1,
            keys.PAGE_UP: self.cursor - self.rows,
            keys.PAGE_DOWN: self.cursor + self.rows,
            " ": self.cursor + self.rows,
            keys.HOME: 0,
            "g": 0,
            keys.END: last,
            "G": last,
        }.get(key)
        if to is None:
            return self
        by_page = key in {keys.PAGE_UP, keys.PAGE_DOWN, " "}
        first = self.first + (to - self.cursor if by_page else 0)
        # On the top it waits for whoever is first next.
        return dataclasses.replace(self, cursor=to, first=first, follows=to > 0)

    def _sorted(self, word: str) -> View:
        by: tuple[str, ...] = (word,)
        if self.by[0].removeprefix("-") == word.removeprefix("-"):
            by = _turned(self.by)
        return self._top(by=by)

    def _top(
        self,
        *,
        by: tuple[str, ...] | None = None,
        search: str | None = None,
        mine: bool | None = None,
        typing: None = None,
    ) -> View:
        """Another list: looked at from its beginning."""
        return dataclasses.replace(
            self,
            by=self.by if by is None else by,
            search=self.search if search is None else search,
            mine=self.mine if mine is None else mine,
            typing=typing,
            cursor=0,
            first=0,
            follows=False,
        )


def _turned(by: tuple[str, ...]) -> tuple[str, ...]:
    first, *others = by
    return (first[1:] if first.startswith("-") else f"-{first}", *others)
