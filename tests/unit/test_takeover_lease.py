"""The lease: whatever happens to two or three daemons, never do two of them act at once."""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_dl.daemon.preconditions import WithdrawnError
from slurm_dl.daemon.takeover.lease import Lease, LeaseStore, LeaseWatch, Renewing, boot_clock_s
from slurm_dl.ledger.sqlite.lease_row import LeaseRow, LeaseState
from slurm_dl.ledger.sqlite.store import StoreError, SupersededError

LEASE_S = 20.0
STALL_S = 300.0


class MemoryRow:
    """The row without a disk; `test_the_row` holds it against the real one."""

    def __init__(self) -> None:
        self.now = LeaseState()

    def read(self) -> LeaseState:
        """As it stands."""
        return self.now

    def take(self, seen: LeaseState, *, host: str, pid: int, lease_s: float) -> LeaseState | None:
        """Compare and set."""
        if self.now != seen:
            return None
        self.now = LeaseState(
            generation=seen.generation + 1, host=host, pid=pid, count=0, lease_s=lease_s
        )
        return self.now

    def renew(self, mine: LeaseState) -> LeaseState:
        """Count on."""
        self.check(mine)
        self.now = dataclasses.replace(mine, count=mine.count + 1)
        return self.now

    def check(self, mine: LeaseState) -> None:
        """Compare."""
        if self.now.generation != mine.generation:
            msg = f"{self.now} has taken over"
            raise SupersededError(msg)

    def release(self, mine: LeaseState) -> None:
        """Free it."""
        if self.now.generation == mine.generation:
            self.now = LeaseState(generation=mine.generation)

    def close(self) -> None:
        """Nothing to let go of."""


class World:
    """True time, the row, and what happens in the middle of a step that touches the row."""

    def __init__(self) -> None:
        self.row = MemoryRow()
        self.now_s = 0.0
        self.interrupt: Callable[[], None] = lambda: None


