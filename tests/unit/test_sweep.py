"""A sweep: its cells, where they run, what is merged from them, and its folder."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_dl.cli.dlsim.comparison_text import failures
from slurm_dl.experiments import bootstrap_interval, comparison, simulation_run, sweep_slurm
from slurm_dl.experiments.cluster_presets import find as find_cluster
from slurm_dl.experiments.simulation_run import PolicySpec
from slurm_dl.experiments.sweep import (
    CellError,
    CellResult,
    Failure,
    Sweep,
    SweepCell,
    check,
    faster,
    names_all,
    parse_loads,
    parse_policies,
    resampled,
    run_cell,
    run_cells,
    without,
)
from slurm_dl.experiments.sweep_files import MAX_TASKS, Folder
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.model.trace import Ending, Trace
from slurm_dl.policies import registry
from slurm_dl.policies.base import Order
from slurm_dl.policies.las import Las
from slurm_dl.report import summary_metrics
from slurm_dl.simulation.cluster_shape import parse_shape
from slurm_dl.traces import read_trace


def made(jobs: int, seed: int = 5) -> Trace:
    """Jobs that differ in everything, in bursts."""
    rng = np.random.default_rng(seed)
    return Trace(
        name="made",
        format="slurm_dl",
        job_id=tuple(f"j{i}" for i in range(jobs)),
        submit_s=1000.0 + np.sort(rng.integers(0, 40 * jobs, jobs)).astype(np.float64),
        duration_s=np.round(rng.lognormal(5, 1.5, jobs), 3) + 1,
        gpus=rng.choice([1.0, 2.0, 4.0], jobs),
        user=rng.integers(0, 3, jobs).astype(np.int32),
        model=rng.integers(-1, 2, jobs).astype(np.int32),
        ending=rng.choice([e.value for e in Ending], jobs).astype(np.int8),
        users=("ada", "ben", "cy"),
        models=("resnet50", "bert"),
    )


TRACE = made(40)
SWEEP = Sweep(
    wishes=parse_policies("fifo,las,discrete_las:voda", {"quantum_s": 100}),
    loads=(1.0, 2.0),
    seeds=3,
    cluster="2x4",
    costs=None,
)


@pytest.fixture(scope="module")
def results() -> list[CellResult]:
    """What the sweep gives, run here."""
    return run_cells(SWEEP, TRACE, lambda _: None)


def timeless(results: Sequence[CellResult]) -> str:
    """Results to compare; NaN is equal to NaN in text, and wall time is left out."""
    return repr([dataclasses.replace(r, wall_s=0.0) for r in results])


def rows_of(trace: Trace) -> list[tuple[float, float, str, int, int]]:
    """What belongs to each job, in the order of submission."""
    columns = (trace.duration_s, trace.gpus, trace.user, trace.model, trace.ending)
    return [
        (d, g, trace.users[u], m, e)
        for d, g, u, m, e in zip(*(c.tolist() for c in columns), strict=True)
    ]


@given(seed=st.integers(1, 10**9), jobs=st.integers(1, 60))
def test_a_resample_is_the_jobs_that_the_generator_drew_at_the_same_times(
    seed: int, jobs: int
) -> None:
    """Durations stay with their GPUs, user, model and ending; arrivals and ids stay as they are."""
    trace = made(jobs)
    rows = rows_of(trace)

    drawn = resampled(trace, seed)

    expected = np.random.default_rng(seed).integers(jobs, size=jobs)
    assert rows_of(drawn) == [rows[i] for i in expected.tolist()]
    assert drawn.submit_s.tolist() == trace.submit_s.tolist()
    assert drawn.job_id == trace.job_id
    assert rows_of(trace) == rows


def test_seed_0_is_the_trace_itself_and_other_seeds_differ() -> None:
    assert resampled(TRACE, 0) is TRACE
    assert rows_of(resampled(TRACE, 1)) != rows_of(resampled(TRACE, 2))
    assert rows_of(resampled(TRACE, 1)) == rows_of(resampled(TRACE, 1))


@given(load=st.floats(0.001, 1000))
def test_a_load_divides_the_times_after_the_first_submission(load: float) -> None:
    times = faster(TRACE, load).submit_s.tolist()

    first = TRACE.submit_s[0]
    assert times == [first + (t - first) / load for t in TRACE.submit_s.tolist()]
    assert faster(TRACE, load).duration_s is TRACE.duration_s


def test_cells_are_every_policy_at_every_load_and_seed_once() -> None:
    cells = SWEEP.cells

    assert [c.index for c in cells] == list(range(18))
    assert len({(c.label, c.load, c.seed) for c in cells}) == 18
    assert str(cells[-1]) == "discrete_las:voda, load 2, seed 2"
    assert all(SWEEP.labels[c.wish] == c.label for c in cells)


def test_a_parameter_goes_to_the_policies_that_have_it() -> None:
    """Those of what the preset runs, too: list_las has late_demotion, discrete_las has not."""
    wishes = parse_policies(
        "fifo,las,discrete_las:tiresias-corrected,discrete_las",
        {"quantum_s": 5, "late_demotion": True},
    )

    assert [dict(w.parameters) for w in wishes] == [
        {},
        {"quantum_s": 5},
        {"late_demotion": True},
        {},
    ]


@pytest.mark.parametrize(
    ("text", "given", "said"),
    [
        ("fifo,", {}, "is not NAME or NAME:PRESET"),
        ("fifo:", {}, "is not NAME or NAME:PRESET"),
        ("fifo,nope", {}, "no policy 'nope'"),
        ("discrete_las:nope", {}, "preset 'nope' is unknown"),
        ("fifo,las", {"promote_knob": 2}, "-p promote_knob: none of these policies has"),
    ],
)
def test_policies_that_cannot_be_are_refused(
    text: str, given: dict[str, object], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_policies(text, given)


@pytest.mark.parametrize("text", ["", "1,", "x", "nan", "1,inf"])
def test_loads_are_numbers(text: str) -> None:
    with pytest.raises(ConfigError, match="--loads"):
        parse_loads(text)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"loads": (1.0, 1.0)}, "--loads: 1 is given twice"),
        ({"loads": (0.0,)}, "--loads: 0 is"),
        ({"loads": (-2.0,)}, "--loads: -2 is"),
        ({"wishes": (PolicySpec(policy="fifo"), PolicySpec(policy="fifo"))}, "fifo is given twice"),
        ({"seeds": 100_000}, "must be 1 to 100,000 simulations"),
    ],
)
def test_sweeps_that_cannot_be_are_refused(changed: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        dataclasses.replace(SWEEP, **changed)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changed",
    [
        {"cluster": "2y4"},
        {"costs": "/nonexistent"},
        {"wishes": (PolicySpec(policy="las", parameters={"quantum_s": -1}),)},
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(changed: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        check(dataclasses.replace(SWEEP, **changed), TRACE)  # type: ignore[arg-type]


def test_a_cell_is_that_simulation(results: list[CellResult]) -> None:
    """The figures are those of a run by itself of the workload of that load and seed."""
    shape = parse_shape(SWEEP.cluster)
    for cell, result in zip(SWEEP.cells, results, strict=True):
        jobs = faster(resampled(TRACE, cell.seed), cell.load)
        chosen = simulation_run.choose(SWEEP.wishes[cell.wish], jobs)
        alone = simulation_run.run(
            chosen, jobs, find_cluster(None, chosen.preset, jobs), shape, seed=cell.seed
        )
        expected = summary_metrics.summarise(alone.outcome.records, gpus=shape.gpus)
        assert repr(result.summary) == repr(expected), cell
        assert result.preset == chosen.preset


def test_a_cell_that_fails_is_named(tmp_path: Path) -> None:
    sweep = dataclasses.replace(SWEEP, costs=str(tmp_path / "gone.json"))

    with pytest.raises(CellError, match=r"^las, load 1, seed 1: --costs .*gone\.json"):
        run_cell(sweep, TRACE, sweep.cells[4])


# Every policy, and those that fail


def test_all_is_every_policy_that_is_not_named() -> None:
    """In the place of the word, sorted, as their own parameters say; the first stays first."""
    names = registry.names()

    every = parse_policies("all", {})
    some = parse_policies("fifo,las:none,all", {"quantum_s": 5})

    assert [w.policy for w in every] == list(names)
    assert not any(w.preset for w in every)
    assert [w.policy for w in some[:2]] == ["fifo", "las"]
    assert [w.policy for w in some[2:]] == [n for n in names if n not in {"fifo", "las"}]
    assert some[1].parameters == {"quantum_s": 5}
    assert names_all("fifo, all")
    assert not names_all("fifo,fallback")


class Broken(Las):
    """A policy that fails once more than three jobs are there."""

    def order(self, snap: Snapshot, /) -> Order:
        """Fail where there are many jobs."""
        if len(snap.jobs) > 3:
            msg = "no\nmore than three"
            raise ZeroDivisionError(msg)
        return super().order(snap)


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Sweep:
    """A sweep of three policies of which the middle one fails."""
    monkeypatch.setattr(registry, "POLICIES", {**registry.POLICIES, "broken": Broken})
    return dataclasses.replace(SWEEP, wishes=parse_policies("fifo,broken,las", {}), seeds=2)


def test_what_fails_is_told_and_the_others_are_run_all_the_same(broken: Sweep) -> None:
    """On one line, with the place of the fault; progress counts it."""
    failed: list[Failure] = []
    steps: list[int] = []
    begun: list[SweepCell] = []

    results = run_cells(broken, TRACE, steps.append, begin=begun.append, failed=failed.append)

    assert steps == [*range(1, 13)]
    assert tuple(begun) == broken.cells
    assert [f.cell.label for f in failed] == ["broken"] * 4
    assert failed[0].why.startswith(
        "broken, load 1, seed 0: ZeroDivisionError: no more than three (test_sweep.py:"
    )
    left, kept = without(broken, results, failed)
    assert left is not None
    assert left.labels == ("fifo", "las")
    only = dataclasses.replace(broken, wishes=(broken.wishes[0], broken.wishes[2]))
    assert timeless(kept) == timeless(run_cells(only, TRACE, lambda _: None))
    with pytest.raises(CellError, match="no more than three"):
        run_cells(broken, TRACE, lambda _: None)


def test_a_policy_that_fails_once_is_left_out_whole(results: list[CellResult]) -> None:
    """A mean over fewer seeds would be another figure."""
    gone = SWEEP.cells[7]
    ran = [r for cell, r in zip(SWEEP.cells, results, strict=True) if cell != gone]

    left, kept = without(SWEEP, ran, [Failure(gone, "it did")])

    assert left is not None
    assert left.wishes == tuple(w for i, w in enumerate(SWEEP.wishes) if i != gone.wish)
    expected = [r for c, r in zip(SWEEP.cells, results, strict=True) if c.wish != gone.wish]
    assert timeless(kept) == timeless(expected)
    assert without(SWEEP, [], [Failure(c, "all") for c in SWEEP.cells]) == (None, [])


# Intervals


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [
        (1, 12.706),
        (2, 4.303),
        (3, 3.182),
        (4, 2.776),
        (5, 2.571),
        (9, 2.262),
        (10, 2.228),
        (19, 2.093),
        (29, 2.045),
        (30, 2.042),
        (60, 2.000),
        (120, 1.980),
    ],
)
def test_the_quantile_of_t_is_that_of_the_tables(freedom: int, quantile: float) -> None:
    """Two-sided 5 %, as in any table of Student's t."""
    assert bootstrap_interval.t_quantile(freedom) == pytest.approx(quantile, abs=5e-4)


