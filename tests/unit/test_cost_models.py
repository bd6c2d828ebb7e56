"""The same policies under several cost models: who runs where, what is told, how it is laid out."""

from __future__ import annotations

import dataclasses
import io
import json

import numpy as np
import pytest
from rich.console import Console

from slurm_dl.cli.dlsim import comparison_text
from slurm_dl.cli.dlsim.comparison_text import NARROW, WIDE, best_first, tables
from slurm_dl.experiments import cost_models
from slurm_dl.experiments.comparison import FIGURES, Comparison
from slurm_dl.experiments.cost_models import CostModelPlan, Ran, plans
from slurm_dl.experiments.sweep import CellError, Failure, Sweep, parse_policies, run_cells
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.trace import Trace

OWN = "discrete_las:lucid"
"""It decides every 60 s, and so not on a Slurm."""


def made(jobs: int = 14) -> Trace:
    """A few jobs that have to wait for each other, of two users."""
    rng = np.random.default_rng(3)
    return Trace(
        name="made",
        format="slurm_dl",
        job_id=tuple(f"j{i}" for i in range(jobs)),
        submit_s=np.sort(rng.integers(0, 900, jobs)).astype(np.float64),
        duration_s=rng.integers(30, 900, jobs).astype(np.float64),
        gpus=rng.choice([1.0, 2.0, 4.0], jobs),
        user=rng.integers(0, 2, jobs).astype(np.int32),
        model=np.full(jobs, -1, np.int32),
        ending=np.zeros(jobs, np.int8),
        users=("ada", "ben"),
    )


TRACE = made()


def planned(policies: str, *costs: str | None, **more: object) -> tuple[CostModelPlan, ...]:
    """Plans for these policies on a small cluster."""
    values: dict[str, object] = {"lenient": False, "loads": (1.0,), "seeds": 1, "cluster": "2x4"}
    return plans(parse_policies(policies, {}), TRACE, costs, **{**values, **more})  # type: ignore[arg-type]


def ran(*found: CostModelPlan) -> Ran:
    """What comes of them, here."""
    return cost_models.run(
        found, lambda sweep, failed: run_cells(sweep, TRACE, lambda _: None, failed=failed)
    )


def printed(comparison: Comparison, *, width: int, ranked: bool) -> list[str]:
    """The lines of its tables on a terminal of that width."""
    console = Console(width=width, file=io.StringIO())
    for table in tables(comparison, width=width, ranked=ranked):
        console.print(table)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def test_a_policy_that_cannot_run_under_one_of_the_costs_is_told_there() -> None:
    ideal, slurm = planned(f"fifo,{OWN}", "none", "slurm")

    assert ideal.sweep.labels == ("fifo", OWN)
    assert ideal.refused == ()
    assert slurm.sweep.labels == ("fifo",)
    assert [one.label for one in slurm.refused] == [OWN]
    assert slurm.refused[0].why.startswith("preset 'lucid' says itself when to decide")
    turned = planned(f"fifo,{OWN}", "slurm", "none")
    assert [plan.sweep.labels for plan in turned] == [("fifo",), ("fifo", OWN)]


def test_a_policy_that_was_named_and_can_run_nowhere_is_an_error() -> None:
    """Unless it was not named but meant among all."""
    with pytest.raises(ConfigError, match="preset 'lucid' says itself when to decide"):
        planned(f"fifo,{OWN}", "slurm")

    (plan,) = planned(f"fifo,{OWN}", "slurm", lenient=True)
    assert plan.sweep.labels == ("fifo",)


