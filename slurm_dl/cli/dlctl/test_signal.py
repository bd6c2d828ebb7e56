"""``dlctl test-signal``: its options, what it says and its exit status."""

from __future__ import annotations

import re
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from slurm_dl.cli.commandline import AS_JSON, CONFIG, FloatRange, print_json
from slurm_dl.config import load
from slurm_dl.daemon.assembly import slurm_of
from slurm_dl.model.contract import SIGNALS, Contract
from slurm_dl.model.errors import ClusterError, ConfigError
from slurm_dl.signal_test import slurm_trial, trial
from slurm_dl.signal_test.local_trial import LocalJob
from slurm_dl.signal_test.run_directory import RunFiles
from slurm_dl.signal_test.slurm_trial import SlurmJob
from slurm_dl.signal_test.trial import Job, Trial
from slurm_dl.signal_test.verdict import judge
from slurm_dl.slurm.tool_runner import Slurm
from slurm_dl.text import safe

_JOB = re.compile(r"[0-9]{1,10}(?:_[0-9]{1,10})?", re.ASCII)
_LONGEST = 1000


@click.command(
    "test-signal",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option("--local", is_flag=True, help="Run SCRIPT here, as processes, without Slurm.")
@click.option("--yes", is_flag=True, help="JOB is signalled and requeued: really do it.")
@click.option(
    "--after",
    type=FloatRange(0),
    metavar="S",
    help="Signal so long after the start, seconds; not given: once it trains.",
)
@click.option(
    "--within",
    type=FloatRange(0, min_open=True),
    default=600.0,
    show_default=True,
    metavar="S",
    help="Longest wait until it trains, in the queue too, seconds; for each of its two runs.",
)
@click.option(
    "--start",
    type=FloatRange(0, min_open=True),
    default=trial.START_S,
    show_default=True,
    metavar="S",
    help="With --local: seconds without a new library after which a program is past its start, "
    "and its handler must be there.",
)
@click.option(
    "--signal",
    "signal_name",
    type=click.Choice(SIGNALS),
    help="Checkpoint signal; else the job's, or USR1.",
)
@click.option(
    "--grace",
    type=FloatRange(0, 86400, min_open=True),
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
    type=click.Choice(["plain", "torchrun", "srun"]),
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
    help="A directory for checkpoints: one there is a file newer than all before the signal.",
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
    start: float,
    signal_name: str | None,
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

    SCRIPT is a Python script, a batch script or, with --local, a program on PATH. It is started as
    a short job of its own (or here, with --local), signalled as the daemon would once it trains,
    requeued, and watched until it trains again; then it is ended. JOB is one of yours that runs: it
    is signalled and requeued for real, which needs --yes. The exit status is 0 if all works, 1 if
    it does not or if that cannot be seen.

    \b
    Examples:
      dlctl test-signal --local train.py --epochs 2
      dlctl test-signal --local env SEED=1 python train.py
      dlctl test-signal --launcher torchrun --gpus 2 train.py
      dlctl test-signal --signal USR2 --requeued-by job job.sbatch
      dlctl test-signal --yes 1234
    """  # noqa: D301 - \b is click's mark
    is_job = _JOB.fullmatch(what) is not None and not Path(what).exists()
    refused = {
        "--local, --submit and arguments are for a SCRIPT; a JOB runs already": is_job
        and (local or arguments or submit),
        "this signals and requeues a job that runs, and ends it if its handler does not work: add "
        "--yes to do it": is_job and not yes,
        "--run-dir is for a JOB; a SCRIPT gets one of its own (--watch DIR for another)": run_dir
        and not is_job,
        "srun needs a real job: leave --local out": local and launcher == "srun",
        "--submit is for a job of Slurm: leave --local out": local and submit,
    }
    for msg, is_wrong in refused.items():
        if is_wrong:
            raise click.UsageError(msg)
    asked = {"signal": signal_name, "grace_s": grace, "requeued_by": requeued_by}
    given: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    watched = tuple(path.absolute() for path in watch)
    job: Job
    with _stops_wait() as sleep, ExitStack() as undo:
        if is_job:
            # Nothing to undo: what has been signalled or requeued goes on by itself.
            job = _running(slurm_of(load(config_path)), what, given, run_dir, watched)
        elif local:
            argv = trial.local_argv(Path(what), arguments, launcher=launcher, gpus=gpus)
            place = undo.enter_context(_place(None, keep=keep))
            job = LocalJob(argv, Contract(**given), place=place, watched=watched)
            undo.callback(job.end)
        else:
            slurm, contract = slurm_of(load(config_path)), Contract(**given)
            # Not in /tmp: the job's nodes must see it.
            place = undo.enter_context(_place(Path.cwd(), keep=keep))
            job_id = trial.submit(
                Path(what),
                arguments,
                contract=contract,
                place=place,
                gpus=gpus,
                launcher=launcher,
                more=submit,
            )
            files = RunFiles(place / "runs" / str(job_id), watched)
            job = SlurmJob(slurm, job_id, contract, files=files, log=place / "output.log")
            undo.callback(_cancel, job, job_id)
        facts = Trial(job, after, within, say=_say, sleep=sleep, start_s=start).run()
    verdict = judge(facts)
    if as_json:
        print_json(
            {
                "works": verdict.exit_status == 0,
                "sentences": verdict.sentences,
                "advice": [verdict.advice] if verdict.advice else [],
                "facts": asdict(facts),
            }
        )
    else:
        for sentence in verdict.sentences:
            click.echo(safe(sentence, _LONGEST))
        for line in facts.last_words.splitlines()[-3:]:
            click.echo(f"  log: {safe(line)}")
        if verdict.advice:
            click.echo(f"To do: {safe(verdict.advice, _LONGEST)}.")
    raise SystemExit(verdict.exit_status)


@contextmanager
def _stops_wait() -> Iterator[Callable[[float], None]]:
    """Ctrl-C, SIGTERM and SIGHUP take effect in the `time.sleep` that this gives, and at the end.

    So none comes between the start of a process and the note of its number, or while it is ended.

    Raises:
        KeyboardInterrupt: One of them came.
    """
    stops: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, lambda signum, _: stops.append(signum))

    def sleep(seconds: float) -> None:
        if stops:
            raise KeyboardInterrupt
        time.sleep(seconds)

    try:
        yield sleep
    finally:
        # Ctrl-C also ends the tool of Slurm that runs: that is no other failure.
        if stops:
            raise KeyboardInterrupt


@contextmanager
def _place(parent: Path | None, *, keep: bool) -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix="dlctl-test-signal-", dir=parent))
    try:
        yield place
    finally:
        if keep:
            _say(f"kept: {place}")
        else:
            shutil.rmtree(place, ignore_errors=True)


def _running(
    slurm: Slurm, name: str, given: dict[str, Any], run_dir: Path | None, watched: tuple[Path, ...]
) -> SlurmJob:
    job = slurm_trial.find(slurm, name)
    if job.contract is None and "signal" not in given:
        msg = (
            f"job {name} has no contract, so nobody would ever signal it: submit it with dlsubmit, "
            "or name the signal to try with --signal"
        )
        raise ConfigError(msg)
    directory = run_dir.absolute() if run_dir else slurm_trial.run_directory(job)
    contract = replace(job.contract or Contract(), **given)
    return SlurmJob(slurm, job.job_id, contract, files=RunFiles(directory, watched))


def _cancel(job: SlurmJob, job_id: int) -> None:
    try:
        job.cancel()
    except ClusterError as err:
        _say(f"job {job_id} could not be cancelled, see squeue --me: {err}")


def _say(text: str) -> None:
    click.echo(f"dlctl: {safe(text, _LONGEST)}", err=True)
