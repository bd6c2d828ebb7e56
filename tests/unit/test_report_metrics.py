"""The arithmetic of a comparison, against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_dl.model.ids import JobId
from slurm_dl.model.record import JobRecord
from slurm_dl.report.metrics import Interruption, mean, percentile, summarise


def record(
    submit_s: float,
    start_s: float,
    end_s: float,
    *,
    gpus: float = 1.0,
    lost_gpu_s: float = 0.0,
    preemptions: int = 0,
    completed: bool = True,
) -> JobRecord:
    return JobRecord(
        job_id=JobId(1),
        user="ada",
        gpus=gpus,
        submit_s=submit_s,
        start_s=start_s,
        end_s=end_s,
        service_gpu_s=gpus * (end_s - start_s),
        lost_gpu_s=lost_gpu_s,
        preemptions=preemptions,
        completed=completed,
    )


def test_jct_is_counted_from_submission_and_makespan_from_the_first_one() -> None:
    """Two jobs on 4 GPUs: JCTs 30 and 50, busy 4 x 20 + 2 x 30 of 4 x 60 GPU-seconds."""
    records = [record(100, 110, 130, gpus=4), record(110, 130, 160, gpus=2)]

    found = summarise(records, gpus=4)

    assert (found.mean_jct_s, found.median_jct_s) == (40, 40)
    assert found.makespan_s == 60
    assert found.service_gpu_s == 140
    assert found.utilisation_frac == pytest.approx(140 / 240)


def test_the_median_of_an_odd_number_is_the_middle_one() -> None:
    """JCTs 1, 2 and 9: the median is 2, whatever the mean is."""
    found = summarise([record(0, 0, 9), record(0, 0, 1), record(0, 0, 2)], gpus=4)

    assert found.median_jct_s == 2
    assert found.mean_jct_s == 4


def test_a_job_that_did_not_complete_has_no_jct_but_used_gpus() -> None:
    """It counts as a job, in makespan and service, and not in the mean or the percentile."""
    found = summarise([record(0, 0, 10), record(0, 0, 100, completed=False)], gpus=2)

    assert (found.jobs, found.completed) == (2, 1)
    assert (found.mean_jct_s, found.p95_jct_s) == (10, 10)
    assert found.makespan_s == 100
    assert found.utilisation_frac == pytest.approx(110 / 200)


def test_preemptions_and_losses_add_up() -> None:
    """Sums over all jobs, those included that did not complete."""
    records = [
        record(0, 0, 5, preemptions=2, lost_gpu_s=7.5),
        record(0, 0, 5, preemptions=1, lost_gpu_s=2.5, completed=False),
    ]

    found = summarise(records, gpus=1)

    assert (found.preemptions, found.lost_gpu_s) == (3, 10.0)


def test_figures_over_nothing_are_not_a_number() -> None:
    """No job, or none that completed, must not look like a mean of 0."""
    empty = summarise([], gpus=4)
    failed = summarise([record(0, 0, 5, completed=False)], gpus=4)

    for value in (empty.mean_jct_s, empty.p95_jct_s, empty.makespan_s, empty.utilisation_frac):
        assert math.isnan(value)
    assert math.isnan(failed.mean_jct_s)
    assert math.isnan(failed.median_jct_s)
    assert failed.utilisation_frac == pytest.approx(0.25)


@pytest.mark.parametrize("gpus", [0.0, -1.0, math.nan])
def test_a_cluster_without_gpus_is_refused(gpus: float) -> None:
    """Utilisation of nothing would be a division by zero somewhere else."""
    with pytest.raises(ValueError, match="gpus must be above 0"):
        summarise([], gpus=gpus)


@pytest.mark.parametrize(
    ("count", "percent", "expected"),
    [(1, 95, 1), (19, 95, 19), (20, 95, 19), (21, 95, 20), (100, 95, 95), (4, 50, 2), (4, 100, 4)],
)
def test_percentiles_are_by_nearest_rank(count: int, percent: float, expected: float) -> None:
    """Of 1..n the p-th percentile is ceil(n x p / 100): no value is made up between two."""
    assert percentile(range(count, 0, -1), percent) == expected


@given(
    st.lists(st.floats(0, 1e6), min_size=1, max_size=60),
    st.floats(1, 100),
)
def test_a_percentile_is_the_least_value_that_enough_values_do_not_exceed(
    values: list[float], percent: float
) -> None:
    """The definition itself, on values in any order and with ties."""
    found = percentile(values, percent)
    needed = len(values) * percent / 100

    assert found in values
    assert sum(v <= found for v in values) >= needed - 1e-9
    assert all(sum(v <= smaller for v in values) < needed for smaller in values if smaller < found)


@pytest.mark.parametrize("percent", [0, -5, 101, math.nan])
def test_a_percentile_outside_the_hundred_is_refused(percent: float) -> None:
    """95 is meant, not 0.95 of something else, and not 950."""
    with pytest.raises(ValueError, match="percent must be above 0"):
        percentile([1.0], percent)


def test_mean_of_nothing_is_not_a_number() -> None:
    """An empty group has no mean."""
    assert math.isnan(mean([]))
    assert mean([1, 2]) == 1.5


def test_an_interruption_costs_its_gpus_for_all_three_times() -> None:
    """8 GPUs x (2 s until the run was over + 3 s of work again + 0.5 s to load the checkpoint)."""
    stop = Interruption(gpus=8, stopping_s=2, redone_s=3, restoring_s=0.5)

    assert stop.lost_gpu_s == 44


def test_clocks_that_differ_by_a_second_earn_no_gpu_seconds() -> None:
    """Slurm's times are whole seconds: a run that seems to end before its signal is no gain."""
    stop = Interruption(gpus=8, stopping_s=-0.7, redone_s=0, restoring_s=1)

    assert stop.lost_gpu_s == 8
