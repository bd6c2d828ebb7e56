"""Giving jobs back the size that their owners asked for: a part of ``dlctl release-all``."""

from __future__ import annotations

from slurm_dl.model.ids import JobId
from slurm_dl.model.plan import Reshape
from slurm_dl.slurm.read.comment_claims import ClaimReader
from slurm_dl.slurm.read.tres import parse_gres, parse_memory_mb, parse_tres
from slurm_dl.slurm.read.vocabulary import is_number

SIZE_FIELDS = ("NumNodes", "NumCPUs", "tres-alloc", "tres-per-node", "MinMemory", "Comment")
"""What squeue has to tell of a pending job, in this order."""

_CLAIMS = ClaimReader(max_grace_s=1e9)


def asked_again(job_id: JobId, told: list[str]) -> Reshape | None:
    """The write that gives a pending job the size of its ``asked``; None if it has it.

    CPUs and memory go with the GPUs of a node, so that it gets what it asked for with them; memory
    that was not asked for by the node stays.

    Args:
        told: `SIZE_FIELDS` of it.
    """
    nodes_word, cpus_word, alloc, per_node, memory, comment = told
    claim, tres = _CLAIMS.read(comment), parse_tres(alloc)
    first, gpus = nodes_word.partition("-")[0], int(parse_gres(per_node).gpus)
    nodes = tres.nodes or (int(first) if is_number(first) else 0)
    asked = claim.asked
    # Of a comment that does not tell nobody knows whether the size is ours.
    if not claim.sizes or asked is None or min(nodes, gpus) < 1:
        return None
    if (nodes, gpus) == (asked.nodes, asked.gpus_per_node):
        return None
    cpus = int(cpus_word) // nodes if is_number(cpus_word) else 0
    mem_mb = parse_memory_mb(memory)
    by_node = tres.mem_mb == mem_mb * nodes
    return Reshape(
        job_id=job_id,
        shape=asked,
        cpus=(claim.cpus_per_gpu or 0) * asked.gpus_per_node or cpus * asked.gpus_per_node // gpus,
        mem_mb=mem_mb * asked.gpus_per_node // gpus if by_node else 0,
        why="slurm_dl lets it go",
    )
