"""What starting a job costs: the models one by one, and the tables that come with them."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import slurm_scenarios as scenes
from hypothesis import given
from hypothesis import strategies as st
from small_traces import make_trace

from slurm_dl.experiments.cluster_presets import find, with_failures
from slurm_dl.ledger.store_protocol import MemoryStore
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.errors import ConfigError
from slurm_dl.sandbox import SandboxSpec
from slurm_dl.simulation.ideal.start_costs import (
    FlatCosts,
    MuriCosts,
    NoCosts,
    QuantileCosts,
    measured,
    muri_costs,
    quantile_costs,
)
from slurm_dl.simulation.slurm.daemon_timing import Writes
from slurm_dl.simulation.slurm.job_columns import JobBehaviour, NodeFailures, OnSignal, shapes
from slurm_dl.simulation.slurm.overheads import (
    IDEAL,
    PRESETS,
    PRODUCTION,
    SANDBOX,
    SlurmCosts,
    read_costs,
)
from slurm_dl.simulation.slurm.scheduling_passes import BackfillClock, MainClock, next_on_grid


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


def written(directory: Path, text: str) -> Path:
    path = directory / "costs.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_default_is_what_an_administrator_has() -> None:
    """Slurm's own defaults, from slurm.conf(5) of 22.05, and dlschedd's."""
    assert SlurmCosts() == PRODUCTION == PRESETS["production"]
    assert PRODUCTION.hold_s == 121.0
    assert (PRODUCTION.kill_wait_s, PRODUCTION.bf_interval_s) == (30.0, 30.0)
    assert (PRODUCTION.poll_s, PRODUCTION.fast_poll_s) == (30.0, 5.0)


def test_the_sandbox_preset_is_the_sandbox() -> None:
    """What its specification sets is not measured but taken over."""
    spec = SandboxSpec()
    asked = dict(part.split("=") for part in spec.scheduler_parameters.split(","))

    assert SANDBOX.cred_expire_s == spec.cred_expire_s
    assert SANDBOX.sched_interval_s == float(asked["sched_interval"])
    assert SANDBOX.batch_sched_delay_s == float(asked["batch_sched_delay"])
    # These were measured.
    assert SANDBOX.bf_interval_s == pytest.approx(float(asked["bf_interval"]), rel=0.01)
    assert SANDBOX.kill_wait_s == pytest.approx(spec.kill_wait_s, rel=0.1)


def test_a_file_changes_what_it_names(tmp_path: Path) -> None:
    path = written(tmp_path, "preset: sandbox\nsave_s: 12\n")

    assert read_costs(path) == dataclasses.replace(SANDBOX, save_s=12.0)


def test_costs_come_back_from_the_dictionary_of_a_report(tmp_path: Path) -> None:
    lines = "".join(f"{name}: {value}\n" for name, value in SANDBOX.as_dict().items())

    assert read_costs(written(tmp_path, lines)) == SANDBOX


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("sav_s: 3\n", "sav_s: there is no such cost"),
        ("save_s: much\n", "save_s: want a number (got 'much')"),
        ("save_s: true\n", "save_s: want a number (got True)"),
        ("save_s: -1\n", "save_s must be a finite number, 0 or more (got -1.0)"),
        ("save_s: .inf\n", "save_s must be a finite number, 0 or more (got inf)"),
        ("save_s: 1" + "0" * 400 + "\n", "save_s: the number is too large"),
        ("preset: fast\n", "preset: 'fast' is not one of production, sandbox, ideal"),
        ("poll_s: 1\nfast_poll_s: 2\n", "fast_poll_s must be at most poll_s (got 2.0, 1.0)"),
        ("bf_max_jobs: 1.5\n", "bf_max_jobs must be a whole number (got 1.5)"),
        ("- 3\n", "want a mapping"),
        ("a: [\n", "is no YAML"),
        ("!!python/object/apply:os.getcwd []\n", "is no YAML"),
    ],
)
def test_a_bad_file_says_which_key(text: str, says: str, tmp_path: Path) -> None:
    path = written(tmp_path, text)

    with pytest.raises(ConfigError) as err:
        read_costs(path)

    assert str(path) in str(err.value)
    assert says in str(err.value)


def test_a_file_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_costs(tmp_path / "none.yaml")


def test_all_bad_keys_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as err:
        read_costs(written(tmp_path, "a: 1\nsave_s: x\n"))

    assert len(str(err.value).splitlines()) == 2


@given(at_s=st.floats(-1e6, 1e6), origin_s=st.floats(-1e3, 1e3), period_s=st.floats(0.01, 1e4))
def test_the_next_on_a_grid_is_on_it_and_the_first(
    at_s: float, origin_s: float, period_s: float
) -> None:
    found = next_on_grid(at_s, origin_s, period_s)
    steps = (found - origin_s) / period_s

    assert at_s <= found < at_s + period_s * 1.000001 + 1e-6
    assert steps == pytest.approx(round(steps), abs=1e-4)


def test_a_pass_that_is_asked_for_comes_with_the_next_tick() -> None:
    costs = scenes.ideal(sched_tick_s=1.0, sched_interval_s=60.0, batch_sched_delay_s=3.0)
    clock = MainClock(costs=costs, tick_from_s=0.5, full_from_s=10.5)

    assert clock.due(20.0, asked=True) == 20.5
    assert clock.due(20.0, asked=False) == 70.5
    assert clock.due(69.9, asked=True) == 70.5
    # Three seconds after the last one, be that one asked for or not.
    assert clock.due(70.6, asked=True) == 73.5
    clock.last_s = 80.5
    assert clock.due(80.6, asked=True) == 83.5


def test_an_interval_ends_with_the_first_tick_behind_it() -> None:
    """Ticks of 1.1 s and an interval of 3 s make a pass every 3.3 s."""
    costs = scenes.ideal(sched_tick_s=1.1, sched_interval_s=3.0)
    clock = MainClock(costs=costs, tick_from_s=0.0, full_from_s=0.0)

    assert clock.due(0.1, asked=False) == pytest.approx(3.3)


def test_backfill_comes_at_its_interval_and_wakes_from_idleness_within_a_second() -> None:
    costs = scenes.ideal(bf_interval_s=30.0)

    assert BackfillClock(costs=costs, last_s=0.0, busy=True).due(31.0) == 60.0
    assert BackfillClock(costs=costs, last_s=0.0, busy=False).due(31.5) == 32.0
    assert BackfillClock(costs=costs, last_s=0.0, busy=False).due(3.0) == 30.0


def test_jobs_are_spread_evenly_over_the_fewest_nodes() -> None:
    asked = shapes(np.array([1.0, 4.0, 6.0, 8.0, 0.5, 12.0]), np.array([4.0, 4.0, 4.0, 2.0]))

    assert asked.n_nodes.tolist() == [1, 1, 2, 2, 1, 3]
    assert asked.share.tolist() == [1, 4, 3, 4, 1, 4]


def test_habits_are_drawn_in_their_shares() -> None:
    habits = JobBehaviour(
        opted_in_frac=0.8, ignore_frac=0.1, finish_frac=0.2, requeue_itself_frac=0.3
    )
    opted_in, which = habits.draw(20_000, np.random.default_rng(1))

    assert opted_in.mean() == pytest.approx(0.8, abs=0.02)
    shares = {kind: float((which == kind).mean()) for kind in OnSignal}
    assert shares[OnSignal.IGNORE] == pytest.approx(0.1, abs=0.02)
    assert shares[OnSignal.FINISH] == pytest.approx(0.2, abs=0.02)
    assert shares[OnSignal.REQUEUE_ITSELF] == pytest.approx(0.3, abs=0.02)
    assert habits.contract(OnSignal.REQUEUE_ITSELF).requeued_by == "job"


def test_time_limits_are_whole_minutes_with_room_for_the_job() -> None:
    trace = scenes.trace_of([(0.0, 50.0, 1.0), (0.0, 1000.0, 1.0)])
    limit_s = JobBehaviour(limit_factor=1.0, limit_least_s=0.0).limits(trace, overhead_s=20.0)

    assert limit_s.tolist() == [120.0, 1020.0]


@pytest.mark.parametrize(
    "wrong",
    [
        {"opted_in_frac": 1.5},
        {"ignore_frac": 0.6, "finish_frac": 0.6},
        {"grace_s": 0.0},
        {"limit_factor": 0.5},
    ],
)
def test_habits_that_cannot_be_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        JobBehaviour(**wrong)


def test_failures_need_times() -> None:
    for mtbf_s, mttr_s in ((59.0, 1.0), (60.0, 0.0), (math.inf, 1.0), (60.0, math.inf)):
        with pytest.raises(ValueError, match="mtbf_s must be 60 or more, mttr_s above 0"):
            NodeFailures(mtbf_s=mtbf_s, mttr_s=mttr_s)


def test_writes_flow_in_at_their_rate_and_are_cut_off_at_the_burst() -> None:
    costs = dataclasses.replace(IDEAL, writes_per_s=2.0, writes_burst=4.0)
    writes = Writes(costs, 0.0)

    assert [writes.take() for _ in range(5)] == [True] * 4 + [False]
    writes.refill(1.0)
    assert [writes.take() for _ in range(3)] == [True, True, False]
    assert all(Writes(IDEAL, 0.0).take() for _ in range(1000))


def test_a_ledger_in_memory_begins_empty_and_keeps_no_file() -> None:
    store = MemoryStore()
    ledger = Ledger(store)

    assert len(ledger.service) == 0
    assert ledger.handovers == ()
    ledger.close()
    assert len(store.load().service) == 0
