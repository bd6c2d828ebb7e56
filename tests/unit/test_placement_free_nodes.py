"""The stock against plain counting, and what a placement costs on clusters of different sizes."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import place_cases as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_dl.placement.best_fit import BestFit, free_gpus
from slurm_dl.placement.candidate_nodes import CandidateNodes
from slurm_dl.placement.consolidate import Consolidate
from slurm_dl.placement.free_nodes import FreeNodes
from slurm_dl.placement.load_balance import LoadBalance, load
from slurm_dl.placement.ranked_groups import Key
from slurm_dl.placement.tetris import Tetris
from slurm_dl.placement.topology import Topology


def _check(stock: FreeNodes, ledger: pc.Ledger) -> None:
    """Every node that is up is in one condition, which says of it what plain counting does."""
    where = stock.conditions()
    for node, (gpus, cpus, mem_mb) in enumerate(ledger.free):
        row = stock.condition_of(node)
        assert row == where[node]
        assert (row >= 0) == ledger.up[node]
        if row < 0:
            continue
        assert node in stock.members(row)
        assert (stock.gpus[row], stock.cpus[row], stock.mem_mb[row]) == (gpus, cpus, mem_mb)
        assert stock.jobs_on[row] == ledger.jobs[node]
    assert stock.count.tolist() == [len(stock.members(row)) for row in range(len(stock))]
    assert stock.count.sum() == sum(ledger.up)
    for row in range(len(stock)):
        assert list(stock.members(row)) == sorted(stock.members(row))


@given(case=pc.cases(), seed=st.integers(0, 2**16))
@settings(max_examples=80)
def test_what_is_taken_is_gone_and_what_is_expected_is_only_seen(case: pc.Case, seed: int) -> None:
    """Any sequence of takes and expectations, on any nodes, against plain counting."""
    rng = np.random.default_rng(seed)
    snap = pc.snapshot(case)
    stock, ledger = FreeNodes.of(snap, pc.PROFILES), pc.Ledger(case)
    _check(stock, ledger)
    gangs = [sum(len(run.nodes) > 1 for run in case.runs if n in run.nodes) for n in range(9)]
    sizes = [
        [run.gpus * len(run.nodes) for run in case.runs if n in run.nodes and run.gpus]
        for n in range(9)
    ]
    for want in pc.wants(snap):
        n, share = next(iter(pc.shares(want).items()))
        fits = [node for node in range(len(case.nodes)) if ledger.fits(node, share)]
        if len(fits) < n:
            continue
        nodes = sorted(rng.choice(fits, n, replace=False).tolist())
        if rng.random() < 0.5:
            stock.take(want, nodes)
            for node in nodes:
                ledger.give(node, share)
        else:
            stock.expect(want, nodes)
        for node in nodes:
            gangs[node] += n > 1
            sizes[node].append(want.gpus)
        _check(stock, ledger)
        for node in range(len(case.nodes)):
            row = stock.condition_of(node)
            if row >= 0:
                assert stock.gangs[row] == gangs[node]
                assert stock.least_gpus[row] == min(sizes[node], default=np.inf)
                assert stock.most_gpus[row] == max(sizes[node], default=0)


@given(case=pc.cases(most_jobs=12))
@settings(max_examples=60)
def test_what_is_remembered_equals_a_fresh_look(case: pc.Case) -> None:
    """Shelves, kept from job to job, against one made anew each time: order, and room by leaf."""
    snap = pc.snapshot(case)
    stock = FreeNodes.of(snap, pc.PROFILES)
    wants = pc.wants(snap)
    for want in itertools.chain(wants, wants):
        offer = CandidateNodes(stock, want, ())
        for ask in want.need.asks:
            shelf = stock.shelf(want.need, ask, free_gpus)
            usable, count = offer.usable(ask)
            rows = np.flatnonzero(usable)
            if shelf is not None:
                keys = free_gpus(stock, rows, ask)
                assert list(shelf) == rows[np.lexsort((rows, keys))].tolist()
            leaf = stock.leaf_at(rows)
            plain = [int(count[rows[leaf == at]].sum()) for at in range(len(stock.leaves))]
            assert offer.on_leaves(ask, free_gpus).tolist() == plain
        nodes = offer.best(want.need.asks[0], free_gpus)
        if nodes is not None:
            stock.take(want, nodes)


@pytest.mark.parametrize("by", [free_gpus, load], ids=["fullest", "emptiest"])
def test_what_is_remembered_equals_a_fresh_look_on_a_larger_cluster(by: Key) -> None:
    """Many conditions, several needs that take each other's best: a new one has its place."""
    rng = np.random.default_rng(3)
    nodes = tuple(pc.Node(leaf=n // 20) for n in range(120))
    runs = tuple(
        pc.Run((n,), int(rng.integers(0, 7)), int(rng.integers(1, 40)), int(rng.integers(0, 500)))
        for n in range(120)
    )
    queue = tuple(
        pc.Waiting(gpus=(1, 2, 4)[i % 3], cpus=1 + i % 2, n_nodes=1 + i % 5 // 4)
        for i in range(250)
    )
    snap = pc.snapshot(pc.Case(nodes, runs, queue))
    stock = FreeNodes.of(snap, pc.PROFILES)
    for want in pc.wants(snap):
        offer, ask = CandidateNodes(stock, want, ()), want.need.asks[0]
        rows = np.flatnonzero(offer.usable(ask)[0])
        fresh = rows[np.lexsort((rows, by(stock, rows, ask)))]
        best = offer.best(ask, by)
        assert best == offer.pick(ask, fresh)
        if want.row % 7 == 0:
            shelf = stock.shelf(want.need, ask, by)
            assert shelf is not None
            assert list(shelf) == fresh.tolist()
        if best is not None:
            stock.take(want, best)


def _work(scheme: pc.Scheme, n_nodes: int, n_jobs: int) -> int:
    """Conditions looked at while jobs are placed, without the first look of each need."""
    kinds = (pc.Run((0,), gpus=1), pc.Run((0,), gpus=2, cpus=9), pc.Run((0,), gpus=5, cpus=3))
    nodes = tuple(pc.Node(leaf=n // 10) for n in range(n_nodes))
    runs = tuple(dataclasses.replace(kinds[n % 3], nodes=(n,)) for n in range(n_nodes))
    queue = tuple(
        pc.Waiting(gpus=(1, 2, 4, 8)[i % 4], cpus=4, n_nodes=2 if i % 4 == 3 else 1)
        for i in range(n_jobs)
    )
    stock, placer, wants = pc.begin(scheme, pc.Case(nodes, runs, queue))
    first = len(stock) * len({want.need.key for want in wants})
    for want in wants:
        answer = placer.place(want, CandidateNodes(stock, want, ()))
        stock.take(want, answer.nodes)  # type: ignore[union-attr]
    return stock.examined - first


@pytest.mark.parametrize(
    "scheme",
    [BestFit(), Consolidate(), LoadBalance(), Tetris(), Topology()],
    ids=lambda scheme: scheme.name,
)
def test_the_work_grows_with_the_jobs_and_not_with_the_nodes(scheme: pc.Scheme) -> None:
    """Four times the nodes, and four times the conditions, cost no more looks a job."""
    small, large = _work(scheme, 300, 100), _work(scheme, 1200, 100)

    assert large <= small * 1.1 + 100
    assert large < 100 * 40
    assert _work(scheme, 1200, 200) <= 2.5 * large + 100
