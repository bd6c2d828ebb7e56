"""From the configured cells of accounts to the trees of a cluster, one for each GPU type.

Nodes of a type that have another number of GPUs than most are in no tree: nobody owns them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from slurm_dl.model.snapshot import Snapshot
from slurm_dl.placement.cells.buddy_tree import OUTSIDE, CellTree

_DIGITS = 5  # A number of GPUs of a node has fewer


@dataclass(frozen=True, slots=True)
class CellLevel:
    """A level as the configuration names it.

    Attributes:
        gpu_type: GPU type; empty where the cluster has only one.
        size: GPUs inside a node, or the name of the level.
    """

    gpu_type: str
    size: int | Literal["node", "leaf"]

    def __str__(self) -> str:
        return f"{self.gpu_type}:{self.size}" if self.gpu_type else str(self.size)


@dataclass(frozen=True, slots=True)
class Tree:
    """The cells of one GPU type.

    Attributes:
        gpu_type: Its name; empty for GPUs without one.
        cells: The tree.
        share: CPUs and memory in MB for each GPU, as the smallest of the nodes has them.
    """

    gpu_type: str
    cells: CellTree
    share: tuple[float, float]

    def missing(self) -> Mapping[str, str]:
        """By account, in words, which unused cells cannot be produced."""
        words: dict[str, str] = {}
        for short in self.cells.shortfalls():
            who = ", ".join(short.accounts)
            text = (
                f"{short.missing} of the {self.level_name(short.level)} cells of {who} "
                "cannot be had on the nodes there are"
            )
            words |= {a: f"{words[a]}; {text}" if a in words else text for a in short.accounts}
        return words

    def level_name(self, level: int) -> str:
        """A level, as the configuration names it."""
        if level == self.cells.leaf_level:
            return "leaf"
        if level == self.cells.node_level:
            return "node"
        return f"{self.cells.sizes[level]}-GPU"


def levels_of(cells: Mapping[str, Mapping[str, int]]) -> Mapping[str, Mapping[CellLevel, int]]:
    """The configured cells with their levels understood.

    Raises:
        ValueError: One is no level, or a count is below 0.
    """
    known: dict[str, dict[CellLevel, int]] = {}
    for account, of in cells.items():
        if account == OUTSIDE:
            msg = "cells: an account that owns cells has a name"
            raise ValueError(msg)
        known[account] = {}
        for key, count in of.items():
            level = _level_of(key)
            if level is None:
                msg = (
                    f"cells: {key!r} of account {account} is no level; there are node, leaf, and "
                    "a number of GPUs inside a node, each with a GPU type before it if need be "
                    "(a100:node)"
                )
                raise ValueError(msg)
            if count < 0:
                msg = f"cells: {key!r} of account {account} must be 0 or more (got {count})"
                raise ValueError(msg)
            known[account][level] = known[account].get(level, 0) + count
    return known


def _level_of(key: str) -> CellLevel | None:
    """The level that *key* names; None if it names none."""
    gpu_type, colon, name = key.rpartition(":")
    if colon and not gpu_type.strip():
        return None
    if name == "node":
        return CellLevel(gpu_type, "node")
    if name == "leaf":
        return CellLevel(gpu_type, "leaf")
    gpus = int(name) if name.isascii() and name.isdecimal() and len(name) < _DIGITS else 0
    return CellLevel(gpu_type, gpus) if gpus else None


def forest(
    snap: Snapshot, owned: Mapping[str, Mapping[CellLevel, int]], *, bad: Collection[int]
) -> tuple[tuple[Tree, ...], Mapping[str, str]]:
    """The trees of the managed nodes, and by account what the cluster has no tree for.

    Args:
        bad: Rows of the nodes that no cell can be produced from.
    """
    nodes = snap.seen.nodes
    mine = snap.seen.node_in[snap.managed].any(axis=0) & (nodes.gpus >= 1)
    mine &= (nodes.gpus == np.floor(nodes.gpus)) & ~nodes.is_mixed
    types = sorted({int(t) for t in nodes.gpu_type[mine].tolist()})
    names = {t: snap.seen.gpu_types[t] if t >= 0 else "" for t in types}
    trees, mistakes = [], dict[str, str]()
    seen: set[CellLevel] = set()
    for t in types:
        rows = np.flatnonzero(mine & (nodes.gpu_type == t))
        counts = Counter(nodes.gpus[rows].astype(int).tolist())
        gpus = max(counts, key=lambda g: (counts[g], g))
        rows = rows[nodes.gpus[rows] == gpus]
        theirs = {
            account: {
                level: count
                for level, count in of.items()
                if level.gpu_type == names[t] or (not level.gpu_type and len(types) == 1)
            }
            for account, of in owned.items()
        }
        seen |= {level for of in theirs.values() for level in of}
        sizes, wrong = _sizes(theirs, gpus)
        mistakes |= wrong
        cells = CellTree(
            sizes,
            dict(zip(rows.tolist(), nodes.leaf[rows].tolist(), strict=True)),
            {account: _numbered(of, sizes) for account, of in theirs.items() if of},
            bad,
        )
        share = float(nodes.cpus[rows].min()) / gpus, float(nodes.mem_mb[rows].min()) / gpus
        trees.append(Tree(names[t], cells, share))
    for account, of in owned.items():
        for level in of:
            if level not in seen:
                mistakes[account] = _no_tree(account, level, sorted(names.values()))
    return tuple(trees), mistakes


def _sizes(
    owned: Mapping[str, Mapping[CellLevel, int]], gpus: int
) -> tuple[tuple[int, ...], dict[str, str]]:
    """The sizes of cells up to the node, each dividing the next; and whose do not."""
    asked = {level.size for of in owned.values() for level in of}
    sizes, mistakes = [1], dict[str, str]()
    for size in sorted(s for s in asked if isinstance(s, int) and s > 1):
        if size < gpus and gpus % size == 0 and size % sizes[-1] == 0:
            sizes.append(size)
            continue
        if size == gpus:
            continue
        for account, of in owned.items():
            if any(level.size == size for level in of):
                below = f"cells of {sizes[-1]}" if size < gpus and gpus % size == 0 else "the node"
                mistakes[account] = (
                    f"cells of {size} GPUs, of account {account}, do not go with {below} on nodes "
                    f"of {gpus} GPUs: each size must divide the next larger one"
                )
    return (*sizes, gpus) if gpus > 1 else (1,), mistakes


def _numbered(of: Mapping[CellLevel, int], sizes: tuple[int, ...]) -> dict[int, int]:
    numbered: dict[int, int] = {}
    for level, count in of.items():
        if level.size == "leaf":
            number = len(sizes)
        elif level.size == "node":
            number = len(sizes) - 1
        elif level.size in sizes:
            number = sizes.index(level.size)
        else:
            continue
        numbered[number] = numbered.get(number, 0) + count
    return numbered


def _no_tree(account: str, level: CellLevel, types: list[str]) -> str:
    there = ", ".join(types) or "none"
    if level.gpu_type:
        return (
            f"there are no GPUs of type {level.gpu_type!r} for account {account} (there: {there})"
        )
    return (
        f"cells {level!s} of account {account}: the cluster has GPUs of the types {there}; say "
        "which, as in a100:node"
    )
