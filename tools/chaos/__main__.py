"""``python -m tools.chaos``: play a campaign, print its counts, end with 0 only if all holds."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click

from slurm_dl.cli.commandline import run as run_command
from slurm_dl.sandbox import accounting_database, layout
from tools.chaos.campaign import Campaign, Settings, judge
from tools.chaos.faults import KINDS
from tools.chaos.site import Site
from tools.chaos.tally import Tally, Verdict

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Stopped(BaseException):
    """Somebody wants the campaign to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.status = 128 + number


@click.command(context_settings={"help_option_names": ["--help", "-h"]})
@click.option("--jobs", type=click.IntRange(1), default=1000, show_default=True, help="At least.")
@click.option("--faults", type=click.IntRange(0), default=100, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True, help="All is drawn from it.")
@click.option(
    "--minutes",
    type=click.FloatRange(1),
    default=40.0,
    show_default=True,
    help="Longest time for all of it; what does not fit is left out, which is a failure.",
)
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    help="Work in this new directory, and leave it there.",
)
@click.option("--only", metavar="FAULT,...", help=f"Of: {', '.join(KINDS)}. [default: all]")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def chaos(
    *,
    jobs: int,
    faults: int,
    seed: int,
    minutes: float,
    keep: Path | None,
    only: str | None,
    as_json: bool,
) -> None:
    """Break a Slurm and dlschedd in every way, while a crowd of jobs runs, and prove that it held.

    A private Slurm with accounting, fake GPUs and real daemons: jobs of many kinds come, are
    preempted, cancelled and requeued while dlschedd is killed, stopped and doubled, while Slurm's
    daemons die, disks fill up and clocks jump. Then a checker that reads only Slurm's records and
    the jobs' own output says whether a job was lost, run twice, held or taken from without notice.
    Needs root and Debian's packages. Exit status 0: everything holds.

    \b
    Examples:
      make chaos
      .venv/bin/python -m tools.chaos --jobs 60 --faults 15 --minutes 5 --seed 7
      .venv/bin/python -m tools.chaos --only schedd_kill,slurmctld_kill --keep /tmp/chaos --json
    """  # noqa: D301 - \b is click's mark
    settings = Settings(jobs=jobs, faults=faults, seed=seed, minutes=minutes, only=_only(only))
    layout.check_host()
    accounting_database.check_host()

    def say(text: str) -> None:
        click.echo(text, err=as_json)

    with _signals():
        tally, verdict, status = _play(settings, keep, say)
    if tally is not None and verdict is not None:
        ok = verdict.ok and not tally.problems
        if as_json:
            result = {"ok": ok, "campaign": tally.as_json(), "checker": verdict.as_json()}
            click.echo(json.dumps(result, indent=1))
        else:
            for line in (*tally.lines(), *verdict.lines()):
                click.echo(line)
            click.echo("everything holds" if ok else "NOT everything holds")
        status = int(not ok)
    raise SystemExit(status)


def _play(
    settings: Settings, keep: Path | None, say: Callable[[str], None]
) -> tuple[Tally | None, Verdict | None, int]:
    """The campaign and the checker's word; what was started is ended, whatever happens."""
    site = Site(keep)
    kept = True
    try:
        say(f"{settings.jobs} jobs and {settings.faults} faults on {site.directory}")
        site.start(settings.nodes)
        tally = Campaign(site, settings, say).play()
        say("checking")
        verdict = judge(site)
        kept = keep is not None or not verdict.ok or bool(tally.problems)
    except _Stopped as stopped:
        say("stopped: ending everything that was started")
        kept = keep is not None
        return None, None, stopped.status
    finally:
        for number in _ENDING:
            # A second Ctrl-C must not leave daemons behind.
            signal.signal(number, signal.SIG_IGN)
        site.close(keep=kept)
        if kept:
            say(f"left there: {site.directory}")
    return tally, verdict, 0


def _only(text: str | None) -> tuple[str, ...]:
    names = tuple(KINDS) if text is None else tuple(text.split(","))
    for name in names:
        if name not in KINDS:
            message = f"--only {name}: no such fault; there are {', '.join(KINDS)}"
            raise click.UsageError(message)
    return names


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    def stop(number: int, _: FrameType | None) -> None:
        raise _Stopped(number)

    before = {number: signal.signal(number, stop) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def main() -> NoReturn:
    """Entry point."""
    run_command(chaos, "chaos")


if __name__ == "__main__":
    main()
