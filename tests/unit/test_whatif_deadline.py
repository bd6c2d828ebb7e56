"""One more job with a deadline, on histories where its finish and its effect are known."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_dl.experiments import grid, simulation_run
from slurm_dl.experiments.grid import Cell, Experiment, Workload
from slurm_dl.experiments.simulation_run import Chosen, PolicySpec
from slurm_dl.experiments.whatif_deadline import (
    Probe,
    Probed,
    ProbeStudy,
    added,
    read_curve,
    summary,
)  # fmt: skip
from slurm_dl.experiments.whatif_history import DAY_S, cut
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.jobs import F64
from slurm_dl.model.promise import promises_in
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.model.trace import Trace
from slurm_dl.model.value_curve import ValueCurve
from slurm_dl.policies.base import Order
from slurm_dl.policies.edf import Edf
from slurm_dl.simulation.cluster_shape import parse_shape
from tests.small_traces import make_trace

HOUR_S = 3600.0


def study_of(
    trace: Trace, policy: str, *, cluster: str = "1x1", costs: str = "none", **probe: float
) -> tuple[ProbeStudy, Cell]:
    """A job of one GPU, an hour and a deadline after three, if *probe* says nothing else."""
    job = {"gpus": 1.0, "duration_s": HOUR_S, "due_s": 3 * HOUR_S, **probe}
    history = cut(trace, parse_shape(cluster), warm_up=0, cool_down=0)
    experiment = Experiment(workloads={"": Workload(cluster=cluster, trace=history.trace)})
    (cell,) = grid.product([PolicySpec(policy=policy)], costs=(costs,))
    made = Probe(**job, curve=ValueCurve((job["due_s"],), (1.0,)))
    return ProbeStudy(experiment=experiment, history=history, probe=made), cell


def one_by_one(submit_s: F64, duration_s: F64) -> F64:
    """Ends of jobs that are served on one GPU in the order of their submission."""
    ends, free_s = [], -math.inf
    for came_s, takes_s in zip(submit_s.tolist(), duration_s.tolist(), strict=True):
        free_s = max(free_s, came_s) + takes_s
        ends.append(free_s)
    return np.array(ends)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("begins_s", [0.0, 1.7e9])
def test_in_a_queue_of_one_gpu_all_is_known(seed: int, begins_s: float) -> None:
    """Finish, moved jobs and missed deadlines; the queue carries the effect on for days."""
    random = np.random.default_rng(seed)
    submit_s = begins_s + np.sort(random.uniform(0, 6 * DAY_S, 150))
    duration_s = random.exponential(3000.0, 150) + 1
    due_s = np.where(random.random(150) < 0.4, submit_s + 4 * HOUR_S, np.inf)
    study, cell = study_of(make_trace(submit_s, duration_s, due_s=due_s), "fifo")
    alone_s = one_by_one(submit_s, duration_s)
    missed = 0

    for at_s in study.instants(12).tolist():
        found = study.probed((cell, at_s))
        row = int(np.searchsorted(submit_s, at_s, "right"))
        ends_s = one_by_one(np.insert(submit_s, row, at_s), np.insert(duration_s, row, HOUR_S))
        moved_s = np.delete(ends_s, row) - alone_s
        lost = (np.delete(ends_s, row) > due_s) & (alone_s <= due_s)
        missed += int(lost.sum())

        assert found.finish_s == pytest.approx(ends_s[row] - at_s, abs=2e-3)
        assert found.added_s == pytest.approx(moved_s.sum(), abs=0.2)
        assert (found.later, found.earlier) == ((moved_s > 1e-3).sum(), 0)
        assert (found.missed, found.unfinished, found.says) == (lost.sum(), 0, "")
    assert missed


@pytest.mark.parametrize("policy", ["fifo", "discrete_las", "edf", "srtf"])
def test_where_there_is_room_nobody_is_moved(policy: str) -> None:
    """Not by rounding either: times are those of our days."""
    random = np.random.default_rng(3)
    submit_s = 1.7e9 + np.sort(random.uniform(0, 3 * DAY_S, 60))
    trace = make_trace(submit_s, random.uniform(10, 3000, 60))
    study, cell = study_of(trace, policy, cluster="8x8")

    for at_s in study.instants(8).tolist():
        says = "yes" if policy == "edf" else ""
        assert study.probed((cell, at_s)) == Probed(
            finish_s=HOUR_S, says=says, kept=says == "yes", added_s=0.0, later=0, earlier=0,
            missed=0, unfinished=0,
        )  # fmt: skip


LONG = make_trace([day * DAY_S for day in range(4)], [20 * HOUR_S] * 4)
"""One GPU that is busy until 20:00 each day."""


def test_a_later_deadline_of_a_curve_is_promised_and_kept() -> None:
    """The job runs for four hours; done after three it would be worth more than after ten."""
    curve = ValueCurve((3 * HOUR_S, 10 * HOUR_S), (5.0, 2.0))
    study, cell = study_of(LONG, "edf", duration_s=4 * HOUR_S, due_s=curve.due_s[0])
    study = dataclasses.replace(study, probe=dataclasses.replace(study.probe, curve=curve))
    found = study.probed((cell, DAY_S + 12 * HOUR_S))
    assert (found.says, found.kept, curve.at(found.finish_s)) == ("yes", True, 2.0)


def test_edf_promises_what_fifo_misses() -> None:
    """The job of the day waits an hour; under FIFO the new one waits for it."""
    told = {}
    for policy in ("fifo", "edf"):
        study, cell = study_of(LONG, policy)
        told[policy] = [study.probed((cell, DAY_S + n * HOUR_S)) for n in (1, 5, 9, 13, 16)]

    finish_h = [20, 16, 12, 8, 5]
    assert [(one.finish_s / HOUR_S, one.added_s) for one in told["fifo"]] == [
        (hours, 0.0) for hours in finish_h
    ]
    assert math.isnan(summary(study.probe, told["fifo"])["promised"])  # type: ignore[arg-type]
    made = summary(study.probe, told["edf"])
    assert (made["promised"], made["kept"], made["in_time"]) == (1.0, 1.0, 1.0)
    assert (made["added_jct_s"], made["later"], made["change_s"]) == (HOUR_S, 1.0, HOUR_S)


def test_the_values_of_other_jobs_stay_theirs() -> None:
    curves = tuple(ValueCurve((i + 1.0,), (1.0,)) for i in range(4))
    study, _ = study_of(dataclasses.replace(LONG, curves=curves), "edf")
    made = added(study.history.trace, study.probe, 2, 1.5 * DAY_S)
    assert made.curves == (*curves[:2], None, *curves[2:])


def test_on_a_simulated_slurm_promises_are_told_too() -> None:
    # The site's share lets half of the GPUs be promised.
    trace = dataclasses.replace(LONG, gpus=np.full(len(LONG), 4.0))
    study, cell = study_of(trace, "edf", cluster="1x4", costs="slurm")
    found = study.probed((cell, DAY_S + 5 * HOUR_S))

    assert found.says == "yes"
    assert found.finish_s <= study.probe.due_s
    assert found.added_s > 0


SAID: dict[int, list[str]] = {}  # Of each job, look by look; empty: nothing new


@dataclasses.dataclass(frozen=True)
class Seeing(Edf):
    """Writes down what it says."""

    def order(self, snap: Snapshot, /) -> Order:
        """The order of EDF."""
        order = super().order(snap)
        news = promises_in(order.book)
        for job in snap.jobs.job_id.tolist():
            SAID.setdefault(job, []).append(news[job].says if job in news else "")
        return order


def test_the_verdict_is_the_policys_at_its_first_look() -> None:
    """Of jobs with deadlines some are promised theirs, and then there is no room for another."""
    random = np.random.default_rng(1)
    submit_s = np.sort(random.uniform(0, 2 * DAY_S, 40))
    trace = make_trace(submit_s, [HOUR_S] * 40, due_s=submit_s + 3 * HOUR_S)
    study, cell = study_of(trace, "edf", due_s=2 * HOUR_S)
    said = []
    for at_s in study.instants(12).tolist():
        row = int(np.searchsorted(submit_s, at_s, "right"))
        jobs = added(study.history.trace, study.probe, row, at_s)
        _, cluster = study.experiment.ready(cell, jobs)
        SAID.clear()
        simulation_run.run(Chosen(cell.policy, Seeing()), jobs, cluster, parse_shape("1x1"))
        said.append(SAID[row][0])
        assert study.probed((cell, at_s)).says == said[-1]
    assert set(said) == {"yes", "no"}


def test_only_the_days_around_are_simulated() -> None:
    """Without the days before, the GPU is free; the day's own job is always there."""
    study, cell = study_of(LONG, "fifo", duration_s=HOUR_S)
    before = make_trace([0, 2 * DAY_S, 4 * DAY_S], [2.5 * DAY_S, 60, 60])
    study = dataclasses.replace(study, history=cut(before, parse_shape("1x1")))
    waits = {
        days: dataclasses.replace(study, before_days=days).probed((cell, 2.2 * DAY_S)).finish_s
        for days in (1, 14)
    }
    assert waits == {1: HOUR_S, 14: pytest.approx(0.3 * DAY_S + 60 + HOUR_S)}


