"""The daemon and its host: the pause file, systemd, a Slurm that is late or slow, its clients."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import socket
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from watched import SETTINGS, levers_of, queue_of

from slurm_dl import logging_setup
from slurm_dl.cli.dlschedd.startup import LONGEST_WAIT_S, when_slurm_answers
from slurm_dl.config import Config, load
from slurm_dl.daemon.control.reception import pieces
from slurm_dl.daemon.live_recordings import MOST_WAITING, LiveRecordings
from slurm_dl.daemon.preconditions import FILE_NAME, PauseSwitch
from slurm_dl.daemon.published_state import PublishedState
from slurm_dl.daemon.rate_limits import CALM_POLLS, LONGEST_HELD_S, SlowDown
from slurm_dl.daemon.systemd_notify import notify, watchdog_s
from slurm_dl.json_types import Json
from slurm_dl.model.errors import ClusterError, ConfigError
from slurm_dl.slurm.controller import ControllerStatus


def test_a_pause_survives_a_restart(tmp_path: Path) -> None:
    """Who, when and why are there again in the next daemon."""
    assert PauseSwitch(tmp_path).on(by="user ann (7)", reason='"x"\n', now_s=12.0) == ""

    pause = PauseSwitch(tmp_path).pause

    assert (pause.by, pause.since_s, pause.reason) == ("user ann (7)", 12.0, '"x"\n')


def test_resuming_leaves_nothing_behind(tmp_path: Path) -> None:
    """After a resume neither this daemon nor the next is paused; twice is no error."""
    switch = PauseSwitch(tmp_path)
    switch.on(by="a", reason="", now_s=1.0)

    assert switch.off() == ""
    assert switch.off() == ""

    assert switch.pause is None
    assert PauseSwitch(tmp_path).pause is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", ["", "{}", "[1]", "null", '{"by": 1, "since_s": "x"}', "\xff"])
def test_a_file_that_cannot_be_read_is_a_pause(content: str, tmp_path: Path) -> None:
    """Somebody meant to stop the daemon: when in doubt it does not act."""
    (tmp_path / FILE_NAME).write_text(content, "latin-1")

    pause = PauseSwitch(tmp_path).pause

    assert FILE_NAME in pause.reason


def test_a_pause_that_cannot_be_stored_holds_and_says_so(tmp_path: Path) -> None:
    """A full or missing disk does not keep an admin from stopping the daemon now."""
    switch = PauseSwitch(tmp_path / "gone")

    warning = switch.on(by="a", reason="", now_s=1.0)

    assert switch.pause is not None
    assert "restart" in warning


@pytest.mark.parametrize("abstract", [False, True])
def test_lines_arrive_as_one_datagram(abstract: bool, tmp_path: Path) -> None:  # noqa: FBT001
    """All lines of a call come together, also over an abstract socket."""
    name = f"@slurm_dl_test_{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + name[1:] if abstract else name)
        manager.settimeout(5)

        assert notify("READY=1", "STATUS=a\nb", environ={"NOTIFY_SOCKET": name})

        assert manager.recv(1000) == b"READY=1\nSTATUS=a b"


@pytest.mark.parametrize("where", ["", "relative", "/nowhere/at/all", "@slurm_dl_nobody_is_here"])
def test_nobody_listening_is_no_error(where: str) -> None:
    """Without a service manager, or with one that is gone, the daemon goes on."""
    assert not notify("READY=1", environ={"NOTIFY_SOCKET": where})


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "junk"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "90000000"}, 90.0),
        ({"WATCHDOG_USEC": "90000000", "WATCHDOG_PID": str(os.getpid())}, 90.0),
        ({"WATCHDOG_USEC": "90000000", "WATCHDOG_PID": "1"}, None),
    ],
)
def test_the_watchdog_is_ours_or_nobodys(environ: dict[str, str], expected: float | None) -> None:
    """The period is read only if it is meant for this process."""
    assert watchdog_s(environ) == expected


@pytest.fixture
def config(tmp_path: Path) -> Config:
    path = tmp_path / "dl.yaml"
    path.write_text("manage: {partitions: [gpu]}\ndaemon: {poll_s: 10}\n", "utf-8")
    return load(path)


def test_it_is_tried_again_until_slurm_answers(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After ever longer pauses, and systemd is told that it takes longer each time."""
    where = tmp_path / "notify"
    parts = object()
    tries: list[Config] = []
    pauses_s: list[float] = []

    def assemble(config: Config) -> object:
        tries.append(config)
        if len(tries) <= 6:
            msg = "scontrol show config failed (exit 1): Unable to contact slurm controller"
            raise ClusterError(msg)
        return parts

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as service_manager:
        service_manager.bind(str(where))
        service_manager.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(where))
        made = when_slurm_answers(assemble, config, logging_setup.logger(), sleep=pauses_s.append)
        told = [service_manager.recv(200).decode().splitlines()[0] for _ in pauses_s]

    assert made is parts
    assert len(pauses_s) == 6
    assert pauses_s[0] <= 10 < pauses_s[1] <= 20 < pauses_s[2]
    assert max(pauses_s) == LONGEST_WAIT_S
    for pause_s, line in zip(pauses_s, told, strict=True):
        word, _, usec = line.partition("=")
        assert word == "EXTEND_TIMEOUT_USEC"
        assert int(usec) / 1e6 > pause_s + config.cluster.timeout_s


