"""Number of GPUs that each job holds on each node.

The queue names a job's nodes and its GPUs in all. A job that asked by the node holds the same
number on each; one that asked in all (``-G 6``) may hold 4 and 2, and only its details say so.
``scontrol show job -d`` is not safe from forgery (names and comments are printed raw into it), so
they are believed only where they add up with what the queue said of the same job. Nor does the
queue tell which GPUs a job has that asked for any type, and runs on a node with several.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from slurm_dl.model.jobs import JobState
from slurm_dl.model.nodes import Allocations
from slurm_dl.slurm.read.hostlists import expand
from slurm_dl.slurm.read.job_details import RunKey, doubled_in, gres_by_node, run_key
from slurm_dl.slurm.read.job_table import JobTable
from slurm_dl.slurm.read.node_reader import ClusterReading
from slurm_dl.slurm.read.tres import NO_GRES, Gres, parse_gres

Split = Mapping[str, Gres]
"""GPUs by node name."""


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
        return [
            row
            for row, even in enumerate(table.even)
            if not (even and (not mixed or self._types_known(table, row, mixed)))
            and table.state[row] is JobState.RUNNING
            and run_key(table, row) not in self._splits
        ]

    def _types_known(self, table: JobTable, row: int, mixed: set[str]) -> bool:
        """Whether the queue tells of which type the GPUs of a job are."""
        if table.gpu_type[row] or table.gpus[row] < 1 or not table.nodes[row]:
            return True
        return mixed.isdisjoint(self._expand(table.nodes[row]))

    def learn(self, told: Mapping[int, Split | None], table: JobTable, rows: Sequence[int]) -> None:
        """Take the splits of *rows* out of what was *told*, by job id.

        A job whose split does not add up is split evenly and not asked about again, but for those
        that are `doubled`.
        """
        doubled = doubled_in(told, table, rows)
        self.doubled |= doubled
        for row in rows:
            if run_key(table, row) in doubled:
                continue
            split = told.get(table.job_id[row])
            adds_up = (
                split is not None
                and set(split) == set(self._expand(table.nodes[row]))
                and sum(gres.gpus for gres in split.values()) == table.gpus[row]
            )
            self._splits[run_key(table, row)] = split if adds_up else None

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
                types.append([(named, gres.gpus)] if named else gres.types)
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
    return gres_by_node(detail, wanted, parse_gres)


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
