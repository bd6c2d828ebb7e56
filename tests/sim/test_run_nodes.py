"""Which nodes runs were on, and the rows they are drawn on: true of each policy and cluster."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_traces import make_trace, traces

from slurm_dl.experiments import cluster_presets, simulation_run
from slurm_dl.experiments.placement_choice import Named
from slurm_dl.model.completed_jobs import Records, RunNodes
from slurm_dl.model.trace import Trace
from slurm_dl.policies.registry import POLICIES
from slurm_dl.report.html.page_data import in_order, number
from slurm_dl.report.html.row_packing import Blocks
from slurm_dl.simulation.cluster_shape import parse_shape

BEST_FIT = Named(name="best_fit")


def records_of(
    policy: str, trace: Trace, shape: str, *, place: Named | None = BEST_FIT, costs: str = "none"
) -> Records:
    """What becomes of *trace*, with the nodes noted."""
    chosen = simulation_run.choose(
        simulation_run.PolicySpec(policy=policy), trace, on_slurm=cluster_presets.is_slurm(costs)
    )
    cluster = cluster_presets.find(costs, chosen.preset, trace, place)
    cluster = replace(cluster, notes_nodes=True)
    return simulation_run.run(chosen, trace, cluster, parse_shape(shape)).outcome.records


def rows_of(records: Records, node_gpus: tuple[int, ...]) -> Blocks:
    runs = records.runs
    assert runs.nodes is not None
    return number(runs.start_s, runs.end_s, runs.nodes, node_gpus)


def assert_rows_are_true(records: Records, node_gpus: tuple[int, ...]) -> None:
    """Nobody shares a row, and each run has as many rows on each node as GPUs, and no others."""
    runs, blocks = records.runs, rows_of(records, node_gpus)
    assert runs.nodes is not None
    assert blocks.extra == 0
    node_of = np.repeat(np.arange(len(node_gpus)), node_gpus)
    drawn: Counter[tuple[int, int]] = Counter()
    of_row: dict[int, list[tuple[float, float]]] = {}
    for run, first, count in zip(
        blocks.run.tolist(), blocks.first.tolist(), blocks.count.tolist(), strict=True
    ):
        for row in range(first, first + count):
            drawn[run, int(node_of[row])] += 1
            of_row.setdefault(row, []).append((runs.start_s[run], runs.end_s[run]))
    for spans in of_row.values():
        spans.sort()
        ends = [end for _, end in spans]
        assert all(end <= start for end, (start, _) in zip(ends, spans[1:], strict=False))
    lasting = runs.end_s > runs.start_s
    held = {
        (run, node): gpus
        for run, node, gpus in zip(*(c.tolist() for c in _columns(runs.nodes)), strict=True)
        if lasting[run]
    }
    assert drawn == held
    total: Counter[int] = Counter()
    for (run, _), gpus in held.items():
        total[run] += int(gpus)
    assert total == {run: runs.gpus[run] for run in lasting.nonzero()[0].tolist()}


def _columns(nodes: RunNodes) -> tuple[np.ndarray, ...]:
    return nodes.run, nodes.node, nodes.gpus


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=6)
@given(trace=traces(gpus=(1, 2, 3, 4, 6), most=9), shape=st.sampled_from(["2x4", "1x2,3x3"]))
def test_no_gpu_has_two_jobs_at_a_time(policy: str, trace: Trace, shape: str) -> None:
    """On nodes, under every policy; a run over two nodes has rows on both."""
    if not len(trace):
        return
    node_gpus = {"2x4": (4, 4), "1x2,3x3": (2, 3, 3, 3)}[shape]

    assert_rows_are_true(records_of(policy, trace, shape), node_gpus)


@pytest.mark.parametrize("policy", ["slurm", "discrete_las", "srtf"])
@settings(max_examples=4)
@given(trace=traces(gpus=(1, 2, 4, 8), most=8))
def test_nor_on_the_simulated_slurm(policy: str, trace: Trace) -> None:
    """Where runs take a while to be gone, with the daemon and without."""
    if not len(trace):
        return
    records = records_of(policy, trace, "2x4", place=None, costs="slurm")

    assert_rows_are_true(records, (4, 4))


@pytest.mark.parametrize("costs", ["none", "slurm"])
def test_a_run_over_two_nodes_is_on_both(costs: str) -> None:
    """Two jobs of 4 GPUs on 3 nodes of 2, and one that waits for them."""
    trace = make_trace([0, 0, 1], [50, 90, 10], [4, 2, 4])
    place = BEST_FIT if costs == "none" else None
    records = records_of("fifo", trace, "3x2", place=place, costs=costs)
    nodes = records.runs.nodes

    of_job = [sorted(nodes.node[records.runs.job[nodes.run] == job].tolist()) for job in range(3)]
    assert of_job == [[0, 1], [2], [0, 1]]
    assert nodes.gpus.tolist() == [2] * 5


def test_nothing_is_noted_unless_it_is_asked_for() -> None:
    """Nor where GPUs are only counted."""
    trace = make_trace([0, 0], [5, 9], [2, 2])
    chosen = simulation_run.choose(simulation_run.PolicySpec(policy="fifo"), trace)
    for costs, place in (("none", BEST_FIT), ("slurm", None)):
        cluster = cluster_presets.find(costs, "none", trace, place)
        told = simulation_run.run(chosen, trace, cluster, parse_shape("1x4")).outcome.records
        assert told.runs.nodes is None
    assert records_of("fifo", trace, "1x4", place=None).runs.nodes is None


def nodes_of(*held: tuple[int, int, float]) -> RunNodes:
    run, node, gpus = zip(*held, strict=True)
    return RunNodes(
        run=np.array(run, np.int32), node=np.array(node, np.int32), gpus=np.array(gpus, float)
    )


def test_the_lowest_free_numbers_are_taken() -> None:
    """Whoever ends makes room for who starts then; what is not in a row is two rectangles."""
    start, end = np.array([0, 0, 0, 5, 5]), np.array([5, 9, 5, 8, 5])
    held = nodes_of((0, 0, 1), (1, 0, 1), (2, 0, 1), (3, 0, 2), (3, 1, 1), (4, 1, 2))
    blocks = number(start, end, held, (4, 2))

    found = list(
        zip(blocks.run.tolist(), blocks.first.tolist(), blocks.count.tolist(), strict=True)
    )
    assert found == [(0, 0, 1), (1, 1, 1), (2, 2, 1), (3, 0, 1), (3, 2, 1), (3, 4, 1)]


def test_who_shares_gpus_and_finds_no_row_is_below() -> None:
    """Three halves on a node of one GPU: a row each, two of them below all nodes, used again."""
    start, end = np.array([0, 0, 0, 6]), np.array([9, 5, 9, 9])
    held = nodes_of((0, 0, 0.5), (1, 0, 0.5), (2, 0, 0.5), (3, 0, 0.5))
    blocks = number(start, end, held, (1, 3))

    assert blocks.first.tolist() == [0, 4, 5, 4]
    assert blocks.extra == 2


def test_runs_in_another_order_keep_their_nodes() -> None:
    """The third run is the first now, and one that was on no node stays on none."""
    held = in_order(nodes_of((0, 5, 1), (2, 7, 2), (2, 8, 3)), np.array([2, 1, 0]))

    assert [c.tolist() for c in _columns(held)] == [[0, 0, 2], [7, 8, 5], [2, 3, 1]]


def test_nodes_that_are_not_there_are_refused() -> None:
    """A picture of another cluster would be wrong without a word."""
    one = np.array([0]), np.array([1])
    with pytest.raises(ValueError, match="on node 2, and there are 2"):
        number(*one, nodes_of((0, 2, 1)), (4, 4))
    with pytest.raises(ValueError, match="of run 1, and there are 1"):
        number(*one, nodes_of((1, 0, 1)), (4, 4))
    with pytest.raises(ValueError, match="differ in length"):
        replace(nodes_of((0, 0, 1)), gpus=np.zeros(2))