@pytest.mark.parametrize("n", [2, 5, 12])
def test_19_of_20_intervals_hold_the_mean(n: int) -> None:
    """Bootstraps of traces of 60 exponential jobs, and the mean of the law behind them."""
    rng = np.random.default_rng(n)
    held = []
    for _ in range(1500):
        trace = rng.exponential(7.0, 60)
        again = rng.choice(trace, (n - 1, 60)).mean(axis=1)
        found = bootstrap_interval.mean(np.append(again, trace.mean()))
        held.append(found.low <= 7.0 <= found.high)

    # Bootstrap intervals of skewed values hold a little less than they promise.
    assert 0.88 < sum(held) / len(held) < 0.97


def test_a_mean_of_one_value_has_no_interval() -> None:
    only = bootstrap_interval.mean(np.array([3.0]))

    assert only.value == 3.0
    assert math.isnan(only.half)


def test_a_pair_is_compared_on_its_own_workload() -> None:
    """A constant factor has no spread in the ratio, however much workloads differ."""
    base = np.array([10.0, 200.0, 3000.0])

    assert bootstrap_interval.paired_ratio(base * 2, base) == bootstrap_interval.Mean(2.0, 0.0)
    difference = bootstrap_interval.paired_difference(base * 2, base)
    assert difference.value == pytest.approx(statistics.mean(base))
    assert math.isnan(bootstrap_interval.paired_ratio(base, np.array([1.0, 0.0, 1.0])).value)


