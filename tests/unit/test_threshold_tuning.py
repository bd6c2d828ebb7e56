"""The search for thresholds: a planted one is found, and chance is not taken for one."""

from __future__ import annotations

import contextlib
import itertools
import json
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_dl.cli.dlsim import tune_text
from slurm_dl.config.loading import load
from slurm_dl.experiments import threshold_tuning, tuning_data
from slurm_dl.experiments.placement_choice import Named, PlacementSetup
from slurm_dl.experiments.process_pool import Run
from slurm_dl.experiments.threshold_search import Candidate, candidates, levels, search, stretches
from slurm_dl.experiments.threshold_tuning import Current, Trial, Trials, Tried, TuningResult
from slurm_dl.experiments.tuning_data import Edges
from slurm_dl.experiments.whatif_history import DAY_S
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.trace import Trace
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.simulation.cluster_shape import parse_shape
from tests.small_traces import make_trace, outcome_of

ONE_GPU = parse_shape("1x1")
NO_EDGES = Edges(None, None, 1)
AS_FIFO = Current(thresholds_gpu_s=(1e8,))
"""No job ever sinks: first in, first out."""


def history(days: int, long_ones: range, *, seed: int = 0) -> Trace:
    """Short jobs of 10 to 20 minutes on each day; on some a job of six hours stands before them."""
    rng = np.random.default_rng(seed)
    jobs: list[tuple[float, float]] = []
    for day in range(days):
        begin_s = day * DAY_S
        if day in long_ones:
            jobs.append((begin_s, 21_600.0))
        jobs += [(begin_s + 60 + 30 * n, float(rng.integers(600, 1200))) for n in range(12)]
    return make_trace([submit for submit, _ in jobs], [duration for _, duration in jobs])


def tuned(trace: Trace, current: Current, **more: object) -> TuningResult:
    ground = tuning_data.halves(trace, ONE_GPU, by="mean-jct", costs=None, seed=0, edges=NO_EDGES)
    return threshold_tuning.tuned(ground, current, most=12, **{"knobs": None, **more})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def planted() -> TuningResult:
    """A history in which a threshold above the short jobs and far below the long ones is best."""
    return tuned(history(26, range(26)), AS_FIFO)


def test_a_planted_threshold_is_found(planted: TuningResult) -> None:
    """It is recommended, the gain holds on later days, and it is where it was planted."""
    assert planted.is_recommended
    assert planted.gain > 0.5
    assert planted.gain_left == pytest.approx(planted.gain, abs=0.05)
    ground = planted.ground
    later = [
        ground.fate(one, ground.held_out, 2).values()["mean-jct"]
        for one in (AS_FIFO.candidate, planted.winner)
    ]
    assert list(planted.later) == later
    first = planted.winner.thresholds_gpu_s[0]
    assert 500 <= first <= 2000
    text = "\n".join(tune_text.lines(history(26, range(26)), planted))
    assert "of the gain is left there" in text
    assert "thresholds_gpu_s: [" in text


def test_the_best_of_the_rung_is_the_best_of_all(planted: TuningResult) -> None:
    """Brute force over all candidates on all the days chosen on finds none better than a tenth."""
    ground = planted.ground
    service = ground.trace.duration_s * ground.trace.gpus
    whole = [
        ground.fate(Candidate(edges), ground.chosen_on, 2).values()["mean-jct"]
        for edges in candidates(service, most=12, seed=0)
    ]

    assert planted.chosen[1] <= 1.1 * min(whole)


def test_what_helped_only_on_the_days_chosen_on_is_not_recommended() -> None:
    """Long jobs in the first half alone: a threshold is found, and later days show no gain."""
    found = tuned(history(26, range(13)), AS_FIFO)

    assert found.gain > 0.5
    assert found.winner != AS_FIFO.candidate
    assert not found.is_recommended
    text = "\n".join(tune_text.lines(history(26, range(13)), found))
    assert "Leave it as it is" in text
    assert "thresholds_gpu_s:" not in text


def test_nothing_is_changed_where_nothing_helps() -> None:
    """Equal jobs, none before its turn: what is in use wins the draw."""
    trace = make_trace(
        [day * DAY_S + 700 * n for day in range(12) for n in range(10)], [600.0] * 120
    )
    found = tuned(trace, AS_FIFO)

    assert found.winner == AS_FIFO.candidate
    assert (found.gain, found.gain_left, found.is_recommended) == (0, 0, False)
    assert "nothing was better than what is in use" in "\n".join(tune_text.lines(trace, found))


def test_later_days_are_never_seen_by_the_search(planted: TuningResult) -> None:
    """Another second half changes no step of the search."""
    other = tuned(history(26, range(13)), AS_FIFO)
    late = planted.ground.held_out.trace.submit_s

    assert [rung.tried for rung in other.rungs] == [rung.tried for rung in planted.rungs]
    assert planted.ground.trace.submit_s.max() < late.min()
    assert len(planted.ground.trace) + len(late) == len(history(26, range(26)))


