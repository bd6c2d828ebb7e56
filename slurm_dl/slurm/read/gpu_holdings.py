"""Number of GPUs that each job holds on each node, and the devices of jobs that share GPUs.

The queue names a job's nodes and its GPUs in all. A job that asked by the node holds the same
number on each; one that asked in all (``-G 6``) may hold 4 and 2, and only its details say so. Nor
does the queue tell which GPUs a job has that asked for any type, and runs on a node with several.
Where Slurm does not account for gres/gpu (every site without slurmdbd), the queue has no more than
what a job asked for, and that can be changed without effect: 22.05.8 takes ``TresPerNode=`` for a
pending job, shows it, and starts the job with the GPUs it had asked for before. So there the
details of every run on a node with GPUs are read once, and count.

Of shares the queue has the number, and ``scontrol show node -d`` the devices with any (22.05.8
forgets a device there once one of its two jobs has left). Only a job's details name its device. A
job keeps its devices as long as it runs, so each is asked about once, and only while GPUs are
shared at all; jobs with whole GPUs on the same nodes are asked about too, because Slurm takes the
first device that has room.

``scontrol show job -d`` is not safe from forgery (names and comments are printed raw into it).
Where Slurm accounts for GPUs, details are believed only where they add up with the queue's record
of the same job. Elsewhere the truth stands in the job's own record, maybe beside what its owner
wrote: of each node the most that is told counts, up to all GPUs of the node, so that no lie makes a
job smaller. Who hides its details whole (by a line of a job in its name) is counted as it asked.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobState
from slurm_dl.model.nodes import SLACK, Allocations, SharedGpu
from slurm_dl.slurm.read.grammar import expand, is_number
from slurm_dl.slurm.read.job_details import (
    RunKey,
    doubled_in,
    gres_by_node,
    job_details,
    run_key,
)
from slurm_dl.slurm.read.job_table import JobTable
from slurm_dl.slurm.read.node_reader import ClusterReading
from slurm_dl.slurm.read.tres import NO_GRES, Gres, parse_gres
from slurm_dl.slurm.tool_runner import Slurm

Split = Mapping[str, Gres]  # GPUs by node name


class Holdings:
    """Builds the allocations; remembers node lists and splits while their jobs run.

    Attributes:
        doubled: Jobs of which a dump told twice, and which are asked for alone.
    """

    def __init__(self) -> None:
        """Know nothing yet."""
        self._names: dict[str, tuple[str, ...]] = {}
        self._splits: dict[RunKey, Split | None] = {}
        self.doubled: set[RunKey] = set()

    def unknown(self, table: JobTable, site: ClusterReading) -> list[int]:
        """Rows of running jobs whose split over their nodes has not been learnt yet."""
        mixed = set(itertools.compress(site.nodes.name, site.nodes.is_mixed.tolist()))
        with_gpus: set[str] = set()
        if not site.config.counts_gpus:
            with_gpus.update(itertools.compress(site.nodes.name, (site.nodes.gpus > 0).tolist()))
        return [
            row
            for row, state in enumerate(table.state)
            if state is JobState.RUNNING
            and run_key(table, row) not in self._splits
            and not (
                table.even[row]
                and (table.counted[row] or with_gpus.isdisjoint(self._expand(table.nodes[row])))
                and (not mixed or self._types_known(table, row, mixed))
            )
        ]

    def _types_known(self, table: JobTable, row: int, mixed: set[str]) -> bool:
        if table.gpu_type[row] or table.gpus[row] < 1 or not table.nodes[row]:
            return True
        return mixed.isdisjoint(self._expand(table.nodes[row]))

    def learn(
        self,
        told: Mapping[int, Split | None],
        table: JobTable,
        rows: Sequence[int],
        site: ClusterReading,
    ) -> None:
        """Take the splits of *rows* out of what was *told*, by job id.

        A job whose split is not believed is split evenly and not asked about again, but for those
        that are `doubled`.
        """
        doubled = doubled_in(told, table, rows)
        self.doubled |= doubled
        for row in rows:
            if run_key(table, row) in doubled:
                continue
            split = told.get(table.job_id[row])
            names = self._expand(table.nodes[row])
            if split is not None and not table.counted[row]:
                split = _own(split, names, site)
            elif split is not None and not (
                set(split) == set(names)
                and sum(gres.gpus for gres in split.values()) == table.gpus[row]
            ):
                split = None
            self._splits[run_key(table, row)] = split

    def correct(self, table: JobTable) -> None:
        """Let the GPUs of jobs be what they hold, where Slurm does not account for them."""
        for row, nodes in enumerate(table.nodes):
            if not nodes or table.counted[row]:
                continue
            split = self._splits.get(run_key(table, row))
            if split is not None:
                names = self._expand(nodes)
                table.gpus[row] = sum(split.get(name, NO_GRES).gpus for name in names)

    def allocations(self, table: JobTable, site: ClusterReading) -> Allocations:
        """One row for each job and node; nodes that Slurm no longer lists are passed over."""
        job: list[int] = []
        node: list[int] = []
        gpus: list[float] = []
        types: list[Sequence[tuple[str, float]]] = []
        cpus: list[int] = []
        mem_mb: list[int] = []
        splits = {}
        for row, listed in enumerate(table.nodes):
            if not listed:
                continue
            names = self._expand(listed)
            key = run_key(table, row)
            split = self._splits.get(key)
            if key in self._splits:
                splits[key] = split
            each = Gres(table.gpus[row] / len(names))
            named = table.gpu_type[row]
            each_cpus, more_cpus = divmod(table.cpus[row], len(names))
            each_mb, more_mb = divmod(table.mem_mb[row], len(names))
            for i, name in enumerate(names):
                at = site.row.get(name)
                if at is None:
                    continue
                job.append(row)
                node.append(at)
                gres = each if split is None else split.get(name, NO_GRES)
                gpus.append(gres.gpus)
                types.append([(named, gres.gpus)] if named and not gres.types else gres.types)
                cpus.append(each_cpus + (i < more_cpus))
                mem_mb.append(each_mb + (i < more_mb))
        self._splits = splits
        self.doubled &= {run_key(table, row) for row, nodes in enumerate(table.nodes) if nodes}
        self._names = {text: self._names[text] for text in table.nodes if text}
        held = Allocations(
            job=np.array(job, np.int32),
            node=np.array(node, np.int32),
            gpus=np.array(gpus, np.float64),
            cpus=np.array(cpus, np.int32),
            mem_mb=np.array(mem_mb, np.int64),
        )
        return _typed(held, site, types)

    def _expand(self, text: str) -> tuple[str, ...]:
        names = self._names.get(text)
        if names is None:
            names = self._names[text] = expand(text)
        return names


def splits_in(detail: str, wanted: Collection[int]) -> dict[int, Split | None]:
    """GPUs by node of the *wanted* jobs in ``scontrol show job -d -o``; see `gres_by_node`."""
    return gres_by_node(detail, wanted, parse_gres, lambda *told: max(told, key=_gpus))


def _gpus(gres: Gres) -> float:
    return gres.gpus


def _own(split: Split, names: Collection[str], site: ClusterReading) -> Split | None:
    """Of *split* the part on *names*, no more than each node has; None if a node is not told."""
    own: dict[str, Gres] = {}
    for name in names:
        gres, at = split.get(name), site.row.get(name)
        if gres is None:
            return None
        most = math.inf if at is None else float(site.nodes.gpus[at])
        own[name] = gres if gres.gpus <= most else Gres(most)
    return own


def _typed(
    held: Allocations, site: ClusterReading, types: Sequence[Sequence[tuple[str, float]]]
) -> Allocations:
    """*held*, with the GPUs of each of the *types* that are told."""
    if site.nodes.by_type is None:
        return held
    by_type = held.gpus_by_type(site.nodes, len(site.type_row)).copy()
    for i, told in enumerate(types):
        if told and all(name in site.type_row for name, _ in told):
            by_type[:, i] = 0.0
            for name, count in told:
                by_type[site.type_row[name], i] = count
    return dataclasses.replace(held, by_type=by_type)


_DEVICES = re.compile(
    r"(?:gpu|shard|mps)[^,()]*\((?:IDX:([0-9,-]+)|([0-9]+/[0-9]+(?:,[0-9]+/[0-9]+)*))\)"
)
"""``shard:2(IDX:1)``; from 23.11 on ``shard:1(0/4,1/4)``: of each device what it has of all."""

_MOST_DEVICES: Final = 1024

Devices = Mapping[str, tuple[int, ...]]  # Indices of a job's devices by node name


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
    return gres_by_node(detail, wanted, _indices, lambda _, later: later)


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
