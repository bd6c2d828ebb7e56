"""A composed job on its way to sbatch, and what is printed of it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import click

from slurm_dl.cli.dlsubmit import verdict
from slurm_dl.json_types import JsonObject
from slurm_dl.model.errors import ClusterError
from slurm_dl.slurm.requeue_facts import job_words, lost, particular
from slurm_dl.slurm.running_config import config_values, partition_values
from slurm_dl.slurm.tool_runner import Slurm
from slurm_dl.submit import slurm_calls
from slurm_dl.submit.parameter_sweep import Sweep, parse
from slurm_dl.submit.past_submissions import remember
from slurm_dl.submit.sbatch_options import CommandLine
from slurm_dl.submit.shell_quoting import quote
from slurm_dl.text import safe

SLURM_S = 60.0
"""So long one of Slurm's commands may take, seconds."""

_LOOK_S = 2.0
"""So long the look at the job after its submission may take, seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A job for sbatch."""

    args: Sequence[str]  # Arguments of sbatch, without the program
    script: str  # What it reads from its standard input
    environ: Mapping[str, str]  # Its environment
    shown: JsonObject  # Further keys of ``--json``
    run_base: str  # Directory of the run directories
    sweep: Sweep | None  # The sweep of an array; None if there is none
    requeue: bool  # It is meant to be put back into the queue


def deliver(ctx: click.Context, slurm: Slurm, line: CommandLine, job: Delivery) -> int:
    """Submit *job*, or only print it with ``--dry-run``.

    Args:
        line: The command line, to be remembered.

    Returns:
        0; 1 if sbatch refused it, 3 if its deadline is not promised.
    """
    options = ctx.params
    argv = (slurm.path("sbatch"), *job.args)
    job_id = None
    text = f"# {quote(argv)}\n{job.script}"
    if not options["dry_run"]:
        script = job.script.encode("utf-8", "surrogateescape")
        answer = slurm.submit(*job.args, script=script, environ=dict(job.environ))
        click.echo(answer.text, nl=False, err=True)  # bytes, as they came
        job_id = answer.job_id
        if job_id is None:
            return 1
        tell([remember(job_id, line, job.run_base, job.sweep)], quiet=options["quiet"])
        text = f"{job_id}\n" if options["parsable"] else f"Submitted batch job {job_id}\n"
    if options["as_json"]:
        value = {"job_id": job_id, "script": job.script, **job.shown, "argv": list(argv)}
        text = json.dumps(value, indent=2) + "\n"
    if not options["quiet"] or options["dry_run"]:
        # In UTF-8 whatever the terminal's language is.
        click.echo(text.encode("utf-8", "surrogateescape"), nl=False)
    if job_id is not None and job.requeue and not options["quiet"]:
        _look_again(slurm, job_id, job.args)
    if job_id is not None and options["or_else"] == "cancel":
        return verdict.after(slurm, job_id)
    return 0


def sweep_of(
    typed: Sequence[str], slurm: Slurm, words: Sequence[str], script: str = ""
) -> Sweep | None:
    """The sweep of ``--sweep``, within what an array may have on this cluster.

    Raises:
        ConfigError: It is wrong.
    """
    return parse(typed, slurm_calls.read_most_tasks(slurm), words, script) if typed else None


def tell(notes: Iterable[str], *, quiet: bool) -> None:
    """Print those *notes* that are not empty."""
    for note in () if quiet else filter(None, notes):
        click.echo(f"dlsubmit: note: {note}", err=True)


def _look_again(slurm: Slurm, job_id: int, args: Sequence[str]) -> None:
    """Tell what keeps a job that was sent with *args* from starting again.

    Nothing is told if Slurm does not answer in time.
    """
    until_s = time.monotonic() + _LOOK_S

    def show(*what: str) -> str:
        return slurm.run("scontrol", *what, within_s=max(0.1, until_s - time.monotonic()))

    comments = [arg.removeprefix("--comment=") for arg in args if arg.startswith("--comment=")]
    try:
        job = job_words(show("show", "job", str(job_id)))
        values = config_values(show("show", "config"))
        there = partition_values(show("--all", "--oneliner", "show", "partition"))
        told = [lost(job, "".join(comments[-1:]), values)] if "JobId" in job else []
        job["Requeue"] = "1"
        for name in there.keys() & set(job.get("Partition", "").split(",")):
            facts = particular(values, there[name], job, now_s=time.time())
            told += [f"{fact.found}; {fact.advice}" for fact in facts if fact.level != "ok"]
    except ClusterError:
        return
    for text in filter(None, dict.fromkeys(told)):
        click.echo(f"dlsubmit: warning: {safe(text, 1000)}", err=True)
