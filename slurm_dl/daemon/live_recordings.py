"""Recordings of a running daemon, each written to the client that asked for it.

The loop only puts the cycle into a queue. The thread of the client's connection makes the lines and
sends them, so a slow client holds up no cycle.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from functools import partial
from io import BufferedIOBase
from typing import Final

from slurm_dl import logging_setup
from slurm_dl.daemon.control.reception import Stream
from slurm_dl.daemon.published_state import PublishedState
from slurm_dl.recording.cycles_file import Setup, Writer

MOST_WAITING: Final = 8
"""Cycles that wait for one client. A client that is further behind gets those and no more."""

_LOOK_S: Final = 1.0  # How often it is looked whether a client is still there

_Waiting = queue.SimpleQueue[PublishedState | None]


class LiveRecordings:
    """The recordings under way. An `Observer`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: set[_Waiting] = set()

    def begin(self, by: str) -> Stream:
        """The recording of all cycles from now on, for the client *by*."""
        waiting: _Waiting = queue.SimpleQueue()
        with self._lock:
            self._open.add(waiting)
        return partial(self._record, waiting, by)

    def on_cycle(self, now: PublishedState) -> None:
        """Pass the cycle on; see `Observer`."""
        with self._lock:
            for waiting in tuple(self._open):
                if waiting.qsize() < MOST_WAITING:
                    waiting.put(now)
                else:
                    self._open.remove(waiting)
                    waiting.put(None)

    def close(self) -> None:
        """End all of them; see `Finishing`."""
        with self._lock:
            while self._open:
                self._open.pop().put(None)

    abandon = close

    def _record(
        self, waiting: _Waiting, by: str, client: BufferedIOBase, has_hung_up: Callable[[], bool]
    ) -> None:
        cycles, why = 0, "dlschedd stops, or the client is too slow"
        logging_setup.logger().info("recording begins", by=by)
        writer: Writer | None = None
        try:
            while True:
                try:
                    now = waiting.get(timeout=_LOOK_S)
                except queue.Empty:
                    # Without cycles, nothing is written that would show it.
                    if has_hung_up():
                        why = "the client has hung up"
                        break
                    continue
                if now is None:
                    break
                cycle, policy = now.cycle, now.policy
                assert cycle and cycle.settings and policy  # noqa: S101, PT018 - narrows the types
                setup = Setup.of(policy, cycle.settings)
                writer = writer or Writer(client, setup)
                writer.change(setup)
                writer.write(cycle.snapshot, cycle.plan)
                cycles += 1
        except OSError as err:
            why = f"the client: {err.strerror or err}"
        finally:
            with self._lock:
                self._open.discard(waiting)
            logging_setup.logger().info("recording ends", by=by, cycles=cycles, because=why)
