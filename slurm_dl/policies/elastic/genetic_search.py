"""Pollux' genetic search for the sizes and types of all jobs, over the GPUs of each on each node.

A state is a matrix of jobs x nodes. A row has the GPUs of one of the sizes that its job may have,
as many on each of its nodes; or none. States are crossed between two jobs by lot, the better of two
for each parent. A mutation gives a row another size, on nodes with room where there are some. A
repair follows:

    1. A node keeps one row with GPUs on several nodes.
    2. Rows of a node with more GPUs than it has are cut.
    3. A row that was cut counts as the size that is worth most of those that it covers.

The best of parents and children live on, no two of them with the same sizes. The first state is
what is held.

Source: Qiao et al., "Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning",
OSDI 2021, section 4.2. There a mutation draws single elements, and every number of GPUs is a size.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from slurm_dl.model.jobs import F64, I64
from slurm_dl.policies.elastic.size_and_type import Candidates

Matrix = npt.NDArray[np.int16]  # GPUs by row and node


class State(NamedTuple):
    """An answer."""

    option: I64  # ``(n,)`` index of the candidate that each job is given; -1: none
    gpus: Matrix  # ``(n, m)`` GPUs of each job on each node, those without GPUs left out


def search(what: Candidates, worth: F64, *, population: int = 100, generations: int = 100) -> State:
    """The best state found; the same at each call.

    A share of a GPU counts as one, and a node with GPUs of several types as one node of each.

    Args:
        worth: ``(k,)`` what each candidate adds; those that add nothing are never given.
        population: States that live on, 1 or more.
        generations: Times that as many children are made.
    """
    return _Search(what, worth, np.random.default_rng(0)).run(population, generations)


class _Search:
    """States of a population: ``(p, n)`` candidates and ``(p, n, m)`` GPUs.

    A further candidate, the last, is none; of the k + 1 it alone has no GPUs.
    """

    def __init__(self, what: Candidates, worth: F64, draw: np.random.Generator) -> None:
        self._draw, self._n, self._none = draw, len(what.rows), len(what.job)
        kind, node = (what.places >= 1).nonzero()
        self._room = what.places[kind, node].astype(np.int16)
        fits = (what.kind[:, None] < 0) | (what.kind[:, None] == kind)
        gpus = np.ceil(what.gpus).astype(np.int64)
        # A cluster that counts GPUs alone tells of one node for whatever size.
        nodes = np.maximum(what.nodes, -(-gpus // np.where(fits, self._room, 1).max(1, initial=1)))
        each, rest = np.divmod(gpus, nodes)
        self._gpus, self._nodes = np.append(gpus, 0), np.append(nodes, 1)
        self._least = np.append(np.where(rest, 1, each), 0)
        self._most = np.append(np.where(rest, gpus, each), 0)
        self._worth = np.append(worth, 0.0)
        self._fits = np.append(fits, np.ones((1, len(kind)), dtype=np.bool_), axis=0)
        good = (worth > 0) & (nodes <= fits.sum(axis=1))
        self._count = np.bincount(what.job[good], minlength=self._n)
        before = np.repeat(np.cumsum(self._count) - self._count, self._count)
        self._of = np.full((self._n, 1 + self._count.max(initial=0)), self._none)
        self._of[what.job[good], np.arange(len(before)) - before] = good.nonzero()[0]
        held = (good & what.held).nonzero()[0]
        held = held[np.unique(what.job[held], return_index=True)[1]]
        self._start = self._packed(held, what.job)

    def _packed(self, held: I64, job: I64) -> tuple[I64, Matrix]:
        """The sizes held, largest first, each on the nodes with the least room that suffices."""
        option, gpus = np.full(self._n, self._none), np.zeros((self._n, len(self._room)), np.int16)
        free, wide = self._room.copy(), np.zeros(len(self._room), dtype=np.bool_)
        for at in held[np.argsort(-self._gpus[held], kind="stable")].tolist():
            nodes, row = int(self._nodes[at]), gpus[job[at]]
            may = self._fits[at] & (free >= -(-self._gpus[at] // nodes)) & ~(wide & (nodes > 1))
            there = np.argsort(np.where(may, free, np.iinfo(np.int16).max), kind="stable")[:nodes]
            if may.sum() >= nodes:
                row[there] = self._gpus[at] // nodes
                row[there[: self._gpus[at] % nodes]] += 1
                option[job[at]], free = at, free - row
                wide[there] |= nodes > 1
        return option, gpus

    def run(self, population: int, generations: int) -> State:
        """See `search`."""
        option, gpus = self._start[0][None], self._start[1][None]
        for _ in range(generations):
            new = self._changed(*self._crossed(option, gpus, population))
            option, gpus = np.append(option, new[0], axis=0), np.append(gpus, new[1], axis=0)
            # Of equals the one that was there first.
            first = np.sort(np.unique(option, axis=0, return_index=True)[1])
            worth = self._worth[option[first]].sum(axis=1)
            best = first[np.argsort(-worth, kind="stable")[:population]]
            option, gpus = option[best], gpus[best]
        return State(np.where(option[0] == self._none, -1, option[0]), gpus[0])

    def _crossed(self, option: I64, gpus: Matrix, count: int) -> tuple[I64, Matrix]:
        """So many children; states stand best first."""
        parents = self._draw.integers(len(option), size=(2, 2, count)).min(axis=1)
        cut = self._draw.integers(self._n + 1, size=(count, 1))
        of = np.where(np.arange(self._n) < cut, *parents[..., None])
        return option[of, np.arange(self._n)], gpus[of, np.arange(self._n)]

    def _changed(self, option: I64, gpus: Matrix) -> tuple[I64, Matrix]:
        """The states after mutations, in place, and repaired."""
        # One row of a state on average, and one of those that have nothing; small sizes first.
        idle = (option == self._none) & (self._count > 0)
        rate = np.where(idle, 1 / np.maximum(idle.sum(axis=1, keepdims=True), 1), 1 / self._n)
        state, job = (self._draw.random(option.shape) < rate).nonzero()
        column = self._draw.integers(np.maximum(self._count[job], 1), size=(2, len(job)))
        drawn = self._of[job, column.min(axis=0)]
        free = (self._room - gpus.sum(axis=1))[state] + gpus[state, job]
        key = self._draw.random(free.shape) + (free >= self._least[drawn, None])
        rank = np.argsort(np.argsort(-np.where(self._fits[drawn], key, -1.0), axis=1), axis=1)
        wanted = np.where(rank < self._nodes[drawn, None], self._room, 0)
        option[state, job], gpus[state, job] = drawn, self._cut(wanted, drawn)
        return self._repaired(option, gpus)

    def _repaired(self, option: I64, gpus: Matrix) -> tuple[I64, Matrix]:
        """The states, in place, with each node used once and each row of a size."""
        # The first rows keep most: another order each time.
        turn = self._draw.permutation(self._n)
        found = gpus[:, turn]
        wide = (found > 0) & (self._nodes[option[:, turn]] > 1)[..., None]
        found[wide & (wide.cumsum(axis=1, dtype=np.int16) > 1)] = 0
        before = np.minimum(found.cumsum(axis=1, dtype=np.int32), self._room)
        gpus[:, turn] = np.diff(before, axis=1, prepend=0)
        state, job = (gpus.sum(axis=2) != self._gpus[option]).nonzero()
        rows = gpus[state, job]
        option[state, job] = chosen = self._covered(rows, self._of[job])
        gpus[state, job] = self._cut(rows, chosen)
        return option, gpus

    def _covered(self, rows: Matrix, among: I64) -> I64:
        """``(h,)`` for each row ``(h, m)`` the one of *among* ``(h, c)`` that is worth most."""
        best = np.full(len(rows), self._none)
        for column in among.T:
            there = -np.sort(-np.where(self._fits[column], rows, 0), axis=1)
            last = self._nodes[column, None] - 1
            least = np.take_along_axis(there, last, axis=1)[:, 0]
            total = np.take_along_axis(there.cumsum(axis=1), last, axis=1)[:, 0]
            covers = (least >= self._least[column]) & (total >= self._gpus[column])
            best = np.where(covers & (self._worth[column] > self._worth[best]), column, best)
        return best

    def _cut(self, rows: Matrix, option: I64) -> Matrix:
        """Rows ``(h, m)`` with no more GPUs than each candidate ``(h,)`` has, on its nodes."""
        order = np.argsort(-np.where(self._fits[option], rows, 0), axis=1, kind="stable")
        there = np.take_along_axis(np.where(self._fits[option], rows, 0), order, axis=1)
        there = np.minimum(there, self._most[option, None])
        there[np.arange(rows.shape[1]) >= self._nodes[option, None]] = 0
        there = np.diff(np.minimum(there.cumsum(axis=1), self._gpus[option, None]), prepend=0)
        found = np.zeros(rows.shape, dtype=np.int16)
        np.put_along_axis(found, order, there.astype(np.int16), axis=1)
        return found
