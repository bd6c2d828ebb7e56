"""The documents stay readable: short sentences, and a README that comes to the point."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import shown

LONGEST_WORDS = 40
_FENCE = re.compile(r"^( *)```.*?^\1``` *$", re.MULTILINE | re.DOTALL)
_ITEM = re.compile(r"\n(?=\s*(?:[-*+]|\d+\.)\s)|\n(?=\|)|\n(?=#)")
_END = re.compile(r"(?<=[.!?])[\"')\]*]*\s+(?=[\w\[*\"(])")


def sentences(text: str) -> Iterator[str]:
    """Sentences outside code; an item of a list and a cell of a table end one, too."""
    prose = re.sub(r"<!--.*?-->", "", _FENCE.sub("", text), flags=re.DOTALL)
    for paragraph in re.split(r"\n\s*\n", prose):
        if re.match(r"(?: {4}|\t)(?!\s*(?:[-*+]|\d+\.)\s)", paragraph.lstrip("\n")):
            continue
        for item in _ITEM.split(paragraph):
            cells = item.split(" | ") if item.lstrip().startswith("|") else [item]
            for cell in cells:
                plain = re.sub(r"`[^`]*`", "code", re.sub(r"\]\([^)]*\)", "]", cell))
                yield from _END.split(" ".join(plain.split()))


@pytest.mark.parametrize("page", shown.PAGES, ids=lambda p: p.relative_to(shown.ROOT).as_posix())
def test_no_sentence_is_long(page: Path) -> None:
    """A longer one has to be read twice."""
    found = [s for s in sentences(page.read_text("utf-8")) if len(s.split()) > LONGEST_WORDS]

    assert found == []


def test_readme_comes_to_the_point() -> None:
    """A newcomer meets the first command within a screen."""
    text = (shown.ROOT / "README.md").read_text("utf-8")
    before = text.partition("\n    ")[0]

    assert text.count("\n") <= 120
    assert len(before.split()) <= 220


@pytest.mark.parametrize(
    ("text", "longest"),
    [
        ("One two. Three four five.", 3),
        ("- one two\n- three\n", 3),
        ("| one two three | four |\n", 4),
        ("```\n" + "word " * 50 + "\n```\n", 0),
        ("word " * 41, 41),
    ],
)
def test_sentences_are_found(text: str, longest: int) -> None:
    """The marks of a list and a table count as words."""
    assert max((len(s.split()) for s in sentences(text)), default=0) == longest
