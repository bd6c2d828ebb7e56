"""Stages of searches: what a group is, its bottleneck, and how long its user waits."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from typing import Any

import build
import numpy as np
import policy_runs
import pytest
from policy_runs import Work

from slurm_dl.engine.intent import intend
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import Held, JobRow
from slurm_dl.model.snapshot import JobText, Snapshot
from slurm_dl.policies.base import Policy
from slurm_dl.policies.grouper import Grouper


def snapshot_of(
    rows: list[JobRow],
    left_s: dict[int, float],
    texts: dict[int, JobText] | None = None,
    ran_s: dict[int, float] | None = None,
    **more: Any,  # noqa: ANN401
) -> Snapshot:
    """Jobs with so many seconds left, the others without any estimate."""
    words = {JobId(r.job_id): JobText(label=str(r.job_id)) for r in rows}
    words |= {JobId(j): t for j, t in (texts or {}).items()}
    seen = build.observed(rows, texts=words, **{"nodes": (4, 4), **more})
    snap = build.snapshot(seen, memory={"ran_s": ran_s or {}})
    left = [left_s.get(r.job_id, math.inf) for r in rows]
    return dataclasses.replace(snap, left_s=np.array(left, dtype=np.float64))


def ranked(snap: Snapshot, policy: Policy | None = None) -> list[int]:
    """Job ids, best first."""
    found: list[int] = snap.jobs.job_id[intend(snap, policy or Grouper()).ranked].tolist()
    return found


def grouping(snap: Snapshot, policy: Grouper) -> list[list[int]]:
    """Ids of the jobs of each group."""
    rows = np.arange(len(snap.jobs))
    group = policy.groups(snap, rows)
    ids = snap.jobs.job_id
    return sorted(sorted(ids[group == g].tolist()) for g in set(group.tolist()))


def test_groups_are_arrays_and_jobs_of_like_names() -> None:
    """Names of other users, numbers only, and no name make no group; so does nothing if off."""
    texts = {
        11: JobText(label="10_1", name="x", user="ann"),
        10: JobText(label="10_[2-5]", name="x", user="ann"),
        12: JobText(label="12", name="sweep-1", user="ann"),
        13: JobText(label="13", name="sweep-23", user="ann"),
        14: JobText(label="14", name="sweep-1", user="bob"),
        15: JobText(label="15", name="7", user="ann"),
        16: JobText(label="16", name="8", user="ann"),
        17: JobText(label="17", name="x", user="ann"),
        18: JobText(label="18"),
        20: JobText(label="20", name="1" * 50_000 + "x", user="ann"),
        19: JobText(label="19"),
        21: JobText(label="21", name="run1", user="ann"),
        22: JobText(label="22", name="run2", user="ann"),
    }
    rows = [build.pending(j) for j in (*texts, 23)]
    snap = snapshot_of(rows, {}, texts)

    alone = [[14], [15], [16], [17], [18], [19], [20], [23]]
    began_s = time.process_time()
    assert grouping(snap, Grouper()) == sorted([[10, 11], [12, 13], [21, 22], *alone])
    assert time.process_time() - began_s < 1, "a long name takes long"
    apart = sorted([[10, 11], [12], [13], [21], [22], *alone])
    assert grouping(snap, Grouper(group_names=False)) == apart
    unnamed = dataclasses.replace(snap, seen=dataclasses.replace(snap.seen, texts={}))
    assert grouping(unnamed, Grouper()) == [[j] for j in sorted([*texts, 23])]


def like(name: str, *jobs: int) -> dict[int, JobText]:
    """Jobs of a group."""
    return {j: JobText(label=str(j), name=f"{name}_{j}", user="ann") for j in jobs}


def test_the_jobs_of_a_stage_stay_together_the_longest_first() -> None:
    """Group a needs 500 s for its longest job, b 300 s, and job 5 has 400 s."""
    rows = [build.pending(j) for j in (1, 2, 3, 4, 5)]
    left_s = {1: 10.0, 2: 500.0, 3: 200.0, 4: 300.0, 5: 400.0}
    texts = {**like("a", 1, 2), **like("b", 3, 4)}

    assert ranked(snapshot_of(rows, left_s, texts)) == [4, 3, 5, 2, 1]


def test_a_stage_of_much_work_is_long_even_if_its_jobs_are_short() -> None:
    """Eight GPUs: ten jobs of 8 GPUs and 30 s need 300 s, one job 290 s."""
    rows = [build.pending(j, 8) for j in range(1, 11)] + [build.pending(11)]
    left_s = {**dict.fromkeys(range(1, 11), 30.0), 11: 290.0}
    snap = snapshot_of(rows, left_s, like("a", *range(1, 11)))

    assert ranked(snap) == [11, *range(1, 11)]
    assert ranked(dataclasses.replace(snap, left_s=snap.left_s * [*[1] * 10, 1.04]))[-1] == 11


def test_the_pending_tasks_of_an_array_count_as_so_many_jobs() -> None:
    """Eighty tasks of 40 s on eight GPUs need 400 s, one of 300 s is sooner done."""
    rows = [build.pending(1, tasks=80), build.pending(2)]

    assert ranked(snapshot_of(rows, {1: 40.0, 2: 300.0})) == [2, 1]
    assert ranked(snapshot_of(rows, {1: 20.0, 2: 300.0})) == [1, 2]


def test_jobs_tied_to_a_type_have_its_gpus_only() -> None:
    """Four GPUs of type 1: four jobs of 100 s on 4 GPUs each need 400 s there, 200 s anywhere."""
    rows = [build.pending(j, 4, gpu_type=1) for j in range(1, 5)] + [build.pending(5)]
    left_s = {**dict.fromkeys(range(1, 5), 100.0), 5: 300.0}
    snap = snapshot_of(rows, left_s, like("a", 1, 2, 3, 4), columns={"gpu_type": [0, 1]})

    assert ranked(snap) == [5, 1, 2, 3, 4]
    anywhere = [build.pending(j, 4) for j in range(1, 5)] + [build.pending(5)]
    assert ranked(snapshot_of(anywhere, left_s, like("a", 1, 2, 3, 4))) == [1, 2, 3, 4, 5]


def test_of_whom_nothing_is_known_runs_as_long_again_as_it_has() -> None:
    """Least attained first where no time is known; beside known times it is an estimate."""
    rows = [build.pending(j) for j in (1, 2, 3)]
    ran_s = {1: 90.0, 2: 40.0}

    assert ranked(snapshot_of(rows, {}, ran_s=ran_s)) == [3, 2, 1]
    assert ranked(snapshot_of(rows, {3: 50.0}, ran_s=ran_s)) == [2, 3, 1]


def test_equal_stages_are_in_the_order_of_their_first_submission() -> None:
    """Job 4 is older than its group's other one; held jobs of a group take no part."""
    rows = [
        build.pending(3),
        build.pending(9, submit_s=build.NOW_S - 2e5),
        build.pending(4),
        build.pending(5, held=Held.DEPENDENCY),
    ]
    texts = {**like("a", 4, 9), **like("b", 3, 5)}
    snap = snapshot_of(rows, {3: 60.0, 4: 60.0, 9: 60.0, 5: 1.0}, texts)

    assert ranked(snap)[:3] == [9, 4, 3]


