"""``dlsim compare --on slurm``: its options, and a sweep as one job array of the cluster."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from slurm_dl.cli.commandline import EXIT_FAILED
from slurm_dl.cli.dlsim.simulation_options import with_options
from slurm_dl.experiments import sweep_slurm
from slurm_dl.experiments.sweep import CellResult, Sweep, run_cell
from slurm_dl.experiments.sweep_files import Folder
from slurm_dl.experiments.sweep_slurm import SweepRequest, run_task
from slurm_dl.model.trace import Trace
from slurm_dl.report.console import progress
from slurm_dl.text import safe

F = TypeVar("F", bound=Callable[..., Any])

_A_DAY_S = 86_400.0


def say_aloud(text: str) -> None:
    """Tell people, on standard error."""
    click.echo(f"dlsim compare: {safe(text, 1000)}", err=True)


def slurm_options(command: F) -> F:
    """``--on``, and what goes with ``--on slurm``."""
    options = [
        click.option(
            "--on",
            "where",
            type=click.Choice(["local", "slurm"]),
            default="local",
            show_default=True,
            help="Run here, or as one job array of the Slurm cluster.",
        ),
        click.option(
            "--dir",
            "directory",
            type=click.Path(path_type=Path, file_okay=False),
            help="With --on slurm: a new folder for the sweep, on a file system that all nodes "
            "see.",
        ),
        click.option(
            "--resume", is_flag=True, help="With --on slurm: go on with the sweep in --dir."
        ),
        click.option(
            "--partition", metavar="P", help="With --on slurm: partition; else the default one."
        ),
        click.option(
            "--time", "time_limit", metavar="T", help="With --on slurm: time limit of a task."
        ),
        click.option(
            "--array-limit",
            type=click.IntRange(min=1),
            metavar="N",
            help="With --on slurm: at most so many tasks at a time.",
        ),
        click.option(
            "--within",
            "within_s",
            type=click.FloatRange(min=0, min_open=True),
            metavar="SECONDS",
            help="With --on slurm: stop waiting after so long (a day if not given); the "
            "array goes on.",
        ),
    ]
    return with_options(command, options)


def check_where(
    where: str,
    *,
    directory: Path | None,
    resume: bool,
    asked: dict[str, object],
    processes: int | None,
) -> None:
    """Refuse options that belong to the other place.

    Raises:
        UsageError: One does.
    """
    for_slurm = asked | {"--dir": directory, "--resume": resume or None}
    if where == "local":
        for name, value in for_slurm.items():
            if value is not None:
                msg = f"{name} is for --on slurm"
                raise click.UsageError(msg)
    elif directory is None:
        msg = "--on slurm needs --dir, a folder on a file system that all nodes see"
        raise click.UsageError(msg)
    elif processes is not None:
        msg = "-j is for --on local; with --on slurm --array-limit says how many run at a time"
        raise click.UsageError(msg)


def refuse_with_resume(context: click.Context) -> None:
    """What is run stands in the folder already.

    Raises:
        UsageError: It was given again.
    """
    fixed = {"trace": "TRACE", "format_name": "--format", "parameters": "-p"}
    fixed |= {"places": "--place", "rules": "--rule"}
    alike = ("cluster", "costs", "policies", "profiles", "widths", "contention", "loads", "seeds")
    fixed |= {name: f"--{name}" for name in (*alike, "tags")}
    for parameter, name in fixed.items():
        source = context.get_parameter_source(parameter)
        if source is not None and source.name == "COMMANDLINE":
            msg = f"{name} stands in the folder that --resume goes on with; leave it out"
            raise click.UsageError(msg)


def what_is_run(sweep: Sweep, jobs: Trace) -> str:
    """What a bar of progress says."""
    costs = "" if sweep.costs is None else f", costs {safe(sweep.costs, 40)}"
    return f"{safe(jobs.name, 40)}: {len(sweep.cells)} simulations{costs}"


def gather(
    directory: Path,
    new: tuple[Sweep, Trace] | None,
    request: SweepRequest,
    *,
    within_s: float | None,
    say: Callable[[str], None],
) -> tuple[Sweep, Trace, list[CellResult]]:
    """Run a sweep on Slurm: a *new* one, or what the folder holds of one."""
    folder = Folder.open(directory) if new is None else Folder.create(directory, *new)
    jobs = folder.trace() if new is None else new[1]
    try:
        sweep_slurm.submit(folder, request, os.environ, say)
        with progress(what_is_run(folder.sweep, jobs), len(folder.sweep.cells)) as report:
            results = sweep_slurm.wait(
                folder, os.environ, within_s=within_s or _A_DAY_S, progress=report
            )
    except KeyboardInterrupt:
        if ids := " ".join(map(str, folder.submitted())):
            say_aloud(f"the array goes on: 'scancel {ids}' ends it, --dir and --resume gather it")
        raise
    return folder.sweep if new is None else new[0], jobs, results


@click.command(name="sweep-cell", hidden=True)
@click.argument("directory", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("task", type=click.IntRange(min=0))
def sweep_cell_command(*, directory: Path, task: int) -> None:
    """Run the share of one array task of the sweep in DIRECTORY; 'dlsim compare' submits it."""
    folder = Folder.open(directory)
    folder.check_versions()
    folder.cells_of(task)
    jobs = folder.trace()
    failed = run_task(folder, task, lambda cell: run_cell(folder.sweep, jobs, cell))
    for line in failed:
        click.echo(f"dlsim sweep-cell: {line}", err=True)
    if failed:
        raise SystemExit(EXIT_FAILED)
