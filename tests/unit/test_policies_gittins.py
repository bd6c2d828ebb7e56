"""The Gittins index: the definition by brute force, known laws, and the table of the policy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import build
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pasts import past_columns

from slurm_dl.engine.intent import intend
from slurm_dl.model.completed_jobs import Past
from slurm_dl.policies.gittins import Gittins, gittins_index, past_sizes
from slurm_dl.policies.las import Las

F64 = npt.NDArray[np.float64]


def ratio(sizes: list[float], age: float, quantum: float) -> float:
    """P(S - a <= D | S > a) / E[min(S - a, D) | S > a], summed size by size."""
    left = [s - age for s in sizes if s > age]
    chance = sum(1 for x in left if x <= quantum) / len(left)
    return chance / (sum(min(x, quantum) for x in left) / len(left))


def index_by_brute_force(sizes: list[float], age: float) -> float:
    """The largest ratio over a fine grid of D, and over the D at which a size is reached."""
    left = [s - age for s in sizes if s > age]
    if not left:
        return 0.0
    grid = np.linspace(0, 1.5 * max(left), 400)[1:].tolist()
    return max(ratio(sizes, age, d) for d in [*grid, *left])


@pytest.mark.parametrize(("age", "expected"), [(0, 1 / 12), (4, 1 / 8), (8, 1 / 4)])
def test_the_ratio_at_a_fixed_quantum_has_its_known_values(age: float, expected: float) -> None:
    """Sizes 4, 8, 12 and D = 4: the brute force of these tests itself, against hand arithmetic."""
    assert ratio([4.0, 8.0, 12.0], age, 4.0) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("age", "expected"),
    [
        # 3 done for 4 + 8 + 12; 2 done for 4 + 8; 1 done for 4.
        (0, 3 / 24),
        (4, 2 / 12),
        (8, 1 / 4),
        (11.5, 2.0),
        (12, 0.0),
        (99, 0.0),
    ],
)
def test_the_index_takes_the_best_quantum(age: float, expected: float) -> None:
    """Sizes 4, 8, 12: going on to the end of all beats a quantum of 4 at ages 0 and 4."""
    assert gittins_index(np.array([12.0, 4.0, 8.0]), age) == pytest.approx(expected)


@settings(max_examples=150)
@given(
    sizes=st.lists(st.integers(1, 60).map(lambda k: k / 4), min_size=1, max_size=12),
    age=st.integers(0, 70).map(lambda k: k / 4),
)
def test_the_index_equals_brute_force(sizes: list[float], age: float) -> None:
    """No D is better than those looked at; sizes may be equal, unsorted, and equal to the age."""
    found = gittins_index(np.array(sizes), age)

    assert found == pytest.approx(index_by_brute_force(sizes, age), rel=1e-12)


def quantiles(inverse_tail: F64) -> F64:
    """Sizes at evenly spaced quantiles, increasing."""
    return np.sort(inverse_tail)


@given(
    sizes=st.lists(st.floats(0.5, 1000), min_size=1, max_size=8),
    age=st.floats(0, 1100),
    factor=st.sampled_from([0.25, 2.0, 1024.0]),
)
def test_the_index_is_a_rate(sizes: list[float], age: float, factor: float) -> None:
    """In another unit of service it is so much smaller; a sample told twice is the same."""
    column = np.array(sizes)
    found = gittins_index(column, age)

    assert gittins_index(column * factor, age * factor) == pytest.approx(found / factor)
    assert gittins_index(np.repeat(column, 2), age) == pytest.approx(found)


def keys(policy: Gittins, service: list[float]) -> list[float]:
    """The policy's keys for running jobs of one GPU with so much service."""
    rows = [build.running(i + 1) for i in range(len(service))]
    column = {i + 1: s for i, s in enumerate(service)}
    snap = build.snapshot(build.observed(rows), memory={"attained_gpu_s": column, "ran_s": column})
    return [float(key) for key in policy.order(snap).key]


