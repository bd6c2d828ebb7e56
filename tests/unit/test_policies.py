"""The policies against plain-Python twins and closed cases."""

from __future__ import annotations

import dataclasses
import math

import build
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_dl.engine.intent import rank_jobs
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import Held, JobState
from slurm_dl.model.snapshot import JobText, Snapshot
from slurm_dl.policies import registry
from slurm_dl.policies.base import Order, Policy
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.policies.fifo import Fifo
from slurm_dl.policies.hug import Hug
from slurm_dl.testing.snapshot_builder import a_past, reordered


def _tier_by_hand(service_gpu_s: float, edges: tuple[float, ...]) -> int:
    tier = 0
    for edge in edges:
        if service_gpu_s >= edge:
            tier += 1
    return tier


def test_a_job_sinks_at_its_threshold_and_not_before() -> None:
    """Demotion happens when the service reaches the threshold (Tiresias, section 3.2)."""
    seen = build.observed([build.running(i) for i in (1, 2, 3, 4)])
    attained = {1: 3249.999, 2: 3250.0, 3: 7200.0, 4: 1e9}
    order = DiscreteLas().order(build.snapshot(seen, memory={"attained_gpu_s": attained}))

    assert order.tier.tolist() == [0, 1, 2, 3]
    assert order.tiers == 4


@given(
    service=st.lists(st.floats(0, 1e6), min_size=1, max_size=30),
    edges=st.lists(st.floats(1, 1e6), min_size=1, max_size=6, unique=True),
)
def test_tiers_equal_a_plain_count_of_thresholds_passed(
    service: list[float], edges: list[float]
) -> None:
    """The column arithmetic equals counting the thresholds one by one."""
    policy = DiscreteLas(thresholds_gpu_s=tuple(sorted(edges)))
    seen = build.observed([build.running(i + 1) for i in range(len(service))])
    memory = {"attained_gpu_s": {i + 1: s for i, s in enumerate(service)}}

    order = policy.order(build.snapshot(seen, memory=memory))

    expected = [_tier_by_hand(s, policy.thresholds_gpu_s) for s in service]
    assert order.tier.tolist() == expected


@given(gpus=st.integers(1, 64), service=st.floats(0, 20000), threshold=st.floats(100, 30000))
def test_next_change_is_the_instant_at_which_the_tier_changes(
    gpus: int, service: float, threshold: float
) -> None:
    """A running job is in the old tier until just before that instant, and in the next from it."""
    policy = DiscreteLas(thresholds_gpu_s=(threshold,))
    seen = build.observed([build.running(1, gpus)])
    snap = build.snapshot(seen, memory={"attained_gpu_s": {1: service}})
    next_change_s = policy.next_change_s(snap, policy.order(snap), np.array([True]))
    if service >= threshold:
        assert next_change_s == math.inf
        return

    def tier_after(seconds: float) -> int:
        later = {"attained_gpu_s": {1: service + gpus * seconds}}
        return int(policy.order(build.snapshot(seen, memory=later)).tier[0])

    wait_s = next_change_s - build.NOW_S
    assert wait_s >= 0
    assert tier_after(wait_s + 1e-3) == 1
    if wait_s > 2e-3:
        assert tier_after(wait_s - 1e-3) == 0


def test_a_starving_job_is_promoted_and_its_service_forgiven() -> None:
    """After waiting knob times its run time a job is in the first queue; one second earlier not."""
    policy = DiscreteLas(promote_knob=2.0)
    rows = [build.pending(1), build.pending(2)]
    memory = {
        "attained_gpu_s": {1: 9000.0, 2: 9000.0},
        "ran_s": {1: 1000.0, 2: 1000.0},
        "waiting_since_s": {1: build.NOW_S - 2000, 2: build.NOW_S - 1999},
    }
    snap = build.snapshot(build.observed(rows), memory=memory)
    order = policy.order(snap)

    assert order.promote.tolist() == [True, False]
    assert order.tier.tolist() == [0, 2]
    assert policy.next_change_s(snap, order, np.zeros(2, np.bool_)) == build.NOW_S + 1


def test_a_promoted_job_sinks_again_by_what_it_gets_from_then_on() -> None:
    """Forgiven service does not count; what comes after does."""
    memory = {"attained_gpu_s": {1: 9000.0 + 3300.0}, "forgiven_gpu_s": {1: 9000.0}}
    order = DiscreteLas().order(build.snapshot(build.observed([build.running(1)]), memory=memory))

    assert order.tier.tolist() == [1]


def test_nobody_is_promoted_that_never_ran() -> None:
    """Waiting alone is no starvation: the job is in the first queue as it is."""
    snap = build.snapshot(build.observed([build.pending(1)]), memory={"waiting_since_s": {1: 1.0}})

    assert not DiscreteLas(promote_knob=0.001).order(snap).promote.any()


def test_fifo_has_one_tier_and_the_order_of_first_submission() -> None:
    """A requeue does not send a job to the back: the first submit time counts."""
    rows = [build.pending(1, submit_s=build.NOW_S), build.pending(2)]
    memory = {"first_submit_s": {1: 5.0, 2: 6.0}}
    order = Fifo().order(build.snapshot(build.observed(rows), memory=memory))

    assert order.tier.tolist() == [0, 0]
    assert order.key.tolist() == [5.0, 6.0]


