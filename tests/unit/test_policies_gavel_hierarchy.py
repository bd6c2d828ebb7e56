"""Water filling in two levels, against a brute force: CBC is asked of every job if it can rise."""

from __future__ import annotations

import dataclasses

import build
import numpy as np
import pytest
import shares_oracle as oracle

from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import F64
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.arithmetic import linear_programs
from slurm_dl.policies.gavel.hierarchy import GavelHierarchical, Inside, filled

WEIGHTS = (("x", 2.0), ("y", 1.0), ("z", 0.5))
BOTH = pytest.mark.parametrize("inside", ["fairness", "fifo"])


def cluster(
    gpus: list[float], accounts: list[str], capacity: list[float], rates: F64 | None = None
) -> Snapshot:
    """Waiting jobs of these accounts, in the order of their submission."""
    rows = [build.pending(i, g) for i, g in enumerate(gpus, 1)]
    texts = build.texts(account=dict(enumerate(accounts, 1)))
    seen = build.observed(rows, **build.node_of_each_type(capacity), texts=texts)
    return dataclasses.replace(build.snapshot(seen), rates=rates)


def drawn(seed: int, k: int) -> Snapshot:
    """Jobs of three accounts on two types, some of them alike."""
    draw = np.random.default_rng(seed)
    rates = draw.uniform(0.3, 4.0, (k, 2)) * (draw.random((k, 2)) < 0.9)
    gpus = draw.choice([1.0, 2.0], k)
    accounts = draw.choice(["x", "y", "z"], k)
    rates[0], gpus[0], accounts[0] = rates[-1], gpus[-1], accounts[-1]
    capacity = draw.choice([2.0, 3.0, 5.0], 2).tolist()
    return cluster(gpus.tolist(), accounts.tolist(), capacity, rates)


def gains(snap: Snapshot) -> F64:
    """``(n, t)`` GPUs x rate over the throughput of the equal split; 0 for who can run nowhere."""
    gpus, capacity = snap.jobs.gpus, snap.seen.nodes.gpus
    can = snap.rates.any(axis=1)
    split = capacity / capacity.sum() * min(1.0, capacity.sum() / gpus[can].sum())
    fair = snap.rates @ split
    return snap.rates * (gpus / np.where(fair > 0, fair, 1.0))[:, None]


def brute(snap: Snapshot, inside: Inside) -> F64:
    """``(n,)`` the levels all jobs end at."""
    gain, gpus, capacity = gains(snap), snap.jobs.gpus, snap.seen.nodes.gpus
    tenant = [snap.seen.texts[JobId(j)].account for j in snap.jobs.job_id.tolist()]
    left = gain.any(axis=1).nonzero()[0].tolist()
    everybody, level = list(left), np.zeros(len(gain))
    while left:
        rise = dict.fromkeys(left, 0.0)
        for name, weight in WEIGHTS:
            mine = [m for m in left if tenant[m] == name]
            for m in mine if inside == "fairness" else mine[:1]:
                rise[m] = weight / len(mine) if inside == "fairness" else weight
        rows = [(m, gain[m], float(level[m]), rise.get(m, 0.0)) for m in everybody]
        found = oracle.Shares(gpus, gain > 0, capacity).largest_level(rows)
        assert found is not None
        for m in left:
            level[m] += found * rise[m]
        stuck = []
        for m in (m for m in left if rise[m] > 0):
            shares = oracle.Shares(gpus, gain > 0, capacity)
            for other in everybody:
                shares.holds(shares.dot(other, gain[other]) >= level[other] * (1 - 1e-9))
            most = shares.largest(shares.dot(m, gain[m]))
            if most is None or most < level[m] + 1e-5:
                stuck.append(m)
        assert stuck
        left = [m for m in left if m not in stuck]
    return level


@BOTH
@pytest.mark.parametrize("seed", range(6))
def test_every_level_is_that_of_the_brute_force(seed: int, inside: Inside) -> None:
    """Weights, jobs that are alike, jobs that run on one type only."""
    snap = drawn(seed, 3 + seed % 3)

    found = GavelHierarchical(weights=WEIGHTS, inside=inside).solved(snap)

    assert found.how == "solved"
    assert (gains(snap) * found.share).sum(axis=1) == pytest.approx(brute(snap, inside), abs=2e-5)


def test_accounts_are_served_by_weight_whatever_the_number_of_their_jobs() -> None:
    """Six GPUs at 2 to 1: four for the two jobs of x, two for the four of y."""
    snap = cluster([4.0] * 6, ["x", "x", "y", "y", "y", "y"], [6.0])

    share = GavelHierarchical(weights=(("x", 2.0),)).order(snap).share

    assert share == pytest.approx(np.array([[0.5]] * 2 + [[0.125]] * 4))


