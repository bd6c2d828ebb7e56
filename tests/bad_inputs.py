"""docs/operate/troubleshooting.md as data: each situation with its messages, for tests."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "operate" / "troubleshooting.md"

_PLACEHOLDERS = {
    "DIR": r"\S+",
    "LINE": r"\d+",
    "N": r"\d+",
    "NAME": r"\S+?",
    "PATH": r"\S+?",
    "PID": r"\d+",
    "REASON": r".+",
    "UID": r"\d+",
}
_PLACEHOLDER = re.compile(rf"\b({'|'.join(_PLACEHOLDERS)})\b")
_LEAST_WORDS = 4
"""Shorter pieces of code in a cell are names of commands, no messages."""


@dataclass(frozen=True)
class Row:
    """One line of a table.

    Attributes:
        situation: What is wrong.
        messages: What is said, as patterns.
        status: The cell about the exit status.
    """

    situation: str
    messages: tuple[re.Pattern[str], ...]
    status: str

    def check(self, said: str, *, message: int = 0) -> None:
        """Fail unless a whole line of *said* is the message."""
        pattern = self.messages[message]
        assert any(pattern.fullmatch(line) for line in said.splitlines()), (
            f"{self.situation}: the page has\n{pattern.pattern}\nbut it said\n{said}"
        )

    def check_within(self, said: str, *, message: int = 0) -> None:
        """Fail unless the message stands somewhere in *said*."""
        pattern = self.messages[message]
        assert pattern.search(said), (
            f"{self.situation}: the page has\n{pattern.pattern}\nbut it said\n{said}"
        )


def rows() -> dict[str, Row]:
    """The rows of all tables, by situation."""
    found = {}
    for line in PAGE.read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|") or len(cells) != 4 or cells[0] in {"what is wrong", "---"}:
            continue
        codes = [c for c in re.findall(r"`([^`]+)`", cells[1]) if _is_message(c)]
        patterns = tuple(re.compile(_pattern(code)) for code in codes)
        assert cells[0] not in found
        found[cells[0]] = Row(cells[0], patterns, cells[2])
    return found


def row(situation: str) -> Row:
    """The row of that situation."""
    return rows()[situation]


def _is_message(code: str) -> bool:
    return code.startswith("PATH:") or len(code.split()) >= _LEAST_WORDS


def _pattern(code: str) -> str:
    parts = _PLACEHOLDER.split(code)
    return "".join(
        _PLACEHOLDERS[part] if i % 2 else re.escape(part) for i, part in enumerate(parts)
    )
