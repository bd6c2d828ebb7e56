"""``dlsim record``: what a running daemon sees and plans, cycle by cycle, into a file."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from slurm_dl import __version__
from slurm_dl.cli.dlsim.follow_daemon import FollowedCycle, Follower
from slurm_dl.cli.shared_options import SOCKET
from slurm_dl.daemon.control.client import Client, DaemonError, socket_path
from slurm_dl.engine.decide import decide
from slurm_dl.model.plan import Plan
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.recording.anonymise import Anonymous
from slurm_dl.recording.cycles_file import Setup, Writer
from slurm_dl.text import counted, safe

_ANSWER_S = 120.0
_SILENCE_S = 5.0
_NOTICE_S = 0.1
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@click.command(name="record")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    help="File to write; compressed if its name ends in .gz.",
)
@click.option("--cycles", type=click.IntRange(min=1), help="End after this many cycles.")
@click.option(
    "--for",
    "for_s",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="End after this many seconds.",
)
@click.option("--anonymous", is_flag=True, help="Replace names of users, jobs, accounts and nodes.")
@click.option("--force", is_flag=True, help="Overwrite FILE if it is there.")
@click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path),
    help="Configuration file that says where the socket is, if not the usual one.",
)
@SOCKET
def record_command(
    *,
    out: Path,
    cycles: int | None,
    for_s: float | None,
    anonymous: bool,
    force: bool,
    config_path: Path | None,
    socket: Path | None,
) -> None:
    """Record what a running dlschedd sees and plans, for 'dlsim replay'.

    It asks the daemon alone, never Slurm, and needs what 'dlctl snapshot' needs: root, the daemon's
    account or one of control.admins. Without --cycles and --for it goes on until Ctrl-C, and the
    file is whole then too. The file holds users, job names and nodes unless --anonymous is given;
    only its owner may read it.

    \b
    Examples:
      dlsim record --out day.jsonl.gz --for 86400
      dlsim record --out report.jsonl.gz --cycles 20 --anonymous
    """  # noqa: D301 - \b is click's mark
    if out.exists() and not force:
        msg = f"{out} is there already; --force overwrites it"
        raise click.UsageError(msg)

    follower = Follower(Client(socket_path(socket, config_path), timeout_s=_ANSWER_S).ask)
    until_s = time.monotonic() + for_s if for_s is not None else float("inf")
    taker = _Taker(out, overwrite=force, anonymous=anonymous)
    try:
        with _told_to_stop() as stopped, contextlib.closing(taker):
            while not stopped() and time.monotonic() < until_s and taker.cycles != cycles:
                try:
                    seen = follower.look()
                except DaemonError as err:
                    if not taker.cycles:
                        raise
                    taker.say(safe(str(err)))
                    _pause(min(_SILENCE_S, until_s - time.monotonic()), stopped)
                    continue
                if seen is not None:
                    taker.take(seen)
                elif follower.wait_s:
                    _pause(min(follower.wait_s, until_s - time.monotonic()), stopped)
    except KeyboardInterrupt:
        pass  # Asked twice: the file ends with its last whole line.
    except OSError as err:
        msg = f"{out}: {err.strerror or err}; {taker.cycles} cycles are in it"
        raise click.ClickException(msg) from None
    if not taker.cycles:
        msg = "the daemon has made no cycle meanwhile; nothing was recorded"
        raise click.ClickException(msg)
    missed = f"; {follower.missed} came and went unseen" if follower.missed else ""
    click.echo(f"{counted(taker.cycles, 'cycle')} in {out} ({_size(taker.size)}){missed}")


class _Taker:
    """Writes what was seen, and tells a terminal how far it is.

    Args:
        out: The file; made with the first cycle.
    """

    def __init__(self, out: Path, *, overwrite: bool, anonymous: bool) -> None:
        self._out = out
        self._overwrite = overwrite
        self._replace = Anonymous() if anonymous else None
        self._writer: Writer | None = None
        self._setup: Setup | None = None
        self._width = 0
        self.cycles = 0
        self.size = 0

    def take(self, seen: FollowedCycle) -> None:
        """Write one cycle, whole or not at all.

        Raises:
            OSError: It cannot be written.
        """
        snapshot, setup = seen.snapshot, seen.setup
        if self._replace is not None:
            snapshot = self._replace(snapshot)
            setup = self._replace.setup(setup, seen.snapshot)
        plan = self._plan(snapshot, setup, seen.version)
        writer = self._open(setup)
        writer.write(snapshot, plan)
        self.size = writer.size
        self.cycles += 1
        self.say(f"{counted(self.cycles, 'cycle')}, {_size(self.size)}")

    def say(self, text: str) -> None:
        """Replace the line on the terminal."""
        if sys.stderr.isatty():
            click.echo(f"\r{text:<{self._width}}", nl=False, err=True)
            self._width = len(text)

    def close(self) -> None:
        """End the file."""
        if self._writer is not None:
            self._writer.close()
        if self._width:
            click.echo(err=True)

    def _open(self, setup: Setup) -> Writer:
        if self._writer is None:
            if self._overwrite:
                self._out.unlink(missing_ok=True)
            self._writer = Writer(self._out, setup)
        elif setup != self._setup:
            self._writer.change(setup)
        self._setup = setup
        return self._writer

    def _plan(self, snapshot: Snapshot, setup: Setup, version: str) -> Plan | None:
        """The daemon's plan, which it does not tell: that of the same code for the same input."""
        if version != __version__:
            if not self.cycles:
                click.echo(
                    f"dlschedd is version {safe(version, 40)}, this is {__version__}: "
                    "snapshots are recorded without plans",
                    err=True,
                )
            return None
        return decide(snapshot, setup.make(), setup.settings)


@contextlib.contextmanager
def _told_to_stop() -> Iterator[Callable[[], bool]]:
    """Ctrl-C and SIGTERM end the recording between two cycles; a second one ends it at once.

    A flag, not an exception: an exception could come in the middle of a line.
    """
    asked = False

    def note(number: int, _frame: object) -> None:
        nonlocal asked
        asked = True
        signal.signal(number, signal.default_int_handler)

    before = {number: signal.signal(number, note) for number in _SIGNALS}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _pause(seconds: float, stopped: Callable[[], bool]) -> None:
    """Sleep, but for no longer than it takes to notice a signal."""
    until_s = time.monotonic() + seconds
    while not stopped() and (left_s := until_s - time.monotonic()) > 0:
        time.sleep(min(_NOTICE_S, left_s))


def _size(size_bytes: float) -> str:
    for unit in ("B", "kB", "MB"):
        if size_bytes < 1000:  # noqa: PLR2004 - of each unit
            return f"{size_bytes:.3g} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:.3g} GB"