# Merging


def test_rows_are_means_and_paired_ratios_over_the_seeds(results: list[CellResult]) -> None:
    """Against plain Python on the cells."""
    merged = comparison.merge(SWEEP, results)
    by_cell = {
        (c.label, c.load, c.seed): r.summary.jct_s.mean
        for c, r in zip(SWEEP.cells, results, strict=True)
    }

    assert [(r.load, r.label) for r in merged.rows] == [
        (load, label) for load in (1.0, 2.0) for label in SWEEP.labels
    ]
    for row in merged.rows:
        figure = row.figures["avg_jct_s"]
        values = [by_cell[row.label, row.load, seed] for seed in range(3)]
        first = [by_cell["fifo", row.load, seed] for seed in range(3)]
        half = 4.302653 * statistics.stdev(values)
        assert figure.mean.value == pytest.approx(statistics.mean(values))
        assert figure.mean.half == pytest.approx(half, rel=1e-6)
        if row.label == "fifo":
            assert figure.ratio is None
            continue
        assert figure.ratio is not None
        assert figure.difference is not None
        ratios = [a / b for a, b in zip(values, first, strict=True)]
        assert figure.ratio.value == pytest.approx(statistics.mean(ratios))
        assert figure.difference.value == pytest.approx(
            statistics.mean(values) - statistics.mean(first)
        )


