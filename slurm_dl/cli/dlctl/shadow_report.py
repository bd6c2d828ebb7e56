"""``dlctl shadow-report``: what dlschedd would have done in the time it was watched."""

from __future__ import annotations

import dataclasses
import functools
import os
import time
from pathlib import Path

import click

from slurm_dl.cli.commandline import AS_JSON, CONFIG, SET, print_json, seconds_of
from slurm_dl.config import load
from slurm_dl.daemon.assembly import LEDGER_FILE
from slurm_dl.files import replace_file
from slurm_dl.ledger.sqlite.reader import LedgerReader
from slurm_dl.model.errors import SlurmDlError
from slurm_dl.shadow import report_data as reports
from slurm_dl.shadow.counterfactual import simulated
from slurm_dl.shadow.html_report import page
from slurm_dl.shadow.report_data import Report
from slurm_dl.shadow.terminal_report import print_report
from slurm_dl.text import safe, user_name

MOST_JOBS = 20_000  # Jobs that are simulated unless somebody asks for more

_name_of = functools.cache(user_name)


@click.command("shadow-report")
@click.option(
    "--since",
    "since_s",
    callback=seconds_of,
    default="24h",
    metavar="TIME",
    show_default=True,
    help="How far back: 90m, 24h, 7d.",
)
@click.option(
    "--html", "page_path", type=click.Path(path_type=Path, dir_okay=False), help="Write a page."
)
@click.option(
    "--simulate",
    "most_jobs",
    type=click.IntRange(0, 1_000_000),
    default=MOST_JOBS,
    show_default=True,
    help="Most jobs to run once more in the simulator; of more a sample. 0: never.",
)
@click.option(
    "--within",
    "within_s",
    callback=seconds_of,
    default="30m",
    metavar="TIME",
    show_default=True,
    help="The simulation's longest time; a sample is taken in time.",
)
@CONFIG
@SET
@AS_JSON
def shadow_report(
    *,
    since_s: float,
    page_path: Path | None,
    most_jobs: int,
    within_s: float,
    config_path: Path | None,
    settings: tuple[str, ...],
    as_json: bool,
) -> None:
    """Say what dlschedd would have done while it ran in shadow mode.

    Which jobs it would have stopped, for whom and why; what that would have cost at most; and, by
    simulating the recorded jobs, whom the configured policy would have helped and hurt. It reads
    the daemon's state directory, so it is for root and those who may read that, and it works
    without a running daemon. The page is one file without scripts; only its owner may read it.

    \b
    Examples:
      dlctl shadow-report
      dlctl shadow-report --since 7d --html report.html
      dlctl shadow-report --simulate 0 --json
    """  # noqa: D301 - \b is click's mark
    config = load(config_path, overrides=settings)
    path, begin_s = config.paths.state_dir / LEDGER_FILE, time.time() - since_s
    if not os.access(path, os.R_OK):
        msg = f"cannot read {path}: has dlschedd run in shadow mode? Be root, or dlschedd's account"
        raise SlurmDlError(msg)
    recorded = LedgerReader(path).shadow_since(begin_s, config.manage.partitions)
    period = reports.period_of(recorded, begin_s)
    if period is None:
        msg = f"{path}: nobody looked in shadow mode in that time; see --since"
        raise SlurmDlError(msg)
    report = reports.report_of(period, config.preemption.checkpoint_cost_s, _name_of)
    sim, why_not = None, "--simulate 0"
    if most_jobs:
        try:
            sim = simulated(
                period,
                config,
                most_jobs=most_jobs,
                within_s=within_s,
                name_of=_name_of,
                say=lambda line: click.echo(line, err=True),
            )
            why_not = ""
        except SlurmDlError as err:
            # A mistake in a profile is said line by line.
            why_not = "; ".join(str(err).splitlines())
    report = dataclasses.replace(report, simulated=sim, why_not=why_not)
    if page_path is not None:
        _write_page(page_path, report)
    if as_json:
        print_json(reports.as_json(report))
    elif page_path is None:
        print_report(report)
    else:
        click.echo(safe(f"written to {page_path}", 1000))


def _write_page(path: Path, report: Report) -> None:
    try:
        with replace_file(path, mode=0o600) as file:
            file.write(page(report))
    except OSError as err:
        msg = f"cannot write {path}: {err.strerror or err}; name a file where you may write"
        raise click.ClickException(msg) from None
