"""What policies are told beforehand: speeds of GPU types, wrong run times, deadlines."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from slurm_dl.experiments.oracle import Oracle, parse_foresight, read_rates
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.trace import Ending, Trace
from slurm_dl.profiles import shipped_profiles
from slurm_dl.simulation.cluster_shape import parse_shape


def trace_of(models: tuple[str, ...], n: int) -> Trace:
    """*n* jobs, the models in turn."""
    return Trace(
        name="t",
        format="generated",
        job_id=tuple(map(str, range(n))),
        submit_s=np.arange(n, dtype=np.float64),
        duration_s=np.full(n, 100.0),
        gpus=np.ones(n),
        user=np.zeros(n, dtype=np.int32),
        model=(np.arange(n) % len(models)).astype(np.int32),
        ending=np.full(n, Ending.COMPLETED, dtype=np.int8),
        models=models,
    )


MIXED = parse_shape("1x4:v100,1x4:k80")


def test_a_model_that_was_measured_has_its_own_ratio_of_types_others_that_of_the_site() -> None:
    """Gavel's published throughputs come with the profiles; a job is at 1 on its fastest type."""
    asked = Oracle(gpu_speed={"v100": 4.0, "k80": 1.0})
    rates = asked.speeds(trace_of(("resnet50", "nobody's"), 2), MIXED, shipped_profiles()).rates

    assert rates[1].tolist() == [1.0, 0.25]
    assert rates[0, 0] == 1.0
    assert 0 < rates[0, 1] < 0.25


def test_where_nothing_is_said_types_are_alike() -> None:
    """And on one type there is nothing to tell."""
    trace = trace_of(("resnet50",), 1)

    assert Oracle().speeds(trace, MIXED, shipped_profiles()).rates is None
    alone = Oracle(gpu_speed={"v100": 2.0}).speeds(trace, parse_shape("1x4:v100"), {})
    assert (alone.rates, alone.notes) == (None, ())


def test_a_type_that_is_not_there_is_an_error() -> None:
    """It may be misspelt."""
    with pytest.raises(ConfigError, match=r"no GPUs of type a100 in cluster .*v100, k80"):
        Oracle(gpu_speed={"a100": 2.0}).speeds(trace_of(("m",), 1), MIXED, {})


def test_errors_are_lognormal_and_follow_the_seed() -> None:
    """Half are too long, half too short."""
    trace = trace_of(("m",), 4000)
    asked = Oracle(error=0.5)
    first = asked.of(trace, None, seed=1).foreseen_s
    again = asked.of(trace, None, seed=1).foreseen_s
    other = asked.of(trace, None, seed=2).foreseen_s

    assert first is not None
    assert again is not None
    assert other is not None
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    ratio = np.log(first / trace.duration_s)
    assert abs(ratio.mean()) < 0.05
    assert ratio.std() == pytest.approx(0.5, rel=0.1)


def test_a_share_of_the_jobs_is_due() -> None:
    """So many run times after submission, the others never."""
    trace = trace_of(("m",), 2000)
    due_s = Oracle(due_share=0.25, due_after=1.5).of(trace, None, seed=0).due_s

    assert due_s is not None
    due = np.isfinite(due_s)
    assert due.mean() == pytest.approx(0.25, abs=0.05)
    np.testing.assert_allclose((due_s - trace.submit_s)[due], 150.0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("v100=4,v100=2", 0.0, None), "--gpu-speed 'v100=2': must be TYPE=SPEED, each type once"),
        (("v100", 0.0, None), "--gpu-speed 'v100': must be TYPE=SPEED"),
        (("v100=-1", 0.0, None), "--gpu-speed 'v100=-1'"),
        (("v100=nan", 0.0, None), "--gpu-speed 'v100=nan'"),
        ((None, -1.0, None), "--estimate-error -1: must be 0 to 10"),
        ((None, float("nan"), None), "--estimate-error nan"),
        ((None, 0.0, "2"), "--due '2': must be SHARE:MULTIPLE"),
        ((None, 0.0, "0.5:0.5"), "--due '0.5:0.5'"),
        ((None, 0.0, "x"), "--due 'x'"),
    ],
)
def test_what_is_no_foresight_is_refused(
    words: tuple[str | None, float, str | None], message: str
) -> None:
    """With the option and what was given."""
    with pytest.raises(ConfigError) as caught:
        parse_foresight(*words)
    assert message in str(caught.value)


def test_words_become_foresight() -> None:
    """All three."""
    assert parse_foresight("v100=4, k80=1", 0.5, "0.3:1.5") == Oracle(
        gpu_speed={"v100": 4.0, "k80": 1.0}, error=0.5, due_share=0.3, due_after=1.5
    )
    assert parse_foresight(None, 0.0, None) == Oracle()


def test_rates_are_of_the_nearest_number_of_gpus_and_relative_to_the_first_type(
    tmp_path: Path,
) -> None:
    """Models that the file lacks have the speeds of ``--gpu-speed``."""
    path = tmp_path / "rates.yaml"
    path.write_text("a: {1: {v100: 4, k80: 1}, 8: {v100: 8, k80: 0}}\nb: {k80: 3, v100: 6}\n")
    speeds = Oracle(rates=str(path), gpu_speed={"v100": 5.0})
    trace = trace_of(("a", "b", "c"), 3)

    found = speeds.speeds(trace, parse_shape("1x8:v100,1x8:k80"), {})

    assert found.rates.tolist() == [[1, 0.25], [2, 1], [1, 0.2]]
    assert found.notes == ("speeds on v100, k80: 1 job by --gpu-speed, 2 jobs by --rates",)
    alike = Oracle().speeds(trace, parse_shape("1x8:v100,1x8:k80"), {})
    assert alike.rates is None
    assert "are alike" in alike.notes[0]


@pytest.mark.parametrize(
    "content",
    [
        "[1, 2]", "", "a: 1", "a: {}", "a: {v100: x}", "a: {v100: -1}", "a: {v100: .nan}",
        "a: {v100: true}", "a: {v100: 0}", "a: {~: 1}", "a: {-1: {v100: 1}}", "a: {0: {v100: 1}}",
        "a: {.inf: {v100: 1}}", "a: {x: {v100: 1}}", "a: {1: {}}", "a: {v100: 1" + "0" * 400 + "}",
        "{{",
    ],
)  # fmt: skip
def test_what_are_no_rates_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "rates.yaml"
    path.write_text(content, "utf-8")

    with pytest.raises(ConfigError, match=r"--rates .*MODEL: \{TYPE: SPEED\}"):
        read_rates(path)
