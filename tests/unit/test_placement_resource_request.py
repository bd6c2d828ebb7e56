"""What a job asks of each of its nodes, in all the ways in which it may lie on them."""

from __future__ import annotations

import build
import pytest

from slurm_dl.model.contract import Claim
from slurm_dl.model.ids import JobId
from slurm_dl.placement.resource_request import ResourceRequests


@pytest.mark.parametrize(
    ("gpus", "n_nodes", "most_nodes", "ways"),
    [
        (8, 1, None, [(2, 4.0)]),
        (8, 2, 8, [(2, 4.0), (4, 2.0), (8, 1.0)]),
        (6, 3, 4, [(3, 2.0)]),
        (4, 1, 10_000, [(1, 4.0), (2, 2.0), (4, 1.0)]),
        (0, 1, 10_000, [(1, 0.0)]),
        (0, 3, 10_000, [(3, 0.0)]),
        (0.5, 1, 10_000, [(1, 0.5)]),
    ],
)
def test_ways_have_a_whole_gpu_on_each_node(
    gpus: float, n_nodes: int, most_nodes: int | None, ways: list[tuple[int, float]]
) -> None:
    """However many nodes a user claims that his job can lie on."""
    seen = build.observed(
        [build.pending(1, gpus, n_nodes=n_nodes)],
        claims={JobId(1): Claim(most_nodes=most_nodes)},
    )

    asks = ResourceRequests(build.snapshot(seen)).of(0).asks

    assert [(ask.n_nodes, ask.gpus) for ask in asks] == ways
