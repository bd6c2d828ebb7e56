"""Fits and generated workloads: statistics within their errors at fixed seeds, and determinism."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from slurm_dl.model.errors import ConfigError
from slurm_dl.model.trace import Trace
from slurm_dl.traces import read_trace
from slurm_dl.traces.lognormal_mixture import Lognormals, fit_lognormals, ks_distance
from slurm_dl.traces.workload_fit import HOURS, Fit, fit, read_fit, write_fit
from slurm_dl.traces.workload_generator import Arrivals, generate
from tools.fit_traces import main

ROOT = Path(__file__).parents[2]
TRACES = ROOT / "traces"
MURI = TRACES / "muri" / "trace3.csv"
ITP = TRACES / "fits" / "itp.json"


@pytest.fixture(scope="module")
def philly() -> Fit:
    """The shipped fit of Philly."""
    return read_fit(TRACES / "fits" / "philly.json")


def made(
    found: Fit,
    *,
    jobs: int = 20_000,
    load: float = 0.8,
    seed: int = 1,
    arrivals: Arrivals = "poisson",
) -> Trace:
    """A workload for 512 GPUs."""
    return generate(found, jobs=jobs, load=load, gpus=512, seed=seed, arrivals=arrivals)


def one_gpu(durations: Lognormals, *, hourly: list[float] | None = None) -> Fit:
    """A fit of jobs of one GPU."""
    part = {"low_gpus": 1, "high_gpus": 1, "jobs": 1, "ks": 0, "quantiles": []}
    whole = {"origin": "made up", "jobs": 1, "span_s": 0, "interarrival_cv": 1, "users": []}
    means = {"mean_gpu_s_data": 1, "mean_gpu_s_fit": 1, "sizes": [{"gpus": 1, "share": 1}]}
    classes = [{**part, "durations": durations}]
    return Fit.model_validate(
        {**whole, **means, "classes": classes, "hourly": hourly or [1.0] * HOURS}
    )


HOUR = Lognormals(weight=(1.0,), mu=(math.log(3600),), sigma=(0.5,), low_s=1, high_s=1e6)


# Mixtures of lognormals.


def test_a_mixture_is_found_again() -> None:
    true = Lognormals(weight=(0.3, 0.7), mu=(3.0, 8.0), sigma=(0.5, 1.0), low_s=1e-3, high_s=1e9)
    found = fit_lognormals(true.draw(4000, np.random.default_rng(5)))

    # Standard errors: sqrt(0.3 * 0.7 / 4000) = 0.007 for weights, 1 / sqrt(2800) = 0.019 for mu.
    assert found.weight == pytest.approx(true.weight, abs=0.028)
    assert found.mu == pytest.approx(true.mu, abs=0.076)
    assert found.sigma == pytest.approx(true.sigma, abs=0.06)


def test_repeated_values_count_as_often_as_they_are_there() -> None:
    """One lognormal has mean and deviation of the logarithm; what is all the same stays so."""
    duration_s = np.round(HOUR.draw(500, np.random.default_rng(2)), -2)
    found = fit_lognormals(duration_s)
    assert len(np.unique(duration_s)) < 150
    assert len(found.weight) == 1
    assert found.mu[0] == pytest.approx(np.log(duration_s).mean(), rel=1e-9)
    assert found.sigma[0] == pytest.approx(np.log(duration_s).std(), rel=1e-9)

    duration_s = np.repeat([60.0, 3600.0], [900, 100])
    found = fit_lognormals(duration_s)
    assert float(found.mean_s()) == pytest.approx(duration_s.mean(), rel=0.1)
    assert float(found.cdf(np.array([600.0]))[0]) == pytest.approx(0.9, abs=0.01)

    found = fit_lognormals(np.full(9, 60.0))
    assert found.draw(5, np.random.default_rng(0)).tolist() == [60.0] * 5
    assert found.mean_s() == 60
    assert found.quantile(np.array([0.1, 0.9])).tolist() == pytest.approx([60, 60])


@given(
    mu=st.lists(st.floats(-2, 12), min_size=1, max_size=5),
    sigma=st.floats(0.1, 3),
    cut=st.tuples(st.floats(0.01, 10), st.floats(100, 1e6)),
)
@settings(max_examples=30, deadline=None)
def test_mean_quantiles_and_cdf_of_a_mixture_agree(
    mu: list[float], sigma: float, cut: tuple[float, float]
) -> None:
    low, high = (math.log(end) for end in cut)
    assume(any(low - sigma < m < high + sigma for m in mu))
    mixture = Lognormals(
        weight=(1 / len(mu),) * len(mu),
        mu=tuple(mu),
        sigma=(sigma,) * len(mu),
        low_s=cut[0],
        high_s=cut[1],
    )
    shares = (np.arange(100) + 0.5) / 100
    quantiles = mixture.quantile(shares)

    assert mixture.cdf(quantiles) == pytest.approx(shares, abs=1e-7)
    # The mean of what is never below low: low + the integral of the share above.
    grid = np.geomspace(*cut, 3000)
    above = 1 - mixture.cdf(grid)
    integral = cut[0] + float(np.diff(grid) @ (above[1:] + above[:-1]) / 2)
    assert mixture.mean_s() == pytest.approx(integral, rel=1e-3)
    assert mixture.cdf(np.array(cut)) == pytest.approx([0, 1])


@pytest.mark.parametrize("values", [[1, 1, 5, 30, 31, 400], [1, 1, 1, 2, 3], [90, 300, 400]])
def test_the_ks_distance_is_that_of_its_definition(values: list[int]) -> None:
    duration_s = np.array(values, dtype=np.float64)
    mixture = Lognormals(weight=(1.0,), mu=(3.0,), sigma=(1.0,), low_s=1.0, high_s=400.0)
    # Both sides of each step, and points just beside them.
    gaps = [
        abs(float(mixture.cdf(np.array([at]))[0]) - share)
        for value in duration_s
        for at, share in (
            (value, (duration_s <= value).mean()),
            (value - 1e-9, (duration_s < value).mean()),
        )
    ]

    assert ks_distance(duration_s, mixture) == pytest.approx(max(gaps), abs=1e-6)


def test_what_is_drawn_has_the_distribution_it_is_drawn_from() -> None:
    mixture = Lognormals(
        weight=(0.5, 0.5), mu=(4.0, 9.0), sigma=(1.0, 2.0), low_s=30, high_s=40_000
    )
    drawn = mixture.draw(10_000, np.random.default_rng(3))

    # 1.63 / sqrt(n) is exceeded once in a hundred times.
    assert ks_distance(drawn, mixture) < 1.63 / 100
    assert drawn.min() >= 30
    assert drawn.max() <= 40_000


# Fits.


@pytest.mark.parametrize(
    ("name", "jobs", "worst"), [("philly", 82_247, 0.04), ("itp", 69_351, 0.045)]
)
def test_shipped_fits_are_close_to_their_data(name: str, jobs: int, worst: float) -> None:
    found = read_fit(TRACES / "fits" / f"{name}.json")

    assert found.jobs == jobs
    assert sum(c.jobs for c in found.classes) == jobs
    assert max(c.ks for c in found.classes) < worst
    assert found.mean_gpu_s_fit == pytest.approx(found.mean_gpu_s_data, rel=0.05)
    for part in found.classes:
        for row in part.quantiles:
            assert row.fit_s == pytest.approx(row.data_s, rel=0.35)


def test_the_shipped_fit_is_what_the_command_makes(tmp_path: Path) -> None:
    out, picture = tmp_path / "fit.json", tmp_path / "fit.png"
    trace = TRACES / "elasticflow" / "cluster10.csv"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tools.fit_traces", str(trace)),
            *("--name", "ten", "--out", str(out), "--figure", str(picture)),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )

    assert done.stderr == ""
    assert "260 jobs" in done.stdout or "GPU-seconds of a job" in done.stdout
    assert read_fit(out) == fit(read_trace(trace)).model_copy(update={"origin": "ten"})
    assert picture.read_bytes()[:4] == b"\x89PNG"


def test_the_statistics_of_a_fit_are_those_of_the_trace() -> None:
    trace = read_trace(MURI)
    found = fit(trace)

    assert {s.gpus: s.share for s in found.sizes} == {
        size: pytest.approx(float((trace.gpus == size).mean()))
        for size in {int(r.split(",")[1]) for r in MURI.read_text().splitlines()[1:]}
    }
    assert found.mean_gpu_s_data == pytest.approx(trace.gpu_s / len(trace))
    assert sum(found.hourly) == pytest.approx(HOURS)
    six = float(((trace.submit_s % 86_400) // 3600 == 6).mean())
    assert found.hourly[6] == pytest.approx(six * HOURS)
    assert sum(c.jobs for c in found.classes) == len(trace)
    for part in found.classes:
        inside = (trace.gpus >= part.low_gpus) & (trace.gpus <= part.high_gpus)
        assert part.jobs == inside.sum()
        assert part.ks == ks_distance(trace.duration_s[inside], part.durations)
    assert found.users == ()
    both = fit(trace, trace)
    assert both.jobs == 2 * len(trace)
    assert both.span_s == 2 * found.span_s


def test_few_jobs_are_fitted_together(tmp_path: Path) -> None:
    lines = ["job_id,submit_s,duration_s,gpus,user,model,ending"]
    lines += [f"{i},{i},{60 + i % 7},{2 ** (i % 5)},u,,COMPLETED" for i in range(60)]
    path = tmp_path / "few.csv"
    path.write_text("\n".join(lines))
    found = fit(read_trace(path))

    assert [c.jobs for c in found.classes] == [60]
    assert found.users == (1.0,)


@given(seed=st.integers(0, 1000))
@settings(max_examples=5, deadline=None)
def test_fits_are_read_back_as_written(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "fit.json"
    found = fit(generate(one_gpu(HOUR), jobs=80, load=1, gpus=8, seed=seed))
    write_fit(found, path)

    assert read_fit(path) == found


def test_what_is_no_fit_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By its place; the command tells errors in a line."""
    path, none = tmp_path / "fit.json", tmp_path / "none.json"
    changes: list[tuple[dict[str, object], str]] = [
        ({"sizes": []}, "sizes"),
        ({"sizes": [{"gpus": -1, "share": 1}]}, r"sizes\.0\.gpus"),
        ({"hourly": [1.0] * 23}, "hourly"),
        ({"hourly": [0.0] * 24}, "hourly rates"),
        ({"hourly": [math.nan] * 24}, "hourly"),
        ({"users": [-1.0]}, "users"),
        ({"extra": 1}, "extra"),
    ]
    for change, why in changes:
        path.write_text(json.dumps(json.loads(ITP.read_text()) | change))
        with pytest.raises(ConfigError, match=rf"fit\.json: no fit of a workload: .*{why}"):
            read_fit(path)
    path.write_bytes(b"\xff{")
    with pytest.raises(ConfigError, match="no fit of a workload"):
        read_fit(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_fit(none)
    with pytest.raises(ConfigError, match="cannot be written"):
        write_fit(read_fit(ITP), tmp_path / "none" / "fit.json")
    assert main([str(none)]) == 2
    assert capsys.readouterr().err == f"{none}: cannot be read: No such file or directory\n"


def test_what_is_no_mixture_is_refused() -> None:
    sound = {"weight": [0.5, 0.5], "mu": [1, 2], "sigma": [1, 1], "low_s": 1, "high_s": 99}
    Lognormals.model_validate(sound)
    wrong: list[dict[str, object]] = [
        {"weight": [0.5]}, {"weight": [2.0, -1.0]}, {"mu": [1.0]}, {"sigma": [0.0, 1.0]},
        {"low_s": 0}, {"low_s": 10, "high_s": 5}, {"mu": [1e300, 1]}, {"mu": [40, 40]},
    ]  # fmt: skip
    for change in wrong:
        with pytest.raises(ValueError, match="validation error"):
            Lognormals.model_validate(sound | change)


# Workloads.


@pytest.mark.parametrize("arrivals", ["poisson", "diurnal"])
@pytest.mark.parametrize("load", [0.3, 0.8, 1.5])
def test_the_load_is_the_one_asked_for(philly: Fit, arrivals: Arrivals, load: float) -> None:
    trace = made(philly, load=load, arrivals=arrivals)
    offered = trace.gpu_s / (512 * trace.submit_s[-1])

    # The last of n arrivals has a relative error of 1 / sqrt(n); a day that is not full adds some.
    assert offered == pytest.approx(load, rel=4 / math.sqrt(20_000) + 0.01)


def test_sizes_durations_and_users_are_those_of_the_fit(philly: Fit) -> None:
    """Shares within four standard errors, durations of each class as they are distributed."""
    trace = made(philly)
    shares = [(size.share, trace.gpus == size.gpus) for size in philly.sizes]
    shares += [(share, trace.user == place) for place, share in enumerate(philly.users)]
    for share, those in shares:
        error = math.sqrt(share * (1 - share) / 20_000)
        assert float(those.mean()) == pytest.approx(share, abs=4 * error)
    assert trace.users[0] == "u1"
    assert len(trace.users) == len(philly.users) == 15
    for part in philly.classes:
        inside = (trace.gpus >= part.low_gpus) & (trace.gpus <= part.high_gpus)
        drawn = trace.duration_s[inside]
        assert len(drawn) > 40
        # Exceeded once in a thousand times.
        assert ks_distance(drawn, part.durations) < 1.95 / math.sqrt(len(drawn))
        assert drawn.min() >= part.durations.low_s
        assert drawn.max() <= part.durations.high_s


def test_poisson_gaps_are_exponential(philly: Fit) -> None:
    gaps = np.diff(made(philly).submit_s)
    sorted_gaps = np.sort(gaps)
    expected = 1 - np.exp(-sorted_gaps / gaps.mean())
    seen = np.arange(1, len(gaps) + 1) / len(gaps)

    assert np.abs(seen - expected).max() < 1.63 / math.sqrt(len(gaps))
    assert gaps.std() / gaps.mean() == pytest.approx(1, abs=4 / math.sqrt(len(gaps)))


def test_diurnal_arrivals_follow_the_hours_of_the_fit() -> None:
    hourly = [0.0] * 6 + [0.5] * 6 + [2.0] * 6 + [1.5] * 6
    found = one_gpu(HOUR, hourly=hourly)
    trace = made(found, jobs=50_000, load=0.5, arrivals="diurnal")
    days = trace.submit_s[-1] // 86_400
    whole = trace.submit_s[trace.submit_s < days * 86_400]
    seen = np.bincount((whole // 3600 % HOURS).astype(int), minlength=HOURS)

    assert days >= 5
    expected = np.array(hourly) / HOURS * len(whole)
    assert not seen[:6].any()
    assert (np.abs(seen - expected) <= 4.5 * np.sqrt(expected) + 1e-9).all()
    even = made(found, jobs=50_000, load=0.5)
    assert np.bincount((even.submit_s // 3600 % HOURS).astype(int))[:6].all()


def test_the_same_seed_gives_the_same_workload(philly: Fit) -> None:
    """The load changes arrivals and nothing else; no job is larger than the cluster."""
    for arrivals in ("poisson", "diurnal"):
        first = made(philly, jobs=500, arrivals=arrivals)
        again = made(philly, jobs=500, arrivals=arrivals)
        other = made(philly, jobs=500, arrivals=arrivals, seed=2)
        for column in ("submit_s", "duration_s", "gpus", "user"):
            assert (getattr(first, column) == getattr(again, column)).all()
        assert not (first.duration_s == other.duration_s).any()
        assert first.name == again.name != other.name
    low, high = (made(philly, load=load, jobs=500) for load in (0.5, 1.0))
    assert (low.duration_s == high.duration_s).all()
    assert (low.gpus == high.gpus).all()
    assert low.submit_s == pytest.approx(2 * high.submit_s)
    assert generate(philly, jobs=5000, load=0.5, gpus=16, seed=1).gpus.max() == 16


def test_what_cannot_be_generated_is_refused(philly: Fit) -> None:
    with pytest.raises(ConfigError, match=r"jobs must be 1 to 2,000,000 \(got 0\); load must be"):
        generate(philly, jobs=0, load=math.nan, gpus=8, seed=0)
    with pytest.raises(ConfigError, match="arrivals must be poisson or diurnal"):
        generate(philly, jobs=1, load=1, gpus=8, seed=0, arrivals="weekly")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="seed must not be negative"):
        generate(philly, jobs=1, load=1, gpus=8, seed=-1)
    big = philly.model_copy(update={"sizes": philly.sizes[-1:]})
    with pytest.raises(ConfigError, match="no job of the fit Philly fits on 8 GPUs"):
        generate(big, jobs=1, load=1, gpus=8, seed=0)
