"""Which two jobs may share a GPU, against the papers' figures and a search of our own."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_dl.model.ids import JobId
from slurm_dl.model.pair_rates import PairRule
from slurm_dl.model.profile import Beside, Load, Profile
from slurm_dl.placement.gpu_packing import (
    GpuTenant,
    PairLimits,
    memory_of_pair_mb,
    rank_of,
    speed_of_pair,
    why_apart,
)

A100 = PairLimits(gpu_type="a100", gpu_mem_mb=40_000.0)
MPS = dataclasses.replace(A100, mode="mps")
LABELS = dataclasses.replace(
    A100, rule=PairRule(by_labels=True), labels={"a": 0, "b": 1, "c": 2, "d": None}
)
RATIO = dataclasses.replace(A100, rule=PairRule(most_ratio=2.0))


def model(
    name: str,
    *,
    peak: float | None = 10_000,
    kept: float | None = None,
    **more: Any,  # noqa: ANN401
) -> Profile:
    """A light model of 10 GB, if nothing else is said; *beside*: rates in slices by model."""
    beside = tuple(Beside(other=o, rate=r) for o, r in more.pop("beside", {}).items())
    load = Load(gpu_mem_mb=peak, gpu_mem_kept_mb=kept, gpu_util=more.pop("busy", 0.1))
    return Profile(name=name, load=load, beside=more.pop("pairs", beside), **more)


def half(job_id: int, profile: Profile | None, share: float = 0.5, **more: Any) -> GpuTenant:  # noqa: ANN401
    """A job with half a GPU."""
    return GpuTenant(job_id=JobId(job_id), share=share, profile=profile, **more)


def best_host(guest: GpuTenant, hosts: Iterable[tuple[GpuTenant, PairLimits]]) -> JobId | None:
    """The host of the least rank; None if none may be joined."""
    ranks = [rank_of(h, guest, limits) for h, limits in hosts if not why_apart(h, guest, limits)]
    return JobId(min(ranks)[2]) if ranks else None


def test_memory_between_iterations_adds_up_and_inside_one_the_larger_counts() -> None:
    """Salus' test: sum of kept + max of (peak - kept); with one of them unknown, sum of peaks."""
    one, other = Load(gpu_mem_mb=20_000, gpu_mem_kept_mb=8_000), Load(gpu_mem_mb=18_000)

    assert memory_of_pair_mb(one, other) == 38_000
    other = Load(gpu_mem_mb=18_000, gpu_mem_kept_mb=12_000)
    assert memory_of_pair_mb(one, other) == 8_000 + 12_000 + 12_000
    assert memory_of_pair_mb(one, Load()) is None


_OTHER, _SILENT = model("other"), model("m", busy=None)
_M, _N, _M_BUSY, _N_BUSY = model("m"), model("n"), model("m", busy=0.9), model("n", busy=0.9)
_T4 = dataclasses.replace(_OTHER, load=Load(gpu_type="t4", gpu_util=0, gpu_mem_mb=1))
_HOST, _GUEST, _LONG = half(1, _OTHER), half(2, _OTHER), half(2, _OTHER, left_gpu_s=201.0)
_NOTHING, _SAYS = Load(gpu_util=0.0, gpu_mem_mb=0), Load(gpu_util=0.1, gpu_mem_mb=10_000)
_ALL_BUSY = Load(gpu_util=1.0, gpu_mem_mb=1)
_STRANGER = half(1, None, own=_SAYS)
STRICT = dataclasses.replace(A100, least_speed=1.75)
LOSS = dataclasses.replace(A100, max_host_slowdown=0.03)
LOST = dataclasses.replace(A100, lost=frozenset({frozenset({"n", "m"}), frozenset({"", "m"})}))


def says(mem_mb: float) -> Load:
    """What a job measured of itself."""
    return Load(gpu_util=0.1, gpu_mem_mb=mem_mb)


