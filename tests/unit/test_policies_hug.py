"""HUG: the guarantee and the second stage against linear programs, and the shares of jobs."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence

import build
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_dl.model.jobs import JobRow
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.hug import Hug, guarantee, hug, progress

F64 = npt.NDArray[np.float64]


def cluster(
    rows: Sequence[JobRow],
    accounts: Mapping[int, str],
    *,
    supply: Sequence[float] = (16.0,),
    credit_s: Sequence[Sequence[float]] | None = None,
) -> Snapshot:
    """One node of 64 CPUs and 1000 MB for each type."""
    texts = build.texts(account=accounts)
    seen = build.observed(rows, **build.node_of_each_type(supply), texts=texts)
    return build.snapshot(seen, credit_s=None if credit_s is None else np.array(credit_s))


def shares(snap: Snapshot, policy: Hug) -> F64:
    """``(n, t)`` shares, that are some."""
    share = policy.order(snap).share
    assert (share >= 0).all()
    assert (share.sum(axis=1) <= 1 + 1e-12).all()
    return share


ELASTIC = 1000.0
"""Times its demand vector a tenant wants more than there is."""

EXAMPLE = np.array([[1.0, 0.5], [1 / 6, 1.0]]) * ELASTIC


def test_the_example_of_the_paper() -> None:
    """P* is 2/3; of the first resource 2/9 are left, which the second tenant may have."""
    assert guarantee(EXAMPLE) == pytest.approx(2 / 3)

    apart = hug(EXAMPLE, cooperative=False)
    np.testing.assert_allclose(apart, [[2 / 3, 1 / 3], [1 / 3, 2 / 3]], rtol=1e-9)
    # Water-filling gives what is left to whom has least, so without the cap it is the same here.
    np.testing.assert_allclose(hug(EXAMPLE, cooperative=True), apart, rtol=1e-9)


def test_the_cap_leaves_idle_what_a_lie_would_win() -> None:
    """Two tenants that need the first only, one of them a little of the second: nobody over P*."""
    want = np.array([[1.0, 0.0], [1.0, 0.1]]) * ELASTIC
    assert guarantee(want) == pytest.approx(0.5)

    np.testing.assert_allclose(hug(want, cooperative=False), [[0.5, 0.0], [0.5, 0.5]])
    np.testing.assert_allclose(hug(want, cooperative=True), [[0.5, 0.0], [0.5, 1.0]])


def program(want: F64, *, elastic: bool, cooperative: bool) -> tuple[float, float]:
    """P* and the most that can be used in stage 2, by linear programs."""
    import pulp  # noqa: PLC0415 - slow to import

    k, kinds = want.shape
    demand = want / want.max(axis=1, keepdims=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # PuLP 4 is announced.
        first = pulp.LpProblem("isolation", pulp.LpMaximize)
        level = pulp.LpVariable("p", 0)
        first += level
        for r in range(kinds):
            first += level * float(demand[:, r].sum()) <= 1
        first.solve(pulp.PULP_CBC_CMD(msg=False))
        sure = float(pulp.value(level))

        second = pulp.LpProblem("use", pulp.LpMaximize)
        c = [[pulp.LpVariable(f"c{u}_{r}", 0) for r in range(kinds)] for u in range(k)]
        second += pulp.lpSum(c[u][r] for u in range(k) for r in range(kinds))
        for r in range(kinds):
            second += pulp.lpSum(c[u][r] for u in range(k)) <= 1
            for u in range(k):
                least = sure if elastic else min(sure, float(want[u].max()))
                second += c[u][r] >= least * float(demand[u, r]) - 1e-9
                second += c[u][r] <= float(want[u, r])
                if not cooperative:
                    second += c[u][r] <= sure
        second.solve(pulp.PULP_CBC_CMD(msg=False))
        assert pulp.LpStatus[second.status] == "Optimal"
        return sure, float(pulp.value(second.objective))


VECTORS = st.lists(
    st.tuples(*(st.integers(1, 12).map(lambda x: x / 8) for _ in range(3))), min_size=1, max_size=4
)


@settings(max_examples=12, deadline=None)
@given(vectors=VECTORS, elastic=st.booleans(), cooperative=st.booleans())
def test_both_stages_equal_linear_programs(
    vectors: list[tuple[float, float, float]], *, elastic: bool, cooperative: bool
) -> None:
    """P* is the highest progress all can have; stage 2 uses all that may be used."""
    want = np.array(vectors) * (ELASTIC if elastic else 1.0)
    sure, most = program(want, elastic=elastic, cooperative=cooperative)
    has = hug(want, cooperative=cooperative)

    assert guarantee(want) == pytest.approx(min(1.0, sure))
    assert has.sum() == pytest.approx(most, rel=1e-5)


@settings(max_examples=100)
@given(vectors=VECTORS, cooperative=st.booleans())
def test_the_guarantee_holds_and_nothing_is_given_twice(
    vectors: list[tuple[float, float, float]], *, cooperative: bool
) -> None:
    """Everybody's progress is P* or all it wants; capped if tenants do not cooperate."""
    want = np.array(vectors)
    has, sure = hug(want, cooperative=cooperative), guarantee(want)

    assert (has.sum(axis=0) <= 1 + 1e-9).all()
    assert (has <= want + 1e-12).all()
    # Progress in units of what each needs most.
    gets = progress(has, want) * want.max(axis=1)
    assert (gets >= np.minimum(sure, want.max(axis=1)) - 1e-9).all()
    if not cooperative:
        assert (has <= sure + 1e-9).all()
    else:
        # Work-conserving: where anybody wants more, that resource is used up.
        wanted = (has < want - 1e-9).any(axis=0)
        assert (has.sum(axis=0)[wanted] >= 1 - 1e-9).all()