class SlowRow(MemoryRow):
    """The row over a network: between a request, its effect and its answer anything may happen."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.depth = 0

    def _step(self, step: Callable[[], LeaseState | None]) -> LeaseState | None:
        interrupt, self.world.interrupt = self.world.interrupt, lambda: None
        interrupt()
        done = step()
        interrupt()
        return done

    def read(self) -> LeaseState:
        """As it stands."""
        return self._step(self.world.row.read) or LeaseState()

    def take(self, seen: LeaseState, *, host: str, pid: int, lease_s: float) -> LeaseState | None:
        """Compare and set."""
        return self._step(lambda: self.world.row.take(seen, host=host, pid=pid, lease_s=lease_s))

    def renew(self, mine: LeaseState) -> LeaseState:
        """Count on."""
        return self._step(lambda: self.world.row.renew(mine)) or LeaseState()

    def check(self, mine: LeaseState) -> None:
        """Compare."""
        self._step(lambda: self.world.row.check(mine))

    def release(self, mine: LeaseState) -> None:
        """Free it."""
        self._step(lambda: self.world.row.release(mine))


class Daemon:
    """One daemon, with a clock that is off and runs too fast or too slow."""

    def __init__(self, world: World, name: str, offset_s: float, rate: float) -> None:
        self.world = world
        self.name = name
        self.is_busy = False
        self.clock = lambda: offset_s + rate * world.now_s
        self.start()

    def start(self) -> None:
        """Begin anew, as a process does."""
        self.row = SlowRow(self.world)
        self.lease: Lease | None = None
        self.watch = LeaseWatch(self.row, lease_s=LEASE_S, clock=self.clock)
        self.paused = False

    @property
    def may_act(self) -> bool:
        """By its clock alone; a daemon that is paused may be resumed at this very moment."""
        return self.lease is not None and not self.lease.lost and self.lease.left_s() > 0

    @property
    def may_write(self) -> bool:
        """By the ledger alone: what it is written with is the latest."""
        return (
            self.lease is not None
            and self.lease.generation == self.world.row.now.generation
            and not self.world.row.now.is_free
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
                self.lease = self.watch.take(host=self.name, pid=1, stall_s=STALL_S)
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
    world = World()
    daemons = [Daemon(world, f"host{i}", off, rate) for i, (off, rate) in enumerate(clocks)]

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


def _held(clock: Time, row: MemoryRow) -> Lease:
    watch = LeaseWatch(row, lease_s=LEASE_S, clock=clock)
    assert watch.look()
    lease = watch.take(host="a", pid=7, stall_s=STALL_S)
    assert lease is not None
    return lease


def test_a_holder_that_was_paused_may_not_act_before_it_has_looked() -> None:
    """Nobody has taken over yet, and still: only a renewal tells it so."""
    clock, row = Time(), MemoryRow()
    lease = _held(clock, row)
    clock.now_s += 14.9
    assert lease.why_not() == ""
    clock.now_s += 0.2
    assert lease.why_not() == "the lease ran out 0.1 s ago and is not renewed yet"

    lease.renew()

    assert lease.why_not() == ""


def test_the_ledger_tells_a_holder_whose_clock_stood_still() -> None:
    """A machine that its hypervisor froze: the clock says a moment, the row says taken over."""
    clock, row = Time(), MemoryRow()
    lease = _held(clock, row)
    assert row.take(row.now, host="b", pid=8, lease_s=LEASE_S) is not None

    assert lease.left_s() > 0
    with pytest.raises(WithdrawnError, match=r"b \(pid 8\) has taken over"):
        lease.why_not()


def test_a_row_that_cannot_be_read_forbids_to_act() -> None:
    """Unknown is not "ours"."""

    class Broken(MemoryRow):
        def check(self, mine: LeaseState) -> None:
            msg = f"gone: {mine.host}"
            raise StoreError(msg)

    assert _held(Time(), Broken()).why_not() == "gone: a"


def test_the_time_that_the_asking_took_counts() -> None:
    """The clock is looked at last, so a pause in the middle of the question is noticed."""
    clock = Time()

    class Slow(MemoryRow):
        def check(self, mine: LeaseState) -> None:
            super().check(mine)
            clock.now_s += 15.5

    assert _held(clock, Slow()).why_not().startswith("the lease ran out 0.5 s ago")


def test_what_an_answer_took_does_not_count() -> None:
    """Renewed is what was renewed when it was asked for, however late one hears of it."""
    clock = Time()

    class Late(MemoryRow):
        late_s = 0.0

        def take(
            self, seen: LeaseState, *, host: str, pid: int, lease_s: float
        ) -> LeaseState | None:
            done = super().take(seen, host=host, pid=pid, lease_s=lease_s)
            clock.now_s += self.late_s
            return done

        def renew(self, mine: LeaseState) -> LeaseState:
            done = super().renew(mine)
            clock.now_s += self.late_s
            return done

        def read(self) -> LeaseState:
            clock.now_s += self.late_s
            return super().read()

    row = Late()
    lease = _held(clock, row)
    row.late_s = 15.5
    lease.renew()
    assert lease.left_s() == pytest.approx(-0.5)

    watch = LeaseWatch(row, lease_s=LEASE_S, clock=clock)
    row.late_s = 21
    for _ in range(2):
        # The reading took longer than the lease, and nothing is known of the time it took.
        assert not watch.look()
        assert watch.still_s == 0
    row.late_s = 0
    clock.now_s += LEASE_S
    assert watch.look()
    row.late_s = 15.5
    taken = watch.take(host="b", pid=8, stall_s=STALL_S)
    assert taken is not None
    assert taken.left_s() == pytest.approx(-0.5)


def test_a_loop_that_hangs_loses_the_lease() -> None:
    """The thread renews only while the loop asks now and then."""
    clock, row = Time(), MemoryRow()
    lease = _held(clock, row)
    clock.now_s += STALL_S - 1
    lease.renew()
    clock.now_s += 2
    with pytest.raises(StoreError, match="has not turned for 301 s"):
        lease.renew()

    lease.why_not()
    lease.renew()


def test_a_watch_counts_from_when_it_saw_the_change() -> None:
    """Not from when it was made, which is another clock's; and no look, no time."""
    clock, row = Time(), MemoryRow()
    holder = _held(clock, row)
    watch = LeaseWatch(row, lease_s=LEASE_S, clock=clock)
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