def two(speed: float, others: float) -> tuple[GpuTenant, GpuTenant]:
    """Host m and guest n with their measured speeds."""
    return half(1, model("m", beside={"n": speed})), half(2, model("n", beside={"m": others}))


APART: Mapping[str, tuple[GpuTenant, GpuTenant, PairLimits, str]] = {
    "unknown host": (half(1, None), _GUEST, A100, "has not measured itself"),
    "unknown guest": (_HOST, half(2, None, own=_SAYS), A100, "not known"),
    "a quarter": (_HOST, half(2, _OTHER, 0.25), A100, "third could join"),
    "three quarters": (_HOST, half(2, _OTHER, 0.75), A100, "do not fit"),
    "two GPUs": (half(1, _OTHER, devices=2), _GUEST, A100, "parts of 2 GPUs"),
    "no speed": (half(1, _SILENT), _GUEST, A100, "nothing says how fast"),
    "its own word alone": (_HOST, half(2, _SILENT, own=_SAYS), A100, "nothing says how fast"),
    "says it is busier": (_HOST, half(2, _OTHER, own=_ALL_BUSY), STRICT, "1.74 of the speed"),
    "says it takes more": (half(1, _OTHER, own=says(30_001)), _GUEST, A100, "40001 MB"),
    "says it takes less": (
        _HOST, half(2, model("m", peak=30_001), own=_NOTHING), A100, "40001 MB",
    ),
    "says it is idle": (
        half(1, _M_BUSY, own=_NOTHING), half(2, _N_BUSY, own=_NOTHING), A100, "1.04 of the speed",
    ),
    "busy on another type": (half(1, _T4), _GUEST, A100, "nothing says how fast"),
    "and not what stays of it": (
        half(1, model("m", kept=5000), own=says(31_000)), half(2, model("n", kept=1000)), A100,
        "41000 MB",
    ),
    "no label": (half(1, model("d")), half(2, model("a")), LABELS, "no label"),
    "labels 1 + 2": (half(1, model("b")), half(2, model("c")), LABELS, "more than 2"),
    "a stranger's label": (
        half(1, None, own=_ALL_BUSY), half(2, model("b")), LABELS, "labels 2 and 1",
    ),
    "memory": (half(1, model("m", peak=30_001)), _GUEST, A100, "40001 MB"),
    "unknown memory": (half(1, model("m", peak=None)), _GUEST, A100, "one of them takes"),
    "unknown GPU": (_HOST, _GUEST, PairLimits(), "memory of the GPU"),
    "measured slow": (*two(0.4, 0.84), A100, "1.24 of the speed"),
    "they do not fit, as was measured": (*two(1.5, 0.0), A100, "do not fit"),
    "nor do labels make them": (
        half(1, model("a", beside={"b": 0.0})), half(2, model("b")), LABELS, "do not fit",
    ),
    "both heavy": (half(1, _M_BUSY), half(2, _N_BUSY), A100, "1.04 of the speed"),
    "lost before": (half(1, _M), half(2, _N), LOST, "tried together"),
    "lost beside no model": (_STRANGER, half(2, _M), LOST, "tried together"),
    "host loses too much": (*two(0.96, 0.99), LOSS, "would lose 4%"),
    "host's loss unknown": (half(1, _M), half(2, _N), LOSS, "was not measured"),
    "twice as long": (half(1, _OTHER, left_gpu_s=100.0), _LONG, RATIO, "more than 2 times"),
    "nobody knows how long": (_HOST, _GUEST, RATIO, "nobody knows"),
}  # fmt: skip


@pytest.mark.parametrize("case", APART)
def test_what_keeps_two_apart(case: str) -> None:
    """Each condition alone is enough, and says so."""
    host, guest, bounds, why = APART[case]

    assert why in why_apart(host, guest, bounds)