def test_jobs_of_a_stage_do_not_swap_as_they_run() -> None:
    """By all of its time, run or not; equals by submission, whatever their sums are off."""
    rows = [build.pending(1), build.running(2)]
    texts = like("a", 1, 2)

    assert ranked(snapshot_of(rows, {1: 550.0, 2: 500.0}, texts, {2: 100.0})) == [2, 1]
    assert ranked(snapshot_of(rows, {1: 550.0, 2: 400.0}, texts, {2: 100.0})) == [1, 2]
    assert 0.1 + 0.2 > 0.3
    assert ranked(snapshot_of(rows, {1: 0.3, 2: 0.2}, texts, {2: 0.1})) == [1, 2]


def test_sums_of_work_do_not_depend_on_how_jobs_are_listed() -> None:
    """0.1 + 0.2 + 0.3 is more than 0.6 in this order only."""
    rows = [build.pending(j) for j in (1, 2, 3, 4)]
    left_s = {1: 0.1, 2: 0.2, 3: 0.3, 4: 0.6}
    texts = like("a", 1, 2, 3)

    for listed in (rows, rows[::-1]):
        assert ranked(snapshot_of(listed, left_s, texts, nodes=(1,))) == [4, 3, 2, 1]


def searches(seed: int, *, groups: int, arrive_s: float) -> list[Work]:
    """Stages of two to six jobs of unequal length."""
    draw = np.random.default_rng(seed)
    works: list[Work] = []
    for g in range(groups):
        submit_s = build.NOW_S + float(draw.uniform(0, arrive_s))
        scale_s = float(draw.choice([50.0, 200.0, 800.0]))
        for _ in range(int(draw.integers(2, 7))):
            job_id = len(works) + 1
            works.append(
                Work(
                    job_id=job_id,
                    submit_s=submit_s,
                    size_s=float(round(scale_s * draw.uniform(0.2, 1.8), 1)),
                    gpus=float(draw.choice([1, 1, 2])),
                    name=f"search{chr(97 + g)}_{job_id}",
                )
            )
    return works


def mean_stage_s(works: list[Work]) -> float:
    """Mean time from a group's submission to its last end."""
    groups: dict[str, list[Work]] = {}
    for w in works:
        groups.setdefault(w.name.partition("_")[0], []).append(w)
    waits = [max(w.end_s for w in g) - min(w.submit_s for w in g) for g in groups.values()]
    return sum(waits) / len(waits)


@pytest.mark.parametrize("seed", range(4))
def test_on_one_gpu_no_permutation_of_stages_is_better(seed: int) -> None:
    """All there at once: the least mean over all orders of five stages, one after the other."""
    works = [dataclasses.replace(w, gpus=1.0) for w in searches(seed, groups=5, arrive_s=0.0)]
    lengths: dict[str, float] = {}
    for w in works:
        stem = w.name.partition("_")[0]
        lengths[stem] = lengths.get(stem, 0.0) + w.size_s
    best = min(
        sum(itertools.accumulate(order)) / len(order)
        for order in itertools.permutations(lengths.values())
    )
    policy_runs.run(Grouper(), works, 1)

    assert mean_stage_s(works) == pytest.approx(best)
    assert all(len(w.runs) == 1 for w in works)


def test_it_looks_again_only_where_times_are_not_known() -> None:
    """A job that is guessed by what it has had gets a turn's end."""
    rows = [build.running(1), build.pending(2)]
    runs = np.array([True, False])
    policy = Grouper(quantum_s=60)
    known = snapshot_of(rows, {1: 50.0})
    guessed = snapshot_of(rows, {2: 50.0})

    assert policy.next_change_s(known, policy.order(known), runs) == math.inf
    assert policy.next_change_s(guessed, policy.order(guessed), runs) == build.NOW_S + 60
    everybody = np.array([True, True])
    assert policy.next_change_s(guessed, policy.order(guessed), everybody) == math.inf
