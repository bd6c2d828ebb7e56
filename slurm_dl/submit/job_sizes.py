"""The sizes in which a job may run: laid on the nodes that there are, and written into its comment.

A job that is begun in another size gets what Slurm allots, so its script holds no number.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace

from slurm_dl.model.contract import MOST_SIZES
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.shape import Shape, by_gpus
from slurm_dl.submit import job_comment, job_shape
from slurm_dl.submit.host_resources import Wanted
from slurm_dl.submit.job_request import JobRequest
from slurm_dl.submit.job_shape import GpuPartition, JobShape


def lay_out(
    request: JobRequest,
    wanted: Wanted,
    partitions: Sequence[GpuPartition],
    kept: Collection[str] = (),
) -> JobRequest:
    """*request* with all its sizes as shapes, fewest GPUs first, in its comment too.

    Args:
        wanted: The shape that it is submitted with; it is one of its sizes.
        partitions: Where it may run.
        kept: Names of the variables that sbatch gets.

    Raises:
        ConfigError: One of them does not fit, they are too many, or the comment is too long.
    """
    if not request.sizes or not isinstance(wanted, JobShape):
        return request
    if "SBATCH_EXCLUSIVE" in kept:
        msg = "--sizes cannot go with SBATCH_EXCLUSIVE: a size takes its part of each node"
        raise ConfigError(msg)
    asked = Shape(wanted.nodes, wanted.gpus_per_node)
    sizes = by_gpus({asked, *(_laid(size, asked, request, partitions) for size in request.sizes)})
    if len(sizes) > MOST_SIZES:
        msg = f"--sizes: {len(sizes)} with that of --gpus, at most {MOST_SIZES}; leave some out"
        raise ConfigError(msg)
    comment = job_comment.with_sizes(request.comment, sizes, asked, request.batch)
    return replace(request, sizes=sizes, comment=comment)


def least_of(request: JobRequest, wanted: JobShape, partitions: Sequence[GpuPartition]) -> JobShape:
    """*wanted*, as if it asked of a node what the least of its sizes asks, on any type."""
    if not request.sizes:
        return wanted
    types = {node.gpu_type for partition in partitions for node in partition.nodes}
    each = min(size.gpus_per_node for size in shapes(request))
    fitting = wanted.types if wanted.gpu_type else tuple(sorted(types))
    return replace(wanted, gpus_per_node=each, types=fitting)


def shapes(request: JobRequest) -> tuple[Shape, ...]:
    """Its sizes, once they are laid out."""
    return tuple(size for size in request.sizes if isinstance(size, Shape))


def _laid(
    size: int | Shape, asked: Shape, request: JobRequest, partitions: Sequence[GpuPartition]
) -> Shape:
    if size in {asked.gpus, asked}:
        return asked  # --nodes has said how these lie.
    gpus, nodes = (size, None) if isinstance(size, int) else (size.gpus, size.nodes)
    try:
        found = job_shape.choose(partitions, gpus=gpus, gpu_type=request.gpu_type, nodes=nodes)
    except ConfigError as err:
        # The remedy in the words of this option.
        said = re.sub(
            r"--(gpus|nodes)=(\d+)", lambda m: _as_size(m[1], int(m[2]), gpus, nodes), str(err)
        )
        msg = f"--sizes: {size}: {said.replace('--nodes', 'nodes')}"
        raise ConfigError(msg) from None
    return Shape(found.nodes, found.gpus_per_node)


def _as_size(option: str, number: int, gpus: int, nodes: int | None) -> str:
    if option == "nodes":
        return f"{number}x{gpus // number}"
    return f"{number}" if nodes is None else f"{nodes}x{number // nodes}"
