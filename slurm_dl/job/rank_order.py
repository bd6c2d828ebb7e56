"""The order of a job's ranks: nodes of one switch together, and inside a node its GPUs in order.

Neighbouring ranks exchange most data: ring and tree all-reduce go from rank to rank. dlrun asks
Slurm once, on the first node, and writes two files into the run directory: one line for each rank,
and one line for each node. Both have the form of ``SLURM_HOSTFILE``, so that srun starts its tasks
in that order.

Source: the rank order of HiPS (NetAI 2018), which follows the servers' network.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from slurm_dl.job.controller import CallFailedError, JobController
from slurm_dl.job.run_files import write_lines

MOST_NODES = 100_000  # More in one list is no list of nodes
_MOST_BRACKETS = 8  # In one name; Slurm itself writes two

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


RANK_FILE = "slurm_dl.ranks"  # Written by dlrun: the node of each rank, a line for each
NODE_FILE = "slurm_dl.nodes"  # Written by dlrun: the nodes in the same order, each once
RANK_FILE_VARIABLE = "SLURM_DL_RANK_FILE"
NODE_FILE_VARIABLE = "SLURM_DL_NODE_FILE"
RANKS_VARIABLE = "SLURM_DL_RANKS"
"""``gpu``: the job has one rank for each GPU, however many of them lie on a node."""

_TRIES = 3
_MOST_RANKS_ON_A_NODE = 4096
_ON_NODES = re.compile(r"(?:^|\s)Nodes=(\S+)\s+CPU_IDs=\S*\s+Mem=\S*\s+GRES=(\S*)")
_GPUS = re.compile(r"(?:^|,)gpu(?::[^:,()]+)?:(\d{1,4})(?=[(,]|$)", re.ASCII)
_EACH = re.compile(r"([A-Za-z0-9_.-]+:)?\d{1,4}", re.ASCII)
_COUNT = re.compile(r"[1-9]\d{0,3}", re.ASCII)
_REPEATED = re.compile(r"(\d{1,6})(?:\(x(\d{1,6})\))?", re.ASCII)


class RankLayout(NamedTuple):
    """Where a job's ranks are."""

    nodes: tuple[str, ...]  # Its nodes in the order in which they are counted
    ranks: tuple[int, ...]  # How many ranks each of them has
    reordered: bool  # That is not Slurm's own order


def find_layout(
    environ: Mapping[str, str], launcher: str, controller: JobController
) -> tuple[RankLayout | None, str]:
    """Where the ranks of this job are; or None, and why that is not known (empty: no need to).

    What Slurm does not say falls back to its own order, but never to a wrong number of ranks.
    """
    nodes = hosts(environ.get("SLURM_JOB_NODELIST", ""))
    by_gpu = environ.get(RANKS_VARIABLE) == "gpu"
    if not nodes or (len(nodes) == 1 and not by_gpu):
        return None, ""
    tasks = _tasks(environ, nodes)
    if launcher == "srun" and not by_gpu:
        ranks = tasks
    else:
        try:
            ranks = gpus_on(_asked(controller.described), nodes)
        except CallFailedError as err:
            return None, f"which GPUs this job has is not known: {err}"
        # Without GPUs a rank is a task.
        ranks = ranks if any(ranks.values()) else tasks
    if not ranks:
        return None, "how many ranks this job has on each node is not known"
    try:
        leaf_of = leaves(_asked(controller.topology)) if len(nodes) > 1 else {}
    except CallFailedError:
        leaf_of = {}  # As where no topology is configured: one switch for all.
    ordered = switch_order(nodes, leaf_of)
    return (
        RankLayout(
            nodes=tuple(ordered),
            ranks=tuple(ranks.get(node, 0) for node in ordered),
            reordered=ordered != nodes,
        ),
        "",
    )


def gpus_on(described: str, nodes: Sequence[str]) -> dict[str, int]:
    """GPUs on each of *nodes* by what ``scontrol show job -d`` says of the job."""
    found: dict[str, int] = {}
    known = frozenset(nodes)
    for names, gres in _ON_NODES.findall(described):
        gpus = sum(int(count) for count in _GPUS.findall(re.sub(r"\([^)]*\)", "", gres)))
        for name in hosts(names):
            if name in known:
                found.setdefault(name, gpus)
    return found


