"""``dlctl test-signal``: its options, what it says and its exit status."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import click

from slurm_dl.cli.commandline import EXIT_FAILED, print_json
from slurm_dl.cli.shared_options import AS_JSON, CONFIG
from slurm_dl.config import load
from slurm_dl.daemon.assembly import slurm_of
from slurm_dl.model.contract import SIGNALS, Contract
from slurm_dl.model.errors import ClusterError, ConfigError
from slurm_dl.signal_test import slurm_trial, trial_commands
from slurm_dl.signal_test.interrupts import stoppable, stops_are_held
from slurm_dl.signal_test.local_trial import LocalJob
from slurm_dl.signal_test.run_directory import RunFiles
from slurm_dl.signal_test.slurm_trial import SlurmJob
from slurm_dl.signal_test.trial import Job, Limits, run_trial
from slurm_dl.signal_test.verdict import judge
from slurm_dl.submit.job_comment import comment
from slurm_dl.text import safe

LAUNCHERS = ("plain", "torchrun", "srun")
_JOB = re.compile(r"[0-9]{1,10}(?:_[0-9]{1,10})?", re.ASCII)
_LONGEST = 1000


class TrialOptions(NamedTuple):
    """The options that say what is tried, as typed; None where nothing was."""

    contract: Contract
    given: tuple[str | None, float | None, str | None]
    gpus: str
    launcher: str
    submit: tuple[str, ...]
    run_dir: Path | None
    watch: tuple[Path, ...]
    keep: bool


@click.command(
    "test-signal",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option("--local", is_flag=True, help="Run SCRIPT here, as processes, without Slurm.")
@click.option("--yes", is_flag=True, help="JOB is signalled and requeued: really do it.")
@click.option(
    "--after",
    type=click.FloatRange(0),
    metavar="S",
    help="Signal so long after the start, seconds; not given: once it trains.",
)
@click.option(
    "--within",
    type=click.FloatRange(0, min_open=True),
    default=600.0,
    show_default=True,
    metavar="S",
    help="Longest wait until it trains, in the queue too, seconds; for each of its two runs.",
)
@click.option(
    "--signal", type=click.Choice(SIGNALS), help="Checkpoint signal; else the job's, or USR1."
)
@click.option(
    "--grace",
    type=click.FloatRange(0, 86400, min_open=True),
    metavar="S",
    help="Longest time that a checkpoint takes, seconds; else the job's, or 120.",
)
@click.option(
    "--requeued-by",
    type=click.Choice(["daemon", "job"]),
    help="Who puts it back; job for submitit and Lightning's own handler.",
)
@click.option("--gpus", "-G", default="1", show_default=True, metavar="N", help="GPUs for SCRIPT.")
@click.option(
    "--launcher",
    type=click.Choice(LAUNCHERS),
    default="plain",
    show_default=True,
    help="What starts a Python SCRIPT, as in dlsubmit.",
)
@click.option(
    "--submit",
    multiple=True,
    metavar="OPTION",
    help="A further option of dlsubmit (or of sbatch, for a batch script): --submit=--time=10.",
)
@click.option(
    "--run-dir",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="JOB's run directory, if it is not found by itself.",
)
@click.option(
    "--watch",
    type=click.Path(path_type=Path, file_okay=False),
    multiple=True,
    metavar="DIR",
    help="Another directory that checkpoints are written to.",
)
@click.option("--keep", is_flag=True, help="Keep what the trial of SCRIPT wrote, and say where.")
@CONFIG
@AS_JSON
@click.argument("what", metavar="JOB|SCRIPT")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def test_signal(
    *,
    local: bool,
    yes: bool,
    after: float | None,
    within: float,
    signal: str | None,
    grace: float | None,
    requeued_by: str | None,
    gpus: str,
    launcher: str,
    submit: tuple[str, ...],
    run_dir: Path | None,
    watch: tuple[Path, ...],
    keep: bool,
    config_path: Path | None,
    as_json: bool,
    what: str,
    arguments: tuple[str, ...],
) -> None:
    """Show that a job saves, stops and goes on when it is preempted, before it is needed.

    SCRIPT is a Python script, or a batch script. It is started as a short job of its own (or here,
    with --local), signalled as the daemon would once it trains, requeued, and watched until it
    trains again; then it is ended. JOB is one that runs: it is signalled and requeued for real,
    which needs --yes and the right to do so. The exit status is 0 if all works, 1 if it does not.

    \b
    Examples:
      dlctl test-signal --local train.py --epochs 2
      dlctl test-signal --launcher torchrun --gpus 2 train.py
      dlctl test-signal --signal USR2 --requeued-by job job.sbatch
      dlctl test-signal --yes 1234
    """  # noqa: D301 - \b is click's mark
    plain = Contract()
    asked = TrialOptions(
        contract=Contract(
            signal=signal or plain.signal,
            grace_s=grace or plain.grace_s,
            requeued_by="job" if requeued_by == "job" else "daemon",
        ),
        given=(signal, grace, requeued_by),
        gpus=gpus,
        launcher=launcher,
        submit=submit,
        run_dir=run_dir,
        watch=tuple(path.absolute() for path in watch),
        keep=keep,
    )
    is_job = _JOB.fullmatch(what) is not None and not Path(what).exists()
    _check(asked, is_job=is_job, local=local, yes=yes, arguments=arguments)

    def say(text: str) -> None:
        click.echo(f"dlctl: {text}", err=True)

    if is_job:
        place = _running(asked, what, config_path)
    elif local:
        place = _local(asked, Path(what), arguments)
    else:
        place = _submitted(asked, Path(what), arguments, config_path)
    with stops_are_held(), place as job, stoppable():
        facts = run_trial(job, Limits(after_s=after, within_s=within), say)
    verdict = judge(facts)
    if as_json:
        print_json(
            {
                "works": verdict.works,
                "sentences": verdict.sentences,
                "advice": verdict.advice,
                "facts": asdict(facts),
            }
        )
    else:
        for sentence in verdict.sentences:
            click.echo(safe(sentence, _LONGEST))
        for line in facts.last_words.splitlines()[-3:]:
            click.echo(f"  log: {safe(line)}")
        for remedy in verdict.advice:
            click.echo(f"To do: {safe(remedy, _LONGEST)}.")
        click.echo("It works." if verdict.works else "It does not work.")
    if not verdict.works:
        raise SystemExit(EXIT_FAILED)


def _check(
    asked: TrialOptions, *, is_job: bool, local: bool, yes: bool, arguments: tuple[str, ...]
) -> None:
    """Refuse what does not go together."""
    if is_job and (local or arguments or asked.submit):
        msg = "--local, --submit and arguments are for a SCRIPT; a JOB runs already"
        raise click.UsageError(msg)
    if is_job and not yes:
        msg = (
            "this signals and requeues a job that runs, and ends it if its handler does not work: "
            "add --yes to do it"
        )
        raise click.UsageError(msg)
    if not is_job and asked.run_dir is not None:
        msg = "--run-dir is for a JOB; a SCRIPT gets one of its own (--watch DIR for another)"
        raise click.UsageError(msg)
    if local and asked.launcher == "srun":
        msg = "srun needs a real job: leave --local out"
        raise click.UsageError(msg)
    if local and asked.submit:
        msg = "--submit is for a job of Slurm: leave --local out"
        raise click.UsageError(msg)


@contextmanager
def _place(parent: str | None, *, keep: bool) -> Iterator[Path]:
    """A new directory for one trial."""
    place = Path(tempfile.mkdtemp(prefix="dlctl-test-signal-", dir=parent))
    try:
        yield place
    finally:
        if keep:
            click.echo(f"dlctl: kept: {safe(str(place))}", err=True)
        else:
            shutil.rmtree(place, ignore_errors=True)


@contextmanager
def _local(asked: TrialOptions, script: Path, arguments: tuple[str, ...]) -> Iterator[Job]:
    argv = trial_commands.local_argv(script, arguments, launcher=asked.launcher, gpus=asked.gpus)
    with _place(None, keep=asked.keep) as place:
        job = LocalJob(
            argv,
            asked.contract,
            comment=comment(None, contract=asked.contract, model=None),
            place=place,
            more=asked.watch,
            environ=os.environ,
        )
        try:
            yield job
        finally:
            job.end()


@contextmanager
def _submitted(
    asked: TrialOptions, script: Path, arguments: tuple[str, ...], config_path: Path | None
) -> Iterator[Job]:
    slurm = slurm_of(load(config_path))
    # Not in /tmp: the job's nodes must see it.
    with _place(str(Path.cwd()), keep=asked.keep) as place:
        job_id = trial_commands.submit(
            script,
            arguments,
            contract=asked.contract,
            place=place,
            gpus=asked.gpus,
            launcher=asked.launcher,
            more=asked.submit,
        )
        log = place / "output.log"
        files = RunFiles(place / "runs" / str(job_id), asked.watch)
        job = SlurmJob(slurm, job_id, asked.contract, files=files, log=log)
        try:
            yield job
        finally:
            try:
                job.cancel()
            except ClusterError as err:
                note = f"job {job_id} could not be cancelled, see squeue --me: {err}"
                click.echo(f"dlctl: {safe(note, _LONGEST)}", err=True)


@contextmanager
def _running(asked: TrialOptions, name: str, config_path: Path | None) -> Iterator[Job]:
    slurm = slurm_of(load(config_path))
    seen = slurm_trial.find(slurm, name)
    contract = seen.claim.contract
    if contract is None and asked.given[0] is None:
        msg = (
            f"job {name} has no contract, so nobody would ever signal it: submit it with dlsubmit, "
            "or name the signal to try with --signal"
        )
        raise ConfigError(msg)
    base = contract or Contract()
    signal, grace_s, requeued_by = asked.given
    agreed = Contract(
        signal=signal or base.signal,
        target=base.target,
        grace_s=grace_s or base.grace_s,
        requeued_by=base.requeued_by if requeued_by is None else asked.contract.requeued_by,
    )
    directory = asked.run_dir.absolute() if asked.run_dir else slurm_trial.run_directory(seen)
    files = RunFiles(directory, asked.watch, owner=seen.uid)
    yield slurm_trial.SlurmJob(slurm, seen.job_id, agreed, files=files)
