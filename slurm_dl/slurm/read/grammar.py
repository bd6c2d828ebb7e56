"""Slurm's notation of GRES, spans of time, resources of a node, node lists and names of jobs.

Of a node it is the resources that jobs may use; sinfo also counts those that it keeps for itself.
Users can write what looks like a node list into what Slurm prints, so none is made longer than it
may be. The module imports little, so that commands begin fast.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from slurm_dl.model.errors import ClusterError
from slurm_dl.text import escaped

_NO_COUNT = re.compile(r"\([^)]*\)")
_SHARED = re.compile(r"(?:^|:)no_consume\b")
_GRES = re.compile(r"(gres[:/])?([\w-]+)(?:[:=](.+))?", re.ASCII)
_OF_GPUS = frozenset({"gpu", "shard", "mps"})
_COUNT = re.compile(r"([0-9]+)([kKmMgGtT]?)")
_MOST = 1e15  # Units of a GRES; callers refuse far fewer, and it is no infinity
_TIMES = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}


def is_number(text: str) -> bool:
    """True if *text* is a whole number as Slurm writes them: 18 ASCII digits at most."""
    return text.isdigit() and text.isascii() and len(text) <= 18  # noqa: PLR2004


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


NO_WORDS = frozenset({"", "(null)", "None", "N/A"})  # How the tools write an empty list

MOST_NODES = 100_000
"""More in one list is no list of nodes: users can write ``Nodes=n[0-999999999]`` into a job's name,
which Slurm prints as it is."""

# Expanded here: ClusterShell would look up groups (@), take n1[1-20] for 110 nodes, and make all
# names of a list, however many, before it could be asked how many they are.
_SPANS = r"\[[0-9]+(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)*\]"
_NODE_LIST = re.compile(rf"(?:[\w.-]|{_SPANS})+(?:,(?:[\w.-]|{_SPANS})+)*", re.ASCII)
_HOSTS = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
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
    words = _HOSTS.findall(nodes)
    return tuple(dict.fromkeys(name for word in words for name in _expanded(word)))


def names_in(nodes: str) -> int:
    """Number of names in a Slurm node list, repeated ones counted again; 0 if it is none.

    Nothing is made for that: one list may name the same nodes a hundred times.
    """
    return sum(map(_names_of, _HOSTS.findall(nodes))) if _NODE_LIST.fullmatch(nodes) else 0


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
    from ClusterShell.NodeSet import NodeSet  # noqa: PLC0415 - commands begin fast

    return str(NodeSet.fromlist(names))


_LABEL = re.compile(
    r"([0-9]{1,18})(?:_([0-9]{1,18})|_\[([0-9,:-]+)(?:%[0-9]{1,18})?\]|\+([0-9]{1,18}))?"
)
_TASK_SPAN = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([0-9]{1,9}))?)?")
_MOST_TASKS = 4_000_001


def _array_ranges(spec: str) -> list[range]:
    """The tasks of an array spec such as ``1-3,10-100:5``; ValueError if it is no such spec."""
    ranges = []
    for part in spec.split(","):
        span = _TASK_SPAN.fullmatch(part)
        if span is None:
            msg = f"{part[:40]!r} is no part of an array spec"
            raise ValueError(msg)
        first, last, step = span.groups()
        ranges.append(range(int(first), int(last or first) + 1, int(step or 1)))
    return ranges


def tasks_in(label: str) -> int:
    """Number of jobs in the record *label*; ValueError if it is no job label."""
    spec = _match_label(label)[3]
    tasks = 1 if spec is None else sum(map(len, _array_ranges(spec)))
    if not 0 < tasks <= _MOST_TASKS:
        msg = f"{label[:40]!r} stands for {tasks} tasks"
        raise ValueError(msg)
    return tasks


def tasks_as_one(labels: Sequence[str]) -> str | None:
    """One label for several different tasks of one array, ``6_[0-8:2]``; None if they are none."""
    found = [_LABEL.fullmatch(label) for label in labels]
    tasks = sorted({int(match[2]) for match in found if match and match[2]})
    if len(tasks) < len(labels) or len({match[1] for match in found if match}) != 1:
        return None
    if len(labels) == 1:
        return labels[0]
    return f"{labels[0].partition('_')[0]}_[{_spec(tasks)}]"


def one_spelling(label: str) -> str:
    """*label* as `tasks_as_one` spells it, however Slurm does; ValueError if it is no job label.

    ``6_[0,2,4%9]`` is ``6_[0-4:2]``, and ``6_[3]`` is ``6_3``.
    """
    found = _match_label(label)
    if found[3] is None:
        return label
    tasks = tasks_of(label)
    return f"{found[1]}_[{_spec(tasks)}]" if len(tasks) > 1 else f"{found[1]}_{tasks[0]}"


def tasks_of(label: str) -> list[int]:
    """The numbers of the tasks that *label* names, ascending; ValueError if it names none."""
    found = _match_label(label)
    tasks_in(label)
    if found[2] is not None:
        return [int(found[2])]
    if found[3] is None:
        msg = f"{label[:40]!r} names no task of an array"
        raise ValueError(msg)
    return sorted({task for tasks in _array_ranges(found[3]) for task in tasks})


def _spec(tasks: Sequence[int]) -> str:
    """Array spec of two or more *tasks*, which ascend."""
    step = tasks[1] - tasks[0]
    if tasks[-1] - tasks[0] == step * (len(tasks) - 1) and step > 1 < len(tasks) - 1:
        return f"{tasks[0]}-{tasks[-1]}:{step}"
    return ",".join(
        f"{first}-{last}" if last > first else f"{first}" for first, last in _unbroken(tasks)
    )


def _unbroken(tasks: Sequence[int]) -> Iterator[tuple[int, int]]:
    """First and last of each run of *tasks*, which ascend."""
    first = last = tasks[0]
    for task in tasks[1:]:
        if task != last + 1:
            yield first, last
            first = task
        last = task
    yield first, last


def address(label: str) -> str:
    """Name of exactly the record *label* for scontrol and scancel; ValueError if it is none.

    Measured on 22.05.8: the plain id of an array reaches its running tasks too, a spec with a
    step is refused, a spec that names some of the pending tasks splits them off, and one that
    names all of them changes their common record and nothing else.
    """
    found = _match_label(label)
    tasks_in(label)
    if found[3] is None:
        return label
    runs = [run for tasks in _array_ranges(found[3]) for run in _runs(tasks)]
    return f"{found[1]}_[{','.join(runs)}]"


def _match_label(label: str) -> re.Match[str]:
    found = _LABEL.fullmatch(label)
    if found is None:
        msg = f"{label[:40]!r} is no job id"
        raise ValueError(msg)
    return found


def _runs(tasks: range) -> list[str]:
    if tasks.step == 1 and len(tasks) > 1:
        return [f"{tasks[0]}-{tasks[-1]}"]
    return [str(task) for task in tasks]
