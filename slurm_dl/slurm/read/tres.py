"""GPUs, CPUs and memory out of Slurm's resource strings, in the spellings of all releases.

======================================  ==================================================
``gres:gpu:a100:4``                     a job's TRES-per-something, 22.05 to 23.02
``gres/gpu:a100:4``                     the same from 23.11
``gpu:a100:2(IDX:0-1),shard:8(S:0)``    a node's Gres, a detailed allocation
``cpu=8,mem=62.50G,node=2,gres/gpu=4``  TRES; GPUs only if AccountingStorageTRES lists them
``gres/gpu=4,gres/gpu:a100=4``          total and by type: the same four, counted once
======================================  ==================================================
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from slurm_dl.slurm.read.grammar import gres_items, is_number, other_gres

_NODES = re.compile(r"(?:^|,)node=([0-9]{1,9})(?:,|$)")
_MEMORY = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)([KMGTP]?)[nc]?")
_MOST_MB = 2**53
_MB = {"K": 1 / 1024, "M": 1.0, "": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3}


@dataclass(frozen=True, slots=True)
class Gres:
    """GPUs and shares of GPUs.

    Attributes:
        by_type: GPUs of each type that is named, where *gpu_type* does not tell it.
    """

    gpus: float = 0.0  # Whole GPUs, of all types together
    gpu_type: str = ""  # The type of all of them; empty if none is named, or several are
    shards: float = 0.0  # ``gres/shard`` units
    mps: float = 0.0  # ``gres/mps`` units
    by_type: tuple[tuple[str, float], ...] = ()

    @property
    def types(self) -> tuple[tuple[str, float], ...]:
        """GPUs of each type that is named."""
        return self.by_type or (((self.gpu_type, self.gpus),) if self.gpu_type else ())


NO_GRES = Gres()


@functools.lru_cache(4096)
def parse_gres(text: str) -> Gres:
    """The GPUs in a comma-separated list; whatever else it lists is passed over."""
    if "gpu" not in text and "shard" not in text and "mps" not in text:
        return NO_GRES
    untyped = {"gpu": 0.0, "shard": 0.0, "mps": 0.0}
    typed = dict(untyped)
    types: dict[str, float] = {}
    for kind, gpu_type, count in gres_items(text):
        (typed if gpu_type else untyped)[kind] += count
        if kind == "gpu" and gpu_type:
            types[gpu_type] = types.get(gpu_type, 0.0) + count
    # Where both are listed the untyped figure is the total of the typed ones.
    total = {kind: untyped[kind] or typed[kind] for kind in untyped}
    gpu_type = next((name for name in types if types[name] == total["gpu"]), "")
    by_type = () if gpu_type else tuple(types.items())
    return Gres(total["gpu"], gpu_type, total["shard"], total["mps"], by_type)


@dataclass(frozen=True, slots=True)
class Tres:
    """One TRES string."""

    nodes: int = 0  # Nodes held or asked for; 0 if the string does not say
    mem_mb: int = 0  # Memory in all, MB; 0 if the string does not say
    gres: Gres = NO_GRES  # GPUs in all, where Slurm accounts for them


def parse_tres(text: str) -> Tres:
    """Nodes, memory and GPUs in a TRES string."""
    items = dict(item.partition("=")[::2] for item in text.split(","))
    nodes = items.get("node", "")
    return Tres(
        nodes=int(nodes) if is_number(nodes) else 0,
        mem_mb=parse_memory_mb(items.get("mem", "")),
        gres=parse_gres(text),
    )


def parse_memory_mb(text: str) -> int:
    """``62.50G``, ``1000M`` or ``4000`` in MB; 0 if it is nothing of the kind."""
    found = _MEMORY.fullmatch(text)
    return min(round(float(found[1]) * _MB[found[2]]), _MOST_MB) if found else 0


@dataclass(frozen=True, slots=True)
class TresRequest:
    """Resources that one job holds or asks for.

    Attributes:
        counted: Slurm accounts for its GPUs, or it has shares; else the GPUs are what it asks for,
            which after an update that Slurm took and ignored is not what it was given.
        others: Of each other GRES what it takes of a node, by ``name`` or ``name:type``.
    """

    gres: Gres  # GPUs and shares in all
    mem_mb: int  # Memory in all, MB
    even: bool  # The GPUs are known to be the same number on each node
    counted: bool = True
    several_types: bool = False  # It names GPUs of more than one type
    others: tuple[tuple[str, float], ...] = ()


def job_request(
    alloc: str,
    *,
    per_node: str,
    per_job: str,
    per_task: str,
    per_socket: str,
    nodes: int,
    tasks: int,
    sockets: int,
) -> TresRequest:
    """Resources that a job holds or asks for, from squeue's ``tres-*`` fields.

    Args:
        alloc: TRES allocated, or requested while it waits.
        nodes: Nodes it has now: fewer than in *alloc* while it completes.
        sockets: Sockets it asks for on each node; 1 if it does not say.
    """
    tres = parse_tres(alloc)
    share = min(1.0, nodes / tres.nodes) if tres.nodes else 1.0
    whole = (
        (tres.gres, share),
        (parse_gres(per_job), share),
        (parse_gres(per_node), float(nodes)),
        (parse_gres(per_task), float(tasks)),
        (parse_gres(per_socket), float(sockets * nodes)),
    )
    several = any(len(g.by_type) > 1 for g, _ in whole)
    gpu_type = "" if several else next((g.gpu_type for g, _ in whole if g.gpu_type), "")
    gres = Gres(
        gpus=next((g.gpus * times for g, times in whole if g.gpus), 0.0),
        gpu_type=gpu_type,
        shards=next((g.shards * times for g, times in whole if g.shards), 0.0),
        mps=next((g.mps * times for g, times in whole if g.mps), 0.0),
    )
    in_all = (tres.gres.gpus or whole[1][0].gpus or whole[3][0].gpus) > 0
    even = nodes == 1 or not in_all or parse_gres(per_node).gpus > 0
    others: dict[str, float] = {}
    per = ((per_node, 1.0), (per_job, 1 / nodes), (per_task, tasks / nodes), (per_socket, sockets))
    for text, times in per:
        for kind, gres_type, count in other_gres(text, of_node=False):
            name = gres_name(kind, gres_type)
            others[name] = others.get(name, 0.0) + math.ceil(count * times)
    mem_mb = round(tres.mem_mb * share)
    counted = tres.gres.gpus > 0 or gres.shards > 0 or gres.mps > 0
    return TresRequest(gres, mem_mb, even, counted, several, tuple(others.items()))


def nodes_in(text: str) -> int:
    """Nodes in a TRES string; 0 if it names none."""
    found = _NODES.search(text)
    return int(found[1]) if found else 0


def gres_name(kind: str, gres_type: str) -> str:
    """A GRES as its users name it: ``nvme``, or ``nvme:fast`` for one type of it."""
    return f"{kind}:{gres_type}" if gres_type else kind


@functools.lru_cache(4096)
def node_gres(text: str) -> Mapping[str, float]:
    """GRES of a node beside GPUs, by `gres_name`: of each type, and of all together."""
    found: dict[str, float] = {}
    for kind, gres_type, count in other_gres(text, of_node=True):
        for name in {kind, gres_name(kind, gres_type)}:
            found[name] = found.get(name, 0.0) + count
    return found
