"""The right to act where several daemons share a state directory, for as long as it is renewed.

A daemon that holds the lease may act until it has not renewed it for three quarters of its length,
by a clock of its own that goes on while the machine sleeps. One that stands by takes it over once
the lease has stood still for its whole length by *its* clock. The clocks of two hosts are never
compared, and the quarter between the two is what a last action, and clocks that run at different
speeds, have for themselves.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from slurm_dl.daemon.preconditions import WithdrawnError
from slurm_dl.ledger.sqlite.lease_row import LeaseState
from slurm_dl.ledger.sqlite.store import StoreError, SupersededError

Clock = Callable[[], float]

_VALID = 0.75
"""Part of the lease's length for which its holder trusts a renewal."""

_RENEWALS = 5
"""Renewals in the length of a lease: two may fail."""


def boot_clock_s() -> float:
    """Seconds that only go forward, also while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class LeaseStore(Protocol):
    """Where the lease stands: `LeaseRow`."""

    def read(self) -> LeaseState:
        """As it stands."""

    def take(self, seen: LeaseState, *, host: str, pid: int, lease_s: float) -> LeaseState | None:
        """Take it if it stands as it was seen."""

    def renew(self, mine: LeaseState) -> LeaseState:
        """Count on."""

    def check(self, mine: LeaseState) -> None:
        """Nothing, if it is ours."""

    def release(self, mine: LeaseState) -> None:
        """Let it go."""


class Lease:
    """A lease that is held. It is a `Precondition`; two threads may use it: one renews, one acts.

    Args:
        row: Where it stands.
        mine: What stood there when it was taken.
        since_s: When the taking began, by *clock*.
        stall_s: It is renewed only while the loop has asked within so many seconds: one that
            hangs must not keep others from acting.
        clock: Seconds that only go forward.

    Attributes:
        lost: Who has it instead, in words; empty while nobody is known to.
    """

    def __init__(
        self,
        row: LeaseStore,
        mine: LeaseState,
        *,
        since_s: float,
        stall_s: float,
        clock: Clock = boot_clock_s,
    ) -> None:
        self._row = row
        self._mine = mine
        self._renewed_s = since_s
        self._turned_s = since_s
        self._stall_s = stall_s
        self._clock = clock
        self.lost = ""

    @property
    def generation(self) -> int:
        """What the ledger is to be written with."""
        return self._mine.generation

    @property
    def every_s(self) -> float:
        """How often it is to be renewed, seconds."""
        return self._mine.lease_s / _RENEWALS

    def left_s(self) -> float:
        """For how long it may still be trusted, seconds; 0 or less: no more."""
        return self._renewed_s + _VALID * self._mine.lease_s - self._clock()

    def why_not(self) -> str:
        """See `Precondition`; asks the row, and the clock last: the asking may have taken its time.

        Raises:
            WithdrawnError: Somebody else has it.
        """
        self._turned_s = self._clock()
        if self.lost:
            raise WithdrawnError(self.lost)
        try:
            self._row.check(self._mine)
        except SupersededError as err:
            self.lost = str(err)
            raise WithdrawnError(self.lost) from None
        except StoreError as err:
            return str(err)
        left_s = self.left_s()
        return "" if left_s > 0 else f"the lease ran out {-left_s:.1f} s ago and is not renewed yet"

    def renew(self) -> None:
        """Renew it, unless the loop hangs.

        Raises:
            SupersededError: Somebody else has it.
            StoreError: It could not be written.
        """
        began_s = self._clock()
        if began_s - self._turned_s > self._stall_s:
            msg = f"the loop has not turned for {began_s - self._turned_s:.0f} s"
            raise StoreError(msg)
        try:
            self._mine = self._row.renew(self._mine)
        except SupersededError as err:
            self.lost = str(err)
            raise
        # Not when it was done: the others may have seen it long before we come to know.
        self._renewed_s = began_s

    def release(self) -> None:
        """Let the next one have it at once.

        Raises:
            StoreError: It could not be written: the next one has to wait.
        """
        self._row.release(self._mine)


class Renewing:
    """Renews a lease from a thread of its own, as a cycle may take longer than the lease.

    Args:
        lease: The lease.
        on_lost: Called once, from that thread, when somebody else has it.
        warn: Told when renewals begin to fail, and why.
    """

    def __init__(
        self, lease: Lease, *, on_lost: Callable[[], None], warn: Callable[[str], None]
    ) -> None:
        self._lease = lease
        self._on_lost = on_lost
        self._warn = warn
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Renew no more; returns when nothing is under way."""
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        trouble = ""
        while not self._end.wait(self._lease.every_s):
            try:
                self._lease.renew()
            except SupersededError:
                self._on_lost()
                return
            except StoreError as err:
                if not trouble:
                    self._warn(f"the lease is not renewed: {err}")
                trouble = str(err)
            else:
                trouble = ""


class LeaseWatch:
    """Watches a lease that others hold, by a clock of its own.

    Args:
        row: Where it stands.
        lease_s: How long it must have stood still, seconds; the holder may ask for more.
        clock: Seconds that only go forward.

    Attributes:
        seen: What stood there when it was last looked at.
        moves: It has moved since the first look.
    """

    def __init__(self, row: LeaseStore, *, lease_s: float, clock: Clock = boot_clock_s) -> None:
        self._row = row
        self._lease_s = lease_s
        self._clock = clock
        self.seen = LeaseState()
        self.moves = False
        self._looks = 0
        self._since_s = clock()
        self._looked_s = self._since_s

    @property
    def still_s(self) -> float:
        """For how long it has not moved, as far as is known: from look to look, seconds."""
        return max(0.0, self._looked_s - self._since_s)

    @property
    def every_s(self) -> float:
        """How often to look, seconds."""
        return min(1.0, self._lease_s / 10)

    def look(self) -> bool:
        """Look at it; whether it may be taken.

        Raises:
            StoreError: It cannot be read.
        """
        began_s = self._clock()
        seen = self._row.read()
        if seen != self.seen:
            self.moves = self._looks > 0
            self.seen, self._since_s = seen, self._clock()
        self._looks += 1
        self._looked_s = began_s
        return seen.is_free or self.still_s >= max(self._lease_s, seen.lease_s)

    def take(self, *, host: str, pid: int, stall_s: float) -> Lease | None:
        """Take it, if it stands as it was last seen; None if it has moved.

        Raises:
            StoreError: It cannot be written.
        """
        began_s = self._clock()
        mine = self._row.take(self.seen, host=host, pid=pid, lease_s=self._lease_s)
        if mine is None:
            return None
        return Lease(self._row, mine, since_s=began_s, stall_s=stall_s, clock=self._clock)
