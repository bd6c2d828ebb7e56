"""A share of the jobs on as small a share of the nodes, where all of them are too many.

Few long jobs are most of a site's load, and a draw at chance would have it by half too much or too
little. So the jobs are sorted by GPU-seconds and cut into stretches, and of each one is taken that
keeps the sum nearest to the share of all. The nodes are taken first, whole ones of each group, and
the jobs by the share of the GPUs that this came to; those that fit the few nodes alone.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from slurm_dl.model.errors import SlurmDlError
from slurm_dl.model.jobs import F64
from slurm_dl.shadow.counterfactual import Cast, Player, fitting
from slurm_dl.simulation.cluster_shape import ClusterShape

_MOST_TOO_MANY = 1.5
_MOST_LEFT_OUT = 0.1
"""Of the GPU time; with less of the load than that, nothing it says would be so."""


def sampled(cast: Cast, shape: ClusterShape, most: int) -> tuple[Cast, ClusterShape]:
    """About *most* of the jobs, and the cluster for them; all of it if that is not more.

    Raises:
        SlurmDlError: The cluster has too few nodes for so small a share of them, or jobs that are
            too large for that share are much of the load.
    """
    n = len(cast.players)
    if n <= most:
        return cast, shape
    small = _share(shape, most / n)
    jobs = max(1, round(n * small.gpus / shape.gpus))
    if jobs > _MOST_TOO_MANY * most:
        msg = (
            f"there are {n:,} jobs, and a sample of {most:,} needs a part of the nodes that is "
            f"smaller than one; take --simulate {math.ceil(jobs / 1000) * 1000}"
        )
        raise SlurmDlError(msg)
    players, unfit = fitting(cast.players, small)
    left_out = _left_out(cast.players, players)
    if left_out > _MOST_LEFT_OUT or not players:
        msg = (
            f"{left_out:.0%} of the GPU time is of jobs that are too large for a sample of "
            f"{most:,} of {n:,} jobs on {small.gpus:,.0f} of {shape.gpus:,.0f} GPUs; "
            f"take --simulate {_enough(cast, shape, most)}"
        )
        raise SlurmDlError(msg)
    gpu_s = _gpu_s(players)
    ran_before = np.array([math.isnan(p.real_wait_s) for p in players])
    count = min(len(players), max(1, round(len(players) * small.gpus / shape.gpus)))
    rows = _one_of_each(np.lexsort((gpu_s, ran_before)), gpu_s, count)
    taken = tuple(players[i] for i in sorted(rows))
    return dataclasses.replace(cast, players=taken, unfit=cast.unfit + unfit), small


def _share(shape: ClusterShape, share: float) -> ClusterShape:
    """This share of the nodes, of each group one at least."""
    return ClusterShape(
        tuple(dataclasses.replace(g, nodes=max(1, round(g.nodes * share))) for g in shape.groups)
    )


def _left_out(players: Sequence[Player], fit: Sequence[Player]) -> float:
    """The share of the GPU time of *players* that is not of those that fit, 0 to 1."""
    whole_gpu_s = _gpu_s(players).sum()
    return 1 - float(_gpu_s(fit).sum() / whole_gpu_s) if whole_gpu_s else 0.0


def _enough(cast: Cast, shape: ClusterShape, most: int) -> int:
    """The fewest jobs, a sample of *most* being too small, of which one can be taken; at most all.

    Found by halving: what fits fewer nodes fits more.
    """
    too_few, enough = most, len(cast.players)
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        fit, _ = fitting(cast.players, _share(shape, middle / len(cast.players)))
        if fit and _left_out(cast.players, fit) <= _MOST_LEFT_OUT:
            enough = middle
        else:
            too_few = middle
    return enough


def _gpu_s(players: Sequence[Player]) -> F64:
    return np.array([p.gpus * p.duration_s for p in players])


def _one_of_each(order: npt.NDArray[np.int64], gpu_s: F64, count: int) -> list[int]:
    """A row of each of *count* stretches of *order*, whose sum is near *count* means."""
    rows, owed_s = [], 0.0
    for stretch in np.array_split(order, count):
        owed_s += float(gpu_s[stretch].mean())
        row = int(stretch[np.abs(gpu_s[stretch] - owed_s).argmin()])
        owed_s -= float(gpu_s[row])
        rows.append(row)
    return rows
