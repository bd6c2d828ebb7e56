"""dlsim game: what a player gains, from the workload to the table."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from in_process import Result, in_process

from slurm_dl.cli.dlsim.command import main
from slurm_dl.experiments.game import Game, GameCell, GameRow, cells, rows
from slurm_dl.experiments.game_strategies import BASES, HONEST, STRATEGIES
from slurm_dl.experiments.game_workload import PLAYER, Crowd
from slurm_dl.experiments.grid import Figures, Workload
from slurm_dl.experiments.simulation_run import PolicySpec
from slurm_dl.traces.format_registry import read_trace

TRACE = Path(__file__).parents[2] / "traces/elasticflow/cluster10.csv"
LAS = PolicySpec(policy="discrete_las")


def of(jobs: int) -> Game:
    crowd = Crowd(jobs=jobs, users=6, share=0.1)
    return Game(workloads={"": Workload(cluster="1x8", trace=read_trace(TRACE, None))}, crowd=crowd)


@pytest.fixture(scope="module")
def game() -> Game:
    return of(40)


@pytest.fixture(scope="module")
def few() -> Game:
    return of(12)


def measured(game: Game, *strategies: str, seeds: int = 1, load: float = 1.4) -> list[GameRow]:
    return [*rows(found(game, *strategies, seeds=seeds, load=load))]


def found(game: Game, *strategies: str, seeds: int, load: float) -> Mapping[GameCell, Figures]:
    return {c: game.figures(game.simulate(c)) for c in cells([LAS], strategies, [load], seeds)}


def test_early_submission_does_not_pay_and_honesty_is_the_measure(game: Game) -> None:
    """Places go by eligibility; no job of the player begins before its time."""
    honest, early = measured(game, "early", seeds=2)
    (cell,) = (c for c in cells([LAS], ["early"], [1.4], 1) if c.strategy == "early")
    records = game.simulate(cell).result.outcome.records
    begins = {j.work: j.due_s for j in game.wanted(cell).jobs if j.user == PLAYER}
    at = {int(name.partition(".")[0]): start for name, start in zip(
        records.job_id, records.start_s, strict=True)}  # fmt: skip

    assert (honest.gain.mean, honest.loss.mean) == (0.0, 0.0)
    assert (honest.gain.low, honest.gain.high) == (0.0, 0.0)
    assert abs(early.gain.mean) < 0.01
    assert early.unfinished == 0
    assert all(at[work] >= begin_s for work, begin_s in begins.items())


@pytest.mark.parametrize(("commitment", "pays"), [("counted", False), ("ignored", True)])
def test_who_does_not_opt_in_gains_only_where_commitment_is_ignored(
    tmp_path: Path, commitment: str, *, pays: bool
) -> None:
    """The player's jobs count the time limits that nobody can take back."""
    config = tmp_path / "dl.yaml"
    config.write_text(
        f"manage: {{partitions: [gpu]}}\npreemption: {{commitment: {commitment}}}\n", "utf-8"
    )
    played = dataclasses.replace(of(40), config=str(config))
    (row,) = (row for row in measured(played, "no-opt-in", seeds=3) if row.strategy != HONEST)

    assert (row.gain.mean > 0.3) == pays


def test_a_seed_gives_the_same_figures_twice(few: Game) -> None:
    one, two = (
        [{k: v for k, v in f.items() if k != "wall_s"} for f in found(
            few, "chain-1h", seeds=1, load=2.0).values()] for _ in range(2)
    )  # fmt: skip

    assert one == two
    assert one[0] != one[1]


