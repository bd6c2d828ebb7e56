"""``dlqueue when`` and ``dlsubmit --when``: ask the daemon for a forecast and print it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slurm_dl.cli import completion
from slurm_dl.cli.commandline import print_json
from slurm_dl.daemon.control.client import Client, daemon_at, stale_note
from slurm_dl.daemon.control.wire_format import QueueRequest
from slurm_dl.forecast.start_time_text import job_lines, shape_lines
from slurm_dl.json_types import Json, JsonObject, as_list, number
from slurm_dl.model.errors import ConfigError
from slurm_dl.text import safe

if TYPE_CHECKING:
    from slurm_dl.daemon.control.tcp_client import TcpServers

TIMEOUT_S = 120.0  # A forecast takes up to half a minute, and waits for those before it
MOST_SHAPES = 8
_SHAPE = re.compile(r"(?:(?P<type>[A-Za-z0-9_.-]{1,63}):)?(?P<shape>[0-9]{1,6}(?:x[0-9]{1,4})?)")


@click.command()
@click.argument("job", shell_complete=completion.job_ids)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def when(socket: Path | None, job: str, *, as_json: bool) -> None:
    """Say when a job will start and end, as a median and a range that holds in 8 of 10 cases.

    The daemon's own engine is run forward from the queue as it is, with run times drawn from jobs
    like each. It takes some seconds. JOB is a job id; one task of an array is named 4711_3.

    \b
    Example:
      dlqueue when 4711
    """  # noqa: D301 - \b is click's mark
    answer = Client(daemon_at(socket), TIMEOUT_S).ask("when", job=job)
    _show(answer, job_lines(answer) if not as_json else [], as_json=as_json)


MOST_STARTS = 200  # So many jobs `expected_starts` asks about; the daemon takes no more


def expected_starts(request: QueueRequest, at: Path | TcpServers) -> JsonObject:
    """The waiting jobs of a queue, each with ``start``: when it is expected; the soonest first.

    Raises:
        DaemonError: The daemon does not answer, or refuses.
    """
    client = Client(at, TIMEOUT_S)
    answer = client.ask("queue", **replace(request, state=("PD",)).fields())
    jobs = [job for job in as_list(answer.get("jobs")) if isinstance(job, dict)]
    if not jobs:
        return answer
    told = client.ask("when", jobs=[job["job_id"] for job in jobs[:MOST_STARTS]])
    starts = {
        one["job_id"]: start
        for one in as_list(told["jobs"])
        if isinstance(one, dict) and isinstance(start := one["start"], dict)
    }
    shown: list[JsonObject] = [
        job | ({"start": starts[i]} if (i := job["job_id"]) in starts else {}) for job in jobs
    ]

    def median_s(job: JsonObject) -> float:
        at_s = starts.get(job["job_id"], {}).get("median_s")
        return math.inf if at_s is None else number(at_s)

    shown.sort(key=median_s)
    return {**answer, "jobs": list[Json](shown)}


def before_submitting(typed: Mapping[str, object], *, as_json: bool) -> int:
    """Print when a job of each of some shapes would start; nothing is submitted.

    Args:
        typed: dlsubmit's options by name, as they were typed.

    Raises:
        ConfigError: A shape, or the time limit, is none.
        DaemonError: The daemon does not answer, or refuses.
    """
    from slurm_dl.submit.option_values import time_limit_s  # noqa: PLC0415 - needed here alone

    kind, shapes = _shapes(_text(typed, "gpus"))
    given = _text(typed, "gpu_type")
    if kind and given and kind != given:
        msg = f"--gpus says type {kind} and --gpu-type {safe(given, 80)}; leave one out"
        raise ConfigError(msg)
    if nodes := _text(typed, "nodes"):
        msg = f"--when: write --gpus NODESxGPUS in place of --nodes {safe(nodes, 40)}"
        raise ConfigError(msg)
    limit_s = time_limit_s(limit) if (limit := _text(typed, "time")) else math.inf
    answer = Client(daemon_at(), TIMEOUT_S).ask(
        "when",
        shapes=list(shapes),
        partition=_text(typed, "partition"),
        gpu_type=kind or given,
        limit_s=None if math.isinf(limit_s) else limit_s,
        name=_text(typed, "name"),
    )
    _show(answer, shape_lines(answer) if not as_json else [], as_json=as_json)
    return 0


def _shapes(text: str) -> tuple[str, tuple[str, ...]]:
    """The type that shapes name, and the shapes without it."""
    found, kinds = [], set[str]()
    for word in text.split(","):
        match = _SHAPE.fullmatch(word.strip())
        if match is None:
            msg = (
                f"--gpus {safe(text, 80)!r}: with --when write numbers of GPUs, or NODESxGPUS, "
                "for example --gpus 8,16,2x8"
            )
            raise ConfigError(msg)
        found.append(match["shape"])
        kinds.add(match["type"] or "")
    if len(kinds) > 1:
        msg = "--gpus: with --when all shapes have one GPU type"
        raise ConfigError(msg)
    if len(found) > MOST_SHAPES:
        msg = f"--gpus: with --when at most {MOST_SHAPES} shapes (got {len(found)})"
        raise ConfigError(msg)
    return kinds.pop(), tuple(found)


def _text(typed: Mapping[str, object], name: str) -> str:
    value = typed.get(name)
    return value if isinstance(value, str) else ""


def show_stale(answer: JsonObject, *, err: bool = False) -> None:
    """Say on a line of its own that *answer* is old, if it is; with *err* on standard error."""
    if note := stale_note(answer):
        click.secho(note, fg="yellow", err=err)


def _show(answer: JsonObject, lines: list[str], *, as_json: bool) -> None:
    if as_json:
        print_json(answer)
        return
    show_stale(answer)
    for line in lines:
        click.echo(safe(line, 1000))
    doing = str(answer.get("doing", ""))
    if doing and not doing.startswith("acting"):
        click.echo(f"note: dlschedd is {safe(doing)}; this is as if it acted", err=True)
