"""Which two jobs may share a GPU, against the papers' figures and a search of our own."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_dl.model.ids import JobId
from slurm_dl.model.profile import Load, Profile
from slurm_dl.placement.gpu_packing import (
    GpuTenant,
    PairLimits,
    label_of,
    memory_of_pair_mb,
    rank_of,
    speed_of_pair,
    why_apart,
)

A100 = PairLimits(gpu_mem_mb=40_000.0)


def model(
    name: str,
    *,
    peak: float | None = 10_000,
    kept: float | None = None,
    **more: Any,  # noqa: ANN401
) -> Profile:
    """A tiny model of 10 GB, if nothing else is said."""
    values = {"label": 0, **more}
    return Profile(name=name, load=Load(gpu_mem_mb=peak, gpu_mem_kept_mb=kept), **values)


def half(job_id: int, profile: Profile | None, share: float = 0.5) -> GpuTenant:
    """A job with half a GPU."""
    return GpuTenant(job_id=JobId(job_id), share=share, profile=profile)


def best_host(guest: GpuTenant, hosts: Iterable[tuple[GpuTenant, PairLimits]]) -> JobId | None:
    """The host of the least rank; None if none may be joined."""
    ranks = [rank_of(host, guest, limits) for host, limits in hosts]
    return min((JobId(rank[2]), rank)[::-1] for rank in ranks if rank)[1] if any(ranks) else None


@pytest.mark.parametrize(
    ("speed", "label"), [(1.0, 0), (0.95, 0), (0.949, 1), (0.85, 1), (0.84, 2)]
)
def test_labels_are_lucids(speed: float, label: int) -> None:
    """Mean speeds of neighbours from 0.95 are a 0, from 0.85 a 1, below that a 2."""
    assert label_of(speed) == label


@pytest.mark.parametrize("speed", [-0.1, float("nan"), float("inf")])
def test_a_label_needs_a_speed(speed: float) -> None:
    """What is no relative speed has no label."""
    with pytest.raises(ValueError, match="relative speed"):
        label_of(speed)


def test_memory_between_iterations_adds_up_and_inside_one_the_larger_counts() -> None:
    """Salus' test: sum of kept + max of (peak - kept); with one of them unknown, sum of peaks."""
    one, other = Load(gpu_mem_mb=20_000, gpu_mem_kept_mb=8_000), Load(gpu_mem_mb=18_000)

    assert memory_of_pair_mb(one, other) == 38_000
    other = Load(gpu_mem_mb=18_000, gpu_mem_kept_mb=12_000)
    assert memory_of_pair_mb(one, other) == 8_000 + 12_000 + 12_000
    assert memory_of_pair_mb(one, Load()) is None


_OTHER = model("other")
APART: Mapping[str, tuple[GpuTenant, GpuTenant, PairLimits, str]] = {
    "unknown model": (half(1, None), half(2, _OTHER), A100, "not known"),
    "unknown guest": (half(1, _OTHER), half(2, None), A100, "not known"),
    "a quarter": (half(1, _OTHER), half(2, _OTHER, 0.25), A100, "third could join"),
    "three quarters": (half(1, _OTHER), half(2, _OTHER, 0.75), A100, "do not fit"),
    "no label": (half(1, model("m", label=None)), half(2, _OTHER), A100, "no label"),
    "labels 1 + 2": (
        half(1, model("m", label=1)),
        half(2, model("n", label=2)),
        A100,
        "more than 2",
    ),
    "memory": (half(1, model("m", peak=30_001)), half(2, _OTHER), A100, "40001 MB"),
    "unknown memory": (half(1, model("m", peak=None)), half(2, _OTHER), A100, "one of them takes"),
    "unknown GPU": (half(1, _OTHER), half(2, _OTHER), PairLimits(), "memory of the GPU"),
    "measured slow": (
        half(1, model("m", beside={"n": 0.4})),
        half(2, model("n", beside={"m": 0.59})),
        A100,
        "0.99 of the speed",
    ),
    "lost before": (
        half(1, model("m")),
        half(2, model("n")),
        PairLimits(gpu_mem_mb=40_000, lost=frozenset({frozenset({"n", "m"})})),
        "tried together",
    ),
    "host loses too much": (
        half(1, model("m", beside={"n": 0.9})),
        half(2, model("n", beside={"m": 0.9})),
        PairLimits(gpu_mem_mb=40_000, max_host_slowdown=0.03),
        "would lose 10%",
    ),
    "host's loss unknown": (
        half(1, model("m")),
        half(2, model("n")),
        PairLimits(gpu_mem_mb=40_000, max_host_slowdown=0.03),
        "was not measured",
    ),
}


@pytest.mark.parametrize("case", APART)
def test_what_keeps_two_apart(case: str) -> None:
    """Each condition alone is enough, and says so."""
    host, guest, bounds, why = APART[case]

    assert why in why_apart(host, guest, bounds)


def test_what_may_share() -> None:
    """At the edge of every bound a pair is still one."""
    tiny = model("tiny", peak=20_000, beside={"jumbo": 0.5})
    jumbo = model("jumbo", peak=20_000, label=2, beside={"tiny": 0.5})
    exact = model("m", beside={"m": 0.97})

    assert why_apart(half(1, jumbo), half(2, tiny), A100) == ""
    assert why_apart(half(1, tiny), half(2, jumbo), A100) == ""
    medium = model("medium", label=1)
    assert why_apart(half(1, medium), half(2, medium), A100) == ""
    bounds = PairLimits(gpu_mem_mb=40_000, max_host_slowdown=0.03)
    assert why_apart(half(1, exact), half(2, exact), bounds) == ""


