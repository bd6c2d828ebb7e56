"""Only the jobs that gain by it are kept together; the others take what is left over.

A model whose parameters are mostly in one large tensor slows down when it is spread over nodes. Its
jobs get the fewest nodes, and wait for them for a while; other models' jobs take fragments, which
keeps whole nodes for those.

Source: Gu et al., "Tiresias: A GPU Cluster Manager for Distributed Deep Learning", NSDI 2019,
section 3.3 (model-based placement); the wait for locality: Jeon et al. (Philly), ATC 2019.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from slurm_dl.model.jobs import Bool
from slurm_dl.model.parameter_bounds import Bounded, NotNegative, Part
from slurm_dl.model.profile import Profile, skew_of
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.placement.best_fit import free_gpus
from slurm_dl.placement.candidate_nodes import CandidateNodes
from slurm_dl.placement.free_nodes import FreeNodes
from slurm_dl.placement.resource_request import Ask, PendingJob
from slurm_dl.placement.scheme import Answer, Placer, Spot, Wait
from slurm_dl.placement.soonest import Soonest
from slurm_dl.placement.topology import fewest_leaves, nodes_on


@dataclass(frozen=True, slots=True, kw_only=True)
class Consolidate(Bounded):
    """Skewed models on the fewest nodes, or anywhere after a wait; other models on fragments.

    Attributes:
        skew_threshold: A model is skewed if its largest tensor has more than this share of all its
            parameters, 0 to 1.
        locality_wait_s: How long a job waits for the fewest nodes before it takes more, seconds.
        locality_wait_per_run: Additional seconds of that wait for each second of the job's time
            limit.
        longest_locality_wait_s: Longest such wait, seconds.
    """

    name: ClassVar[str] = "consolidate"
    source: ClassVar[str] = "Tiresias, NSDI 2019, section 3.3; Philly, ATC 2019 (locality wait)"
    interpretation: ClassVar[str] = (
        "Skew is the largest tensor divided by all parameters. A job with an unknown model is "
        "kept on one node if one can hold it. Several nodes are on one leaf switch if one can "
        "hold them. The wait counts from the end of the job's last run, or from its submission, "
        "and grows with its time limit."
    )

    skew_threshold: Part = 0.4
    locality_wait_s: NotNegative = 600.0
    locality_wait_per_run: NotNegative = 0.0
    longest_locality_wait_s: NotNegative = 7200.0

    def begin(
        self, snap: Snapshot, stock: FreeNodes, _profiles: Mapping[str, Profile], /
    ) -> Placer:
        """See `Scheme`."""
        return _Consolidating(self, snap, stock)

    def wait_s(self, want: PendingJob) -> float:
        """Seconds that *want* waits in all for the fewest nodes."""
        more = self.locality_wait_per_run
        grown = more * want.limit_s if more > 0 else 0.0
        return min(self.locality_wait_s + grown, self.longest_locality_wait_s)


def skew(profile: Profile | None) -> float | None:
    """Largest tensor / sum of all of a model; None if nobody knows."""
    if profile is None:
        return None
    if profile.skew is None and profile.tensors_mb:
        return skew_of(profile.tensors_mb)
    return profile.skew


class _Consolidating:
    """See `Consolidate`."""

    def __init__(self, how: Consolidate, snap: Snapshot, stock: FreeNodes) -> None:
        self._how = how
        self._soonest = functools.cache(lambda: Soonest(snap, stock))

    def place(self, want: PendingJob, offer: CandidateNodes, /) -> Answer:
        """See `Placer`."""
        known = skew(want.profile)
        if known is None:
            asks = want.need.asks
            if asks[0].n_nodes == 1:
                return self._together(want, offer, "one node: nobody knows how its model spreads")
            return _first_that_fits(offer, asks)
        if known > self._how.skew_threshold:
            return self._together(want, offer, f"as few nodes as may be: skew {known:.2f}")
        return _fragments(want, offer, f"left-over GPUs: skew {known:.2f}")

    def _together(self, want: PendingJob, offer: CandidateNodes, why: str) -> Answer:
        """The fewest nodes; others only when the wait is over, or if these can never be had."""
        first, *others = want.need.asks
        for_s = self._how.wait_s(want) - want.waited_s
        spot, leaves = _on_fewest_leaves(offer, first, why)
        if spot is not None and (leaves == 1 or for_s <= 0):
            return spot
        if for_s > 0:
            soonest = self._soonest()
            wide = soonest.wide(offer, first)
            if spot is not None and not soonest.on_one_leaf(wide, first.n_nodes):
                return spot
            if int(np.count_nonzero(wide)) >= first.n_nodes:
                return self._wait(want, wide, for_s, why)
        return _first_that_fits(offer, others)

    def _wait(self, want: PendingJob, wide: Bool, for_s: float, why: str) -> Wait | None:
        """Nodes on which it can only start together; None if it always starts together."""
        first = want.need.asks[0]
        why += f", for {self._how.wait_s(want):.0f} s at most since it was submitted or last ran"
        if len(want.need.asks) > 1:
            within = self._soonest().best_nodes(want, wide, first)
            return Wait(within=within, for_s=for_s, why=why)
        if first.n_nodes == 1 or self._soonest().leaves_of(wide) == 1:
            return None
        leaf = self._soonest().best_leaf(want, wide, first)
        return None if leaf is None else Wait(within=leaf, for_s=for_s, why=f"{why}, on one leaf")


def _first_that_fits(offer: CandidateNodes, asks: Sequence[Ask]) -> Spot | None:
    for ask in asks:
        nodes = "one node" if ask.n_nodes == 1 else f"{ask.n_nodes} nodes"
        spot, _ = _on_fewest_leaves(offer, ask, f"{nodes}, the fewest on which it fits now")
        if spot is not None:
            return spot
    return None


def _on_fewest_leaves(offer: CandidateNodes, ask: Ask, why: str) -> tuple[Spot | None, int]:
    """*ask* on as few leaves as may be, and on how many; None if it does not fit."""
    if ask.n_nodes == 1:
        leaves, nodes = 1, offer.best(ask, free_gpus)
    else:
        chosen = fewest_leaves(offer.on_leaves(ask, free_gpus), ask.n_nodes)
        leaves, nodes = len(chosen), nodes_on(offer, ask, free_gpus, chosen)
    return (None if nodes is None else Spot(nodes=nodes, why=why)), leaves


def _fragments(want: PendingJob, offer: CandidateNodes, why: str) -> Spot | None:
    """Of all ways the one that opens the fewest empty nodes, then leaves the fewest GPUs over."""
    stock = offer.stock
    best: tuple[tuple[float, float, int], tuple[int, ...]] | None = None
    for ask in want.need.asks:
        nodes = offer.best(ask, free_gpus)
        if nodes is None:
            continue
        rows = np.array([stock.condition_of(node) for node in nodes])
        opened = float(np.count_nonzero(stock.jobs_on[rows] == 0))
        left = float(stock.gpus[rows].sum()) - ask.gpus * ask.n_nodes
        score = (opened, left, ask.n_nodes)
        if best is None or score < best[0]:
            best = score, nodes
    return None if best is None else Spot(nodes=best[1], why=why)
