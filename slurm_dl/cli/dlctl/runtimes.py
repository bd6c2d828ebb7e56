"""``dlctl runtimes``: whether a site's history tells how long jobs will run."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Sequence
from pathlib import Path

import click

from slurm_dl.cli.commandline import AS_JSON, CONFIG, EXIT_FAILED, FloatRange, print_json
from slurm_dl.config import load
from slurm_dl.config.loading import DEFAULT_PATH, ENVIRONMENT
from slurm_dl.daemon.enrich import learn_on_one_core
from slurm_dl.estimates.backtest import WEEK_S, HeldOut, PredictorScore, held_out
from slurm_dl.model.completed_jobs import Past
from slurm_dl.model.errors import ConfigError
from slurm_dl.report.terminal_table import Column, show
from slurm_dl.slurm.accounting.past_jobs import PastReader
from slurm_dl.slurm.tool_runner import Slurm
from slurm_dl.traces.slurm.dumps import read_past_dump

LEAST_TESTED = 20  # Of fewer jobs nothing can be said
TIMEOUT_S = 300.0  # For one window of accounting; nobody waits for it but the one who asked
_TRAINED_PART = 0.8
_LAW = "mean of all"


@click.group()
def runtimes() -> None:
    """Say whether the site's history tells how long jobs will run.

    \b
    Example:
      dlctl runtimes check --days 90
    """  # noqa: D301 - \b is click's mark


@runtimes.command()
@click.option(
    "--from-sacct",
    "dump",
    metavar="DUMP",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A file that sacct wrote; not given: accounting is asked.",
)
@click.option(
    "--days",
    type=click.IntRange(1, 3650),
    default=90,
    show_default=True,
    help="How far back accounting is asked.",
)
@click.option(
    "--test-weeks",
    type=FloatRange(0, min_open=True),
    metavar="WEEKS",
    help="Predict the jobs of the last so many weeks; not given: the last fifth of all jobs.",
)
@click.option(
    "--least",
    type=FloatRange(-1, 1),
    default=0.1,
    show_default=True,
    help="Rank correlation below which history is of no use.",
)
@CONFIG
@AS_JSON
def check(
    *,
    dump: Path | None,
    days: int,
    test_weeks: float | None,
    least: float,
    config_path: Path | None,
    as_json: bool,
) -> None:
    """Predict later jobs from those that were over when they were submitted.

    For each way to predict: the jobs it said something of, its relative error, and its rank
    correlation with the truth: 1 is the true order of run times, 0 is chance. Policies qssf and
    tagged order jobs by such predictions. 'learned' and nine tenths of 'qssf' need scikit-learn.

    Ends with status 1 if no way reaches --least, 2 if there are too few jobs to tell.

    \b
    Examples:
      dlctl runtimes check --days 90
      f=JobID,User,Account,Submit,Start,End,State,ElapsedRaw,ReqTRES,AllocTRES
      sacct -aPX --duplicates -S 2026-01-01 --format=$f,Comment,JobName > history.txt
      dlctl runtimes check --from-sacct history.txt --test-weeks 2 --json
    """  # noqa: D301 - \b is click's mark
    learn_on_one_core()
    past = _live(days, config_path) if dump is None else _from_dump(dump)
    if test_weeks is None:
        submitted = sorted(past.submit_s.tolist())
        from_s = submitted[int(_TRAINED_PART * len(submitted))] if submitted else 0.0
    else:
        from_s = float(past.submit_s.max(initial=0.0)) - test_weeks * WEEK_S
    found = held_out(past, from_s=from_s)
    predicted = max(score.jobs for score in found.scores)
    if min(predicted, found.known) < LEAST_TESTED:
        msg = (
            f"too few jobs to tell: {found.known:,} before, {found.jobs:,} after; "
            f"{LEAST_TESTED} of each are needed"
        )
        raise ConfigError(msg)
    best = best_of(found)
    if as_json:
        print_json(_as_object(found, best))
    else:
        _print(found, best)
    if best is None or best.rank_correlation < least:
        raise SystemExit(EXIT_FAILED)


def best_of(found: HeldOut) -> PredictorScore | None:
    """The way with the highest rank correlation, apart from the one that knows no job."""
    able = [
        score
        for score in found.scores
        if score.predictor != _LAW and not math.isnan(score.rank_correlation)
    ]
    return max(able, key=lambda score: score.rank_correlation, default=None)


def _from_dump(path: Path) -> Past:
    dump = read_past_dump(path)
    if dump.left_out:
        click.echo(f"{dump.left_out:,} lines could not be read and were left out", err=True)
    if not dump.has_names:
        click.echo("no column JobName: jobs are told apart by user and GPUs alone", err=True)
    return dump.past


def _live(days: int, config_path: Path | None) -> Past:
    reader = PastReader(slurm_of(config_path), days=days)
    past = reader.read()
    if reader.unreadable:
        click.echo(f"{reader.unreadable:,} records could not be read and were left out", err=True)
    return past


def slurm_of(config_path: Path | None) -> Slurm:
    """The commands of the configured cluster; without a configuration, those that are found."""
    conf, bin_dir = os.environ.get("SLURM_CONF"), ""
    if config_path or os.environ.get(ENVIRONMENT) or os.access(DEFAULT_PATH, os.R_OK):
        section = load(config_path).cluster
        conf, bin_dir = section.slurm_conf, section.bin_dir
    return Slurm(
        slurm_conf=Path(conf) if conf else None,
        bin_dir=Path(bin_dir) if bin_dir else None,
        timeout_s=TIMEOUT_S,
    )


def _as_object(found: HeldOut, best: PredictorScore | None) -> dict[str, object]:
    scores, on_hits = (
        [
            {
                key: None if isinstance(value, float) and math.isnan(value) else value
                for key, value in dataclasses.asdict(score).items()
            }
            for score in of
        ]
        for of in (found.scores, found.on_script_hits)
    )
    return {
        "jobs": found.jobs,
        "known": found.known,
        "tag_hits": found.tag_hits,
        "best": None if best is None else best.predictor,
        "predictors": scores,
        "script_hits": found.script_hits,
        "predictors_on_script_hits": on_hits,
    }


def _print(found: HeldOut, best: PredictorScore | None) -> None:
    click.echo(
        f"{found.jobs:,} later jobs predicted; {found.known:,} were over before the first of them; "
        f"{found.tag_hits:.0%} had a tag that was seen before, {found.script_hits:.0%} one of "
        "script and arguments"
    )
    _table(found.scores)
    if found.script_hits:
        click.echo("of those with a known tag of script and arguments:")
        _table(found.on_script_hits)
    if best is not None:
        click.echo(f"best: {best.predictor}")


def _table(scores: Sequence[PredictorScore]) -> None:
    columns = (
        Column(title="PREDICTOR"),
        Column(title="JOBS", right=True),
        Column(title="MEDIAN ERROR", short="MEDIAN", right=True),
        Column(title="P90 ERROR", short="P90", right=True),
        Column(title="RANK CORRELATION", short="RANK", right=True),
    )
    show(
        columns,
        [
            [
                score.predictor,
                f"{score.jobs:,}",
                _figure(score.median_error, ".0%"),
                _figure(score.p90_error, ".0%"),
                _figure(score.rank_correlation, ".2f"),
            ]
            for score in scores
        ],
    )


def _figure(value: float, form: str) -> str:
    return "-" if math.isnan(value) else format(value, form)