@settings(max_examples=25, deadline=None)
@given(sizes=st.lists(st.floats(1, 1000), min_size=1, max_size=8))
def test_the_table_holds_the_index_at_its_sizes(sizes: list[float]) -> None:
    """At age 0, at each size, and beyond: what is looked up is what is computed."""
    ages = [0.0, *sizes, 2 * max(sizes)]
    found = keys(Gittins(sizes_gpu_s=tuple(sizes)), ages)

    index = [gittins_index(np.array(sizes), age) for age in ages]
    assert found == pytest.approx([1 / i if i else math.inf for i in index])


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.floats(100, 1000), min_size=1, max_size=6),
    share=st.floats(0.02, 0.9),
)
@example(sizes=[100.0, 100.00000000000001], share=0.5)
@example(sizes=[100.00000000000001, 100.0, 100.0], share=0.9)
def test_between_sizes_the_table_is_nearly_exact(sizes: list[float], share: float) -> None:
    """What is looked up is the cost of one more finished job, or up to 7 % less."""
    wide = [1.0, *sizes]
    age = share * max(sizes)
    found = keys(Gittins(sizes_gpu_s=tuple(wide)), [age])[0]

    exact = 1 / gittins_index(np.array(wide), age)
    assert exact * 0.93 - 1e-9 <= found <= exact * (1 + 1e-9) + 1e-9


@pytest.mark.parametrize("dimensions", [1, 2])
def test_service_is_seconds_or_gpu_seconds(dimensions: Literal[1, 2]) -> None:
    """A job of 4 GPUs that ran 2 s is at 2 or at 8 of the sizes 1, 8 and 50."""
    snap = build.snapshot(
        build.observed([build.running(1, 4)]),
        memory={"attained_gpu_s": {1: 8.0}, "ran_s": {1: 2.0}},
    )
    policy = Gittins(sizes_gpu_s=(1.0, 8.0, 50.0), dimensions=dimensions)
    key = float(policy.order(snap).key[0])

    # At 2: one of two done for 6 + 6. At 8: the last one done for 42.
    assert key == pytest.approx({1: 12.0, 2: 42.0}[dimensions], rel=0.01)


@given(service=st.lists(st.floats(0, 1e5), min_size=1, max_size=12))
def test_without_sizes_the_order_is_least_attained_service(service: list[float]) -> None:
    """Nothing is known of sizes, so nothing but service counts."""
    rows = [build.pending(i + 1) for i in range(len(service))]
    memory = {"attained_gpu_s": {i + 1: s for i, s in enumerate(service)}}
    snap = build.snapshot(build.observed(rows), memory=memory)

    assert intend(snap, Gittins()).ranked.tolist() == intend(snap, Las()).ranked.tolist()


def test_a_turn_is_a_quantum_while_somebody_waits() -> None:
    """Index or not, the order may change with every second of service."""
    policy = Gittins(sizes_gpu_s=(5.0,), quantum_s=60)
    snap = build.snapshot(build.observed([build.running(1), build.pending(2)]))
    order = policy.order(snap)

    assert policy.next_change_s(snap, order, np.array([True, False])) == build.NOW_S + 60
    assert policy.next_change_s(snap, order, np.array([True, True])) == math.inf
    assert policy.next_change_s(snap, order, np.array([False, False])) == math.inf


@pytest.mark.parametrize("sizes", [(100.0,), (90.0, 100.0)])
def test_who_is_nearer_the_end_goes_first_where_sizes_are_alike(sizes: tuple[float, ...]) -> None:
    """At age 50 the index is nearly twice that at 10, however narrow the sizes are."""
    found = keys(Gittins(sizes_gpu_s=sizes), [10.0, 50.0])

    assert found[1] < found[0]


def index_by_quadrature(tail: Callable[[F64], F64], age: float, longest: float) -> float:
    """The largest over D of P(S - a <= D | S > a) / E[min(S - a, D) | S > a], by the tail alone.

    E[min(X, D)] is the integral of P(X > x) from 0 to D: the trapezoidal rule, on a fine grid that
    gives the supremum over D as well.
    """
    x = np.linspace(0.0, longest - age, 200_001)
    alive = tail(age + x) / tail(np.array([age]))
    expected = np.append(0.0, np.cumsum((alive[1:] + alive[:-1]) / 2 * np.diff(x)))
    return float(((1 - alive)[1:] / expected[1:]).max())


