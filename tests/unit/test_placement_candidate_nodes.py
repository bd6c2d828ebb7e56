"""What one job is offered: its own nodes, within the rules, best first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import place_cases as pc
from hypothesis import given, settings

from slurm_dl.model.jobs import Bool
from slurm_dl.placement.best_fit import BestFit, free_gpus
from slurm_dl.placement.candidate_nodes import CandidateNodes
from slurm_dl.placement.free_nodes import FreeNodes
from slurm_dl.placement.pending_job import PendingJob
from slurm_dl.placement.resource_request import Ask


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