_EDGE = model("m", peak=20_000, beside={"m": 0.625})
_KEEPS = model("m", beside={"m": 0.97})
TOGETHER: Mapping[str, tuple[GpuTenant, GpuTenant, PairLimits]] = {
    "memory and speeds at their bounds": (half(1, _EDGE), half(2, _EDGE), A100),
    "labels 1 + 1": (half(1, model("b")), half(2, model("b")), LABELS),
    "labels 0 + 2, however slow": (half(1, model("c", busy=1)), half(2, model("a")), LABELS),
    "the host's loss": (half(1, _KEEPS), half(2, _KEEPS), LOSS),
    "exactly twice": (half(1, _OTHER, left_gpu_s=100.5), _LONG, RATIO),
    "a host without end": (_HOST, _LONG, RATIO),
    "a stranger that measured itself": (_STRANGER, _GUEST, A100),
    "a stranger by its label": (_STRANGER, half(2, model("b")), LABELS),
    "two GPUs each": (half(1, _OTHER, devices=2), half(2, _OTHER, devices=2), A100),
    "under MPS": (half(1, _M_BUSY), half(2, _N_BUSY), MPS),
}


@pytest.mark.parametrize("case", TOGETHER)
def test_what_may_share(case: str) -> None:
    """At the edge of every bound a pair is still one."""
    assert why_apart(*TOGETHER[case]) == ""


def test_only_the_host_is_protected_by_the_bound() -> None:
    """AntMan's bound is for the one that was there first; who comes may lose more."""
    host, guest = two(0.99, 0.6)

    assert why_apart(host, guest, LOSS) == ""
    assert why_apart(guest, host, LOSS)


def test_the_best_sum_of_speeds_then_the_least_memory_left_then_the_lowest_id() -> None:
    """In that order, and whatever the order in which the hosts are listed."""
    guest = half(9, model("g", beside={"fast": 0.99, "slow": 0.8}, label=0))
    fast = model("fast", beside={"g": 0.99})
    slow = model("slow", peak=29_000, beside={"g": 0.8})
    full = model("full", peak=25_000, busy=None, label=0)
    hosts = [
        (half(1, slow), A100),
        (half(2, full), A100),
        (half(3, full), dataclasses.replace(A100, gpu_mem_mb=80_000)),
        (half(4, full), A100),
        (half(5, fast), A100),
    ]

    for listed in itertools.permutations(hosts):
        assert best_host(guest, listed) == 5
        assert best_host(guest, [h for h in listed if h[0].job_id != 5]) == 2
    assert best_host(guest, hosts[:1]) == 1
    assert best_host(guest, []) is None


def test_the_host_that_started_first_where_the_rule_says_so() -> None:
    """Though another one would be faster, and has the lower id."""
    bounds = dataclasses.replace(A100, rule=PairRule(first_host=True))
    guest, slow, fast = half(9, model("g")), model("s", busy=0.5), model("f")
    hosts = [(half(1, fast, start_s=20.0), bounds), (half(2, slow, start_s=10.0), bounds)]

    assert best_host(guest, hosts) == 2
    assert best_host(guest, [(host, A100) for host, _ in hosts]) == 1


def test_the_sum_of_speeds_is_measured_else_expected_else_by_the_admins_labels() -> None:
    """In slices alone labels stand in; another mode or type of GPU has measurements of its own."""
    a, b = (
        model(
            name,
            busy=busy,
            label=0,
            pairs=(
                Beside(other=other, rate=slices),
                Beside(other=other, rate=mps, mode="mps", gpu_type="a100"),
            ),
        )
        for name, other, busy, slices, mps in (("a", "b", 0.8, 0.7, 0.9), ("b", "a", 0.6, 0.8, 1.0))
    )
    silent = model("c", busy=None, label=1)

    assert speed_of_pair(half(1, a), half(2, b), A100) == pytest.approx(1.5)
    assert speed_of_pair(half(1, a), half(2, b), MPS) == pytest.approx(1.9)
    v100 = dataclasses.replace(MPS, gpu_type="v100")
    assert speed_of_pair(half(1, a), half(2, b), v100) == pytest.approx(1.626)
    assert speed_of_pair(half(1, a), half(2, silent), A100) == pytest.approx(0.95 + 0.85)
    assert speed_of_pair(half(1, a), half(2, silent), MPS) is None


