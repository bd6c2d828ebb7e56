"""DRF: the example of the paper, a twin that looks at everything, and what is fair about it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import build
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_dl.engine.intent import intend
from slurm_dl.model.jobs import Held, JobRow, JobState
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.arithmetic.dominant_shares import fluid_progress
from slurm_dl.policies.drf import Drf, launch_order

F64 = npt.NDArray[np.float64]


def cluster(
    rows: Sequence[JobRow],
    accounts: Mapping[int, str],
    *,
    gpus: float = 16,
    cpus: int = 64,
    mem_mb: int = 1000,
    up: bool = True,
) -> Snapshot:
    """One node; accounts by job id."""
    columns = {"up": [up], "cpus": [cpus], "mem_mb": [mem_mb]}
    texts = build.texts(account=accounts)
    return build.snapshot(build.observed(rows, nodes=[gpus], columns=columns, texts=texts))


def served(snap: Snapshot, policy: Drf | None = None) -> list[int]:
    """Ids of the waiting jobs in the order of their keys."""
    key = (policy or Drf()).order(snap).key
    waits = [i for i in np.argsort(key, kind="stable") if math.isfinite(key[i]) and key[i] >= 0]
    return [int(snap.jobs.job_id[i]) for i in waits]


def test_the_example_of_the_paper() -> None:
    """9 CPUs, 18 GB; tasks of (1, 4) and of (3, 1): 3 and 2 tasks fit, dominant shares 2/3 each."""
    a = [build.pending(i, 0.001, cpus=1, mem_mb=4) for i in range(1, 6)]
    b = [build.pending(i, 0.001, cpus=3, mem_mb=1) for i in range(6, 11)]
    accounts = {**dict.fromkeys(range(1, 6), "a"), **dict.fromkeys(range(6, 11), "b")}
    order = served(cluster([*a, *b], accounts, cpus=9, mem_mb=18))

    first = order[:5]
    # As in the paper's table, with A first where shares are equal: A B A B A.
    assert first == [1, 6, 2, 7, 3]
    assert 3 * 4 / 18 == 2 * 3 / 9 == pytest.approx(2 / 3)
    # Nothing more fits: 9 of the 9 CPUs are used. The rest goes on by the same rule.
    assert order[5:] == [4, 8, 5, 9, 10]


def order_by_looking(
    part: Sequence[Sequence[float]],
    tenant: Sequence[int],
    used: Sequence[Sequence[float]],
    weight: Sequence[float],
    room: Sequence[float],
) -> list[int]:
    """At every step look at every tenant, and count everything anew."""
    left = list(range(len(part)))
    order: list[int] = []
    for must_fit in (True, False):
        while True:
            best: tuple[float, int, int] | None = None
            for u in range(len(used)):
                own = [j for j in left if tenant[j] == u]
                if not own:
                    continue
                had = [j for j in order if tenant[j] == u]
                total = [used[u][r] + sum(part[j][r] for j in had) for r in range(len(room))]
                free = [room[r] - sum(part[j][r] for j in order) for r in range(len(room))]
                if must_fit and any(part[own[0]][r] > free[r] + 1e-6 for r in range(len(room))):
                    continue
                entry = (round(max(total) / weight[u], 9), u, own[0])
                best = entry if best is None else min(best, entry)
            if best is None:
                break
            order.append(best[2])
            left.remove(best[2])
    return order


@settings(max_examples=100)
@given(
    jobs=st.lists(
        st.tuples(st.integers(0, 2), *(st.integers(0, 16) for _ in range(3))),
        min_size=1,
        max_size=12,
    ),
    used=st.lists(st.tuples(*(st.integers(0, 10) for _ in range(3))), min_size=3, max_size=3),
    weight=st.lists(st.sampled_from([0.5, 1.0, 4.0]), min_size=3, max_size=3),
)
def test_the_heap_equals_looking_at_every_tenant(
    jobs: list[tuple[int, int, int, int]],
    used: list[tuple[int, int, int]],
    weight: list[float],
) -> None:
    """Parts are multiples of 1/32, so that sums are exact."""
    part = [[x / 32 for x in j[1:]] for j in jobs]
    tenant = [j[0] for j in jobs]
    had = [[x / 32 for x in u] for u in used]
    room = [1 - sum(u[r] for u in had) for r in range(3)]

    found = launch_order(
        np.array(part), np.array(tenant), np.array(had), np.array(weight), np.array(room)
    )
    assert found.tolist() == order_by_looking(part, tenant, had, weight, room)


def test_what_runs_counts_and_is_not_displaced() -> None:
    """Tenant a holds half of the GPUs, so b goes first; what runs keeps its GPUs."""
    rows = [build.running(1, 8), build.pending(2, 4), build.pending(3, 4), build.pending(4, 4)]
    snap = cluster(rows, {1: "a", 2: "a", 3: "b", 4: "b"})

    assert served(snap) == [3, 4, 2]
    assert snap.jobs.job_id[intend(snap, Drf()).target].tolist() == [1, 3, 4]


def test_jobs_of_other_partitions_and_without_gpus_count_as_used() -> None:
    """They are no business of the policy, but of the tenant's share; also while they complete."""
    others = (
        build.running(1, 4, partition=1),
        build.running(1, 0, cpus=16),
        build.running(1, 0, mem_mb=250),
        dataclasses.replace(build.running(1, 4), state=JobState.COMPLETING),
    )
    for other in others:
        snap = cluster([other, build.pending(2, 2), build.pending(3, 2)], {1: "a", 2: "a", 3: "b"})
        assert served(snap) == [3, 2]


