"""The columns of ``dlqueue``, and one job's cells in them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from slurm_dl.json_types import Json, JsonObject, as_list, number
from slurm_dl.report.terminal_table import Column
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
