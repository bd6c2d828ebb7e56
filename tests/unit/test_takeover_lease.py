"""The lease: whatever happens to two or three daemons, never do two of them act at once."""

from __future__ import annotations

import dataclasses
import math
import os
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from json import dumps
from pathlib import Path
from socket import gethostname

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import eventually

from slurm_dl.daemon.preconditions import WithdrawnError
from slurm_dl.daemon.takeover.lease import Lease, LeaseWatch, boot_clock_s
from slurm_dl.ledger.sqlite.lease_row import LeaseRow
from slurm_dl.ledger.sqlite.store import LeaseState, StoreError, SupersededError
from slurm_dl.logging_setup import logger

LEASE_S = 20.0
STALL_S = 300.0


class World:
    """True time, the ledger, and what happens in the middle of a step that touches it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.row = LeaseRow(path)
        self.now_s = 0.0
        self.interrupt: Callable[[], None] = lambda: None


class SlowRow(LeaseRow):
    """The row over a network: between a request, its effect and its answer anything may happen."""

    def __init__(self, world: World) -> None:
        super().__init__(world.path)
        self.world = world

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        interrupt, self.world.interrupt = self.world.interrupt, lambda: None
        interrupt()
        with super()._transaction(begin) as db:
            yield db
        interrupt()


class Daemon:
    """One daemon, with a clock that is off and runs too fast or too slow."""

    def __init__(self, world: World, offset_s: float, rate: float) -> None:
        self.world = world
        self.is_busy = False
        self.clock = lambda: offset_s + rate * world.now_s
        self.row = SlowRow(world)
        self.start()

    def start(self) -> None:
        """Begin anew, as a process does."""
        self.lease: Lease | None = None
        self.watch = watch_of(self.row, self.clock)
        self.paused = False

    @property
    def may_act(self) -> bool:
        """By its clock alone; a daemon that is paused may be resumed at this very moment."""
        return self.lease is not None and not self.lease.lost and self.lease.left_s() > 0

    @property
    def may_write(self) -> bool:
        """By the ledger alone: what it is written with is the latest."""
        now = self.world.row.read()
        return (
            self.lease is not None and self.lease.generation == now.generation and not now.is_free
        )

    def turn(self) -> None:
        """What it does by itself: watch, take, renew, look whether it may act."""
        if self.paused or self.is_busy:
            return
        self.is_busy = True
        self._turn()
        self.is_busy = False

    def _turn(self) -> None:
        if self.lease is None:
            if self.watch.look():
                self.lease = self.watch.take()
            return
        try:
            self.lease.renew()
            self.lease.why_not()
        except (SupersededError, WithdrawnError):
            self.start()
        except StoreError:
            pass

    def stop(self) -> None:
        """End as an admin would have it."""
        if self.lease is not None and not self.paused:
            lease, self.lease = self.lease, None
            lease.release()


NAMES = st.integers(0, 2)
WAITS = st.sampled_from([0.1, 4.0, 5.1, 14.9, 15.1, 19.9, 21.1, 30.0])
STEPS = st.lists(
    st.one_of(
        *(st.tuples(st.just("turn"), NAMES) for _ in range(4)),
        st.tuples(st.just("wait"), WAITS),
        st.tuples(st.just("pause"), NAMES),
        st.tuples(st.just("resume"), NAMES),
        st.tuples(st.just("kill"), NAMES),
        st.tuples(st.just("stop"), NAMES),
        # In the middle of the next step that touches the row: time passes, and others go on.
        st.tuples(st.just("interrupt"), st.lists(st.tuples(WAITS, NAMES), max_size=4)),
    ),
    min_size=40,
    max_size=40,
)
CLOCKS = st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(0.95, 1.05)), min_size=3, max_size=3)


@given(clocks=CLOCKS, steps=STEPS)
@settings(max_examples=120, deadline=None)
def test_never_two_act(clocks: list[tuple[float, float]], steps: list[tuple[str, object]]) -> None:
    """By each layer alone: the clocks let one act at most, and the ledger lets one write."""
    # In memory, as each step waits for the disk.
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        world = World(Path(directory) / "ledger.sqlite")
        daemons = [Daemon(world, off, rate) for off, rate in clocks]
        _live(world, daemons, steps)
        for row in (world.row, *(d.row for d in daemons)):
            row.close()


def _live(world: World, daemons: list[Daemon], steps: list[tuple[str, object]]) -> None:

    def check() -> None:
        assert sum(d.may_act for d in daemons) <= 1
        assert sum(d.may_write for d in daemons) <= 1

    for step, what in steps:
        if step == "wait":
            assert isinstance(what, float)
            world.now_s += what
        elif step == "interrupt":
            assert isinstance(what, list)
            world.interrupt = _meanwhile(world, daemons, what, check)
        else:
            assert isinstance(what, int)
            daemon = daemons[what]
            if step == "pause":
                daemon.paused = True
            elif step == "resume":
                daemon.paused = False
            elif step == "kill":
                daemon.start()
            elif step == "stop":
                daemon.stop()
            else:
                daemon.turn()
        check()


def _meanwhile(
    world: World, daemons: list[Daemon], what: list[tuple[float, int]], check: Callable[[], None]
) -> Callable[[], None]:
    """What passes in the middle of a daemon's step, once before and once after its effect."""

    def pass_by() -> None:
        for wait_s, other in what:
            world.now_s += wait_s
            daemons[other].turn()
            check()

    return pass_by


