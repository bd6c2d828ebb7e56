"""Cells guaranteed to jobs in one snapshot; see `cells`.

Running jobs come first, on the cells in which they lie, then those that GPUs are being taken back
for, then the other waiting ones by rank. What is then needed by no unused cell is outside of the
guarantees.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import F64, Bool, JobState
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.placement.cells.accounts import CellBook
from slurm_dl.placement.cells.configuration import CellLevel, Tree, forest
from slurm_dl.placement.resource_request import Ask, ResourceRequest, ResourceRequests
from slurm_dl.placement.scheme import GuaranteeQueue, Promise

MOST_TASKS = 64  # Tasks of one pending array that get cells in one decision

Shares = dict[int, int]  # GPUs by node


def promise(
    snap: Snapshot, levels: Mapping[str, Mapping[CellLevel, int]], queue: GuaranteeQueue
) -> Promise:
    """Compute the cells that are guaranteed to jobs.

    Args:
        levels: Cells by account.
    """
    return _Walk(snap, levels, queue).promise()


class _Walk:
    """One walk over the running and the waiting jobs, handing out cells as it goes."""

    def __init__(
        self, snap: Snapshot, levels: Mapping[str, Mapping[CellLevel, int]], queue: GuaranteeQueue
    ) -> None:
        nodes, held = snap.seen.nodes, snap.seen.held
        self._snap, self._queue, self._owners = snap, queue, frozenset(levels)
        down = np.flatnonzero(~nodes.up).tolist()
        self._trees, self._mistakes = forest(snap, levels, bad=down)
        self._books = [CellBook(tree.cells) for tree in self._trees]
        self._book_of = {n: i for i, t in enumerate(self._trees) for n in t.cells.leaf_of}
        stays = np.isin(held.job, queue.running)
        taken = np.bincount(held.node[stays], held.gpus[stays], minlength=len(nodes))
        self._idle: F64 = nodes.gpus - taken
        self._guaranteed = np.zeros(len(snap.jobs), dtype=np.bool_)
        self._cells: dict[int, Bool] = {}
        self._claimed = np.zeros(len(nodes), dtype=np.bool_)
        self._fixed = np.zeros(len(nodes), dtype=np.float64)

    def promise(self) -> Promise:
        self._settle_running()
        needs = ResourceRequests(self._snap)
        for row, liked in self._in_turn():
            self._find(row, needs.of(row), liked)
        for mask in self._cells.values():
            self._claimed |= mask
        return Promise(
            guaranteed=self._guaranteed,
            cells=self._cells,
            claimed=self._claimed,
            outside=self._outside(),
            returnable=self._queue.returnable,
            broken=self._broken(),
        )

    def _account(self, row: int) -> str:
        text = self._snap.seen.texts.get(JobId(int(self._snap.jobs.job_id[row])))
        return "" if text is None else text.account

    def _settle_running(self) -> None:
        """Running jobs on the cells in which they lie; first what nobody can move or guarantee."""
        managed, returnable = self._snap.managed_jobs, self._queue.returnable
        theirs: list[tuple[int, Shares]] = []
        for row in self._queue.running.tolist():
            shares = self._shares(row)
            if managed[row] and self._account(row) in self._owners:
                theirs.append((row, shares))
            elif not returnable[row]:
                self._occupy(shares)
        for row, shares in theirs:
            books = {self._book_of.get(node, -1) for node in shares}
            book = self._books[min(books)] if len(books) == 1 and min(books) >= 0 else None
            whole = self._snap.jobs.gpus[row] == int(self._snap.jobs.gpus[row])
            if shares and book and whole and book.settle(self._account(row), shares):
                self._guaranteed[row] = True
            elif not returnable[row]:
                self._occupy(shares)

    def _shares(self, row: int) -> Shares:
        held = self._snap.seen.held
        lo, hi = np.searchsorted(held.job, [row, row + 1])
        gpus = np.ceil(held.gpus[lo:hi]).astype(int).tolist()
        pairs = zip(held.node[lo:hi].tolist(), gpus, strict=True)
        return {node: g for node, g in pairs if g}

    def _occupy(self, shares: Shares) -> None:
        for node, gpus in shares.items():
            self._fixed[node] += gpus
            if node in self._book_of:
                self._books[self._book_of[node]].occupy({node: gpus})

    def _in_turn(self) -> Iterator[tuple[int, Bool | None]]:
        """Waiting jobs that may be guaranteed, with the nodes that are being freed for them."""
        snap, jobs = self._snap, self._snap.jobs
        rows, names = jobs.rows, snap.seen.nodes.name
        first: dict[int, Bool] = {}
        for handover in snap.handovers:
            nodes = frozenset(handover.nodes)
            liked = np.array([name in nodes for name in names], dtype=np.bool_)
            for job_id in handover.beneficiaries:
                row = rows.get(job_id)
                if row is not None and jobs.state[row] == JobState.PENDING:
                    first[row] = liked
        for row in (*first, *(r for r in self._queue.waiting.tolist() if r not in first)):
            # Of an array whose tasks may not be moved Slurm could start too many in one place.
            single = jobs.tasks[row] == 1 or self._queue.returnable[row]
            if single and self._account(row) in self._owners:
                yield row, first.get(row)

    def _find(self, row: int, need: ResourceRequest, liked: Bool | None) -> None:
        """Cells for the waiting job at *row*, if its account has any left that hold it."""
        account = self._account(row)
        for i, tree in enumerate(self._trees):
            book = self._books[i]
            if account not in tree.cells.accounts or not book.gpus_left(account):
                continue
            mine = np.zeros(len(self._snap.seen.nodes), dtype=np.bool_)
            for _ in range(min(int(self._snap.jobs.tasks[row]), MOST_TASKS)):
                nodes = self._try(account, need, liked, tree, book)
                if nodes is None:
                    break
                mine[list(nodes)] = True
            if mine.any():
                self._guaranteed[row], self._cells[row] = True, mine
                return

    def _try(
        self, account: str, need: ResourceRequest, liked: Bool | None, tree: Tree, book: CellBook
    ) -> tuple[int, ...] | None:
        """Nodes for one job or task: those being freed for it if they will do, else the best."""
        for only in (liked, None) if liked is not None else (None,):
            for ask in need.asks:
                size = _size(need, ask, tree)
                if size is None:
                    continue

                def cost(node: int, ask: Ask = ask, only: Bool | None = only) -> float | None:
                    if not need.allowed[node] or (only is not None and not only[node]):
                        return None
                    return max(0.0, ask.gpus - float(self._idle[node]))

                nodes = book.find(account, ask.n_nodes, size, cost)
                if nodes is not None:
                    self._idle[list(nodes)] -= ask.gpus
                    return nodes
        return None

    def _outside(self) -> Bool:
        """``(m,)`` bool, nodes that may be full of jobs that stay, and no guarantee is harmed.

        Leaves that hold such jobs come first, so that the others stay whole.
        """
        outside = np.ones(len(self._snap.seen.nodes), dtype=np.bool_)
        for tree in self._trees:
            cells = tree.cells
            if not cells.accounts:
                continue
            outside[list(cells.leaf_of)] = False
            fixed = {
                leaf: float(self._fixed[list(nodes)].sum())
                for leaf, nodes in cells.nodes_in.items()
            }
            in_order = sorted(
                (n for n in cells.leaf_of if n not in cells.bad and not self._claimed[n]),
                key=lambda n: (-self._fixed[n], -fixed[cells.leaf_of[n]], -cells.leaf_of[n], -n),
            )
            refused: set[tuple[bool, int, int]] = set()
            for node in in_order:
                leaf = cells.leaf_of[node]
                alike = (cells.is_whole(leaf), len(cells.nodes_in[leaf]), cells.free_gpus(node))
                if alike in refused:
                    continue
                if self._fixed[node] == cells.gpus or cells.fill(node):
                    outside[node] = True
                else:
                    refused.add(alike)
        return outside

    def _broken(self) -> dict[str, str]:
        words = dict(self._mistakes)
        for tree, book in zip(self._trees, self._books, strict=True):
            for account, text in tree.missing().items():
                words[account] = f"{words[account]}; {text}" if account in words else text
            for account in book.overrun:
                text = f"a job that cannot be taken back lies on a cell of {account}"
                words[account] = f"{words[account]}; {text}" if account in words else text
        return words


def _size(need: ResourceRequest, ask: Ask, tree: Tree) -> int | None:
    """GPUs of the share of a node that has enough of everything; None if no node has."""
    if need.exclusive:
        return tree.cells.gpus
    parts = [ask.gpus]
    for asked, each in zip((ask.cpus, ask.mem_mb), tree.share, strict=True):
        if asked:
            parts.append(asked / each if each else math.inf)
    most = max(parts)
    return math.ceil(most) if most <= tree.cells.gpus else None
