"""Waiting for something outside to become true, with a deadline and a message.

Everything that watches a real daemon polls through this one function, so that no wait is endless
and each says what it waited for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from slurm_dl.model.errors import ClusterError

T = TypeVar("T")


class DeadlinePassedError(ClusterError):
    """What was waited for did not come in time."""


def eventually(
    predicate: Callable[[], T],
    within_s: float = 30.0,
    every_s: float = 0.2,
    *,
    what: str = "",
) -> T:
    """Call *predicate* until it returns something true, and return that.

    A predicate that fails with an ``AssertionError`` or a ``ClusterError`` is asked again.

    Args:
        predicate: Asked at least once, also when *within_s* is 0.
        within_s: Seconds until the deadline.
        every_s: Seconds between two questions.
        what: What is waited for, for the message; by default the predicate's name.

    Raises:
        DeadlinePassedError: With the last answer or the last error.
    """
    deadline_s = time.monotonic() + within_s
    while True:
        error: Exception | None = None
        answer: T | None = None
        try:
            answer = predicate()
        except (AssertionError, ClusterError) as err:
            error = err
        if error is None and answer:
            return answer
        if time.monotonic() >= deadline_s:
            break
        time.sleep(every_s)
    name = what or getattr(predicate, "__qualname__", repr(predicate))
    last = f"last error: {error}" if error is not None else f"last answer: {answer!r}"
    message = f"waited {within_s:g} s for {name}; {last}"
    raise DeadlinePassedError(message) from error
