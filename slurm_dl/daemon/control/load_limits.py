"""Limits on concurrent answers of the control socket, and on bytes kept for slow clients.

An answer of the whole queue takes some 0.7 KB and 30 us for each job, and several times that memory
while it is built. So such answers are built a few at a time, and what is not taken is bounded.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

HEAVY: Final = ("queue", "why", "snapshot")
"""Requests whose work grows with the number of jobs."""

AT_ONCE = 2
"""Heavy requests of ordinary users that are answered at once, each of another user."""

TURN_S = 10.0
"""A heavy request waits for its turn for this many seconds at most."""

UNSENT_PER_USER = 32 * 1024**2
"""Bytes of answers that one ordinary user may leave untaken; one answer may be larger."""

UNSENT_IN_ALL = 128 * 1024**2
"""Bytes of answers that all ordinary users may leave untaken; one answer may be larger."""

ALWAYS_SENT = 64 * 1024
"""An answer of at most so many bytes is sent however much is unsent."""


class BusyError(Exception):
    """A limit is reached; the words go to whoever asked."""


class LoadLimits:
    """The limits of one group, ordinary users or admins; may be called from many threads.

    Args:
        per_user: Each user has a part of what the group has; False: anybody may have all of it.
    """

    def __init__(self, *, per_user: bool) -> None:
        self._per_user = per_user
        self._changed = threading.Condition()
        self._building: Counter[int] = Counter()
        self._unsent: Counter[int] = Counter()

    @contextmanager
    def turn(self, uid: int) -> Iterator[None]:
        """The right to build one heavy answer for *uid*; waits up to `TURN_S`.

        Raises:
            BusyError: It did not come in time, or the user leaves too much untaken.
        """
        with self._changed:
            self._check_room(uid, ALWAYS_SENT + 1)
            if not self._changed.wait_for(lambda: self._may_build(uid), TURN_S):
                msg = "too many requests; retry"
                raise BusyError(msg)
            self._building[uid] += 1
        try:
            yield
        finally:
            with self._changed:
                self._building[uid] -= 1
                self._changed.notify_all()

    def hold(self, uid: int, size: int) -> None:
        """Count *size* bytes of an answer as unsent, until `let_go`.

        Raises:
            BusyError: That would be too much; it is not counted.
        """
        with self._changed:
            self._check_room(uid, size)
            self._unsent[uid] += size

    def let_go(self, uid: int, size: int) -> None:
        """They were sent, or never will be."""
        with self._changed:
            self._unsent[uid] -= size

    def _may_build(self, uid: int) -> bool:
        is_next = not (self._per_user and self._building[uid])
        return is_next and self._building.total() < AT_ONCE

    def _check_room(self, uid: int, size: int) -> None:
        if size <= ALWAYS_SENT:
            return
        of_user = UNSENT_PER_USER if self._per_user else math.inf
        for unsent, most in (
            (self._unsent[uid], of_user),
            (self._unsent.total(), UNSENT_IN_ALL),
        ):
            if unsent and unsent + size > most:
                msg = "too many bytes of earlier answers have not been read; retry"
                raise BusyError(msg)
