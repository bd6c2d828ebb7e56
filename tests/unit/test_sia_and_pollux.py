"""Sia and Pollux: the objectives of the papers against brute force, and restarts."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pytest
from elastic_jobs import sizes_of

from slurm_dl.engine.intent import checked, intend
from slurm_dl.engine.settings import Resizing
from slurm_dl.model.sizes import AS_ASKED, NOT_NOW
from slurm_dl.model.snapshot import Fixed, Snapshot
from slurm_dl.policies import registry
from slurm_dl.policies.elastic.size_and_type import reallocation_factor
from slurm_dl.testing.snapshot_builder import NOW_S, TYPES, running, snapshot, waiting

Choice = tuple[float, int, float]
"""GPUs, type and speed of what a job is given."""

A, B = 0, 1


def typed(
    jobs: Mapping[int, Sequence[tuple[float, float, float]]],
    rows: Sequence[Any],
    nodes: Sequence[tuple[float, int]] = ((2, A), (4, B)),
    **more: Any,  # noqa: ANN401 - fields of Snapshot
) -> Snapshot:
    """A cluster of two types; by row (GPUs, speed on A, speed on B) of each size of a job."""
    sizes = sizes_of({row: [(gpus, max(a, b)) for gpus, a, b in of] for row, of in jobs.items()})
    on_type = np.array([[a, b] for row in sorted(jobs) for _, a, b in jobs[row]])
    sizes = dataclasses.replace(sizes, on_type=on_type)
    rates = more.pop("rates", np.ones((len(rows), 2)))
    return snapshot(rows, nodes=nodes, types=TYPES[:2], sizes=sizes, rates=rates, **more)


def given(policy: str, snap: Snapshot, **parameters: float) -> list[Choice | None]:
    """GPUs, type and speed for each job, read from the order alone."""
    made = registry.POLICIES[policy](**parameters)  # type: ignore[call-arg]
    order = checked(made.order(snap), made, len(snap.jobs), snap.sizes)
    assert order.size is not None
    assert snap.sizes is not None
    assert snap.rates is not None
    found: list[Choice | None] = []
    for row, size in enumerate(order.size.tolist()):
        kind = 0 if order.gpu_type is None else int(order.gpu_type[row])
        if size == NOT_NOW:
            found.append(None)
        elif size == AS_ASKED:
            found.append((float(snap.jobs.gpus[row]), kind, float(snap.rates[row, kind])))
        else:
            assert snap.sizes.on_type is not None
            speed = float(snap.sizes.on_type[size, kind])
            found.append((float(snap.sizes.gpus[size]), kind, speed))
    return found


# --- the objective, written down once more --------------------------------------------------


def choices(snap: Snapshot, row: int) -> list[Choice]:
    """All that the job may be given."""
    sizes, rates = snap.sizes, snap.rates
    assert sizes is not None
    assert sizes.on_type is not None
    assert rates is not None
    mine = [(float(sizes.gpus[i]), sizes.on_type[i]) for i in sizes.of(row)]
    mine = mine or [(float(snap.jobs.gpus[row]), rates[row])]
    return [(g, kind, float(v)) for g, on in mine for kind, v in enumerate(on) if v > 0]


def factor(snap: Snapshot, row: int, choice: Choice) -> float:
    """The restart factor, 1 where the job stays."""
    if HELD.get(row) == choice[:2]:
        return 1.0
    age_s, restarts = NOW_S - snap.memory.first_submit_s[row], snap.jobs.restarts[row]
    assert snap.setup_s is not None
    return float(max(age_s - restarts * snap.setup_s[row], 0) / (age_s + snap.setup_s[row]))


def sia_cost(snap: Snapshot, given: Sequence[Choice | None], power: float = -0.5) -> float:
    """To be as small as can be: section 3.4 with lambda = 1.1."""
    total = 0.0
    for row, choice in enumerate(given):
        if choice is None:
            total += 1.1 if power < 0 else 0.0
            continue
        lowest = min(v for _, _, v in choices(snap, row))
        gpus = min(g for g, _, v in choices(snap, row) if v == lowest)
        keeps = factor(snap, row, choice) if row in HELD else 1.0
        value = max(choice[2] / lowest * gpus * keeps, 1e-6) ** power
        total += value if power < 0 else -(value + 1.1)
    return total


def pollux_cost(snap: Snapshot, given: Sequence[Choice | None]) -> float:
    """Sum of 1 / speed-up over the fair share, rounded up to whole GPUs; 10 without GPUs."""
    share, total = math.ceil(6 / len(given)), 0.0
    for row, choice in enumerate(given):
        if choice is None:
            total += 10
            continue
        least = min(g for g, _, _ in choices(snap, row))
        fair = max(v for g, _, v in choices(snap, row) if g <= max(share, least))
        speedup = choice[2] / fair * factor(snap, row, choice)
        total += 1 / speedup if speedup else math.inf
    return total


def every_answer(snap: Snapshot) -> Iterator[tuple[Choice | None, ...]]:
    """All that fit on 2 GPUs of A and 4 of B."""
    for answer in itertools.product(*([None, *choices(snap, r)] for r in range(len(snap.jobs)))):
        used = [sum(c[0] for c in answer if c and c[1] == kind) for kind in (A, B)]
        if used[A] <= 2 and used[B] <= 4:
            yield answer


HELD: Final = {1: (1.0, A), 2: (2.0, B)}
"""GPUs and types that jobs hold, by row."""


def drawn(seed: int) -> Snapshot:
    """Four jobs, two of which run and one of which is rigid, with speeds by lot."""
    draw = np.random.default_rng([62, seed])
    jobs = {
        row: [
            (gpus, float(gpus**0.7 * draw.uniform(0.5, 2)), float(gpus**0.9 * draw.uniform(0, 2)))
            for gpus in (1.0, 2.0, 4.0)
        ]
        for row in (0, 1, 2)
    }
    rows = [
        waiting(1),
        running(2, 1, gpu_type=A, restarts=int(draw.integers(0, 4))),
        running(3, 2, gpu_type=B, restarts=int(draw.integers(0, 4))),
        waiting(4, 2),
    ]
    rows[1:3] = [dataclasses.replace(row, gpu_type=-1) for row in rows[1:3]]
    submits = {job: NOW_S - float(draw.integers(1, 40)) * 60 for job in (1, 2, 3, 4)}
    return typed(
        jobs, rows, memory={"first_submit_s": submits}, setup_s=draw.uniform(5, 120, 4),
        rates=draw.uniform(0.5, 2, (4, 2)), on_type=np.array([-1, A, B, -1], dtype=np.int16),
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize(
    ("policy", "parameters", "cost"),
    [
        ("sia", {}, sia_cost),
        ("sia", {"fairness": 1.0}, lambda snap, given: sia_cost(snap, given, 1.0)),
        ("pollux", {}, pollux_cost),
        ("pollux", {"search": True}, pollux_cost),
    ],
    ids=["sia", "sia, power 1", "pollux", "pollux, search"],
)
def test_no_other_answer_is_better(
    policy: str, parameters: dict[str, float], cost: Callable[..., float], seed: int
) -> None:
    """Ages are minutes, so that a start is always worth more than none."""
    snap = drawn(seed)
    found = given(policy, snap, **parameters)

    assert tuple(found) in set(every_answer(snap))
    assert cost(snap, found) == pytest.approx(min(cost(snap, a) for a in every_answer(snap)))


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize(
    ("policy", "parameters", "cost"),
    [("sia", {}, sia_cost), ("pollux", {}, pollux_cost), ("pollux", {"search": True}, pollux_cost)],
    ids=["sia", "pollux", "pollux, search"],
)
def test_what_jobs_keep_is_not_there_for_others(
    policy: str, parameters: dict[str, float], cost: Callable[..., float], seed: int
) -> None:
    """One job keeps its GPU of A, and one can only give some of its two of B back."""
    fixed = np.array([Fixed.NO, Fixed.ALL, Fixed.GROWTH, Fixed.NO], dtype=np.int8)
    snap = dataclasses.replace(drawn(seed), fixed=fixed)
    kept = next(choice for choice in choices(snap, 1) if choice[:2] == HELD[1])
    found = given(policy, snap, **parameters)
    answers = [
        answer
        for answer in every_answer(snap)
        if answer[1] == kept and (answer[2] is None or (answer[2][0] <= 2 and answer[2][1] == B))
    ]

    assert found[1] is not None
    assert found[1][0] == kept[0]
    found[1] = kept
    assert tuple(found) in answers
    assert cost(snap, found) == pytest.approx(min(cost(snap, answer) for answer in answers))


def test_each_job_gets_the_type_on_which_it_scales() -> None:
    """A made example, in the form of Sia's: 2 GPUs of A and 4 of B, and one best answer.

    The first job scales on B, the second as well on A: 3.8 + 1.8 = 5.6. The paper's table differs.
    """
    scales = [(1.0, 1.0, 1.5), (2.0, 1.8, 2.6), (4.0, 0.0, 3.8)]
    does_not = [(1.0, 1.0, 1.1), (2.0, 1.8, 1.6), (4.0, 0.0, 1.9)]
    snap = typed({0: scales, 1: does_not}, [waiting(1), waiting(2)])
    sums = sorted(
        sum(c[2] for c in answer if c) for answer in every_answer(snap) if None not in answer
    )

    found = given("sia", snap, fairness=1.0)

    assert found == [(4.0, B, 3.8), (2.0, A, 1.8)]
    assert sums[-1] == pytest.approx(5.6)
    assert sums[-2] < 5.5


@pytest.mark.parametrize(
    ("age_s", "restarts", "restart_s", "factor"),
    [(3600, 2, 30, 0.975), (600, 5, 30, 0.714), (60, 0, 30, 0.667), (30, 5, 30, 0), (0, 0, 0, 1)],
)
def test_a_change_is_worth_what_restarts_leave(
    age_s: float, restarts: float, restart_s: float, factor: float
) -> None:
    columns = (np.array([x], dtype=np.float64) for x in (age_s, restarts, restart_s))

    assert reallocation_factor(*columns).tolist() == pytest.approx([factor], abs=5e-4)


@pytest.mark.parametrize(
    ("policy", "parameters"), [("sia", {}), ("pollux", {}), ("pollux", {"search": True})]
)
@pytest.mark.parametrize(("age_s", "gpus"), [(120.0, 2.0), (86_400.0, 4.0)])
def test_a_young_job_stays_as_it_is(
    policy: str, parameters: dict[str, float], age_s: float, gpus: float
) -> None:
    """Twice the GPUs make it 1.5 times as fast; its restart costs two minutes."""
    snap = typed(
        {0: [(2.0, 0.0, 1.0), (4.0, 0.0, 1.5)]},
        [running(1, 2)],
        nodes=((2, B), (2, B)),
        memory={"first_submit_s": {1: NOW_S - age_s}},
        setup_s=np.array([120.0]),
    )

    assert [one and one[0] for one in given(policy, snap, **parameters)] == [gpus]


@pytest.mark.parametrize("policy", ["sia", "pollux"])
def test_the_target_is_what_the_policy_chose(policy: str) -> None:
    """GPU types included; a job that gets nothing is out of it."""
    for seed in range(25):
        snap = drawn(seed)
        order = registry.POLICIES[policy]().order(snap)
        intent = intend(snap, registry.POLICIES[policy]())

        assert order.size is not None
        assert order.gpu_type is not None
        assert intent.size is not None
        assert intent.kind is not None
        wanted = (order.size != NOT_NOW).nonzero()[0]
        assert sorted(intent.target.tolist()) == wanted.tolist()
        assert intent.size[wanted].tolist() == order.size[wanted].tolist()
        assert intent.kind[wanted].tolist() == order.gpu_type[wanted].tolist()


# --- steadiness -----------------------------------------------------------------------------

SCALES: Final = [(1.0, 1.0, 0.5), (2.0, 2.0, 1.0)]
FLAT: Final = [(1.0, 1.1, 0.9), (2.0, 1.2, 1.0)]


@pytest.mark.parametrize(
    ("left_s", "steadiness", "found"),
    [
        # The first holds 2 GPUs of B and would be twice as fast on A; the second, on A, makes room.
        ((4000.0, 4000.0), 0.0, [(2.0, A), (2.0, B)]),
        # It saves 2000 s; the other loses 364 s. Two restarts are 60 s.
        ((4000.0, 4000.0), 27.0, [(2.0, A), (2.0, B)]),
        ((4000.0, 4000.0), 28.0, [(2.0, B), (1.0, A)]),
        # It saves 2000 s, less than the other loses.
        ((4000.0, 40_000.0), 1.0, [(2.0, B), (1.0, A)]),
    ],
)
def test_running_jobs_change_their_types_if_that_pays(
    left_s: tuple[float, float], steadiness: float, found: list[tuple[float, int]]
) -> None:
    """Sizes and types are the policy's at steadiness 0; each restart costs 30 s."""
    snap = typed(
        {0: SCALES, 1: FLAT},
        [running(1, 2), running(2, 1)],
        nodes=((2, A), (2, B)),
        memory={"first_submit_s": {1: NOW_S - 9e5, 2: NOW_S - 9e5}},
        setup_s=np.full(2, 30.0),
        left_s=np.array(left_s),
        on_type=np.array([B, A], dtype=np.int16),
    )
    intent = intend(snap, registry.POLICIES["sia"](), resizing=Resizing(steadiness=steadiness))

    assert intent.kind is not None
    gpus = intent.gpus(snap)
    assert [(float(gpus[r]), int(intent.kind[r])) for r in (0, 1)] == found


def test_a_running_job_makes_room_for_one_that_comes() -> None:
    """However little it gains by that: it goes to the other type, and no GPU is given twice."""
    snap = typed(
        {0: FLAT, 1: SCALES},
        [running(1, 2), waiting(2, 2)],
        nodes=((2, A), (2, B)),
        memory={"first_submit_s": {1: NOW_S - 9e5}},
        setup_s=np.full(2, 1e5),
        on_type=np.array([A, -1], dtype=np.int16),
    )
    intent = intend(snap, registry.POLICIES["sia"](), resizing=Resizing(steadiness=10.0))

    assert intent.kind is not None
    assert sorted(intent.target.tolist()) == [0, 1]
    assert intent.kind.tolist() == [B, A]
    assert intent.gpus(snap)[1] == 2


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("policy", ["sia", "pollux"])
def test_no_gpu_is_given_twice_whatever_stays(policy: str, seed: int) -> None:
    snap = drawn(seed)
    intent = intend(snap, registry.POLICIES[policy](), resizing=Resizing(steadiness=3.0))

    assert intent.kind is not None
    gpus = intent.gpus(snap)[intent.target]
    used = np.bincount(intent.kind[intent.target], gpus, 2)
    assert (used <= [2, 4]).all()