def test_what_waiting_does_not_mend_is_no_reason_to_wait(config: Config) -> None:
    """A wrong configuration ends the start at once."""
    slept: list[float] = []

    def assemble(_: Config) -> object:
        msg = "preemption.mode: native: slurm.conf has PreemptType=(null)"
        raise ConfigError(msg)

    with pytest.raises(ConfigError):
        when_slurm_answers(assemble, config, logging_setup.logger(), sleep=slept.append)
    assert not slept


def polled(pace: SlowDown, *asked_s: float) -> list[float]:
    """The interval after polls for which Slurm took so long; 30 s configured, 120 s at most."""
    intervals = []
    for spent_s in asked_s:
        pace.polled(spent_s)
        intervals.append(pace.slowed(30.0, 120.0))
    return intervals


def test_slow_answers_double_the_interval_up_to_the_slowest() -> None:
    """One doubling for each slow poll, and none beyond the bound."""
    pace = SlowDown()

    assert polled(pace, 1.9, 2.1, 9.0, 9.0, 9.0) == [30, 60, 120, 120, 120]
    assert pace.slow == "it took 9.0 s to list its jobs"


def test_it_comes_back_step_by_step() -> None:
    """Some quick polls in a row for each step; a slow one between them begins anew."""
    pace = SlowDown()
    polled(pace, 9.0, 9.0, 9.0)

    back = polled(pace, *[0.1] * (2 * CALM_POLLS))

    assert back == [120.0] * (CALM_POLLS - 1) + [60.0] * CALM_POLLS + [30.0]
    assert not pace.slow
    assert not pace.is_slow
    polled(pace, 9.0)
    assert polled(pace, *[0.1] * (CALM_POLLS - 1), 9.0, *[0.1] * (CALM_POLLS - 1)) == [
        *[60.0] * (CALM_POLLS - 1),
        *[120.0] * CALM_POLLS,
    ]


def test_an_interval_beyond_the_slowest_is_kept() -> None:
    """A site that looks every five minutes is not made to look more often."""
    pace = SlowDown()
    pace.polled(9.0)

    assert pace.slowed(300.0, 120.0) == 300.0


@pytest.mark.parametrize(
    ("sick", "because"),
    [
        ({"threads": 101}, "101 of its threads are busy"),
        ({"agent_queue": 201}, "201 messages to nodes wait"),
        ({"dumps": 10, "dump_total_s": 25.0}, "it takes 2.5 s to list its jobs for anybody"),
    ],
)
def test_its_own_figures_count_as_well(sick: dict[str, float], because: str) -> None:
    """Busy threads, a queue of messages, listings that are slow for others."""
    pace = SlowDown()
    pace.note_health(ControllerStatus(now_s=0.0, **sick))  # type: ignore[arg-type]

    assert polled(pace, 0.1, 0.1) == [60.0, 120.0]
    assert pace.slow == because
    pace.note_health(ControllerStatus(now_s=9.0, threads=100, agent_queue=200))
    assert polled(pace, *[0.1] * (2 * CALM_POLLS))[-1] == 30.0


