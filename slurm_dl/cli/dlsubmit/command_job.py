"""``dlsubmit -- COMMAND``: nodes, CPUs and memory are chosen, and a script is written for it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from slurm_dl.cli.dlsubmit import verdict
from slurm_dl.cli.dlsubmit.delivery import SLURM_S, Delivery, deliver, sweep_of, tell
from slurm_dl.cli.dlsubmit.preview import preview
from slurm_dl.cli.dlsubmit.script_command import script_notes
from slurm_dl.cli.dlsubmit.usual_options import DEFAULTS, UsualOptions
from slurm_dl.client_config import read_client_config
from slurm_dl.json_types import JsonObject
from slurm_dl.slurm.tool_runner import Slurm
from slurm_dl.submit import (
    batch_script,
    job_environment,
    job_extras,
    job_shape,
    job_sizes,
    script_templates,
    slurm_calls,
    submit_checks,
)
from slurm_dl.submit.host_resources import Wanted
from slurm_dl.submit.job_request import JobRequest, SubmitOptions, check, qos_of
from slurm_dl.submit.job_shape import HalfGpu, NodeRange
from slurm_dl.submit.option_values import clean_text
from slurm_dl.submit.sbatch_options import CommandLine


def submit_command(
    ctx: click.Context,
    typed: SubmitOptions,
    whole: CommandLine,
    where: Sequence[script_templates.TemplateDirectory],
    dlrun: str | None,
) -> int:
    """Write the script of a command and do with it what the command line says.

    Returns:
        0; 1 if sbatch refused the job, 3 if its deadline is not promised.

    Raises:
        ConfigError: The command or an option is wrong.
    """
    environ = dict(os.environ)
    defaults: UsualOptions = ctx.meta[DEFAULTS]
    options = ctx.params
    dry_run, quiet = options["dry_run"], options["quiet"]
    verdict.check(options, typed.by)
    cleaned = job_environment.clean(environ, keep_sbatch=options["keep_sbatch_env"])
    line = replace(whole, sbatch=(*defaults.sbatch_beside(whole.sbatch), *whole.sbatch))
    if typed.partition is None:
        # Kept only on request; the shape has to be looked for where sbatch will put the job.
        typed = replace(typed, partition=cleaned.environ.get("SBATCH_PARTITION"))
    at_site = read_client_config(environ)
    slurm = Slurm(environ=environ, timeout_s=SLURM_S)
    request = check(
        typed,
        sbatch=_with_kept_qos(line.sbatch, cleaned),
        command=line.command,
        cwd=str(Path.cwd()),
        dlrun=dlrun,
        qos=at_site.qos or None,
        max_grace_s=at_site.max_grace_s,
        native=at_site.native,
        sweep=sweep_of(options["sweep"], slurm, line.command),
        environ=environ,
    )
    partitions = slurm_calls.read_partitions(slurm).select(request.partitions)
    chosen = choose_shape(request, partitions)
    request = job_sizes.lay_out(request, chosen, partitions, cleaned.environ)
    profile, model_note = None, ""
    if request.model is not None:
        profile, model_note = job_extras.find_profile(request.model, Path(at_site.profile_dir))
    found = job_extras.find(
        request,
        chosen,
        job_extras.SiteFacts(
            partitions=partitions,
            site=at_site,
            profile=profile,
            kept=frozenset(cleaned.environ),
            slurm=slurm,
        ),
    )
    missing = submit_checks.check(
        request,
        chosen,
        partitions,
        found.extras.directives,
        cwd=Path.cwd(),
        path=environ.get("PATH"),
        level="none" if options["no_check"] else "note" if dry_run else "error",
    )
    submission = batch_script.compose(request, chosen, where, found.extras)
    if not quiet:
        of_qos = submit_checks.qos_notes(request, at_site, typed)
        of_grace = submit_checks.grace_note(request, typed)
        of_job = submit_checks.notes_on(request, chosen, cleaned)
        of_script = script_notes(line.command, Path.cwd())
        told = (*defaults.notes, *of_qos, of_grace, *of_job, model_note, *found.notes, *missing)
        tell((*told, of_script), quiet=quiet)
    if typed.by is not None:
        question = verdict.of_command(request, chosen, partitions, no_preempt=typed.no_preempt)
        if (status := verdict.before(options, question)) is not None:
            return status
    elif not quiet:
        previews = options["previews"]
        asks = sys.stderr.isatty() if previews is None else previews
        asks = asks and not (options["parsable"] or options["as_json"])
        if asks and (start := preview(request, chosen, partitions, no_preempt=typed.no_preempt)):
            click.echo(f"dlsubmit: note: {start}", err=True)
    job = Delivery(
        args=submission.args,
        script=submission.script,
        environ=cleaned.environ,
        shown={"shape": _shown(submission)},
        run_base=request.run_base,
        sweep=request.sweep,
        requeue=request.requeue,
    )
    return deliver(ctx, slurm, whole, job)


def choose_shape(request: JobRequest, partitions: Sequence[job_shape.GpuPartition]) -> Wanted:
    """The shape of the job in one of *partitions*: even, over a range of nodes, or half a GPU.

    Raises:
        ConfigError: It has none there.
    """
    if request.share:
        return job_shape.choose_half(partitions, gpu_type=request.gpu_type)
    if request.most_nodes is not None:
        return job_shape.choose_range(
            partitions,
            gpus=request.gpus,
            gpu_type=request.gpu_type,
            least=request.nodes or 1,
            most=request.most_nodes,
        )
    return job_shape.choose(
        partitions, gpus=request.gpus, gpu_type=request.gpu_type, nodes=request.nodes
    )


def _shown(submission: batch_script.Submission) -> JsonObject:
    wanted = submission.shape
    ranges = isinstance(wanted, NodeRange)
    return {
        "nodes": wanted.nodes,
        "most_nodes": wanted.most_nodes if isinstance(wanted, NodeRange) else wanted.nodes,
        "gpus_per_node": None if ranges else wanted.gpus // wanted.nodes,
        "gpus": wanted.gpus,
        "gpu_type": wanted.gpu_type,
        "shared": isinstance(wanted, HalfGpu),
        "sizes": list(submission.sizes),
    }


def _with_kept_qos(sbatch: Sequence[str], cleaned: job_environment.Cleaned) -> tuple[str, ...]:
    """Sbatch's options with the QOS from the environment, where that was kept and none is given."""
    kept = cleaned.environ.get("SBATCH_QOS")
    if kept is None or qos_of(sbatch) is not None:
        return tuple(sbatch)
    return (*sbatch, f"--qos={clean_text(kept, 'SBATCH_QOS')}")
