"""What the daemon has to be told of a job's CPUs and memory, because Slurm does not tell it.

Of a pending job with a range of nodes Slurm says one CPU, whatever each of its GPUs asks for. And
that a job asks for more than its part of a node, and could do with its part, nobody says at all.
"""

from __future__ import annotations

from collections.abc import Sequence

from slurm_dl.placement.synergy import Share, proportional
from slurm_dl.submit.host_resources import Silence, Wanted
from slurm_dl.submit.job_shape import GpuNode, JobShape
from slurm_dl.submit.node_range import NodeRange

_TO_MB = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2}


def told(
    wanted: Wanted,
    nodes: Sequence[GpuNode],
    silence: Silence,
    options: Sequence[str],
    *,
    tasks_per_node: int,
) -> dict[str, int]:
    """Keys of the job's metadata with their values.

    Args:
        nodes: One of each kind that the job may get.
        silence: What its owner left to dlsubmit: only that may be cut.
        options: What sbatch is asked for, by dlsubmit and by the owner, as ``--name=value``.
    """
    asked = dict(option.removeprefix("--").partition("=")[::2] for option in options)
    if isinstance(wanted, NodeRange):
        each = {
            "cpus_per_gpu": _whole(asked.get("cpus-per-gpu", "")),
            "mem_mb_per_gpu": _mb(asked.get("mem-per-gpu", "")),
        }
        return {key: value for key, value in each.items() if value > 0}
    if not isinstance(wanted, JobShape):
        return {}
    part = _part(wanted, nodes)
    cpus = _whole(asked.get("cpus-per-task", "")) * tasks_per_node
    least = -(-part.cpus // tasks_per_node) * tasks_per_node
    may: dict[str, int] = {}
    if silence.cpus and 0 < least < cpus:
        may["cpus"] = least
    if silence.memory and 0 < part.mem_mb < _mb(asked.get("mem", "")):
        may["mem_mb"] = part.mem_mb
    return may


def _part(wanted: JobShape, nodes: Sequence[GpuNode]) -> Share:
    """The largest part of any node that goes with the job's GPUs there."""
    parts = [
        proportional(n.host, wanted.gpus_per_node)
        for n in nodes
        if n.host is not None and n.host.gpus >= wanted.gpus_per_node
    ]
    return Share(max((p.cpus for p in parts), default=0), max((p.mem_mb for p in parts), default=0))


def _whole(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() else 0


def _mb(text: str) -> int:
    unit = text[-1:].upper()
    number = text[:-1] if unit in _TO_MB else text
    return int(_whole(number) * _TO_MB.get(unit, 1.0))
