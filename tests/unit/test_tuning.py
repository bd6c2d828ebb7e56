"""The search for thresholds: a planted one is found, and chance is not taken for one."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_dl.cli.dlsim import tune as tune_command
from slurm_dl.config.loading import load
from slurm_dl.experiments import grid, tuning
from slurm_dl.experiments.grid import Cell
from slurm_dl.experiments.placement_choice import Named, PlacementSetup
from slurm_dl.experiments.tuning import (
    CHOSEN_ON,
    HELD_OUT,
    Candidate,
    Halves,
    Tried,
    TuningResult,
    candidates,
    levels,
)
from slurm_dl.experiments.whatif_history import DAY_S
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.trace import Trace
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.simulation.cluster_shape import ClusterShape, parse_shape
from tests.small_traces import make_trace, outcome_of

ONE_GPU = parse_shape("1x1")
AS_FIFO = Candidate((1e8,))
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


def halves(trace: Trace, shape: ClusterShape = ONE_GPU, **more: object) -> Halves:
    """Halves of a history, on one GPU if nothing else is said."""
    given: dict[str, object] = {"by": "mean-jct", "costs": None, "seed": 0}
    return tuning.halves(trace, shape, **{**given, **more})  # type: ignore[arg-type]


def figures(data: Halves, cells: Sequence[Cell], processes: int = 1) -> list[Tried]:
    """The measures of *cells*."""
    unlike = list(dict.fromkeys(cells))
    ran = dict(grid.run(data.experiment, unlike, data.measure, processes=processes))
    found = grid.all_of(ran)
    return [found[cell] for cell in cells]


def figure(data: Halves, one: Candidate, half: str = CHOSEN_ON) -> float:
    """That of one candidate on one half."""
    return figures(data, [data.cell(one, half)])[0].figure


def tuned(trace: Trace, current: Candidate, *, processes: int = 1, **more: object) -> TuningResult:
    data = halves(trace)
    run = lambda cells: figures(data, cells, processes)  # noqa: E731
    return tuning.tuned(data, current, run, most=12, **more)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def planted() -> TuningResult:
    """A history in which a threshold above the short jobs and far below the long ones is best."""
    return tuned(history(26, range(26)), AS_FIFO)


def test_a_planted_threshold_is_found(planted: TuningResult) -> None:
    """It is recommended, the gain holds on later days, and it is where it was planted."""
    assert planted.is_recommended
    assert planted.gain > 0.5
    assert planted.gain_left == pytest.approx(planted.gain, abs=0.05)
    data = planted.halves
    later = [figure(data, one, HELD_OUT) for one in (AS_FIFO, planted.winner)]
    assert list(planted.later) == later
    first = planted.winner.thresholds_gpu_s[0]
    assert 500 <= first <= 2000
    text = "\n".join(tune_command.lines(history(26, range(26)), planted))
    assert "of the gain is left there" in text
    assert "thresholds_gpu_s: [" in text


def test_the_best_is_the_best_of_all(planted: TuningResult) -> None:
    """Brute force over all candidates on the days chosen on; a draw goes to fewer queues."""
    data = planted.halves
    trace = data.days[CHOSEN_ON].trace
    sets = candidates(trace.duration_s * trace.gpus, most=12, seed=0)
    whole = {edges: figure(data, Candidate(edges)) for edges in sets}

    assert planted.chosen[1] == min(whole.values())
    least = [edges for edges, value in whole.items() if value == planted.chosen[1]]
    assert planted.winner.thresholds_gpu_s == min(least, key=lambda edges: (len(edges), edges))
    assert [len(step) for step in planted.steps] == [len(sets) + 1]


def test_nothing_is_changed_where_nothing_helps() -> None:
    """Equal jobs, none before its turn: what is in use wins the draw. Or too few days to judge."""
    trace = make_trace(
        [day * DAY_S + 700 * n for day in range(12) for n in range(10)], [600.0] * 120
    )
    found = tuned(trace, AS_FIFO)
    assert found.winner == AS_FIFO
    assert (found.gain, found.gain_left, found.is_recommended) == (0, 0, False)
    assert "nothing was better than what is in use" in "\n".join(tune_command.lines(trace, found))

    few = history(8, range(8))
    found = tuned(few, AS_FIFO)
    assert not found.is_recommended
    assert "too few to judge" in "\n".join(tune_command.lines(few, found))
    with pytest.raises(ConfigError, match="3 days"):
        tuned(history(3, range(3)), AS_FIFO)


def test_what_helped_only_on_the_days_chosen_on_is_not_recommended(planted: TuningResult) -> None:
    """Long jobs in the first half alone: a threshold is found, and later days show no gain.

    Another second half changes no step of the search.
    """
    trace = history(26, range(13))
    found = tuned(trace, AS_FIFO)

    assert found.gain > 0.5
    assert found.winner != AS_FIFO
    assert not found.is_recommended
    text = "\n".join(tune_command.lines(trace, found))
    assert "Leave it as it is" in text
    assert "thresholds_gpu_s:" not in text
    assert found.steps == planted.steps
    early, late = (planted.halves.days[half].trace for half in (CHOSEN_ON, HELD_OUT))
    assert early.submit_s.max() < late.submit_s.min()
    assert len(early) + len(late) == len(history(26, range(26)))


@pytest.mark.long
def test_the_promotion_knob_is_tried_where_it_is_in_use() -> None:
    current = Candidate((1e8,), promote_knob=4.0)
    found = tuned(history(12, range(12)), current)

    assert {one.promote_knob for one, _ in found.steps[-1]} == {2.0, 4.0, 8.0}
    assert {one.promote_knob for one, _ in found.steps[-2]} == {4.0}
    assert "promote_knob: " in tune_command.yaml_lines(found.winner, current)
    given = tuned(history(12, range(12)), AS_FIFO, knobs=(0.0, 3.0))
    assert {one.promote_knob for one, _ in given.steps[-1]} == {0.0, 3.0}


def test_the_lines_give_what_was_promised(planted: TuningResult, tmp_path: Path) -> None:
    """The loader's policy of these lines, run by itself on the days held out, has that figure."""
    path = tmp_path / "tuned.yaml"
    lines = tune_command.yaml_lines(planted.winner, planted.current)
    path.write_text(f"manage: {{partitions: [gpu]}}\n{lines}", "utf-8")
    held_out = planted.halves.days[HELD_OUT]
    outcome = outcome_of(held_out.trace, "1x1", load(path).policy.make())
    jct_s = outcome.records.jct_s[held_out.is_counted]

    assert planted.winner != planted.current
    assert planted.later[1] == pytest.approx(jct_s.mean(), rel=1e-12)


