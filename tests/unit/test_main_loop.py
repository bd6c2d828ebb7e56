"""The loop: when it looks, when it may act, and what it does when things fail."""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_cluster import FakeCluster

from slurm_dl import logging_setup
from slurm_dl.cli.dlschedd.startup import observers_of
from slurm_dl.config import Config, load_with_origins, show
from slurm_dl.daemon import main_loop as daemon_module
from slurm_dl.daemon import observers, rate_limits, reload, wakeup
from slurm_dl.daemon.audit_log import AuditLog
from slurm_dl.daemon.components import Loaded
from slurm_dl.daemon.enrich import Enricher
from slurm_dl.daemon.forecast_service import forecasts_of_daemon
from slurm_dl.daemon.main_loop import Daemon
from slurm_dl.daemon.observers import Observers
from slurm_dl.daemon.preconditions import PauseSwitch, WithdrawnError
from slurm_dl.daemon.published_state import PublishedState, Reloaded
from slurm_dl.daemon.rate_limits import LONGEST_BACKOFF_S, TokenBucket
from slurm_dl.engine.settings import Preemption, Settings
from slurm_dl.estimates.training_speed import SitePriors
from slurm_dl.ledger.sqlite.store import SqliteStore, StoreError, SupersededError
from slurm_dl.ledger.store_protocol import MemoryStore
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.breaker import BREAKERS, BreakerName
from slurm_dl.model.contract import Contract
from slurm_dl.model.errors import ClusterError, ConfigError, SlurmDlError
from slurm_dl.model.ids import JobId
from slurm_dl.model.plan import Book, ClusterAction, Reserve, SetSteer, Signal, TripBreaker
from slurm_dl.model.promise import Promise
from slurm_dl.model.snapshot import Observed, Snapshot
from slurm_dl.model.steer import Steer
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.sandbox import process_control
from slurm_dl.slurm.controller import ControllerStatus

YAML = """\
manage: {{partitions: [gpu]}}
daemon: {{poll_s: {poll_s}, fast_poll_s: 5, nodes_every_s: 100, shadow: false}}
writes: {{rate_per_s: {rate_per_s}, burst: {rate_per_s}}}
paths: {{state_dir: {state}, run_dir: {state}, audit_log: {audit}}}
breakers: {{{breakers}}}
"""


FAR = DiscreteLas(thresholds_gpu_s=(1e8, 1e9))
"""Thresholds nobody reaches: nothing moves by itself."""

NEAR = DiscreteLas(thresholds_gpu_s=(60.0, 400.0))


@dataclass
class FakeTime:
    """A clock that moves only when the loop sleeps or a test says so."""

    now_s: float = 1_000_000.0
    wall_ahead_s: float = 0.0
    server_ahead_s: float = 0.0

    def monotonic(self) -> float:
        """Seconds, from nowhere in particular."""
        return self.now_s

    def time(self) -> float:
        """Epoch seconds, as this host's clock stands."""
        return self.now_s + self.wall_ahead_s

    def monotonic_ns(self) -> int:
        """Nanoseconds."""
        return int(self.now_s * 1e9)


class Watched(FakeCluster):
    """The fake with what the loop schedules, and hooks for trouble."""

    def __init__(self) -> None:
        super().__init__(nodes=2, gpus=4)
        self.watch_reservations = False
        self.watched: list[bool] = []
        self.looks: list[float] = []
        self.refreshed: list[float] = []
        self.before_observe: Callable[[], None] = lambda: None
        self.before_apply: Callable[[ClusterAction], None] = lambda _: None
        self.time: FakeTime
        self.asked: list[float] = []
        self.steps: list[tuple[float, str]] = []
        self.sick: dict[str, float] = {}
        self.is_mute = False

    def observe(self) -> Observed:
        """The cluster, once it has caught up with the clock."""
        self.looks.append(self.time.now_s)
        self.watched.append(self.watch_reservations)
        self.before_observe()
        self.advance(max(0, int(self.time.now_s - self.now_s)))
        return self.as_slurmctld_tells(super().observe())

    def as_slurmctld_tells(self, seen: Observed) -> Observed:
        """*seen* at the daemon's idea of now, with the times of jobs by slurmctld's clock then."""
        return dataclasses.replace(seen, now_s=float(int(self.now())))

    def apply(self, action: ClusterAction, /) -> None:
        """Do it, after the hook."""
        self.before_apply(action)
        super().apply(action)
        self.steps.append((self.time.now_s, type(action).__name__))

    def refresh_nodes(self) -> None:
        """Only remembered."""
        self.refreshed.append(self.time.now_s)

    def health(self) -> ControllerStatus:  # type: ignore[override] # of the fake's that never answers
        """What slurmctld says: its time, in whole seconds, and what a test adds."""
        self.asked.append(self.time.now_s)
        if self.is_mute:
            msg = "sdiag: no answer"
            raise ClusterError(msg)
        return ControllerStatus(
            now_s=float(int(self.time.now_s + self.time.server_ahead_s)), **self.sick
        )  # type: ignore[arg-type]


@dataclass
class FakeParts:
    """What `assemble` gives."""

    cluster: Watched
    ledger: Ledger
    policy: DiscreteLas = FAR
    settings: Settings = field(
        default_factory=lambda: Settings(
            partitions=frozenset({"gpu"}),
            preemption=Preemption(
                beneficiaries="all",
                commitment="ignored",
                min_quantum_s=8,
                start_margin_s=12,
                limit_reserve_s=0,
            ),
        )
    )
    enrich: Callable[[Snapshot], Snapshot] = lambda snap: snap