def two_humps(x: F64) -> F64:
    """P(S > x): half of the sizes even between 1 and 3, half between 20 and 24."""
    return 0.5 * np.clip((3 - x) / 2, 0, 1) + 0.5 * np.clip((24 - x) / 4, 0, 1)


def weibull(x: F64) -> F64:
    """P(S > x) where the chance of finishing rises with age."""
    return np.exp(-((x / 10) ** 3))


def heavy(x: F64) -> F64:
    """P(S > x) where it falls: two exponentials."""
    return 0.7 * np.exp(-x / 2) + 0.3 * np.exp(-x / 20)


@pytest.mark.parametrize(
    ("tail", "longest", "ages"),
    [
        (two_humps, 24.0, (0.0, 0.9, 2.0, 3.5, 10.0, 19.0, 21.0)),
        (weibull, 40.0, (0.0, 3.0, 8.0, 12.0)),
        (heavy, 300.0, (0.0, 1.0, 5.0, 15.0)),
    ],
    ids=["two humps", "weibull", "hyperexponential"],
)
def test_the_index_equals_numeric_integration_of_its_definition(
    tail: Callable[[F64], F64], longest: float, ages: tuple[float, ...]
) -> None:
    """Continuous laws, known to the index by 4000 quantiles, to the quadrature by their tail.

    At a quantile: just before one the index of so many single sizes is another.
    """
    x = np.linspace(0.0, longest, 400_001)
    levels = np.arange(1, 4001) / 4001
    sizes = np.interp(levels, 1 - tail(x), x)

    at = [0.0, *sizes[sizes.searchsorted(ages[1:])].tolist()]
    found = [gittins_index(sizes, age) for age in at]
    expected = [index_by_quadrature(tail, age, longest) for age in at]
    assert found == pytest.approx(expected, rel=0.03)


def keys_after(policy: Gittins, past: Past) -> list[float]:
    """The policy's keys for jobs of one GPU with more and more service, after that past."""
    service = {i: 37.0 * (i - 1) for i in range(1, 9)}
    snap = build.snapshot(
        build.observed([build.running(i) for i in service]),
        memory={"attained_gpu_s": service, "ran_s": service},
        past=past,
    )
    return [float(key) for key in policy.order(snap).key]


@pytest.mark.parametrize("dimensions", [1, 2])
def test_sizes_are_those_of_the_jobs_that_are_over(dimensions: Literal[1, 2]) -> None:
    """Thirty of them are a distribution, 29 are none; given sizes go before."""
    ran_s = [5.0 + (7 * i) % 90 for i in range(30)]
    policy = Gittins(dimensions=dimensions)
    least_attained = [37.0 * i for i in range(8)]
    sizes = tuple(ran_s if dimensions == 1 else [4 * s for s in ran_s])
    told = Gittins(sizes_gpu_s=sizes, dimensions=dimensions)
    other = Gittins(sizes_gpu_s=(1000.0,), dimensions=dimensions)

    assert keys_after(policy, past_columns(ran_s, gpus=4)) == keys_after(told, past_columns([]))
    assert keys_after(policy, past_columns(ran_s[1:], gpus=4)) == least_attained
    assert keys_after(other, past_columns(ran_s, gpus=4)) == keys_after(other, past_columns([]))


def test_of_many_finished_jobs_the_quantiles_stand_for_all() -> None:
    """200 of 5000, whatever order they ended in; no share of jobs is off by more than a 400th."""
    random = np.random.default_rng(3)
    ran_s = np.exp(random.normal(5, 2, 5000))
    found = np.array(past_sizes(past_columns(ran_s, gpus=2), 2))

    assert len(found) == 200
    assert found.tolist() == list(past_sizes(past_columns(random.permutation(ran_s), gpus=2), 2))
    everywhere = np.sort(np.append(2 * ran_s, found))
    of_all = np.sort(2 * ran_s).searchsorted(everywhere, side="right") / 5000
    of_these = found.searchsorted(everywhere, side="right") / 200
    assert np.abs(of_all - of_these).max() <= 1 / 400 + 1 / 5000