@dataclasses.dataclass
class Time:
    """A clock that stands still unless moved."""

    now_s: float = 1000.0

    def __call__(self) -> float:
        """Seconds."""
        return self.now_s


class LateRow(LeaseRow):
    """A row whose steps take *late_s* each, and fail with *error* if there is one."""

    def __init__(self, path: Path, clock: Time) -> None:
        super().__init__(path)
        self.clock = clock
        self.late_s = 0.0
        self.error = ""

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        if self.error:
            raise StoreError(self.error)
        with super()._transaction(begin) as db:
            yield db
        self.clock.now_s += self.late_s


@pytest.fixture
def clock() -> Time:
    """The time of all daemons."""
    return Time()


@pytest.fixture
def row(tmp_path: Path, clock: Time) -> Iterator[LateRow]:
    """The row in a ledger."""
    with closing(LateRow(tmp_path / "ledger.sqlite", clock)) as made:
        yield made


def watch_of(row: LeaseRow, clock: Callable[[], float]) -> LeaseWatch:
    """A daemon that watches."""
    return LeaseWatch(row, lease_s=LEASE_S, stall_s=STALL_S, clock=clock)


def _held(row: LeaseRow, clock: Time) -> Lease:
    watch = watch_of(row, clock)
    assert watch.look()
    lease = watch.take()
    assert lease is not None
    return lease


def test_a_holder_that_was_paused_may_not_act_before_it_has_looked(
    row: LateRow, clock: Time
) -> None:
    """Even if no other daemon has taken over yet: only a renewal says so."""
    lease = _held(row, clock)
    clock.now_s += 14.9
    assert lease.why_not() == ""
    clock.now_s += 0.2
    assert lease.why_not() == "the lease ran out 0.1 s ago and is not renewed yet"
    lease.renew()
    assert lease.why_not() == ""
    # Unknown is not "ours", and the time that the reading took counts.
    row.error = "gone"
    assert lease.why_not() == "gone"
    row.error, row.late_s = "", 15.5
    assert lease.why_not().startswith("the lease ran out 0.5 s ago")


def test_the_ledger_tells_a_holder_whose_clock_stood_still(row: LateRow, clock: Time) -> None:
    """A machine that its hypervisor froze: the clock says a moment, the row says taken over."""
    lease = _held(row, clock)
    assert row.take(row.read(), LEASE_S) is not None

    assert lease.left_s() > 0
    with pytest.raises(WithdrawnError, match="has taken over"):
        lease.why_not()


def test_what_an_answer_took_does_not_count(row: LateRow, clock: Time) -> None:
    """A renewal counts from when it was asked for, however late its answer comes."""
    lease = _held(row, clock)
    row.late_s = 15.5
    lease.renew()
    assert lease.left_s() == pytest.approx(-0.5)

    watch = watch_of(row, clock)
    row.late_s = 21
    for _ in range(2):
        # The reading took longer than the lease, and nothing is known of the time it took.
        assert not watch.look()
        assert watch.still_s == 0
    row.late_s = 0
    clock.now_s += LEASE_S
    assert watch.look()
    row.late_s = 15.5
    taken = watch.take()
    assert taken.left_s() == pytest.approx(-0.5)


def test_a_loop_that_hangs_loses_the_lease(row: LateRow, clock: Time) -> None:
    """The thread renews only while the loop asks now and then."""
    lease = _held(row, clock)
    clock.now_s += STALL_S - 1
    lease.renew()
    clock.now_s += 2
    with pytest.raises(StoreError, match="has not turned for 301 s"):
        lease.renew()

    lease.why_not()
    lease.renew()


