"""The ideal cluster against closed forms of queueing theory, at fixed seeds.

Means are compared by batch means of one long run, or by paired replications, within intervals of
99.9 %. A further assertion keeps each interval narrow, so that a wrong policy falls out of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pytest
from small_traces import make_trace, outcome_of

from slurm_dl.model.trace import Trace
from slurm_dl.policies.base import Policy
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.policies.fifo import Fifo, FifoSkip
from slurm_dl.policies.gittins import Gittins
from slurm_dl.policies.las import Las
from slurm_dl.policies.list_las import ListLas
from slurm_dl.policies.shortest import FewestGpus, Srsf, Srtf

pytestmark = pytest.mark.full("long runs for narrow confidence intervals")

F64 = npt.NDArray[np.float64]
Sizes = Callable[[np.random.Generator, int], F64]

T_999: Final = {7: 5.408, 19: 3.883}
"""Student's t, two-sided 99.9 %, by degrees of freedom."""


@dataclass(frozen=True)
class Law:
    """A distribution of sizes: how to draw it, and its tail P(S > x) on a grid."""

    draw: Sizes
    tail: Callable[[F64], F64]
    largest_s: float


def exponential() -> Law:
    """Mean 1."""
    return Law(lambda rng, n: rng.exponential(1.0, n), lambda x: np.exp(-x), 60.0)


def two_exponentials() -> Law:
    """Mean 1: nine in ten of mean 0.5, one of mean 5.5; squared variation 5.5. Hazard falls."""

    def draw(rng: np.random.Generator, n: int) -> F64:
        return rng.exponential(1.0, n) * np.where(rng.random(n) < 0.9, 0.5, 5.5)

    return Law(draw, lambda x: 0.9 * np.exp(-x / 0.5) + 0.1 * np.exp(-x / 5.5), 200.0)


def constant() -> Law:
    """Always 1."""
    return Law(lambda _, n: np.ones(n), lambda x: (x < 1.0).astype(np.float64), 1.0)


def arrivals(law: Law, *, jobs: int, load: float, seed: int) -> Trace:
    """A Poisson stream of one-GPU jobs that keeps *load* GPUs busy on average."""
    rng = np.random.default_rng(seed)
    return make_trace(np.cumsum(rng.exponential(1 / load, jobs)), law.draw(rng, jobs))


