"""Speeds of models: measured, fitted, carried over, assumed."""

from __future__ import annotations

import math
from collections.abc import Mapping

import build
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from slurm_dl.estimates.training_speed import (
    AmdahlFit,
    Rates,
    SitePriors,
    fit_amdahl,
    rates_of_jobs,
    shape_of,
    speed_of,
)
from slurm_dl.model.contract import Claim
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import Origin
from slurm_dl.model.profile import Profile, ShapeRate, Speed
from slurm_dl.model.shape import Shape

SITE = SitePriors(gpu_speed={"a100": 2.0, "v100": 1.0}, serial_share=0.1)


def speed(shape: tuple[int, int], steps_per_s: float, gpu_type: str = "", **more: object) -> Speed:
    """A measured speed."""
    values: Mapping[str, object] = {"origin": "measured", **more}
    return Speed(shape=Shape(*shape), steps_per_s=steps_per_s, gpu_type=gpu_type, **values)  # type: ignore[arg-type]


@given(serial=st.floats(0.001, 0.5), seed=st.integers(0, 1000))
def test_a_fit_finds_the_planted_serial_share_through_noise(serial: float, seed: int) -> None:
    """A tenth of a percent of noise on seven points moves the share by little."""
    noise = 1 + 0.001 * np.random.default_rng(seed).standard_normal(7)
    gpus = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]
    planted = AmdahlFit(3.0 * serial, 3.0 * (1 - serial))
    found = fit_amdahl(gpus, [planted.speed(g) * e for g, e in zip(gpus, noise, strict=True)])

    assert found.serial_share == pytest.approx(serial, abs=0.005)
    assert found.speed(128) == pytest.approx(planted.speed(128), rel=0.02)


