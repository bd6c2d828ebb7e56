"""Gavel's policies under the preset of its name, beside the results of its own simulator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slurm_dl.experiments import cluster_presets
from slurm_dl.experiments.grid import Cell, Experiment, Workload
from slurm_dl.experiments.oracle import Oracle
from slurm_dl.experiments.pair_table import parse_pairs
from slurm_dl.experiments.placement_choice import PlacementSetup
from slurm_dl.experiments.simulation_run import PolicySpec, Result
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.jobs import F64, I64
from slurm_dl.policies.arithmetic import linear_programs
from slurm_dl.simulation.ideal import gavel_turns, presets
from slurm_dl.traces.format_registry import read_trace

ROOT = Path(__file__).parents[2]
TRACES = ROOT / "traces/gavel"
ORACLES = ROOT / "tests/data/oracles"
RESULTS = json.loads((ORACLES / "gavel_max_min_fairness.json").read_text())
PAIRS = json.loads((ORACLES / "gavel_pairs.json").read_text())["runs"]
CLUSTERS = {"published": presets.cluster_of(["gavel"]), "half": "4x1:v100,8x1:p100,4x1:k80"}


def ran(
    policy: str,
    trace: str | Path,
    cluster: str | None,
    costs: str | None = None,
    *,
    seed: int = 0,
    **parameters: object,
) -> Result:
    assert cluster is not None
    work = Workload(cluster=cluster, file=TRACES / trace)
    chosen = PolicySpec(policy=policy, preset="gavel", parameters=parameters)
    cell = Cell(policy=chosen, costs=costs)
    return Experiment(workloads={"": work}, seed=seed).simulate(cell).result


@pytest.mark.parametrize("policy", sorted(RESULTS["published"]))
@pytest.mark.parametrize("size", CLUSTERS)
def test_results_are_those_of_gavels_simulator(size: str, policy: str) -> None:
    """With no option beside the preset; the smaller cluster is full most of the time."""
    result = ran(policy, "max_min_fairness.trace", CLUSTERS[size])

    records, theirs = result.outcome.records, RESULTS[size][policy]
    assert records.jct_s.mean() == pytest.approx(theirs["mean_jct_s"], rel=0.05)
    assert records.end_s.max() == pytest.approx(theirs["makespan_s"], rel=0.02)
    assert result.chosen.notes == ("speeds on v100, p100, k80: 96 jobs by preset gavel",)


@pytest.fixture
def assigned(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Numbers of jobs alone and of pairs that have run in all rounds so far."""
    counts = {"alone": 0, "pairs": 0}
    ran_so_far = gavel_turns.Turns.ran

    def counted(self: gavel_turns.Turns, rows: I64, kind: I64, had_s: F64) -> None:
        pairs = int((self.second[rows] >= 0).sum())
        counts["pairs"] += pairs
        counts["alone"] += len(rows) - pairs
        ran_so_far(self, rows, kind, had_s)

    monkeypatch.setattr(gavel_turns.Turns, "ran", counted)
    return counts


@pytest.mark.parametrize(
    "told", PAIRS, ids=lambda told: "-".join(str(told[k]) for k in ("theirs", "cluster", "seed"))
)
def test_results_with_pairs_are_those_of_gavels_simulator(
    told: dict[str, Any], assigned: dict[str, int]
) -> None:
    """Queues exactly, and groups of four of six; of the rest a turn of equals goes to the other.

    In the two the last digit of a quotient decides, in those with programs the solver's.
    """
    packed = {"packed": True} if told["packed"] else {}
    cluster = CLUSTERS[told["cluster"]]
    result = ran(told["policy"], "max_min_fairness.trace", cluster, seed=told["seed"], **packed)

    records = result.outcome.records
    found = {"mean_jct_s": records.jct_s.mean(), "makespan_s": records.end_s.max()}
    exact = told["theirs"].startswith("fifo") or (
        told["theirs"] == "gandiva" and told["cluster"] == "published" and told["seed"] < 4
    )
    for name, figure in found.items():
        assert figure == pytest.approx(told[name], rel=1e-6 if exact else 0.03)
    assert assigned["alone"] == pytest.approx(told["alone"], rel=0 if exact else 0.05)
    assert assigned["pairs"] == pytest.approx(told["pairs"], rel=0 if exact else 0.2)


