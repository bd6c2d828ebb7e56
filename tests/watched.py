"""dlqueue on a terminal that a test can read, and a daemon's answers over a queue of any length."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from build import NOW_S, observed, pending, running, snapshot
from patience import eventually

from slurm_dl.config import load_with_origins, show
from slurm_dl.daemon.audit_log import AuditLog
from slurm_dl.daemon.control.reception import Reception
from slurm_dl.daemon.control.request_handlers import RequestHandlers
from slurm_dl.daemon.control.socket_server import ControlServer
from slurm_dl.daemon.control.status_answer import ControlContext
from slurm_dl.daemon.preconditions import PauseSwitch
from slurm_dl.daemon.published_state import Board, PublishedState, Reloaded
from slurm_dl.engine.cycle import Cycle
from slurm_dl.engine.decide import decide
from slurm_dl.engine.settings import Preemption, Settings
from slurm_dl.model.ids import JobId
from slurm_dl.model.snapshot import JobText
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.slurm.controller import SiteConfig
from slurm_dl.slurm.releases import parse_release

POLICY = DiscreteLas(thresholds_gpu_s=(60.0, 400.0))
SETTINGS = Settings(
    partitions=frozenset({"gpu"}), preemption=Preemption(beneficiaries="all", commitment="ignored")
)
OPEN = SiteConfig(
    release=parse_release("22.05.8"),
    tracks_memory=False,
    private=frozenset(),
    slurm_uid=64030,
)
"""Slurm hides nothing."""

HOSTILE = "\x1b[2J\x1b]0;owned\x07[red]x[/]\r\nroot \u202e終わり\U0001f600"

MODULE = [sys.executable, "-c", "from slurm_dl.cli.dlqueue.command import main; main()"]


def queue_of(n: int, *, names: Callable[[int], str] = lambda j: f"job-{j}") -> Cycle:
    """A cycle that saw *n* jobs: four run, one of ten is this account's own, all ask for GPUs."""
    rows = [
        running(j, 4, uid=1000 + j % 7, ran_s=900.0 * j)
        if j <= 4
        else pending(j, 1 + j % 8, uid=os.getuid() if j % 10 == 0 else 1000 + j % 7)
        for j in range(1, n + 1)
    ]
    texts = {
        JobId(j): JobText(
            label=str(j),
            name=names(j),
            user=f"user{j % 7}",
            account=f"lab{j % 3}",
            qos="normal",
            reason="Resources",
            nodes=f"n{j}" if j <= 4 else "",
        )
        for j in range(1, n + 1)
    }
    held = {j: {j - 1: 4.0} for j in range(1, min(n, 4) + 1)}
    seen = observed(rows, held=held, texts=texts)
    attained = {j: 3600.0 * j for j in range(1, min(n, 4) + 1)}
    snap = snapshot(seen, memory={"attained_gpu_s": attained, "ran_s": attained})
    return Cycle(snapshot=snap, plan=decide(snap, POLICY, SETTINGS), acting=False)


def without(cycle: Cycle, job_id: int) -> Cycle:
    """The same queue a moment later, once a job of it is gone."""
    seen = cycle.snapshot.seen
    snap = cycle.snapshot
    keep = seen.jobs.job_id != job_id
    shift = np.cumsum(~keep)
    memory = type(snap.memory)(
        **{f.name: getattr(snap.memory, f.name)[keep] for f in dataclasses.fields(snap.memory)}
    )
    on = keep[seen.held.job]
    held = type(seen.held)(
        job=(seen.held.job - shift[seen.held.job])[on].astype(np.int32),
        **{name: getattr(seen.held, name)[on] for name in ("node", "gpus", "cpus", "mem_mb")},
    )
    seen = dataclasses.replace(seen, jobs=seen.jobs.take(keep), held=held, now_s=NOW_S + 2)
    snap = dataclasses.replace(snap, seen=seen, memory=memory, left_s=snap.left_s[keep])
    return Cycle(snapshot=snap, plan=decide(snap, POLICY, SETTINGS), acting=False)


