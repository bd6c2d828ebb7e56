"""Device that a job has on a node, for jobs that share GPUs.

The queue says how many shares a job holds, and ``scontrol show node -d`` on which devices there
are any, not whose (22.05.8 also forgets a device there once one of its two jobs has left). Only a
job's details name its device. A job keeps its devices as long as it runs, so each is asked about
once, and only while GPUs are shared at all; jobs with whole GPUs on the same nodes are asked about
too, because Slurm takes the first device that has room.

Details are not safe from forgery (names and comments are printed raw into them), so they are
believed only where they add up with what the queue said of the same job.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobState
from slurm_dl.model.shared_gpu import SLACK, SharedGpu
from slurm_dl.slurm.read.hostlists import expand
from slurm_dl.slurm.read.job_details import (
    RunKey,
    doubled_in,
    gres_by_node,
    job_details,
    run_key,
)
from slurm_dl.slurm.read.job_table import JobTable
from slurm_dl.slurm.read.node_reader import ClusterReading
from slurm_dl.slurm.read.vocabulary import is_number
from slurm_dl.slurm.tool_runner import Slurm

_DEVICES = re.compile(
    r"(?:gpu|shard|mps)[^,()]*\((?:IDX:([0-9,-]+)|([0-9]+/[0-9]+(?:,[0-9]+/[0-9]+)*))\)"
)
"""``shard:2(IDX:1)``; from 23.11 on ``shard:1(0/4,1/4)``: of each device what it has of all."""

_MOST_DEVICES: Final = 1024

Devices = Mapping[str, tuple[int, ...]]
"""Indices of a job's devices by node name."""


class Shares:
    """Learns the devices of the jobs on nodes whose GPUs are shared, and remembers them."""

    def __init__(self, slurm: Slurm) -> None:
        """Ask through *slurm*; nothing is known yet."""
        self._slurm = slurm
        self._known: dict[RunKey, Devices | None] = {}
        self._doubled: set[RunKey] = set()

    def learn(self, table: JobTable) -> None:
        """Ask about jobs that have started on such nodes: one command at most, none otherwise."""
        parts = [row for row in _holding(table) if _is_part(table, row)]
        if not parts:
            self._known = {}
            return
        # Those with whole GPUs only matter where others share.
        where = {name for row in parts for name in _names(table, row)}
        rows = [
            row
            for row in _holding(table)
            if table.gpus[row] > 0 and not where.isdisjoint(_names(table, row))
        ]
        keys = {run_key(table, row) for row in rows}
        self._known = {key: devices for key, devices in self._known.items() if key in keys}
        self._doubled &= keys
        unknown = [
            row
            for row in rows
            if table.state[row] is JobState.RUNNING and run_key(table, row) not in self._known
        ]
        if unknown:
            self._ask(table, unknown)

    def gpus(self, table: JobTable, site: ClusterReading) -> tuple[SharedGpu, ...]:
        """The devices of which jobs are known to hold shares, by node and index."""
        tenants: dict[tuple[int, int], list[tuple[JobId, float]]] = {}
        taken: set[tuple[int, int]] = set()
        for row in _holding(table):
            devices = self._known.get(run_key(table, row)) or {}
            for name, indices in devices.items():
                node = site.row.get(name)
                if node is None:
                    continue
                if not _is_part(table, row):
                    taken.update((node, index) for index in indices)
                    continue
                share = table.gpus[row] / len(devices)
                here = tenants.setdefault((node, indices[0]), [])
                here.append((JobId(table.job_id[row]), share))
        full = {at for at, held in tenants.items() if sum(s for _, s in held) > 1 - SLACK}
        return tuple(
            SharedGpu(
                node=node,
                index=index,
                jobs=tuple(job for job, _ in sorted(held)),
                shares=tuple(share for _, share in sorted(held)),
                first=not site.config.spreads_shares
                and all((node, before) in taken | full for before in range(index)),
            )
            for (node, index), held in sorted(tenants.items())
        )

    def _ask(self, table: JobTable, rows: Sequence[int]) -> None:
        found = job_details(self._slurm, table, rows, self._doubled)
        if found is None:
            return  # Until it is known it counts as alone on some device.
        detail, asked = found
        told = devices_in(detail, {table.job_id[row] for row in asked})
        doubled = doubled_in(told, table, asked)
        self._doubled |= doubled
        for row in asked:
            if run_key(table, row) in doubled:
                continue
            self._known[run_key(table, row)] = _believed(told.get(table.job_id[row]), table, row)


def _holding(table: JobTable) -> Iterator[int]:
    return (row for row, nodes in enumerate(table.nodes) if nodes)


@functools.lru_cache(maxsize=65_536)
def _expanded(nodes: str) -> tuple[str, ...]:
    return expand(nodes)


def _names(table: JobTable, row: int) -> tuple[str, ...]:
    return _expanded(table.nodes[row])


def _is_part(table: JobTable, row: int) -> bool:
    """Whether it holds parts of GPUs: two halves on two nodes are parts, and one GPU in all."""
    each = table.gpus[row] / table.n_nodes[row]
    return abs(each - round(each)) > SLACK and table.even[row]


def _believed(told: Devices | None, table: JobTable, row: int) -> Devices | None:
    """*told*, if it has as many devices on the same nodes as the queue lists for the job."""
    names = _names(table, row)
    if told is None or set(told) != set(names):
        return None
    count = sum(len(indices) for indices in told.values())
    expected = len(names) if _is_part(table, row) else table.gpus[row]
    one_each = not _is_part(table, row) or all(len(indices) == 1 for indices in told.values())
    return told if count == expected and one_each else None


def devices_in(detail: str, wanted: Collection[int]) -> dict[int, Devices | None]:
    """Devices by node of the *wanted* jobs in ``scontrol show job -d -o``; see `gres_by_node`."""
    return gres_by_node(detail, wanted, _indices)


@functools.lru_cache(4096)
def _indices(gres: str) -> tuple[int, ...]:
    """The devices that one node's GRES names, ascending."""
    indices: set[int] = set()
    for listed, counts in _DEVICES.findall(gres):
        for part in listed.split(",") if listed else ():
            first, _, last = part.partition("-")
            if is_number(first) and is_number(last or first):
                indices.update(range(int(first), min(int(last or first), _MOST_DEVICES) + 1))
        used = [count.partition("/")[0] for count in counts.split(",")] if counts else []
        indices.update(index for index, count in enumerate(used) if int(count))
    return tuple(sorted(indices))