@dataclass
class House:
    """A daemon with everything around it."""

    directory: Path
    time: FakeTime
    cluster: Watched
    log: io.StringIO
    live: bool = True
    daemon: Daemon = field(init=False)
    audit: AuditLog = field(init=False)
    pause: PauseSwitch = field(init=False)
    enrich: Callable[[Snapshot], Snapshot] = lambda snap: snap
    assembled: int = 0

    def __post_init__(self) -> None:
        self.configure()
        logging_setup.configure(level="debug", form="json", stream=self.log)
        self.pause = PauseSwitch(self.directory)
        self.audit = AuditLog(self.directory / "audit.jsonl")
        loaded = self.reread()
        self.observers = (Notebook(), Notebook())
        self.daemon = Daemon(
            loaded=loaded,
            parts=self.assemble(loaded.config),
            reread=self.reread,
            assemble=self.assemble,
            live=lambda config: self.live and not config.daemon.shadow,
            audit=self.audit,
            pause=self.pause,
            log=logging_setup.logger(),
            observers=self.observers,
        )

    def configure(
        self,
        poll_s: str = "30",
        state: str | None = None,
        rate_per_s: int = 1000,
        breakers: str = "",
    ) -> None:
        """Write the configuration file."""
        text = YAML.format(
            poll_s=poll_s,
            rate_per_s=rate_per_s,
            state=state or self.directory,
            audit=self.directory / "audit.jsonl",
            breakers=breakers,
        )
        (self.directory / "dl.yaml").write_text(text, "utf-8")

    def reread(self) -> Loaded:
        """The file as it is now."""
        config, origins = load_with_origins(self.directory / "dl.yaml")
        return Loaded(config, tuple(show(config, origins)))

    def assemble(self, _: Config) -> FakeParts:
        """Parts over the same cluster and ledger file."""
        self.assembled += 1
        ledger = Ledger(SqliteStore(self.directory / "ledger.sqlite"))
        return FakeParts(self.cluster, ledger, enrich=self.enrich)

    def polls(self, number: int) -> None:
        """Let time pass until the loop has looked *number* times more."""
        wanted = len(self.cluster.looks) + number
        while len(self.cluster.looks) < wanted:
            self.round()
            self.time.now_s += 0.5

    def use(self, policy: DiscreteLas) -> None:
        """Order by *policy* from now on."""
        parts = self.daemon._parts
        parts.policy = policy

    def reload(self, *, polls: int = 3, **changes: Any) -> Reloaded:  # noqa: ANN401
        """Ask for a reload of the file, with *changes* in it, and poll; what came of it."""
        if changes:
            self.configure(**changes)
        self.daemon._alarm.hangup = True
        self.polls(polls)
        return self.daemon.board.current.reloaded

    def round(self) -> None:
        """One turn of the loop, without its sleep."""
        self.daemon._round()

    def gaps(self) -> list[float]:
        """Seconds between the looks so far."""
        looks = self.cluster.looks
        return [round(b - a, 1) for a, b in itertools.pairwise(looks)]

    def said(self, event: str) -> list[dict[str, object]]:
        """The log lines of one kind."""
        lines = [json.loads(line) for line in self.log.getvalue().splitlines()]
        return [line for line in lines if line["event"] == event]


def _house(directory: Path, monkeypatch: pytest.MonkeyPatch) -> House:
    clock = FakeTime()
    for module in (daemon_module, observers, rate_limits, reload):
        monkeypatch.setattr(module, "time", clock)
    cluster = Watched()
    cluster.time = clock
    for _ in range(2):
        cluster.submit(4, work_s=100_000)
    return House(directory, clock, cluster, io.StringIO())


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    """A live daemon over a fake cluster that two jobs fill."""
    made = _house(tmp_path, monkeypatch)
    yield made
    made.daemon.close()
    made.audit.close()


@pytest.fixture
def two_wait(house: House) -> None:
    """Jobs 3 and 4, which find no room and get a SiteFactor each."""
    for _ in range(2):
        house.cluster.submit(4, work_s=100_000)


@pytest.mark.usefixtures("two_wait")
def test_the_first_cycle_only_looks(house: House) -> None:
    """After a start nothing is done until one cycle has shown what it would do."""
    house.polls(1)
    assert house.cluster.applied == []

    house.polls(1)

    assert len(house.cluster.applied) == 2


# 4 GPUs from second 1 on: 400 GPU-seconds are reached 101 s after the first look, 368 after 93 s.
@pytest.mark.parametrize(("last_gpu_s", "gap_s"), [(1e9, 30.0), (400.0, 11.0), (368.0, 5.0)])
def test_it_looks_every_poll_s_and_when_the_order_changes(
    house: House, last_gpu_s: float, gap_s: float
) -> None:
    """From start to start; a job that sinks wakes the daemon, fast_poll_s after a look at least."""
    house.use(DiscreteLas(thresholds_gpu_s=(60.0, last_gpu_s)))

    house.polls(5)

    assert house.gaps() == [30.0, 30.0, 30.0, gap_s]


@pytest.mark.parametrize(
    ("now", "resets"),
    [
        ("cluster_share: 1.5", ["cluster_share"]),
        ("cluster_least: 65, gpus_per_hour: 99", ["cluster_share"]),  # the other has not tripped
        ("cluster_share: 0, cluster_least: 1", ["cluster_share"]),
        ("failed_share: 0.6", ["failed_restarts"]),
        ("failed_least: 5, cluster_share: 2", ["cluster_share", "failed_restarts"]),
        ("cluster_share: 0.5, failed_share: 0.4", []),
        ("failed_window_s: 600", []),
    ],
)
def test_a_reload_that_raises_a_bound_resets_what_it_tripped(
    house: House, now: str, resets: list[BreakerName]
) -> None:
    """In the audit log and the log, as `dlctl breakers reset`; a lower bound resets nothing."""
    ledger = house.daemon._parts.ledger
    wall_s = house.daemon._health.now()
    for name in ("cluster_share", "failed_restarts"):
        ledger.begin(TripBreaker(breaker=name, at_s=wall_s, why="9 of 16"))

    house.reload(breakers=now)

    logged = map(json.loads, house.audit.path.read_text("utf-8").splitlines())
    lines = [
        e["reason"] for e in logged if (e["actor"], e["action"]) == ("reload", "reset_breaker")
    ]
    assert lines == [f"{name}: it had tripped: 9 of 16" for name in resets]
    said = house.said("a breaker re-armed: its bound was raised")
    assert [line["breaker"] for line in said] == resets
    ledger = house.daemon._parts.ledger
    assert [n for n in BREAKERS if ledger.has_tripped(n, wall_s)] == [
        n for n in ("cluster_share", "failed_restarts") if n not in resets
    ]


@pytest.mark.usefixtures("two_wait")
def test_shadow_mode_never_acts(house: House) -> None:
    """However long it runs, a daemon in shadow mode applies nothing, and still plans."""
    house.live = False

    house.polls(5)

    assert house.cluster.applied == []
    cycle = house.daemon.board.current.cycle
    assert len(cycle.left) == 2


def down(house: House, *, is_down: bool) -> None:
    house.cluster.down = is_down