@settings(max_examples=100)
@given(
    vectors=st.lists(
        st.tuples(st.integers(1, 12), st.integers(1, 12), st.integers(1, 12)),
        min_size=2,
        max_size=4,
    ),
    lie=st.tuples(st.integers(1, 12), st.integers(1, 12), st.integers(1, 12)),
)
def test_without_cooperation_no_lie_about_the_demand_pays(
    vectors: list[tuple[int, int, int]], lie: tuple[int, int, int]
) -> None:
    """True progress under a false demand is never above that under the true one."""
    truth = np.array(vectors, dtype=np.float64) * ELASTIC
    false = truth.copy()
    false[0] = np.array(lie, dtype=np.float64) * ELASTIC

    honest = progress(hug(truth, cooperative=False), truth)[0]
    assert progress(hug(false, cooperative=False), truth)[0] <= honest * (1 + 1e-9)


# ---- shares of jobs ---------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    jobs=st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.sampled_from([1, 2, 4, 8]),
            st.sampled_from([1, 8, 32]),
            st.sampled_from([0, 100, 500]),
        ),
        min_size=1,
        max_size=10,
    ),
    cooperative=st.booleans(),
)
def test_jobs_can_have_their_shares_and_tenants_their_guarantee(
    jobs: list[tuple[str, int, int, int]], *, cooperative: bool
) -> None:
    """No resource is promised twice; each tenant's dominant share is P* or all it wants."""
    rows = [build.pending(i + 1, g, cpus=c, mem_mb=m) for i, (_, g, c, m) in enumerate(jobs)]
    snap = cluster(rows, {i + 1: a for i, (a, *_) in enumerate(jobs)})
    part = np.array([[g / 16, c / 64, m / 1000] for _, g, c, m in jobs])
    given_ = part * shares(snap, Hug(cooperative=cooperative)).sum(axis=1, keepdims=True)

    assert (given_.sum(axis=0) <= 1 + 1e-9).all()
    names = sorted({a for a, *_ in jobs})
    own = [[a == name for a, *_ in jobs] for name in names]
    want = np.array([part[mask].sum(axis=0) for mask in own])
    sure = 1 / (want / want.max(axis=1, keepdims=True)).sum(axis=0).max()
    for u, mask in enumerate(own):
        assert given_[mask].sum(axis=0).max() >= min(sure, want[u].max()) - 1e-9
        if not cooperative:
            assert given_[mask].sum(axis=0).max() <= sure + 1e-9


