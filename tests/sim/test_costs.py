"""What starting a job costs: the models one by one, and the tables that come with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_traces import make_trace

from slurm_dl.experiments.cluster_presets import find, with_failures
from slurm_dl.model.errors import ConfigError
from slurm_dl.simulation.ideal.start_costs import (
    FlatCosts,
    MuriCosts,
    NoCosts,
    QuantileCosts,
    measured,
    muri_costs,
    quantile_costs,
)


def rng() -> np.random.Generator:
    """The same draws each time."""
    return np.random.default_rng(3)


def rows(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Rows of a trace."""
    return np.array(values, dtype=np.int64)


def test_no_costs_are_none() -> None:
    """No second for anybody."""
    lag_s = NoCosts().lag_s(rows(0, 5), np.array([True, False]), rng())

    assert lag_s.tolist() == [0.0, 0.0]


def test_flat_costs_go_by_size_and_spare_the_first_start() -> None:
    """A job of 8 GPUs is still small, one of 9 is large; rows are those of the trace."""
    costs = FlatCosts(
        restart_s=40,
        large_restart_s=60,
        gpus=np.array([1.0, 8.0, 9.0, 64.0]),
        large_gpus=8,
        start_s=5,
    )

    assert costs.lag_s(rows(3, 2, 1, 0), np.zeros(4, np.bool_), rng()).tolist() == [60, 60, 40, 40]
    assert costs.lag_s(rows(3, 0), np.ones(2, np.bool_), rng()).tolist() == [5, 5]
    assert costs.lag_s(rows(), np.zeros(0, np.bool_), rng()).tolist() == []


def test_without_a_limit_nobody_is_large() -> None:
    """The cost of large jobs is not used, nor told."""
    costs = FlatCosts(restart_s=40, large_restart_s=60, gpus=np.array([1e9]))

    assert costs.lag_s(rows(0), np.zeros(1, np.bool_), rng()).tolist() == [40]
    assert costs.name == "restart 40 s, first start 0 s"


def test_names_tell_the_parameters() -> None:
    """A report names the cost model in full."""
    flat = FlatCosts(restart_s=40, large_restart_s=62.5, gpus=np.ones(1), large_gpus=8, start_s=2)

    assert flat.name == "restart 40 s, 62.5 s above 8 GPUs, first start 2 s"
    assert QuantileCosts("mine", np.array([0.0, 1.0])).name == "quantile table mine"
    assert {NoCosts().name, MuriCosts(np.ones(1)).name} == {"none", "muri"}


@given(
    table=st.lists(st.floats(0, 100), min_size=2, max_size=20).map(sorted), seed=st.integers(0, 99)
)
def test_draws_come_from_the_table(table: list[float], seed: int) -> None:
    """Every draw is between the least and the most; the first start is free."""
    costs = quantile_costs("t", table)
    first = np.arange(40) % 4 == 0
    lag_s = costs.lag_s(np.arange(40), first, np.random.default_rng(seed))

    assert (lag_s[first] == 0).all()
    assert (lag_s[~first] >= table[0]).all()
    assert (lag_s[~first] <= table[-1]).all()


def test_draws_have_the_distribution_of_the_table() -> None:
    """Their quantiles are the table's, linear in between (Kolmogorov-Smirnov at 0.1 %)."""
    table = np.array([0.0, 1.0, 1.0, 4.0, 60.0])
    n = 20_000
    drawn = np.sort(QuantileCosts("t", table).lag_s(np.arange(n), np.zeros(n, np.bool_), rng()))
    # The table is flat from 1 to 1: compare below and above it.
    share = np.interp(drawn, [0, 1 - 1e-12, 1 + 1e-12, 4, 60], [0, 0.25, 0.5, 0.75, 1])
    far = np.abs(share - np.arange(n) / n)[np.abs(drawn - 1) > 1e-9]

    assert far.max() < 1.95 / np.sqrt(n)
    assert drawn.mean() == pytest.approx(np.trapezoid(table) / 4, rel=0.03)


@pytest.mark.parametrize(
    "values",
    [
        [],
        [1.0],
        [2.0, 1.0],
        [-1.0, 1.0],
        [0.0, np.nan],
        [0.0, np.inf],
        "x",
        None,
        [[1.0, 2.0]],
        [0, "a"],
    ],
)
def test_a_table_that_is_none_is_refused(values: object) -> None:
    """The message names the table and says what it should be."""
    with pytest.raises(ConfigError, match=r"mine\.json: 'seconds' must be two or more finite"):
        quantile_costs("mine.json", values)


