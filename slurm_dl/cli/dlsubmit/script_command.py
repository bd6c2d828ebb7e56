"""``dlsubmit SCRIPT``: a batch script of the user's is shown, compared or submitted.

Also the look at a job that was submitted, from a script or not.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

import click
from click.core import ParameterSource

from slurm_dl.cli.dlsubmit.usual_options import UsualOptions
from slurm_dl.client_config import read_client_config
from slurm_dl.model.errors import ClusterError, ConfigError
from slurm_dl.slurm.requeue_facts import job_words, lost, particular
from slurm_dl.slurm.running_config import config_values, partition_values
from slurm_dl.slurm.tool_runner import Slurm
from slurm_dl.submit import job_environment, script_job, script_templates
from slurm_dl.submit.sbatch_options import CommandLine
from slurm_dl.submit.shell_quoting import quote
from slurm_dl.submit.user_script import read_script
from slurm_dl.text import safe

_SLURM_S = 60.0
_LOOK_S = 2.0
_MOST_NAMED = 3


def submit_script(
    ctx: click.Context,
    line: CommandLine,
    usual: UsualOptions,
    where: Sequence[script_templates.TemplateDirectory],
    dlrun: str | None,
) -> int:
    """Do with a script what the command line says.

    Returns:
        0, or 1 if sbatch refused the job.

    Raises:
        ConfigError: The script or an option is wrong.
    """
    params = ctx.params
    given = {
        name: value
        for name, value in params.items()
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    dlrun = params["dlrun"] or dlrun
    if dlrun is None or not dlrun.startswith("/"):
        msg = "no dlrun beside dlsubmit; give its path on the compute nodes as --dlrun=PATH"
        raise ConfigError(msg)
    site = read_client_config()
    request = script_job.ScriptRequest(
        script=read_script(Path(line.script[0])),
        script_args=line.script[1:],
        typed=given,
        usual=usual.own,
        usual_sbatch=usual.sbatch_beside(line.sbatch),
        sbatch=line.sbatch,
        environ=job_environment.of_a_script(os.environ),
        site=site,
        dlrun=dlrun,
        cwd=str(Path.cwd()),
    )
    job = script_job.compose(request, where)
    slurm = Slurm(environ=dict(os.environ), timeout_s=_SLURM_S)
    argv = (slurm.path("sbatch"), *job.args)
    if not params["quiet"]:
        for note in filter(None, (*usual.notes, site.trouble, *job.notes)):
            click.echo(f"dlsubmit: note: {note}", err=True)
    if params["diff"]:
        click.echo(f"# {quote(argv)}\n{job.diff()}".encode("utf-8", "surrogateescape"), nl=False)
        return 0
    job_id = None
    text = f"# {quote(argv)}\n{job.script}"
    if not params["dry_run"]:
        script = job.script.encode("utf-8", "surrogateescape")
        answer = slurm.submit(*job.args, script=script, environ=job.environ)
        click.echo(answer.text, nl=False, err=True)  # bytes, as they came
        job_id = answer.job_id
        if job_id is None:
            return 1
        text = f"{job_id}\n" if params["parsable"] else f"Submitted batch job {job_id}\n"
    if params["as_json"]:
        value = {"job_id": job_id, "script": job.script, "shape": None, "argv": list(argv)}
        text = json.dumps(value | {"preemptible": job.contract is not None}, indent=2) + "\n"
    if not params["quiet"] or params["dry_run"]:
        click.echo(text.encode("utf-8", "surrogateescape"), nl=False)
    if job_id is not None and not params["quiet"]:
        look_again(slurm, job_id, job.args, requeue=job.contract is not None)
    return 0


def look_again(slurm: Slurm, job_id: int, args: Sequence[str], *, requeue: bool) -> None:
    """Tell what keeps a job that was sent with *args* from starting again, if *requeue* is meant.

    Nothing is told if Slurm does not answer in time.
    """
    if not requeue:
        return
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


def script_notes(command: Sequence[str], cwd: Path) -> str:
    """That a COMMAND is a batch script, whose ``#SBATCH`` lines have no effect; else empty."""
    try:
        script = read_script(cwd / command[0])
    except ConfigError:
        return ""
    lines = script.sbatch_lines({})
    if not lines:
        return ""
    first = ", ".join(line.removeprefix("#SBATCH").strip() for line in lines[:_MOST_NAMED])
    more = " ..." if len(lines) > _MOST_NAMED else ""
    name = safe(command[0])
    return (
        f"the #SBATCH lines of {name} have no effect in a COMMAND ({safe(first)}{more});"
        f" dlsubmit {name} reads them"
    )