def assert_mean(values: F64, expected: float, *, within: float, slack: float = 0.0) -> None:
    """The mean of *values*, in order, is *expected*: 20 batches after a tenth of warming up.

    Args:
        within: How wide the interval may be at most, as a share of *expected*.
        slack: What is allowed besides.
    """
    means = np.array([b.mean() for b in np.array_split(values[len(values) // 10 :], 20)])
    half = T_999[19] * means.std(ddof=1) / math.sqrt(20)
    assert half < within * expected, f"the interval is +-{half:.3f} around {means.mean():.3f}"
    assert abs(means.mean() - expected) < half + slack, (
        f"{means.mean():.4f} +-{half:.4f}, expected {expected:.4f}"
    )


def waiting_time(law: Law, load: float) -> float:
    """Pollaczek and Khinchine: mean waiting time of M/G/1 FIFO, sizes of mean 1."""
    x = np.linspace(0, law.largest_s, 400_001)
    second_moment = np.trapezoid(2 * x * law.tail(x), x)
    return float(load * second_moment / (2 * (1 - load)))


def srpt_response(law: Law, load: float) -> float:
    """Schrage and Miller, Operations Research 14, 1966: mean response of M/G/1 SRPT, mean size 1.

    E[T(x)] = load (m2(x) + x^2 P(S > x)) / 2 (1 - rho(x))^2 + int_0^x dt / (1 - rho(t)), with m2
    and rho / load the second and first moments of the sizes up to x.
    """
    x = np.linspace(0, law.largest_s, 400_001)
    tail = law.tail(x)
    share = -np.diff(tail)
    middle = (x[1:] + x[:-1]) / 2
    rho = load * np.cumsum(middle * share)
    m2 = np.cumsum(middle**2 * share)
    wait = load * (m2 + middle**2 * tail[1:]) / (2 * (1 - rho) ** 2)
    residence = np.cumsum(np.diff(x) / (1 - rho))
    return float(((wait + residence) * share).sum())


def least_attained_response(law: Law, load: float) -> float:
    """Foreground-background (Kleinrock, Queueing Systems 2, 1976, section 4.6), mean size 1.

    E[T(x)] = load m2(x) / 2 (1 - rho(x))^2 + x / (1 - rho(x)), where m2 and rho / load are the
    moments of min(S, x). Also Nuyens and Wierman, Performance Evaluation 65, 2008.
    """
    x = np.linspace(0, law.largest_s, 400_001)
    tail = law.tail(x)
    step = x[1]
    rho = load * np.cumsum((tail[1:] + tail[:-1]) / 2) * step
    m2 = np.cumsum(x[1:] * tail[1:] + x[:-1] * tail[:-1]) * step
    at_x = load * m2 / (2 * (1 - rho) ** 2) + x[1:] / (1 - rho)
    return float((at_x * -np.diff(tail)).sum() + at_x[-1] * tail[-1])


def test_the_formulas_agree_where_theory_says_so() -> None:
    """Exponential sizes: any order blind to sizes has mean 1 / (1 - load). Constants: sums."""
    for load in (0.3, 0.6, 0.8):
        blind = 1 / (1 - load)
        assert 1 + waiting_time(exponential(), load) == pytest.approx(blind, rel=1e-4)
        assert least_attained_response(exponential(), load) == pytest.approx(blind, rel=1e-4)
        assert srpt_response(exponential(), load) < blind
        # Constants: under FB all leave when the server runs empty.
        fifo = 1 + load / (2 * (1 - load))
        assert 1 + waiting_time(constant(), load) == pytest.approx(fifo, rel=1e-4)
        together = load / (2 * (1 - load) ** 2) + 1 / (1 - load)
        assert least_attained_response(constant(), load) == pytest.approx(together, rel=1e-4)


@pytest.mark.parametrize(
    ("law", "load", "jobs", "within"),
    [
        (exponential(), 0.5, 30_000, 0.1),
        (two_exponentials(), 0.3, 30_000, 0.15),
        (constant(), 0.6, 15_000, 0.08),
    ],
    ids=["exponential", "two exponentials", "constant"],
)
def test_fifo_has_the_mean_of_pollaczek_and_khinchine(
    law: Law, load: float, jobs: int, within: float
) -> None:
    """M/G/1: the mean response is 1 plus the mean wait; M/M/1 is 1 / (mu - lambda) among it."""
    trace = arrivals(law, jobs=jobs, load=load, seed=11)
    records = outcome_of(trace, "1x1", Fifo()).records

    assert_mean(records.jct_s, 1 + waiting_time(law, load), within=within)


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_srtf_has_the_mean_of_schrage_and_miller(load: float) -> None:
    """M/M/1 under shortest remaining time first."""
    trace = arrivals(exponential(), jobs=20_000, load=load, seed=12)
    records = outcome_of(trace, "1x1", Srtf()).records

    assert_mean(records.jct_s, srpt_response(exponential(), load), within=0.15)


@pytest.mark.parametrize(
    ("law", "jobs"),
    [(exponential(), 12_000), (two_exponentials(), 12_000), (constant(), 6_000)],
    ids=["exponential", "two exponentials", "constant"],
)
def test_least_attained_service_has_the_mean_of_foreground_background(law: Law, jobs: int) -> None:
    """M/G/1 with turns of a twentieth of the mean size; a turn is allowed for."""
    load, quantum_s = 0.4, 0.05
    trace = arrivals(law, jobs=jobs, load=load, seed=13)
    records = outcome_of(trace, "1x1", Las(quantum_s=quantum_s)).records

    expected = least_attained_response(law, load)
    assert_mean(records.jct_s, expected, within=0.15, slack=quantum_s)


@pytest.mark.parametrize("servers", [1, 4])
def test_fifo_on_many_gpus_has_the_wait_of_erlang_c(servers: int) -> None:
    """M/M/k: mean wait is C(k, load) / (k - load), C the chance that a job waits at all."""
    load = 0.6 * servers
    trace = arrivals(exponential(), jobs=22_000, load=load, seed=14)
    records = outcome_of(trace, f"1x{servers}", Fifo()).records

    terms = [load**k / math.factorial(k) for k in range(servers)]
    last = load**servers / math.factorial(servers) * servers / (servers - load)
    waits = last / (sum(terms) + last)
    assert_mean(records.wait_s, waits / (servers - load), within=0.4)
    assert_mean((records.wait_s > 1e-9).astype(np.float64), waits, within=0.15)


ALL: Final[dict[str, Policy]] = {
    "fifo": Fifo(),
    "fifo_skip": FifoSkip(),
    "fewest_gpus": FewestGpus(),
    "srtf": Srtf(),
    "srsf": Srsf(),
    "las": Las(quantum_s=0.25),
    "gittins": Gittins(sizes_gpu_s=(0.5, 1.0, 2.0, 8.0), quantum_s=0.25),
    "discrete_las": DiscreteLas(thresholds_gpu_s=(0.5, 2.0), promote_knob=8),
    "list_las": ListLas(thresholds_gpu_s=(0.5, 2.0)),
}


@pytest.mark.parametrize("name", ALL)
def test_littles_law_holds_on_every_run(name: str) -> None:
    """The area under the number of jobs in the system is the sum of their times in it, exactly.

    The number is counted from the instants at which GPUs are taken and jobs come and go.
    """
    rng = np.random.default_rng(15)
    gpus = rng.choice([1, 2, 4], 300)
    submit_s = np.cumsum(rng.integers(0, 5, 300))
    trace = make_trace(submit_s, rng.integers(1, 9, 300), gpus)
    records = outcome_of(trace, "1x4", ALL[name]).records

    runs = records.runs
    instants = np.unique(np.concatenate([submit_s, runs.start_s, runs.end_s]))
    here = (submit_s[None, :] <= instants[:-1, None]) & (
        records.end_s[None, :] > instants[:-1, None]
    )
    area = (here.sum(axis=1) * np.diff(instants)).sum()
    assert area == pytest.approx(records.jct_s.sum(), rel=1e-12)
    # The same law for the GPUs: their busy time is the work of the jobs.
    busy = (runs.gpus * (runs.end_s - runs.start_s)).sum()
    assert busy == pytest.approx(trace.gpu_s, rel=1e-9)


@pytest.mark.parametrize("seed", [21, 22, 23])
def test_srtf_is_the_best_on_every_replication(seed: int) -> None:
    """On one GPU nobody has a smaller mean; and all are busy for exactly as long."""
    trace = arrivals(two_exponentials(), jobs=300, load=0.8, seed=seed)
    found = {name: outcome_of(trace, "1x1", policy).records for name, policy in ALL.items()}

    mean_s = {name: float(records.jct_s.mean()) for name, records in found.items()}
    assert min(mean_s, key=lambda n: (mean_s[n], n != "srtf")) == "srtf"
    assert mean_s["srtf"] == pytest.approx(mean_s["srsf"])
    assert mean_s["fifo"] > 1.2 * mean_s["srtf"]
    assert mean_s["fifo"] == mean_s["fifo_skip"] == mean_s["fewest_gpus"]
    last_s = [float(records.end_s.max()) for records in found.values()]
    np.testing.assert_allclose(last_s, last_s[0], rtol=0, atol=1e-6)


def one_or_twenty(rng: np.random.Generator, n: int) -> F64:
    """Sizes of 1, one in ten of 20: once a job is past 1 its hazard only rises."""
    return np.where(rng.random(n) < 0.9, 1.0, 20.0)


def paired(law: Law, load: float, jobs: int, first: Policy, second: Policy) -> tuple[F64, F64]:
    """Mean responses of two policies on the same eight streams."""
    means = []
    for seed in range(8):
        trace = arrivals(law, jobs=jobs, load=load, seed=100 + seed)
        means.append(
            [float(outcome_of(trace, "1x1", p).records.jct_s.mean()) for p in (first, second)]
        )
    columns = np.array(means).T
    return columns[0], columns[1]


def test_gittins_beats_least_attained_service_where_the_hazard_rises() -> None:
    """Sizes 1 or 20, one in ten large: significantly, by paired replications."""
    law = Law(one_or_twenty, lambda x: x, 20.0)
    gittins = Gittins(sizes_gpu_s=(1.0,) * 9 + (20.0,), quantum_s=0.5)
    index, las = paired(law, 0.25, 200, gittins, Las(quantum_s=0.5))

    # Ratios: what a stream does to both is divided out.
    gain = np.log(las / index)
    assert gain.mean() > T_999[7] * gain.std(ddof=1) / math.sqrt(8)
    assert gain.mean() > math.log(1.1)


def test_gittins_is_fifo_where_all_sizes_are_equal() -> None:
    """Who has begun is nearest to the end; job by job the ends of FIFO."""
    trace = arrivals(constant(), jobs=400, load=0.8, seed=31)
    index = outcome_of(trace, "1x1", Gittins(sizes_gpu_s=(1.0,), quantum_s=0.125)).records
    fifo = outcome_of(trace, "1x1", Fifo()).records

    np.testing.assert_allclose(index.end_s, fifo.end_s, rtol=0, atol=1e-6)
    assert not index.preemptions.any()


def test_gittins_is_least_attained_service_where_the_hazard_falls() -> None:
    """Two exponentials, told as their quantiles: the means of the two differ by little."""
    law = two_exponentials()
    x = np.linspace(0, 60, 600_001)
    levels = (np.arange(1000) + 0.5) / 1000
    quantiles = np.interp(levels, 1 - law.tail(x), x)
    gittins = Gittins(sizes_gpu_s=tuple(quantiles.tolist()), quantum_s=0.1)
    index, las = paired(law, 0.6, 250, gittins, Las(quantum_s=0.1))

    assert index.mean() == pytest.approx(las.mean(), rel=0.05)
    fifo, _ = paired(law, 0.6, 250, Fifo(), Fifo())
    assert fifo.mean() > 1.2 * las.mean()
