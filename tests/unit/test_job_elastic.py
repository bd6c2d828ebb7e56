"""Batches, learning rates and noise of the gradient in a job's own script."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from slurm_dl.job import elastic
from slurm_dl.job.elastic import GradientNoise, split


@pytest.mark.parametrize(
    ("mode", "gpus", "more", "found"),
    [
        ("fixed", 1, {}, (1, 32, 2, 64)),
        ("fixed", 4, {}, (4, 16, 1, 64)),
        # Some GPUs have a sample less: the batch stays.
        ("fixed", 3, {}, (3, 22, 1, 64)),
        ("gpu", 1, {}, (1, 32, 2, 64)),
        ("gpu", 4, {}, (4, 32, 2, 256)),
        ("gpu", 4, {"asked_gpus": 2}, (4, 32, 1, 128)),
        ("gpu", 4, {"most": 100}, (4, 25, 1, 100)),
        ("elan", 4, {"least_local": 8}, (4, 16, 1, 64)),
        ("elan", 8, {"least_local": 8}, (8, 8, 1, 64)),
        ("elan", 16, {"least_local": 8}, (16, 8, 1, 128)),
        ("elan", 16, {"least_local": 8, "most": 100}, (16, 6, 1, 96)),
        ("adapt", 4, {"most": 1000}, (4, 16, 1, 64)),
        ("adapt", 4, {"most": 1000, "noise": 10.0}, (4, 16, 1, 64)),
        ("adapt", 4, {"most": 1000, "noise": 500.0}, (4, 32, 4, 512)),
        ("adapt", 4, {"most": 1000, "noise": math.inf}, (4, 31, 8, 992)),
        ("adapt", 4, {"noise": 500.0}, (4, 16, 1, 64)),
    ],
)
def test_a_step_in_the_present_size(
    mode: str,
    gpus: int,
    more: dict[str, Any],
    found: tuple[int, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A batch of 64, of which a GPU takes 32 in one pass, by the job's variable or by name."""
    assert split(64, gpus, most_local=32, mode=mode, **more)[:4] == found
    monkeypatch.setenv(elastic.BATCH_VARIABLE, mode)
    assert split(64, gpus, most_local=32, **more)[:4] == found


def test_steps_stay_within_their_limits() -> None:
    """Of random batches: the product, the passes, and both bounds."""
    rng = np.random.default_rng(1)
    for _ in range(2000):
        batch, gpus, most_local = (int(rng.integers(1, n)) for n in (500, 33, 65))
        least, most = int(rng.integers(1, most_local + 1)), batch * int(rng.integers(1, 9))
        noise, mode = float(rng.exponential(1000)), elastic.MODES[int(rng.integers(4))]
        part = split(batch, gpus, most_local=most_local, least_local=least, most=most, mode=mode,
                     noise=noise)  # fmt: skip
        assert 1 <= part.local_batch <= most_local
        limit = batch if mode == "fixed" else most
        assert part[4:] == (batch, limit, least, most_local)
        assert part.gpus * part.local_batch * (part.passes - 1) < part.batch
        if mode == "fixed":
            assert part.batch == batch
            assert 0 <= gpus * part.local_batch * part.passes - batch < gpus * part.passes
        else:
            assert part.batch == gpus * part.local_batch * part.passes
            assert part.batch <= max(most, gpus * part.passes)


def test_without_a_bound_the_limit_is_the_batch() -> None:
    """That of the step; ``adapt`` goes no further than the first."""
    found = {mode: split(64, 4, most_local=32, mode=mode).most for mode in elastic.MODES}
    assert found == {"fixed": 64, "gpu": 256, "elan": 64, "adapt": 64}


@pytest.mark.parametrize(
    ("batch", "gpus", "more"),
    [(0, 1, {}), (8, 0, {}), (8, 1, {"mode": "many"}), (8, 1, {"least_local": 9})],
)
def test_what_cannot_be_split_is_refused(batch: int, gpus: int, more: dict[str, Any]) -> None:
    """Numbers below 1, and modes that there are not."""
    with pytest.raises(ValueError, match="split"):
        split(batch, gpus, most_local=8, **more)


def test_learning_rates_by_their_formulas() -> None:
    """AdaScale lies between 1, if there is no noise, and the scale, if there is nothing else."""
    assert elastic.linear(8) == 8
    assert elastic.square_root(16) == 4
    assert elastic.adascale(8, 3.0, 0.0) == 8
    assert elastic.adascale(8, 0.0, 3.0) == 1
    assert elastic.adascale(8, 0.0, 0.0) == 1
    assert elastic.adascale(4, 2.0, 1.0) == 2
    assert elastic.adascale(1, 2.0, 1.0) == 1
    ramp = [elastic.progressive(1, 3, step, 4) for step in (-1, 0, 1, 2, 4, 9)]
    assert ramp == [1, 1, 1.5, 2, 3, 3]
    assert elastic.progressive(1, 3, 0, 0) == 3


def test_the_noise_is_that_of_the_gradients_by_themselves() -> None:
    """Planted mean and covariance, from 4 passes of 8 samples; without bias from the first step."""
    rng = np.random.default_rng(3)
    mean, spread = rng.normal(size=50), rng.uniform(0.5, 2, size=50)
    planted = float((mean**2).sum()), float((spread**2).sum())
    early, late = [], GradientNoise(smoothing=0.999)
    for _ in range(4000):
        passes = mean + spread * rng.normal(size=(4, 8, 50)).mean(axis=1)
        squares, of_mean = (passes**2).sum(axis=1), (passes.mean(axis=0) ** 2).sum()
        late.see(4, 8, float(squares.mean()), float(of_mean))
        first = GradientNoise()
        first.see(4, 8, float(squares.mean()), float(of_mean))
        early.append(first.state()[:2])
    assert 100 * np.mean(early, axis=0) == pytest.approx(planted, rel=0.02)
    assert (late.sqr, late.var) == pytest.approx(planted, rel=0.03)
    assert late.scale == pytest.approx(planted[1] / planted[0], rel=0.05)


def test_steps_that_tell_nothing_leave_it_as_it_is() -> None:
    """A single pass and overflown gradients; a checkpoint keeps the rest."""
    noise = GradientNoise(smoothing=0.5)
    assert (noise.sqr, noise.var, noise.scale) == (0, 0, None)
    noise.see(1, 8, 4.0, 4.0)
    noise.see(2, 8, math.inf, 4.0)
    noise.see(2, 8, math.nan, 4.0)
    assert noise.scale is None
    noise.see(2, 8, 5.0, 4.0)
    assert (noise.sqr, noise.var) == pytest.approx((3, 16))
    noise.see(2, 8, 6.0, 4.0)
    again = GradientNoise(smoothing=0.5)
    again.load(noise.state())
    assert (again.sqr, again.var) == pytest.approx(((3 / 4 + 2 / 2) / 0.75, (16 / 4 + 16) / 0.75))