def write_layout(
    layout: RankLayout, run_dir: Path, environ: Mapping[str, str], launcher: str
) -> dict[str, str]:
    """Write both files; the variables that tell the command of them.

    Raises:
        OSError: They cannot be written.
    """
    each = zip(layout.nodes, layout.ranks)
    ranks = [node for node, count in each for _ in range(count)]
    write_lines(run_dir / RANK_FILE, ranks)
    write_lines(run_dir / NODE_FILE, layout.nodes)
    added = {
        RANK_FILE_VARIABLE: str(run_dir / RANK_FILE),
        NODE_FILE_VARIABLE: str(run_dir / NODE_FILE),
    }
    by_gpu = environ.get(RANKS_VARIABLE) == "gpu"
    # A plain command may call srun in its own ways, and the order its user asks for wins.
    if launcher == "plain" or ("SLURM_DISTRIBUTION" in environ and not by_gpu):
        return added
    if launcher == "srun" and (layout.reordered or by_gpu):
        counts = {*layout.ranks}
        # Lightning 2.6 takes no number of tasks without it; srun warns where nodes differ.
        each_node = {"SLURM_NTASKS_PER_NODE": f"{counts.pop()}"} if len(counts) == 1 else {}
        return {
            **added,
            "SLURM_HOSTFILE": str(run_dir / RANK_FILE),
            **_in_all(len(ranks)),
            **(each_node if by_gpu else {}),
        }
    if launcher == "torchrun" and layout.reordered:
        return {
            **added,
            "SLURM_HOSTFILE": str(run_dir / NODE_FILE),
            **_in_all(len(layout.nodes)),
        }
    return added


def as_allotted(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that are still of the size that the job was submitted with, as they are now.

    Measured on 22.05.8, for a job that was given another size while it waited: SLURM_NTASKS,
    SLURM_NPROCS and SLURM_GPUS_PER_NODE are of the submission, and srun goes by them;
    SLURM_TASKS_PER_NODE and SLURM_GPUS_ON_NODE are new.
    """
    told: dict[str, str] = {}
    tasks = _tasks(environ, hosts(environ.get("SLURM_JOB_NODELIST", "")))
    if tasks:
        told = _in_all(sum(tasks.values()))
    here = environ.get("SLURM_GPUS_ON_NODE", "")
    each = _EACH.fullmatch(environ.get("SLURM_GPUS_PER_NODE", ""))
    if each is not None and _COUNT.fullmatch(here):
        told["SLURM_GPUS_PER_NODE"] = f"{each[1] or ''}{here}"
    return {name: value for name, value in told.items() if environ.get(name, value) != value}


def _in_all(tasks: int) -> dict[str, str]:
    """Srun reads both."""
    return {"SLURM_NTASKS": f"{tasks}", "SLURM_NPROCS": f"{tasks}"}


def _tasks(environ: Mapping[str, str], nodes: Sequence[str]) -> dict[str, int]:
    """Tasks on each node as Slurm has laid them out; empty if that is not one for each to start."""
    # SLURM_NTASKS is of the submission, and the job may have another size since.
    return counts_on(environ.get("SLURM_TASKS_PER_NODE", ""), nodes)


def counts_on(text: str, nodes: Sequence[str]) -> dict[str, int]:
    """The number of each node in Slurm's words, ``2(x3),1``; empty if they are not for *nodes*."""
    counts: list[int] = []
    for word in text.split(","):
        match = _REPEATED.fullmatch(word)
        if match is None:
            return {}
        times = int(match[2] or 1)
        if int(match[1]) > _MOST_RANKS_ON_A_NODE or len(counts) + times > len(nodes):
            return {}
        counts += [int(match[1])] * times
    return dict(zip(nodes, counts)) if len(counts) == len(nodes) else {}


def _asked(question: Callable[[], str]) -> str:
    """The answer, asked for again if it does not come.

    Raises:
        CallFailedError: It never came.
    """
    for _ in range(_TRIES - 1):
        try:
            return question()
        except CallFailedError:
            continue
    return question()