def test_who_asks_for_more_time_gets_it() -> None:
    """Two hosts with two configurations: the longer lease counts."""
    clock, row = Time(), MemoryRow()
    assert row.take(row.now, host="a", pid=1, lease_s=60.0)
    watch = LeaseWatch(row, lease_s=LEASE_S, clock=clock)
    watch.look()
    clock.now_s += 59
    assert not watch.look()
    clock.now_s += 1
    assert watch.look()


def test_a_lease_that_moved_is_not_taken() -> None:
    """Between the last look and the taking its holder came back."""
    clock, row = Time(), MemoryRow()
    lease = _held(clock, row)
    watch = LeaseWatch(row, lease_s=LEASE_S, clock=clock)
    watch.look()
    clock.now_s += 21
    assert watch.look()
    lease.renew()

    assert watch.take(host="b", pid=8, stall_s=STALL_S) is None
    lease.release()
    assert watch.look()


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_the_row(kind: str, tmp_path: Path) -> None:
    """Take, renew, check, release; whoever was passed over is told, and changes nothing."""
    row = MemoryRow() if kind == "memory" else LeaseRow(tmp_path / "ledger.sqlite")
    free = row.read()
    assert free.is_free
    first = row.take(free, host="a", pid=1, lease_s=5.0)
    assert first is not None
    assert (first.generation, first.host, first.pid, first.count) == (1, "a", 1, 0)
    assert row.take(free, host="b", pid=2, lease_s=5.0) is None
    renewed = row.renew(first)
    assert renewed.count == 1
    assert row.read() == renewed
    row.check(first)

    second = row.take(renewed, host="b", pid=2, lease_s=5.0)
    assert second is not None
    for step in (row.renew, row.check):
        with pytest.raises(SupersededError, match=r"b \(pid 2\) has taken over"):
            step(renewed)
    row.release(renewed)
    assert row.read() == second

    row.release(second)
    assert row.read() == LeaseState(generation=2)
    row.close()


def test_of_many_one_gets_it(tmp_path: Path) -> None:
    """All see the same lease that stands still, and take it at once."""
    path = tmp_path / "ledger.sqlite"
    rows = [LeaseRow(path) for _ in range(6)]
    seen = rows[0].read()
    start = threading.Barrier(len(rows))
    got: list[LeaseState | None] = []

    def take(row: LeaseRow, pid: int) -> None:
        start.wait(10)
        got.append(row.take(seen, host=f"host{pid}", pid=pid, lease_s=5.0))

    threads = [threading.Thread(target=take, args=(row, i)) for i, row in enumerate(rows)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(got) == len(rows)
    assert [g for g in got if g is not None] == [rows[0].read()]
    for row in rows:
        row.close()


def test_the_thread_renews_and_tells_who_lost(tmp_path: Path) -> None:
    """It goes on over an error, and ends when somebody else has the lease."""
    row: LeaseStore = LeaseRow(tmp_path / "ledger.sqlite")
    watch = LeaseWatch(row, lease_s=0.05)
    watch.look()
    lease = watch.take(host="a", pid=1, stall_s=math.inf)
    assert lease is not None
    lost = threading.Event()
    said: list[str] = []
    renewing = Renewing(lease, on_lost=lost.set, warn=said.append)
    other = LeaseRow(tmp_path / "ledger.sqlite")
    taken = None
    while taken is None:
        seen = other.read()
        if seen.count >= 2:
            taken = other.take(seen, host="b", pid=2, lease_s=5.0)
    assert lost.wait(10)
    renewing.stop()
    assert "b (pid 2) has taken over" in lease.lost
    assert said == []
    other.close()


def test_the_clock_goes_forward() -> None:
    """It counts a suspended machine's time, so it is never behind the usual one."""
    assert boot_clock_s() <= boot_clock_s()
