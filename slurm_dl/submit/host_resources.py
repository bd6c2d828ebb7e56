"""CPUs and memory that a job asks for beside its GPUs, where its owner says nothing of them.

Slurm by itself gives one CPU, and often all memory of the node, so that other GPUs of the node
find none. Asked for is the part of the node that goes with the job's GPUs, or what its model can
use where the profile says that this is more and a node has it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from slurm_dl.model.profile import Profile
from slurm_dl.placement.synergy import Share, demand, proportional
from slurm_dl.slurm.read.grammar import UsableNode
from slurm_dl.submit.job_shape import GpuNode, GpuPartition, HalfGpu, JobShape, NodeRange

Wanted = JobShape | NodeRange | HalfGpu  # All kinds of shapes

_SAYS_CPUS = frozenset(
    {
        "core-spec", "cores-per-socket", "cpus-per-gpu", "cpus-per-task", "exclusive",
        "extra-node-info", "hint", "mem-per-cpu", "mincpus", "sockets-per-node", "thread-spec",
        "threads-per-core",
    }
)  # fmt: skip
"""Options of sbatch that settle how many CPUs a job gets, or that more CPUs would change."""

_SAYS_MEMORY = frozenset({"exclusive", "mem", "mem-per-cpu", "mem-per-gpu"})

_LEAST_MB = 1024  # A node with less for each GPU is one whose memory Slurm has not been told
_HALF = 0.5
_MOST_ASKED = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """What the owner of a job leaves to us."""

    cpus: bool  # CPUs are not said
    memory: bool  # Memory is not said

    def __bool__(self) -> bool:
        return self.cpus or self.memory


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimit:
    """What Slurm lets a job have at most; one that asks for more never starts."""

    node_mb: float = math.inf  # Memory on each node, MB; inf if there is no limit
    cpu_mb: float = math.inf  # Memory for each of its CPUs, MB

    def no_more_than(self, other: MemoryLimit) -> MemoryLimit:
        """The lesser of both, each for itself."""
        return MemoryLimit(
            node_mb=min(self.node_mb, other.node_mb), cpu_mb=min(self.cpu_mb, other.cpu_mb)
        )

    def allows_mb(self, cpus: int | None) -> float:
        """Most memory on a node beside so many CPUs there, MB; 0 if it takes to know them."""
        if self.cpu_mb == math.inf:
            return self.node_mb
        return 0.0 if cpus is None else min(self.node_mb, self.cpu_mb * cpus)


UNLIMITED = MemoryLimit()  # What a site has that limits nothing


def left_to_us(sbatch: Sequence[str], kept: Collection[str], cpus: int | str) -> Silence:
    """What is to be found out.

    Args:
        sbatch: sbatch's options as ``--name=value``.
        kept: Names of the variables that sbatch gets.
        cpus: CPUs for each GPU as the owner has them; ``auto`` to find out, ``none`` for Slurm's.
    """
    given = {option.removeprefix("--").partition("=")[0] for option in sbatch}
    given |= {
        name.removeprefix("SBATCH_").lower().replace("_", "-")
        for name in kept
        if name.startswith("SBATCH_")
    }
    if "mem-per-node" in given:  # So the variable is called that stands for --mem.
        given.add("mem")
    return Silence(
        cpus=cpus != "none" and not given & _SAYS_CPUS,
        memory=cpus != "none" and not given & _SAYS_MEMORY,
    )


def kinds(partitions: Sequence[GpuPartition], wanted: Wanted) -> tuple[GpuNode, ...]:
    """One node of each kind that the job may get, as far as their CPUs are known."""
    found = {
        (node.host, node.threads): node
        for partition in reversed(partitions)
        for node in reversed(partition.nodes)
        if node.host is not None and wanted.may_use(node)
    }
    return tuple(found.values())[:_MOST_ASKED]


def usable(nodes: Sequence[GpuNode], read: Mapping[str, UsableNode]) -> tuple[GpuNode, ...]:
    """*nodes* with what jobs may use of them, by name of the node."""
    return tuple(
        replace(
            node,
            host=replace(node.host, cpus=min(node.host.cpus, told.cpus), mem_mb=told.mem_mb)
            if (told := read.get(node.name)) is not None
            else node.host,
        )
        for node in nodes
        if node.host is not None
    )


def directives(
    wanted: Wanted,
    nodes: Sequence[GpuNode],
    silence: Silence,
    *,
    tasks_per_node: int,
    profile: Profile | None = None,
    cpus_per_gpu: int | None = None,
    limit: MemoryLimit = UNLIMITED,
    most_gpus: int | None = None,
) -> tuple[str, ...]:
    """What sbatch is to be asked for, so that it fits on each of *nodes* when that is empty.

    Args:
        nodes: One of each kind that the job may get.
        tasks_per_node: Tasks that share the CPUs of a node.
        profile: What is known of the model.
        cpus_per_gpu: CPUs for each GPU as the owner wants them; None to find out.
        limit: Memory that Slurm allows.
        most_gpus: GPUs on a node in the widest of a job's sizes; None if it has one size.
    """
    if isinstance(wanted, NodeRange):
        # A node may give it any number of its GPUs, all of them too, so each has its part alone.
        each = _least(proportional(n.host, 1) for n in nodes if n.host is not None)
        cpus = cpus_per_gpu or _whole_cores(each.cpus, nodes)
        # Always, or there is one CPU on each node and srun starts no second task there.
        asked = [f"--cpus-per-gpu={max(1, cpus)}"] if silence.cpus else []
        # Under a limit Slurm 22.05.8 starts no job of this shape that has memory for each GPU.
        if silence.memory and each.mem_mb >= _LEAST_MB and limit == UNLIMITED:
            asked.append(f"--mem-per-gpu={each.mem_mb}M")
        return tuple(asked)
    gpus = _HALF if isinstance(wanted, HalfGpu) else wanted.gpus_per_node
    if most_gpus is not None:
        # Each GPU's part alone, so that a node has as much for each of more of them.
        each = _least(proportional(n.host, 1) for n in nodes if n.host is not None)
        cpus_per_gpu = cpus_per_gpu or max(1, _whole_cores(each.cpus, nodes))
        mb = int(min(each.mem_mb, limit.allows_mb(cpus_per_gpu * most_gpus) / most_gpus))
        share = Share(int(cpus_per_gpu * gpus), int(mb * gpus))
    else:
        share = _least(demand(profile, n.host, gpus) for n in nodes if n.host is not None)
    cpus = _whole_cores(share.cpus, nodes) if cpus_per_gpu is None else int(cpus_per_gpu * gpus)
    asked = []
    per_task = cpus // tasks_per_node if silence.cpus else 0
    if per_task:
        asked.append(f"--cpus-per-task={per_task}")
    most_mb = limit.allows_mb(per_task * tasks_per_node or None)
    mem_mb = int(min(share.mem_mb, most_mb))
    if silence.memory and mem_mb >= _LEAST_MB * gpus:
        asked.append(f"--mem={mem_mb}M")
    return tuple(asked)


def _least(shares: Iterable[Share]) -> Share:
    found = list(shares)
    if not found:
        return Share(0, 0)
    least = found[0]
    for share in found[1:]:
        least = least.no_more_than(share)
    return least


def _whole_cores(cpus: int, nodes: Sequence[GpuNode]) -> int:
    """*cpus*, rounded down to whole cores: Slurm rounds up, and then it might not fit."""
    threads = max((node.threads for node in nodes), default=1)
    return cpus - cpus % threads if cpus >= threads else cpus