times = st.one_of(st.integers(1, 40).map(float), st.just(math.inf))


@given(st.lists(times, min_size=1, max_size=15), st.data())
def test_figures_are_those_of_the_instants(finish_s: list[float], data: st.DataObject) -> None:
    steps = sorted(data.draw(st.sets(st.integers(1, 40), min_size=1, max_size=8)))
    curve = ValueCurve(tuple(map(float, steps)), tuple(float(9 - i) for i in range(len(steps))))
    says = data.draw(st.lists(st.sampled_from(["yes", "no"]), min_size=15, max_size=15))
    probe = Probe(gpus=1, duration_s=1, due_s=20, curve=curve)
    found = [
        Probed(finish_s=f, says=s, kept=f <= 20, added_s=f, later=1, earlier=1, missed=2,
               unfinished=0)
        for f, s in zip(finish_s, says, strict=False)
    ]  # fmt: skip
    told = summary(probe, found)

    values = [max((9.0 - i for i, due in enumerate(steps) if end <= due), default=0.0)
              for end in finish_s]  # fmt: skip
    n = len(finish_s)
    kept = [end <= 20 for end, s in zip(finish_s, says, strict=False) if s == "yes"]
    assert told["value"]["mean"] == pytest.approx(sum(values) / n)  # type: ignore[index]
    assert told["value"]["p10"] == sorted(values)[math.ceil(n / 10) - 1]  # type: ignore[index]
    assert told["finish_s"]["p90"] == sorted(finish_s)[math.ceil(0.9 * n) - 1]  # type: ignore[index]
    assert told["done_by"] == [sum(end <= due for end in finish_s) / n for due in steps]
    assert told["kept"] == pytest.approx(sum(kept) / len(kept) if kept else math.nan, nan_ok=True)
    assert told["added_jct_s"] == pytest.approx(sum(finish_s) / n)
    assert told["change_s"] == pytest.approx(sum(finish_s) / (2 * n))


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (b"# time value\n\n8h 10 # full\r\n  1d\t2.5\n", [(28_800.0, 10.0), (86_400.0, 2.5)]),
        (b"", ""), (b"8h\n", ":1"), (b"8h 1 2", ":1"), (b"1h 3\n8 1", ":2"), (b"8h x", ":1"),
        (b"0h 1", ":1"), (b"8h nan", ""), (b"8h inf", ""), (b"8h 0", ""), (b"8h 2\n9h 2", ""),
        (b"9h 2\n8h 1", ""), (b"".join(b"%dh %d\n" % (n, 20 - n) for n in range(1, 10)), ""),
        (b"\xff\xfe", ":1"), (b"1h 1\n" + b"# \n" * 100_000, ""),
    ],
)  # fmt: skip
def test_a_curve_is_read_or_refused(
    tmp_path: Path, text: bytes, where: str | list[tuple[float, float]]
) -> None:
    path = tmp_path / "c"
    path.write_bytes(text)
    if isinstance(where, list):
        assert list(read_curve(path)) == where
        return
    with pytest.raises(ConfigError) as raised:
        read_curve(path)
    assert str(raised.value).startswith(f"{path}{where}: ")
