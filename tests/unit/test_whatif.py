"""What-if on made histories whose answer is known."""

from __future__ import annotations

import dataclasses
import functools
import math
import multiprocessing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_dl.cli.dlsim.asked import parse_thresholds
from slurm_dl.cli.dlsim.history_options import FIGURES
from slurm_dl.cli.dlsim.whatif import as_json, asked
from slurm_dl.experiments import grid
from slurm_dl.experiments.grid import Experiment, Workload
from slurm_dl.experiments.placement_choice import Named, PlacementSetup
from slurm_dl.experiments.simulation_run import PolicySpec
from slurm_dl.experiments.whatif_bootstrap import Interval, Ranking, rank, verdict_of
from slurm_dl.experiments.whatif_history import (
    DAY_S,
    KINDS,
    DailyHistory,
    Fate,
    cut,
    edge_days,
    fate_of,
)
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.trace import Trace
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.report import summary_metrics
from slurm_dl.simulation.cluster_shape import parse_shape
from tests.small_traces import make_trace, outcome_of

ONE_GPU = parse_shape("1x1")
DAYS = 16


def days_of_jobs(durations_s: list[float], *, days: int = DAYS, every_s: float = 60.0) -> Trace:
    """The same jobs each day, from 09:00 on, one after the other."""
    submit_s = [
        day * DAY_S + 32_400 + n * every_s for day in range(days) for n in range(len(durations_s))
    ]
    return make_trace(submit_s, durations_s * days)


BIMODAL = days_of_jobs([20_000.0] + [60.0] * 30)
"""Each day one long job and then thirty short ones behind it."""

ALIKE = days_of_jobs([600.0] * 60)
"""All jobs equal: whoever goes first, as many have waited as long."""


def fates(
    history: DailyHistory,
    specs: Sequence[PolicySpec],
    *,
    cluster: str = "1x1",
    costs: str | None = None,
    processes: int = 1,
    **more: Any,  # noqa: ANN401 - fields of the experiment
) -> dict[str, Fate]:
    """The fate of the jobs under each policy."""
    workload = Workload(cluster=cluster, trace=history.trace)
    experiment = Experiment(workloads={"": workload}, **more)
    measure = functools.partial(fate_of, history)
    cells = grid.product(specs, costs=(costs,))
    found = grid.all_of(dict(grid.run(experiment, cells, measure, processes=processes)))
    return {cell.policy.short_label: found[cell] for cell in cells}


def fate(policy: str, history: DailyHistory, **more: Any) -> Fate:  # noqa: ANN401 - of `fates`
    """The fate of the jobs under one policy."""
    (found,) = fates(history, [PolicySpec(policy=policy, preset="none")], **more).values()
    return found


def ranking(trace: Trace, *policies: str, by: str = "mean-jct", **more: int) -> Ranking:
    specs = [PolicySpec(policy=name) for name in policies]
    return rank(list(fates(cut(trace, ONE_GPU, **more), specs).items()), by=by, seed=0)


def test_short_jobs_behind_long_ones_are_what_srtf_and_las_are_for() -> None:
    found = ranking(BIMODAL, "fifo", "las", "srtf", "discrete_las")
    value = {row.label: row.own.value for row in found.rows}

    assert [row.own.value for row in found.rows] == sorted(value.values())
    assert min(value.values()) == pytest.approx(value["srtf"])
    assert found.rows[-1].label == "fifo"
    for row in found.rows:
        assert row.verdict == ("first" if row.label == "fifo" else "better")
        if row.difference is not None:
            assert row.difference.high < -0.5 * found.rows[-1].own.value
            assert (row.better_on, row.compared_on) == (14, 14)


def test_no_difference_is_shown_where_there_is_none() -> None:
    """Equal jobs: SRTF is FIFO to the second, though it is simulated by other code.

    A worse policy is told as worse, and too few days show nothing.
    """
    found = ranking(ALIKE, "fifo", "srtf", "fifo_skip")
    assert [row.verdict for row in found.rows] == ["first", *["no difference shown"] * 2]
    assert all(row.difference == Interval(0, 0, 0) for row in found.rows[1:])

    worse = [(row.label, row.verdict) for row in ranking(BIMODAL, "srtf", "fifo").rows]
    assert worse == [("srtf", "first"), ("fifo", "worse")]
    few = ranking(days_of_jobs([20_000.0] + [60.0] * 30, days=5), "fifo", "srtf")
    assert {row.verdict for row in few.rows} == {"first", "too few days"}


def test_a_difference_of_a_single_day_is_not_shown() -> None:
    """One day of sixteen decides the mean, and another month may not have it."""
    quiet = days_of_jobs([60.0] * 5, every_s=600)
    busy = days_of_jobs([20_000.0] + [60.0] * 30, days=1)
    submit_s = np.concatenate([quiet.submit_s, busy.submit_s + 8 * DAY_S + 7200])
    order = np.argsort(submit_s)
    duration_s = np.concatenate([quiet.duration_s, busy.duration_s])
    found = ranking(make_trace(submit_s[order], duration_s[order]), "fifo", "srtf")
    better = next(row for row in found.rows if row.label == "srtf")

    assert better.difference.value < 0
    assert better.verdict == "no difference shown"


