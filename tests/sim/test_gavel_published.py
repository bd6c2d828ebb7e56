"""Gavel's policies under the preset of its name, beside the results of its own simulator."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from slurm_dl.experiments.grid import Cell, Experiment, Workload
from slurm_dl.experiments.simulation_run import PolicySpec, Result
from slurm_dl.model.errors import ConfigError
from slurm_dl.policies.arithmetic.central_path import central
from slurm_dl.policies.arithmetic.lp_solver import Pool
from slurm_dl.simulation.ideal import presets

ROOT = Path(__file__).parents[2]
TRACES = ROOT / "traces/gavel"
PUBLISHED = json.loads((ROOT / "tests/data/oracles/gavel_max_min_fairness.json").read_text())
PUBLISHED = PUBLISHED["published"]
PAGE = (ROOT / "docs/evaluate/policies-compared.md").read_text("utf-8")
TABLE = re.findall(r"\| `(gavel_\w+)` \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \|", PAGE)
"""Policy, mean JCT, that of Gavel, makespan, that of Gavel."""

SKIPS = {"gavel_fifo": 0.03}
"""Gavel's queue passes a job whose speed is 0 on all types with free GPUs; ours waits for it."""


@cache
def ran(policy: str, trace: str, cluster: str, costs: str | None = None) -> Result:
    work = Workload(cluster=cluster, file=TRACES / trace)
    cell = Cell(policy=PolicySpec(policy=policy, preset="gavel"), costs=costs)
    return Experiment(workloads={"": work}).simulate(cell).result


@pytest.mark.parametrize("row", TABLE, ids=[row[0] for row in TABLE])
def test_results_are_those_of_gavels_simulator(row: tuple[str, ...]) -> None:
    """And the table of the page has both; no option beside the preset is given."""
    policy, *told = row
    cluster = presets.cluster_of(["gavel"])
    assert cluster is not None

    result = ran(policy, "max_min_fairness.trace", cluster)

    records, published = result.outcome.records, PUBLISHED[policy]
    found = records.jct_s.mean(), records.end_s.max()
    assert found[0] == pytest.approx(published["mean_jct_s"], rel=0.05)
    assert found[1] == pytest.approx(published["makespan_s"], rel=SKIPS.get(policy, 0.02))
    figures = (found[0], published["mean_jct_s"], found[1], published["makespan_s"])
    assert told == [f"{figure:,.0f}" for figure in figures]
    assert result.chosen.notes == ("speeds on v100, p100, k80: 96 jobs by preset gavel",)


def test_the_page_has_all_policies_that_were_published() -> None:
    assert {row[0] for row in TABLE} == set(PUBLISHED)


@pytest.mark.parametrize(
    ("policy", "jct_s"), [("gavel_isolated", 259.232), ("gavel_fifo", 281.288)]
)
def test_on_one_type_every_second_is_gavels(policy: str, jct_s: float) -> None:
    """20 jobs on 4 V100: no program is solved, so whole steps and rounds give the same sums."""
    records = ran(policy, "small_test.trace", "4x1:v100").outcome.records

    assert records.jct_s.mean() == pytest.approx(jct_s, abs=5e-3)


def test_nothing_else_costs_anything_in_gavels_rounds() -> None:
    with pytest.raises(ConfigError, match="leave out --costs"):
        ran("gavel_max_min", "small_test.trace", "4x1:v100", "30")


@pytest.mark.parametrize(
    ("given", "share"),
    [
        # Two jobs alike on two types alike: nobody is to be told which.
        ({"gain": [[1.0, 1.0], [1.0, 1.0]]}, [[0.5, 0.5], [0.5, 0.5]]),
        # All the time of the first is worth more on the first type; the other has what is left.
        ({"value": [[2.0, 1.0], [1.0, 1.0]]}, [[1.0, 0.0], [0.0, 1.0]]),
        # Half of the time is asked for: the analytic centre of x + y <= 1, x + y >= 1/2.
        ({"gain": [[1.0, 1.0], [1.0, 1.0]], "floor": [0.5, 0.5]}, [[0.35, 0.35], [0.35, 0.35]]),
    ],
)
def test_the_middle_of_the_best_shares(
    given: dict[str, list[list[float]]], share: list[list[float]]
) -> None:
    two = np.ones(2)
    pool = Pool(
        job_id=np.arange(2), gpus=two, may=np.ones((2, 2), dtype=bool), capacity=two, count=two
    )

    found = central(pool, **{name: np.array(rows) for name, rows in given.items()})

    assert found == pytest.approx(np.array(share), abs=0.02)
