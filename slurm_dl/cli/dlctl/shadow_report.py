"""``dlctl shadow-report``: what dlschedd would have done in the time it was watched."""

from __future__ import annotations

import dataclasses
import functools
import time
from pathlib import Path

import click
import numpy as np

from slurm_dl.cli.commandline import print_json
from slurm_dl.cli.shared_options import AS_JSON, CONFIG, SET, seconds_of
from slurm_dl.config import load
from slurm_dl.files import replace_file
from slurm_dl.model.errors import SlurmDlError
from slurm_dl.shadow import report_data as reports
from slurm_dl.shadow.counterfactual import simulated
from slurm_dl.shadow.html_report import page
from slurm_dl.shadow.records import EndedJobRecord, Lookout, WishedHandover
from slurm_dl.shadow.report_data import Recorded, Report
from slurm_dl.shadow.segment_store import DIRECTORY, ShadowError, read_kept
from slurm_dl.shadow.terminal_report import print_report
from slurm_dl.text import safe, user_name

MOST_JOBS = 20_000
"""Jobs that are simulated unless somebody asks for more."""

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
    directory = config.paths.state_dir / DIRECTORY
    begin_s = time.time() - since_s
    period = reports.period_of(_recorded(directory, begin_s), begin_s)
    if period is None:
        msg = f"{directory}: nobody looked in shadow mode in that time; see --since"
        raise ShadowError(msg)
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


def _recorded(directory: Path, since_s: float) -> Recorded:
    """All that is kept in *directory* of the time since *since_s*, epoch seconds, or before it."""
    kept = read_kept(directory, since_s)
    ended = [line for line in kept.lines if isinstance(line, EndedJobRecord)]
    unfinished, never_ran = list[EndedJobRecord](), 0
    if kept.standing is not None:
        now_s, jobs, accounts = kept.standing.now_s, kept.standing.jobs, kept.standing.accounts
        jobs = jobs[~np.isin(jobs["job_id"], [job.job_id for job in ended])]
        has_run = (jobs["start_s"] > 0) & (jobs["ran_s"] > 0)
        never_ran = int(jobs["tasks"][~has_run].sum())
        names = ("job_id", "uid", "gpus", "start_s", "ran_s", "opted_in")
        unfinished = [
            EndedJobRecord(
                account=accounts[row["account"]],
                submit_s=float(min(row["submit_s"], row["start_s"])),
                end_s=float(max(now_s, row["start_s"])),
                how="V",
                **{name: row[name].item() for name in names},
            )
            for row in jobs[has_run]
        ]
    return Recorded(
        lookouts=[line for line in kept.lines if isinstance(line, Lookout)],
        wishes=[line for line in kept.lines if isinstance(line, WishedHandover)],
        ended=ended,
        unfinished=unfinished,
        never_ran=never_ran,
        bad=kept.bad,
    )


def _write_page(path: Path, report: Report) -> None:
    try:
        with replace_file(path, mode=0o600) as file:
            file.write(page(report))
    except OSError as err:
        msg = f"cannot write {path}: {err.strerror or err}; name a file where you may write"
        raise click.ClickException(msg) from None