def test_the_scarcest_resource_decides() -> None:
    """Tenant a has few GPUs but nearly all the memory; of GPUs alone it would go first."""
    rows = [
        build.running(1, 1, mem_mb=900),
        build.running(2, 8, mem_mb=50),
        build.pending(3, 1),
        build.pending(4, 1),
    ]
    assert served(cluster(rows, {1: "a", 2: "b", 3: "a", 4: "b"})) == [4, 3]


def test_weights_part_the_cluster() -> None:
    """Weights 3 and 1: twelve GPUs and four."""
    rows = [build.pending(i) for i in range(1, 41)]
    accounts = {i: "a" if i <= 20 else "b" for i in range(1, 41)}
    first = served(cluster(rows, accounts), Drf(weights=(("a", 3.0),)))[:16]

    assert sum(i <= 20 for i in first) == 12


def test_a_tenant_whose_next_job_does_not_fit_waits_for_the_others() -> None:
    """Tenant b has less, but its next job wants more than is left; what fits goes first."""
    rows = [build.running(1, 10), build.pending(2, 8), build.pending(3, 1), build.pending(4, 2)]
    snap = cluster(rows, {1: "a", 2: "b", 3: "b", 4: "a"})

    assert served(snap) == [4, 2, 3]


@settings(max_examples=60)
@given(
    want=st.lists(
        st.tuples(*(st.integers(0, 40).map(lambda x: x / 16) for _ in range(3))),
        min_size=1,
        max_size=5,
    ),
    weight=st.lists(st.sampled_from([1.0, 2.0, 5.0]), min_size=5, max_size=5),
)
def test_divided_shares_are_the_largest_in_turn(
    want: list[tuple[float, float, float]], weight: list[float]
) -> None:
    """Against bisection: raise the level as far as it fits, fix whom that stops, repeat."""
    weight = weight[: len(want)]
    found = fluid_progress(np.array(want), np.array(weight))
    np.testing.assert_allclose(found, progress_by_bisection(want, weight), atol=1e-6)


def progress_by_bisection(want: Sequence[Sequence[float]], weight: Sequence[float]) -> list[float]:
    """Lexicographic max-min of the weighted dominant shares."""
    fixed: dict[int, float] = {}

    def parts_at(level: float) -> list[float]:
        return [
            fixed.get(u, min(1.0, level * weight[u] / max(w)) if max(w) else 1.0)
            for u, w in enumerate(want)
        ]

    def use_at(level: float) -> list[float]:
        return [sum(p * w[r] for p, w in zip(parts_at(level), want, strict=True)) for r in range(3)]

    low = 0.0
    while len(fixed) < len(want):
        high = 100.0
        if max(use_at(high)) <= 1 + 1e-9:
            return parts_at(high)
        for _ in range(60):
            level = (low + high) / 2
            low, high = (level, high) if max(use_at(level)) <= 1 + 1e-9 else (low, level)
        full = [r for r in range(3) if use_at(low)[r] >= 1 - 1e-7]
        stopped = [u for u, w in enumerate(want) if any(w[r] > 0 for r in full) and u not in fixed]
        fixed |= {u: parts_at(low)[u] for u in stopped}
    return parts_at(low)


@settings(max_examples=30)
@given(tasks=st.lists(st.tuples(*(st.integers(1, 8) for _ in range(3))), min_size=2, max_size=4))
def test_with_small_tasks_the_order_comes_near_to_divided_shares(
    tasks: list[tuple[int, int, int]],
) -> None:
    """Each tenant has more tasks than fit; none is a hundredth of the cluster."""
    size = 1000.0
    part = np.array([t for t in tasks for _ in range(400)]) / size
    tenant = np.repeat(np.arange(len(tasks)), 400)
    k = len(tasks)
    order = launch_order(part, tenant, np.zeros((k, 3)), np.ones(k), np.ones(3))
    total = np.cumsum(part[order], axis=0)
    fits = order[(total <= 1 + 1e-9).all(axis=1)]
    got = np.array([part[fits[tenant[fits] == u]].sum(axis=0).max() for u in range(k)])

    want = np.array([[x * 400 / size for x in t] for t in tasks])
    level = fluid_progress(want, np.ones(k)) * want.max(axis=1)
    # All rise together until the first resource is used up: nobody is worse off than that.
    assert got.min() >= level.min() - 0.017


def test_odd_clusters_have_an_order() -> None:
    """No jobs; all nodes down; jobs larger than the cluster; held ones; no memory at all."""
    assert len(Drf().order(cluster([], {})).key) == 0
    rows = [build.pending(1, 99), build.pending(2), build.pending(3, held=Held.DEPENDENCY)]
    accounts = {1: "a", 2: "a", 3: "b"}
    assert served(cluster(rows, accounts)) == [1, 2]
    assert served(cluster(rows, accounts, up=False)) == [1, 2]
    assert served(cluster(rows, accounts, mem_mb=0)) == [1, 2]


def test_users_are_tenants_where_accounts_are_not_known() -> None:
    """Two users by turns."""
    rows = [build.pending(i, uid=i // 3) for i in (1, 2, 3, 4)]
    snap = build.snapshot(build.observed(rows))
    assert served(snap) == [1, 3, 2, 4]