names = st.sampled_from(["a", "b", "c"])
sides = st.builds(
    Beside,
    other=names,
    rate=st.sampled_from([0.0, 0.3, 0.6, 0.9, 1.0, 1.3]),
    mode=st.sampled_from(["slices", "mps"]),
    gpu_type=st.sampled_from(["", "a100"]),
)
profiles = st.builds(
    lambda name, label, peak, kept, busy, beside: Profile(
        name=name,
        label=label,
        load=Load(
            gpu_mem_mb=peak,
            gpu_mem_kept_mb=None if kept is None else peak and peak * kept,
            gpu_util=busy,
            gpu_type="a100",
        ),
        beside=tuple({(b.other, b.mode, b.gpu_type): b for b in beside}.values()),
    ),
    names,
    st.sampled_from([None, 0, 1, 2]),
    st.sampled_from([None, 10_000.0, 20_000.0, 25_000.0]),
    st.sampled_from([None, 0.25, 0.5]),
    st.sampled_from([None, 0.1, 0.5, 0.9]),
    st.lists(sides, max_size=4),
)
owns = st.none() | st.builds(
    Load, gpu_util=st.sampled_from([0.0, 0.3, 1.0]), gpu_mem_mb=st.sampled_from([1.0, 22_000.0])
)
tenants = st.builds(
    GpuTenant,
    job_id=st.just(JobId(99)),
    share=st.sampled_from([*[0.5] * 8, 0.25, 0.75]),
    devices=st.sampled_from([*[1] * 8, 2]),
    profile=st.sampled_from([*[True] * 8, False]).flatmap(
        lambda is_known: profiles if is_known else st.none()
    ),
    own=owns,
    left_gpu_s=st.sampled_from([10.0, 20.0, 21.0, math.inf]),
    start_s=st.sampled_from([1.0, 2.0, math.inf]),
)
rules = st.builds(
    PairRule,
    by_labels=st.booleans(),
    most_ratio=st.sampled_from([None, 2.0]),
    first_host=st.booleans(),
)
bounds = st.builds(
    PairLimits,
    gpu_type=st.sampled_from(["a100", "v100"]),
    gpu_mem_mb=st.sampled_from([None, 30_000.0, 40_000.0]),
    mode=st.sampled_from(["slices", "mps"]),
    least_speed=st.sampled_from([1.0, 1.25]),
    max_host_slowdown=st.sampled_from([None, 0.1, 0.4]),
    rule=rules,
    labels=st.dictionaries(names, st.sampled_from([None, 0, 1, 2])),
    lost=st.frozensets(st.frozensets(names, min_size=1, max_size=2), max_size=2),
)


@settings(max_examples=400)
@given(guest=tenants, hosts=st.lists(tenants, max_size=5), limits=bounds)
def test_the_host_is_the_one_that_a_plain_search_finds(
    guest: GpuTenant, hosts: list[GpuTenant], limits: PairLimits
) -> None:
    """The conditions written down once more, one after the other, and every host tried."""
    listed = [dataclasses.replace(h, job_id=JobId(i)) for i, h in enumerate(hosts)]
    found = [(*value, h.job_id) for h in listed if (value := _value(h, guest, limits)) is not None]

    assert best_host(guest, [(h, limits) for h in listed]) == (min(found)[2] if found else None)


@settings(max_examples=400)
@given(host=tenants, guest=tenants, own=owns, limits=bounds)
def test_no_word_of_a_job_lets_it_join_where_its_profile_does_not(
    host: GpuTenant, guest: GpuTenant, own: Load | None, limits: PairLimits
) -> None:
    """Its pairs are among those that it has if it says nothing, whatever it says."""
    silent = dataclasses.replace(guest, own=None)

    if why_apart(host, silent, limits):
        assert why_apart(host, dataclasses.replace(guest, own=own), limits)


