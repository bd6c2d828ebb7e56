"""Slurm's notation of GRES, spans of time and the resources of a node that jobs may use.

sinfo also counts the resources that a node keeps for itself. The module imports little, so that
commands begin fast.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_NO_COUNT = re.compile(r"\([^)]*\)")
_SHARED = re.compile(r"(?:^|:)no_consume\b")
_GRES = re.compile(r"(gres[:/])?([\w-]+)(?:[:=](.+))?", re.ASCII)
_OF_GPUS = frozenset({"gpu", "shard", "mps"})
_COUNT = re.compile(r"([0-9]+)([kKmMgGtT]?)")
_MOST = 1e15
"""Units of a GRES; callers refuse far fewer, and it is no infinity."""
_TIMES = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}
_SPAN = re.compile(r"(?:([0-9]{1,9})-)?([0-9]{1,9})(?::([0-9]{1,9}))?(?::([0-9]{1,9}))?")


def gres_items(text: str) -> Iterator[tuple[str, str, float]]:
    """Kind, type and count of each GPU, shard and mps in a comma-separated list.

    The type is empty if none is named; an item without a count is one.
    """
    for _, kind, rest in _items(text):
        if kind in _OF_GPUS:
            yield kind, *_type_and_count(rest)


def other_gres(text: str, *, of_node: bool) -> Iterator[tuple[str, str, float]]:
    """The same of every other GRES.

    Args:
        of_node: The list is a node's: it says gres before none. A TRES string of a job has other
            things in it, too, and says so before each.
    """
    for word, kind, rest in _items(text):
        if kind not in _OF_GPUS and (of_node or word):
            gres_type, count = _type_and_count(rest)
            # Any number of jobs may hold what is not consumed.
            yield kind, gres_type, _MOST if of_node and _SHARED.search(rest) else count


def _items(text: str) -> Iterator[tuple[str, str, str]]:
    for item in _NO_COUNT.sub("", text).split(","):
        found = _GRES.fullmatch(item.strip())
        if found is not None:
            word, kind, rest = found.groups(default="")
            yield word, kind, rest


def _type_and_count(rest: str) -> tuple[str, float]:
    """Split ``a100:4``, ``a100=4``, ``4``, ``a100`` or nothing, which is one of any type."""
    rest = _SHARED.sub("", rest)
    if not rest:
        return "", 1.0
    *kind, last = re.split("[:=]", rest)
    count = _COUNT.fullmatch(last)
    if count is None:
        return ":".join([*kind, last]), 1.0
    return ":".join(kind), min(float(count[1]) * _TIMES[count[2].lower()], _MOST)


def span_s(text: str) -> float | None:
    """``M``, ``M:S``, ``H:M:S``, ``D-H``, ``D-H:M`` or ``D-H:M:S`` in seconds; None for others."""
    found = _SPAN.fullmatch(text)
    if found is None:
        return None
    days, first, second, third = (int(part or 0) for part in found.groups())
    if found[1] is None and found[4] is None:
        return first * 60.0 + second
    return ((days * 24 + first) * 60 + second) * 60.0 + third


_NUMBER = re.compile("[0-9]{1,12}", re.ASCII)
_WORD = re.compile(
    r" (CPUEfctv|CPUTot|RealMemory|MemSpecLimit|ThreadsPerCore|TmpDisk|Gres|Partitions)"
    r"=(\S*)(?= |$)",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class UsableNode:
    """CPUs without CoreSpecCount, memory without MemSpecLimit and disk under TmpFS, both MB.

    ``threads`` is hardware threads of a core; 0 if that is not told.
    """

    cpus: int
    mem_mb: int
    tmp_mb: int
    threads: int = 0


def words_of(text: str) -> dict[str, dict[str, str]]:
    """Slurm's words on CPUs, memory, disk, GRES and partitions of each node, by its name."""
    found = {}
    for line in text.splitlines():
        name, space, rest = line.partition(" ")
        if name.startswith("NodeName="):
            # The first of equal words: what admins write (Comment, Extra, Reason) comes last.
            found[name.removeprefix("NodeName=")] = dict(reversed(_WORD.findall(space + rest)))
    return found


def keeps_for_itself(words: Mapping[str, str]) -> bool:
    """Whether a node with these *words* keeps cores or memory from jobs."""
    cpus = words.get("CPUTot")
    return words.get("CPUEfctv", cpus) != cpus or words.get("MemSpecLimit", "0") != "0"


def read_usable(text: str) -> dict[str, UsableNode]:
    """Nodes by name in ``scontrol --oneliner show node``; one that is not told whole is left out.

    A job that asks for all that sinfo counts of a node would never start there.
    """
    found = {}
    for name, words in words_of(text).items():
        cpus, mem_mb = _number(words, "CPUEfctv", "CPUTot"), _number(words, "RealMemory")
        if cpus is not None and mem_mb is not None:
            usable_mb = max(0, mem_mb - (_number(words, "MemSpecLimit") or 0))
            tmp_mb, threads = _number(words, "TmpDisk"), _number(words, "ThreadsPerCore")
            found[name] = UsableNode(cpus, usable_mb, tmp_mb or 0, threads or 0)
    return found


def _number(words: Mapping[str, str], *keys: str) -> int | None:
    told = next((words[key] for key in keys if key in words), "")
    return int(told) if _NUMBER.fullmatch(told) else None
