"""``dlsim history``: what the site's own jobs did, out of Slurm's accounting, as a trace."""

from __future__ import annotations

import contextlib
import gzip
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

import click

from slurm_dl.apps.commandline import EXIT_FAILED, safe
from slurm_dl.apps.sim.console import progress
from slurm_dl.apps.sim.options import check_outputs

if TYPE_CHECKING:
    from slurm_dl.backends.slurm.history import Tally

TIMEOUT_S = 300.0
"""For one window: slurmdbd may be slow, and nobody waits for it but the one who asked."""

_STEPS = 1000
_DAY_S = 86_400.0
_WHEN = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S"])


@click.command(name="history")
@click.argument("out", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--since", type=_WHEN, metavar="DATE", required=True, help="From this day or instant on, UTC."
)
@click.option(
    "--until", type=_WHEN, metavar="DATE", help="Up to this day or instant, UTC; not given: now."
)
@click.option("--cluster", metavar="NAME", default="", help="A cluster, if not the local one.")
@click.option("--anonymous", is_flag=True, help="Replace names of users and accounts by numbers.")
@click.option("--force", is_flag=True, help="Overwrite OUT if it is there.")
def history_command(
    *,
    out: Path,
    since: datetime,
    until: datetime | None,
    cluster: str,
    anonymous: bool,
    force: bool,
) -> None:
    """Write the site's own history to OUT, for 'dlsim run' and 'dlsim compare'.

    It asks Slurm's accounting through sacct, a day at a time, and takes every run that ended in
    that time or was there at its end. A job whose first runs ended before --since seems to begin
    with the next one. Only your own jobs are there unless you may see all of them. OUT is packed if
    its name ends in .gz; only its owner may read it.

    Ends with status 1 if accounting records no GPUs: such a history cannot be simulated.

    \b
    Examples:
      dlsim history --since 2026-01-01 history.txt
      dlsim history --since 2026-01-01 --until 2026-04-01 --anonymous q1.txt.gz
      dlsim run history.txt --cluster 8x8 --policy discrete_las
    """  # noqa: D301 - \b is click's mark
    from slurm_dl.backends.slurm.command import Slurm  # noqa: PLC0415 - only for this command
    from slurm_dl.backends.slurm.history import HEADER, StandIns, Tally, history  # noqa: PLC0415

    check_outputs(out)
    if out.exists() and not force:
        msg = f"{out} is there already; --force overwrites it"
        raise click.UsageError(msg)
    begin = since.replace(tzinfo=UTC)
    end = until.replace(tzinfo=UTC) if until else datetime.now(UTC).replace(microsecond=0)
    conf = os.environ.get("SLURM_CONF")
    slurm = Slurm(slurm_conf=Path(conf) if conf else None, timeout_s=TIMEOUT_S)
    tally = Tally()
    try:
        lines = history(
            slurm,
            begin,
            end,
            tally=tally,
            cluster=cluster,
            stand_ins=StandIns() if anonymous else None,
        )
        with _whole(out) as file, progress("history", _STEPS) as report:
            file.write(f"{HEADER}\n".encode())
            for line in lines:
                file.write(line.encode())
                report(int(tally.done * _STEPS))
            if not tally.runs:
                msg = "accounting has no run of that time; nothing was written"
                raise click.ClickException(msg)
    except ValueError as err:
        raise click.UsageError(str(err)) from None
    except OSError as err:
        msg = f"{out}: {err.strerror or err}; nothing was written"
        raise click.ClickException(msg) from None
    _report(out, tally)


def _report(out: Path, tally: Tally) -> None:
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
    from slurm_dl.report.files import replacing  # noqa: PLC0415 - only for this command

    with replacing(path, mode=0o600) as file:
        if path.suffix == ".gz":
            with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
                yield cast("IO[bytes]", packed)
        else:
            yield file
