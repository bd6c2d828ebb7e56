"""The right to act where several daemons share a state directory, for as long as it is renewed.

A daemon that holds the lease may act until it has not renewed it for three quarters of its length,
by a clock of its own that includes the time a machine is suspended. A stand-by takes the lease once
its row has stood still for the whole length by the stand-by's clock. The clocks of two hosts are
never compared. The last quarter covers a last action, and clocks that run at different speeds.

Apart from that an advisory lock keeps two daemons of one host from one directory; it dies with its
holder.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from structlog.typing import FilteringBoundLogger

from slurm_dl.daemon.preconditions import WithdrawnError
from slurm_dl.ledger.sqlite.lease_row import LeaseRow
from slurm_dl.ledger.sqlite.store import LeaseState, StoreError, SupersededError
from slurm_dl.model.errors import ConfigError, SlurmDlError

Clock = Callable[[], float]

_VALID = 0.75  # Part of the lease's length for which its holder trusts a renewal
_RENEWALS = 5  # Renewals in the length of a lease: two may fail


def boot_clock_s() -> float:
    """Seconds that only go forward, also while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Lease:
    """A lease that is held. It is a `Precondition`; two threads may use it: one renews, one acts.

    Args:
        row: Where it stands.
        mine: What stood there when it was taken.
        since_s: When the taking began, by *clock*.
        stall_s: It is renewed only if the loop has asked within so many seconds: a loop that hangs
            must not keep others from acting.
        clock: Seconds that only go forward.

    Attributes:
        lost: Which daemon has it instead; empty while none is known to.
    """

    def __init__(
        self,
        row: LeaseRow,
        mine: LeaseState,
        *,
        since_s: float,
        stall_s: float,
        clock: Clock = boot_clock_s,
    ) -> None:
        self._row = row
        self._mine = mine
        self._renewed_s = self._turned_s = since_s
        self._stall_s = stall_s
        self._clock = clock
        self.lost = ""

    @property
    def generation(self) -> int:
        """The fencing token to write the ledger with."""
        return self._mine.generation

    def left_s(self) -> float:
        """For how long it may still be trusted, seconds; 0 or less: no more."""
        return self._renewed_s + _VALID * self._mine.lease_s - self._clock()

    def why_not(self) -> str:
        """See `Precondition`; reads the row first and the clock last, as the reading takes time.

        Raises:
            WithdrawnError: Another daemon has it.
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
            SupersededError: Another daemon has it.
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
        # Not when it was done: others may have seen the renewal long before the answer came.
        self._renewed_s = began_s

    def release(self) -> None:
        """Let the next daemon have it at once.

        Raises:
            StoreError: It could not be written: the next daemon has to wait.
        """
        self._row.release(self._mine)

    @contextmanager
    def kept(self, on_lost: Callable[[], None], log: FilteringBoundLogger) -> Iterator[None]:
        """Renew it from a thread, as a cycle may take longer than the lease; then release it.

        Args:
            on_lost: Called once, from that thread, when another daemon has it.
            log: Gets a warning when renewals begin to fail.
        """
        end = threading.Event()

        def renew_on() -> None:
            failing = False
            while not end.wait(self._mine.lease_s / _RENEWALS):
                try:
                    self.renew()
                except SupersededError:
                    on_lost()
                    return
                except StoreError as err:
                    if not failing:
                        log.warning("the lease is not renewed", because=str(err))
                    failing = True
                else:
                    failing = False

        thread = threading.Thread(target=renew_on, name="lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            end.set()
            thread.join()
            try:
                self.release()
            except StoreError as err:
                log.warning("the lease is not released: the next daemon waits", error=str(err))


class LeaseWatch:
    """Watches a lease that another daemon holds, by a clock of its own.

    Args:
        row: Where it stands.
        lease_s: How long it must have stood still, seconds; the holder may ask for more.
        stall_s: See `Lease`.
        clock: Seconds that only go forward.

    Attributes:
        seen: What stood there at the last look.
        moves: It has changed since the first look.
    """

    def __init__(
        self, row: LeaseRow, *, lease_s: float, stall_s: float, clock: Clock = boot_clock_s
    ) -> None:
        self._row = row
        self._lease_s = lease_s
        self._stall_s = stall_s
        self._clock = clock
        self.seen = LeaseState()
        self.moves = False
        self._looks = 0
        self._since_s = self._looked_s = clock()

    @property
    def still_s(self) -> float:
        """Seconds for which the lease is known not to have been renewed, from look to look."""
        return max(0.0, self._looked_s - self._since_s)

    @property
    def every_s(self) -> float:
        """Seconds between looks."""
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

    def take(self) -> Lease | None:
        """Take it, if it stands as it was last seen; None if it has changed.

        Raises:
            StoreError: It cannot be written.
        """
        began_s = self._clock()
        mine = self._row.take(self.seen, self._lease_s)
        if mine is None:
            return None
        return Lease(self._row, mine, since_s=began_s, stall_s=self._stall_s, clock=self._clock)


LOCK_FILE = "lock"


class LockedError(SlurmDlError):
    """Another daemon is there."""


@contextlib.contextmanager
def held(directory: Path, *, key: str = "paths.state_dir") -> Iterator[None]:
    """Hold the lock of a directory alone; the directory is made if it is missing.

    Args:
        key: What sets the directory, for the message.

    Raises:
        LockedError: Another process holds it; the message names its pid.
        ConfigError: The directory cannot be used.
    """
    with _locked(directory, key, fcntl.LOCK_EX) as fd:
        # A full disk must not keep the daemon from starting: the lock itself is what counts.
        with contextlib.suppress(OSError):
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode("ascii"), 0)
        yield


@contextlib.contextmanager
def shared(directory: Path) -> Iterator[None]:
    """Hold the lock of the state directory together with others that do so.

    The lease says which of them acts. This keeps out a daemon without ``takeover``, on this host,
    and on others where the file system passes locks on.

    Raises:
        LockedError: Another process holds it alone; the message names its pid.
        ConfigError: The directory cannot be used.
    """
    with _locked(directory, "paths.state_dir", fcntl.LOCK_SH):
        yield


@contextlib.contextmanager
def _locked(directory: Path, key: str, kind: int) -> Iterator[int]:
    path = directory / LOCK_FILE
    try:
        if kind == fcntl.LOCK_EX:
            # One that others share is theirs, too: where it is missing it is not mounted.
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        # What is not ours is not led away by a link, nor waited for.
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    except OSError as err:
        what = "is a symbolic link: remove it" if err.errno == errno.ELOOP else err.strerror
        msg = f"{key}: {path}: {what}"
        raise ConfigError(msg) from err
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            msg = f"{key}: {path}: is not a regular file: remove it"
            raise ConfigError(msg)
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.read(fd, 20).decode("ascii", "replace").strip() or "unknown"
            msg = f"another dlschedd (pid {pid}) runs on {directory}: stop it first"
            raise LockedError(msg) from None
        yield fd
    finally:
        os.close(fd)
