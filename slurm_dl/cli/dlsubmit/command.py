"""The command dlsubmit: its options, its help, what it prints and how it ends."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path

import click

import slurm_dl
from slurm_dl.cli import completion
from slurm_dl.cli.by_ssh import VIA, become_ssh
from slurm_dl.cli.dlqueue.when import before_submitting
from slurm_dl.cli.dlsubmit import command_job
from slurm_dl.cli.dlsubmit.command_job import submit_command, submit_script
from slurm_dl.model.errors import ClusterError, ConfigError, ElsewhereError, SlurmDlError
from slurm_dl.slurm.tool_runner import Slurm
from slurm_dl.submit import (
    script_templates,
)
from slurm_dl.submit.data_flag import say_ready
from slurm_dl.submit.hints import HINTS
from slurm_dl.submit.job_request import (
    DEFAULT_GRACE,
    DEFAULT_RUN_DIR,
    DEFAULT_SIGNAL,
    SubmitOptions,
)
from slurm_dl.submit.launch_command import LAUNCHERS
from slurm_dl.submit.sbatch_options import CommandLine, Option, Takes, divide
from slurm_dl.submit.user_files import again

_LINE = "slurm_dl.command_line"
_EPILOG = """
\b
Examples:
  dlsubmit --gpus 8 -- python train.py --epochs 90
  dlsubmit --gpus 16 --gpu-type a100 --launcher torchrun --time 2-0 -- train.py
  dlsubmit --gpus 4 --launcher srun --array 0-9%2 -A vision -c 8 -- python sweep.py
  dlsubmit --gpus 8 --nodes 1-4 --launcher torchrun -- train.py
  dlsubmit --gpus 2 --sizes 1,2,4,2x4 --launcher torchrun -- train.py
  dlsubmit --gpus 1 --sweep lr=1e-3,1e-4 --sweep seed=0..4 -- python train.py {lr} {seed}
  dlsubmit --share --model resnet18 -- python train.py
  dlsubmit --gpus 8 --model resnet50 --signal USR2@120 --requeued-by job -- python run.py
  dlsubmit --gpus 2,4,8 --time 9:00:00,5:00:00,3:00:00 --by 'Fri 18:00' -- python train.py
  dlsubmit --gpus 8 --wait-for-data -- python train.py /scratch/images
  dlsubmit --data-ready 1234
  dlsubmit --gpus 8 --dry-run -- python train.py
  dlsubmit --when --gpus 8,16,2x8 --time 1-0
  dlsubmit train.sbatch
  dlsubmit --diff train.sbatch

Every other option of sbatch is passed on to it. Options go before --, COMMAND after it; an option
that only your site's sbatch knows is written --option=value.
"""


class _DividedCommand(click.Command):
    """A command whose line is divided before click sees its own part of it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:  # shell completion: the line is not finished yet
            return super().parse_args(ctx, args)
        own = _own_options(self.get_params(ctx))
        line, notes = again(divide(args, own), own)
        found = command_job.find(own)
        ctx.meta[_LINE] = line
        ctx.meta[command_job.DEFAULTS] = defaults = replace(found, notes=(*notes, *found.notes))
        several = {n: (v,) for n, v in defaults.own.items() if n in ("by", "hint")}
        ctx.default_map = {**defaults.own, **several}
        return super().parse_args(ctx, list(line.own))


def _own_options(params: Sequence[click.Parameter]) -> dict[str, Option]:
    """Our options by each of their spellings, under the first long one."""
    table: dict[str, Option] = {}
    for param in params:
        if not isinstance(param, click.Option):
            continue
        for opts in filter(None, (param.opts, param.secondary_opts)):
            name = next(opt for opt in opts if opt.startswith("--")).removeprefix("--")
            option = Option(name, Takes.NOTHING if param.is_flag else Takes.VALUE)
            table |= dict.fromkeys(opts, option)
    return table