def levers_of(
    directory: Path,
    cycle: Cycle,
    state: Mapping[str, Any] | None = None,
    **more: Any,  # noqa: ANN401
) -> ControlContext:
    """A daemon's insides after *cycle*, but for what *state* and *more* say."""
    path = directory / "dl.yaml"
    path.write_text("manage: {partitions: [gpu]}\n", "utf-8")
    config, origins = load_with_origins(path)
    fields = {"policy": POLICY, "slurm": OPEN, "cycle": cycle, "cycles": 1, "live": True}
    fields |= {"started_s": time.time(), "seen_s": time.time(), **(state or {})}
    given = {
        "audit": more.get("audit") or AuditLog(directory / "audit.jsonl"),
        "pause": PauseSwitch(directory),
        "reload": lambda _: Reloaded(at_s=1.0, ok=False, message=""),
        "wake": lambda: None,
    }
    now = PublishedState(config=config, config_rows=tuple(show(config, origins)), **fields)
    return ControlContext(board=Board(now), **given | more)


@dataclass
class Place:
    """A daemon's socket, over answers that a test can change."""

    directory: Path
    context: ControlContext
    server: ControlServer | None = None
    bugs: list[Exception] = field(default_factory=list)

    @property
    def socket(self) -> Path:
        """Where it listens."""
        return self.directory / "s"

    def begin(self) -> None:
        """Listen."""
        reception = Reception(
            admins=(), answer=RequestHandlers(self.context), on_bug=self.bugs.append
        )
        self.server = ControlServer(self.socket, mode=0o666, reception=reception)

    def end(self) -> None:
        """Listen no more."""
        if self.server is not None:
            self.server.close()
            self.server = None

    def show(self, cycle: Cycle) -> None:
        """The daemon has looked again."""
        board = self.context.board
        board.current = dataclasses.replace(board.current, cycle=cycle, seen_s=time.time())


@contextlib.contextmanager
def place_of(directory: Path, cycle: Cycle) -> Iterator[Place]:
    """A daemon that answers; it ends with the block."""
    place = Place(directory, levers_of(directory, cycle))
    place.begin()
    try:
        yield place
    finally:
        place.end()
        place.context.audit.close()
    assert place.bugs == []


_WITH_TERMINAL = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
for name in ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGTSTP"):
    signal.signal(getattr(signal, name), signal.SIG_DFL)
os.execvp(sys.argv[1], sys.argv[1:])
"""
"""Runs a program whose terminal can interrupt and stop it, whatever started the tests ignores."""


class Terminal:
    """A terminal with a program in it, and all that the program has written to it."""

    def __init__(self, argv: Sequence[str]) -> None:
        self.raw = b""
        self._main, self._side = pty.openpty()
        fcntl.ioctl(self._main, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.modes = termios.tcgetattr(self._side)
        clean = {k: v for k, v in os.environ.items() if k not in {"COLUMNS", "LINES", "NO_COLOR"}}
        self.process = subprocess.Popen(
            [sys.executable, "-c", _WITH_TERMINAL, *argv],
            stdin=self._side,
            stdout=self._side,
            stderr=self._side,
            env={**clean, "TERM": "xterm-256color"},
            start_new_session=True,
        )
        self._done = threading.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def press(self, keys: str) -> None:
        """Send these characters, as from a keyboard."""
        os.write(self._main, keys.encode())

    @property
    def is_as_it_was(self) -> bool:
        """Whether its modes are as at first, its ordinary screen is shown, and its cursor."""
        on_off = ((b"\x1b[?1049h", b"\x1b[?1049l"), (b"\x1b[?25l", b"\x1b[?25h"))
        given_back = all(self.raw.rfind(on) <= self.raw.rfind(off) for on, off in on_off)
        return given_back and termios.tcgetattr(self._side) == self.modes

    def until_says(self, text: str, *, after: int = 0) -> int:
        """Wait until *text* was written, beyond *after* bytes; how many have been by then."""
        wanted = text.encode()
        try:
            eventually(lambda: wanted in self.raw[after:], 20.0, 0.02, what=text)
        except Exception as err:
            err.add_note(repr(self.raw[-4000:]))
            raise
        return len(self.raw)

    def close(self) -> None:
        """End the program, if it has not, and let go of the terminal."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(20)
        self._done.set()
        self._reader.join()
        os.close(self._main)
        os.close(self._side)

    def _read(self) -> None:
        while not self._done.is_set():
            if select.select([self._main], [], [], 0.05)[0]:
                self.raw += os.read(self._main, 65536)
