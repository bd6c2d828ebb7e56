"""Learned Gittins: which jobs are alike, what a preemption gains, how near the best it is."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import build
import numpy as np
import pytest
from index_oracle import APART, Law, index_of, mixed, product_limit
from pasts import Over, past_of

from slurm_dl.engine.decide import decide
from slurm_dl.engine.settings import Overdue, Preemption, Settings
from slurm_dl.model.completed_jobs import Past
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import F64, I64, JobRow
from slurm_dl.model.plan import OpenHandover
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.arithmetic.run_time_model import setup_cost_index
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.policies.learned_gittins import LearnedGittins

PLAIN = LearnedGittins(hysteresis=1.0, use_limits=False)
ALIKE = past_of([Over("u", "", 1, 6400.0, 1e9 + i) for i in range(40)])
"""All jobs ran 6400 s: so the index of a job is what is left of that."""


def snap_of(
    rows: Sequence[JobRow],
    past: Past,
    *,
    whose: Mapping[int, tuple[str, str]] | None = None,
    ages: Mapping[int, float] | None = None,
    setup: float | Sequence[float] = 180.0,
    **more: Any,  # noqa: ANN401
) -> Snapshot:
    """*rows* with users and names, run times and costs of a start."""
    return build.snapshot(
        build.observed(rows, texts=build.texts_of_users(whose or {})),
        past=past,
        memory={"ran_s": ages or {}},
        setup_s=np.broadcast_to(np.array(setup, dtype=np.float64), (len(rows),)),
        **more,
    )


def index(snap: Snapshot, policy: LearnedGittins = PLAIN) -> list[float]:
    """The index of every job, GPU-seconds."""
    return policy.index_gpu_s(snap, np.arange(len(snap.jobs))).tolist()


# --- users and names ------------------------------------------------------------------------


def ran(user: str, name: str, typical_s: float, jobs: int, seed: int) -> list[Over]:
    """Jobs of one GPU that ran about *typical_s*."""
    random = np.random.default_rng(seed)
    times = typical_s * random.lognormal(0, 0.2, jobs)
    return [Over(user, name, 1, t, 1e9 + random.uniform(0, 1e6)) for t in times.tolist()]


def recurrent(user: str, typical_s: float, seed: int) -> list[Over]:
    """Fifty names of which each has a typical run time of its own."""
    typical = typical_s * np.random.default_rng(seed).lognormal(0, 1, 50)
    return [
        j for i, t in enumerate(typical.tolist()) for j in ran(user, f"job-{i}", t, 6, seed + i)
    ]


SHORT_S, LONG_S = 100.0, 30_000.0
ANN = [
    *recurrent("ann", 1500.0, 100),
    *ran("ann", "short", SHORT_S, 20, 1),
    *ran("ann", "long", LONG_S, 20, 2),
]
LABELS = [*ANN, *recurrent("bob", 60_000.0, 200)]


def index_by_label(*whose: tuple[str, str], past: Sequence[Over] = LABELS) -> list[float]:
    """The index of waiting jobs, all alike but for their users and names."""
    rows = [build.pending(i + 1) for i in range(len(whose))]
    return index(snap_of(rows, past_of(past), whose=dict(enumerate(whose, 1))))


def mean_index(over: Sequence[Over]) -> float:
    """The index of a new job about which no more is known than that it is one of these."""
    return index_of([(job.ran_s, 1.0) for job in over], 0, 180) - 180


def test_a_known_name_tells_how_long_a_job_runs() -> None:
    """About the mean of the jobs of that user and name."""
    found = index_by_label(("ann", "short"), ("ann", "long"), ("ann", "job-7"))
    job_7 = np.mean([job.ran_s for job in ANN if job.name == "job-7"])

    assert found == pytest.approx([SHORT_S, LONG_S, job_7], rel=0.35)


def test_an_unknown_name_tells_nothing() -> None:
    """Whatever it is: the job is one of its user's, so a short one does not gain by a new name."""
    one, other, none, foreign, short = index_by_label(
        ("ann", "new"), ("ann", "also new"), ("ann", ""), ("ann", "job-7 of bob"), ("ann", "short")
    )

    assert one == other == none == foreign
    assert one == pytest.approx(mean_index(ANN), rel=0.35)
    assert one > 3 * short
    [of_bob] = index_by_label(("bob", "short"))
    assert of_bob == pytest.approx(mean_index(LABELS[len(ANN) :]), rel=0.35)