@click.command(
    cls=_DividedCommand,
    epilog=_EPILOG,
    options_metavar="[OPTIONS] [SBATCH OPTIONS] {SCRIPT [ARGS...] | --gpus N -- COMMAND...}",
    context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 100},
)
@click.option(
    "--gpus",
    "-G",
    metavar="[TYPE:]N,...",
    help="GPUs of the whole job. Several with --by: the smallest that is promised, else the first.",
)
@click.option("--gpu-type", metavar="T", help="Only GPUs of this type.")
@click.option(
    "--nodes",
    "-N",
    metavar="N|MIN-MAX",
    help="Exactly N nodes, or any number in a range; else the fewest that fit.",
)
@click.option(
    "--sizes",
    metavar="N|NxG,...",
    help="It can also run on so many GPUs, or on N nodes with G each, and may be started so.",
)
@click.option(
    "--batch",
    metavar="fixed|gpu|elan|adapt",
    help="With --sizes: the global batch stays, or grows with the GPUs, late or by its noise.",
)
@click.option(
    "--in-place",
    is_flag=True,
    help="With --sizes: it can give whole nodes back without a requeue.",
)
@click.option(
    "--wait-for-data",
    is_flag=True,
    help="Its data is still being copied: it holds no GPUs until --data-ready JOB.",
)
@click.option("--data-ready", metavar="JOB", help="Say that the data of JOB is there, and stop.")
@click.option("--share", is_flag=True, help="Half a GPU, beside one other such job.")
@click.option(
    "--cpus",
    metavar="auto|none|N",
    default="auto",
    show_default=True,
    help="CPUs for each GPU; auto is the GPUs' part of the node, none what Slurm gives.",
)
@click.option(
    "--launcher",
    metavar="|".join(LAUNCHERS),
    default="plain",
    show_default=True,
    help="Run COMMAND once on the first node, under torchrun, or as one srun task for each GPU.",
)
@click.option(
    "--model",
    metavar="NAME",
    shell_complete=completion.models,
    help="Name of the model's profile.",
)
@click.option(
    "--hint",
    metavar="NAME[=VALUE]",
    multiple=True,
    callback=lambda _ctx, _param, typed: ",".join(typed) or None,
    help="Hint for the job's own communication or placement, such as byteps=4096000; several times "
    "for several. --list-hints shows them.",
)
@click.option("--name", "--job-name", "-J", metavar="X", help="Job name; else the script's name.")
@click.option(
    "--partition",
    "-p",
    metavar="P",
    shell_complete=completion.partitions,
    help="Partition; else the default one.",
)
@click.option(
    "--time",
    "-t",
    metavar="T,...",
    help="Time limit, in sbatch's words; beside several --gpus one for each, or one for all.",
)
@click.option(
    "--by",
    metavar="TIME[=VALUE]",
    multiple=True,
    callback=lambda _ctx, _param, typed: "; ".join(typed) if typed else None,
    help="Deadline, such as 'Fri 18:00' or +3h. A site whose policy promises says yes or no to it; "
    "others may go by it or not. Several times: each with a value, as 'Fri 18:00=10'.",
)
@click.option(
    "--or-else",
    type=click.Choice(["run", "cancel"]),
    help="With --by, if the deadline is not promised: run it all the same, as is usual, or submit "
    "nothing (exit status 3).",
)
@click.option(
    "--quote",
    is_flag=True,
    help="With --by: say whether the deadline would be promised, and stop (exit status 3 if not).",
)
@click.option("--array", "-a", metavar="SPEC", help="Array of jobs, such as 0-15%4.")
@click.option(
    "--sweep",
    metavar="NAME=V,...",
    multiple=True,
    help="Array with a task for each value, as lr=1e-3,1e-4 or seed=0..4, that replaces {NAME} in "
    "COMMAND; several times: for all combinations. --array %4: four at a time.",
)
@click.option(
    "--signal",
    metavar="SIG@LEAD",
    default=DEFAULT_SIGNAL,
    show_default=True,
    help="Checkpoint signal; Slurm sends it LEAD seconds before the time limit.",
)
@click.option(
    "--grace",
    metavar="S",
    default=DEFAULT_GRACE,
    show_default=True,
    help="Longest time that a checkpoint takes, seconds; cut to the site's limit.",
)
@click.option(
    "--stops-with",
    metavar="STATUS",
    help="COMMAND ends with this after it has saved when asked, and is to run again: 0 for "
    "trainers that save and exit with 0. 75 always does.",
)
@click.option(
    "--requeued-by",
    metavar="daemon|job",
    default="daemon",
    show_default=True,
    help="Who puts the job back after the signal; job for submitit and Lightning.",
)
@click.option("--no-preempt", is_flag=True, help="The job's GPUs may not be taken back.")
@click.option("--no-requeue", is_flag=True, help="Never put it back; only with --no-preempt.")
@click.option("--ntasks-per-node", "--tasks-per-node", metavar="N", help="Tasks on each node.")
@click.option("--comment", metavar="TEXT", help="Your comment: text, or a JSON object.")
@click.option("--output", "-o", metavar="FILE", help="Log file, in sbatch's patterns.")
@click.option(
    "--run-dir",
    metavar="DIR",
    help=f"Each job keeps its state in a directory of its own in DIR; else {DEFAULT_RUN_DIR}.",
)
@click.option("--template", metavar="NAME", help="Script template; else the launcher's.")
@click.option("--dlrun", metavar="PATH", help="dlrun on the compute nodes; else the one beside me.")
@click.option("--module", metavar="LIST", help="Modules to load for the job, such as cuda/12.4.")
@click.option("--conda", metavar="ENV", help="Conda environment of the job, by name or path.")
@click.option("--venv", metavar="DIR", help="Virtual environment of the job.")
@click.option("--setup", metavar="FILE", help="File that the batch script sources for the job.")
@click.option(
    "--container",
    metavar="IMAGE",
    help="Run COMMAND in it, by Apptainer or pyxis; or say which, as apptainer:IMAGE.",
)
@click.option("--keep-sbatch-env", is_flag=True, help="Let SBATCH_* variables have effect.")
@click.option("--no-check", is_flag=True, help="Submit though files or CPUs seem to be missing.")
@click.option("--again", metavar="JOB", help="The submission of JOB once more, options here win.")
@click.option("--dry-run", is_flag=True, help="Print what would be submitted, and stop.")
@click.option("--diff", is_flag=True, help="Print what is changed in SCRIPT, and stop.")
@click.option(
    "--show-defaults", is_flag=True, help="Print your own defaults and where they are, and stop."
)
@click.option("--list-hints", is_flag=True, help="Print the hints that there are, and stop.")
@click.option(
    "--when",
    is_flag=True,
    help="Say when it would start, for several shapes as --gpus 8,16,2x8, and stop.",
)
@click.option(
    "--preview/--no-preview",
    "previews",
    default=None,
    help="Say first when it would start, and when with the other choice of --no-preempt; takes up "
    "to 3 s. Without the option: on a terminal alone.",
)
@click.option("--show-template", metavar="NAME", help="Say which file is the template, and stop.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--parsable", is_flag=True, help="Print the job id alone.")
@click.option("--quiet", "-Q", is_flag=True, help="Print nothing but errors.")
@click.version_option(slurm_dl.__version__, "--version", "-V", prog_name="dlsubmit")
@VIA
@click.pass_context
def dlsubmit(
    ctx: click.Context,
    /,
    *,
    diff: bool,
    show_defaults: bool,
    list_hints: bool,
    when: bool,
    show_template: str | None,
    data_ready: str | None,
    as_json: bool,
    **_typed: str | bool | tuple[str, ...] | None,
) -> int:
    """Submit a deep-learning job that can be preempted by a checkpoint and resumed."""
    where = script_templates.places(dict(os.environ))
    defaults: command_job.UsualOptions = ctx.meta[command_job.DEFAULTS]
    line: CommandLine = ctx.meta[_LINE]
    if show_template is not None:
        _show_template(script_templates.find(show_template, where), as_json=as_json)
        return 0
    if list_hints or data_ready is not None:
        if data_ready is not None:
            slurm = Slurm(environ=dict(os.environ), timeout_s=command_job.SLURM_S)
            if not say_ready(data_ready, slurm):
                command_job.tell([f"job {data_ready} does not wait for its data"], quiet=False)
        else:
            _list_hints(as_json=as_json)
        return 0
    if show_defaults:
        return command_job.show(defaults, as_json=as_json)
    if when:
        return before_submitting(ctx.params, as_json=as_json)
    if line.script:
        return submit_script(ctx, line, defaults, where, _dlrun_beside(sys.argv[0]))
    if diff:
        msg = "--diff shows what is changed in a batch script: dlsubmit --diff SCRIPT"
        raise ConfigError(msg)
    typed, _ = _typed_in(ctx)
    return submit_command(ctx, typed, line, where, _dlrun_beside(sys.argv[0]))


