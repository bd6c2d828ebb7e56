"""Tiresias' placement, and links that jobs of several nodes share only within budgets."""

from __future__ import annotations

import itertools
import math

import numpy as np
import place_cases as pc
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from slurm_dl.model.profile import Profile
from slurm_dl.placement.best_fit import BestFit
from slurm_dl.placement.candidate_nodes import CandidateNodes
from slurm_dl.placement.consolidate import Consolidate, skew
from slurm_dl.placement.node_rules import Contention
from slurm_dl.placement.resource_request import PendingJob
from slurm_dl.placement.scheme import Spot, Wait
from slurm_dl.placement.scheme_registry import SCHEMES

# Parameter tensors of AlexNet (torchvision's shapes), in millions of values: convolutions and
# fully connected layers, biases left out as they hardly count. 0.611 is the published class.
ALEXNET = (0.023, 0.307, 0.664, 0.885, 0.590, 37.749, 16.777, 4.096)


def _answer(case: pc.Case, scheme: Consolidate | None = None) -> Spot | Wait | None:
    placed = pc.place(pc.snapshot(case), scheme or Consolidate())
    last = 99 + len(case.queue)
    return placed.spots.get(last) or placed.waits.get(last)  # type: ignore[call-overload, no-any-return]


def test_skew_comes_from_the_profile_or_from_its_tensors() -> None:
    """A figure in the profile counts before the tensors; without either it is unknown."""
    assert skew(Profile(name="a", tensors_mb=ALEXNET)) == pytest.approx(0.611, abs=0.01)
    assert skew(Profile(name="a", tensors_mb=ALEXNET, skew=0.2)) == 0.2
    assert skew(Profile(name="a")) is None
    assert skew(None) is None


@pytest.mark.parametrize(
    ("known", "together"),
    [(0.774, True), (0.717, True), (0.611, True), (0.138, False), (0.112, False), (0.044, False)],
)
def test_the_classes_of_the_published_models(known: float, together: bool) -> None:  # noqa: FBT001
    """VGG and AlexNet are kept on one node, ResNet and Inception take fragments (section 3.3)."""
    case = pc.Case(
        (pc.Node(), pc.Node(), pc.Node()),
        (pc.Run((0,), gpus=4), pc.Run((1,), gpus=4)),
        (pc.Waiting(gpus=8, most_nodes=2),),
    )
    profiles = {"m": Profile(name="m", skew=known)}
    stock, placer, wants = pc.begin(Consolidate(), case, profiles)
    row = wants[0]
    want = PendingJob(row=row.row, job_id=row.job_id, need=row.need, profile=profiles["m"])

    answer = placer.place(want, CandidateNodes(stock, want, ()))

    assert answer.nodes == ((2,) if together else (0, 1))


BUSY = (
    pc.Run((0,), gpus=4, left_s=5000.0),
    pc.Run((1,), gpus=4, left_s=300.0),
    pc.Run((2,), gpus=6, left_s=900.0),
)
THREE = (pc.Node(), pc.Node(), pc.Node())


def test_a_skewed_job_waits_for_the_node_that_is_free_first() -> None:
    """It may lie on two nodes, and two have room: it is kept to one that will hold it whole."""
    job = pc.Waiting(gpus=8, most_nodes=2, model="skewed", waited_s=100.0)
    answer = _answer(pc.Case(THREE, BUSY, (job,)))

    assert answer.within.tolist() == [False, True, False]
    assert answer.for_s == 500.0


def test_it_does_not_wait_for_a_node_that_it_may_not_use() -> None:
    """The node that is free first is not in its partition: it waits for the next."""
    job = pc.Waiting(gpus=8, most_nodes=2, model="skewed", partition=1)
    answer = _answer(pc.Case(THREE, BUSY, (job,), frozenset({1})))

    assert answer.within.tolist() == [False, False, True]


def test_an_empty_node_stays_empty_even_if_more_gpus_are_left_over() -> None:
    """Two nodes with five free GPUs each rather than an empty one that it would fill."""
    runs = (pc.Run((0,), gpus=3), pc.Run((1,), gpus=3))
    job = pc.Waiting(gpus=8, most_nodes=2, model="even")
    answer = _answer(pc.Case(THREE, runs, (job,)))

    assert answer.nodes == (0, 1)