def test_a_silent_slurm_is_asked_less_and_less_often(house: House) -> None:
    """Back-off doubles from poll_s to its longest, with jitter that never lengthens it."""
    house.polls(1)
    down(house, is_down=True)

    house.polls(7)

    gaps = house.gaps()[1:]
    for gap, longest in zip(gaps, (30, 60, 120, 240, 300, 300), strict=False):
        assert 0.8 * longest - 0.5 <= gap <= longest + 0.5
    assert max(gaps) <= LONGEST_BACKOFF_S + 0.5
    assert house.daemon.board.current.failures == 7


def test_after_a_silence_two_cycles_only_look(house: House) -> None:
    """What Slurm says just after it came back is not acted upon yet; then work goes on."""
    house.polls(2)
    down(house, is_down=True)
    house.polls(1)
    house.cluster.submit(1, work_s=1000)
    before = len(house.cluster.applied)
    down(house, is_down=False)

    house.polls(2)
    assert len(house.cluster.applied) == before
    assert house.daemon.board.current.failures == 0
    house.polls(1)

    assert len(house.cluster.applied) == before + 1
    assert house.gaps()[-2:] == [30.0, 30.0]


class Notebook:
    """An observer that writes down the number of each cycle, until it is told to fail."""

    def __init__(self) -> None:
        self.cycles: list[int] = []
        self.fails = False
        self.closed = 0
        self.abandoned = 0

    def on_cycle(self, now: PublishedState, /) -> None:
        """The number of the cycle."""
        if self.fails:
            msg = "eight"
            raise ZeroDivisionError(msg)
        self.cycles.append(now.cycles)

    def close(self) -> None:
        """Counted, whether it fails or not."""
        self.closed += 1
        if self.fails:
            msg = "nine"
            raise ZeroDivisionError(msg)

    def abandon(self) -> None:
        """Counted."""
        self.abandoned += 1


def test_observers_get_each_cycle_and_cannot_end_one(house: House) -> None:
    """A bug in one of them is logged; it is left out, and the others and the loop go on."""
    good, bad = house.observers
    house.polls(2)
    bad.fails = True
    house.polls(2)
    bad.fails = False
    house.polls(1)

    assert good.cycles == [1, 2, 3, 4, 5]
    assert bad.cycles == [1, 2]
    assert house.daemon.board.current.bugs == 0
    (said,) = house.said("bug in an observer; it is left out from now on")
    assert said["observer"] == "Notebook"


class Deaf:
    """An observer that has nothing to finish."""

    def on_cycle(self, now: PublishedState, /) -> None:
        """Nothing."""


def test_the_end_lets_each_observer_finish_and_each_part_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever else fails; they come before the ledger that they write, and it is still seen."""
    house, done = _house(tmp_path, monkeypatch), list[str]()
    house.polls(1)
    bad, good = house.observers
    bad.fails = True
    monkeypatch.setattr(good, "close", lambda: done.append("watcher"))
    ledger = house.daemon._parts.ledger
    let_go = ledger.close

    def end_ledger() -> None:
        done.append("ledger")
        let_go()

    def fail() -> None:
        done.append("cluster")
        msg = "ten"
        raise ZeroDivisionError(msg)

    monkeypatch.setattr(ledger, "close", end_ledger)
    monkeypatch.setattr(house.cluster, "close", fail)
    with pytest.raises(ZeroDivisionError, match="ten"):
        house.daemon.close()
    house.audit.close()

    assert done == ["watcher", "ledger", "cluster"]
    assert bad.closed == 1
    (said,) = house.said("bug in the end of an observer")
    assert said["observer"] == "Notebook"


def test_a_watcher_that_is_not_told_any_more_may_finish(house: House) -> None:
    """A bug in one look must not cost what those before have brought."""
    observer, log = Notebook(), logging_setup.logger()
    observers = Observers([Deaf(), observer], log)
    observer.fails = True
    observers.tell(house.daemon.board.current)
    observer.fails = False

    observers.close()

    assert observer.closed == 1


@pytest.mark.parametrize("error", [SupersededError("by another"), WithdrawnError("it is over")])
def test_watchers_of_a_daemon_that_was_passed_over_write_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """What they would write to is another daemon's by now."""
    house = _house(tmp_path, monkeypatch)

    def observe() -> None:
        raise error

    house.cluster.before_observe = observe
    with pytest.raises(type(error)):
        house.daemon.run()

    house.daemon.close()
    house.audit.close()

    assert [(w.closed, w.abandoned) for w in house.observers] == [(0, 1), (0, 1)]


def test_a_single_look_tells_nobody(house: House) -> None:
    """``--once`` is no part of what a daemon sees: its figures would be one look's."""
    house.daemon.cycle_once(acting=False)

    assert [w.cycles for w in house.observers] == [[], []]


def test_each_turn_has_watchers_of_its_own() -> None:
    """Another host was the daemon meanwhile: what the last turn knew of its score is old."""

    def ledger() -> Ledger:
        return Ledger(MemoryStore())

    first, second = observers_of(ledger), observers_of(ledger)

    assert not {id(w) for w in first} & {id(w) for w in second}
    assert forecasts_of_daemon() in second


@pytest.mark.usefixtures("two_wait")
def test_a_bug_is_logged_counted_and_survived(house: House) -> None:
    """An exception nobody expected ends its cycle and nothing else; its traceback is kept."""

    def fail() -> None:
        msg = "seven"
        raise ZeroDivisionError(msg)

    house.cluster.before_observe = fail
    house.polls(2)
    assert house.daemon.board.current.bugs_in_a_row == 2
    house.cluster.before_observe = lambda: None
    house.polls(2)

    assert house.daemon.board.current.bugs == 2
    assert house.daemon.board.current.bugs_in_a_row == 0
    assert "seven" in house.daemon.board.current.trouble.message
    assert "ZeroDivisionError" in json.dumps(
        house.said("bug in a cycle; nothing more is done in it")
    )
    assert house.cluster.applied != []