def options_of(args: Sequence[str]) -> tuple[SubmitOptions, CommandLine]:
    """Read a command line without doing what it says.

    Raises:
        ConfigError: It cannot be divided.
    """
    with dlsubmit.make_context("dlsubmit", list(args)) as ctx:
        return _typed_in(ctx)


def _typed_in(ctx: click.Context) -> tuple[SubmitOptions, CommandLine]:
    line: CommandLine = ctx.meta[_LINE]
    return SubmitOptions(
        **{field.name: ctx.params[field.name] for field in fields(SubmitOptions)}
    ), line


def _show_template(found: script_templates.FoundTemplate, *, as_json: bool) -> None:
    if as_json:
        hides = [{"owner": owner, "path": path} for owner, path in found.hides]
        value = {"name": found.name, "owner": found.owner, "path": found.path, "hides": hides}
        click.echo(json.dumps(value, indent=2))
        return
    click.echo(f"{found.path} ({found.owner})")
    for owner, path in found.hides:
        click.echo(f"  hides {path} ({owner})")


def _list_hints(*, as_json: bool) -> None:
    from slurm_dl.report.terminal_table import Column, console, table  # noqa: PLC0415 - 50 ms

    rows = [
        {"name": name, "takes": hint.takes, **asdict(hint), "variables": " ".join(hint.variables)}
        for name, hint in HINTS.items()
    ]
    names = ("takes", "default", "variables", "build", "source")
    if as_json:
        shown = ("name", *names, "numerics", "apart", "launchers")
        click.echo(json.dumps({"hints": [{n: row[n] for n in shown} for row in rows]}, indent=2))
        return
    columns = (Column(title=""), Column(title=""), Column(title="", folds=True))
    lines = [
        ("" if i else row["name"], name, str(row[name]))
        for row in rows
        for i, name in enumerate(name for name in names if row[name])
    ]
    console().print(table(columns, lines, header=False))


def _dlrun_beside(program: str) -> str | None:
    """Dlrun beside this program, beside what that links to, or beside the interpreter."""
    path = Path(program).absolute()
    for directory in (path.parent, path.resolve().parent, Path(sys.executable).parent):
        candidate = directory / "dlrun"
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return str(candidate)
    return None


def main(args: Sequence[str] | None = None) -> int:
    """Run dlsubmit.

    Returns:
        0; 1 if Slurm refused, 2 if the command line is wrong, 3 if a deadline is not promised.
    """
    try:
        result = dlsubmit.main(
            args=None if args is None else list(args),
            prog_name="dlsubmit",
            standalone_mode=False,
        )
    except click.ClickException as err:
        return _fail(err.format_message(), 2)
    except click.Abort:
        return _fail("interrupted", 1)
    except ConfigError as err:
        return _fail(str(err), 2)
    except ElsewhereError as err:
        return _fail(become_ssh(err.host, "dlsubmit"), 2)
    except (ClusterError, SlurmDlError) as err:
        return _fail(str(err), 1)
    return int(result or 0)


def _fail(message: str, status: int) -> int:
    click.echo(f"dlsubmit: error: {message}", err=True)
    return status
