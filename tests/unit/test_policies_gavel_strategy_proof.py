"""Proportional fairness with shares held back: the best product, and no gain from false figures."""

from __future__ import annotations

import dataclasses
import itertools
import math

import build
import numpy as np
import pytest
import shares_oracle as oracle

from slurm_dl.model.jobs import F64
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.arithmetic import linear_programs
from slurm_dl.policies.gavel.strategy_proof import (
    GavelStrategyProof,
    discounts,
    proportionally_fair,
)


def cluster(gpus: list[float], capacity: list[float], rates: F64) -> Snapshot:
    """Waiting jobs on one node for each type."""
    rows = [build.pending(i, g) for i, g in enumerate(gpus, 1)]
    seen = build.observed(rows, **build.node_of_each_type(capacity))
    return dataclasses.replace(build.snapshot(seen), rates=rates)


def drawn(seed: int, k: int) -> tuple[linear_programs.Pool, F64, F64]:
    """A pool, its rates and weights."""
    draw = np.random.default_rng(seed)
    rates = draw.uniform(0.1, 4.0, (k, 3)) * (draw.random((k, 3)) < 0.85)
    rates[:, 0] = np.where(rates.any(axis=1), rates[:, 0], 1.0)
    pool = linear_programs.pool(
        np.arange(k), draw.choice([1.0, 2.0], k), rates, draw.choice([2.0, 4.0], 3)
    )
    return pool, np.where(pool.may, rates, 0.0), draw.uniform(0.5, 2.0, k)


@pytest.mark.parametrize("seed", range(15))
def test_no_other_shares_have_a_larger_product(seed: int) -> None:
    """A concave objective is at its best where its slope leads nowhere; CBC looks for a way."""
    pool, rates, weight = drawn(seed, 2 + seed % 6)

    share = proportionally_fair(pool, rates, weight)

    oracle.check_within(pool, share)
    slope = rates * (weight / (rates * share).sum(axis=1))[:, None]
    shares = oracle.of_pool(pool)
    best = shares.largest(sum(shares.dot(m, slope[m]) for m in range(len(pool))))
    assert best == pytest.approx(weight.sum(), rel=1e-6)


@pytest.mark.parametrize("seed", range(8))
def test_of_one_type_the_plain_rule_equals_newton_steps(seed: int) -> None:
    """Two ways to the same shares: those of one type by weight, and one more type that is useless.

    The second type has a speed of nearly nothing, so that it decides nothing.
    """
    draw = np.random.default_rng(seed)
    k = 2 + seed
    gpus, weight = draw.choice([1.0, 2.0, 4.0], k), draw.uniform(0.5, 2.0, k)
    one = linear_programs.pool(np.arange(k), gpus, np.ones((k, 1)), np.array([6.0]))
    two = linear_programs.pool(np.arange(k), gpus, np.ones((k, 2)), np.array([6.0, 6.0]))
    rates = np.tile([1.0, 1e-9], (k, 1))

    plain = proportionally_fair(one, np.ones((k, 1)), weight)[:, 0]
    steps = proportionally_fair(two, rates, weight)[:, 0]

    assert plain == pytest.approx(steps, abs=1e-4)
    assert plain.max() <= 1
    assert plain @ gpus == pytest.approx(min(6.0, gpus.sum()))


def test_types_that_are_alike_are_no_trouble() -> None:
    """How a job's time is split among them decides nothing, and rounding must not stop it."""
    for k, types in itertools.product((1, 2, 5), (2, 3)):
        rates = np.ones((k, types))
        pool = linear_programs.pool(np.arange(k), np.full(k, 2.0), rates, np.full(types, 8.0))

        share = proportionally_fair(pool, rates, np.ones(k))

        time = min(1.0, 8.0 * types / 2 / k)
        assert share.sum(axis=1) == pytest.approx(np.full(k, time), rel=1e-6)


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_jobs_that_want_the_same_keep_what_the_others_could_have(k: int) -> None:
    """One GPU, k jobs: each of k-1 others has (k-1)/k of what it would have without me."""
    snap = cluster([1.0] * k, [1.0], np.ones((k, 1)))

    share = GavelStrategyProof().order(snap).share

    kept = ((k - 1) / k) ** (k - 1)
    assert share == pytest.approx(np.full((k, 1), kept / k), rel=1e-5)


