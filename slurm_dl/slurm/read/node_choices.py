"""The nodes a pending job may use at all: ``--exclude``, ``--nodelist``, ``--constraint``, gangs.

What is not understood, or not known yet, leaves a job no node: nobody gives way for a job that
could then not start. Exclusions are told apart from the rest: some of them may be ours. Thousands
of jobs that say the same share one array.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress

import numpy as np

from slurm_dl.model.errors import ClusterError
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import Bool, JobState
from slurm_dl.slurm.read.hostlists import NO_WORDS, expand
from slurm_dl.slurm.read.job_table import JobTable
from slurm_dl.slurm.read.node_reader import ClusterReading
from slurm_dl.slurm.read.vocabulary import is_number
from slurm_dl.slurm.tool_runner import Slurm
from slurm_dl.text import escaped

EXCLUDED_ARGUMENTS = (
    *("--noheader", "--all", "--local", "--array", "--states=PENDING"),
    "--format=%A %x",
)
"""Arguments for squeue that list the ``--exclude`` of each pending record."""


def read_excluded(text: str) -> tuple[dict[JobId, str], list[str]]:
    """Node list by job id in squeue's answer to `EXCLUDED_ARGUMENTS`, and the lines left out.

    Raises:
        ClusterError: No line can be read.
    """
    excluded, left_out = {}, []
    # Slurm takes only names of nodes, but an owner writes them.
    for line in text.splitlines():
        job_id, space, nodes = line.partition(" ")
        if is_number(job_id) and space:
            excluded[JobId(int(job_id))] = nodes
        else:
            left_out.append(line)
    if left_out and not excluded:
        msg = f"squeue says {escaped(left_out[0])[:80]!r}, which is no job id and node list"
        raise ClusterError(msg)
    return excluded, left_out


class Excluded:
    """The ``--exclude`` of pending jobs, read apart from the queue.

    squeue 22.05 prints it by ``-o`` only, and all the rest by ``-O`` only. So it costs a call of
    its own, made only while there are pending jobs of which it is not known.
    """

    def __init__(self, slurm: Slurm) -> None:
        """Read through *slurm*; nothing is known yet."""
        self._slurm = slurm
        self._nodes: dict[JobId, str] = {}
        self._known: set[JobId] = set()
        self._unknown: set[JobId] = set()

    def forget(self) -> None:
        """Ask about every job anew: owners may change it while the job waits."""
        self._known.clear()

    def ask_again(self, job_id: JobId) -> None:
        """Ask about this job anew: what it excludes has just been changed, or may have been."""
        self._known.discard(job_id)

    def learn(self, table: JobTable) -> None:
        """Ask about those pending jobs of *table* that are new.

        Raises:
            ClusterError: Slurm is silent, or nothing in the answer can be read.
        """
        pending = {
            job
            for job, state in zip(table.texts, table.state, strict=True)
            if state is JobState.PENDING
        }
        # A job that is requeued later is asked about again.
        self._known &= pending
        new = pending - self._known
        if len(new) == 1:
            # One job is cheap to ask for. It may just have ended: then it stays unknown.
            with suppress(ClusterError):
                self._ask(f"--jobs={next(iter(new))}")
        elif new:
            self._ask()
        self._unknown = pending - self._known
        for job in self._nodes.keys() - pending:
            del self._nodes[job]

    @property
    def nodes(self) -> Mapping[JobId, str]:
        """Node list by job id, of the pending jobs that exclude any."""
        return self._nodes

    @property
    def unknown(self) -> Collection[JobId]:
        """Pending jobs of which it is not known."""
        return self._unknown

    def _ask(self, *which: str) -> None:
        excluded, _ = read_excluded(self._slurm.run("squeue", *which, *EXCLUDED_ARGUMENTS))
        self._known |= excluded.keys()
        for job_id, nodes in excluded.items():
            self._nodes.pop(job_id, None)
            if nodes not in NO_WORDS:
                self._nodes[job_id] = nodes


Wish = tuple[str, str, int]
"""Required nodes and features in Slurm's words, and the number of nodes; see `JobTable`."""


class NodeChoices:
    """What jobs say about nodes as masks over the nodes of one reading; remembers each."""

    def __init__(self, site: ClusterReading) -> None:
        """For the nodes of *site*."""
        self._site = site
        self._wished: dict[Wish, Bool] = {}
        self._excluded: dict[str, Bool | None] = {}
        self._no_node = _read_only(np.zeros(len(site.nodes), np.bool_))

    def of(
        self, table: JobTable, exclusions: Excluded
    ) -> tuple[dict[JobId, Bool], dict[JobId, Bool]]:
        """See `Observed.choices` and `Observed.excluded`."""
        choices: dict[JobId, Bool] = {}
        for job, wish in table.restricted.items():
            mask = self._wished.get(wish)
            if mask is None:
                mask = self._wished[wish] = self._understand(wish)
            choices[job] = mask
        excluded: dict[JobId, Bool] = {}
        for job, nodes in exclusions.nodes.items():
            if nodes not in self._excluded:
                self._excluded[nodes] = self._still_there(nodes)
            named = self._excluded[nodes]
            if named is None:
                choices[job] = self._no_node
            elif named.any():
                excluded[job] = named
        # A component starts with its gang or not at all, and nobody knows the whole gang's need.
        choices.update(dict.fromkeys([*table.gang_parts, *exclusions.unknown], self._no_node))
        return choices, excluded

    def _still_there(self, nodes: str) -> Bool | None:
        """The nodes of a node list, as far as there are such nodes; None if it is none."""
        try:
            names = expand(nodes)
        except ClusterError:
            return None
        # A node that was taken out since stays in the list, and does no harm.
        return _read_only(np.isin(self._site.nodes.name, names))

    def _named(self, nodes: str) -> Bool | None:
        """The nodes of a node list; None if it is none, or names others than there are."""
        mask = np.zeros(len(self._site.nodes), np.bool_)
        try:
            mask[self._rows(expand(nodes))] = True
        except (ClusterError, KeyError):
            return None
        return _read_only(mask)

    def _understand(self, wish: Wish) -> Bool:
        required, features, n_nodes = wish
        mask = np.ones(len(self._site.nodes), np.bool_)
        if required not in NO_WORDS:
            named = self._named(required)
            # With fewer names than nodes Slurm adds nodes of its own choice.
            if named is None or int(named.sum()) != n_nodes:
                return self._no_node
            mask &= named
        if features not in NO_WORDS:
            # Bars, brackets, parentheses and counts stay in the names: no node has such a feature.
            names = set(features.replace("&", ",").split(","))
            mask &= np.array([names <= has for has in self._site.features], np.bool_)
        return _read_only(mask)

    def _rows(self, names: Collection[str]) -> list[int]:
        return sorted({self._site.row[name] for name in names})


def _read_only(mask: Bool) -> Bool:
    mask.setflags(write=False)
    return mask
