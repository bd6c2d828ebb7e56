"""Nodes in use, counted and forecast: by brute force, on a daily pattern, on Philly's record."""

from __future__ import annotations

import csv
import gzip
import json
import time
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from slurm_dl.cli.dlctl import advice
from slurm_dl.estimates.node_demand import (
    LEAST_STEPS,
    STEP_S,
    NodeDemand,
    node_demand,
    nodes_in_use,
)

PHILLY = Path(__file__).parents[2] / "traces" / "philly" / "nodes.csv.gz"
DAY = 144
HOUR_S = 3600.0


@given(
    runs=st.lists(
        st.tuples(
            st.sampled_from(["n1", "n2", "n3"]),
            st.floats(0, 20 * STEP_S),
            st.floats(0, 9 * STEP_S),
        ),
        max_size=12,
    ),
    begin=st.floats(0, 5 * STEP_S),
)
def test_a_node_counts_once_in_each_step_in_which_any_job_is_on_it(
    runs: list[tuple[str, float, float]], begin: float
) -> None:
    """Against looking at each step; the last ends where the time ends."""
    end_s = 15.5 * STEP_S
    spans = [(node, start_s, start_s + ran_s) for node, start_s, ran_s in runs]
    told = nodes_in_use(spans, begin, end_s)
    first_s = end_s - len(told) * STEP_S

    assert begin <= first_s < begin + STEP_S
    for i, count in enumerate(told.tolist()):
        low, high = first_s + i * STEP_S, first_s + (i + 1) * STEP_S
        # Rounding moves an edge by less than a microsecond.
        sure = {n for n, a, b in spans if a < high - 1e-6 and b > low + 1e-6}
        may = {n for n, a, b in spans if a < high + 1e-6 and b > low - 1e-6}
        assert len(sure) <= count <= len(may)


def series(days: int, seed: int = 0) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """40 nodes by night, 80 from 8 to 20 o'clock, 50 at the weekend, and some noise."""
    at = np.arange(days * DAY)
    by_day = (at % DAY >= 8 * 6) & (at % DAY < 20 * 6)
    weekend = at // DAY % 7 >= 5
    noise = np.random.default_rng(seed).normal(0, 1, len(at))
    return np.round(np.where(by_day, np.where(weekend, 50, 80), 40) + noise)


@pytest.mark.parametrize(("hour", "least", "most"), [(6, 76, 86), (21, 36, 46)])
def test_a_daily_pattern_is_foreseen(hour: int, least: float, most: float) -> None:
    """Three hours before the working day many nodes are expected, after it few."""
    days = series(30)[: 29 * DAY + hour * 6]  # The last day is the second of a week.
    found = node_demand(days, len(days) * STEP_S, 3 * HOUR_S)

    assert found is not None
    assert least <= found.most <= most
    assert found.is_of_use
    assert found.error < 0.3 * found.last_value_error


def test_on_phillys_record_it_beats_the_last_value() -> None:
    """Three hours ahead, on the last two weeks of ten."""
    with gzip.open(PHILLY, "rt", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    in_use = np.array([float(row["most_nodes"]) for row in rows])
    end_s = datetime.fromisoformat(rows[-1]["begin"] + "Z").timestamp() + STEP_S
    found = node_demand(in_use, end_s, 3 * HOUR_S)

    assert found is not None
    assert found.error < 0.85 * found.last_value_error
    assert found.error < 0.9 * found.risen_value_error


def test_where_nothing_can_be_learned_nothing_is_said() -> None:
    """Too short, too far ahead; of a random walk the forecast is not better than its last value."""
    assert node_demand(series(30)[: LEAST_STEPS - 1], 0.0, HOUR_S) is None
    assert node_demand(series(30), 0.0, 25 * HOUR_S) is None
    walk = np.random.default_rng(3).normal(0, 1, 30 * DAY).cumsum() + 500
    found = node_demand(walk, 30 * DAY * STEP_S, 3 * HOUR_S)
    assert found is not None
    assert not found.is_of_use


def test_a_node_that_is_idle_again_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its job ended a minute ago; two nodes are expected in use, of which one is."""
    now_s = time.time()
    runs = [("n1", now_s - 9e6, now_s + 60), ("n2", now_s - 9e6, now_s - 60)]
    two = NodeDemand(most=2, buffer=0, error=0.1, last_value_error=1, risen_value_error=1)
    for name, answer in {
        "slurm_of": None, "runs_on_nodes": runs, "idle_nodes": ["n2", "n3"], "node_demand": two
    }.items():  # fmt: skip
        monkeypatch.setattr(advice, name, lambda *_, answer=answer: answer)
    told = json.loads(CliRunner().invoke(advice.advice, ["nodes", "--json"]).output)
    assert (told["in_use"], told["expected_most"], told["can_power_down"]) == (1, 2, 1)