def test_what_one_tenant_does_not_want_goes_to_the_other_if_they_cooperate() -> None:
    """A tenant wants 2 of 16 GPUs, the other all of them; P* is a half."""
    rows = [build.pending(1, 2), build.pending(2, 16)]
    snap = cluster(rows, {1: "a", 2: "b"})

    np.testing.assert_allclose(shares(snap, Hug()).ravel(), [1.0, 14 / 16])
    np.testing.assert_allclose(shares(snap, Hug(cooperative=False)).ravel(), [1.0, 0.5])


def test_a_share_is_spread_over_the_types_a_job_can_run_on() -> None:
    """By what those leave that can run on fewer; nothing where it asks for another."""
    rows = [build.pending(1, 4, gpu_type=1), build.pending(2, 4)]
    share = shares(cluster(rows, {1: "a", 2: "b"}, supply=(12.0, 8.0)), Hug())

    np.testing.assert_allclose(share, [[0, 1], [0.75, 0.25]])


def test_without_cooperation_who_has_had_its_share_starts_no_more() -> None:
    """Of those that wait: who is owed something after the coming lease may start."""
    rows = [build.pending(1, 8), build.pending(2, 8), build.running(3, 8), build.pending(4, 8)]
    accounts = {**dict.fromkeys((1, 2, 3, 4), "a"), 5: "b"}
    credit_s = [[-400.0], [-200.0], [-400.0], [-300.0], [0.0]]
    snap = cluster([*rows, build.running(5, 1)], accounts, credit_s=credit_s)

    # 32 GPUs are wanted of the 8 of tenant a: a quarter of the time, 300 s of a lease.
    order = Hug(cooperative=False).order(snap)
    assert order.barred.tolist() == [True, False, False, True, False]
    assert Hug().order(snap).barred is None
    fresh = Hug(cooperative=False).order(dataclasses.replace(snap, credit_s=None))
    assert not fresh.barred.any()


@pytest.mark.parametrize(
    ("running", "waiting", "barred"),
    [
        ([4, 3], [1, 1, 1], [False, True, True]),  # 8 of 16 are its guarantee.
        ([4, 3], [2, 1], [True, True]),  # Who comes later does not overtake.
        ([], [12, 1], [False, True]),  # Or it would never start.
        ([8], [1, 8], [True, False]),  # Only 7 are free: it takes turns with the first.
    ],
)
def test_without_cooperation_a_tenant_starts_nothing_above_its_guarantee(
    running: list[int], waiting: list[int], barred: list[bool]
) -> None:
    """The other tenant has one job of one GPU; alone the first would have all 16."""
    rows = [build.running(i, g) for i, g in enumerate(running, 1)]
    rows += [build.pending(i, g) for i, g in enumerate(waiting, len(rows) + 1)]
    accounts = dict.fromkeys(range(1, len(rows) + 1), "a")
    both = cluster([*rows, build.running(99, 1)], {**accounts, 99: "b"})

    order = Hug(cooperative=False).order(both)
    assert order.barred.tolist() == [*[False] * len(running), *barred, False]
    assert not Hug(cooperative=False).order(cluster(rows, accounts)).barred.any()


def test_a_tenant_alone_has_everything_whatever_it_had() -> None:
    """Two leases of debt, and nobody else is there."""
    rows = [build.pending(1, 4), build.pending(2, 4)]
    alone = cluster(rows, dict.fromkeys((1, 2), "a"), credit_s=[[-2400.0]] * 2)

    assert not Hug(cooperative=False).order(alone).barred.any()
