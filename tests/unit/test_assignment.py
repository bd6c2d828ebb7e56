"""One option for each job: the program and its relaxation against brute force, and speed."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest

from slurm_dl.policies.arithmetic.assignment import Assigned, Options, assign

GPUS, KIND = np.array([1.0, 2, 4, 1, 2]), np.array([0, 0, 0, 1, 1])
CAPACITY = np.array([4.0, 2.0])


def best(options: Options, n: int, capacity: np.ndarray) -> float:
    """The most that any choice is worth, by trying all."""
    choices = [[-1, *np.flatnonzero(options.job == job).tolist()] for job in range(n)]
    found = 0.0
    for choice in itertools.product(*choices):
        if fits(options, np.array(choice), capacity):
            found = max(found, worth_of(options, np.array(choice)))
    return found


def worth_of(options: Options, option: np.ndarray) -> float:
    """The sum over what is given."""
    return float(options.worth[option[option >= 0]].sum())


def fits(options: Options, option: np.ndarray, capacity: np.ndarray) -> bool:
    """True if the GPUs of each type, and those of all, suffice."""
    at = option[option >= 0]
    typed = at[options.kind[at] >= 0]
    used = np.bincount(options.kind[typed], options.gpus[typed], len(capacity))
    return bool((used <= capacity).all() and options.gpus[at].sum() <= capacity.sum())


@pytest.mark.parametrize("typed", [True, False], ids=["two types", "one pool"])
def test_the_program_finds_what_brute_force_finds(*, typed: bool) -> None:
    """200 cases of each, four jobs; the relaxation is feasible, and its bound is one."""
    draw, gaps = np.random.default_rng(62), []
    for _ in range(200):
        options = Options(
            job=np.repeat(np.arange(4), 5),
            gpus=np.tile(GPUS, 4),
            kind=np.tile(KIND, 4) if typed else np.full(20, -1),
            worth=draw.random(20) * 2 - 0.3,
        )
        most = best(options, 4, CAPACITY)
        exact = assign(options, 4, CAPACITY)
        rounded = assign(options, 4, CAPACITY, relaxed=True)

        assert exact.worth == pytest.approx(most)
        assert rounded.bound >= most - 1e-6
        gaps.append(1 - rounded.worth / most)
        for found in (exact, rounded):
            assert fits(options, found.option, CAPACITY)
            assert found.worth == pytest.approx(worth_of(options, found.option))
            given = found.option[found.option >= 0]
            assert options.job[given].tolist() == np.flatnonzero(found.option >= 0).tolist()
    assert max(gaps) < 0.5
    assert np.mean(gaps) < 0.03


def drawn(jobs: int, gpus: float, types: int) -> tuple[Options, np.ndarray]:
    """As many jobs with concave speeds in 11 sizes on each type; goodput^-0.5 against 1.1."""
    draw, sizes = np.random.default_rng(62), np.array([1.0, 2, 4, *range(8, 72, 8)])
    rate = sizes ** draw.uniform(0.6, 1, (jobs, 1))
    by_type = np.linspace(1, 3, types)[:, None] * draw.uniform(0.8, 1.2, (jobs, types, 1))
    options = Options(
        job=np.repeat(np.arange(jobs), types * len(sizes)),
        gpus=np.tile(sizes, jobs * types),
        kind=np.tile(np.repeat(np.arange(types), len(sizes)), jobs),
        worth=(1.1 - (rate[:, None, :] * by_type) ** -0.5).ravel(),
    )
    return options, np.full(types, gpus / types)


def timed(jobs: int, gpus: float, types: int, *, relaxed: bool) -> tuple[float, Assigned]:
    """Seconds of the faster of two answers, and the answer."""
    options, capacity = drawn(jobs, gpus, types)
    took_s = []
    for _ in range(2):
        start_s = time.perf_counter()
        found = assign(options, jobs, capacity, relaxed=relaxed)
        took_s.append(time.perf_counter() - start_s)
    assert fits(options, found.option, capacity)
    return min(took_s), found


def test_the_relaxation_of_a_large_cluster_is_near_its_bound() -> None:
    """2,000 jobs on 10,000 GPUs of three types, against the exact program of 200 jobs."""
    exact_s, exact = timed(200, 512, 3, relaxed=False)
    large_s, large = timed(2000, 10_000, 3, relaxed=True)

    assert exact.worth == pytest.approx(exact.bound)
    assert 1 - large.worth / large.bound < 0.005
    # Some 0.2 s and 1.3 s; both are the solver's.
    assert large_s < 60 * exact_s


def test_nothing_is_given_where_nothing_fits_or_adds_anything() -> None:
    options = Options(
        job=np.array([0, 0, 1]),
        gpus=np.array([8.0, 1, 1]),
        kind=np.array([0, 1, -1]),
        worth=np.array([5.0, 0.0, -1]),
    )

    for relaxed in (True, False):
        assert assign(options, 3, CAPACITY, relaxed=relaxed).option.tolist() == [-1, -1, -1]