def test_a_single_day_with_jobs_shows_nothing() -> None:
    """Forty jobs on one of ten days that count, where one policy is far better."""
    day = [0, *[5] * 40, 11]
    trace = make_trace(
        [number * DAY_S + 32_400 + 60 * n for n, number in enumerate(day)],
        [60.0, 20_000.0, *[60.0] * 40],
    )
    for by in ("mean-jct", "p50-jct", "unfair", "lost"):
        found = ranking(trace, "fifo", "srtf", by=by)

        assert {row.verdict for row in found.rows} == {"first", "too few days"}, by
        assert not any(row.own.is_known for row in found.rows), by


def test_figures_end_where_they_can_be() -> None:
    """On three of fourteen days jobs wait, very unequally, and on eleven they are unfair.

    Less by what rounding tells apart is not less; a policy that leaves jobs undone is not ranked.
    """
    base = fate("fifo", cut(ALIKE, ONE_GPU))
    one = dataclasses.replace(
        base,
        queue_s=np.choose(np.minimum(base.block, 3), [100.0, 10.0, 10.0, 0.0]),
        rho=np.where(base.block < 11, 2.0, 1.0),
    )
    by_mean = ("mean-queue", "unfair", "mean-rho", "lost")
    own = {by: rank([("fifo", one)], by=by, seed=0).rows[0].own for by in by_mean}
    assert own["mean-queue"].low == 0 < own["mean-queue"].value < own["mean-queue"].high < math.inf
    assert 0 < own["unfair"].low < own["unfair"].value < own["unfair"].high == 1
    assert own["mean-rho"].high > 1
    assert own["lost"] == Interval(0, 0, 0)

    undone = base.jct_s / 10
    undone[3] = np.nan
    fates = [
        (label, dataclasses.replace(base, jct_s=jct_s))
        for label, jct_s in (
            ("first", base.jct_s), ("same", base.jct_s * (1 - 1e-13)), ("less", base.jct_s * 0.999),
        )
    ]  # fmt: skip
    found = {row.label: row.better_on for row in rank(fates, by="mean-jct", seed=0).rows}
    assert found == {"first": None, "same": 0, "less": 14}
    bad = dataclasses.replace(base, jct_s=undone)
    rows = rank([("fifo", base), ("starves", bad)], by="mean-jct", seed=0).rows
    assert [(r.label, r.verdict) for r in rows] == [("fifo", "first"), ("starves", "unfinished")]
    assert verdict_of(base, bad, Interval(-1, -2, -0.5)) == "unfinished"


def test_figures_are_those_of_all_reports() -> None:
    """Without days left out, each figure of all days is the one that `dlsim run` tells."""
    history = cut(BIMODAL, ONE_GPU, warm_up=0, cool_down=0)
    wish = PolicySpec(policy="discrete_las", preset="none")
    told = next(iter(fates(history, [wish]).values())).values()
    summary = summary_metrics.summarise(outcome_of(BIMODAL, "1x1", DiscreteLas()).records, gpus=1)

    assert told == pytest.approx(
        {
            "mean-jct": summary.jct_s.mean,
            "p50-jct": summary.jct_s.median,
            "p95-jct": summary.jct_s.p95,
            "p99-jct": summary.jct_s.p99,
            "mean-queue": summary.queue_s.mean,
            "p95-queue": summary.queue_s.p95,
            "lost": summary.lost_gpu_s / 3600 / DAYS,
            "mean-rho": summary.rho.mean,
            "unfair": summary.unfair_frac,
        }
    )
    assert set(told) == set(KINDS) == set(FIGURES)


def test_what_restarts_cost_is_lost(tmp_path: Path) -> None:
    costs = tmp_path / "costs.yaml"
    costs.write_text("restart_s: 60\n", "utf-8")
    history = cut(BIMODAL, ONE_GPU)
    srtf = fate("srtf", history, costs=str(costs))

    # The long job is stopped once a day, as short ones come for half an hour.
    assert srtf.preemptions == 14
    assert srtf.values()["lost"] == pytest.approx(60 / 3600)