@pytest.mark.parametrize("name", registry.names())
def test_order_does_not_depend_on_listing_order(name: str) -> None:
    """Slurm may list jobs in any order; no job's place or share may notice, to the last bit.

    Jobs of three tenants, some alike, whose sums of thirds and tenths depend on how they are added;
    some figures are unknown or endless.
    """
    policy = registry.find(name)()
    for seed in range(8):
        draw = np.random.default_rng(seed)
        made = [build.pending, build.running, build.pending]
        rows = [
            dataclasses.replace(
                made[i % 3](i, draw.choice([0.5, 1, 2, 3])), cpus=3 * i, mem_mb=7 * i
            )
            for i in range(1, 13)
        ]
        rows[5] = dataclasses.replace(rows[5], submit_s=rows[2].submit_s)
        rates = np.stack([1 + draw.integers(0, 9, 12) / 3, np.ones(12)], axis=1)
        if name.startswith("gavel"):  # Some of the others divide by rates.
            rates[:4] = [[0.0, 1.0], [math.nan, 1e3], [math.inf, 1e-3], [math.nan, math.inf]]
        ids, states = range(1, 13), list(JobState)
        rows[6] = dataclasses.replace(rows[6], state=states[seed % len(states)])
        texts = {
            JobId(i): JobText(
                label=str(i), account="abc"[i % 3], user="uvw"[i % 3], name="rst"[i % 3]
            )
            for i in ids
        }
        seen = build.observed(rows, **build.node_of_each_type((3, 6)), texts=texts)
        had = dict(zip(ids, draw.choice([0.0, 0.1, 0.7, 4000.0, 9000.0], 12).tolist(), strict=True))
        snap = build.snapshot(
            seen,
            memory={"attained_gpu_s": had, "ran_s": had},
            past=a_past(40, seed),
            rates=rates,
            progress=draw.choice([math.nan, 0.1, 0.7], 12),
        )
        snap = dataclasses.replace(
            snap, left_s=draw.choice([math.nan, 0.1, 0.2, 0.3, 0.7, 30.0, math.inf], 12)
        )
        listings = [snap, *(reordered(snap, draw.permutation(12), np.arange(2)) for _ in range(3))]

        share = policy.order(snap).share
        assert share is None or share.min() >= 0
        assert share is None or (share.sum(axis=1) <= 1 + 1e-9).all()
        assert len({str(places(policy.order(one), one)) for one in listings}) == 1


def places(order: Order, snap: Snapshot) -> list[object]:
    """Each column of *order*, by job id."""
    at = snap.jobs.job_id.argsort()
    columns = (getattr(order, f.name) for f in dataclasses.fields(order))
    return [c[at].tolist() for c in columns if isinstance(c, np.ndarray)]


KEYED = ("astraea_ltgf", "grouper", "mlfs", "qssf")
SHARING = [
    *(registry.find(n)() for n in registry.names() if n.startswith(("gandiva", "gavel", "hug"))),
    Hug(cooperative=False),
]


@pytest.mark.parametrize(
    "policy", [*(registry.find(n)() for n in KEYED), *SHARING], ids=lambda p: p.name
)
def test_who_takes_no_part_has_no_place_and_no_share(policy: Policy) -> None:
    """Held, elsewhere, of no GPU: no key and no share; too large: no share. Nor without GPUs."""
    rows = [
        build.pending(1, 1000, limit_s=600),
        build.pending(2, held=Held.USER_OR_ADMIN),
        build.pending(3, partition=1),
        build.pending(4, limit_s=600),
        build.pending(5, 0),
    ]
    texts = build.texts(account=dict.fromkeys(range(1, 6), "a"))
    order = policy.order(build.snapshot(build.observed(rows, texts=texts)))

    if order.share is None:
        assert np.isinf(order.key[:4]).tolist() == [False, True, True, False]
        return
    assert order.share.any(axis=1).tolist() == [False, False, False, True, False]
    for seen in (build.observed([]), build.observed([build.pending(1)], nodes=(0.0,))):
        nobody = policy.order(build.snapshot(seen)).share
        assert nobody is not None
        assert not nobody.any()


def test_every_policy_names_itself_and_its_source() -> None:
    """The registry's key is the policy's own name, and each says where its rule is from."""
    for name, policy in registry.POLICIES.items():
        assert policy.name == name
        assert policy.source


def test_an_unknown_policy_is_refused_with_the_names_there_are() -> None:
    """The error lists what could have been meant."""
    with pytest.raises(ConfigError, match=r"discrete_las, .*fifo, fifo_skip"):
        registry.find("tiresias")


def test_columns_are_read_only() -> None:
    """A policy that wrote into the snapshot would change another policy's answer."""
    snap = build.snapshot(build.observed([build.running(1)]))
    with pytest.raises(ValueError, match="read-only"):
        snap.jobs.gpus[0] = 5
    with pytest.raises(ValueError, match="read-only"):
        snap.memory.attained_gpu_s[0] = 5
    assert np.isclose(snap.jobs.gpus[0], 1)


@pytest.mark.parametrize("name", registry.POLICIES)
def test_who_submits_early_and_holds_comes_behind_those_that_came_meanwhile(name: str) -> None:
    """Under every policy, also where something else decides among other jobs."""
    came_s = {1: build.NOW_S - 100, 2: build.NOW_S - 5000, 3: build.NOW_S - 3000}
    first_s = {**came_s, 1: build.NOW_S - 9000}
    rows = [
        build.running(9, 16, limit_s=20_000),
        *(build.pending(i, 4, submit_s=first_s[i], limit_s=7200, uid=1) for i in came_s),
    ]
    everybody = dict.fromkeys((1, 2, 3, 9), "x")
    texts = build.texts(user=everybody, account=everybody, name=everybody)
    seen = build.observed(rows, held={9: dict.fromkeys(range(4), 4)}, texts=texts)
    snap = build.snapshot(
        seen, memory={"first_submit_s": first_s, "waiting_since_s": came_s, "queued_s": came_s}
    )
    policy = registry.POLICIES[name]()

    ranked = rank_jobs(snap, policy.order(snap), policy.preempts)
    assert [i for i in snap.jobs.job_id[ranked].tolist() if i != 9][-1] == 1
