"""Text of users, made safe for terminals and logs; values and lengths of time in words."""

from __future__ import annotations

import pwd
import re
import unicodedata
from collections.abc import Iterable

# Cc: control characters; Cf: bidirectional overrides and other invisible ones; Cs: lone
# surrogates, which cannot be printed at all; Zl and Zp: line breaks by another name.
_UNPRINTABLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def safe(text: str, longest: int = 200) -> str:
    """*text* of a user on one line, without characters that could steer a terminal."""
    if text.isprintable() and len(text) <= longest:
        return text
    kept = "".join(c for c in text[: 4 * longest] if unicodedata.category(c) not in _UNPRINTABLE)
    return kept if len(kept) <= longest else kept[: longest - 1] + "…"


def escaped(text: str, longest: int = 500) -> str:
    r"""*text* on one line with such characters written out (``\x1b``), so that nothing is lost."""
    if text.isprintable() and len(text) <= longest:
        return text
    out = "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text[:longest]
    )
    return out if len(text) <= longest else out + "…"


def shown(value: object, longest: int = 60) -> str:
    """*value* as a person would write it, on one line and cut, for an error message."""
    match value:
        case bool():
            text = str(value).lower()
        case list() | tuple():
            text = "a list"
        case dict():
            text = "a mapping"
        case str():
            text = repr(value[: longest + 1])
        case _:
            text = number(value)
    return safe(text, longest)


def in_other_case(word: str, known: Iterable[str]) -> str:
    """A question for the end of an error message if *word* is one of *known* but for its case."""
    meant = [name for name in known if name.casefold() == word.casefold()]
    return f"; did you mean {' or '.join(meant)}?" if meant else ""


def number(value: object) -> str:
    """A number without the ``.0`` that a whole one does not need; anything else as it prints."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def user_name(uid: int, prefix: str = "") -> str:
    """The login name of *uid*; if this host knows none, the number after *prefix*.

    A name service can be slow, and may know the name later.
    """
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return f"{prefix}{uid}"


def duration(seconds: float) -> str:
    """*seconds* as squeue writes them: ``M:SS``, ``H:MM:SS``, ``D-HH:MM:SS``."""
    minutes, secs = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}-{hours:02}:{minutes:02}:{secs:02}"
    return f"{hours}:{minutes:02}:{secs:02}" if hours else f"{minutes}:{secs:02}"


def ago(seconds: float) -> str:
    """*seconds* in words short enough for a sentence: ``12 s``, ``3 min``, ``2.5 h``, ``4 d``."""
    seconds = max(0.0, seconds)
    for limit, unit_s, unit in ((120, 1, "s"), (7200, 60, "min"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds_in(word: str) -> float | None:
    """Seconds of ``30s``, ``90m``, ``24h`` or ``7d``; None if it is no time above 0."""
    match = re.fullmatch(r"([0-9]{1,6})([smhd])", word)
    return int(match[1]) * _UNITS_S[match[2]] or None if match else None


def counted(number: int, noun: str) -> str:
    """``1 look``, ``1,234 looks``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
