"""Text of users, made safe for terminals and logs; lengths of time in words."""

from __future__ import annotations

import unicodedata

# Cc: control characters; Cf: bidirectional overrides and other invisible ones; Cs: lone
# surrogates, which cannot be printed at all; Zl and Zp: line breaks by another name.
_UNPRINTABLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def safe(text: str, longest: int = 200) -> str:
    """*text* of a user on one line, without characters that could steer a terminal."""
    kept = "".join(c for c in text[: 4 * longest] if unicodedata.category(c) not in _UNPRINTABLE)
    return kept if len(kept) <= longest else kept[: longest - 1] + "…"


def escaped(text: str, longest: int = 500) -> str:
    r"""*text* with such characters written out (``\x1b``), for logs that must lose nothing."""
    out = "".join(
        c.encode("unicode_escape").decode("ascii") if unicodedata.category(c) in _UNPRINTABLE else c
        for c in text[:longest]
    )
    return out if len(text) <= longest else out + "…"


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