@pytest.mark.usefixtures("two_wait")
def test_a_bug_in_a_look_at_the_nodes_ends_nothing(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record that nobody expected must not end the daemon again and again."""

    def fail() -> None:
        msg = "n7"
        raise KeyError(msg)

    monkeypatch.setattr(house.cluster, "refresh_nodes", fail)
    house.polls(8)

    assert house.daemon.board.current.bugs >= 1
    assert house.said("bug in a look at the nodes; they are taken for what they were")
    assert house.cluster.applied != []


@pytest.mark.usefixtures("two_wait")
def test_a_pause_stops_acting_but_not_looking(house: House) -> None:
    """While paused the queue is still read and shown."""
    house.pause.on(by="user ann (1)", reason="", now_s=1.0)

    house.polls(3)

    assert house.cluster.applied == []
    assert house.daemon.board.current.cycles == 3
    house.pause.off()
    house.polls(1)
    assert house.cluster.applied != []


@pytest.mark.usefixtures("two_wait")
def test_a_pause_in_the_middle_of_a_cycle_ends_it(house: House) -> None:
    """The action under way is finished and written down; the next one is not begun."""

    def pause(_: ClusterAction) -> None:
        house.pause.on(by="user ann (1)", reason="", now_s=1.0)

    house.polls(1)
    house.cluster.before_apply = pause

    house.polls(1)

    assert len(house.cluster.applied) == 1
    assert len(house.audit.path.read_text("utf-8").splitlines()) == 1


@pytest.mark.usefixtures("two_wait")
def test_no_action_that_cannot_be_written_down(house: House) -> None:
    """With the audit log's disk full one action may slip through, then none until it is mended."""
    house.audit.path.symlink_to("/dev/full")

    house.polls(4)

    assert len(house.cluster.applied) == 1
    assert house.daemon.board.current.cycles >= 2
    house.audit.path.unlink()
    house.polls(1)
    assert len(house.cluster.applied) == 2
    jobs = [json.loads(line)["job"] for line in house.audit.path.read_text("utf-8").splitlines()]
    assert sorted(jobs) == [3, 4]


@pytest.mark.usefixtures("two_wait")
def test_a_refused_action_is_written_down_as_refused(house: House) -> None:
    """The audit log and the counters tell what was done from what was tried."""
    house.polls(1)
    house.cluster.before_apply = _refuse

    house.polls(1)

    results = [
        json.loads(line)["result"] for line in house.audit.path.read_text("utf-8").splitlines()
    ]
    assert results == ["refused", "refused"]
    now = house.daemon.board.current
    assert (now.done, now.failed) == (0, 2)


def _refuse(_: ClusterAction) -> None:
    msg = "refused"
    raise ClusterError(msg)


def test_wake_begins_the_next_cycle_but_not_more_than_one_a_second(house: House) -> None:
    """Somebody who resumes over and over cannot make it poll like mad."""
    house.polls(2)

    for _ in range(10):
        house.daemon.wake()
        house.daemon._sleep = lambda: None  # type: ignore[method-assign]
        type(house.daemon)._sleep(house.daemon)
        house.round()
        house.time.now_s += 0.25

    assert min(house.gaps()) >= 1.0
    assert len(house.gaps()) >= 3


def preempting(house: House) -> None:
    """Two big jobs that opted in sink; a new one deserves their GPUs."""
    house.use(NEAR)
    for job in house.cluster.jobs.values():
        job.contract = Contract(grace_s=60)
        job.save_s = 20


def test_a_handover_is_watched_closely(house: House) -> None:
    """While GPUs change hands it polls at fast_poll_s and reads reservations; then no more."""
    preempting(house)
    house.polls(30)
    house.cluster.submit(4, work_s=30, uid=7)

    house.polls(12)

    signals = [a for a in house.cluster.applied if isinstance(a, Signal)]
    assert len(signals) == 1
    assert 5.0 in house.gaps()[-12:]
    assert house.cluster.watched[0]
    assert not house.cluster.watched[20]
    assert any(house.cluster.watched[30:])


@pytest.mark.parametrize("how", ["pause", "stop"])
def test_a_handover_is_cut_between_two_steps(house: House, how: str) -> None:
    """Paused or stopped between reservation and signal, the signal is not sent any more."""
    preempting(house)
    house.polls(30)
    house.cluster.submit(4, work_s=30, uid=7)

    def interrupt(action: ClusterAction) -> None:
        if isinstance(action, Reserve) and how == "pause":
            house.pause.on(by="a", reason="", now_s=1.0)
        elif isinstance(action, Reserve):
            house.daemon._alarm.stop = "SIGTERM"

    house.cluster.before_apply = interrupt
    # Not for long: a hand-over that has not come to its signals within a minute is given up.
    house.polls(2)

    assert isinstance(house.cluster.applied[-1], Reserve)
    house.cluster.before_apply = lambda _: None
    house.daemon._alarm.stop = ""
    house.pause.off()
    house.polls(3)
    assert any(isinstance(a, Signal) for a in house.cluster.applied)


def test_while_paused_a_handover_is_not_polled_closely(house: House) -> None:
    """Nothing comes of looking often at what may not be brought on."""
    preempting(house)
    house.polls(30)
    house.cluster.submit(4, work_s=30, uid=7)
    house.polls(3)
    assert house.daemon.board.current.cycle is not None
    house.pause.on(by="a", reason="", now_s=1.0)
    done = len(house.cluster.applied)
    house.polls(1)

    house.polls(4)

    assert house.gaps()[-3:] == [30.0] * 3
    assert len(house.cluster.applied) == done


def test_nodes_are_read_between_polls(house: House) -> None:
    """No poll also reads the nodes, or it would cost more calls than it may."""
    house.polls(12)

    assert len(house.cluster.refreshed) == 3
    assert not set(house.cluster.refreshed) & set(house.cluster.looks)


def test_a_silent_slurm_is_not_asked_for_nodes(house: House) -> None:
    """One way of asking is enough while nobody answers."""
    down(house, is_down=True)

    house.polls(5)

    assert house.cluster.refreshed == []


def test_a_reload_takes_effect(house: House) -> None:
    """A good configuration is in force from the next cycle on; the change is named."""
    house.polls(2)
    last = house.reload(poll_s="10")

    assert house.gaps()[-1] == 10.0
    assert last.ok
    assert "daemon.poll_s" in last.message
    line = json.loads(house.audit.path.read_text("utf-8").splitlines()[-1])
    assert (line["actor"], line["action"]) == ("dlschedd (SIGHUP)", "reload")

    known: list[tuple[Enricher, Enricher]] = []

    class Counting(Enricher):
        def go_on(self, before: Enricher) -> None:
            known.append((before, self))

    first, second = (Counting(profiles={}, site=SitePriors()) for _ in range(2))
    for house.enrich in (first, second):
        house.reload()
    assert known == [(first, second)]


class Keeping(DiscreteLas):
    """A policy under which promises stand."""

    promises = True


def test_promises_that_stand_keep_their_policy(house: House) -> None:
    """A reload to a policy that keeps none is refused; a start with one warns and keeps them."""
    promise = Promise(
        says="yes", due_s=9, at_s=1, gpus=4.0, needs_s=1, rests_on="limit", begin_s=8, end_s=9
    )
    entries = (promise.entry(1), dataclasses.replace(promise, broken="node").entry(2))
    house.daemon._parts.ledger.begin(Book(entries=entries, why=""))
    house.use(Keeping())

    refused = house.reload(poll_s="10")
    assert (refused.ok, "1 promise stands" in refused.message) == (False, True)
    assert "dlctl promises" in refused.message
    assert house.gaps()[-1] == 30.0

    again = House(house.directory, house.time, house.cluster, house.log)
    (warned,) = again.said("promises are not kept, but stay in the ledger")
    assert "1 promise stands" in str(warned["because"])
    again.polls(2)
    booked = again.daemon.board.current.cycle.booked
    assert booked == entries
    assert again.reload(poll_s="10").ok


def test_it_counts_how_steers_ended(house: House) -> None:
    """Whether Slurm started jobs where they should; told once, not at each look."""
    for job_id, avoid in ((1, "n2"), (2, "n2")):
        steer = Steer(
            job_id=JobId(job_id), kind="spot", avoid=(avoid,), since_s=1.0, until_s=2.0, why=""
        )
        house.daemon._parts.ledger.begin(SetSteer(steer=steer, why=""))

    house.polls(4)

    places = {job.job_id: job.nodes for job in house.cluster.jobs.values()}
    assert places == {1: (0,), 2: (1,)}
    assert house.daemon.board.current.steers_ended == {"honoured": 1, "not honoured": 1}


def test_a_bad_reload_keeps_the_old_configuration(house: House) -> None:
    """It is said what is wrong, with file and line, and nothing changes."""
    house.polls(2)
    last = house.reload(polls=2, poll_s="-1")

    assert house.gaps() == [30.0] * 3
    assert house.assembled == 1
    assert not last.ok
    assert "dl.yaml:2: daemon.poll_s" in last.message
    assert house.said("reload")[0]["level"] == "error"
    assert "poll_s" in house.audit.path.read_text("utf-8").splitlines()[-1]


def test_what_cannot_change_at_run_time_is_refused(house: House) -> None:
    """The ledger and the socket stay where they are; the whole reload is refused."""
    last = house.reload(poll_s="10", state="/elsewhere")

    assert house.gaps() == [30.0] * 2
    assert "paths.state_dir, paths.run_dir: cannot change at run time" in last.message


def test_a_reload_that_cannot_be_assembled_is_refused(house: House) -> None:
    """A value that a part chokes on is said, and the old configuration goes on."""

    def choke(_: Config) -> FakeParts:
        msg = "the value must be at least 7"
        raise ValueError(msg)

    house.daemon._reloading._assemble = choke
    last = house.reload(poll_s="10")

    assert house.gaps() == [30.0] * 2
    assert not last.ok
    assert last.message == ("the value must be at least 7\nthe old configuration stays in force")


def test_a_reload_that_the_rest_refuses_is_undone(house: House) -> None:
    """An unknown admin, found only when the list is looked up, keeps the old one too."""

    def refuse(_: Config) -> None:
        msg = "control.admins: no user 'x'"
        raise ConfigError(msg)

    house.daemon.on_reloaded = refuse
    house.reload(poll_s="10")

    assert house.gaps() == [30.0] * 2
    assert house.daemon.board.current.config.daemon.poll_s == 30


def test_service_survives_a_reload(house: House) -> None:
    """The new parts read the ledger the old ones wrote."""
    house.polls(5)
    before = house.daemon.board.current.cycle
    house.reload(polls=1)
    after = house.daemon.board.current.cycle

    assert after.snapshot.memory.attained_gpu_s[0] > before.snapshot.memory.attained_gpu_s[0] > 100


def test_each_cycle_is_one_line_and_quiet_ones_are_debug(house: House) -> None:
    """A log at info tells what happened, and every ten minutes that all is well."""
    house.polls(62)

    cycles = house.said("cycle")
    assert len(cycles) == 62
    aloud = [c for c in cycles if c["level"] == "info"]
    assert [c["acting"] for c in aloud[:3]] == [False, True, True]
    assert 4 <= len(aloud) <= 6
    assert {"jobs", "pending", "running", "tiers", "done", "failed", "left", "handovers"} <= set(
        cycles[0]
    )
    assert {"observe_ms", "decide_ms", "apply_ms"} <= set(cycles[0])


@pytest.mark.parametrize("error", ["squeue: a\x1b[2J\nlevel=info forged", "a\x1b[2J\u2028b"])
def test_errors_of_slurm_cannot_forge_log_lines(house: House, error: str) -> None:
    """What Slurm's tools print is escaped: one event stays one line without control characters."""

    def fail() -> None:
        raise ClusterError(error)

    house.cluster.before_observe = fail
    logging_setup.configure(level="debug", form="console", stream=house.log)

    house.polls(1)

    assert len(house.log.getvalue().splitlines()) == 1
    assert "\x1b" not in house.log.getvalue()
    assert r"\x1b[2J" in house.log.getvalue()


def taken(bucket: TokenBucket) -> int:
    """How many tokens one cycle gets, if it asks for up to a thousand."""
    bucket.refill()
    return sum(bucket.take() for _ in range(1000))


def test_the_bucket_allows_its_capacity_and_then_its_rate() -> None:
    """A quiet time is worth the capacity and no more."""
    clock = FakeTime()
    bucket = TokenBucket(2.0, 5, clock.monotonic)

    assert taken(bucket) == 5
    clock.now_s += 1.0
    assert taken(bucket) == 2
    clock.now_s += 3600.0
    assert taken(bucket) == 5


def test_what_flows_in_during_a_cycle_is_for_the_next() -> None:
    """However slow its writes are, a cycle cannot live on what its own duration brings."""
    clock = FakeTime()
    bucket = TokenBucket(2.0, 5, clock.monotonic)
    bucket.refill()
    got = []
    for _ in range(20):
        got.append(bucket.take())
        clock.now_s += 1.0

    assert got == [True] * 5 + [False] * 15
    assert taken(bucket) == 5


@pytest.mark.parametrize(
    ("poll_s", "rate_per_s", "burst", "first", "later"),
    [(30, 2, 20, 60, 60), (5, 2, 20, 20, 10), (30, 0.5, 1, 15, 15)],
)
def test_the_configured_rate_is_met_in_the_long_run(  # noqa: PLR0917 - the cases
    monkeypatch: pytest.MonkeyPatch,
    poll_s: float,
    rate_per_s: float,
    burst: int,
    first: int,
    later: int,
) -> None:
    """Polls that far apart write as much as the rate allows, and a burst after a quiet time."""
    clock = FakeTime()
    monkeypatch.setattr(TokenBucket.__init__, "__defaults__", (clock.monotonic,))
    config = Config.model_validate(
        {
            "manage": {"partitions": ["gpu"]},
            "daemon": {"poll_s": poll_s},
            "writes": {"rate_per_s": rate_per_s, "burst": burst},
        }
    )

    bucket = TokenBucket.of(config)
    counts = [taken(bucket)]
    for _ in range(3):
        clock.now_s += poll_s
        counts.append(taken(bucket))

    assert counts == [first, later, later, later]


@pytest.mark.usefixtures("two_wait")
def test_a_cycle_out_of_tokens_leaves_the_rest(house: House) -> None:
    """What is over budget is done in a later cycle."""
    house.daemon._bucket = TokenBucket(1 / 30, 1, house.time.monotonic)

    house.polls(2)
    assert len(house.cluster.applied) == 1
    cycle = house.daemon.board.current.cycle
    assert len(cycle.left) == 1
    house.polls(2)

    assert [getattr(a, "job_id", None) for a in house.cluster.applied] == [3, 4]


def test_a_reload_renews_the_budget(house: House) -> None:
    """A new rate holds from the next cycle on."""
    assert taken(house.daemon._bucket) == 1000
    house.reload(polls=1, rate_per_s=3)

    house.time.now_s += 3600.0
    assert taken(house.daemon._bucket) == 3 * 30


def test_slow_writes_do_not_delay_the_next_look(house: House) -> None:
    """A cycle begins no write after fast_poll_s; what is left over comes after the next look."""
    for _ in range(98):
        house.cluster.submit(4, work_s=1)

    def wait_for_slurm(_: ClusterAction) -> None:
        house.time.now_s += 0.5

    house.cluster.before_apply = wait_for_slurm
    house.polls(3)

    assert len(house.cluster.applied) == 2 * 10
    assert house.gaps() == [30.0, 30.0]


@pytest.mark.usefixtures("two_wait")
def test_a_job_that_slurm_refuses_rests(house: House) -> None:
    """The daemon remembers refusals from cycle to cycle, and over a reload."""

    def refuse_one(action: ClusterAction) -> None:
        if getattr(action, "job_id", None) == 3:
            _refuse(action)

    house.cluster.before_apply = refuse_one
    house.polls(2)
    assert house.daemon.board.current.failed == 1
    house.reload(polls=2)
    assert house.daemon.board.current.failed == 1

    house.polls(1)

    assert house.daemon.board.current.failed == 2


@pytest.mark.parametrize(
    ("asked", "longest_s"),
    [({}, 5.0), ({"WATCHDOG_USEC": "300000000"}, 5.0), ({"WATCHDOG_USEC": "3000000"}, 1.5)],
)
def test_the_watchdog_is_fed_twice_as_often_as_systemd_asks(
    house: House, monkeypatch: pytest.MonkeyPatch, asked: dict[str, str], longest_s: float
) -> None:
    """No sleep is longer than half of WatchdogSec, nor than it would be without."""
    slept: list[float] = []

    def select(*arguments: object) -> None:
        slept.append(arguments[3])  # type: ignore[arg-type]

    for name in ("WATCHDOG_USEC", "WATCHDOG_PID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in asked.items():
        monkeypatch.setenv(name, value)
    made = House(house.directory, house.time, house.cluster, io.StringIO())
    monkeypatch.setattr(wakeup, "select", SimpleNamespace(select=select))
    made.polls(1)

    made.daemon._sleep()

    made.daemon.close()
    made.audit.close()
    assert slept == [longest_s]


def test_the_first_look_is_told_once(house: House) -> None:
    """When the cluster has been seen, and not again; not while it is silent."""
    told: list[int] = []
    house.daemon.on_first_look = lambda: told.append(len(house.cluster.looks))
    house.cluster.down = True
    house.polls(2)
    assert told == []

    house.cluster.down = False
    house.polls(3)

    assert told == [3]


def test_a_signal_ends_the_sleep(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal that comes while it sleeps is met at once, not at the end of the sleep."""
    monkeypatch.setattr(daemon_module, "_LONGEST_SLEEP_S", 3600.0)
    rescued: list[bool] = []
    over = threading.Event()

    def kill() -> None:
        # 30 s of sleep follow the first look; whether it has begun yet does not matter.
        process_control.eventually(lambda: house.daemon.board.current.next_poll_s > 0, 10)
        os.kill(os.getpid(), signal.SIGTERM)
        if not over.wait(10):
            rescued.append(True)
            house.daemon.wake()

    killer = threading.Thread(target=kill)
    killer.start()
    house.daemon.run()
    over.set()
    killer.join()

    assert rescued == []
    assert len(house.cluster.looks) == 1


class Forbidding:
    """A permit that forbids what a test says, from the moment the test says."""

    def __init__(self) -> None:
        self.because = ""

    def why_not(self) -> str:
        """See `Precondition`."""
        return self.because


@pytest.mark.usefixtures("two_wait")
def test_a_permit_that_is_withdrawn_ends_the_cycle_before_its_next_action(house: House) -> None:
    """What was begun is settled, what comes after it is neither written down nor done."""
    permit = Forbidding()
    house.daemon._preconditions = (permit,)

    def withdraw(_: ClusterAction) -> None:
        permit.because = "somebody else acts"

    house.cluster.before_apply = withdraw
    house.polls(3)

    assert len(house.cluster.applied) == 1
    assert house.daemon.board.current.idle == "somebody else acts"
    permit.because = ""
    house.cluster.before_apply = lambda _: None
    house.polls(2)
    assert len(house.cluster.applied) > 1
    assert not house.daemon.board.current.idle


@pytest.mark.usefixtures("two_wait")
def test_a_slurm_that_would_not_be_ordered_is_left_alone(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster itself may forbid to act; when it is mended work goes on without a restart."""
    monkeypatch.setattr(house.cluster, "why_not", lambda: "PriorityType=priority/basic")
    house.polls(4)

    assert house.cluster.applied == []
    assert house.daemon.board.current.idle == "PriorityType=priority/basic"
    with pytest.raises(SlurmDlError, match="priority/basic"):
        house.daemon.cycle_once(acting=True)
    monkeypatch.setattr(house.cluster, "why_not", lambda: "")
    house.polls(2)
    assert house.cluster.applied


COOLDOWN_S = 150.0
"""The longest thing that counts time in these tests."""


def limited(house: House, *, min_quantum_s: float, cooldown_s: float = 10.0) -> None:
    """Limits on preemption, and an order that changes soon."""
    house.use(NEAR)
    parts = house.daemon._parts
    limits = Preemption(
        beneficiaries="all",
        commitment="ignored",
        min_quantum_s=min_quantum_s,
        cooldown_s=cooldown_s,
        max_grace_s=90,
        limit_reserve_s=0,
    )
    parts.settings = dataclasses.replace(parts.settings, preemption=limits)


def stubborn(house: House, *, min_quantum_s: float = 8, cooldown_s: float = COOLDOWN_S) -> None:
    """One big job sinks; it opted in, never acknowledges, and does not go by itself."""
    limited(house, min_quantum_s=min_quantum_s, cooldown_s=cooldown_s)
    for job in house.cluster.jobs.values():
        job.contract = Contract(grace_s=60)
        job.save_s = 10_000


def steps(house: House) -> list[tuple[float, str]]:
    """What was done, each with when by a clock that never jumps."""
    return house.cluster.steps


def times_of(house: House, kind: str) -> list[float]:
    """When actions of one kind were done."""
    return [at_s for at_s, name in steps(house) if name == kind]


def until(house: House, kind: str) -> None:
    """Poll until an action of one kind was done; for 200 polls at most."""
    for _ in range(200):
        if times_of(house, kind):
            return
        house.polls(1)
    pytest.fail(f"no {kind} within 200 polls: {steps(house)}")


@pytest.mark.parametrize(
    ("by_s", "when"), [(3600.0, "before"), (86_400.0 * 30, "signalled"), (-3600.0, "signalled")]
)
def test_a_jump_of_this_hosts_clock_changes_no_decision(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_s: float, when: str
) -> None:
    """Set forward or back, before a hand-over or in it: everything is done as without."""

    def run(house: House, *, jump: bool) -> list[tuple[float, str]]:
        stubborn(house)
        house.polls(12)
        house.time.wall_ahead_s = by_s if jump and when == "before" else 0.0
        house.cluster.submit(4, work_s=30, uid=7)
        until(house, "Signal")
        house.time.wall_ahead_s = by_s if jump else 0.0
        until(house, "Unseal")
        return steps(house)

    undisturbed = run(house, jump=False)
    (tmp_path / "other").mkdir()
    other = _house(tmp_path / "other", monkeypatch)
    disturbed = run(other, jump=True)
    other.daemon.close()
    other.audit.close()

    assert "Requeue" in [name for _, name in undisturbed]
    assert disturbed == undisturbed


@pytest.mark.parametrize("by_s", [3600.0, 10.0, -3600.0])
def test_after_a_jump_of_slurmctlds_clock_grace_and_quantum_count_anew(
    house: House, by_s: float
) -> None:
    """No step for a minimum quantum, and no requeue before a whole grace."""
    stubborn(house, min_quantum_s=100, cooldown_s=COOLDOWN_S)
    house.polls(12)
    house.cluster.submit(4, work_s=30, uid=7)
    until(house, "Signal")
    jumped_s = house.time.now_s
    house.time.server_ahead_s = by_s

    until(house, "Requeue")

    assert jumped_s + 100 <= times_of(house, "Requeue")[0] <= jumped_s + 300
    assert house.daemon.board.current.controller_health.jumps == 1


def test_while_time_cannot_be_believed_the_order_is_still_kept(house: House) -> None:
    """Nobody is signalled, new jobs are ranked, and it is said why and for how long."""
    stubborn(house, min_quantum_s=120)
    house.polls(12)
    house.time.server_ahead_s = 7200.0
    for _ in range(11):
        if not house.daemon.board.current.controller_health.jumps:
            house.polls(1)
    assert house.daemon.board.current.controller_health.jumps == 1
    house.cluster.submit(4, work_s=30, uid=7)
    before = len(steps(house))
    house.polls(3)

    done = [name for _, name in steps(house)[before:]]
    assert done
    assert set(done) == {"SetSiteFactor"}
    controller_health = house.daemon.board.current.controller_health
    assert "jumped forward by 2 h" in controller_health.distrust
    assert controller_health.distrust_until_s > house.time.time()
    assert len(house.said("the clock jumped")) == 1
    house.polls(30)
    assert not house.daemon.board.current.controller_health.distrust
    assert "Signal" in [name for _, name in steps(house)]


def test_a_jump_in_the_middle_of_a_cycle_is_seen_before_anybody_is_signalled(
    house: House,
) -> None:
    """The clock is looked at once more between the observation and the first step that counts."""
    stubborn(house, min_quantum_s=120)
    house.polls(12)
    house.cluster.submit(4, work_s=30, uid=7)

    def jump() -> None:
        house.time.server_ahead_s = 3600.0

    house.cluster.before_observe = jump
    house.polls(3)

    assert not {"Reserve", "Signal"} & {name for _, name in steps(house)}
    assert house.daemon.board.current.controller_health.jumps == 1


def test_slurmctld_is_asked_how_it_is_every_tenth_poll(house: House) -> None:
    """And whenever somebody is to be stopped, and when this host's clock was set."""
    house.polls(31)
    assert len(house.cluster.asked) == 4
    house.time.wall_ahead_s = 5.0
    house.polls(2)

    assert len(house.cluster.asked) == 5


def test_a_slurmctld_that_does_not_tell_its_time_is_ordered_by_this_hosts(house: House) -> None:
    """It is said, once; if this host's clock is set forward, that is not followed."""
    house.cluster.is_mute = True
    stubborn(house)
    house.polls(12)
    house.time.wall_ahead_s = 3600.0
    house.cluster.submit(4, work_s=30, uid=7)
    until(house, "Requeue")

    assert times_of(house, "Requeue")[0] >= times_of(house, "Signal")[0] + 60
    assert len(house.said("slurmctld does not tell its time")) == 1
    assert "this host's clock" in house.daemon.board.current.controller_health.clock


def test_it_looks_less_often_at_a_slow_slurmctld(house: House) -> None:
    """The interval doubles up to its bound, and comes back step by step."""
    house.polls(2)
    house.cluster.asked_s = 5.0
    house.polls(4)
    assert house.gaps()[-3:] == [60.0, 120.0, 120.0]
    slow = house.daemon.board.current.controller_health
    assert slow.slow == "it took 5.0 s to list its jobs"
    assert slow.slowed == 4.0

    house.cluster.asked_s = 0.1
    house.polls(9)

    assert house.gaps()[-9:] == [120.0] * 3 + [60.0] * 3 + [30.0] * 3
    assert not house.daemon.board.current.controller_health.slow
    assert len(house.said("slurmctld is slow: looking less often")) == 1
    assert len(house.said("looking as before")) == 1


def test_busy_threads_slow_it_down_as_well(house: House) -> None:
    """What slurmctld says of itself is asked at each poll while it is slow."""
    house.polls(9)
    house.cluster.sick = {"threads": 200}
    house.polls(3)
    assert house.daemon.board.current.controller_health.slow == "200 of its threads are busy"
    house.cluster.sick = {"threads": 2}

    house.polls(10)

    assert house.daemon.board.current.controller_health.slowed == 1.0


def test_the_order_is_not_written_while_slurmdbd_is_behind(house: House) -> None:
    """Standalone writes wait while the queue to slurmdbd grows, and are done after it."""
    house.cluster.sick = {"dbd_queue": 5000}
    house.polls(10)
    house.cluster.sick = {"dbd_queue": 6000}
    house.polls(1)
    house.cluster.submit(4, work_s=30, uid=7)
    before = len(house.cluster.applied)
    house.cluster.sick = {"dbd_queue": 7000}
    house.polls(1)
    assert len(house.cluster.applied) == before
    assert "7000 messages" in house.daemon.board.current.controller_health.writes_held

    house.polls(2)

    assert len(house.cluster.applied) == before + 1


def anew(house: House) -> None:
    """Another daemon over the same ledger, as after a restart or a takeover."""
    house.daemon.close()
    loaded = house.reread()
    house.daemon = Daemon(
        loaded=loaded,
        parts=house.assemble(loaded.config),
        reread=house.reread,
        assemble=house.assemble,
        live=lambda _: True,
        audit=house.audit,
        pause=house.pause,
        log=logging_setup.logger(),
    )


def first_start_s(house: House) -> float:
    """When the first run began."""
    return min(job.start_s for job in house.cluster.jobs.values() if job.start_s)


def test_a_jump_that_the_ledger_cannot_be_told_of_is_not_lost(house: House) -> None:
    """The clock has moved, and the disk was full at that moment."""
    stubborn(house, min_quantum_s=2000)
    house.polls(12)
    house.cluster.submit(4, work_s=30, uid=7)
    house.time.server_ahead_s = 7200.0
    house.daemon._health._polls_left = 0
    ledger = house.daemon._parts.ledger
    clock_was_set, refused = ledger.clock_was_set, []

    def refuse_once(now_s: float, **more: Any) -> None:  # noqa: ANN401 - as of the method
        if not refused:
            refused.append(now_s)
            msg = "the disk is full"
            raise StoreError(msg)
        clock_was_set(now_s, **more)

    ledger.clock_was_set = refuse_once  # type: ignore[method-assign]
    started_s = first_start_s(house)
    until(house, "Signal")

    assert refused
    assert ledger.distrust_until_s > 0, "the next cycle stored it"
    assert times_of(house, "Signal")[0] >= started_s + 2000


@pytest.mark.parametrize("ahead_s", [40.0, 3600.0])
def test_a_restart_on_a_host_that_is_ahead_while_sdiag_is_mute(
    house: House, ahead_s: float
) -> None:
    """The first word of slurmctld after that is no jump: what the ledger says was its time."""
    stubborn(house)
    house.polls(12)
    house.cluster.submit(4, work_s=30, uid=7)
    until(house, "Signal")
    (signalled_s,) = times_of(house, "Signal")
    house.time.wall_ahead_s, house.cluster.is_mute = ahead_s, True
    anew(house)
    limited(house, min_quantum_s=8, cooldown_s=150)
    house.polls(1)
    house.cluster.is_mute = False
    until(house, "Requeue")

    assert signalled_s + 60 <= times_of(house, "Requeue")[0] <= signalled_s + 180


def test_distrust_outlives_a_restart(house: House) -> None:
    """A daemon that starts while time cannot be believed does not believe it either."""
    stubborn(house, min_quantum_s=2000)
    house.polls(12)
    house.time.server_ahead_s = 7200.0
    house.daemon._health._polls_left = 0
    house.cluster.submit(4, work_s=30, uid=7)
    house.polls(1)
    started_s = first_start_s(house)
    anew(house)
    limited(house, min_quantum_s=2000)
    until(house, "Signal")

    assert times_of(house, "Signal")[0] >= started_s + 2000


def test_no_step_while_a_clock_that_was_told_cannot_be_looked_at(house: House) -> None:
    """Another slurmctld may answer, with another clock: an hour behind, and mute."""
    stubborn(house, min_quantum_s=2000)
    house.polls(3)
    house.time.server_ahead_s = -3600.0
    for job in house.cluster.jobs.values():
        job.start_s = job.start_s and job.start_s - 3600
    house.cluster.is_mute = True
    house.cluster.submit(4, work_s=30, uid=7)
    house.polls(40)

    assert not times_of(house, "Signal")
    assert "no GPUs are taken back" in house.daemon.board.current.controller_health.clock


def test_what_was_taken_moves_on_disk_too(house: House) -> None:
    """Else it would stand in the future for a month, and bound preemption as long."""
    stubborn(house)
    house.polls(12)
    house.cluster.submit(4, work_s=30, uid=7)
    until(house, "Unseal")
    house.time.server_ahead_s = -86_400.0 * 30
    house.daemon._health._polls_left = 0
    house.polls(1)
    house.daemon._alarm.hangup = True
    house.round()
    house.time.now_s += 7200
    house.polls(2)

    cycle = house.daemon.board.current.cycle
    assert cycle.snapshot.preempted_gpus_last_hour == 0
