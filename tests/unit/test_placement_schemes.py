"""Schemes of placement, and the parts that they share, against plain Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import build
import numpy as np
import place_cases as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_dl.model.contract import Claim
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import Bool
from slurm_dl.placement.best_fit import BestFit, LoadBalance, Tetris, free_gpus
from slurm_dl.placement.candidate_nodes import CandidateNodes
from slurm_dl.placement.free_nodes import FreeNodes
from slurm_dl.placement.node_rules import SmallApart
from slurm_dl.placement.resource_request import Ask, PendingJob, ResourceRequests
from slurm_dl.placement.scheme import Scheme
from slurm_dl.placement.soonest import NEVER_S, Soonest


def test_the_fullest_node_that_fits_is_taken() -> None:
    case = pc.Case(
        (pc.Node(), pc.Node(), pc.Node()),
        (pc.Run((0,), gpus=2), pc.Run((1,), gpus=5), pc.Run((2,), gpus=7)),
        (pc.Waiting(gpus=2),),
    )

    assert pc.place(pc.snapshot(case), BestFit()).spots[100].nodes == (1,)  # type: ignore[index]


def test_fewer_nodes_come_before_fuller_ones() -> None:
    """A job that may lie on two nodes leaves the fragments alone while one node holds it."""
    runs = (pc.Run((0,), gpus=4), pc.Run((1,), gpus=4))
    nodes = (pc.Node(), pc.Node(), pc.Node())
    job = pc.Waiting(gpus=8, most_nodes=2)
    spread = pc.Case(nodes[:2], runs, (job,))

    whole = pc.place(pc.snapshot(pc.Case(nodes, runs, (job,))), BestFit())
    assert whole.spots[100].nodes == (2,)  # type: ignore[index]
    assert pc.place(pc.snapshot(spread), BestFit()).spots[100].nodes == (0, 1)  # type: ignore[index]


@given(case=pc.cases())
@settings(max_examples=60)
def test_no_empty_node_is_opened_while_used_ones_fit_and_fuller_ones_come_first(
    case: pc.Case,
) -> None:
    """Against plain counting: empty nodes only where used ones run out, then by free GPUs."""
    stock, placer, wants = pc.begin(BestFit(), case)
    ledger = pc.Ledger(case)
    for want in wants:
        answer = placer.place(want, CandidateNodes(stock, want, ()))
        fitting = {
            n: [
                node
                for node in range(len(case.nodes))
                if want.need.allowed[node]
                and ledger.fits(node, share, exclusive=want.need.exclusive)
            ]
            for n, share in pc.shares(want).items()
        }
        ways = [n for n, nodes in fitting.items() if len(nodes) >= n]
        if not ways:
            assert answer is None
            continue
        nodes = answer.nodes  # type: ignore[union-attr]
        assert len(nodes) == min(ways)

        def fullness(node: int) -> tuple[bool, int]:
            return ledger.jobs[node] == 0, ledger.free[node][0]

        best = sorted(map(fullness, fitting[len(nodes)]))[: len(nodes)]
        assert sorted(map(fullness, nodes)) == best
        for node in nodes:
            ledger.give(node, pc.shares(want)[len(nodes)])
        stock.take(want, nodes)


def _load(case: pc.Case, ledger: pc.Ledger, node: int, share: Sequence[float]) -> float:
    """The score of one node by the formula of load balance."""
    del share
    return sum(
        left / whole for left, whole in zip(ledger.free[node], _whole(case, node), strict=True)
    )


def _likeness(case: pc.Case, ledger: pc.Ledger, node: int, share: Sequence[float]) -> float:
    """The score of one node by the formula of Tetris."""
    parts = zip(share, ledger.free[node], _whole(case, node), strict=True)
    return sum(asked / whole * left / whole for asked, left, whole in parts)


def _whole(case: pc.Case, node: int) -> tuple[float, ...]:
    return (case.nodes[node].gpus, case.nodes[node].cpus, case.nodes[node].mem_mb)


@pytest.mark.parametrize(("scheme", "score"), [(LoadBalance(), _load), (Tetris(), _likeness)])
@given(case=pc.cases())
@settings(max_examples=60)
def test_the_nodes_taken_have_the_best_scores_of_all(
    case: pc.Case, scheme: Scheme, score: pc.Score
) -> None:
    """Brute force over the nodes in plain Python; the nodes may differ where scores are equal."""
    pc.check_best_scores(scheme, case, score)


def test_cpus_and_memory_count_as_load() -> None:
    """Of two nodes with as many free GPUs the one with more free CPUs is taken."""
    nodes = (pc.Node(), pc.Node())
    runs = (pc.Run((0,), gpus=2, cpus=40), pc.Run((1,), gpus=2, cpus=4))
    case = pc.Case(nodes, runs, (pc.Waiting(),))

    assert pc.place(pc.snapshot(case), LoadBalance()).spots[100].nodes == (1,)  # type: ignore[index]


def test_what_a_job_asks_for_decides_what_free_resource_counts() -> None:
    """A job of many CPUs goes where CPUs are free, one of many GPUs where GPUs are."""
    nodes = (pc.Node(), pc.Node())
    runs = (pc.Run((0,), gpus=4, cpus=1), pc.Run((1,), gpus=1, cpus=32))
    hungry = pc.Case(nodes, runs, (pc.Waiting(gpus=1, cpus=32),))
    gpus = pc.Case(nodes, runs, (pc.Waiting(gpus=4, cpus=1),))

    assert pc.place(pc.snapshot(hungry), Tetris()).spots[100].nodes == (0,)  # type: ignore[index]
    assert pc.place(pc.snapshot(gpus), Tetris()).spots[100].nodes == (1,)  # type: ignore[index]


@given(case=pc.cases())
@settings(max_examples=100)
def test_room_comes_when_enough_of_the_jobs_on_a_node_have_ended(case: pc.Case) -> None:
    """At each end in turn what it held is free again; an end that nobody knows comes last."""
    snap = pc.snapshot(case)
    soonest = Soonest(snap, FreeNodes.of(snap, pc.PROFILES))
    for share in ((8.0, 1, 0), (6.0, 1, 0), (4.0, 50, 900), (1.0, 60, 0)):
        ask = Ask(1, *share)
        expected = []
        for node in range(len(case.nodes)):
            ledger, room_s = pc.Ledger(case), NEVER_S
            here = [run for run in case.runs if node in run.nodes]
            if ledger.fits(node, share):
                room_s = 0.0
            elif ledger.up[node]:
                for run in sorted(here, key=lambda run: run.left_s):
                    ledger.give(node, (-run.gpus, -run.cpus, -run.mem_mb))
                    if ledger.fits(node, share):
                        room_s = min(run.left_s, NEVER_S)
                        break
            expected.append(room_s)
        up = [n for n, node in enumerate(case.nodes) if node.up]
        found = soonest.room_s(ask)
        assert [found[n] for n in up] == pytest.approx([expected[n] for n in up])


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


@dataclass(frozen=True)
class AtMost:
    """A rule: only nodes with few jobs."""

    name = "at_most"
    source = interpretation = ""
    strict = True
    jobs: int = 1

    def allows(self, _want: PendingJob, _ask: Ask, stock: FreeNodes, /) -> Bool:
        """See `Rule`."""
        allowed: Bool = stock.jobs_on <= self.jobs
        return allowed


@given(case=pc.cases())
@settings(max_examples=60)
def test_the_best_nodes_are_those_that_plain_counting_finds(case: pc.Case) -> None:
    """With and without a rule, of a group and of some nodes of one: the same fullness."""
    snap = pc.snapshot(case)
    stock, ledger = FreeNodes.of(snap, pc.PROFILES), pc.Ledger(case)
    for want in pc.wants(snap):
        for rules, most in (((), 99), ((AtMost(),), 1)):
            offer = CandidateNodes(stock, want, rules)
            for ask in want.need.asks:
                share = (ask.gpus, ask.cpus, ask.mem_mb)
                fitting = [
                    node
                    for node in range(len(case.nodes))
                    if want.need.allowed[node]
                    and ledger.fits(node, share, exclusive=want.need.exclusive)
                    and ledger.jobs[node] <= most
                ]
                nodes = offer.best(ask, free_gpus)
                if len(fitting) < ask.n_nodes:
                    assert nodes is None
                    continue
                assert nodes is not None
                assert set(nodes) <= set(fitting)
                order = sorted((ledger.jobs[n] == 0, ledger.free[n][0]) for n in fitting)
                taken = sorted((ledger.jobs[n] == 0, ledger.free[n][0]) for n in nodes)
                assert taken == order[: ask.n_nodes]
        nodes = CandidateNodes(stock, want, ()).best(want.need.asks[0], free_gpus)
        if nodes is not None:
            stock.take(want, nodes)
            for node in nodes:
                ledger.give(node, pc.shares(want)[len(nodes)])


@given(case=pc.cases())
@settings(max_examples=40)
def test_where_rules_let_a_job_be_does_not_depend_on_what_is_free(case: pc.Case) -> None:
    snap = pc.snapshot(case)
    stock, ledger = FreeNodes.of(snap, pc.PROFILES), pc.Ledger(case)
    for want in pc.wants(snap):
        within = CandidateNodes(stock, want, (AtMost(),)).within_rules(want.need.asks[0])
        expected = [
            bool(want.need.allowed[n]) and ledger.up[n] and ledger.jobs[n] <= 1
            for n in range(len(case.nodes))
        ]
        assert within.tolist() == expected


def test_the_nodes_picked_are_the_first_of_the_order_and_ascending() -> None:
    case = pc.Case((pc.Node(), pc.Node(), pc.Node()), (), (pc.Waiting(gpus=2, n_nodes=2),))
    stock, _, wants = pc.begin(BestFit(), case)
    offer, ask = CandidateNodes(stock, wants[0], ()), wants[0].need.asks[0]

    assert offer.pick(ask, np.array([0])) == (0, 1)
    assert offer.pick(ask, np.array([], dtype=np.int64)) is None


def test_jobs_that_may_lie_otherwise_have_needs_of_their_own() -> None:
    """Equal jobs share what was worked out; one with a range of nodes has more ways."""
    jobs = (pc.Waiting(gpus=8), pc.Waiting(gpus=8, most_nodes=4), pc.Waiting(gpus=8))
    first, ranged, again = pc.wants(pc.snapshot(pc.Case((pc.Node(),) * 4, (), jobs)))

    assert [ask.n_nodes for ask in first.need.asks] == [1]
    assert [ask.n_nodes for ask in ranged.need.asks] == [1, 2, 4]
    assert again.need is first.need


SMALL, LARGE, NONE = pc.Run((0,), gpus=1), pc.Run((1,), gpus=4), pc.Run((2,), gpus=0)
NODES = (pc.Node(), pc.Node(), pc.Node())


def _node(case: pc.Case, scheme: pc.Scheme, rule: SmallApart | None = None) -> int:
    spot = pc.place(pc.snapshot(case), scheme, rule or SmallApart()).spots[100]  # type: ignore[index]
    return spot.nodes[0]


@pytest.mark.parametrize("scheme", [BestFit(), LoadBalance()], ids=lambda scheme: scheme.name)
def test_a_small_job_joins_small_ones_then_opens_a_node_then_joins_larger_ones(
    scheme: pc.Scheme,
) -> None:
    """Whatever the scheme itself would choose."""
    small, full = (pc.Waiting(),), pc.Run((0,), gpus=1, cpus=64)

    assert _node(pc.Case(NODES, (SMALL, LARGE), small), scheme) == 0
    assert _node(pc.Case(NODES, (full, LARGE), small), scheme) == 2
    assert _node(pc.Case(NODES[:2], (full, LARGE), small), scheme) == 1


@pytest.mark.parametrize("scheme", [BestFit(), LoadBalance()], ids=lambda scheme: scheme.name)
def test_a_larger_job_avoids_small_ones_unless_nothing_else_fits(scheme: pc.Scheme) -> None:
    """It goes beside a larger one or to an empty node; where it must, beside a small one."""
    job = (pc.Waiting(gpus=4),)

    assert _node(pc.Case(NODES[:2], (SMALL, LARGE), job), scheme) == 1
    assert _node(pc.Case(NODES[:1], (SMALL,), job), scheme) == 0


def test_what_is_small_is_for_the_site_to_say() -> None:
    """And a job without GPUs is neither."""
    two = (pc.Waiting(gpus=2),)
    case = pc.Case(NODES, (SMALL, LARGE), two)

    assert _node(case, BestFit(), SmallApart(small_gpus=2)) == 0
    assert _node(case, BestFit(), SmallApart(small_gpus=1)) == 1
    assert _node(pc.Case(NODES[2:], (pc.Run((0,), gpus=0),), two), BestFit()) == 0


@given(case=pc.cases(), small_gpus=st.sampled_from((1, 2)))
@settings(max_examples=60)
def test_small_and_larger_jobs_share_a_node_only_where_they_must(
    case: pc.Case, small_gpus: int
) -> None:
    """Plain counting of the nodes that are preferred at the time: if these do, they are taken."""
    snap = pc.snapshot(case)
    placed = pc.place(snap, BestFit(), SmallApart(small_gpus=small_gpus))
    ledger = pc.Ledger(case)
    sizes: list[list[float]] = [[] for _ in case.nodes]
    for run in case.runs:
        for node in run.nodes:
            sizes[node].append(run.gpus * len(run.nodes))
    for want in pc.wants(snap):
        spot = placed.spots.get(want.job_id)
        if spot is None:
            continue
        n, share = len(spot.nodes), pc.shares(want)[len(spot.nodes)]
        small = want.gpus <= small_gpus

        def liked(node: int, *, small: bool = small) -> int:
            on = [size for size in sizes[node] if size > 0]
            if not small:
                return all(size > small_gpus for size in on)
            return 0 if any(size > small_gpus for size in on) else 2 if on else 1

        fitting = [
            node
            for node in range(len(case.nodes))
            if want.need.allowed[node] and ledger.fits(node, share, exclusive=want.need.exclusive)
        ]
        for level in (2, 1):
            if sum(liked(node) >= level for node in fitting) >= n:
                assert all(liked(node) >= level for node in spot.nodes)
                break
        for node in spot.nodes:
            ledger.give(node, share)
            sizes[node].append(want.gpus)


def test_a_size_without_meaning_is_refused() -> None:
    with pytest.raises(ValueError, match="small_gpus"):
        SmallApart(small_gpus=0)