@pytest.mark.parametrize("strategy", sorted({*STRATEGIES} - {HONEST}))
def test_each_strategy_does_the_work_that_was_wanted(few: Game, strategy: str) -> None:
    """Whatever becomes of its jobs, the pieces of a job do what it needs, and the crowd is left."""
    cell = GameCell(policy=LAS, costs="slurm", load=1.0, resample=2, strategy=strategy)
    wanted = few.wanted(cell)
    simulated = few.simulate(cell)
    records = simulated.result.outcome.records
    work = np.array([int(name.partition(".")[0]) for name in records.job_id])
    lost = np.sum([*records.lost_gpu_s.values()], axis=0)
    done_gpu_s = records.service_gpu_s - lost
    speed = {"node-by-cpus": 1.15}.get(strategy, 1.0)

    assert few.figures(simulated)["unfinished"] == 0
    for job in wanted.jobs:
        held = records.gpus[work == job.work] / job.gpus
        got_s = float((done_gpu_s[work == job.work] / job.gpus / held.clip(1.0)).sum())
        if job.user != PLAYER or strategy not in {"array", "cpu-hog", "whole-nodes"}:
            own = job.user == PLAYER and job.gpus < 8
            assert got_s == pytest.approx(job.need_s / (speed if own else 1.0), rel=1e-6)


def dlsim(*args: str) -> Result:
    return in_process(main, "game", str(TRACE), *args)


SMALL = ("--cluster", "1x8", "--jobs", "20", "--users", "4", "--share", "0.1", "--seeds", "1")


def test_the_command_keeps_simulations_and_tells_them(tmp_path: Path) -> None:
    """A table for people, the same figures as JSON, and nothing is run twice."""
    words = (*SMALL, "--strategies", "no-opt-in", "--opt-outs", "0.4", "--dir", str(tmp_path / "d"))
    done = dlsim(*words)
    kept = sorted((tmp_path / "d/cells").glob("*.json"))
    stamps = [path.stat().st_mtime_ns for path in kept]
    told = json.loads(dlsim(*words, "--json", "-").stdout)

    assert done.exit_code == 0, done.stderr
    assert "discrete_las, load 1.4; all honest: mean JCT" in done.stdout
    assert "no opt-in" in done.stdout
    assert "cannot opt in, lose" in done.stdout
    assert len(kept) == 2
    assert [path.stat().st_mtime_ns for path in kept] == stamps
    assert told["manifest"]["command"].startswith("dlsim game ")
    honest, row = told["rows"]
    assert (honest["strategy"], honest["gain"]["mean"]) == (HONEST, 0.0)
    assert set(row) == {
        "policy", "load", "strategy", "title", "seeds", "gain", "loss", "cannot", "unfinished",
        "jct_s",
    }  # fmt: skip
    assert set(row["gain"]) == {"mean", "low", "high"}
    assert set(row["jct_s"]) == {"player_jct_s", "others_jct_s", "can_jct_s", "cannot_jct_s"}
    assert f"{100 * row['gain']['mean']:+.1f} (" in done.stdout


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (("--strategies", "early,luck"), 2, "--strategies 'luck': there are no-opt-in"),
        (("--strategies", "honest"), 2, "--strategies 'honest': there are"),
        (("--seeds", "0"), 2, "0 is not in the range"),
        (("--cluster", "nought"), 2, "nought"),
        (("--loads", "0"), 2, "--loads: 0 is given twice or is not from"),
        (("--policies", "nobody"), 2, "nobody"),
        (("--share", "0.9"), 2, "--share 0.9: so few jobs have no such share"),
    ],
)
def test_what_cannot_be_played_is_refused(words: tuple[str, ...], status: int, says: str) -> None:
    done = dlsim(*SMALL, *words)

    assert (done.exit_code, done.stdout) == (status, "")
    assert says in done.stderr


def test_a_cluster_too_small_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("submit_s,duration_s,gpus\n0,1000,8\n", "utf-8")
    columns = ("--columns", "submit_s=submit_s,duration_s=duration_s,gpus=gpus")
    done = in_process(main, "game", str(path), *columns, "--cluster", "2x4")

    assert done.exit_code == 2
    assert "no job of 5 minutes to a day fits a node of 4 GPUs" in done.stderr


def test_all_strategies_are_listed() -> None:
    done = in_process(main, "game", "--list")

    assert [line.split()[0] for line in done.stdout.splitlines()] == [
        name for name in STRATEGIES if name not in BASES
    ]
