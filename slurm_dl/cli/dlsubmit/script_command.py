"""``dlsubmit SCRIPT``: a batch script of the user's is shown, compared or submitted.

Also the look at a job that was submitted, from a script or not.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import click
from click.core import ParameterSource

from slurm_dl.cli.dlsubmit import verdict
from slurm_dl.cli.dlsubmit.delivery import SLURM_S, Delivery, deliver, sweep_of, tell
from slurm_dl.cli.dlsubmit.usual_options import UsualOptions
from slurm_dl.client_config import read_client_config
from slurm_dl.model.errors import ConfigError
from slurm_dl.slurm.tool_runner import Slurm
from slurm_dl.submit import job_environment, script_job, script_templates
from slurm_dl.submit.sbatch_options import CommandLine
from slurm_dl.submit.script_request import ScriptRequest
from slurm_dl.submit.shell_quoting import quote
from slurm_dl.submit.user_script import read_script
from slurm_dl.text import safe

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
        0; 1 if sbatch refused the job, 3 if its deadline is not promised.

    Raises:
        ConfigError: The script or an option is wrong.
    """
    params = ctx.params
    given = {
        name: value
        for name, value in params.items()
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE and name != "sweep"
    }
    dlrun = params["dlrun"] or dlrun
    if dlrun is None or not dlrun.startswith("/"):
        msg = "no dlrun beside dlsubmit; give its path on the compute nodes as --dlrun=PATH"
        raise ConfigError(msg)
    script, site = read_script(Path(line.script[0])), read_client_config()
    slurm = Slurm(environ=dict(os.environ), timeout_s=SLURM_S)
    request = ScriptRequest(
        script=script,
        script_args=line.script[1:],
        typed=given,
        usual=usual.own,
        usual_sbatch=usual.sbatch_beside(line.sbatch),
        sbatch=line.sbatch,
        environ=job_environment.of_a_script(os.environ),
        site=site,
        dlrun=dlrun,
        cwd=str(Path.cwd()),
        sweep=sweep_of(params["sweep"], slurm, line.script[1:], script.text),
    )
    by = request.given("by")
    verdict.check(params, by)
    job = script_job.compose(request, where)
    tell((*usual.notes, site.trouble, *job.notes), quiet=params["quiet"])
    if params["diff"]:
        argv = quote((slurm.path("sbatch"), *job.args))
        click.echo(f"# {argv}\n{job.diff()}".encode("utf-8", "surrogateescape"), nl=False)
        return 0
    if by is not None:
        status = verdict.before(params, verdict.of_script(request, job, slurm))
        if status is not None:
            return status
    wanted = Delivery(
        args=job.args,
        script=job.script,
        environ=job.environ,
        shown={"shape": None, "preemptible": job.contract is not None},
        run_base=request.run_base(),
        sweep=request.sweep,
        requeue=job.contract is not None,
    )
    return deliver(ctx, slurm, line, wanted)


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
