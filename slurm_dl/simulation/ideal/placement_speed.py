"""How fast a job is where it lies, relative to the best place it could have.

A ladder, and each rung has a name that reports tell: ``measured`` in that shape; ``interpolated``
over the nodes in which the same model was measured; ``skew``, a prior from the sizes of its
tensors; ``unknown``, where the place is taken to change nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from slurm_dl.model.jobs import F64, Bool
from slurm_dl.model.profile import Profile
from slurm_dl.placement.consolidate import skew

Rung = Literal["measured", "interpolated", "skew", "unknown"]
"""Where a speed is from; see the module."""

Curve = dict[int, float]  # Steps a second by number of nodes, for one number of GPUs


@dataclass(frozen=True, slots=True)
class PlacementSpeed:
    """A speed relative to the best place, above 0, at most 1."""

    speed: float
    rung: Rung


def skew_prior(share: float, n_nodes: int) -> float:
    """Speed on *n_nodes* relative to one node, if only the skew, *share*, is known.

    ``1 / (1 + (n - 1) * max(0, share - 1/n))``: 1 on one node, and never more on more nodes.

    Assumed: data parallel with parameter servers, one on each of the n nodes, and a tensor is
    never split. The server of the largest tensor holds ``max(share, 1/n)`` of the model and sends
    it to n - 1 other nodes. With even tensors each server would send ``(n - 1)/n`` of it, which is
    taken to hide behind computation; what the largest server sends beyond that is waited for.
    Sending the whole model over one link is taken to last as long as one iteration's computation.

    Source: Tiresias, NSDI 2019, section 3.3, for the cause (the largest tensor makes one server's
    link the bottleneck); the formula and its constant are ours, not measured.
    """
    return 1.0 / (1.0 + (n_nodes - 1) * max(0.0, share - 1.0 / n_nodes))


def place_speed(
    profile: Profile | None,
    *,
    gpus: float,
    n_nodes: int,
    largest_node_gpus: float,
    gpu_type: str = "",
) -> PlacementSpeed:
    """Speed of a job of *gpus* GPUs on *n_nodes* nodes, relative to its best place.

    Args:
        profile: Its model's; None if it is not known.
        largest_node_gpus: GPUs of the cluster's largest node: no place is better than there is.
        gpu_type: Type of its GPUs; measurements of other types are used if there is none of it.
    """
    if profile is None:
        return PlacementSpeed(1.0, "unknown")
    fewest = math.ceil(gpus / largest_node_gpus)
    for kind in _types(profile, gpu_type):
        curves = dict(_curves(profile, kind, largest_node_gpus))
        mine = curves.get(gpus, {})
        is_even = gpus % n_nodes == 0
        if is_even and n_nodes in mine and (len(mine) > 1 or n_nodes <= fewest):
            return PlacementSpeed(mine[n_nodes] / max(mine.values()), "measured")
        several = [g for g, curve in curves.items() if len(curve) > 1]
        if several:
            nearest = min(several, key=lambda g: (abs(math.log2(g / gpus)), g))
            return PlacementSpeed(_interpolated(curves[nearest], n_nodes, fewest), "interpolated")
    known = skew(profile)
    if known is None:
        return PlacementSpeed(1.0, "unknown")
    prior = skew_prior(known, n_nodes) / skew_prior(known, fewest)
    return PlacementSpeed(min(1.0, prior), "skew")


def _types(profile: Profile, gpu_type: str) -> list[str]:
    """Types of GPUs to look at, the job's own first."""
    others = {speed.gpu_type for speed in profile.speeds} - {gpu_type, ""}
    return [gpu_type, *sorted(others)]


def _curves(profile: Profile, gpu_type: str, largest: float) -> Iterator[tuple[float, Curve]]:
    """By number of GPUs, the speeds of that type's GPUs in shapes that such nodes can hold."""
    curves: dict[int, Curve] = {}
    for shape in {s.shape for s in profile.speeds if s.shape.gpus_per_node <= largest}:
        speed = profile.speed(shape, gpu_type)
        if speed is not None:
            curves.setdefault(shape.gpus, {})[shape.nodes] = speed.steps_per_s
    yield from curves.items()


def _interpolated(curve: Curve, n_nodes: int, fewest: int) -> float:
    """Between the measured numbers of nodes linearly in their logarithm, beyond them as the last.

    The best is that of as few nodes as the job can have, or more.
    """
    at = np.log2(np.array(sorted(curve), dtype=np.float64))
    steps = np.array([curve[n] for n in sorted(curve)])
    here, first = np.interp(np.log2([n_nodes, fewest]), at, steps).tolist()
    best = max(first, here, *(curve[n] for n in curve if n >= fewest), 0.0)
    return float(here / best)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentionSpeed:
    """How fast what jobs share on a node is; inf where it slows nobody down.

    The slow-down of who uses it is ``max(1, sum of traffic / capacity)``, on the worst of a job's
    nodes. A job's traffic with other nodes is its profile's for each GPU, and none on one node;
    traffic that nobody knows counts as none.

    Raises:
        ValueError: A capacity is not above 0.

    Source: the budget of Pollux' repair step for network-heavy jobs (OSDI 2021, section 4.2),
    read as a share of the link and not as a ban.
    """

    network_mb_s: float = math.inf  # Capacity of a node's network link, MB a second
    pcie_mb_s: float = math.inf  # Capacity of a node's PCIe, MB a second

    def __post_init__(self) -> None:
        for name in ("network_mb_s", "pcie_mb_s"):
            if not getattr(self, name) > 0:
                msg = f"{name} must be above 0 (got {getattr(self, name)})"
                raise ValueError(msg)

    def slowdown(self, node: npt.NDArray[np.int32], network: F64, pcie: F64) -> F64:
        """``(k,)`` 1 or more, for k shares of jobs on nodes.

        Args:
            node: ``(k,)`` where each share is.
            network: ``(k,)`` its traffic with other nodes, MB a second.
            pcie: ``(k,)`` its traffic over PCIe, MB a second.
        """
        slower = np.ones(len(node))
        for traffic, capacity in ((network, self.network_mb_s), (pcie, self.pcie_mb_s)):
            uses: Bool = traffic > 0
            if capacity == math.inf or not uses.any():
                continue
            load = np.bincount(node, weights=traffic)[node] / capacity
            np.maximum(slower, load, out=slower, where=uses)
        return slower