@pytest.mark.long
def test_the_result_does_not_depend_on_the_processes(planted: TuningResult) -> None:
    """It is plain JSON."""
    trace = history(26, range(26))
    told = tune_command.as_json(trace, planted)

    assert tune_command.as_json(trace, tuned(trace, AS_FIFO, processes=2)) == told
    again = json.loads(json.dumps(told, allow_nan=False))
    assert again["recommended"] is True
    assert again["found"]["thresholds_gpu_s"] == list(planted.winner.thresholds_gpu_s)
    assert again["rungs"][0]["tried"][0]["figure"] > 0


def test_jobs_are_placed_where_a_scheme_says(tmp_path: Path) -> None:
    """After 11 s a GPU is free on both nodes: a job of two that lies on one node waits on.

    Costs are passed on. What is wrong with a scheme or the costs is told before anything runs.
    """
    jobs = [(0.0, 100.0, 1.0), (1.0, 10.0, 1.0), (2.0, 100.0, 1.0), (3.0, 50.0, 2.0)]
    whole = [(day * DAY_S + at, took, gpus) for day in range(8) for at, took, gpus in jobs]
    trace = make_trace(*map(list, zip(*whole, strict=True)))

    def mean_jct_s(scheme: Named | None) -> float:
        data = halves(
            trace, parse_shape("2x2"), scheme=scheme, ground=PlacementSetup(widths="fewest")
        )
        data.experiment.ready(data.cell(AS_FIFO))
        return figure(data, AS_FIFO)

    assert mean_jct_s(None) == (100 + 10 + 100 + 58) / 4
    assert mean_jct_s(Named(name="consolidate")) == (100 + 10 + 100 + 147) / 4
    with pytest.raises(ConfigError, match="--place nowhere"):
        mean_jct_s(Named(name="nowhere"))
    data = halves(trace, by="lost", costs=str(tmp_path / "no"))
    with pytest.raises(ConfigError, match="--costs"):
        tuning.tuned(data, AS_FIFO, lambda _: [], most=3)
    costs = tmp_path / "costs.yaml"
    costs.write_text("restart_s: 60\n", "utf-8")
    data = halves(history(8, range(8)), by="lost", costs=str(costs))
    assert figure(data, Candidate((2000.0,))) > 0 == figure(data, AS_FIFO)


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
    current = Candidate((1.0,), dimensions=dimensions)
    site = "manage: {partitions: [gpu]}\n"
    path.write_text(site + tune_command.yaml_lines(winner, current), "utf-8")

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


def test_a_draw_goes_to_what_is_in_use_and_unknown_figures_are_worst() -> None:
    """Of others that draw the one with fewer queues is the better one."""
    data = halves(history(12, range(12)))

    def run(cells: Sequence[Cell], *, unknown: bool = False) -> list[Tried]:
        if cells[0].workload == HELD_OUT:
            return figures(data, cells)
        words = [cell.policy.name for cell in cells]
        return [Tried(float("nan") if unknown and w == str(AS_FIFO) else 1.0, None) for w in words]

    (drawn,) = tuning.tuned(data, AS_FIFO, run, most=12).steps
    queues = [len(one.thresholds_gpu_s) for one, _ in drawn[1:]]
    assert drawn[0][0] == AS_FIFO
    assert queues == sorted(queues)
    (last,) = tuning.tuned(data, AS_FIFO, lambda c: run(c, unknown=True), most=12).steps
    assert last[-1][0] == AS_FIFO
