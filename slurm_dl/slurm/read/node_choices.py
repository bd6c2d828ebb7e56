"""The nodes a job may use at all: ``--exclude``, ``-w``, ``--constraint``, ``--tmp``, GRES, gangs.

What is not understood, or not known yet, leaves a job no node: nobody gives way for a job that
could then not start. Exclusions are told apart from the rest: some of them may be ours. Thousands
of jobs that say the same share one array.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from slurm_dl.model.errors import ClusterError
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import Bool, JobState
from slurm_dl.model.nodes import OtherGres
from slurm_dl.slurm.read.conditions import OPTIONS, PER_CORE, SWITCHES, ConditionReader
from slurm_dl.slurm.read.grammar import NO_WORDS, expand
from slurm_dl.slurm.read.job_reader import MAY_START
from slurm_dl.slurm.read.job_table import JobTable
from slurm_dl.slurm.read.node_reader import ClusterReading

Gres = tuple[tuple[str, float], ...]
"""What a job takes of each node beside GPUs; see `TresRequest.others`."""

Wish = tuple[str, str, int]
"""Required nodes and features in Slurm's words, and the number of nodes; see `JobTable`."""


@dataclass(frozen=True, slots=True)
class Choices:
    """Requests of jobs on nodes; each attribute is the one of `Observed`."""

    choices: dict[JobId, Bool]
    excluded: dict[JobId, Bool]
    unmodelled: dict[JobId, str]
    gres: OtherGres | None


class NodeChoices:
    """Requests of jobs as masks over the nodes of one reading; each mask is kept."""

    def __init__(self, site: ClusterReading) -> None:
        """For the nodes of *site*."""
        self._site = site
        self._unmodelled = OPTIONS - ({SWITCHES} if site.has_topology else set())
        self._unmodelled -= PER_CORE if site.one_thread_per_core else set()
        self._understood = cache(self._understand)
        self._excluded = cache(self._still_there)
        self._with_tmp = cache(lambda tmp_mb: _read_only(site.tmp_mb >= tmp_mb))
        self._offering = cache(self._offers)
        self._no_node = _read_only(np.zeros(len(site.nodes), np.bool_))

    def of(self, table: JobTable, conditions: ConditionReader) -> Choices:
        """Of the jobs of *table*, as far as *conditions* are known."""
        choices = {job: self._understood(wish) for job, wish in table.restricted.items()}
        row_of = {job: row for row, job in enumerate(table.texts)}
        excluded: dict[JobId, Bool] = {}
        unmodelled = dict(table.unmodelled)
        for job, asked in conditions.items():
            row = row_of.get(job)
            if row is None or table.state[row] not in MAY_START:
                continue
            for option in asked.unknown(self._site.config.licences):
                if option in self._unmodelled:
                    unmodelled.setdefault(job, option)
            if asked.switches and self._site.has_switches and table.n_nodes[row] > 1:
                may = choices.get(job, self._site.nodes.up) & self._site.nodes.up
                choices[job] = self._on_switches(asked.switches, may, table.partition[row])
            if asked.tmp_mb:
                choices[job] = _both(choices.get(job), self._with_tmp(asked.tmp_mb))
            named = self._excluded(asked.excluded) if asked.excluded else self._no_node
            if named is None:
                choices[job] = self._no_node
            elif named.any() and table.state[row] is JobState.PENDING:
                # Of a job that runs it is what we excluded before it started, or nothing.
                excluded[job] = named
        for job, each in table.gres.items():
            choices[job] = _both(choices.get(job), self._offering(each))
        # A component starts with its gang or not at all, and nobody knows the whole gang's need.
        nowhere = [*table.gang_parts, *conditions.unknown, *unmodelled]
        choices.update(dict.fromkeys(nowhere, self._no_node))
        return Choices(choices, excluded, unmodelled, self._other_gres(table))

    def _offers(self, gres: Gres) -> Bool:
        offers = [all(of.get(name, 0.0) >= n for name, n in gres) for of in self._site.other_gres]
        return _read_only(np.array(offers, np.bool_))

    def _on_switches(self, most: int, within: Bool, partition: int) -> Bool:
        """Of the nodes *within*, those of the *most* leaves with the most GPUs: any will suit."""
        leaf = self._site.nodes.leaf
        may = within & self._site.node_in[partition] if partition >= 0 else within
        gpus = np.bincount(leaf[may], self._site.nodes.gpus[may], 1)
        return _read_only(may & np.isin(leaf, np.argsort(-gpus, kind="stable")[:most]))

    def _other_gres(self, table: JobTable) -> OtherGres | None:
        site, asked = self._site, {job: dict(each) for job, each in table.gres.items()}
        total = {
            name: [float(offers.get(name, 0.0)) for offers in site.other_gres]
            for name in {name for each in asked.values() for name in each}
        }
        # A partition's MaxCPUsPerNode is handed out as a GRES is.
        most = [math.inf if one is None else one.max_cpus_per_node for one in site.limits]
        if min(most, default=math.inf) < math.inf:
            names = [f"MaxCPUsPerNode of {partition}" for partition in site.partitions]
            limited = {p: names[p] for p, cpus in enumerate(most) if cpus < math.inf}
            for p, name in limited.items():
                total[name] = np.where(site.node_in[p], most[p], 0.0).tolist()
            for row, job in enumerate(table.texts):
                if table.partition[row] in limited and table.state[row] in MAY_START:
                    cpus = math.ceil(table.cpus[row] / table.n_nodes[row])
                    asked.setdefault(job, {})[limited[table.partition[row]]] = cpus
        if not asked:
            return None
        order = tuple(sorted(total))
        return OtherGres(
            names=order,
            total=np.array([total[name] for name in order], np.float64),
            asked={job: _by_name(order, each) for job, each in asked.items()},
        )

    def _still_there(self, nodes: str) -> Bool | None:
        """The nodes of a node list, as far as there are such nodes; None if it is none."""
        try:
            names = expand(nodes)
        except ClusterError:
            return None
        # A node that was taken out since stays in the list, and does no harm.
        return _read_only(np.isin(self._site.nodes.name, names))

    def _understand(self, wish: Wish) -> Bool:
        required, features, n_nodes = wish
        mask = np.ones(len(self._site.nodes), np.bool_)
        if required not in NO_WORDS:
            named = self._excluded(required)
            # With fewer names than nodes Slurm adds nodes of its own choice.
            if named is None or int(named.sum()) != n_nodes:
                return self._no_node
            mask &= named
        if features not in NO_WORDS:
            # Bars, brackets, parentheses and counts stay in the names: no node has such a feature.
            names = set(features.replace("&", ",").split(","))
            mask &= np.array([names <= has for has in self._site.features], np.bool_)
        return _read_only(mask)


def _both(one: Bool | None, other: Bool) -> Bool:
    return other if one is None else _read_only(one & other)


def _by_name(names: Sequence[str], gres: Mapping[str, float]) -> tuple[float, ...]:
    """Units that a job takes of each of *names*; of a type also counts for the GRES as a whole."""
    return tuple(
        sum(n for asked, n in gres.items() if asked == name or asked.startswith(f"{name}:"))
        for name in names
    )


def _read_only(mask: Bool) -> Bool:
    mask.setflags(write=False)
    return mask
