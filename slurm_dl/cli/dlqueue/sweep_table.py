"""``dlqueue sweep``: what has become of each combination of a sweep.

It reads the user's own files, and asks Slurm once for the states: it works without the daemon.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click

from slurm_dl.cli import completion
from slurm_dl.cli.commandline import print_json
from slurm_dl.job.run_files import PROGRESS_FILE, read_object
from slurm_dl.report.terminal_table import Column, show
from slurm_dl.submit.function_job import states_of
from slurm_dl.submit.user_files import recall_sweep
from slurm_dl.text import number, safe, shown


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
    rows = []
    for task, values in enumerate(swept.tasks):
        told = _progress(base / f"{job}_{task}")
        state = states.get(f"{job}_{task}", "NOT_FOUND")
        rows.append(
            {
                "task": task,
                "values": dict(zip(swept.names, values, strict=True)),
                "state": None if state == "NOT_FOUND" else state,
                "step": told.get("step"),
                "total": told.get("total"),
                "numbers": told.get("numbers", {}),
            }
        )
    reported = sorted({name for row in rows for name in row["numbers"]})
    if sort:
        rows = _sorted(rows, sort, [*swept.names, *reported])
    if as_json:
        print_json({"job_id": int(job), "tasks": rows})
        return
    titles = ["TASK", *swept.names, "STATE", "STEP", *reported]
    columns = [Column(title=title, right=title in reported, least=6) for title in titles]
    show(columns, [_cells(row, reported) for row in rows])


def _progress(directory: Path) -> dict[str, Any]:
    try:
        return read_object(directory / PROGRESS_FILE, must_be_ours=True) or {}
    except (OSError, ValueError):
        return {}


def _cells(row: dict[str, Any], reported: list[str]) -> list[str]:
    steps = [number(row[name]) for name in ("step", "total") if row[name] is not None]
    numbers = [row["numbers"].get(name) for name in reported]
    return [
        str(row["task"]),
        *row["values"].values(),
        row["state"] or "not known",
        "/".join(steps) or "-",
        *("-" if value is None else f"{value:.6g}" for value in numbers),
    ]


def _sorted(rows: list[dict[str, Any]], sort: str, names: list[str]) -> list[dict[str, Any]]:
    """By one name; rows without it come last."""
    name = sort.removeprefix("-")
    if name not in names:
        msg = f"--sort: there is no {shown(name)}; there are {safe(', '.join(names))}"
        raise click.UsageError(msg)

    def value(row: dict[str, Any]) -> tuple[float, str]:
        text = str((row["values"] | row["numbers"])[name])
        try:
            return float(text), ""
        except ValueError:
            return math.inf, text

    has = [row for row in rows if name in row["values"] | row["numbers"]]
    rest = [row for row in rows if row not in has]
    return [*sorted(has, key=value, reverse=sort != name), *rest]