def test_json_and_csv_tell_every_cell(results: list[CellResult]) -> None:
    """Strict JSON, without NaN; the same figures in both."""
    merged = comparison.merge(SWEEP, results)

    told = json.loads(json.dumps(comparison.as_json(TRACE, merged), allow_nan=False))
    lines = list(csv.DictReader(io.StringIO(comparison.as_csv(merged))))

    assert len(told["cells"]) == len(lines) == 18
    for cell, line, result in zip(told["cells"], lines, results, strict=True):
        assert (cell["policy"], cell["seed"]) == (line["policy"], int(line["seed"]))
        assert cell["avg_jct_s"] == float(line["avg_jct_s"]) == result.summary.jct_s.mean
        assert cell["max_rho"] == float(line["max_rho"]) == result.summary.rho.max
        assert cell["jain"] == float(line["jain"]) == result.summary.jain
        assert cell["jobs"] == int(line["jobs"]) == 40
    assert [p["label"] for p in told["policies"]] == list(SWEEP.labels)
    assert told["policies"][1]["parameters"]["quantum_s"] == 100
    assert "ratio" not in told["rows"][0]["figures"]["avg_jct_s"]
    assert told["rows"][1]["figures"]["avg_jct_s"]["ratio"]["low"] is not None


def test_jobs_that_did_not_finish_are_told_where() -> None:
    """By policy, load and seed, with the reason; the figures over none of them are null."""
    sweep = dataclasses.replace(SWEEP, cluster="1x2", wishes=SWEEP.wishes[:2], seeds=1)
    large = int((TRACE.gpus > 2).sum())

    merged = comparison.merge(sweep, run_cells(sweep, TRACE, lambda _: None))

    lines = failures(merged, 2)
    assert len(lines) == 4
    assert all(f"{large} want more than the 2 GPUs there are" in line for line in lines)
    assert lines[0].startswith("fifo, load 1, seed 0: ")
    assert lines[1].startswith(f"las, load 1, seed 0: {large} of 40 jobs did not finish")
    json.dumps(comparison.as_json(TRACE, merged), allow_nan=False)


# The folder


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """A sweep written for a Slurm cluster."""
    return Folder.create(tmp_path / "sweep", SWEEP, TRACE)


def test_a_folder_holds_the_whole_sweep(folder: Folder) -> None:
    """Sweep and trace are read back exactly; all cells are missing, and each is in one task."""
    opened = Folder.open(folder.path)

    assert opened == folder
    assert opened.sweep == SWEEP
    trace = opened.trace()
    assert (trace.name, trace.format, trace.job_id) == (TRACE.name, TRACE.format, TRACE.job_id)
    assert rows_of(trace) == rows_of(TRACE)
    assert timeless(run_cells(opened.sweep, trace, lambda _: None)) == timeless(
        run_cells(SWEEP, TRACE, lambda _: None)
    )
    assert opened.missing() == SWEEP.cells
    shares = [opened.cells_of(task) for task in range(opened.tasks)]
    assert sorted(c.index for share in shares for c in share) == list(range(18))


