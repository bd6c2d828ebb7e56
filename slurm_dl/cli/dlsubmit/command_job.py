"""``dlsubmit SCRIPT``, and ``dlsubmit -- COMMAND``, for which a script is written."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import click
from click.core import ParameterSource

from slurm_dl.cli.dlsubmit import size_choice, verdict
from slurm_dl.cli.dlsubmit.verdict import preview
from slurm_dl.client_config import read_client_config
from slurm_dl.json_types import JsonObject
from slurm_dl.model.errors import ClusterError, ConfigError
from slurm_dl.slurm.controller import config_values, partition_values
from slurm_dl.slurm.requeue_facts import job_words, lost, particular
from slurm_dl.slurm.tool_runner import Slurm
from slurm_dl.submit import (
    batch_script,
    job_environment,
    job_extras,
    job_shape,
    script_job,
    script_templates,
    slurm_calls,
    submit_checks,
)
from slurm_dl.submit.host_resources import Wanted
from slurm_dl.submit.job_request import JobRequest, SubmitOptions, check, qos_of
from slurm_dl.submit.job_shape import HalfGpu, NodeRange
from slurm_dl.submit.option_values import clean_text
from slurm_dl.submit.parameter_sweep import Sweep, parse
from slurm_dl.submit.sbatch_options import REFUSED, SBATCH, CommandLine, Option
from slurm_dl.submit.shell_quoting import quote
from slurm_dl.submit.user_files import UserDefault, find_defaults, remember
from slurm_dl.submit.user_script import ScriptRequest, read_script
from slurm_dl.text import safe

SLURM_S = 60.0  # So long one of Slurm's commands may take, seconds
_LOOK_S = 2.0  # So long the look at the job after its submission may take, seconds


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


DEFAULTS = "slurm_dl.defaults"  # Where click's context has them


@dataclass(frozen=True, slots=True, kw_only=True)
class UsualOptions:
    """Options that hold where neither the line nor a script says otherwise."""

    own: dict[str, str | bool]  # dlsubmit's, by the names of its parameters
    sbatch: tuple[UserDefault, ...]  # sbatch's
    found: Mapping[str, UserDefault]  # All of them
    notes: tuple[str, ...]  # On files that do not count

    def sbatch_beside(self, given: Sequence[str]) -> list[str]:
        """Options of sbatch as it takes them, without those among *given*."""
        names = {option.removeprefix("--").partition("=")[0] for option in given}
        options = [default for default in self.sbatch if default.name not in names]
        return [
            f"--{default.name}" if default.value is True else f"--{default.name}={default.value}"
            for default in options
            if default.value is not False
        ]


def find(own: Mapping[str, Option]) -> UsualOptions:
    """Defaults in the user's files, for the options *own* of dlsubmit by each of their spellings.

    Raises:
        ConfigError: A file of the user's is wrong.
    """
    settable = {field.name for field in fields(SubmitOptions)}
    ours = {
        spelling.removeprefix("--"): parameter
        for spelling, option in own.items()
        if spelling.startswith("--") and (parameter := option.name.replace("-", "_")) in settable
    }
    theirs = {option.name for option in SBATCH.values()} - REFUSED.keys() - ours.keys()
    found, notes = find_defaults(os.environ, Path.cwd(), {*ours, *theirs})
    return UsualOptions(
        own={ours[name]: default.value for name, default in found.items() if name in ours},
        sbatch=tuple(default for name, default in found.items() if name in theirs),
        found=found,
        notes=tuple(notes),
    )


def show(usual: UsualOptions, *, as_json: bool) -> int:
    """Print each default with its file."""
    rows = sorted((d.name, d.value, str(d.path)) for d in usual.found.values())
    if as_json:
        value = {name: {"value": said, "path": path} for name, said, path in rows}
        click.echo(json.dumps({"defaults": value, "notes": list(usual.notes)}, indent=2))
        return 0
    for name, said, path in rows:
        text = str(said).lower() if isinstance(said, bool) else safe(said)
        click.echo(f"{name}: {text}  ({safe(path)})")
    if not rows:
        click.echo("no defaults: write them into ~/.config/slurm_dl/config.yaml or .slurm_dl.yaml")
    tell(usual.notes, quiet=False)
    return 0


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
    by = given.get("by", usual.own.get("by"))
    sizes = size_choice.sizes_of(given, by)
    sweep = sweep_of(params["sweep"], slurm, line.script[1:], script.text)
    requests = [
        ScriptRequest(
            script=script,
            script_args=line.script[1:],
            typed={**given, **size},
            usual=usual.own,
            usual_sbatch=usual.sbatch_beside(line.sbatch),
            sbatch=line.sbatch,
            environ=job_environment.of_a_script(os.environ),
            site=site,
            dlrun=dlrun,
            cwd=str(Path.cwd()),
            sweep=sweep,
        )
        for size in sizes
    ]
    jobs = [script_job.compose(request, where) for request in requests]
    at, status = 0, None
    if by is not None and (len(sizes) > 1 or not params["diff"]):
        questions = [verdict.of_script(*one, slurm) for one in zip(requests, jobs, strict=True)]
        at, status = size_choice.choose(params, sizes, questions)
    request, job = requests[at], jobs[at]
    tell((*usual.notes, site.trouble, *job.notes), quiet=params["quiet"])
    if status is not None:
        return status
    if params["diff"]:
        argv = quote((slurm.path("sbatch"), *job.args))
        click.echo(f"# {argv}\n{job.diff()}".encode("utf-8", "surrogateescape"), nl=False)
        return 0
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
    cleaned = job_environment.clean(environ, keep_sbatch=options["keep_sbatch_env"])
    line = replace(whole, sbatch=(*defaults.sbatch_beside(whole.sbatch), *whole.sbatch))
    if typed.partition is None:
        # Kept only on request; the shape has to be looked for where sbatch will put the job.
        typed = replace(typed, partition=cleaned.environ.get("SBATCH_PARTITION"))
    at_site = read_client_config(environ)
    slurm = Slurm(environ=environ, timeout_s=SLURM_S)
    sizes = size_choice.sizes_of(options, typed.by)
    sweep = sweep_of(options["sweep"], slurm, line.command)
    all_typed = [replace(typed, **size) for size in sizes]  # type: ignore[arg-type]
    requests = [
        check(
            one,
            sbatch=_with_kept_qos(line.sbatch, cleaned),
            command=line.command,
            cwd=str(Path.cwd()),
            dlrun=dlrun,
            qos=at_site.qos or None,
            max_grace_s=at_site.max_grace_s,
            native=at_site.native,
            sweep=sweep,
            environ=environ,
        )
        for one in all_typed
    ]
    partitions = slurm_calls.read_partitions(slurm).select(requests[0].partitions)
    shapes = [choose_shape(one, partitions) for one in requests]
    questions = [
        verdict.of_command(one, shape, partitions, no_preempt=typed.no_preempt)
        for one, shape in zip(requests, shapes, strict=True)
        if typed.by is not None
    ]
    at, status = size_choice.choose(options, sizes, questions) if len(sizes) > 1 else (0, None)
    if status is not None:
        return status
    typed, request, chosen = all_typed[at], requests[at], shapes[at]
    request = job_extras.lay_out(request, chosen, partitions, cleaned.environ)
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
    if len(sizes) == 1 and questions:
        status = size_choice.choose(options, sizes, questions)[1]
    if status is not None:
        return status
    if not (questions or request.hints.parts) and verdict.is_told(options):
        tell((preview(request, chosen, partitions, no_preempt=typed.no_preempt),), quiet=quiet)
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
    if request.hints.parts:
        first, *more = (
            job_shape.choose(partitions, gpus=gpus, gpu_type=kind, nodes=None)
            for kind, gpus in request.hints.parts
        )
        return replace(first, more=tuple(more))
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
