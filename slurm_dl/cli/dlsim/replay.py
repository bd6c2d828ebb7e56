"""``dlsim replay``: a recording decided upon once more, by the same policy or by another."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress

from slurm_dl.cli.commandline import EXIT_FAILED, print_json
from slurm_dl.json_types import Json
from slurm_dl.recording import replay_report as report
from slurm_dl.recording.cycles_file import Recording, RecordingError
from slurm_dl.text import safe

_QUIET_S = 1.0  # Work that is shorter than this shows no bar


@click.command(name="replay")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--policy", metavar="NAME", help="Decide with this policy instead.")
@click.option(
    "-p",
    "--parameter",
    "options",
    metavar="KEY=VALUE",
    multiple=True,
    help="Set one parameter of the policy; the value is YAML. May be given several times.",
)
@click.option(
    "--diff", is_flag=True, help="Compare with the recorded plans; the status is 1 if any differs."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def replay_command(
    *, file: Path, policy: str | None, options: tuple[str, ...], diff: bool, as_json: bool
) -> None:
    """Decide once more on every snapshot of a recording.

    With the recorded policy and limits the plans are those of the daemon. With another policy or
    other parameters it says what would have been planned in the same situations; each snapshot is
    decided by itself, nothing is carried over to the next.

    \b
    Examples:
      dlsim replay day.jsonl.gz
      dlsim replay day.jsonl.gz --diff
      dlsim replay day.jsonl.gz --policy fifo
      dlsim replay day.jsonl.gz -p "thresholds_gpu_s=[3600.0, 36000.0]" --json
    """  # noqa: D301 - \b is click's mark
    choice = report.ReplayPolicy.of(policy, options)
    summary = report.ReplaySummary()
    cycles: list[Json] = []
    with Recording(file) as recording, _bar(recording.size) as bar:
        for cycle in report.replayed(recording, choice, path=file, compared=diff):
            row = summary.add(cycle)
            if as_json:
                cycles.append(row)
            else:
                if summary.cycles == 1:
                    bar.say(report.HEADER)
                bar.say(report.line_of(row, choice))
                for found in cycle.differences() if diff else ():
                    bar.say(f"  {file}:{cycle.recorded.line}: {safe(str(found), 500)}")
            bar.reach(recording.read_bytes)
        cut_off = recording.cut_off
    if cut_off:
        click.echo(f"dlsim: {safe(cut_off, 1000)}", err=True)
    if not summary.cycles:
        msg = f"{file}: no cycle is in it"
        raise RecordingError(msg)
    if as_json:
        print_json(
            {
                "file": str(file),
                "version": recording.version,
                "cut_off": cut_off or None,
                "cycles": cycles,
                "summary": summary.as_object(),
            }
        )
    else:
        for line in summary.lines(choice, compared=diff):
            click.echo(safe(line, 1000))
    if diff and summary.different:
        raise SystemExit(EXIT_FAILED)


class _Bar:
    """How far the reading has come, on a terminal, once it takes a while.

    Args:
        size: Bytes of the whole file.
        progress: Rich's display, not started; None: there is no terminal.
    """

    def __init__(self, size: int, progress: Progress | None) -> None:
        self._progress = progress
        self._began_s = time.monotonic()
        if progress is not None:
            self._task = progress.add_task("replay", total=max(1, size))

    def reach(self, read_bytes: int) -> None:
        """So many bytes have been read."""
        if self._progress is None:
            return
        self._progress.update(self._task, completed=read_bytes)
        if time.monotonic() - self._began_s > _QUIET_S and not self._progress.live.is_started:
            self._progress.start()

    def say(self, line: str) -> None:
        """Print one line of the result, above the bar if there is one."""
        line = safe(line, 1000)
        if self._progress is not None and self._progress.live.is_started and sys.stdout.isatty():
            self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            click.echo(line)


@contextlib.contextmanager
def _bar(size: int) -> Iterator[_Bar]:
    if not sys.stdout.isatty() and not sys.stderr.isatty():
        yield _Bar(size, None)
        return

    # What is printed and the bar must be one terminal's, or they overwrite each other.
    progress = Progress(console=Console(stderr=not sys.stdout.isatty()), transient=True)
    try:
        yield _Bar(size, progress)
    finally:
        progress.stop()