def test_a_job_that_hurts_nobody_keeps_all() -> None:
    """Each has the type it wants to itself."""
    snap = cluster([1.0, 1.0], [1.0, 1.0], np.array([[1.0, 0.0], [0.0, 1.0]]))
    assert GavelStrategyProof().order(snap).share == pytest.approx(np.eye(2), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_what_is_held_back_is_the_product_over_the_others(seed: int) -> None:
    """Job by job, each other one by itself; weights are exponents, over one's own."""
    pool, rates, weight = drawn(seed, 4)
    share = proportionally_fair(pool, rates, weight)

    kept = discounts(pool, rates, weight, share)

    for m in range(4):
        others = [i for i in range(4) if i != m]
        rest = linear_programs.pool(np.arange(3), pool.gpus[others], rates[others], pool.capacity)
        without = proportionally_fair(rest, rates[others], weight[others])
        product = 1.0
        for at, i in enumerate(others):
            ratio = (rates[i] @ share[i]) / (rates[i] @ without[at])
            product *= ratio ** (weight[i] / weight[m])
        assert kept[m] == pytest.approx(min(product, 1.0), rel=1e-5)


def test_jobs_that_are_alike_are_cut_as_if_each_stood_alone() -> None:
    """Two of one kind and three of another: the same as five jobs that differ by a hair."""
    kinds = np.array([[3.0, 1.0], [1.0, 1.0]])
    rates = kinds[[0, 0, 1, 1, 1]]
    hair = 1 + 1e-7 * np.arange(5)[:, None]

    alike = GavelStrategyProof().order(cluster([1.0] * 5, [1.0, 2.0], rates)).share
    apart = GavelStrategyProof().order(cluster([1.0] * 5, [1.0, 2.0], rates * [1.0, 1.0] * hair))

    assert alike == pytest.approx(apart.share, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_false_figures_never_pay(seed: int) -> None:
    """What a job then really gets is no more than the truth brings it; at least 1/e is kept."""
    pool, rates, _ = drawn(seed, 4)
    truth = np.ones(4)
    draw = np.random.default_rng(seed)

    def received(said: F64) -> tuple[float, float]:
        share = proportionally_fair(pool, said, truth)
        kept = discounts(pool, said, truth, share)
        return float(kept[0] * (rates[0] @ share[0])), float(kept.min())

    honest, least_kept = received(rates)
    assert least_kept >= 1 / math.e
    for _ in range(6):
        lie = rates.copy()
        lie[0] *= 10 ** draw.uniform(-1, 1, 3)
        assert received(lie)[0] <= honest * (1 + 1e-6)


def test_uncut_false_figures_would_pay() -> None:
    """Or the test above would show nothing: who names the type he likes less gets more."""
    rates = np.array([[1.0, 0.9], [1.0, 0.1]])
    pool = linear_programs.pool(np.arange(2), np.ones(2), rates, np.ones(2) * 0.5 + 0.5)
    lie = np.array([[1.0, 0.2], [1.0, 0.1]])

    honest, lied = (proportionally_fair(pool, said, np.ones(2))[0] for said in (rates, lie))

    assert rates[0] @ lied > rates[0] @ honest * 1.01


def test_above_so_many_classes_nothing_is_held_back() -> None:
    """The product alone; it is said in the policy's fallback."""
    pool, rates, _ = drawn(3, 6)
    snap = cluster(pool.gpus.tolist(), pool.capacity.tolist(), rates)
    fair = proportionally_fair(pool, rates, np.ones(6))

    uncut = GavelStrategyProof(discounts_up_to=5).order(snap).share
    cut = GavelStrategyProof(discounts_up_to=6).order(snap).share

    assert uncut == pytest.approx(fair, abs=1e-6)
    assert cut.sum() < fair.sum() * 0.95
