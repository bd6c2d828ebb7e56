"""Pollux' genetic search: it fits on the nodes, and is nearly as good as the integer program."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from elastic_jobs import sizes_of

from slurm_dl.model.sizes import NOT_NOW
from slurm_dl.policies.arithmetic.assignment import Options, assign
from slurm_dl.policies.elastic.genetic_search import State, search
from slurm_dl.policies.elastic.pollux import Pollux
from slurm_dl.policies.elastic.size_and_type import Candidates
from slurm_dl.testing.snapshot_builder import snapshot, waiting

IDLE = 10.0


def candidates(
    jobs: Sequence[Sequence[tuple[int, float]]], nodes: Sequence[int], held: Sequence[int] = ()
) -> tuple[Candidates, np.ndarray]:
    """And what they are worth, by job (GPUs, slow-down) of each size, on the fewest nodes."""
    flat = [(job, *one) for job, of in enumerate(jobs) for one in of]
    job, gpus, slow = (np.array(column) for column in zip(*flat, strict=True))
    k = len(job)
    what = Candidates(
        rows=np.arange(len(jobs)), job=job, size=np.arange(k, dtype=np.int32),
        kind=np.full(k, -1), gpus=gpus.astype(float), nodes=-(-gpus // max(nodes, default=1)),
        rate=1 / slow, waits=np.zeros(k, dtype=bool), held=np.isin(np.arange(k), held),
        keeps=np.ones(k), places=np.array([nodes], dtype=float),
        may=np.ones(k, dtype=bool), share=sum(nodes) / max(1, len(jobs)),
    )  # fmt: skip
    return what, IDLE - slow


def drawn(seed: int) -> tuple[Candidates, np.ndarray]:
    """Up to 20 jobs in sizes by lot on up to 8 nodes, of which some hold GPUs."""
    draw = np.random.default_rng([62, seed])
    n, nodes = int(draw.integers(1, 21)), np.full(int(draw.integers(1, 9)), draw.choice([4, 8]))
    jobs, held, free = [], [], nodes.sum()
    for _ in range(n):
        sizes = np.sort(draw.choice([1, 2, 3, 4, 6, 8, 12, 16], 6, replace=False))
        slow = 2.0 / (sizes / sizes[0]) ** draw.uniform(0.3, 1)
        if free >= sizes[0] and draw.random() < 0.6:
            held.append(6 * len(jobs))
            free -= sizes[0]
            slow[1:] += draw.uniform(0, 0.5)
        jobs.append(list(zip(sizes.tolist(), slow.tolist(), strict=True)))
    return candidates(jobs, nodes.tolist(), held)


def assert_fits(what: Candidates, found: State) -> None:
    """Each row is one of its job's sizes, and nodes have room and one distributed job at most."""
    for job, (at, row) in enumerate(zip(found.option.tolist(), found.gpus, strict=True)):
        used = row[row > 0]
        assert used.sum() == (what.gpus[at] if at >= 0 else 0)
        assert at < 0 or (what.job[at] == job and len(used) == what.nodes[at])
        assert len(set(used.tolist())) <= 1 or used.sum() % len(used)
    wide = np.count_nonzero(found.gpus, axis=1) > 1
    assert (found.gpus >= 0).all()
    assert (found.gpus.sum(axis=0) <= what.places[0]).all()
    assert ((found.gpus[wide] > 0).sum(axis=0) <= 1).all()


def slow_downs(what: Candidates, worth: np.ndarray, option: np.ndarray) -> float:
    """The sum that is to be small."""
    return len(what.rows) * IDLE - float(worth[option[option >= 0]].sum())


def test_it_is_near_the_integer_program_and_never_above_it() -> None:
    """The program knows of no nodes. The search is the same each time."""
    ratios = []
    for seed in range(60):
        what, worth = drawn(seed)
        found = search(what, worth)
        options = Options(job=what.job, gpus=what.gpus, kind=what.kind, worth=worth)
        best = assign(options, len(what.rows), what.capacity).option

        assert_fits(what, found)
        assert seed % 6 or search(what, worth).gpus.tolist() == found.gpus.tolist()
        ratios.append(slow_downs(what, worth, best) / slow_downs(what, worth, found.option))
    assert 0.9 <= min(ratios) <= max(ratios) <= 1 + 1e-9
    assert np.mean(ratios) >= 0.97


def test_jobs_that_nothing_makes_faster_keep_what_they_hold() -> None:
    """Every other size has a restart; nodes have just the room for what is held."""
    sizes, has = (1, 2, 3, 4, 8), (8, 4, 3, 2, 2, 1)
    jobs = [[(gpus, 1.0 + (gpus != mine)) for gpus in sizes] for mine in has]
    held = [5 * job + sizes.index(mine) for job, mine in enumerate(has)]

    for generations in (0, 100):
        found = search(*candidates(jobs, [4] * 5, held), generations=generations)
        assert found.option.tolist() == held


@pytest.mark.parametrize(
    ("jobs", "nodes", "gpus"),
    [
        # Of two jobs on two of three nodes each, one node would have both.
        ([(1, 2.0), (3, 1.0)], [2, 2, 2], [1, 3]),
        ([(1, 2.0), (3, 1.0)], [2, 2, 2, 2], [3, 3]),
        # Two nodes of three GPUs have room for two jobs of two, and for two of one.
        ([(2, 1.0)], [3, 3], [2, 2]),
        ([(4, 1.0)], [8], [4, 4]),
        ([(4, 11.0)], [8], []),
        ([(4, 1.0)], [], []),
    ],
)
def test_places_bound_the_sizes(
    jobs: list[tuple[int, float]], nodes: list[int], gpus: list[int]
) -> None:
    """Jobs are alike: as many as 6 GPUs would do for, of three or two."""
    n = 3 if jobs == [(2, 1.0)] else 2
    what, worth = candidates([jobs] * n, nodes)
    found = search(what, worth)

    assert_fits(what, found)
    assert sorted(what.gpus[found.option[found.option >= 0]].tolist()) == gpus


@pytest.mark.parametrize(("nodes", "gpus", "given"), [((256, 256), 170, 2), ((257, 256), 171, 3)])
def test_the_policy_searches_up_to_512_gpus(nodes: tuple[int, int], gpus: int, given: int) -> None:
    """Three jobs fit by number, and two of them on nodes."""
    rows = [waiting(job, gpus) for job in (1, 2, 3)]
    sizes = sizes_of({row: [(gpus, 1.0)] for row in range(3)})
    snap = snapshot(rows, nodes=[(node, 0) for node in nodes], sizes=sizes)
    size = Pollux(search=True).order(snap).size

    assert size is not None
    assert np.count_nonzero(size != NOT_NOW) == given