def test_after_the_wait_it_takes_more_nodes() -> None:
    job = pc.Waiting(gpus=8, most_nodes=2, model="skewed", waited_s=600.0)
    answer = _answer(pc.Case(THREE, BUSY, (job,)))

    assert answer.nodes == (0, 1)


def test_two_jobs_do_not_wait_for_the_same_node_while_another_is_free_sooner() -> None:
    """Whoever is told to wait for a node has it first; the next one counts on its run."""
    job = pc.Waiting(gpus=8, most_nodes=2, model="skewed", limit_s=3000.0)
    placed = pc.place(pc.snapshot(pc.Case(THREE, BUSY, (job, job))), Consolidate())

    within = [placed.waits[j].within for j in (100, 101)]  # type: ignore[index]
    assert [w.tolist() for w in within if w is not None] == [
        [False, True, False],
        [False, False, True],
    ]


def test_a_job_of_one_fixed_node_is_left_alone() -> None:
    """It cannot be spread: where Slurm starts it is all the same."""
    full = tuple(pc.Run((n,), gpus=6) for n in range(3))

    assert _answer(pc.Case(THREE, full, (pc.Waiting(gpus=8, model="skewed"),))) is None


def test_several_nodes_are_on_one_leaf_or_wait_for_it() -> None:
    """Two leaves with one free node each: it is kept to the leaf that is free first."""
    nodes = (*(pc.Node(leaf=0),) * 2, *(pc.Node(leaf=1),) * 2)
    runs = (pc.Run((0,), gpus=8, left_s=900.0), pc.Run((2,), gpus=8, left_s=100.0))

    def asked(waited_s: float) -> Spot | Wait | None:
        job = pc.Waiting(gpus=16, n_nodes=2, model="skewed", waited_s=waited_s)
        return _answer(pc.Case(nodes, runs, (job,)))

    early, late = asked(0.0), asked(600.0)
    assert early.within.tolist() == [False, False, True, True]
    assert late.nodes == (1, 3)


def test_what_no_leaf_could_ever_hold_starts_on_the_fewest() -> None:
    nodes = (*(pc.Node(leaf=0),) * 2, *(pc.Node(leaf=1),) * 2)
    job = pc.Waiting(gpus=24, n_nodes=3, most_nodes=6, model="skewed")
    answer = _answer(pc.Case(nodes, (), (job,)))

    assert len(answer.nodes) == 3


def test_an_unknown_model_is_kept_on_one_node_until_its_wait_is_over() -> None:
    early = pc.Waiting(gpus=8, most_nodes=2, model="unknown")
    late = pc.Waiting(gpus=8, most_nodes=2, model="unknown", waited_s=600.0)

    assert isinstance(_answer(pc.Case(THREE, BUSY, (early,))), Wait)
    assert isinstance(_answer(pc.Case(THREE, BUSY, (late,))), Spot)


def test_a_job_that_one_node_can_never_hold_does_not_wait_for_one() -> None:
    """One node has the GPUs but not the CPUs: it takes two at once."""
    nodes = (pc.Node(cpus=16), pc.Node(cpus=16))
    job = pc.Waiting(gpus=8, cpus=24, most_nodes=2, model="skewed")
    answer = _answer(pc.Case(nodes, (), (job,)))

    assert answer.nodes == (0, 1)


@given(case=pc.cases())
@settings(max_examples=60)
def test_a_model_that_is_not_skewed_leaves_the_fewest_gpus_over(case: pc.Case) -> None:
    """Brute force over all sets of nodes of all ways: empty nodes opened, GPUs left, nodes."""
    stock, placer, wants = pc.begin(Consolidate(), case)
    ledger = pc.Ledger(case)
    for want in wants:
        answer = placer.place(want, CandidateNodes(stock, want, ()))
        if want.profile is pc.PROFILES["even"]:
            scores = [
                (
                    sum(ledger.jobs[node] == 0 for node in nodes),
                    sum(ledger.free[node][0] for node in nodes) - n * share[0],
                    n,
                )
                for n, share in pc.shares(want).items()
                for nodes in itertools.combinations(range(len(case.nodes)), n)
                if all(
                    want.need.allowed[node]
                    and ledger.fits(node, share, exclusive=want.need.exclusive)
                    for node in nodes
                )
            ]
            if not scores:
                assert answer is None
            else:
                n = len(answer.nodes)
                taken = (
                    sum(ledger.jobs[node] == 0 for node in answer.nodes),
                    sum(ledger.free[node][0] for node in answer.nodes) - n * pc.shares(want)[n][0],
                    n,
                )
                assert taken == min(scores)
        if isinstance(answer, Spot):
            for node in answer.nodes:
                ledger.give(node, pc.shares(want)[len(answer.nodes)])
            stock.take(want, answer.nodes)


