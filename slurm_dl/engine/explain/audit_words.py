"""Lines of the audit log as sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from slurm_dl.engine.explain.past_reasons import Sight, moment

_WORDS: Final = {
    "attach": "let into the reservation",
    "clear_steer": "kept from no nodes any more",
    "close_handover": "end of the hand-over",
    "detach": "taken out of the reservation",
    "forget_steer": "end of what it was kept from",
    "mark_gone": "end of the run",
    "open_handover": "hand-over",
    "promote": "service forgiven",
    "reserve": "nodes reserved",
    "reshape": "change of size",
    "set_site_factor": "priority",
    "set_steer": "kept from nodes, or put off",
    "trim": "request cut",
    "trip_breaker": "no new hand-overs",
    "unseal": "reservation released",
}
"""Actions whose names do not say what is done."""


def audit_sentences(history: Sequence[Mapping[str, object]], sight: Sight) -> list[str]:
    """The audit lines *history*: when, what, why, and the result."""
    return [
        f"{_when(entry)}: {_what(str(entry.get('action', '?')))}: "
        f"{sight.text(str(entry.get('reason', '')))} ({sight.text(str(entry.get('result', '?')))})"
        for entry in history
    ]


def _what(action: str) -> str:
    return _WORDS.get(action, action.replace("_", " "))


def _when(entry: Mapping[str, object]) -> str:
    at_s = entry.get("epoch_s")
    return moment(at_s if isinstance(at_s, (int, float)) else 0.0)