def test_long_jobs_gain_nothing_by_a_new_name() -> None:
    """No job of ann had an unknown name when it ended, and still a new one is one of hers."""
    ran_s = {("ann", "train"): 60_000.0, ("ann", "tune"): 20_000.0, ("bob", "debug"): 300.0}
    past = [
        Over(*whose, 1, middle_s * (1 + i / 200), 1e9 + i)
        for i in range(40)
        for whose, middle_s in ran_s.items()
    ]
    tune, new, other_user = index_by_label(("ann", "tune"), ("ann", "x"), ("eve", "x"), past=past)

    assert new > tune
    assert tune > 3 * other_user


def test_an_unknown_user_has_the_run_times_of_the_gpu_class() -> None:
    """Whatever the names are."""
    one, other = index_by_label(("eve", "short"), ("dan", "long"))

    assert one == other == pytest.approx(mean_index(LABELS), rel=0.1)


def test_of_users_with_two_jobs_each_the_class_tells() -> None:
    """Users differ, but of none enough is known."""
    past = [
        Over(f"u{i // 2}", f"job-{i}", 1, [100.0, 30_000.0][i // 2 % 2] * (1 + i / 100), 1e9 + i)
        for i in range(30)
    ]

    assert index_by_label(("u1", "x"), past=past) == pytest.approx([mean_index(past)], rel=0.1)


def test_jobs_that_run_longer_than_expected_are_evidence_for_those_of_their_name() -> None:
    """Eight of the name that run on and on: the waiting one is expected to, as well."""
    whose = dict.fromkeys(range(1, 10), ("ann", "short")) | {10: ("ann", "long")}
    rows = [build.pending(9), build.pending(10), *(build.running(i) for i in range(1, 9))]
    past = past_of(LABELS)
    short, long = zip(
        *(
            index(snap_of(rows, past, whose=whose, ages=dict.fromkeys(range(1, 9), age)))[:2]
            for age in (0.1 * SHORT_S, 3 * SHORT_S, 10 * SHORT_S)
        ),
        strict=True,
    )

    assert short[0] == pytest.approx(SHORT_S, rel=0.35)
    assert short[0] < short[1] < short[2]
    assert short[2] > 1.5 * short[0]
    assert list(long) == pytest.approx([LONG_S] * 3, rel=0.35)


@pytest.mark.parametrize("gpus", [2, 3, 5])
def test_other_gpus_make_another_label(gpus: int) -> None:
    """A number of GPUs with which the name never ran is like an unknown name."""
    past = past_of([*LABELS, *(job._replace(gpus=4) for job in ANN if job.name == "short")])
    rows = [build.pending(1), build.pending(2, 4), build.pending(3, gpus), build.pending(4, gpus)]
    whose = dict.fromkeys(range(1, 4), ("ann", "short")) | {4: ("ann", "new")}
    found = index(snap_of(rows, past, whose=whose))

    assert found[:2] == pytest.approx([SHORT_S, 4 * SHORT_S], rel=0.35)
    assert found[2] == found[3]


# --- limits, progress, parameters -----------------------------------------------------------


def test_without_measurements_the_parameter_is_the_setup() -> None:
    """Of a job that has run and waits."""
    snap = dataclasses.replace(snap_of([build.pending(1)], ALIKE, ages={1: 6000.0}), setup_s=None)

    assert index(snap, dataclasses.replace(PLAIN, setup_s=77.0)) == pytest.approx([477])


@pytest.mark.parametrize(
    ("row", "age", "more", "policy", "index_gpu_s"),
    [
        # A limit of 1000 s; of a running job what is left of it; of no use where it is not asked.
        (build.pending(1, 2, limit_s=1000), 0, {}, {"use_limits": True}, 2 * 1000),
        (build.pending(1, 2, limit_s=1000), 6000, {}, {"use_limits": True}, 2 * (400 + 180)),
        (build.pending(1, 2, limit_s=1000), 0, {}, {}, 2 * 6400),
        (
            build.running(1, 2, ran_s=900, limit_s=1000),
            900,
            {},
            {"use_limits": True},
            2 * (100 - 180),
        ),
        # The same of one that has begun anew by itself.
        (build.pending(1, 2, limit_s=300), 6000, {}, {"use_limits": True}, 2 * (300 + 180)),
        (build.pending(1, 2, limit_s=300, restarts=1), 6000, {}, {"use_limits": True}, 2 * 580),
        # A fifth is done after 400 s: 1600 s are left, at most twice that.
        (build.pending(1), 400, {"progress": [0.2]}, {"progress_margin": 1}, 1600 + 180),
        (build.pending(1), 400, {"progress": [0.2]}, {"progress_margin": 2}, 3200 + 180),
        (build.pending(1), 400, {"progress": [0.2]}, {}, 6000 + 180),
        (build.pending(1), 400, {"progress": [math.nan]}, {"progress_margin": 1}, 6000 + 180),
        (build.pending(1), 400, {"progress": [0.0]}, {"progress_margin": 1}, 6000 + 180),
        (build.pending(1), 400, {"progress": [0.01]}, {"progress_margin": 1}, 6000 + 180),
    ],
)
def test_limits_and_progress_bound_what_is_left(
    row: JobRow,
    age: float,
    more: dict[str, list[float]],
    policy: dict[str, Any],
    index_gpu_s: float,
) -> None:
    """They never make it more than the distribution says."""
    arrays = {name: np.array(values) for name, values in more.items()}
    snap = snap_of([row], ALIKE, ages={1: age}, **arrays)

    assert index(snap, dataclasses.replace(PLAIN, **policy)) == pytest.approx([index_gpu_s])


def tiers_by_id(snap: Snapshot, policy: LearnedGittins) -> dict[int, int]:
    """Tier of each job."""
    return dict(zip(snap.jobs.job_id.tolist(), policy.order(snap).tier.tolist(), strict=True))


def test_the_tier_is_the_power_of_two_and_zero_within_the_quantum() -> None:
    """6400, 4180, 1910, and what has just started; who runs goes first inside a tier."""
    rows = [
        build.pending(1),
        build.pending(2),
        build.running(3, ran_s=901),
        build.running(4, ran_s=899),
        build.pending(5, partition=1),
    ]
    snap = snap_of(rows, ALIKE, ages={2: 2400, 3: 2400, 4: 2400})
    policy = dataclasses.replace(PLAIN, hysteresis=2.0)
    order = policy.order(snap)

    assert order.tier.tolist() == [13, 13, 11, 0, policy.tiers - 1]
    assert order.key.tolist() == [1, 1, 0, 0, 1]
    assert tiers_by_id(snap, dataclasses.replace(policy, min_quantum_s=0.0))[4] == 11
    rows[3] = dataclasses.replace(rows[3], restarts=1)
    for preemptions, tier in ((0, 11), (1, 0)):
        memory = {"ran_s": dict.fromkeys((2, 3, 4), 2400.0), "preemptions": {4: preemptions}}
        anew = dataclasses.replace(
            build.snapshot(build.observed(rows), past=ALIKE, memory=memory), setup_s=snap.setup_s
        )
        assert tiers_by_id(anew, policy)[4] == tier


@pytest.mark.parametrize("finished", [0, 29, 30])
def test_with_few_finished_jobs_it_is_discrete_las(finished: int) -> None:
    """The same tiers and keys, and the same next change; with 30 it is not."""
    past = past_of([Over("u", "", 1, 900.0 + i, 1e9 + i) for i in range(finished)])
    rows = [build.running(1, 2), build.pending(2), build.pending(3, 4), build.running(4)]
    service = {1: 10_000.0, 2: 4000.0, 3: 0.0, 4: 99.0}
    snap = build.snapshot(
        build.observed(rows), past=past, memory={"attained_gpu_s": service, "ran_s": service}
    )
    mine, las = LearnedGittins().order(snap), DiscreteLas().order(snap)
    runs = np.array([True, False, False, True])
    next_s = LearnedGittins().next_change_s(snap, mine, runs)

    same = finished < 30
    assert (mine.tier.tolist() == las.tier.tolist()) == same
    assert (mine.key.tolist() == las.key.tolist()) == same
    assert mine.tiers == LearnedGittins().tiers
    assert next_s == (DiscreteLas().next_change_s(snap, las, runs) if same else build.NOW_S + 360)
    if not same:
        assert LearnedGittins().next_change_s(snap, mine, np.ones(4, dtype=bool)) == math.inf


# --- what a preemption must gain ------------------------------------------------------------

GPUS = (1.0, 2.0, 3.0, 4.0)
CLASS_OF = {1.0: 0, 2.0: 1, 3.0: 2, 4.0: 2}


def law_of(past: Sequence[Over], live: Sequence[tuple[float, float]], gpus: float) -> Law:
    """The distribution of a class, mixed with that of all jobs, by plain loops."""
    everybody = [(CLASS_OF[job.gpus], job.ran_s, True) for job in past]
    everybody += [(CLASS_OF[g], age, False) for g, age in live if age > 0]
    largest = max(t for _, t, _ in everybody)
    own = [(t, ended) for c, t, ended in everybody if c == CLASS_OF[gpus]]
    known = sum(ended for _, ended in own)
    weight = known / (known + 30) if known >= 5 else 0.0
    parts = [(1 - weight, product_limit([(t, ended) for _, t, ended in everybody]))]
    if weight:
        parts.append((weight, product_limit(own, largest)))
    return mixed(parts)


@pytest.mark.parametrize("hysteresis", [1.0, 2.0])
def test_it_never_preempts_if_the_expected_gain_is_below_the_cost(hysteresis: float) -> None:
    """In random queues: every index is that of an oracle, and tiers keep to it.

    A waiting job has a better tier than a running one only if its index is at most that of the
    running one less what stopping it and starting it again costs.
    """
    policy = dataclasses.replace(PLAIN, hysteresis=hysteresis)
    preempts = 0
    for seed in range(60):
        random = np.random.default_rng([seed, 11])
        ends = random.permutation(np.resize(APART[14:36:2], 48))
        gangs = random.choice(GPUS, 48, p=[0.6, 0.3, 0.05, 0.05])
        past = [
            Over("u", "", g, t, 1e9 + i)
            for i, (g, t) in enumerate(zip(gangs.tolist(), ends.tolist(), strict=True))
        ]
        n = 12
        gpus = random.choice(GPUS, n).tolist()
        runs = (random.random(n) < 0.5).tolist()
        age = random.choice([0.0, *APART[15:35:2]], n).tolist()
        setup = random.choice([0.0, 30.0, 180.0, 3000.0], n).tolist()
        rows = [(build.running if r else build.pending)(i, gpus[i]) for i, r in enumerate(runs)]
        snap = snap_of(rows, past_of(past), ages=dict(enumerate(age)), setup=setup)

        live = list(zip(gpus, age, strict=True))
        cost = [0.0 if runs[i] or not age[i] else setup[i] for i in range(n)]
        stop = [0.0 if runs[i] else setup[i] for i in range(n)]
        oracle = [
            g * (index_of(law_of(past, live, g), age[i], cost[i] + stop[i]) - stop[i])
            for i, g in enumerate(gpus)
        ]
        kept = [oracle[i] - gpus[i] * setup[i] for i in range(n)]
        expected = [kept[i] / hysteresis if runs[i] else oracle[i] for i in range(n)]
        assert index(snap, policy) == pytest.approx(expected)
        tier = policy.order(snap).tier.tolist()
        for w in range(n):
            for r in range(n):
                if runs[r] and not runs[w] and tier[w] < tier[r]:
                    preempts += 1
                    assert oracle[w] <= kept[r]

    assert preempts > 100


# --- how near it is to the best -------------------------------------------------------------


class Laws:
    """In place of what is learnt: the distribution of each job is known, on its row."""

    def __init__(self, laws: Sequence[Law]) -> None:
        self._at = np.unique([x for law in laws for x, _ in law])
        self._mass = np.array([[dict(law).get(x, 0.0) for x in self._at.tolist()] for law in laws])

    def index_s(self, snap: Snapshot, rows: I64, age_s: F64, setup_s: F64) -> F64:  # noqa: ARG002
        """As `RunTimeModel.index_s`."""
        return setup_cost_index(self._at, self._mass[rows], age_s, setup_s)


DONE = -1.0
Ages = tuple[float, ...]
Rule = Callable[[Ages, int], int]
"""Who runs next: of the ages of all jobs, and who runs."""


def total_s(laws: Sequence[Law], setup: float, rule: Rule | None) -> float:
    """Least expected sum of completion times on one GPU; or that of *rule*.

    A job that is served runs to the next of its possible run times; there it ends, or all may
    change. A start costs *setup* unless the job has never run, or runs.
    """

    @functools.cache
    def ahead_s(ages: Ages, runs: int) -> float:
        here = [i for i, age in enumerate(ages) if age != DONE]
        if not here:
            return 0.0
        return min(after_s(ages, runs, i) for i in ([rule(ages, runs)] if rule else here))

    def after_s(ages: Ages, runs: int, i: int) -> float:
        left = [(x, p) for x, p in laws[i] if x > ages[i]]
        next_age, ends = left[0]
        ends /= sum(p for _, p in left)
        start_s = setup if i != runs and ages[i] > 0 else 0.0
        alive = sum(age != DONE for age in ages)
        served_s = (start_s + next_age - ages[i]) * alive
        went = tuple(next_age if j == i else age for j, age in enumerate(ages))
        ended = tuple(DONE if j == i else age for j, age in enumerate(ages))
        on_s = ahead_s(went, i) if ends < 1 else 0.0
        return served_s + ends * ahead_s(ended, -1) + (1 - ends) * on_s

    return ahead_s((0.0,) * len(laws), -1)


def by_policy(laws: Sequence[Law], setup: float, policy: LearnedGittins) -> Rule:
    """Serve the smallest index of *policy*; who runs goes on among equals."""
    n = len(laws)

    def rule(ages: Ages, runs: int) -> int:
        here = [i for i in range(n) if ages[i] != DONE]
        rows = [(build.running if i == runs else build.pending)(i) for i in here]
        snap = snap_of(rows, ALIKE, ages={i: ages[i] for i in here}, setup=setup)
        with pytest.MonkeyPatch.context() as patch:
            known = Laws([laws[i] for i in here])
            patch.setattr("slurm_dl.policies.learned_gittins._model", lambda *_: known)
            found = dict(zip(here, index(snap, policy), strict=True))
        return min(here, key=lambda i: (found[i], i != runs, i))

    return rule


def first_come(ages: Ages, runs: int) -> int:  # noqa: ARG001
    return next(i for i, age in enumerate(ages) if age != DONE)


def least_service(ages: Ages, runs: int) -> int:
    here = [i for i, age in enumerate(ages) if age != DONE]
    return min(here, key=lambda i: (ages[i], i != runs, i))


def small_queue(random: np.random.Generator) -> list[Law]:
    """Two or three jobs that have two or three possible run times each."""
    laws = []
    for _ in range(random.integers(2, 4)):
        points = random.choice(np.geomspace(1, 1000, 40), random.integers(2, 4), replace=False)
        chances = random.dirichlet(np.ones(len(points)))
        laws.append(list(zip(sorted(points.tolist()), chances.tolist(), strict=True)))
    return laws


@pytest.mark.parametrize("setup", [0.0, 20.0, 100.0])
def test_its_order_is_the_best_or_nearly(setup: float) -> None:
    """Against dynamic programming; without setup costs it is the best, as Gittins proved."""
    random = np.random.default_rng(int(setup))
    queues = [small_queue(random) for _ in range(70)]
    best = np.array([total_s(laws, setup, None) for laws in queues])
    mine, fifo, las = (
        np.array([total_s(laws, setup, rule_of(laws)) for laws in queues])
        for rule_of in (
            lambda laws: by_policy(laws, setup, PLAIN),
            lambda _: first_come,
            lambda _: least_service,
        )
    )

    assert (mine >= best * (1 - 1e-9)).all()
    assert (mine / best).max() < (1.1 if setup else 1 + 1e-9)
    assert (mine / best).mean() < (1.01 if setup else 1 + 1e-9)
    assert mine.mean() < 0.95 * min(fifo.mean(), las.mean())


# --- with the engine ------------------------------------------------------------------------


@pytest.mark.parametrize(("waited_s", "target"), [(86_399, {1, 2, 3, 4}), (86_401, {20})])
def test_an_overdue_job_is_served_first(waited_s: float, target: set[int]) -> None:
    """A gang of all GPUs, which four jobs in the middle of their runs precede."""
    settings = Settings(
        partitions=frozenset({"gpu"}),
        preemption=Preemption(
            beneficiaries="all", commitment="ignored", min_quantum_s=0, limit_reserve_s=0
        ),
        overdue=Overdue(after_s=86_400, share=0.25),
    )
    rows = [*(build.running(i, 4, ran_s=5000) for i in range(1, 5)), build.pending(20, 16)]
    rows[-1] = dataclasses.replace(rows[-1], n_nodes=4)
    seen = build.observed(rows, held={i: {i - 1: 4.0} for i in range(1, 5)}, opted_in=range(1, 5))
    memory = {
        "ran_s": dict.fromkeys(range(1, 5), 5000.0),
        "waiting_since_s": {20: build.NOW_S - waited_s},
    }
    plan = decide(build.snapshot(seen, memory=memory, past=ALIKE), LearnedGittins(), settings)

    assert plan.target == target
    opened = [a.handover for a in plan.actions if isinstance(a, OpenHandover)]
    assert [h.beneficiaries for h in opened] == ([(JobId(20),)] if target == {20} else [])
