"""The columns of ``dlqueue``, one job's cells in them, and the choice of columns by ``-o``.

That is in squeue's letters and grammar, or a list of names. ``%[[.]SIZE]LETTER`` is a field, cut
and filled to SIZE characters, to the right with a dot; all else is text (squeue(1), ``--format``).
The names are those of squeue's ``--Format``, and dlqueue's own.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import click

from slurm_dl.json_types import Json, JsonObject, as_list, number
from slurm_dl.report.terminal_table import Column, show
from slurm_dl.text import duration, safe

COLUMNS = (
    Column(title="JOBID", least=8),
    Column(title="PARTITION", short="PART", least=4),
    Column(title="NAME", least=6),
    Column(title="USER", least=5),
    Column(title="ST"),
    Column(title="GPUS", right=True),
    Column(title="TIER", right=True),
    Column(title="RANK", right=True),
    Column(title="ATTAINED(GPU-h)", short="GPU-h", right=True),
    Column(title="RESTARTS", short="RST", right=True),
    Column(title="TIME", right=True),
    Column(title="DONE", right=True, may_go=True),
    Column(title="LEFT", right=True, may_go=True),
    Column(title="NODELIST(REASON)", short="NODES(WHY)", least=8),
)

MORE_COLUMNS = {
    "account": Column(title="ACCOUNT", least=7),
    "qos": Column(title="QOS", least=3),
    "note": Column(title="NOTE", least=4),
}
"""Columns for terminals that have room for them, by the field that they show."""

ALL_COLUMNS = (*COLUMNS, *MORE_COLUMNS.values())

STYLES = {"R": "green", "CG": "dim", "CD": "dim", "F": "dim", "CF": "cyan", "S": "dim"}


def cells(job: JsonObject) -> list[str]:
    """One job as the cells of `COLUMNS`."""
    return [
        str(job["job"]),
        partitions_of(job),
        str(job["name"]),
        str(job["user"]),
        str(job["state"]),
        gpus_of(job),
        _or_dash(job["tier"]),
        _or_dash(job["rank"]),
        f"{number(job['attained_gpu_h']):.2f}",
        str(job["restarts"]),
        duration(number(job["time_s"])),
        done(job.get("progress")),
        left(job.get("left_s")),
        where(job),
    ]


def rows_of(jobs: Sequence[JsonObject]) -> list[list[str]]:
    """*jobs* as the cells of `ALL_COLUMNS`, safe to print."""
    more = [[str(job.get(name) or "-") for name in MORE_COLUMNS] for job in jobs]
    return [
        [safe(cell) for cell in (*cells(job), *rest)] for job, rest in zip(jobs, more, strict=True)
    ]


def partitions_of(job: JsonObject) -> str:
    """All partitions that it may start in, or ``-``."""
    # A daemon of an earlier release tells the first one alone.
    return ",".join(map(str, as_list(job.get("partitions")) or [job["partition"] or "-"]))


def gpus_of(job: JsonObject) -> str:
    """Its GPUs, and with ``>`` those that it should have if they are others."""
    gpus, wanted = f"{number(job['gpus']):g}", str(job.get("wanted_size") or "")
    if job.get("size") == wanted or not wanted:
        return gpus
    nodes, _, each = wanted.partition("x")
    return f"{gpus}>{int(nodes) * int(each)}"


def where(job: JsonObject) -> str:
    """Its nodes or, in brackets, why it waits."""
    return f"({job['reason'] or 'None'})" if job["state"] == "PD" else str(job["nodes"])


def done(share: Json) -> str:
    """A share as percent, ``100%`` only once all is done; ``-`` if there is none."""
    if not isinstance(share, int | float) or not math.isfinite(share):
        return "-"
    return f"{math.floor(min(max(share, 0.0), 1.0) * 100 + 1e-6)}%"


def left(seconds: Json) -> str:
    """Seconds as squeue writes a time; ``-`` if there are none."""
    if not isinstance(seconds, int | float) or not math.isfinite(seconds):
        return "-"
    return duration(seconds)


def _or_dash(value: Json) -> str:
    return "-" if value is None else str(value)


_SPEC = re.compile(r"%(?P<dot>\.?)(?P<size>[0-9]{0,4})(?P<letter>.?)", re.DOTALL)
_LONGEST = 1000
_STATES = {
    "PD": "PENDING",
    "CF": "CONFIGURING",
    "R": "RUNNING",
    "S": "SUSPENDED",
    "CG": "COMPLETING",
    "CD": "COMPLETED",
    "F": "FAILED",
}


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a job."""

    letter: str  # squeue's; empty if it has none
    name: str
    title: str
    text: Callable[[JsonObject], str]


def _plain(key: str) -> Callable[[JsonObject], str]:
    return lambda job: "N/A" if job.get(key) is None else str(job[key])


def _at(at_s: Json) -> str:
    """An instant in local time as squeue writes it."""
    if not isinstance(at_s, int | float) or not 0 < at_s < _END_OF_TIME_S:
        return "N/A"
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at_s))


_END_OF_TIME_S = 253402300800.0  # The year 10,000, in which calendars end


def start_of(job: JsonObject) -> Json:
    """Start, epoch seconds; of a job that waits the median of its forecast, if there is one."""
    expected = job.get("start")
    return expected["median_s"] if isinstance(expected, dict) else job.get("start_s")