def test_too_few_days_to_judge() -> None:
    found = tuned(history(8, range(8)), AS_FIFO)

    assert not found.is_recommended
    assert "too few to judge" in "\n".join(tune_text.lines(history(8, range(8)), found))
    with pytest.raises(ConfigError, match="3 days"):
        tuned(history(3, range(3)), AS_FIFO)


@pytest.mark.long
def test_the_promotion_knob_is_tried_where_it_is_in_use() -> None:
    current = Current(thresholds_gpu_s=(1e8,), promote_knob=4.0)
    found = tuned(history(12, range(12)), current)

    assert {one.promote_knob for one, _ in found.rungs[-1].tried} == {2.0, 4.0, 8.0}
    assert {one.promote_knob for one, _ in found.rungs[-2].tried} == {4.0}
    assert "promote_knob: " in tune_text.yaml_lines(found.winner, current)
    given = tuned(history(12, range(12)), AS_FIFO, knobs=(0.0, 3.0))
    assert {one.promote_knob for one, _ in given.rungs[-1].tried} == {0.0, 3.0}


def test_the_lines_give_what_was_promised(planted: TuningResult, tmp_path: Path) -> None:
    """The loader's policy of these lines, run by itself on the days held out, has that figure."""
    path = tmp_path / "tuned.yaml"
    lines = tune_text.yaml_lines(planted.winner, planted.current)
    path.write_text(f"manage: {{partitions: [gpu]}}\n{lines}", "utf-8")
    held_out = planted.ground.held_out
    outcome = outcome_of(held_out.trace, "1x1", load(path).policy.make())
    jct_s = outcome.records.jct_s[held_out.is_counted]

    assert planted.winner != planted.current.candidate
    assert planted.later[1] == pytest.approx(jct_s.mean(), rel=1e-12)


@pytest.mark.long
def test_the_result_does_not_depend_on_the_processes(planted: TuningResult) -> None:
    """Step by step, and the bar counts each simulation."""
    steps: list[int] = []
    trace = history(26, range(26))
    again = tuned(trace, AS_FIFO, processes=2, report=steps.append)

    assert tune_text.as_json(trace, again) == tune_text.as_json(trace, planted)
    tried = sum(len(rung.tried) for rung in planted.rungs)
    assert steps == [*range(1, tried + 2 + 1)]
    assert not multiprocessing.active_children()