def test_the_wait_grows_with_the_time_limit_up_to_its_cap() -> None:
    """Philly's guideline; a job without a limit waits as long as any may."""
    scheme = Consolidate(
        locality_wait_s=60.0, locality_wait_per_run=0.1, longest_locality_wait_s=500.0
    )
    job = pc.wants(pc.snapshot(pc.Case(THREE, (), (pc.Waiting(limit_s=1000.0),))))[0]
    for limit_s, wait_s in ((1000.0, 160.0), (10_000.0, 500.0), (math.inf, 500.0)):
        want = PendingJob(row=job.row, job_id=job.job_id, need=job.need, limit_s=limit_s)
        assert scheme.wait_s(want) == wait_s
        assert Consolidate().wait_s(want) == 600.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"skew_threshold": 1.5},
        {"locality_wait_s": -1.0},
        {"locality_wait_per_run": math.nan},
        {"longest_locality_wait_s": math.inf},
    ],
)
def test_parameters_without_meaning_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Consolidate(**wrong)


PHASES = (Phase.explicit, Phase.reuse, Phase.generate)  # Shrinking these takes minutes.
SCHEMES_HERE = [SCHEMES[name]() for name in ("best_fit", "consolidate", "load_balance", "topology")]


class Loads:
    """What jobs put on each node, in plain Python: of each its network and PCIe load, or None."""

    def __init__(self, case: pc.Case) -> None:
        self.gangs: list[list[tuple[float | None, float | None]]] = [[] for _ in case.nodes]
        self.pcie = [0.0] * len(case.nodes)
        for run in case.runs:
            load = pc.PROFILES[run.model].load if run.model else None
            network = None if load is None or load.network_mb_s is None else load.network_mb_s
            pcie = None if load is None or load.pcie_mb_s is None else load.pcie_mb_s
            for node in run.nodes:
                self.add(
                    node,
                    None if network is None else network * run.gpus,
                    None if pcie is None else pcie * run.gpus,
                    gang=len(run.nodes) > 1,
                )

    def add(self, node: int, network: float | None, pcie: float | None, *, gang: bool) -> None:
        """Put a job on a node."""
        self.pcie[node] += pcie or 0.0
        if gang:
            self.gangs[node].append((network, pcie))


def _on(want: PendingJob, n_nodes: int) -> tuple[float | None, float | None]:
    ask = want.need.ask(n_nodes)
    return want.network_mb_s(ask), want.pcie_mb_s(ask)


def _reach(placed: pc.Placed, want: PendingJob) -> tuple[list[int], list[int]]:
    """Nodes that the job may start on, and in which numbers of nodes it may."""
    spot, wait = placed.spots.get(want.job_id), placed.waits.get(want.job_id)
    if spot is not None:
        return list(spot.nodes), [len(spot.nodes)]
    if wait is None or wait.within is None:
        return [], []
    nodes = np.flatnonzero(wait.within).tolist()
    return nodes, [ask.n_nodes for ask in want.need.asks if ask.n_nodes <= len(nodes)]


@pytest.mark.parametrize("scheme", SCHEMES_HERE, ids=lambda scheme: scheme.name)
@given(case=pc.cases())
@settings(max_examples=40, phases=PHASES)
def test_no_node_gets_a_second_job_of_several_nodes(scheme: pc.Scheme, case: pc.Case) -> None:
    """Wherever Slurm starts those that wait, and whenever, on the nodes that were left to them."""
    snap = pc.snapshot(case)
    placed = pc.place(snap, scheme, Contention())

    gangs = [len(jobs) for jobs in Loads(case).gangs]
    for want in pc.wants(snap):
        nodes, ways = _reach(placed, want)
        if max(ways, default=1) > 1:
            for node in nodes:
                assert gangs[node] == 0
                gangs[node] += 1


