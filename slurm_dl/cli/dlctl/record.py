"""``dlctl record``: what the daemon sees and plans, cycle by cycle, into a file."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import signal
import threading
from collections.abc import Callable, Generator, Iterator
from io import BufferedReader
from pathlib import Path

import click

from slurm_dl import __version__
from slurm_dl.cli.commandline import AS_JSON, SOCKET, print_json, seconds_of
from slurm_dl.daemon.control.client import Client, admins_daemon
from slurm_dl.engine.decide import decide
from slurm_dl.recording.anonymise import Anonymous
from slurm_dl.recording.cycles_file import RecordedCycle, Recording, Writer
from slurm_dl.text import counted, safe


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--for",
    "for_s",
    callback=seconds_of,
    metavar="TIME",
    help="End after this time: 30s, 90m, 24h, 7d.",
)
@click.option("--cycles", type=click.IntRange(min=1), help="End after this many cycles.")
@click.option("--anonymous", is_flag=True, help="Replace names of users, jobs, accounts and nodes.")
@click.option("--force", is_flag=True, help="Overwrite FILE if it is there.")
@AS_JSON
@SOCKET
def record(
    file: Path,
    *,
    for_s: float | None,
    cycles: int | None,
    anonymous: bool,
    force: bool,
    as_json: bool,
    socket: Path | None,
) -> None:
    """Record what the daemon sees and plans from its next cycle on, for 'dlsim replay'.

    Only its owner may read FILE; it is compressed if its name ends in .gz. It holds users, job
    names and nodes unless --anonymous is given. Ctrl-C ends the recording early, and a daemon
    that stops does too; what was recorded until then is in FILE.

    \b
    Examples:
      dlctl record day.jsonl.gz --for 24h
      dlctl record report.jsonl.gz --cycles 20 --anonymous
    """  # noqa: D301 - \b is click's mark
    if for_s is None and cycles is None:
        msg = "--for or --cycles must say when the recording ends"
        raise click.UsageError(msg)
    if file.exists() and not (force and file.is_file()):
        msg = (
            f"{file} is there already; --force overwrites it"
            if file.is_file()
            else (f"{file}: must be a regular file")
        )
        raise click.UsageError(msg)
    at, taken = admins_daemon(socket), 0
    try:
        with (
            Client(at).stream("record") as (stream, hang_up),
            _until(for_s, hang_up) as stopped,
            contextlib.closing(_cycles(stream, anonymous=anonymous)) as sent,
            contextlib.ExitStack() as last,
        ):
            for taken, (version, cycle) in enumerate(itertools.islice(sent, cycles), 1):
                if taken == 1:
                    if force:
                        file.unlink(missing_ok=True)
                    writer = last.enter_context(Writer(file, cycle.setup, version))
                writer.change(cycle.setup)
                writer.write(cycle.snapshot, cycle.plan)
            early = taken != cycles and not stopped.is_set()
    except OSError as err:
        msg = f"{file}: {err.strerror or err}"
        raise click.ClickException(msg) from None
    if taken and as_json:
        print_json({"file": str(file), "cycles": taken, "bytes": file.stat().st_size})
    elif taken:
        click.echo(safe(f"{counted(taken, 'cycle')} in {file}", 1000))
    if early or not taken:
        why = "dlschedd has ended the recording: it stops, or this host is too slow; see its log"
        raise click.ClickException(why if early else "dlschedd has made no cycle meanwhile")


def _cycles(
    stream: BufferedReader, *, anonymous: bool
) -> Generator[tuple[str, RecordedCycle], None, None]:
    """The cycles that the daemon sends, with the slurm_dl that made their plans."""
    if not stream.peek(1):
        return
    replace = Anonymous()
    with Recording(Path("dlschedd"), stream) as sent:
        for cycle in sent:
            if not anonymous:
                yield sent.version, cycle
                continue
            snapshot, setup = replace(cycle.snapshot), replace.setup(cycle.setup, cycle.snapshot)
            # The reasons in a plan hold names: it is made anew.
            plan = decide(snapshot, setup.make(), setup.settings)
            yield __version__, dataclasses.replace(cycle, snapshot=snapshot, setup=setup, plan=plan)


@contextlib.contextmanager
def _until(for_s: float | None, hang_up: Callable[[], None]) -> Iterator[threading.Event]:
    """End the stream after *for_s*, at Ctrl-C or SIGTERM; the event says that this was so.

    An exception could come in the middle of a line; the end of the stream cannot.
    """
    stopped = threading.Event()

    def stop(*_: object) -> None:
        stopped.set()
        with contextlib.suppress(OSError):
            hang_up()

    timer = threading.Timer(for_s or 0.0, stop)
    if for_s is not None:
        timer.start()
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        timer.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)