def test_a_watch_counts_from_when_it_saw_the_change(row: LateRow, clock: Time) -> None:
    """Not from when it was made, by another clock. A lease that changed again is not taken."""
    holder = _held(row, clock)
    watch = watch_of(row, clock)
    assert not watch.look()
    clock.now_s += 19
    holder.renew()
    clock.now_s += 1.5
    assert not watch.look()
    assert watch.still_s == 0
    clock.now_s += 19.9
    assert not watch.look()
    clock.now_s += 0.1
    assert watch.look()
    assert watch.moves

    holder.renew()
    assert watch.take() is None
    holder.release()
    assert watch.look()


def test_the_longer_lease_of_two_configurations_counts(row: LateRow, clock: Time) -> None:
    """The holder asks for 60 s, and the stand-by for 20."""
    assert row.take(row.read(), 60.0)
    watch = watch_of(row, clock)
    watch.look()
    clock.now_s += 59
    assert not watch.look()
    clock.now_s += 1
    assert watch.look()


def test_the_row(tmp_path: Path) -> None:
    """Take, renew, check, release; a daemon that was passed over is told, and changes nothing."""
    path = tmp_path / "ledger.sqlite"
    with closing(LeaseRow(path)) as row:
        free = row.read()
        assert free.is_free
        first = row.take(free, 5.0)
        assert first is not None
        assert first == LeaseState(generation=1, host=gethostname(), pid=os.getpid(), lease_s=5.0)
        assert row.take(free, 5.0) is None
        renewed = row.renew(first)
        assert renewed.count == 1
        assert row.read() == renewed
        row.check(first)

        second = row.take(renewed, 5.0)
        assert second is not None
        for step in (row.renew, row.check):
            with pytest.raises(SupersededError, match="has taken over"):
                step(renewed)
        row.release(renewed)
        assert row.read() == second
        row.release(second)
        assert row.read() == LeaseState(generation=2)


def test_a_daemon_of_the_version_before_is_seen_and_shut_out(tmp_path: Path) -> None:
    """It kept the generation in a row of its own, which it compares with its own at each write."""
    path = tmp_path / "ledger.sqlite"
    old = {"generation": 3, "host": "a", "pid": 7, "count": 9, "lease_s": 5.0, "renewed_s": 1.0}
    with closing(LeaseRow(path)) as row, closing(sqlite3.connect(path)) as db:
        with db:
            db.execute("INSERT INTO meta VALUES ('generation', '3'), ('lease', ?)", [dumps(old)])
        seen = row.read()
        assert str(seen) == "a (pid 7)"
        taken = row.take(seen, 5.0)
        assert taken.generation == 4
        own = "SELECT value FROM meta WHERE key = 'generation'"
        assert db.execute(own).fetchall() == [("4",)]


def test_of_many_one_gets_it(tmp_path: Path) -> None:
    """All see the same lease that stands still, and take it at once."""
    path = tmp_path / "ledger.sqlite"
    rows = [LeaseRow(path) for _ in range(6)]
    seen = rows[0].read()
    start = threading.Barrier(len(rows))
    got: list[LeaseState | None] = []

    def take(row: LeaseRow) -> None:
        start.wait(10)
        got.append(row.take(seen, 5.0))

    threads = [threading.Thread(target=take, args=(row,)) for row in rows]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(got) == len(rows)
    assert [g for g in got if g is not None] == [rows[0].read()]
    for row in rows:
        row.close()


def test_the_thread_renews_until_another_daemon_has_the_lease(tmp_path: Path) -> None:
    """Then it says so once, and what is left of the block releases nothing."""
    path = tmp_path / "ledger.sqlite"
    with closing(LeaseRow(path)) as row, closing(LeaseRow(path)) as other:
        watch = LeaseWatch(row, lease_s=0.05, stall_s=math.inf)
        watch.look()
        lease = watch.take()
        lost = threading.Event()
        with lease.kept(lost.set, logger()):
            eventually(lambda: other.read().count >= 2, 10, what="two renewals")
            taken = None
            while taken is None:
                taken = other.take(other.read(), 5.0)
            assert lost.wait(10)
        assert "has taken over" in lease.lost
        assert other.read() == taken


def test_the_clock_goes_forward() -> None:
    """It counts the time a machine is suspended, so it is never behind the usual one."""
    assert time.monotonic() <= boot_clock_s() <= boot_clock_s()
