"""``dlsim history``: what the site's own jobs did, out of Slurm's accounting, as a trace.

From a Slurm that answers, or from a dump that somebody made of it elsewhere.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, cast

import click

from slurm_dl.cli.commandline import EXIT_FAILED
from slurm_dl.cli.dlsim.asked import check_outputs, read_lines
from slurm_dl.files import replace_file
from slurm_dl.model.errors import ConfigError
from slurm_dl.report.terminal_table import progress
from slurm_dl.slurm.accounting.past_jobs import HEADER, FetchTally, StandIns, history, line_of
from slurm_dl.slurm.tool_runner import Slurm
from slurm_dl.text import safe
from slurm_dl.traces.builder import Gathering
from slurm_dl.traces.format_registry import read_trace
from slurm_dl.traces.slurm.dumps import dump_records, sacct_command

TIMEOUT_S = 300.0
"""For one window: slurmdbd may be slow, and nobody waits for it but the one who asked."""

_STEPS = 1000
_DAY_S = 86_400.0
_WHEN = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S"])


@click.command(name="history")
@click.argument("out", type=click.Path(path_type=Path, dir_okay=False), required=False)
@click.option("--since", type=_WHEN, metavar="DATE", help="From this day or instant on, UTC.")
@click.option(
    "--until", type=_WHEN, metavar="DATE", help="Up to this day or instant, UTC; not given: now."
)
@click.option("--cluster", metavar="NAME", default="", help="A cluster, if not the local one.")
@click.option(
    "--from-sacct",
    "dump",
    metavar="DUMP",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Read this dump, packed with gzip or not, and ask no Slurm.",
)
@click.option(
    "--sacct-command",
    "is_asked",
    is_flag=True,
    help="Print the command that makes such a dump, and do nothing; with --anonymous one without "
    "users and accounts.",
)
@click.option("--anonymous", is_flag=True, help="Replace names of users and accounts by numbers.")
@click.option("--force", is_flag=True, help="Overwrite OUT if it is there.")
def history_command(
    *,
    out: Path | None,
    since: datetime | None,
    until: datetime | None,
    cluster: str,
    dump: Path | None,
    is_asked: bool,
    anonymous: bool,
    force: bool,
) -> None:
    """Write the site's own history to OUT, for 'dlsim run' and 'dlsim compare'.

    It asks Slurm's accounting through sacct, a day at a time, and takes every run that ended in
    that time or was there at its end. A job whose first runs ended before --since seems to begin
    with the next one. Only your own jobs are there unless you may see all of them. OUT is packed if
    its name ends in .gz; only its owner may read it.

    Where no Slurm answers, --from-sacct takes a dump: 'dlsim history --sacct-command --since DATE'
    prints the command that makes it, which asks for no text that a user can write.

    Ends with status 1 if accounting records no GPUs: such a history cannot be simulated.

    \b
    Examples:
      dlsim history --since 2026-01-01 history.txt
      dlsim history --since 2026-01-01 --until 2026-04-01 --anonymous q1.txt.gz
      dlsim history --sacct-command --since 2026-01-01
      dlsim history --from-sacct dump.txt --anonymous history.txt
      dlsim run history.txt --cluster 8x8 --policy discrete_las
    """  # noqa: D301 - \b is click's mark
    if dump is not None:
        if since is not None or until is not None or cluster or is_asked:
            msg = "--from-sacct takes the whole dump: no --since, --until, --cluster and the like"
            raise click.UsageError(msg)
        _from_dump(dump, _new(out, force=force), anonymous=anonymous)
        return
    if since is None:
        msg = "Missing option '--since'"
        raise click.UsageError(msg)
    begin = since.replace(tzinfo=UTC).timestamp()
    end = until.replace(tzinfo=UTC).timestamp() if until else float(int(time.time()))
    if not is_asked:
        _from_slurm(_new(out, force=force), begin, end, cluster=cluster, anonymous=anonymous)
        return

    if out is not None:
        msg = "--sacct-command only prints a command: leave OUT away"
        raise click.UsageError(msg)
    try:
        click.echo(sacct_command(begin, end, cluster=cluster, people=not anonymous))
    except ValueError as err:
        raise click.UsageError(str(err)) from None


def _new(out: Path | None, *, force: bool) -> Path:
    """Writing of the history."""
    if out is None:
        msg = "Missing argument 'OUT'"
        raise click.UsageError(msg)
    check_outputs(out)
    if out.exists() and not force:
        msg = f"{out} is there already; --force overwrites it"
        raise click.UsageError(msg)
    return out


def _from_slurm(out: Path, begin_s: float, end_s: float, *, cluster: str, anonymous: bool) -> None:
    conf = os.environ.get("SLURM_CONF")
    slurm = Slurm(slurm_conf=Path(conf) if conf else None, timeout_s=TIMEOUT_S)
    tally = FetchTally()
    try:
        lines = history(
            slurm,
            begin_s,
            end_s,
            tally=tally,
            cluster=cluster,
            stand_ins=StandIns() if anonymous else None,
        )
        _write(out, lines, tally, nothing="accounting has no run of that time")
    except ValueError as err:
        raise click.UsageError(str(err)) from None
    _report(out, tally)


def _from_dump(dump: Path, out: Path, *, anonymous: bool) -> None:
    tally = FetchTally()
    left_out = Gathering(str(dump))
    runs = dump_records(dump, left_out, tally=tally, stand_ins=StandIns() if anonymous else None)
    runs_of: Counter[str] = Counter()

    def lines() -> Iterator[str]:
        for _, record in runs:
            runs_of[record["JobID"]] += 1
            yield line_of(record)

    _write(out, lines(), tally, nothing=f"{safe(str(dump))} tells of no run")
    for told in left_out.left_out:
        click.echo(safe(f"{told}; left out", 400), err=True)
    # Told above, one by one.
    tally.unreadable = 0
    _report(out, tally)
    if again := sum(runs > 1 for runs in runs_of.values()):
        click.echo(f"{again:,} jobs ran more than once, as after a requeue; each counts as one")
    _jobs(out)


def _jobs(out: Path) -> None:
    """Say how many jobs the simulator finds in what was written, and what it leaves out."""
    try:
        trace = read_trace(out, "sacct")
    except ConfigError as err:
        click.echo(f"dlsim history: nothing to simulate: {safe(str(err), 400)}", err=True)
        raise SystemExit(EXIT_FAILED) from None
    for line in read_lines(trace):
        click.echo(safe(line, 400))


def _write(out: Path, lines: Iterable[str], tally: FetchTally, *, nothing: str) -> None:
    """Write the history, whole or not at all."""
    try:
        with _whole(out) as file, progress("history", _STEPS) as report:
            file.write(f"{HEADER}\n".encode())
            for line in lines:
                file.write(line.encode())
                report(int(tally.done * _STEPS))
            if not tally.runs:
                msg = f"{nothing}; nothing was written"
                raise click.ClickException(msg)
    except OSError as err:
        msg = f"{out}: {err.strerror or err}; nothing was written"
        raise click.ClickException(msg) from None


def _report(out: Path, tally: FetchTally) -> None:
    click.echo(f"{tally.runs:,} runs in {safe(str(out))}, {tally.with_gpus:,} of them with GPUs")
    if tally.unreadable:
        click.echo(f"{tally.unreadable:,} records could not be read and were left out", err=True)
    if not tally.with_gpus:
        click.echo(
            "dlsim history: accounting records no GPUs, so nothing in it can be simulated; Slurm "
            "records them once slurm.conf has AccountingStorageTRES=gres/gpu, from then on",
            err=True,
        )
        raise SystemExit(EXIT_FAILED)
    if tally.first_gpu_s - tally.first_s > _DAY_S:
        day = datetime.fromtimestamp(tally.first_gpu_s, UTC).date()
        click.echo(
            f"no run with GPUs before {day}: if there were any, accounting did not record GPUs yet",
            err=True,
        )


@contextlib.contextmanager
def _whole(path: Path) -> Iterator[IO[bytes]]:
    """What only its owner may read, packed if the name of *path* says so; whole or not at all."""
    with replace_file(path, mode=0o600) as file:
        if path.suffix == ".gz":
            with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
                yield cast("IO[bytes]", packed)
        else:
            yield file