def test_many_cells_share_the_tasks(tmp_path: Path) -> None:
    """No more tasks than Slurm takes; every cell is in one of them."""
    sweep = dataclasses.replace(SWEEP, seeds=50)
    folder = Folder.create(tmp_path / "sweep", sweep, TRACE)

    assert folder.tasks == MAX_TASKS
    shares = [folder.cells_of(task) for task in range(folder.tasks)]
    assert sorted(c.index for share in shares for c in share) == list(range(300))
    assert folder.tasks_of(shares[7]) == (7,)
    with pytest.raises(ConfigError, match="has tasks 0 to 255"):
        folder.cells_of(256)


def test_results_come_back_exactly(folder: Folder, results: list[CellResult]) -> None:
    """Every float, and NaN where there is no figure."""
    nothing = dataclasses.replace(
        results[1], summary=dataclasses.replace(results[1].summary, jain=math.nan)
    )
    for cell, result in zip(SWEEP.cells, [results[0], nothing, *results[2:]], strict=True):
        folder.write_result(cell, result)

    read = [folder.read_result(cell) for cell in SWEEP.cells]

    assert repr(read) == repr([results[0], nothing, *results[2:]])
    assert folder.missing() == ()


def test_a_task_does_what_is_missing_and_goes_on_after_a_failure(
    folder: Folder, results: list[CellResult]
) -> None:
    """A result that is there is not made again; a failure is told and costs only its own cell."""
    sweep = dataclasses.replace(SWEEP, seeds=100)
    folder = Folder.create(folder.path.parent / "larger", sweep, TRACE)
    share = folder.cells_of(0)
    assert len(share) == 3
    folder.write_result(share[0], results[0])
    ran = []

    def run(cell: object) -> CellResult:
        ran.append(cell)
        if cell == share[1]:
            msg = f"{cell}: no more"
            raise CellError(msg)
        return results[0]

    failed = sweep_slurm.run_task(folder, 0, run)

    assert ran == [share[1], share[2]]
    assert failed == [f"{share[1]}: no more"]
    assert share[1] in folder.missing()
    assert share[2] not in folder.missing()


def test_a_table_of_costs_goes_with_the_sweep(tmp_path: Path) -> None:
    """The folder's own copy counts, under the same name; the first one may go."""
    table = tmp_path / "cost.yaml"
    table.write_text("restart_s: 30\n", "utf-8")
    sweep = dataclasses.replace(SWEEP, costs=str(table), seeds=1)
    here = run_cells(sweep, TRACE, lambda _: None)
    Folder.create(tmp_path / "sweep", sweep, TRACE)
    table.unlink()

    opened = Folder.open(tmp_path / "sweep")

    there = run_cells(opened.sweep, opened.trace(), lambda _: None)
    assert timeless(there) == timeless(here)
    assert here[1].costs.startswith("restart 30 s")


def test_a_folder_is_not_written_over(folder: Folder, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--resume gathers it"):
        Folder.create(folder.path, SWEEP, TRACE)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    with pytest.raises(ConfigError, match="is not empty"):
        Folder.create(tmp_path / "other", SWEEP, TRACE)
    assert [p.name for p in (tmp_path / "other").iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"format": 1', '"format": 2', "is of format 2, not 1"),
        ('"seeds": 3', '"seeds": 2', "its cells are not those"),
        ('"seeds": 3', '"seeds": "many"', "seeds: "),
        ('"seeds": 3', '"seeds": 3, "run": "rm"', "run: Extra inputs"),
        ('"costs": null', '"costs": "/etc/passwd"', "costs are '/etc/passwd'"),
        ("{", "{{", "is no JSON"),
        ("{", "[" * 100_000, "is no JSON"),
    ],
)
def test_a_damaged_sweep_is_an_error_that_names_its_file(
    folder: Folder, old: str, new: str, said: str
) -> None:
    path = folder.path / "sweep.json"
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), "utf-8")

    with pytest.raises(ConfigError, match=r"sweep\.json: ") as told:
        Folder.open(folder.path)
    assert said in str(told.value)