def test_only_the_host_is_protected_by_the_bound() -> None:
    """AntMan's bound is for the one that was there first; who comes may lose more."""
    host, guest = model("h", beside={"g": 0.99}), model("g", beside={"h": 0.6})
    bounds = PairLimits(gpu_mem_mb=40_000, max_host_slowdown=0.03)

    assert why_apart(half(1, host), half(2, guest), bounds) == ""
    assert why_apart(half(2, guest), half(1, host), bounds)


def test_the_best_sum_of_speeds_then_the_least_memory_left_then_the_lowest_id() -> None:
    """In that order, and whatever the order in which the hosts are listed."""
    guest = half(9, model("g", beside={"fast": 0.99, "slow": 0.8}))
    fast = model("fast", beside={"g": 0.99})
    slow = model("slow", peak=29_000, beside={"g": 0.8})
    full = model("full", peak=25_000)
    hosts = [
        (half(1, slow), A100),
        (half(2, full), A100),
        (half(3, full), PairLimits(gpu_mem_mb=80_000)),
        (half(4, full), A100),
        (half(5, fast), A100),
    ]

    for listed in itertools.permutations(hosts):
        assert best_host(guest, listed) == 5
        assert best_host(guest, [h for h in listed if h[0].job_id != 5]) == 2
    assert best_host(guest, hosts[:1]) == 1
    assert best_host(guest, []) is None


def test_a_speed_without_figures_is_none() -> None:
    """A label of the neighbour stands in for a measured speed, and nothing stands in for both."""
    assert speed_of_pair(model("a"), model("b", label=1)) == 0.85 + 0.95
    with pytest.raises(ValueError, match="nothing says"):
        speed_of_pair(model("a"), model("b", label=None))


names = st.sampled_from(["a", "b", "c"])
profiles = st.builds(
    lambda name, label, peak, kept, beside: Profile(
        name=name,
        label=label,
        load=Load(gpu_mem_mb=peak, gpu_mem_kept_mb=None if kept is None else peak and peak * kept),
        beside=beside,
    ),
    names,
    st.sampled_from([None, 0, 1, 2]),
    st.sampled_from([None, 10_000.0, 20_000.0, 25_000.0]),
    st.sampled_from([None, 0.25, 0.5]),
    st.dictionaries(names, st.sampled_from([0.3, 0.6, 0.9, 1.0])),
)
shares = st.sampled_from([0.25, 0.5, 0.75])
tenants = st.tuples(st.none() | profiles, shares)
bounds = st.builds(
    PairLimits,
    gpu_mem_mb=st.sampled_from([None, 30_000.0, 40_000.0]),
    max_host_slowdown=st.sampled_from([None, 0.1, 0.4]),
    lost=st.frozensets(st.frozensets(names, min_size=1, max_size=2), max_size=2),
)


@given(guest=tenants, hosts=st.lists(st.tuples(tenants, bounds), max_size=5))
def test_the_host_is_the_one_that_a_plain_search_finds(
    guest: tuple[Profile | None, float],
    hosts: list[tuple[tuple[Profile | None, float], PairLimits]],
) -> None:
    """The conditions written down once more, one after the other, and every host tried."""
    found: tuple[float, float, int] | None = None
    for at, ((host, share), limits) in enumerate(hosts):
        value = _value(host, share, guest, limits)
        if value is not None and (found is None or (*value, at) < found):
            found = (*value, at)
    listed = [(half(at, p, share), limits) for at, ((p, share), limits) in enumerate(hosts)]

    assert best_host(half(99, *guest), listed) == (None if found is None else found[2])


def _value(
    host: Profile | None, share: float, guest: tuple[Profile | None, float], limits: PairLimits
) -> tuple[float, float] | None:
    """Minus the sum of speeds and the memory left; None if the two may not share."""
    other = guest[0]
    if host is None or other is None or (share, guest[1]) != (0.5, 0.5):
        return None
    if host.label is None or other.label is None or limits.gpu_mem_mb is None:
        return None
    a, b = host.load, other.load
    if a.gpu_mem_mb is None or b.gpu_mem_mb is None:
        return None
    used = a.gpu_mem_mb + b.gpu_mem_mb
    if a.gpu_mem_kept_mb is not None and b.gpu_mem_kept_mb is not None:
        used = max(a.gpu_mem_mb + b.gpu_mem_kept_mb, b.gpu_mem_mb + a.gpu_mem_kept_mb)
    speeds = (host.beside.get(other.name), other.beside.get(host.name))
    bad = host.label + other.label in (3, 4) or used > limits.gpu_mem_mb
    bad |= {host.name, other.name} in [set(pair) for pair in limits.lost]
    bad |= None not in speeds and sum(s or 0 for s in speeds) < 1
    if limits.max_host_slowdown is not None:
        bad |= speeds[0] is None or speeds[0] < 1 - limits.max_host_slowdown - 1e-9
    floors = {0: 0.95, 1: 0.85, 2: 0.5}
    total = (floors[other.label] if speeds[0] is None else speeds[0]) + (
        floors[host.label] if speeds[1] is None else speeds[1]
    )
    return None if bad else (-total, limits.gpu_mem_mb - used)