def test_first_and_last_days_are_simulated_and_not_counted() -> None:
    """What the queue of the first day does to the second is there; its own jobs are not.

    Jobs that the cluster cannot hold are left out; weeks are drawn whole.
    """
    trace = make_trace([0, DAY_S + 10, 2 * DAY_S, 9 * DAY_S], [DAY_S + 1000, 10, 10, 5])
    whole = cut(trace, ONE_GPU, warm_up=1, cool_down=7)
    found = fate("fifo", whole)

    assert (whole.days, whole.counted_days, whole.blocks) == (10, 2, 2)
    assert whole.block.tolist() == [-1, 0, 1, -1]
    assert found.jct_s.tolist() == [1000, 10]
    assert str(whole.date_of(0)) == "1970-01-02"
    edges = {1: 0, 3: 0, 4: 1, 19: 1, 20: 2, 70: 7, 400: 7}
    assert {days: edge_days(days) for days in edges} == edges
    fits = cut(make_trace([0, 10, 20], [1, 1, 1], [1, 4, 1]), ONE_GPU)
    assert (fits.trace.job_id, fits.too_large) == (("0", "2"), 1)
    with pytest.raises(ConfigError, match="at most the 1 GPUs"):
        cut(make_trace([0], [1], [4]), ONE_GPU)
    weeks = fate("fifo", cut(BIMODAL, ONE_GPU, warm_up=1, cool_down=1, block_days=2))
    assert weeks.days.tolist() == [2.0] * 7


@given(
    st.lists(st.floats(0, 30 * DAY_S), min_size=1, max_size=20),
    st.integers(0, 3),
    st.integers(0, 3),
    st.integers(1, 9),
)
def test_every_counted_job_is_in_one_block(
    submit_s: list[float], warm_up: int, cool_down: int, block_days: int
) -> None:
    """Blocks are whole days, in order, and cover all days but those at the ends."""
    trace = make_trace(sorted(submit_s), [1.0] * len(submit_s))
    span = math.floor(trace.submit_s[-1] / DAY_S) - math.floor(trace.submit_s[0] / DAY_S) + 1
    if span <= warm_up + cool_down:
        with pytest.raises(ConfigError, match="none is left"):
            cut(trace, ONE_GPU, warm_up=warm_up, cool_down=cool_down)
        return
    found = cut(trace, ONE_GPU, warm_up=warm_up, cool_down=cool_down, block_days=block_days)
    day = np.floor(trace.submit_s / DAY_S) - math.floor(trace.submit_s[0] / DAY_S)
    inside = (day >= warm_up) & (day < found.days - cool_down)

    assert (found.is_counted == inside).all()
    assert found.block.max() < found.blocks
    assert (np.diff(found.block[inside]) >= 0).all()
    whole = day[inside] - warm_up
    assert (np.minimum(whole // block_days, found.blocks - 1) == found.block[inside]).all()
    assert found.blocks == max(1, found.counted_days // block_days)


@pytest.mark.long
def test_no_figure_depends_on_the_processes_or_the_order_of_the_others() -> None:
    """All of it, in the order it was asked for."""
    specs = asked("fifo,las,srtf", ("2000",), ())
    history = cut(BIMODAL, ONE_GPU)
    told = []
    for processes in (1, 2):
        made = fates(history, specs, processes=processes)
        assert list(made) == [spec.short_label for spec in specs]
        ranked = rank(list(made.items()), by="p95-jct", seed=0)
        told.append(repr(as_json(BIMODAL, history, ONE_GPU, ranked)))
    first, *others = made.items()
    again = rank([first, *others[::-1]], by="p95-jct", seed=0)

    assert told[0] == told[1]
    assert not multiprocessing.active_children()
    assert {r.label: r.difference for r in again.rows} == {
        r.label: r.difference for r in ranked.rows
    }


def test_what_is_compared_runs_as_under_the_daemon() -> None:
    """Parameters reach the policies named, thresholds come on top, each with each scheme.

    After 11 s a GPU is free on both nodes: a job of two that lies on one node waits on.
    """
    specs = asked("fifo,discrete_las,las:none", ("3600,36000",), ("promote_knob=8",))
    named = {spec.short_label: spec for spec in specs}
    assert list(named) == ["fifo", "discrete_las", "las:none", "discrete_las 3600,36000"]
    assert named["discrete_las"].parameters == {"promote_knob": 8}
    assert named["discrete_las 3600,36000"].parameters == {"thresholds_gpu_s": [3600, 36000]}

    found = asked("fifo_skip,las", ("2000",), (), [Named(name="consolidate"), None])
    assert [spec.short_label for spec in found] == [
        "fifo_skip on consolidate", "fifo_skip", "las on consolidate", "las",
        "discrete_las 2000 on consolidate", "discrete_las 2000",
    ]  # fmt: skip
    trace = make_trace([0, 1, 2, 3], [100, 10, 100, 50], [1, 1, 1, 2])
    ground = PlacementSetup(widths="fewest")
    made = fates(cut(trace, parse_shape("2x2")), found, cluster="2x2", ground=ground)
    assert made["fifo_skip"].jct_s.tolist() == [100, 10, 100, 58]
    assert made["fifo_skip on consolidate"].jct_s.tolist() == [100, 10, 100, 147]


@pytest.mark.parametrize("text", ["", "0", "5,5", "9,3", "x", "nan", "1,inf", "1e400"])
def test_thresholds_that_cut_nothing_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--thresholds"):
        parse_thresholds(text)
