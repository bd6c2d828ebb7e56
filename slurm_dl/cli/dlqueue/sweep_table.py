"""``dlqueue sweep``: what has become of each combination of a sweep.

It reads the user's own files, and asks Slurm once for the states: it works without the daemon.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from slurm_dl.cli import completion
from slurm_dl.cli.commandline import print_json
from slurm_dl.job.run_files import PROGRESS_FILE, read_object
from slurm_dl.report.terminal_table import Column, show
from slurm_dl.submit.function_job import states_of
from slurm_dl.submit.past_submissions import recall_sweep
from slurm_dl.text import number, shown


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    task: int
    values: dict[str, str]
    state: str | None
    step: int | None
    total: int | None
    numbers: dict[str, float]


@click.command()
@click.argument("job", shell_complete=completion.job_ids)
@click.option(
    "--sort", metavar="NAME", help="By a reported number or a swept name; -NAME: falling."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def sweep(job: str, *, sort: str | None, as_json: bool) -> None:
    """Show the tasks of dlsubmit --sweep: values, state, steps, and the numbers last reported.

    JOB is the id of the array. Steps and numbers are those of job.report(step, total, loss=0.3).

    \b
    Example:
      dlqueue sweep 4711 --sort loss
    """  # noqa: D301 - \b is click's mark
    base, swept = recall_sweep(job)
    states = states_of({f"{job}_{task}" for task in range(len(swept.tasks))}) or {}
    tasks = []
    for index, values in enumerate(swept.tasks):
        name = f"{job}_{index}"
        told = _progress(base / name)
        state = states.get(name, "NOT_FOUND")
        tasks.append(
            _Task(
                task=index,
                values=dict(zip(swept.names, values, strict=True)),
                state=None if state == "NOT_FOUND" else state,
                step=told.get("step"),
                total=told.get("total"),
                numbers=told.get("numbers", {}),
            )
        )
    reported = sorted({name for task in tasks for name in task.numbers})
    if sort:
        tasks = _sorted(tasks, sort, [*swept.names, *reported])
    if as_json:
        print_json({"job_id": int(job), "tasks": [asdict(task) for task in tasks]})
        return
    titles = ["TASK", *swept.names, "STATE", "STEP", *reported]
    columns = [Column(title=title, right=title in reported, least=6) for title in titles]
    show(columns, [_cells(task, reported) for task in tasks])


def _progress(directory: Path) -> dict[str, Any]:
    try:
        return read_object(directory / PROGRESS_FILE, must_be_ours=True) or {}
    except (OSError, ValueError):
        return {}


def _cells(task: _Task, reported: list[str]) -> list[str]:
    steps = [number(n) for n in (task.step, task.total) if n is not None]
    numbers = (task.numbers.get(name) for name in reported)
    return [
        str(task.task),
        *task.values.values(),
        task.state or "not known",
        "/".join(steps) or "-",
        *("-" if value is None else f"{value:.6g}" for value in numbers),
    ]


def _sorted(tasks: list[_Task], sort: str, names: list[str]) -> list[_Task]:
    """By one name; tasks without it come last."""
    name = sort.removeprefix("-")
    if name not in names:
        msg = f"--sort: there is no {shown(name)}; there are {', '.join(names)}"
        raise click.UsageError(msg)

    def value(task: _Task) -> tuple[float, str]:
        text = str((task.values | task.numbers)[name])
        try:
            return float(text), ""
        except ValueError:
            return math.inf, text

    has = [task for task in tasks if name in task.values | task.numbers]
    rest = [task for task in tasks if name not in task.values | task.numbers]
    return [*sorted(has, key=value, reverse=sort != name), *rest]