def _latest(job: JsonObject) -> str:
    expected = job.get("start")
    return _at(expected["high_s"]) if isinstance(expected, dict) else "N/A"


def _limit(job: JsonObject, used_s: float = 0.0) -> str:
    limit_s = job.get("limit_s")
    if isinstance(limit_s, int | float):
        return duration(limit_s - used_s)
    return "N/A" if job["state"] in {"CD", "F"} else "UNLIMITED"


def _gres(job: JsonObject) -> str:
    gpus = number(job["gpus"]) / max(1.0, number(job["n_nodes"]))
    return f"gres/gpu:{gpus:g}" if gpus else "N/A"


def _state(job: JsonObject) -> str:
    return str(job.get("ending") or _STATES.get(str(job["state"]), job["state"])).upper()


FIELDS = (
    Field("i", "jobid", "JOBID", _plain("job")),
    Field("A", "jobnumber", "JOBID", _plain("job_id")),
    Field("P", "partition", "PARTITION", partitions_of),
    Field("j", "name", "NAME", _plain("name")),
    Field("u", "username", "USER", _plain("user")),
    Field("U", "userid", "UID", _plain("uid")),
    Field("a", "account", "ACCOUNT", _plain("account")),
    Field("q", "qos", "QOS", _plain("qos")),
    Field("t", "statecompact", "ST", _plain("state")),
    Field("T", "state", "STATE", _state),
    Field("M", "timeused", "TIME", lambda job: duration(number(job["time_s"]))),
    Field("l", "timelimit", "TIME_LIMIT", _limit),
    Field("L", "timeleft", "TIME_LEFT", lambda job: _limit(job, number(job["time_s"]))),
    Field("S", "starttime", "START_TIME", lambda job: _at(start_of(job))),
    Field("", "lateststart", "LATEST_START", _latest),
    Field("V", "submittime", "SUBMIT_TIME", lambda job: _at(job.get("submit_s"))),
    Field("D", "numnodes", "NODES", _plain("n_nodes")),
    Field("C", "numcpus", "CPUS", _plain("cpus")),
    Field("b", "tres-per-node", "TRES_PER_NODE", _gres),
    Field("N", "nodelist", "NODELIST", _plain("nodes")),
    Field("r", "reason", "REASON", _plain("reason")),
    Field("R", "reasonlist", "NODELIST(REASON)", where),
    Field("", "gpus", "GPUS", lambda job: f"{number(job['gpus']):g}"),
    Field("", "size", "SIZE", _plain("size")),
    Field("", "wantedsize", "WANTED_SIZE", _plain("wanted_size")),
    Field("", "tier", "TIER", _plain("tier")),
    Field("", "rank", "RANK", _plain("rank")),
    Field("", "attained", "GPU-h", lambda job: f"{number(job['attained_gpu_h']):.2f}"),
    Field("", "restarts", "RESTARTS", _plain("restarts")),
    Field("", "done", "DONE", lambda job: done(job.get("progress"))),
    Field("", "left", "LEFT", lambda job: left(job.get("left_s"))),
    Field("", "note", "NOTE", _plain("note")),
)

START_FORMAT = (
    "jobid,partition,name,username,statecompact,starttime,lateststart,numnodes,reasonlist"
)
"""Fields of ``dlqueue --start``."""

_BY_LETTER = {field.letter: field for field in FIELDS if field.letter}
_BY_NAME = {field.name: field for field in FIELDS}
_COLUMNS = {column.title: column for column in (*COLUMNS, *MORE_COLUMNS.values())}


def checked(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """The value of ``-o``, if every field in it is known."""
    if value is None:
        return None
    if "%" in value:
        asked = [spec["letter"] for spec in _SPEC.finditer(value)]
        known, words = _BY_LETTER, ", ".join(f"%{f.letter} {f.name}" for f in FIELDS if f.letter)
    else:
        asked = value.lower().split(",")
        known, words = _BY_NAME, ", ".join(_BY_NAME)
    if unknown := [word for word in asked if word not in known]:
        sign = "%" if "%" in value else ""
        msg = f"dlqueue knows no field {safe(sign + unknown[0], 40)!r}; it knows {words}"
        raise click.BadParameter(msg, ctx=ctx, param=param)
    return value


def show_formatted(jobs: Sequence[JsonObject], form: str, *, header: bool) -> None:
    """Print *jobs* in a form that is `checked`."""
    if "%" not in form:
        fields = [_BY_NAME[word] for word in form.lower().split(",")]
        columns = [_COLUMNS.get(f.title) or Column(title=f.title) for f in fields]
        show(columns, [[f.text(job) for f in fields] for job in jobs], header=header)
        return
    if header:
        click.echo(_line(form, None))
    for job in jobs:
        click.echo(_line(form, job))


def _line(form: str, job: JsonObject | None) -> str:
    def filled(spec: re.Match[str]) -> str:
        field, size = _BY_LETTER[spec["letter"]], int(spec["size"] or 0)
        value = field.title if job is None else safe(field.text(job), _LONGEST)
        value = value[:size] if size else value
        return value.rjust(size) if spec["dot"] else value.ljust(size)

    return safe(_SPEC.sub(filled, form), 100 * _LONGEST).rstrip()
