"""Resources of a node that jobs may use: sinfo also counts what the node keeps for itself.

Imports little, so that commands begin fast.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

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