def test_a_result_of_another_cell_is_not_taken(folder: Folder, results: list[CellResult]) -> None:
    first, second = SWEEP.cells[:2]
    folder.write_result(first, results[0])
    cells = folder.path / "cells"
    (cells / "000001.json").write_bytes((cells / "000000.json").read_bytes())
    (cells / "000002.json").write_text('{"cell": {}}', "utf-8")

    with pytest.raises(ConfigError, match=r"000001\.json: is not the result of las, load 1"):
        folder.read_result(second)
    with pytest.raises(ConfigError, match=r"000002\.json: .*delete it"):
        folder.read_result(SWEEP.cells[2])


def test_results_of_another_version_are_not_mixed(folder: Folder) -> None:
    folder.check_versions()
    other = folder.versions.model_copy(update={"numpy": "1.0"})

    with pytest.raises(ConfigError, match=r"was made with .*NumPy 1\.0"):
        dataclasses.replace(folder, versions=other).check_versions()


def test_a_stranger_in_the_copy_of_the_trace_is_told(folder: Folder) -> None:
    path = folder.path / "trace.csv"
    path.write_text(path.read_text("utf-8").replace(",ada,", ",eve,"), "utf-8")

    with pytest.raises(ConfigError, match=r"trace\.csv: 'eve' is not among"):
        folder.trace()


def test_a_damaged_copy_of_the_trace_is_not_half_read(folder: Folder) -> None:
    with (folder.path / "trace.csv").open("a", encoding="utf-8") as file:
        file.write("broken\n")

    with pytest.raises(ConfigError, match=r"trace\.csv:42: .*damaged"):
        Folder.open(folder.path).trace()


# What sbatch is told


def expanded(text: str) -> set[int]:
    """The numbers of ``0-3,7``."""
    numbers: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        numbers |= set(range(int(first), int(last or first) + 1))
    return numbers


@given(tasks=st.sets(st.integers(0, MAX_TASKS - 1), min_size=1))
def test_the_array_is_exactly_the_tasks(tasks: set[int]) -> None:
    assert expanded(sweep_slurm._ranges(tasks)) == tasks


def test_what_a_user_typed_is_an_argument_and_never_script(folder: Folder) -> None:
    """A folder's name with quotes and a command in it is one argument, twice; the limit is set."""
    path = folder.path.with_name("a b'c $(touch x)")
    folder.path.rename(path)
    wishes = sweep_slurm.SweepRequest(partition="cpu", time="1:00:00", most_at_once=4)

    argv = sweep_slurm.arguments(Folder.open(path), [0, 1, 2, 5], wishes)

    assert "--array=0-2,5%4" in argv
    assert {"--partition=cpu", "--time=1:00:00", f"--chdir={path}"} <= set(argv)
    assert argv[-3] == f"{path}/task.sh"
    assert argv[-1] == str(path)
    assert not any(word.startswith(("--gpus", "--gres")) for word in argv)
    assert str(path).encode() not in sweep_slurm.SCRIPT


@pytest.mark.parametrize(
    "wishes",
    [{"partition": "a\nb"}, {"time": "1\n2"}],
)
def test_line_breaks_are_refused(wishes: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        sweep_slurm.SweepRequest(**wishes)  # type: ignore[arg-type]


def test_a_line_break_in_the_folders_name_is_refused(folder: Folder) -> None:
    odd = dataclasses.replace(folder, path=Path("a\nb"))

    with pytest.raises(ConfigError, match=r"--dir: .* has a control character"):
        sweep_slurm.arguments(odd, [0], sweep_slurm.SweepRequest())


def test_a_trace_of_another_format_is_written_in_ours(tmp_path: Path) -> None:
    """What other formats say is not lost on the way."""
    path = Path(__file__).parents[2] / "traces" / "tiresias" / "60_job.csv"
    trace = read_trace(path)
    folder = Folder.create(tmp_path / "sweep", SWEEP, trace)

    again = folder.trace()

    assert (again.name, again.format) == ("60_job", "tiresias")
    names = [[t.models[m] for m in t.model.tolist()] for t in (trace, again)]
    assert names[0] == names[1]
    assert again.submit_s.tolist() == trace.submit_s.tolist()