def _value(host: GpuTenant, guest: GpuTenant, limits: PairLimits) -> tuple[float, float] | None:
    """The rank of the pair but for the job id; None if the two may not share."""
    one, other, rule = host.profile, guest.profile, limits.rule
    if other is None or (host.share, guest.share) != (0.5, 0.5) or host.devices != guest.devices:
        return None
    if (one is None and host.own is None) or limits.gpu_mem_mb is None:
        return None
    a, b = _figures(host, limits.gpu_type), _figures(guest, limits.gpu_type)
    if a[0] is None or b[0] is None:
        return None
    used = a[0] + b[0]
    if a[1] is not None and b[1] is not None:
        used = max(a[0] + b[1], b[0] + a[1])
    speeds = _speed(one, other, limits), _speed(other, one, limits)
    total = _sum(host, guest, limits, speeds)
    bad = used > limits.gpu_mem_mb or 0.0 in speeds
    bad |= one is not None and {one.name, other.name} in [set(pair) for pair in limits.lost]
    if rule.by_labels:
        labels = _label(host, limits), limits.labels.get(other.name)
        bad |= None in labels or sum(label or 0 for label in labels) > 2
    else:
        bad |= total is None or total < limits.least_speed
    if limits.max_host_slowdown is not None:
        bad |= speeds[0] is None or speeds[0] < 1 - limits.max_host_slowdown - 1e-9
    if rule.most_ratio is not None:
        bad |= guest.left_gpu_s == math.inf or guest.left_gpu_s > 2 * host.left_gpu_s
    if bad:
        return None
    return (host.start_s if rule.first_host else -(total or 0.0), limits.gpu_mem_mb - used)


def _figures(job: GpuTenant, gpu_type: str) -> tuple[float | None, float | None, float | None]:
    """Peak and kept memory and busy share of a host or of a guest with a profile."""
    is_host = job.job_id != JobId(99)
    own_mem, own_busy = (None, None) if job.own is None else (job.own.gpu_mem_mb, job.own.gpu_util)
    if job.profile is None:
        return (own_mem, None, own_busy)
    load = job.profile.load
    peak, kept = load.gpu_mem_mb, load.gpu_mem_kept_mb
    busy = load.gpu_util if gpu_type == "a100" else None
    if own_mem is not None and (peak is not None or is_host) and own_mem > (peak or 0.0):
        peak, kept = own_mem, None
    if own_busy is not None and (busy is not None or is_host):
        busy = max(busy or 0.0, own_busy)
    return (peak, kept, busy)


def _speed(one: Profile | None, other: Profile | None, limits: PairLimits) -> float | None:
    if one is None or other is None:
        return None
    table = {(b.other, b.mode, b.gpu_type): b.rate for b in one.beside}
    exact = table.get((other.name, limits.mode, limits.gpu_type))
    return table.get((other.name, limits.mode, "")) if exact is None else exact


def _label(host: GpuTenant, limits: PairLimits) -> int | None:
    known = None if host.profile is None else limits.labels.get(host.profile.name)
    if known is None and host.own is not None and host.own.gpu_util is not None:
        tiny, medium = (0.05, 0.15) if limits.mode == "slices" else (0.48, 0.6)
        return 0 if host.own.gpu_util <= tiny else 1 if host.own.gpu_util <= medium else 2
    return known


def _sum(
    host: GpuTenant,
    guest: GpuTenant,
    limits: PairLimits,
    speeds: tuple[float | None, float | None],
) -> float | None:
    if None not in speeds:
        return sum(speed or 0.0 for speed in speeds)
    a, b = (_figures(job, limits.gpu_type)[2] for job in (host, guest))
    if a is not None and b is not None:
        most, less = (2.84, 1.00) if limits.mode == "slices" else (2.55, 0.66)
        return min(2.0, most - less * (a + b))
    labels = [job.profile and job.profile.label for job in (host, guest)]
    if limits.mode == "mps" or None in labels or sum(label or 0 for label in labels) > 2:
        return None
    return sum({0: 0.95, 1: 0.85, 2: 0.5}[label] for label in labels if label is not None)