def test_measured_tables_are_what_their_sources_say() -> None:
    """TACC: 101 quantiles, median 6 s, p90 29 s, 60 s at most. Muri: six sizes of job."""
    tacc = quantile_costs("tacc", measured("tacc_preemption_overhead_s")["quantiles_s"]).quantiles_s
    muri = measured("muri_start_overhead_s")["overhead_s"]

    assert len(tacc) == 101
    assert (round(tacc[50]), round(tacc[90]), round(tacc[100])) == (6, 29, 60)
    assert sorted(muri, key=int) == ["1", "2", "4", "8", "16", "32"]
    assert all(value > 0 for by_model in muri.values() for value in by_model.values())


def test_muris_overheads_lie_beside_the_jobs() -> None:
    """By model and GPUs; a model or a size that was not measured, or none, has the default."""
    table = measured("muri_start_overhead_s")
    size = next(iter(table["overhead_s"]))
    model, overhead_s = next(iter(table["overhead_s"][size].items()))
    trace = make_trace(
        [0, 0, 0, 0],
        [1, 1, 1, 1],
        [float(size), 3, float(size), float(size)],
        model=np.array([1, 1, 0, -1], dtype=np.int32),
        models=("nobody's", model),
    )
    costs = muri_costs(trace)
    other_s = table["default_s"]

    assert costs.overhead_s.tolist() == [overhead_s, other_s, other_s, other_s]
    assert costs.lag_s(rows(1, 0), np.ones(2, np.bool_), rng()).tolist() == [other_s, overhead_s]


@pytest.mark.parametrize("field", ["restart_s", "large_restart_s", "start_s"])
@pytest.mark.parametrize("value", [-1.0, np.nan])
def test_flat_costs_of_nonsense_are_refused(field: str, value: float) -> None:
    """A start that gives time back would end a job before it has run."""
    good = {"restart_s": 1.0, "large_restart_s": 1.0, "start_s": 1.0}
    with pytest.raises(ValueError, match=field):
        FlatCosts(gpus=np.ones(1), **{**good, field: value})


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ("restart_s: -1", "restart_s: must be 0 or more"),
        ("restart_s: 1.0e+12", "below 1e+12"),
        ("restart_s: .nan", "0 or more"),
        ("restart_s: soon", "restart_s: want a number (got 'soon')"),
        ("restart_s: 5\nstrat_s: 3", "strat_s: there is no such cost; did you mean start_s"),
        ("large_restart_s: 5", "large_restart_s needs large_gpus"),
        ("seconds: [1, 2]\nnote: x", "unknown key"),
        ("seconds: [2, 1]", "not decreasing"),
        ("seconds: [1, 2", "is no YAML"),
        ("save_s: -1", "save_s must be a finite number, 0 or more"),
        ("- 3", "want a mapping"),
        ("restart_s: 5\n" + "#" * 1_000_000, "more than 1,000,000 characters"),
    ],
)
def test_a_table_that_is_wrong_is_refused_in_one_line(
    table: str, says: str, tmp_path: Path
) -> None:
    """Whatever kind of table it is; the file is named."""
    path = tmp_path / "costs.yaml"
    path.write_text(table, "utf-8")

    with pytest.raises(ConfigError) as err:
        find(str(path), "none", make_trace([0], [9], [1]))

    (line,) = str(err.value).splitlines()
    assert "costs.yaml" in line
    assert says in line


@pytest.mark.parametrize(
    "words", ["", "x", "90", "90:", "0:4", "90:0", "90:4:1", "nan:4", "90:inf"]
)
def test_node_failures_are_two_mean_times(words: str) -> None:
    """Days and hours, on a Slurm alone."""
    trace = make_trace([0], [9], [1])
    slurm = find("slurm", "none", trace)

    assert with_failures(slurm, "90:4").name == "slurm, nodes break every 90 d for 4 h"
    with pytest.raises(ConfigError, match=r"--node-failures .*: must be DAYS:HOURS"):
        with_failures(slurm, words)
    with pytest.raises(ConfigError, match="only with --costs slurm"):
        with_failures(find("none", "none", trace), "90:4")
