"""Jobs of several nodes do not share a node, or only within its budgets; waiting ones included."""

from __future__ import annotations

import numpy as np
import place_cases as pc
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from slurm_dl.placement.best_fit import BestFit
from slurm_dl.placement.contention import Contention
from slurm_dl.placement.pending_job import PendingJob
from slurm_dl.placement.scheme_registry import SCHEMES

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
