"""Policies that choose sizes: the arithmetic against brute force, and what they choose by hand."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import pytest
from elastic_jobs import SEEDS, sizes_of, some_elastic
from situations import made

from slurm_dl.engine.intent import checked, intend
from slurm_dl.model.sizes import AS_ASKED, NOT_NOW, are_sizes, wanted_gpus
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies import registry
from slurm_dl.policies.arithmetic.sizing import (
    NONE,
    Job,
    afs,
    afs_prefers,
    by_gain,
    by_steps,
    least_sizes,
)
from slurm_dl.policies.arithmetic.supply_and_demand import contenders
from slurm_dl.testing.snapshot_builder import NOW_S, running, snapshot, waiting

SIZING: Final = ("afs", "optimus", "sidecar")
EVERY_POLICY = pytest.mark.parametrize("name", SIZING)

# --- arithmetic -----------------------------------------------------------------------------


def curve(draw: np.random.Generator, most: int) -> list[float]:
    """``(most,)`` speeds with 1, 2, ... GPUs; each GPU adds less than the one before."""
    return np.cumsum(np.sort(draw.random(most))[::-1] + 1e-3).tolist()  # type: ignore[no-any-return]


def sum_of_ends(a: tuple[float, float], b: tuple[float, float], left: tuple[float, float]) -> float:
    """Both completion times, in closed form, if a has the GPU until it ends and b after it.

    Args:
        a, b: Speed now, and with the GPU.
        left: Work of each.
    """
    end_a = left[0] / a[1]
    return end_a + end_a + (left[1] - b[0] * end_a) / b[1]


def test_the_rule_of_pairs_is_the_better_of_both_plans() -> None:
    """Any concave speeds and lengths; a plan in which the long job ends first is another case."""
    draw, compared = np.random.default_rng(1), 0
    while compared < 20_000:
        m, speeds = draw.integers(1, 5, 2), (curve(draw, 5), curve(draw, 5))
        pairs = [(float(p[k - 1]), float(p[k])) for k, p in zip(m.tolist(), speeds, strict=True)]
        lefts = (draw.random(2) * 10 + 0.1).tolist()
        jobs = sorted(zip(pairs, lefts, strict=True), key=lambda job: job[1] / job[0][0])
        (a, left_a), (b, left_b) = jobs
        if left_b / b[1] < left_a / a[0]:
            continue
        compared += 1
        at_once = left_a / a[0] + left_b / b[1]
        in_turn = sum_of_ends(a, b, (left_a, left_b))
        assert afs_prefers(a, b) == (at_once < in_turn) or math.isclose(at_once, in_turn)


def test_greedy_gains_are_the_best_of_all_choices() -> None:
    """Three jobs on 8 GPUs, speeds concave: the sum of the remaining times is the least."""
    draw = np.random.default_rng(2)
    for _ in range(300):
        gpus = [float(g) for g in range(1, 9)]
        jobs = [Job(gpus, curve(draw, 8), float(draw.random() * 10 + 1)) for _ in range(3)]
        found = by_gain(jobs, *least_sizes(jobs, range(3), 8.0))
        assert sum(found) + 3 <= 8

        def total(size: Sequence[int], jobs: list[Job] = jobs) -> float:
            return sum(job.left / job.rates[at] for job, at in zip(jobs, size, strict=True))

        every = (c for c in itertools.product(range(6), repeat=3) if sum(c) + 3 <= 8)
        assert total(found) == pytest.approx(min(map(total, every)), rel=1e-6)


def test_steps_down_lose_the_least_of_all_choices() -> None:
    """Three running jobs, speeds concave, give GPUs for one that comes: brute force over sizes."""
    draw = np.random.default_rng(3)
    for _ in range(300):
        held, gpus = draw.integers(0, 6, 3).tolist(), [float(g) for g in range(1, 7)]
        jobs = [Job(gpus, curve(draw, 6), float(draw.random() * 10 + 1), at) for at in held]
        need = int(draw.integers(1, sum(held) + 2))
        comes = Job([float(need)], [1.0], 5.0)

        found = by_steps([*jobs, comes], sum(held) + 3.0)

        def total(size: Sequence[int], jobs: list[Job] = jobs) -> float:
            return sum(job.left / job.rates[at] for job, at in zip(jobs, size, strict=True))

        if need > sum(held):
            assert found == [*held, NONE]
            continue
        every = itertools.product(*(range(at + 1) for at in held))
        room = [size for size in every if sum(held) - sum(size) >= need]
        assert found[3] == 0
        assert tuple(found[:3]) in room
        assert total(found[:3]) == pytest.approx(min(map(total, room)), rel=1e-6)


LINEAR = ([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0])
COARSE = ([2.0, 4.0, 8.0], [1.0, 1.8, 2.0])
PEAK = ([1.0, 2.0, 4.0, 8.0], [1.0, 1.8, 3.0, 2.5])
RIGID = ([4.0], [1.0])

CASES: Final[Mapping[str, tuple[list[Job], float, list[int], list[int]]]] = {
    # Jobs, GPUs, sizes by time saved, sizes by AFS.
    "alone, as far as it gains": ([Job(*PEAK, 100)], 16, [2], [2]),
    "alone, as far as it fits": ([Job(*PEAK, 100)], 3, [1], [1]),
    "no room at all": ([Job(*COARSE, 100)], 1, [NONE], [NONE]),
    "equal jobs": ([Job(*LINEAR, 70), Job(*LINEAR, 70)], 3, [1, 0], [1, 0]),
    "the long one gains more": ([Job(*LINEAR, 100), Job(*LINEAR, 1000)], 5, [0, 3], [2, 1]),
    "more jobs than GPUs": (
        [Job(*LINEAR, 300), Job(*LINEAR, 200), Job(*LINEAR, 100)], 2, [0, 0, NONE], [NONE, 0, 0]
    ),
    "a rigid one keeps its place": ([Job(*RIGID, 50), Job(*PEAK, 100)], 6, [0, 1], [0, 1]),
    "a small one passes a large one": (
        [Job(*PEAK, 90), Job(*RIGID, 95), Job(*PEAK, 100)], 3, [0, NONE, 1], [1, NONE, 0]
    ),
    "a step that does not fit is passed over": (
        [Job(*COARSE, 900), Job(*LINEAR, 100)], 4, [0, 1], [0, 1]
    ),
    "time saved counts for each GPU": ([Job(*COARSE, 100), Job(*LINEAR, 60)], 5, [0, 2], [0, 2]),
    "a GPU made of tenths": (
        [Job([0.1, 0.2], [1.0, 2.0], 9), Job([0.8], [1.0], 1)], 1, [1, 0], [1, 0]
    ),
}  # fmt: skip


@pytest.mark.parametrize(("jobs", "gpus", "greedy", "walk"), CASES.values(), ids=CASES)
def test_sizes_are_as_worked_out_by_hand(
    jobs: list[Job], gpus: float, greedy: list[int], walk: list[int]
) -> None:
    assert by_gain(jobs, *least_sizes(jobs, range(len(jobs)), gpus)) == greedy
    assert afs(jobs, gpus) == walk


STEPS: Final[Mapping[str, tuple[list[Job], float, list[int]]]] = {
    "nothing to do": ([Job(*LINEAR, 100, 1), Job(*LINEAR, 900, 1)], 4, [1, 1]),
    "up into free GPUs, by time saved": ([Job(*LINEAR, 100, 0), Job(*LINEAR, 900, 0)], 5, [0, 3]),
    "down for one that comes": (
        [Job(*LINEAR, 100, 1), Job(*LINEAR, 900, 1), Job(*LINEAR, 500)], 4, [0, 1, 0]
    ),
    "in vain: nobody changes": ([Job(*LINEAR, 100, 1), Job(*RIGID, 500)], 2, [1, NONE]),
    "one behind it that fits": (
        [Job(*LINEAR, 100, 1), Job(*RIGID, 500), Job(*LINEAR, 5)], 3, [1, NONE, 0]
    ),
    "what a step frees too much goes up": (
        [Job(*COARSE, 100, 2), Job(*LINEAR, 60)], 8, [1, 3]
    ),
    "running ones never leave": ([Job(*RIGID, 1, 0), Job(*RIGID, 9)], 6, [0, NONE]),
    "nodes are gone": ([Job(*LINEAR, 100, 3), Job(*LINEAR, 900, 1)], 4, [1, 1]),
}  # fmt: skip


@pytest.mark.parametrize(("jobs", "gpus", "sizes"), STEPS.values(), ids=STEPS)
def test_sizes_change_by_steps(jobs: list[Job], gpus: float, sizes: list[int]) -> None:
    assert by_steps(jobs, gpus) == sizes


def test_gains_that_differ_by_rounding_alone_are_equal() -> None:
    """The first of two jobs gets the GPU, although 0.1 x 3 is a little more than 0.3."""
    jobs = [Job([1.0, 2.0], [1.0, 2.0], left) for left in (0.3, 0.1 * 3)]

    assert jobs[0].left < jobs[1].left
    assert by_gain(jobs, [0, 0], 1.0) == [1, 0]


# --- policies -------------------------------------------------------------------------------


def chosen(name: str, snap: Snapshot) -> list[float]:
    """GPUs of each job as the policy has it; 0 for none."""
    size = registry.POLICIES[name]().order(snap).size
    assert size is not None
    return np.where(size == NOT_NOW, 0.0, wanted_gpus(snap.jobs.gpus, snap.sizes, size)).tolist()  # type: ignore[no-any-return]


def three(left_s: Sequence[float]) -> Snapshot:
    """Two elastic jobs, of which the second came first, and a rigid one, on 8 GPUs."""
    linear = [(1.0, 1.0), (2.0, 2.0), (4.0, 4.0)]
    return snapshot(
        [waiting(1), waiting(2), running(3, 2)],
        nodes=((4, 0), (4, 0)),
        memory={"first_submit_s": {2: NOW_S - 90_000}},
        left_s=np.array(left_s),
        sizes=sizes_of({0: linear, 1: linear}),
    )


@pytest.mark.parametrize(
    ("left_s", "afs_gpus", "greedy_gpus"),
    [
        ((500.0, 500.0, 50.0), [2, 4, 2], [2, 4, 2]),
        ((100.0, 900.0, 50.0), [4, 2, 2], [2, 4, 2]),
        ((900.0, 100.0, 50.0), [2, 4, 2], [4, 2, 2]),
        # The mean of the other two is more than 300, and less than 500.
        ((300.0, math.inf, 500.0), [4, 2, 2], [2, 4, 2]),
        ((500.0, math.nan, 300.0), [2, 4, 2], [4, 2, 2]),
        ((math.inf, math.nan, math.inf), [2, 4, 2], [2, 4, 2]),
    ],
)
def test_afs_prefers_short_jobs_and_optimus_and_sidecar_long_ones(
    left_s: Sequence[float], afs_gpus: list[float], greedy_gpus: list[float]
) -> None:
    """Linear speeds; equal jobs go by first submission, unknown ones count with the mean."""
    snap = three(left_s)

    assert chosen("afs", snap) == afs_gpus
    assert chosen("optimus", snap) == chosen("sidecar", snap) == greedy_gpus


@EVERY_POLICY
def test_of_sizes_with_as_many_gpus_the_fastest_counts(name: str) -> None:
    """Four GPUs on one node or on four: the slower form is no step on the way to eight."""
    sizes = sizes_of({0: [(4.0, 2.0), (4.0, 3.0), (4.0, 1.0), (8.0, 4.0), (8.0, 3.5)]})
    for gpus, best in ((4.0, 1), (8.0, 3)):
        snap = snapshot([waiting(1)], nodes=((gpus, 0),), left_s=np.array([60.0]), sizes=sizes)

        size = registry.POLICIES[name]().order(snap).size

        assert size is not None
        assert size.tolist() == [best]


@pytest.mark.parametrize(("name", "first"), [("optimus", 3), ("afs", 2), ("sidecar", 2)])
def test_optimus_serves_the_smallest_first_and_the_others_who_came_first(
    name: str, first: int
) -> None:
    """Job 2 came first, and job 3 has the fewest GPUs."""
    snap = three((500.0, 500.0, 50.0))
    small = dataclasses.replace(snap.jobs, gpus=np.array([1.0, 1.0, 1.0]))
    snap = dataclasses.replace(snap, seen=dataclasses.replace(snap.seen, jobs=small))

    found = intend(snap, registry.POLICIES[name]())

    assert snap.jobs.job_id[found.ranked[0]] == first


@EVERY_POLICY
@pytest.mark.parametrize("seed", SEEDS)
def test_chosen_sizes_are_the_jobs_own_and_fit(name: str, seed: int) -> None:
    """A job that gets nothing would not fit in what is left."""
    snap, policy = some_elastic(seed), registry.POLICIES[name]()
    sizes = snap.sizes
    assert sizes is not None

    order = checked(policy.order(snap), policy, len(snap.jobs), sizes)

    assert order.size is not None
    assert are_sizes(order.size, sizes)
    takes_part = contenders(snap)
    assert (order.size[~takes_part] == AS_ASKED).all()
    elastic = np.isin(np.arange(len(snap.jobs)), sizes.row) & takes_part
    assert (order.size[elastic] != AS_ASKED).all()
    there = snap.seen.nodes.gpus[snap.seen.nodes.up].sum()
    free = there - np.array(chosen(name, snap))[takes_part].sum()
    assert free >= -1e-9
    for row in (order.size == NOT_NOW).nonzero()[0].tolist():
        mine = sizes.of(row)
        assert (sizes.gpus[mine.start] if mine else snap.jobs.gpus[row]) > free
    target = set(intend(snap, policy).target.tolist())
    wanted = set((takes_part & (order.size != NOT_NOW)).nonzero()[0].tolist())
    # The policy counts GPUs of all types together, and of one type there may be too few.
    is_typed = len(snap.seen.gpu_types) > 1 and (snap.jobs.gpu_type[list(wanted)] >= 0).any()
    assert target == wanted or (is_typed and target < wanted)


@EVERY_POLICY
def test_sizes_are_chosen_anew_while_some_job_is_elastic_and_some_runs(name: str) -> None:
    """Without sizes it is an order like any other."""
    policy, snap = made(name, {"quantum_s": 30.0}), three((1.0, 1.0, 1.0))
    rigid, runs = dataclasses.replace(snap, sizes=None), np.array([False, False, True])

    assert policy.next_change_s(snap, policy.order(snap), runs) == NOW_S + 30
    assert policy.next_change_s(snap, policy.order(snap), np.zeros(3, np.bool_)) == math.inf
    assert policy.next_change_s(rigid, policy.order(rigid), runs) == math.inf
    assert policy.order(rigid).size is None
    with pytest.raises(ValueError, match="quantum_s"):
        registry.POLICIES[name](quantum_s=0.0)  # type: ignore[call-arg]