@given(
    st.lists(
        st.tuples(st.sampled_from([1.0, 2.0, 4.0, 8.0]), st.floats(0.1, 10.0)),
        min_size=2,
        max_size=6,
    ).filter(lambda points: len({g for g, _ in points}) > 1)
)
def test_no_other_curve_fits_better(points: list[tuple[float, float]]) -> None:
    """A general minimiser with bounds finds none, whatever the speeds are."""
    gpus, speeds = (np.array(column) for column in zip(*points, strict=True))

    def error(parts: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
        return float((((parts[0] + parts[1] / gpus) * speeds - 1) ** 2).sum())

    found = fit_amdahl(gpus.tolist(), speeds.tolist())
    assert min(found.serial_s, found.parallel_s) >= 0
    other = minimize(error, [0.5, 0.5], bounds=[(0, None), (0, None)], tol=1e-12)
    own = error(np.array([found.serial_s, found.parallel_s]))
    assert own <= other.fun + 1e-9


def test_one_number_of_gpus_is_no_curve() -> None:
    """However many points there are."""
    assert fit_amdahl([4.0, 4.0], [1.0, 2.0]) is None
    assert fit_amdahl([], []) is None


def test_the_rungs_of_the_ladder_in_turn() -> None:
    """Measured here; a curve through this type; another type's; nothing known."""
    profile = Profile(
        name="m",
        speeds=(speed((1, 1), 4.0, "v100"), speed((1, 4), 3.0, "v100"), speed((1, 2), 8.0, "h100")),
    )

    measured = speed_of(profile, Shape(1, 4), "v100", SITE)
    assert (measured.samples_per_s, measured.origin) == (12.0, Origin.MEASURED)

    # 1 / 4 = a + b and 1 / 12 = a + b / 4.
    b = (1 / 4 - 1 / 12) / (3 / 4)
    a = 1 / 4 - b
    fitted = speed_of(profile, Shape(1, 8), "v100", SITE)
    assert fitted.samples_per_s == pytest.approx(1 / (a + b / 8))
    assert fitted.origin == Origin.FITTED

    carried = speed_of(profile, Shape(1, 2), "a100", SITE)
    # h100 is not named by the site: it has speed 1.
    assert carried.samples_per_s == pytest.approx(2.0 * 8.0 * 2)
    assert carried.origin == Origin.PRIOR

    same_type = speed_of(profile, Shape(1, 8), "h100", SITE)
    assert same_type.samples_per_s == pytest.approx(16.0 * SITE.speedup(8) / SITE.speedup(2))

    unknown = speed_of(None, Shape(1, 8), "a100", SITE)
    assert unknown.samples_per_s == pytest.approx(2.0 / (0.1 + 0.9 / 8))
    assert unknown.origin == Origin.PRIOR
    assert speed_of(Profile(name="m"), Shape(1, 8), "a100", SITE) == unknown
    assert speed_of(None, Shape(1, 1), "k80", SITE).samples_per_s == 1.0


def test_a_speed_on_any_type_is_one_where_the_site_tells_no_types_apart() -> None:
    """It is exact there; else the site's ratio stands between."""
    profile = Profile(name="m", speeds=(speed((1, 4), 3.0),))

    plain = speed_of(profile, Shape(1, 4), "a100", SitePriors())
    assert (plain.samples_per_s, plain.origin) == (12.0, Origin.MEASURED)
    carried = speed_of(profile, Shape(1, 4), "a100", SITE)
    assert (carried.samples_per_s, carried.origin) == (24.0, Origin.PRIOR)


def test_a_shape_that_is_known_to_be_slow_is_slow_on_the_curve_too() -> None:
    """Relative speeds of shapes count where the speed itself was not measured."""
    profile = Profile(
        name="m",
        speeds=(speed((1, 1), 4.0, "v100"), speed((1, 2), 4.0, "v100")),
        shape_rates=(
            ShapeRate(shape=Shape(1, 8), rate=1.0),
            ShapeRate(shape=Shape(8, 1), rate=0.5),
        ),
    )

    apart, together = (speed_of(profile, Shape(*s), "v100", SITE) for s in ((8, 1), (1, 8)))
    assert apart.samples_per_s == pytest.approx(together.samples_per_s / 2)


def test_batches_are_counted() -> None:
    """Half the steps of twice the samples are as fast."""
    profile = Profile(
        name="m",
        speeds=(speed((1, 1), 2.0, "v100", batch=64), speed((1, 1), 1.0, "a100", batch=128)),
    )

    found = [speed_of(profile, Shape(1, 1), t, SITE).samples_per_s for t in ("v100", "a100")]
    assert found == [128.0, 128.0]


def test_how_far_a_figure_is_trusted_is_where_it_is_from() -> None:
    """An admin's word is a prior, a paper's table a curve."""
    origins = []
    for origin in ("measured", "computed", "published", "declared"):
        profile = Profile(name="m", speeds=(speed((1, 1), 2.0, "v100", origin=origin),))
        origins.append(speed_of(profile, Shape(1, 1), "v100", SITE).origin)

    assert origins == [Origin.MEASURED, Origin.FITTED, Origin.FITTED, Origin.PRIOR]


def rates(
    profiles: Mapping[str, Profile], site: SitePriors, models: Mapping[int, str]
) -> Rates | None:
    """Rates of three jobs on a100 and v100: 1 GPU, 4 GPUs on a node, 8 on two."""
    rows = [build.pending(1, 1), build.pending(2, 4), build.pending(3, 8, n_nodes=2)]
    claims = {JobId(j): Claim(model=model) for j, model in models.items()}
    return rates_of_jobs(build.snapshot(build.observed(rows, claims=claims)), profiles, site)


def test_jobs_have_the_ratio_of_their_model_and_else_that_of_the_site() -> None:
    """Two measured types are as far apart as they are; the rest as the site says."""
    profile = Profile(name="m", speeds=(speed((1, 4), 9.0, "a100"), speed((1, 4), 2.0, "v100")))
    found = rates({"m": profile}, SITE, {2: "m", 3: "nobody's", 99: "m"})

    assert found.rates.tolist() == pytest.approx(np.array([[2, 1], [2, 2 * 2 / 9], [2, 1]]))
    assert found.origin.tolist() == [Origin.PRIOR, Origin.MEASURED, Origin.PRIOR]


def test_the_type_that_is_known_keeps_the_speed_the_site_gives_it() -> None:
    """Of one measured type nothing follows for the other but the site's ratio."""
    profile = Profile(name="m", speeds=(speed((1, 4), 9.0, "v100"),))
    found = rates({"m": profile}, SITE, {2: "m"})

    assert found.rates[1].tolist() == pytest.approx([2.0, 1.0])
    assert found.origin[1] == Origin.PRIOR


def test_where_nothing_tells_types_apart_nothing_is_said() -> None:
    """No rates at all, so that whoever reads them takes every type for as fast as any other."""
    assert rates({}, SitePriors(), {}) is None
    assert rates({"m": Profile(name="m")}, SitePriors(), {1: "m"}) is None
    assert rates({}, SITE, {}) is not None


def test_parts_of_gpus_and_odd_numbers_have_a_shape() -> None:
    """At least one GPU on at least one node, the fullest node counts."""
    rows = [build.pending(1, 0.5), build.pending(2, 6, n_nodes=4), build.pending(3, 0)]
    jobs = build.observed(rows).jobs

    assert [shape_of(jobs, i) for i in range(3)] == [Shape(1, 1), Shape(4, 2), Shape(1, 1)]
    half = speed_of(None, Shape(1, 1), "v100", SITE, gpus=0.5)
    assert half.samples_per_s == 0.5


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_a_type_has_a_speed_above_zero(value: float) -> None:
    """The error names the type."""
    with pytest.raises(ValueError, match="gpu_speed: a100"):
        SitePriors(gpu_speed={"a100": value})


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan])
def test_a_serial_share_is_a_share(value: float) -> None:
    """From all of the work to none of it."""
    with pytest.raises(ValueError, match="serial_share"):
        SitePriors(serial_share=value)