def test_what_is_not_told_is_not_slow() -> None:
    """Unknown is no reason to slow down."""
    pace = SlowDown()
    pace.note_health(ControllerStatus(now_s=0.0))

    assert polled(pace, 0.1) == [30.0]


def test_the_order_waits_while_the_queue_to_slurmdbd_grows() -> None:
    """Between two looks, and above what is usual; it goes on as soon as it grows no more."""
    pace = SlowDown(lambda: 0.0)
    held = []
    for waiting in (5000, 5001, 5001, 5002, 4000, 150, 190, 210):
        pace.note_health(ControllerStatus(now_s=0.0, dbd_queue=waiting))
        held.append(bool(pace.writes_held))

    assert held == [False, True, False, True, False, False, False, True]
    assert polled(pace, 0.1) == [30.0]


def test_the_order_does_not_wait_for_ever() -> None:
    """Even if slurmdbd is away for a day: jobs are ordered all the same."""
    now = [0.0]
    pace = SlowDown(lambda: now[0])
    held = []
    for waiting in range(1000, 1000 + 8):
        pace.note_health(ControllerStatus(now_s=0.0, dbd_queue=waiting))
        held.append(bool(pace.writes_held))
        now[0] += LONGEST_HELD_S / 4

    assert held == [False, True, True, True, True, True, False, False]


@pytest.fixture
def now(tmp_path: Path) -> PublishedState:
    """A cycle that has just come to its end."""
    cycle = dataclasses.replace(queue_of(3), settings=SETTINGS)
    return levers_of(tmp_path, cycle).board.current


class Client(io.BytesIO):
    """Takes nothing until it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.may = threading.Event()

    def write(self, line: object, /) -> int:
        """One line, once it is time."""
        assert self.may.wait(30)
        return super().write(line)  # type: ignore[arg-type] # bytes


@pytest.mark.parametrize("fast", [True, False])
def test_a_client_that_is_too_slow_gets_what_waits_and_no_more(
    now: PublishedState,
    fast: bool,  # noqa: FBT001
) -> None:
    """The loop goes on at once, and whoever keeps up gets every cycle."""
    recordings, client = LiveRecordings(), Client()
    thread = threading.Thread(target=recordings.begin("ann"), args=(client, lambda: False))
    thread.start()
    if fast:
        client.may.set()
    told = 3 * MOST_WAITING if not fast else MOST_WAITING
    for _ in range(told):
        recordings.on_cycle(now)
    client.may.set()
    recordings.close()
    thread.join(30)

    assert not thread.is_alive()
    cycles = client.getvalue().count(b'\n{"snapshot":')
    assert cycles in ({told} if fast else {MOST_WAITING, MOST_WAITING + 1})


def test_a_client_that_hung_up_is_let_go_without_a_cycle(now: PublishedState) -> None:
    """During an outage there are none, and its connection would stay open."""
    recordings = LiveRecordings()
    stream = recordings.begin("ann")
    thread = threading.Thread(target=stream, args=(io.BytesIO(), lambda: True))
    thread.start()

    thread.join(30)

    assert not thread.is_alive()
    recordings.on_cycle(now)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=30) | st.dictionaries(st.text(max_size=5), inner, max_size=9)
    ),
    max_leaves=30,
)


@given(value=JSON, times=st.sampled_from([1, 100, 101, 250]))
@settings(max_examples=20, deadline=None)
def test_it_is_the_same_json(value: Json, times: int) -> None:
    """Whatever the value, in a list and in an object of any length."""
    many: Json = {"list": [value] * times, "object": dict.fromkeys(map(str, range(times)), value)}

    assert json.loads("".join(pieces(many))) == many


@pytest.mark.parametrize("rows", [[*range(50_000)], {str(i): [i] for i in range(50_000)}])
def test_no_piece_of_a_long_answer_is_large(rows: Json) -> None:
    """However deep the rows are below the answer."""
    told = list(pieces({"ok": True, "result": {"rows": {"jobs": rows}}}))

    assert len(told) > 400
    assert max(map(len, told)) < 5000