def test_first_come_first_served_inside_an_account() -> None:
    """Of six GPUs x has four: its first job runs always; y has two, half its first job's time."""
    snap = cluster([4.0] * 6, ["x", "x", "y", "y", "y", "y"], [6.0])

    share = GavelHierarchical(weights=(("x", 2.0),), inside="fifo").order(snap).share

    assert share[:, 0] == pytest.approx([1, 0, 0.5, 0, 0, 0])


@BOTH
def test_what_an_account_cannot_use_goes_to_the_others(inside: Inside) -> None:
    """One job of one GPU is all that x has."""
    snap = cluster([1.0, 4.0, 4.0], ["x", "y", "y"], [5.0])

    share = GavelHierarchical(weights=(("x", 9.0),), inside=inside).order(snap).share

    assert share[0, 0] == pytest.approx(1.0)
    assert share[1:, 0].sum() == pytest.approx(1.0)


@BOTH
def test_parts_keep_the_weights_of_accounts(
    inside: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where their jobs are not spread evenly over the parts: x has a fifth of the jobs."""
    monkeypatch.setattr(linear_programs, "ALL_LEVELS_UP_TO", 1000)
    draw = np.random.default_rng(2)
    accounts = ["x" if i % 5 == 0 else "y" for i in range(150)]
    rates = draw.uniform(0.9, 1.1, (150, 2))
    snap = cluster([4.0] * 150, accounts, [40.0, 40.0], rates)
    policy = GavelHierarchical(weights=(("x", 3.0),), inside=inside, split_above=40)

    found = policy.solved(snap)

    assert found.how == "parts"
    of_x = found.share[::5].sum() * 4
    assert found.share.sum() * 4 == pytest.approx(80.0, rel=1e-3)
    assert of_x == pytest.approx(60.0, rel=0.1)


def test_many_jobs_in_order_of_arrival_are_served_in_slices() -> None:
    """Ten GPUs of each type for x, five for y; earlier jobs of an account are full before later."""
    k = linear_programs.ALL_LEVELS_UP_TO + 20
    draw = np.random.default_rng(4)
    accounts = ["x" if i % 2 else "y" for i in range(k)]
    rates = draw.uniform(0.5, 4.0, (k, 2))
    snap = cluster([2.0] * k, accounts, [15.0, 15.0], rates)

    found = GavelHierarchical(weights=(("x", 2.0),), inside="fifo").solved(snap)

    assert found.how == "parts"
    for name, slice_gpus in (("x", 10.0), ("y", 5.0)):
        mine = found.share[[a == name for a in accounts]]
        assert 2 * mine.sum(axis=0) == pytest.approx([slice_gpus] * 2)
        whole = mine.sum(axis=1)
        assert (np.diff(whole) <= 1e-9).all()
        assert whole.max() <= 1 + 1e-9
        assert ((whole > 1 - 1e-9) | (whole < 1e-9)).sum() >= len(whole) - 1
    # The first of y has its faster type to itself.
    first = found.share[0]
    assert first[rates[0].argmax()] == pytest.approx(1.0)


@pytest.mark.parametrize("seed", range(4))
def test_slices_are_exact_for_one_type(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same as raising all levels where there is nothing to choose."""
    draw = np.random.default_rng(seed)
    accounts = draw.choice(["x", "y", "z"], 9).tolist()
    snap = cluster(draw.choice([1.0, 2.0], 9).tolist(), accounts, [6.0])
    policy = GavelHierarchical(weights=WEIGHTS, inside="fifo")

    exact = policy.order(snap).share
    monkeypatch.setattr(linear_programs, "ALL_LEVELS_UP_TO", 1)

    assert policy.order(snap).share == pytest.approx(exact, abs=1e-6)


def test_where_not_all_levels_are_raised_nothing_is_idle() -> None:
    """A hundred and twenty jobs that could all run: they do."""
    k = linear_programs.ALL_LEVELS_UP_TO + 20
    rates = np.random.default_rng(3).uniform(0.5, 4.0, (k, 2))
    snap = cluster([1.0] * k, ["x", "y"] * (k // 2), [k / 2, k], rates)

    found = GavelHierarchical(levels=1).solved(snap)

    assert found.how == "solved"
    assert found.share.sum(axis=1) == pytest.approx(np.ones(k))


def test_without_time_nobody_is_favoured() -> None:
    """The proportional share, and it is said."""
    snap = drawn(1, 5)
    found = GavelHierarchical(limit_s=1e-7).solved(snap)
    assert found.how == "proportional"


def test_room_is_filled_by_weight() -> None:
    """Who asks for less than his part leaves the rest to the others."""
    asked, weight = np.array([1.0, 10.0, 10.0]), np.array([1.0, 1.0, 2.0])
    assert filled(asked, weight, 7.0) == pytest.approx([1.0, 2.0, 4.0])
    assert filled(asked, weight, 50.0) == pytest.approx(asked)
