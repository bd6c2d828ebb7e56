"""What a terminal sends when keys are pressed, as names of keys.

Bytes come as they come: a character or an escape sequence may be cut anywhere, and what is pasted
may be anything.
"""

from __future__ import annotations

import codecs
import re
import unicodedata

ENTER, ESCAPE, BACKSPACE, CLEAR = "enter", "escape", "backspace", "clear"
UP, DOWN, PAGE_UP, PAGE_DOWN, HOME, END = "up", "down", "pgup", "pgdn", "home", "end"

_SEQUENCES = {
    "[A": UP,
    "OA": UP,
    "[B": DOWN,
    "OB": DOWN,
    "[5~": PAGE_UP,
    "[6~": PAGE_DOWN,
    "[H": HOME,
    "OH": HOME,
    "[1~": HOME,
    "[7~": HOME,
    "[F": END,
    "OF": END,
    "[4~": END,
    "[8~": END,
}
_CONTROLS = {
    "\r": ENTER,
    "\n": ENTER,
    "\x7f": BACKSPACE,
    "\x08": BACKSPACE,
    "\x15": CLEAR,
    "\x06": PAGE_DOWN,
    "\x02": PAGE_UP,
    "\x0e": DOWN,
    "\x10": UP,
}

_WHOLE = re.compile(r"\[[0-?]*[ -/]*[@-~]|O.", re.DOTALL)
_BEGUN = re.compile(r"|\[[0-?]*[ -/]*|O")
_LONGEST = 32
"""Characters of a sequence; what is longer is none."""


class Keys:
    """Turns bytes into names of keys; characters stand for themselves."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._left = ""

    @property
    def waits(self) -> bool:
        """An escape has come and it is not known yet whether more of it does."""
        return bool(self._left)

    def feed(self, raw: bytes) -> list[str]:
        """The keys that *raw* completes."""
        text = self._left + self._decoder.decode(raw)
        self._left = ""
        pressed: list[str] = []
        while text:
            if text[0] != "\x1b":
                pressed += _key(text[0])
                text = text[1:]
                continue
            rest = text[1:]
            if whole := _WHOLE.match(rest):
                pressed += [_SEQUENCES[whole[0]]] if whole[0] in _SEQUENCES else []
                text = rest[whole.end() :]
            elif _BEGUN.fullmatch(rest) and len(rest) < _LONGEST:
                self._left = text
                break
            else:
                pressed.append(ESCAPE)
                text = rest
        return pressed

    def flush(self) -> list[str]:
        """No more came: an escape was the key of that name."""
        left, self._left = self._left, ""
        return [ESCAPE] if left == "\x1b" else []


def _key(character: str) -> list[str]:
    if character in _CONTROLS:
        return [_CONTROLS[character]]
    return [] if unicodedata.category(character)[0] == "C" else [character]
