"""Programs with pairs, beside a plain model of all jobs and all pairs that fit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pytest
from scipy import optimize

from slurm_dl.model.jobs import F64
from slurm_dl.model.pair_rates import PairRates
from slurm_dl.policies.arithmetic import linear_programs, lp_pairs
from slurm_dl.policies.arithmetic.linear_programs import Pool, Solved


class Case(NamedTuple):
    """A pool with pairs, and what the objectives need."""

    pool: Pool
    rates: F64  # (k, t)
    left: F64  # (k,)
    past: F64  # (k,)


def drawn(seed: int, jobs: int = 12) -> Case:
    """Up to *jobs* jobs, some of them alike, on one to three types."""
    random = np.random.default_rng(seed)
    t, c = int(random.integers(1, 4)), int(random.integers(2, 6))
    kind = random.integers(-1, c, int(random.integers(2, jobs + 1)))
    rates_of, gpus_of = random.uniform(0.2, 3.0, (c + 1, t)), random.choice([1.0, 1.0, 2.0], c + 1)
    rates_of[random.random((c + 1, t)) < 0.1] = 0.0
    rates_of[:, 0] += 0.1
    rate = random.uniform(0.3, 1.0, (c, c, t)) * (random.random((c, c, t)) < 0.8)
    capacity = random.integers(2, 5, t).astype(np.float64)
    rates = rates_of[kind]
    pool = linear_programs.pool(np.arange(len(kind)), gpus_of[kind], rates, capacity)
    pairs = PairRates(kind=kind.astype(np.int32), rate=rate)
    left_of, past_of = random.uniform(1, 9, c + 1), random.uniform(0, 2, c + 1)
    return Case(
        dataclasses.replace(pool, pairs=pairs),
        np.where(pool.may, rates, 0.0),
        left_of[kind],
        past_of[kind],
    )


class Plain:
    """Every job alone and every pair of as many GPUs, on every type: one variable each."""

    def __init__(self, case: Case, gain: F64, *, alone: bool = False) -> None:
        pool, k = case.pool, len(case.left)
        assert pool.pairs is not None
        teams: list[tuple[int, ...]] = [(m,) for m in range(k)]
        teams += [] if alone else [
            (a, b) for a, b in combinations(range(k), 2)
            if pool.gpus[a] == pool.gpus[b] and min(pool.pairs.kind[[a, b]]) >= 0
        ]  # fmt: skip
        columns = [(team, j) for team in teams for j in range(len(pool.capacity))]
        self.gain = np.zeros((k, len(columns)))
        self.rows = np.zeros((k + len(pool.capacity), len(columns)))
        self.bounds = np.concatenate([np.ones(k), pool.capacity])
        for at, (team, j) in enumerate(columns):
            self.rows[k + j, at] = pool.gpus[team[0]]
            for one, other in zip(team, team[::-1], strict=True):
                self.rows[one, at] = 1.0
                speed = 1.0
                if len(team) > 1:
                    a, b = pool.pairs.kind[[one, other]]
                    speed = min(pool.pairs.rate[a, b, j], pool.pairs.rate[b, a, j])
                    speed = pool.pairs.rate[a, b, j] if speed > 0 else 0.0
                if pool.may[list(team), j].all():
                    self.gain[one, at] = speed * gain[one, j]

    def most(self, value: F64, floor: F64 | None = None) -> float | None:
        """The largest ``value . x``; None if the floors cannot be reached."""
        rows, bounds = self.rows, self.bounds
        if floor is not None:
            rows, bounds = np.vstack([rows, -self.gain]), np.concatenate([bounds, -floor])
        found = optimize.linprog(-value, A_ub=rows, b_ub=bounds, method="highs-ds")
        return -found.fun if found.status == 0 else None

    def max_min(self) -> float:
        """The largest least throughput."""
        k, v = self.gain.shape
        rows = np.block([[self.rows, np.zeros((len(self.rows), 1))], [-self.gain, np.ones((k, 1))]])
        cost = np.append(np.zeros(v), -1.0)
        bounds = np.concatenate([self.bounds, np.zeros(k)])
        return -optimize.linprog(cost, A_ub=rows, b_ub=bounds, method="highs-ds").fun

    def least_ratio(self, past: F64, coming: F64) -> float:
        """The least largest ratio, by halves."""
        low, high = float(past.max()), 1e3
        while high - low > 1e-9 * high:
            tried = (low + high) / 2
            there = self.most(np.zeros(self.gain.shape[1]), coming / (tried - past)) is not None
            low, high = (low, tried) if there else (tried, high)
        return high


def throughput(case: Case, gain: F64, found: Solved) -> F64:
    """``(k,)`` of every job, where what was found keeps to the rules."""
    pool, k = case.pool, len(case.left)
    assert pool.pairs is not None
    pairs = list(
        zip(*(c.tolist() for c in (
            found.paired.first, found.paired.second, found.paired.kind, found.paired.share
        )), strict=True)
    )  # fmt: skip
    alone, used = found.share.copy(), np.zeros(len(pool.capacity))
    got = np.zeros(k)
    for a, b, j, share in pairs:
        assert a != b
        assert pool.gpus[a] == pool.gpus[b]
        one, other = pool.pairs.kind[[a, b]]
        assert min(pool.pairs.rate[one, other, j], pool.pairs.rate[other, one, j], share) > 0
        alone[[a, b], j] -= share
        got[a] += gain[a, j] * pool.pairs.rate[one, other, j] * share
        got[b] += gain[b, j] * pool.pairs.rate[other, one, j] * share
        used[j] += pool.gpus[a] * share
    assert alone.min() >= -1e-7
    assert found.share.sum(axis=1).max() <= 1 + 1e-9
    assert (used + pool.gpus @ alone <= pool.capacity * (1 + 1e-7)).all()
    total: F64 = got + (gain * alone).sum(axis=1)
    return total


def classed(case: Case, solve: Callable[..., Solved], *columns: F64) -> Solved:
    return linear_programs.by_classes(case.pool, columns, lambda pool, some: solve(pool, *some))


@pytest.mark.parametrize("seed", range(50))
def test_every_objective_is_that_of_a_plain_model_with_all_pairs(seed: int) -> None:
    """So no optimum loses by the pairs that are left out, nor by classes."""
    case = drawn(seed)
    by_left = case.rates / case.left[:, None]

    level = throughput(case, case.rates, classed(case, linear_programs.max_min, case.rates)).min()
    assert level == pytest.approx(Plain(case, case.rates).max_min(), rel=1e-6)
    assert level >= Plain(case, case.rates, alone=True).max_min() * (1 - 1e-6)

    makespan = 1 / throughput(case, by_left, classed(case, linear_programs.max_min, by_left)).min()
    assert makespan == pytest.approx(1 / Plain(case, by_left).max_min(), rel=1e-6)

    found = classed(case, linear_programs.max_sum, case.rates)
    plain = Plain(case, case.rates)
    total = throughput(case, case.rates, found).sum()
    assert total == pytest.approx(plain.most(plain.gain.sum(axis=0)), rel=1e-6)

    found = classed(case, linear_programs.min_max_ratio, case.rates, case.past, case.left)
    ratio = (case.past + case.left / throughput(case, case.rates, found)).max()
    assert ratio == pytest.approx(plain.least_ratio(case.past, case.left), rel=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_interior_answers_are_as_good(seed: int) -> None:
    case = drawn(seed)
    k = len(case.left)
    level = linear_programs.raise_level(
        case.pool, case.rates, floor=np.zeros(k), rise=np.ones(k), interior=True
    )
    assert level is not None
    reached = throughput(case, case.rates, level.solved).min()
    assert reached == pytest.approx(Plain(case, case.rates).max_min(), rel=1e-5)

    found = linear_programs.least_ratio(case.pool, case.rates, past=case.past, coming=case.left)
    ratio = (case.past + case.left / throughput(case, case.rates, found)).max()
    assert ratio == pytest.approx(
        Plain(case, case.rates).least_ratio(case.past, case.left), rel=1e-5
    )


def test_of_many_jobs_each_keeps_its_best_partners() -> None:
    """210 kinds of one job each on 30 GPUs: fewer variables, and nearly as good."""
    random = np.random.default_rng(3)
    k = 210
    rates = random.uniform(0.5, 2.0, (k, 1))
    pool = linear_programs.pool(np.arange(k), np.ones(k), rates, np.array([30.0]))
    rate = random.uniform(0.4, 0.9, (k, k, 1))
    pairs = PairRates(kind=np.arange(k, dtype=np.int32), rate=rate)

    columns = lp_pairs.pair_columns(pairs, gpus=pool.gpus, may=pool.may, count=pool.count)

    sums = pairs.sums()[:, :, 0] - 9 * np.eye(k)
    partners = np.zeros((k, k), dtype=np.bool_)
    partners[columns.first, columns.second] = partners[columns.second, columns.first] = True
    best = np.sort(sums, axis=1)[:, -8]
    assert (partners == ((sums >= best[:, None]) | (sums >= best))).all()
    whole = dataclasses.replace(pool, pairs=pairs)
    level = [linear_programs.max_min(one, rates, levels=1) for one in (pool, whole)]
    case = Case(whole, rates, np.ones(k), np.zeros(k))
    least = throughput(case, rates, level[1]).min()
    alone = (rates * level[0].share).sum(axis=1).min()
    assert alone * 1.3 < least <= alone * sums.max()