@pytest.mark.parametrize("scheme", SCHEMES_HERE, ids=lambda scheme: scheme.name)
@given(
    case=pc.cases(),
    network_mb_s=st.sampled_from((0.0, 90.0, 500.0)),
    pcie_mb_s=st.sampled_from((0.0, 300.0, 1000.0)),
)
@settings(max_examples=40, phases=PHASES)
def test_no_node_exceeds_its_budgets(
    scheme: pc.Scheme, case: pc.Case, network_mb_s: float, pcie_mb_s: float
) -> None:
    """Sums of the known loads; whose load nobody knows, or is too much alone, is alone."""
    if not network_mb_s and not pcie_mb_s:
        return
    snap = pc.snapshot(case)
    rule = Contention(network_mb_s=network_mb_s, pcie_mb_s=pcie_mb_s)
    placed = pc.place(snap, scheme, rule)

    loads = Loads(case)
    for want in pc.wants(snap):
        nodes, ways = _reach(placed, want)
        for node in nodes:
            for n in ways:
                network, pcie = _on(want, n)
                there = loads.gangs[node]
                if n > 1 and network_mb_s:
                    if network is None or network > network_mb_s:
                        assert not there
                    else:
                        sent = [load for load, _ in there]
                        assert None not in sent
                        assert sum(s or 0 for s in sent) + network <= network_mb_s
                if pcie_mb_s and pcie is None and n > 1:
                    assert not there
                elif pcie_mb_s and pcie:
                    assert loads.pcie[node] + pcie <= max(pcie_mb_s, pcie)
                    assert n == 1 or None not in [load for _, load in there]
        for node in nodes:
            worst = [_on(want, n) for n in ways]
            unknown = [any(load[i] is None for load in worst) for i in (0, 1)]
            network, pcie = (
                None if unknown[i] else max(load[i] or 0.0 for load in worst) for i in (0, 1)
            )
            loads.add(node, network, pcie, gang=max(ways) > 1)


def test_a_job_of_one_node_does_not_care_and_is_not_counted() -> None:
    """The network budget is about jobs of several nodes; PCIe is about all."""
    nodes = (pc.Node(), pc.Node())
    gang = pc.Run((0, 1), gpus=1, model="even")
    single = pc.Case(nodes, (gang,), (pc.Waiting(gpus=4, model="even"),))

    for rule in (Contention(), Contention(network_mb_s=10.0)):
        assert pc.place(pc.snapshot(single), BestFit(), rule).spots
    assert not pc.place(pc.snapshot(single), BestFit(), Contention(pcie_mb_s=1500.0)).spots
    assert pc.place(pc.snapshot(single), BestFit(), Contention(pcie_mb_s=2000.0)).spots


def test_within_a_budget_two_such_jobs_share_a_node() -> None:
    """Two shares of 20 MB/s fit into 40, not into 39; without a budget they never do."""
    nodes = (pc.Node(), pc.Node())
    gang = pc.Run((0, 1), gpus=2, model="even")
    case = pc.Case(nodes, (gang,), (pc.Waiting(gpus=4, n_nodes=2, model="even"),))

    assert pc.place(pc.snapshot(case), BestFit(), Contention(network_mb_s=40.0)).spots
    assert not pc.place(pc.snapshot(case), BestFit(), Contention(network_mb_s=39.0)).spots
    assert not pc.place(pc.snapshot(case), BestFit(), Contention()).spots


@pytest.mark.parametrize("budget", [{"network_mb_s": 1e6}, {"pcie_mb_s": 1e6}])
@pytest.mark.parametrize(("there", "comes"), [("unknown", "even"), ("even", "unknown")])
def test_a_load_that_nobody_knows_is_alone(
    budget: dict[str, float], there: str, comes: str
) -> None:
    """However large the budget is, and whichever of the two came first."""
    nodes = (pc.Node(), pc.Node())
    job = (pc.Waiting(gpus=4, n_nodes=2, model=comes),)
    case = pc.Case(nodes, (pc.Run((0, 1), gpus=2, model=there),), job)
    known = pc.Case(
        nodes, (pc.Run((0, 1), gpus=2, model="even"),), (pc.Waiting(4, 2, model="even"),)
    )

    assert not pc.place(pc.snapshot(case), BestFit(), Contention(**budget)).spots
    assert pc.place(pc.snapshot(known), BestFit(), Contention(**budget)).spots


@pytest.mark.parametrize("wrong", [{"network_mb_s": -1.0}, {"pcie_mb_s": math.nan}])
def test_budgets_without_meaning_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Contention(**wrong)
