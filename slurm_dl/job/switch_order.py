"""Which node lies under which leaf switch, and in what order a job's nodes are best counted.

Neighbouring ranks talk to each other most: ring and tree all-reduce go from rank to rank. So nodes
of one switch follow one another, and nothing else about the order changes.

Source: the rank order of HiPS (NetAI 2018), which follows the servers' network.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

MOST_NODES = 100_000
"""More in one list is no list of nodes."""

_MOST_BRACKETS = 8
"""In one name; Slurm itself writes two."""

_LINE = re.compile(r"^\s*(SwitchName|BlockName)=(\S+)\s(.*)$", re.MULTILINE)
_NODES = re.compile(r"(?:^|\s)Nodes=(\S+)")
_ABOVE = re.compile(r"(?:^|\s)(?:Switches=[^\s(]|Level=[1-9])")
_ITEM = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)


def leaves(text: str) -> dict[str, str]:
    """Name of the leaf switch or block of each node in what ``scontrol show topology`` says.

    Switches above others are passed over, and so is what is not understood.
    """
    found: dict[str, str] = {}
    for kind, name, rest in _LINE.findall(text):
        nodes = _NODES.search(rest)
        if nodes is None or (kind == "SwitchName" and _ABOVE.search(rest)):
            continue
        for node in hosts(nodes[1]):
            found.setdefault(node, name)
    return found


def is_tree(text: str) -> bool:
    """Whether the topology is one of switches."""
    return any(kind == "SwitchName" for kind, _, _ in _LINE.findall(text))


def hosts(text: str) -> list[str]:
    """Each node of a list in Slurm's words, ``n[01-03,7],gpu1``; empty if it is no such list."""
    names: list[str] = []
    for word in _split(text):
        for name in _expand(word):
            names.append(name)
            if len(names) > MOST_NODES:
                return []
    return names


def switch_order(nodes: Sequence[str], leaf_of: Mapping[str, str]) -> list[str]:
    """*nodes* with those of one leaf together, else as they come.

    The first node stays first: the batch script runs there, and others meet it under its address.
    """
    first: dict[str, int] = {}
    for place, node in enumerate(nodes):
        first.setdefault(leaf_of.get(node, ""), place)
    return sorted(nodes, key=lambda node: first[leaf_of.get(node, "")])


def _split(text: str) -> Iterator[str]:
    """The words between commas that stand in no bracket."""
    depth = start = 0
    for place, char in enumerate(text):
        depth += (char == "[") - (char == "]")
        if char == "," and depth == 0:
            yield text[start:place]
            start = place + 1
    yield text[start:]


def _expand(word: str) -> Iterator[str]:
    """The names of ``pre[01-03,7]post``, with as many brackets as there are."""
    if word.count("[") > _MOST_BRACKETS:
        return
    before, bracket, rest = word.partition("[")
    if not bracket:
        if word and "]" not in word and word != "(null)":
            yield word
        return
    inside, closed, after = rest.partition("]")
    if not closed:
        return
    for item in inside.split(","):
        match = _ITEM.fullmatch(item)
        if match is None:
            continue
        low, high = match[1], match[2] or match[1]
        if not int(low) <= int(high) < int(low) + MOST_NODES:
            continue
        for number in range(int(low), int(high) + 1):
            for tail in _expand(after) if after else ("",):
                yield f"{before}{number:0{len(low)}}{tail}"