@pytest.mark.parametrize(
    ("policies", "costs", "more", "said"),
    [
        ("fifo", ("none", "none"), {}, "--costs: none is given twice"),
        ("fifo", ("/nonexistent",), {"lenient": True}, "--costs /nonexistent"),
        ("fifo", ("none",), {"lenient": True, "cluster": "2y4"}, "cluster '2y4'"),
        (OWN, ("slurm",), {"lenient": True}, "--costs slurm: no policy can run"),
    ],
)
def test_what_is_wrong_for_all_is_an_error(
    policies: str, costs: tuple[str, ...], more: dict[str, object], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        planned(policies, *costs, **more)


def test_figures_of_both_costs_are_in_one_json() -> None:
    """Rows, simulations and policies of each, and which could not be run; strict JSON."""
    found = ran(*planned(f"fifo,{OWN}", "none", "slurm"))

    told = json.loads(json.dumps(cost_models.as_json(TRACE, found), allow_nan=False))

    where = [("fifo", "none"), (OWN, "none"), ("fifo", "slurm")]
    for key in ("rows", "cells"):
        assert [(row["policy"], row["costs"]) for row in told[key]] == where
    assert [(p["label"], p["costs"]) for p in told["policies"]] == where
    assert set(told["rows"][0]["figures"]) == set(FIGURES) >= {"jain", "max_rho", "p95_jct_s"}
    assert [(r["policy"], r["costs"]) for r in told["refused"]] == [(OWN, "slurm")]
    assert told["failed"] == []
    # The first of its own cost model is what a policy is held against.
    figures = told["rows"][2]["figures"]["avg_jct_s"]
    assert "ratio" not in figures
    assert figures["mean"] == told["cells"][2]["avg_jct_s"]


def test_a_cost_model_under_which_all_fail_does_not_lose_the_other() -> None:
    """If all fail everywhere that is an error that says each."""
    found = planned("fifo,las", "none", "slurm", lenient=True)

    def simulate(sweep: Sweep, failed: object) -> list[object]:
        if sweep.costs == "none":
            return list(run_cells(sweep, TRACE, lambda _: None))
        for cell in sweep.cells:
            failed(Failure(cell, f"{cell}: no room"))  # type: ignore[operator]
        return []

    whole = cost_models.run(found, simulate)  # type: ignore[arg-type]

    assert [cost_models.costs_of(c) for c in whole.comparisons] == ["none"]
    lines = list(cost_models.left_out(whole))
    assert "failed with costs slurm: fifo, load 1, seed 0: no room" in lines
    with pytest.raises(CellError, match="fifo, load 1, seed 0: no room"):
        cost_models.run(found[1:], simulate)  # type: ignore[arg-type]


def test_a_wide_table_has_every_figure_and_marks_the_best_of_each() -> None:
    """120 columns; the best by mean JCT on top; each mark is at the least, or at the most."""
    (comparison,) = ran(*planned(f"fifo,discrete_las:none,{OWN},srtf", "none")).comparisons

    lines = printed(comparison, width=WIDE, ranked=True)

    assert max(map(len, lines)) <= WIDE
    for word in ("mean", "median", "p95", "p99", "span", "used", "starts", "GPU-h", "Jain", "rho"):
        assert word in f"{lines[0]} {lines[1]}", word
    first = [line.split()[0] for line in lines[2:] if line.strip()]
    expected = [row.label.replace(":", ": ") for row in best_first(comparison.rows)]
    assert " ".join(first) == " ".join(expected)
    means = [row.figures["avg_jct_s"].mean.value for row in best_first(comparison.rows)]
    assert means == sorted(means)
    worst = {row.label: row.figures["max_rho"].mean.value for row in comparison.rows}
    least = min(worst, key=lambda label: worst[label])
    assert next(line for line in lines if line.startswith(least.partition(":")[0])).endswith("*")


def test_a_narrow_table_of_many_has_a_second_one_with_the_rest() -> None:
    (comparison,) = ran(*planned(f"fifo,{OWN},srtf", "none")).comparisons

    lines = printed(comparison, width=NARROW, ranked=True)
    plain = printed(comparison, width=NARROW, ranked=False)

    assert max(map(len, lines)) <= NARROW
    assert any("Jain" in line and "rho" in line for line in lines)
    assert not any("Jain" in line for line in plain)
    assert "worst rho: " in comparison_text.marks(comparison, ranked=True)
    assert "worst rho: " not in comparison_text.marks(comparison)


def test_whose_jobs_did_not_finish_is_last_and_never_the_best() -> None:
    """Its mean is over fewer jobs: as short as the best, and no mean to be held against it."""
    (whole,) = ran(*planned(f"fifo,{OWN},srtf", "none")).comparisons
    first, *others = whole.rows
    best = min(others, key=lambda row: row.figures["avg_jct_s"].mean.value)
    result = first.results[0]
    summary = dataclasses.replace(result.summary, finished=result.summary.finished - 1)
    lame = dataclasses.replace(
        first, results=(dataclasses.replace(result, summary=summary),), figures=best.figures
    )
    comparison = dataclasses.replace(whole, rows=(lame, *others))

    lines = printed(comparison, width=WIDE, ranked=True)

    assert best_first(comparison.rows)[-1].label == "fifo"
    row = next(line for line in lines if line.startswith("fifo"))
    assert "*" not in row
    assert row.split()[-1] == "13/14"
    assert "*" in next(line for line in lines if line.startswith(best.label.partition(":")[0]))