def test_no_more_processes_than_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the longest step, which may be that of the promotion."""
    asked: list[int] = []
    longest: list[int] = []

    def here(work: Trials, processes: int) -> AbstractContextManager[Run[Trial, Tried]]:
        asked.append(processes)
        longest.append(0)

        def run(
            several: Sequence[Trial], /, *, begin: Callable[[Trial], None] = lambda _: None
        ) -> Iterator[tuple[int, Tried]]:
            longest[-1] = max(longest[-1], len(several))
            for number, one in enumerate(several):
                begin(one)
                yield number, work(one)

        return contextlib.nullcontext(run)

    monkeypatch.setattr(threshold_tuning, "process_pool", here)
    ground = tuning_data.halves(
        history(4, range(4)), ONE_GPU, by="mean-jct", costs=None, seed=0, edges=NO_EDGES
    )
    for knobs in (None, (1.0, 2.0, 3.0, 4.0, 5.0)):
        threshold_tuning.tuned(ground, AS_FIFO, most=3, knobs=knobs, processes=64)

    assert asked == longest == [4, 7]
    threshold_tuning.tuned(ground, AS_FIFO, most=3, knobs=None, processes=2)
    assert asked[2:] == [2]


def test_jobs_are_placed_where_a_scheme_says(tmp_path: Path) -> None:
    """After 11 s a GPU is free on both nodes: a job of two that lies on one node waits on.

    What is wrong with a scheme or the costs is told before anything runs.
    """
    jobs = [(0.0, 100.0, 1.0), (1.0, 10.0, 1.0), (2.0, 100.0, 1.0), (3.0, 50.0, 2.0)]
    whole = [(day * DAY_S + at, took, gpus) for day in range(8) for at, took, gpus in jobs]
    trace = make_trace(*map(list, zip(*whole, strict=True)))

    def mean_jct_s(scheme: Named | None) -> float:
        ground = tuning_data.halves(
            trace, parse_shape("2x2"), by="mean-jct", costs=None, seed=0, edges=NO_EDGES,
            scheme=scheme, around=PlacementSetup(widths="fewest"),
        )  # fmt: skip
        ground.check(AS_FIFO.candidate, 2)
        return ground.fate(AS_FIFO.candidate, ground.chosen_on, 2).values()["mean-jct"]

    assert mean_jct_s(None) == (100 + 10 + 100 + 58) / 4
    assert mean_jct_s(Named(name="consolidate")) == (100 + 10 + 100 + 147) / 4
    with pytest.raises(ConfigError, match="--place nowhere"):
        mean_jct_s(Named(name="nowhere"))
    ground = tuning_data.halves(
        trace, ONE_GPU, by="lost", costs=str(tmp_path / "no"), seed=0, edges=NO_EDGES
    )
    with pytest.raises(ConfigError, match="--costs"):
        threshold_tuning.tuned(ground, AS_FIFO, most=3, knobs=None, processes=2)


def test_everything_is_plain_json(planted: TuningResult) -> None:
    told = tune_text.as_json(history(26, range(26)), planted)

    again = json.loads(json.dumps(told, allow_nan=False))
    assert again["recommended"] is True
    assert again["found"]["thresholds_gpu_s"] == list(planted.winner.thresholds_gpu_s)
    assert again["rungs"][0]["tried"][0]["figure"] > 0


NUMBERS = st.floats(1e-3, 1e9)


@settings(deadline=None, max_examples=25)
@given(
    st.lists(NUMBERS, min_size=1, max_size=4, unique=True),
    st.sampled_from([0.0, 0.5, 8.0]),
    st.sampled_from([1, 2]),
)
def test_the_lines_are_the_policy_again(
    tmp_path_factory: pytest.TempPathFactory, edges: list[float], knob: float, dimensions: int
) -> None:
    """Whatever is found, the configuration made of its lines has that policy."""
    winner = Candidate(tuple(sorted(edges)), knob)
    path = tmp_path_factory.getbasetemp() / "tuned.yaml"
    current = Current(thresholds_gpu_s=(1.0,), dimensions=dimensions)
    site = "manage: {partitions: [gpu]}\n"
    path.write_text(site + tune_text.yaml_lines(winner, current), "utf-8")

    assert load(path).policy.make() == DiscreteLas(
        thresholds_gpu_s=winner.thresholds_gpu_s,
        promote_knob=knob,
        dimensions=dimensions,  # type: ignore[arg-type]
    )


@given(st.lists(NUMBERS, min_size=1, max_size=40), st.integers(1, 80), st.integers(0, 3))
def test_candidates_are_thresholds(sizes: list[float], most: int, seed: int) -> None:
    """Each could stand in the configuration, none is there twice, and they are not too many."""
    service = np.array(sizes)
    found = candidates(service, most=most, seed=seed)

    assert 1 <= len(found) <= most
    assert len(set(found)) == len(found)
    for edges in found:
        DiscreteLas(thresholds_gpu_s=edges)
        assert all(b >= 2 * a for a, b in itertools.pairwise(edges))
    at = levels(service)
    assert 0.9 * service.min() <= at[0]
    assert at[-1] <= 1.1 * service.max()


def test_levels_are_quantiles_of_jobs_and_of_service() -> None:
    """A few large jobs hold most of the service: there are thresholds among them as well."""
    service = np.concatenate([np.arange(1, 100.0), [10_000.0, 20_000.0]])

    assert levels(service) == (11, 21, 31, 41, 51, 61, 71, 81, 84, 91, 96, 10_000, 20_000)


@pytest.mark.parametrize(
    ("days", "expected"),
    [(2, (None,)), (8, (3, None)), (30, (4, 10, None)), (300, (34, 100, None))],
)
def test_stretches(days: int, expected: tuple[int | None, ...]) -> None:
    assert stretches(days) == expected


def test_halving_keeps_a_third_and_what_is_in_use() -> None:
    """What is in use goes on though it is the worst; a draw goes to it, then to fewer queues."""
    tried = [Candidate((float(n),)) for n in range(1, 10)]
    current = Candidate((99.0,))
    calls: list[tuple[float, int | None]] = []

    def score(several: Sequence[Candidate], days: int | None) -> list[float]:
        calls.extend((one.thresholds_gpu_s[0], days) for one in several)
        return [one.thresholds_gpu_s[0] for one in several]

    first, last = search(tried, current, (3, None), score)
    assert len(first.tried) == 10
    assert [one.thresholds_gpu_s[0] for one, _ in last.tried] == [1, 2, 3, 4, 99]
    assert {days for _, days in calls} == {3, None}

    several = [Candidate((1.0, 5.0)), Candidate((7.0,))]
    (drawn,) = search(several, current, (None,), lambda these, _: [1.0] * len(these))
    assert [one for one, _ in drawn.tried] == [current, several[1], several[0]]
    (unknown,) = search(
        several,
        current,
        (None,),
        lambda these, _: [float("nan") if one == current else 1.0 for one in these],
    )
    assert unknown.tried[-1][0] == current


def test_a_costs_file_is_passed_on(tmp_path: Path) -> None:
    costs = tmp_path / "costs.yaml"
    costs.write_text("restart_s: 60\n", "utf-8")
    ground = tuning_data.halves(
        history(8, range(8)), ONE_GPU, by="lost", costs=str(costs), seed=0, edges=NO_EDGES
    )

    assert ground.fate(Candidate((2000.0,)), ground.chosen_on, 2).values()["lost"] > 0
    assert ground.fate(AS_FIFO.candidate, ground.chosen_on, 2).values()["lost"] == 0