@pytest.mark.parametrize("how", ["interior", "corner"])
@pytest.mark.parametrize("size", CLUSTERS)
@pytest.mark.parametrize("policy", ["gavel_max_min", "gavel_finish_time"])
def test_pairs_make_no_fair_policy_worse(policy: str, size: str, how: str) -> None:
    jct_s = []
    for packed in (False, True):
        given = {"packed": packed, "interior": how == "interior"}
        records = ran(policy, "max_min_fairness.trace", CLUSTERS[size], **given).outcome.records
        jct_s.append(records.jct_s.mean())

    assert jct_s[1] <= jct_s[0]


@pytest.mark.parametrize(
    ("policy", "jct_s"), [("gavel_isolated", 259.232), ("gavel_fifo", 281.288)]
)
def test_on_one_type_every_second_is_gavels(policy: str, jct_s: float) -> None:
    """20 jobs on 4 V100: no program is solved, so whole steps and rounds give the same sums."""
    for cluster in ("4x1:v100", "4x1"):
        records = ran(policy, "small_test.trace", cluster).outcome.records

        assert records.jct_s.mean() == pytest.approx(jct_s, abs=5e-3)


SMALL: dict[str, tuple[list[tuple[str, int, int, float]], float]] = {
    # The third job can run on no type with free GPUs, and the fourth passes it.
    "gavel_fifo": (
        [
            ("LM (batch size 80)", 2, 2_000_000, 0), ("LM (batch size 80)", 2, 2_000_000, 0),
            ("ResNet-50 (batch size 128)", 2, 20_000, 0), ("A3C", 1, 3000, 0),
        ],
        31711.923,
    ),
    # Shares are found for nobody at 279 s and kept, so the second job waits for the third.
    "gavel_max_min": ([("A3C", 1, 2000, at) for at in (0.0, 2000.0, 3000.0)], 612.049),
}  # fmt: skip
"""Model, GPUs, steps and arrival, and the mean JCT of Gavel's simulator on -c 2:2:2."""


@pytest.mark.parametrize("policy", SMALL)
def test_small_traces_are_as_in_gavels_simulator(policy: str, tmp_path: Path) -> None:
    jobs, jct_s = SMALL[policy]
    rows = [f"{m}\tc\td\t--n\t1\t{steps}\t{g}\t1\t-1.0\t{at}" for m, g, steps, at in jobs]
    path = tmp_path / "made.trace"
    path.write_text("\n".join(rows) + "\n", encoding="ascii")

    records = ran(policy, path, "2x1:v100,2x1:p100,2x1:k80").outcome.records

    assert records.jct_s.mean() == pytest.approx(jct_s, rel=0.001)


@pytest.mark.parametrize(
    ("cluster", "costs", "error"),
    [("4x1:v100", "30", "leave out --costs"), ("4x1:a100", None, "no speed on a100")],
)
def test_what_gavels_rounds_do_not_have_is_refused(
    cluster: str, costs: str | None, error: str
) -> None:
    with pytest.raises(ConfigError, match=error):
        ran("gavel_max_min", "small_test.trace", cluster, costs)


def test_a_second_table_of_pairs_is_refused() -> None:
    """The preset has one of its own, by type of GPU."""
    pairs = PlacementSetup(foresight=Oracle(pairs=parse_pairs("mps")))
    trace = read_trace(TRACES / "small_test.trace")
    with pytest.raises(ConfigError, match="leave out --pairs"):
        cluster_presets.find(None, "gavel", trace, ground=pairs)


def test_interior_shares_are_as_good_as_a_corner_and_the_same_for_jobs_that_are_alike() -> None:
    """Two pairs of jobs that are alike on two types; a corner tells those of a pair apart."""
    rates = np.array([[2.0, 1.0], [2.0, 1.0], [3.0, 1.0], [3.0, 1.0]])
    pool = linear_programs.pool(np.arange(4), np.ones(4), rates, np.array([1.0, 2.0]))

    shares = []
    for interior in (False, True):
        level = linear_programs.raise_level(
            pool, rates, floor=np.zeros(4), rise=np.ones(4), interior=interior
        )
        total = linear_programs.max_sum(pool, rates, interior=interior)
        assert level is not None
        assert total is not None
        shares.append((level.solved.share, total.share))

    for corner, centre in zip(*shares, strict=True):
        assert centre[::2] == pytest.approx(centre[1::2], abs=1e-4)
        assert (corner[::2] != pytest.approx(corner[1::2], abs=1e-4)) is True
    least = [float((rates * share[0]).sum(axis=1).min()) for share in shares]
    most = [float((rates * share[1]).sum()) for share in shares]
    assert (least[1], most[1]) == pytest.approx((least[0], most[0]), rel=1e-6)
