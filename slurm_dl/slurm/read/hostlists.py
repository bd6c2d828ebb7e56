"""Slurm's node lists, ``n[01-03,7],login``: the names in one, how many they are, and one of names.

Users can write what looks like one into what Slurm prints, so none is made longer than it may be.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator

from ClusterShell.NodeSet import NodeSet

from slurm_dl.model.errors import ClusterError
from slurm_dl.slurm.read.vocabulary import is_number
from slurm_dl.text import escaped

NO_WORDS = frozenset({"", "(null)", "None", "N/A"})
"""How the tools write an empty list."""

MOST_NODES = 100_000
"""More in one list is no list of nodes: users can write ``Nodes=n[0-999999999]`` into a job's name,
which Slurm prints as it is."""

# Expanded here: ClusterShell would look up groups (@), take n1[1-20] for 110 nodes, and make all
# names of a list, however many, before it could be asked how many they are.
_SPANS = r"\[[0-9]+(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)*\]"
_NODE_LIST = re.compile(rf"(?:[\w.-]|{_SPANS})+(?:,(?:[\w.-]|{_SPANS})+)*", re.ASCII)
_WORD = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_LONGEST_NAME = 255
# ClusterShell folds no number of more than 100.
_MOST_DIGITS = 100
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")


def expand(nodes: str) -> tuple[str, ...]:
    """The names in a Slurm node list, in its order.

    Raises:
        ClusterError: It is no node list, or one of more than `MOST_NODES` nodes.
    """
    if nodes in NO_WORDS:
        return ()
    if not 0 < names_in(nodes) <= MOST_NODES:
        msg = f"node list {escaped(nodes[:80])} cannot be read, or has too many nodes"
        raise ClusterError(msg)
    words = _WORD.findall(nodes)
    return tuple(dict.fromkeys(name for word in words for name in _expanded(word)))


def names_in(nodes: str) -> int:
    """Number of names in a Slurm node list, repeated ones counted again; 0 if it is none.

    Nothing is made for that: one list may name the same nodes a hundred times.
    """
    return sum(map(_names_of, _WORD.findall(nodes))) if _NODE_LIST.fullmatch(nodes) else 0


def _names_of(word: str) -> int:
    """Number of names in a word of a node list; none is made for that."""
    if sum(map(len, _BRACKETS.split(word)[::2])) > _LONGEST_NAME or _digits_of(word) > _MOST_DIGITS:
        return 0
    return math.prod(
        sum(max(0, last - first + 1) for first, last, _ in _spans(inside))
        for inside in _BRACKETS.findall(word)
    )


def _digits_of(word: str) -> int:
    """No name that a word stands for has more digits than this."""
    return sum(
        max(len(number) for number in re.split("[,-]", part))
        if place % 2
        else sum(map(str.isdigit, part))
        for place, part in enumerate(_BRACKETS.split(word))
    )


def _expanded(word: str) -> Iterator[str]:
    parts = [
        [f"{n:0{width}}" for first, last, width in _spans(part) for n in range(first, last + 1)]
        if number % 2
        else [part]
        for number, part in enumerate(_BRACKETS.split(word))
    ]
    return map("".join, itertools.product(*parts))


def _spans(inside: str) -> Iterator[tuple[int, int, int]]:
    """First, last and width of each span between brackets, ``01-03,7``."""
    for span in inside.split(","):
        first, _, last = span.partition("-")
        if is_number(first) and is_number(last or first):
            yield int(first), int(last or first), len(first)


def fold(names: Iterable[str]) -> str:
    """A Slurm node list of *names*, which are names of nodes; empty if there are none."""
    return str(NodeSet.fromlist(names))
