"""How much is tried: a share of the usual examples of a property, or many times as many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import settings


def tried_more(test: Callable[..., Any], times: float) -> None:
    """Let a property be tried on *times* as many examples as it says, and on one at least.

    A plain test is left as it is, and so is a state machine, whose settings are its class's.
    """
    # No public name leads to what a property has been decorated with; hypothesis' own plugin for
    # pytest goes by this one as well.
    own: settings | None = getattr(test, "_hypothesis_internal_use_settings", None)
    if own is not None:
        more = settings(own, max_examples=max(1, round(own.max_examples * times)))
        test._hypothesis_internal_use_settings = more  # type: ignore[attr-defined]
