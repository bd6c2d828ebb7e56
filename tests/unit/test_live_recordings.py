"""Recordings that the daemon sends: nothing that a client does holds up a cycle."""

from __future__ import annotations

import dataclasses
import io
import threading
from pathlib import Path

import pytest
from watched import SETTINGS, levers_of, queue_of

from slurm_dl.daemon.live_recordings import MOST_WAITING, LiveRecordings
from slurm_dl.daemon.published_state import PublishedState


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
