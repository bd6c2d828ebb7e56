"""What every scheme of placement must keep to, the stock of free nodes, and leaf switches."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import place_cases as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_dl.placement.best_fit import BestFit, LoadBalance, Tetris, free_gpus, load
from slurm_dl.placement.candidate_nodes import CandidateNodes, Rule
from slurm_dl.placement.consolidate import Consolidate
from slurm_dl.placement.free_nodes import FreeNodes
from slurm_dl.placement.ranked_groups import Key
from slurm_dl.placement.scheme import Scheme, Spot, Wait
from slurm_dl.placement.scheme_registry import RULES, SCHEMES
from slurm_dl.placement.topology import Topology, fewest_leaves

PLAIN_SCHEMES = sorted(name for name in SCHEMES if name != "cells")
"""Those that need nothing but a cluster; the parameters of cells describe one."""

PLAIN_RULES = sorted(name for name in RULES if name != "pools")

EVERY_SCHEME_AND_RULE = pytest.mark.parametrize(
    ("scheme", "rules"),
    [
        pytest.param(SCHEMES[scheme](), tuple(RULES[rule]() for rule in rules), id=f"{scheme}-{n}")
        for scheme in PLAIN_SCHEMES
        for n, rules in enumerate(((), *itertools.combinations(PLAIN_RULES, 1), PLAIN_RULES))
    ],
)


@EVERY_SCHEME_AND_RULE
@given(case=pc.cases())
@settings(max_examples=10)
def test_a_job_is_put_on_nodes_that_hold_it(
    scheme: Scheme, rules: tuple[Rule, ...], case: pc.Case
) -> None:
    """As many nodes as one of its ways has, its own, up, with room after those before it."""
    snap = pc.snapshot(case)
    placed = pc.place(snap, scheme, *rules)

    ledger = pc.Ledger(case)
    for want in pc.wants(snap):
        spot = placed.spots.get(want.job_id)
        if spot is None:
            continue
        share = pc.shares(want)[len(spot.nodes)]
        assert list(spot.nodes) == sorted(set(spot.nodes))
        for node in spot.nodes:
            assert want.need.allowed[node]
            assert ledger.fits(node, share, exclusive=want.need.exclusive)
            ledger.give(node, share)


@EVERY_SCHEME_AND_RULE
@given(case=pc.cases())
@settings(max_examples=8)
def test_answers_do_not_depend_on_the_order_in_which_jobs_are_listed(
    scheme: Scheme, rules: tuple[Rule, ...], case: pc.Case
) -> None:
    """Nor do they change when asked again."""
    first = pc.place(pc.snapshot(case), scheme, *rules)
    for again in (
        pc.place(pc.snapshot(case), scheme, *rules),
        pc.place(pc.snapshot(case, backwards=True), scheme, *rules),
    ):
        assert again.spots == first.spots
        assert again.waits.keys() == first.waits.keys()
        for job_id, wait in again.waits.items():
            before = first.waits[job_id]
            assert (wait.for_s, wait.why) == (before.for_s, before.why)
            assert np.array_equal(wait.within, before.within)  # type: ignore[arg-type]


@EVERY_SCHEME_AND_RULE
@given(case=pc.cases())
@settings(max_examples=8)
def test_where_a_job_waits_it_could_be_held_if_nobody_else_were_there(
    scheme: Scheme, rules: tuple[Rule, ...], case: pc.Case
) -> None:
    """Slurm refuses for good a job that is kept from all nodes it could ever have."""
    snap = pc.snapshot(case)
    placed = pc.place(snap, scheme, *rules)

    for want in pc.wants(snap):
        wait = placed.waits.get(want.job_id)
        if wait is None or wait.within is None:
            continue
        assert wait.for_s > 0
        inside = np.flatnonzero(wait.within)
        assert want.need.allowed[inside].all()
        empty = pc.Ledger(pc.Case(case.nodes))
        assert any(
            sum(empty.fits(node, share) for node in inside) >= n
            for n, share in pc.shares(want).items()
        )


@pytest.mark.parametrize("name", PLAIN_SCHEMES)
@given(case=pc.cases())
@settings(max_examples=10)
def test_a_scheme_finds_room_for_what_fits_in_its_first_way(name: str, case: pc.Case) -> None:
    """A job alone in the queue that fits as it is starts, or is told where to wait."""
    scheme = SCHEMES[name]()
    for job in case.queue:
        alone = pc.Case(case.nodes, case.runs, (job,), case.other)
        snap = pc.snapshot(alone)
        want = pc.wants(snap)[0]
        ledger = pc.Ledger(alone)
        n, share = next(iter(pc.shares(want).items()))
        room = sum(
            bool(want.need.allowed[node]) and ledger.fits(node, share, exclusive=job.exclusive)
            for node in range(len(case.nodes))
        )
        placed = pc.place(snap, scheme)
        if room >= n:
            assert placed.spots or placed.waits


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


@given(
    nodes=st.lists(st.integers(0, 6), min_size=1, max_size=6),
    n_nodes=st.integers(1, 20),
)
def test_the_leaves_are_as_few_as_any_choice_of_leaves_could_be(
    nodes: list[int], n_nodes: int
) -> None:
    """Brute force over all sets of leaves; and the last leaf is the smallest that will do."""
    chosen = fewest_leaves(np.array(nodes, dtype=np.int64), n_nodes)
    before = list(nodes)

    sets = itertools.chain.from_iterable(
        itertools.combinations(range(len(nodes)), k) for k in range(1, len(nodes) + 1)
    )
    enough = [leaves for leaves in sets if sum(nodes[leaf] for leaf in leaves) >= n_nodes]
    assert nodes == before
    if not enough:
        assert chosen == []
        return
    assert len(chosen) == min(map(len, enough))
    assert sum(n for _, n in chosen) == n_nodes
    assert len({leaf for leaf, _ in chosen}) == len(chosen)
    assert all(0 < n <= nodes[leaf] for leaf, n in chosen)
    if len(chosen) == 1:
        assert nodes[chosen[0][0]] == min(n for n in nodes if n >= n_nodes)


@given(case=pc.cases())
@settings(max_examples=60)
def test_a_job_lies_on_the_fewest_leaves(case: pc.Case) -> None:
    """Brute force over the leaves on random clusters, job after job."""
    stock, placer, wants = pc.begin(Topology(), case)
    ledger = pc.Ledger(case)
    for want in wants:
        answer = placer.place(want, CandidateNodes(stock, want, ()))
        for n, share in pc.shares(want).items():
            room = [0, 0, 0]
            for node in range(len(case.nodes)):
                if want.need.allowed[node] and ledger.fits(
                    node, share, exclusive=want.need.exclusive
                ):
                    room[case.nodes[node].leaf] += 1
            if sum(room) >= n:
                break
        else:
            assert answer is None
            continue
        fewest = min(
            k
            for k in (1, 2, 3)
            for leaves in itertools.combinations(range(3), k)
            if sum(room[leaf] for leaf in leaves) >= n
        )
        on = {case.nodes[node].leaf for node in answer.nodes}
        assert len(answer.nodes) == n
        assert len(on) == fewest
        if fewest == 1:
            assert room[on.pop()] == min(r for r in room if r >= n)
        for node in answer.nodes:
            ledger.give(node, share)
        stock.take(want, answer.nodes)


LEAVES = (*(pc.Node(leaf=0),) * 2, *(pc.Node(leaf=1),) * 2)


def test_a_job_waits_for_one_leaf_as_long_as_it_is_told_to() -> None:
    """It is kept to the leaf that will have room first; when the wait is over it takes two."""
    runs = (pc.Run((0,), gpus=8, left_s=900.0), pc.Run((2,), gpus=8, left_s=100.0))
    scheme = Topology(locality_wait_s=60.0)

    def asked(waited_s: float) -> Wait | Spot | None:
        job = pc.Waiting(gpus=16, n_nodes=2, waited_s=waited_s)
        placed = pc.place(pc.snapshot(pc.Case(LEAVES, runs, (job,))), scheme)
        return placed.spots.get(100) or placed.waits.get(100)  # type: ignore[call-overload, no-any-return]

    early, late = asked(40.0), asked(60.0)
    assert early.within.tolist() == [False, False, True, True]
    assert early.for_s == 20.0
    assert late.nodes == (1, 3)


def test_nobody_waits_for_a_leaf_that_could_never_hold_it() -> None:
    case = pc.Case(LEAVES, (), (pc.Waiting(gpus=24, n_nodes=3),))
    placed = pc.place(pc.snapshot(case), Topology(locality_wait_s=60.0))

    assert len(placed.spots[100].nodes) == 3  # type: ignore[index]


def test_a_wait_that_is_no_time_is_refused() -> None:
    with pytest.raises(ValueError, match="locality_wait_s"):
        Topology(locality_wait_s=-1.0)
