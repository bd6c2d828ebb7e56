"""ASTRAEA: its steps, what jobs deserve, whose turn it is, and fairness in the long run."""

from __future__ import annotations

import math
from typing import Any

import build
import numpy as np
import policy_runs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pasts import past_columns
from policy_runs import Work

from slurm_dl.engine.intent import intend
from slurm_dl.model.completed_jobs import NO_PAST, Past
from slurm_dl.model.jobs import Held, JobRow
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.arithmetic.supply_and_demand import tenants
from slurm_dl.policies.astraea_ltgf import (
    AstraeaLtgf,
    Turns,
    deserved,
    fairness,
    fairness_level,
)
from slurm_dl.policies.base import Leasing

HOUR_S = 3600.0
START_S = 1800.0 * 1110
"""Leases of 30 min, and hours, begin here."""


def snapshot_of(
    rows: list[JobRow],
    accounts: dict[int, str],
    memory: dict[str, dict[int, float]] | None = None,
    *,
    past: Past | None = None,
    **more: Any,  # noqa: ANN401
) -> Snapshot:
    """Jobs of these accounts on eight GPUs."""
    known = {"waiting_since_s": {r.job_id: build.NOW_S - 60 for r in rows}, **(memory or {})}
    seen = build.observed(rows, texts=build.texts(account=accounts), **{"nodes": (4, 4), **more})
    return build.snapshot(seen, memory=known, past=past or NO_PAST)


def ranked(snap: Snapshot, policy: AstraeaLtgf | None = None) -> list[int]:
    """Job ids, best first."""
    found: list[int] = snap.jobs.job_id[intend(snap, policy or AstraeaLtgf()).ranked].tolist()
    return found


def past_of(gpus: list[float], ran_s: list[float], account: str = "z") -> Past:
    """Finished jobs that ended long ago."""
    return past_columns(ran_s, gpus=gpus, end_s=1.0, accounts=(account,))


def test_the_steps_of_fairness_have_their_known_values() -> None:
    """Five steps: those of the public simulator."""
    ratio = np.array([0, 0.05, 0.3, 0.6, 1, 1.5, 3, 20])

    assert fairness_level(ratio, 5).tolist() == [0, 1, 1, 2, 3, 4, 5, 5]


@given(log_ratio=st.floats(-2, 2), levels=st.integers(1, 9))
def test_the_steps_end_where_the_formula_says(log_ratio: float, levels: int) -> None:
    """Solved for the ratio: step m of k ends at log(r) = c / sqrt(1 - c^2), c = 2 m / k - 1."""
    ratio, edges = math.exp(log_ratio), []
    for m in range(1, levels):
        c = 2 * m / levels - 1
        edges.append(math.exp(c / math.sqrt(1 - c * c)))
    if any(abs(math.log(ratio / e)) < 1e-9 for e in edges):
        return

    assert fairness_level(np.array([ratio]), levels).tolist() == [1 + sum(ratio > e for e in edges)]


def test_what_is_not_deserved_is_the_worst_step_and_nothing_had_is_the_best() -> None:
    """Nothing over nothing is nothing."""
    ratio = fairness(np.array([0.0, 0.0, 5.0, 5.0]), np.array([0.0, 9.0, 0.0, 10.0]))

    assert ratio.tolist() == [0.0, 0.0, math.inf, 0.5]
    assert fairness_level(ratio, 5).tolist() == [0, 0, 5, 2]


def deserved_by_hand(lives: list[tuple[str, float, float, float]], quota: float) -> list[float]:
    """Second by second: account, GPUs, first and last second of every job of the account."""
    found = []
    for name, gpus, begin, end in lives:
        total = 0.0
        for second in range(int(begin), int(end)):
            others = sum(n == name and b <= second < e for n, _, b, e in lives)
            total += min(gpus, quota / others)
        found.append(total)
    return found


@settings(max_examples=30, deadline=None)
@given(
    live=st.lists(
        st.tuples(st.sampled_from("ab"), st.sampled_from([0.5, 1.0, 4.0]), st.integers(0, 60)),
        min_size=1,
        max_size=6,
    ),
    over=st.lists(
        st.tuples(st.sampled_from("abz"), st.integers(0, 50), st.integers(1, 30)), max_size=6
    ),
)
def test_what_jobs_deserve_equals_a_sum_second_by_second(
    live: list[tuple[str, float, int]], over: list[tuple[str, int, int]]
) -> None:
    """Jobs of other accounts do not count, those that are over do while they were there."""
    zero_s = build.NOW_S - 60
    rows = [build.pending(i + 1, g, submit_s=zero_s + t) for i, (_, g, t) in enumerate(live)]
    ended = sorted(((n, float(b), min(b + d, 60.0)) for n, b, d in over), key=lambda o: o[2])
    past = past_columns(
        [1.0] * len(ended),
        account=["abz".index(n) for n, _, _ in ended],
        submit_s=[zero_s + b for _, b, _ in ended],
        start_s=[zero_s + e - 1 for _, _, e in ended],
        end_s=[zero_s + e for _, _, e in ended],
        accounts=("a", "b", "z"),
    )
    snap = snapshot_of(rows, {i + 1: a for i, (a, _, _) in enumerate(live)}, past=past)
    who = tenants(snap)
    found = deserved(snap, who, np.full(len(who), 3.0))

    lives = [(a, g, float(t), 60.0) for a, g, t in live]
    lives += [(n, 1.0, b, e) for n, b, e in ended]
    assert found.tolist() == pytest.approx(deserved_by_hand(lives, 3.0)[: len(live)], abs=1e-6)


def test_the_tasks_of_an_array_share_as_so_many_jobs() -> None:
    """Three tasks and one job of an account with 2 GPUs deserve half a GPU each."""
    rows = [build.pending(1, 1, submit_s=build.NOW_S - 100, tasks=3)]
    rows.append(build.pending(2, 1, submit_s=build.NOW_S - 100))
    snap = snapshot_of(rows, {1: "a", 2: "a"})

    assert deserved(snap, tenants(snap), np.array([2.0])).tolist() == [50.0, 50.0]


def picks_by_hand(
    queues: dict[int, list[tuple[int, float]]],
    quota: list[float],
    had: list[float],
    room: float,
    least: float,
) -> list[int]:
    """One GPU gift after the other, as the paper tells it; leases of 10 s."""
    queues = {t: list(q) for t, q in queues.items() if q}
    given = dict.fromkeys(queues, 0.0)
    found = []
    while room > 0 and queues:
        used = {t: given[t] / quota[t] for t in queues}
        value = {t: (had[t] + 10 * given[t]) / quota[t] for t in queues}
        poorest = min(queues, key=lambda t: (used[t], value[t], t))
        turn = min(queues, key=lambda t: (value[t], t))
        t = poorest if used[poorest] < least else turn
        while queues[t]:
            job, gpus = queues[t].pop(0)
            if gpus <= room:
                found.append(job)
                given[t] += gpus
                room -= gpus
                break
        if not queues[t]:
            del queues[t]
    return found


@settings(max_examples=80, deadline=None)
@given(
    jobs=st.lists(st.tuples(st.integers(0, 3), st.sampled_from([1.0, 2.0, 4.0])), max_size=14),
    had=st.lists(st.integers(0, 60).map(float), min_size=4, max_size=4),
    quota=st.lists(st.sampled_from([1.0, 2.0, 8.0]), min_size=4, max_size=4),
    room=st.integers(0, 16).map(float),
    least=st.sampled_from([0.0, 0.2, 0.75]),
)
def test_turns_equal_the_loop_of_the_paper(
    jobs: list[tuple[int, float]], had: list[float], quota: list[float], room: float, least: float
) -> None:
    """With little room, and with room for all, where the sorted form must say the same."""
    jobs = sorted(jobs, key=lambda j: j[0])
    queues = {t: [(i, g) for i, (o, g) in enumerate(jobs) if o == t] for t in range(4)}
    tenant = np.array([t for t, _ in jobs], dtype=np.int64)
    gpus = np.array([g for _, g in jobs], dtype=np.float64)
    kind = np.full(len(jobs), -1, dtype=np.int16)
    turns = Turns(quota=np.array(quota), had_gpu_s=np.array(had), lease_s=10.0, least=least)

    found = turns.picks(tenant, gpus, kind, np.zeros(1), room).tolist()
    assert found == picks_by_hand(queues, quota, had, room, least)
    in_turn = turns.sorted(tenant, gpus, np.zeros(4)).tolist()
    assert in_turn == picks_by_hand(queues, quota, had, math.inf, least)


def test_what_is_given_before_counts_in_the_turns_of_the_rest() -> None:
    """Tenant 0 holds three GPUs already, tenant 1 one: its next two jobs come first."""
    turns = Turns(quota=np.ones(2), had_gpu_s=np.zeros(2), lease_s=10.0, least=0.0)
    tenant = np.array([0, 0, 1, 1, 1])

    assert turns.sorted(tenant, np.ones(5), np.array([3.0, 1.0])).tolist() == [2, 3, 0, 4, 1]


def test_a_job_that_wants_a_type_takes_it_from_that_type() -> None:
    """Two GPUs of type 1: the second job for it does not fit, whoever comes behind does."""
    turns = Turns(quota=np.ones(1), had_gpu_s=np.zeros(1), lease_s=10.0, least=0.0)
    kind = np.array([1, 1, -1, 0], dtype=np.int16)
    found = turns.picks(np.zeros(4, np.int64), np.full(4, 2.0), kind, np.array([4.0, 2.0]), 6.0)

    assert found.tolist() == [0, 2, 3]


def test_a_job_whose_type_is_gone_leaves_the_turn_to_its_account() -> None:
    """Four GPUs of each type: the second job for type 1 stands behind all that fit."""
    rows = [build.pending(j, 4, gpu_type=1) for j in (1, 2)] + [build.pending(3, 4)]
    snap = snapshot_of(rows, dict.fromkeys((1, 2, 3), "a"), columns={"gpu_type": [0, 1]})

    assert ranked(snap) == [1, 3, 2]


def test_quotas_are_parts_by_weight_of_the_accounts_that_count() -> None:
    """Those with jobs that take part, and those with a weight, present or not."""
    rows = [build.pending(1), build.pending(2), build.pending(3, held=Held.LIMIT)]
    who = tenants(snapshot_of(rows, {1: "a", 2: "b", 3: "c"}))
    part = np.array([0, 1])

    assert AstraeaLtgf().quotas(who, part, 8.0)[:2].tolist() == [4.0, 4.0]
    weighted = AstraeaLtgf(weights=(("b", 2.0), ("z", 1.0)))
    assert weighted.quotas(who, part, 8.0)[:2].tolist() == [2.0, 4.0]


def test_the_account_that_had_less_is_served_first() -> None:
    """Account a had two GPUs for two hours, b one, c none; nobody has GPUs now."""
    rows = [build.pending(i, 4) for i in (1, 2, 3)]
    memory = {
        "attained_gpu_s": {1: 4 * HOUR_S, 2: 2 * HOUR_S},
        "first_run_s": {1: build.NOW_S - 3 * HOUR_S, 2: build.NOW_S - 3 * HOUR_S},
        "waiting_since_s": {1: build.NOW_S - HOUR_S, 2: build.NOW_S - HOUR_S},
    }

    assert ranked(snapshot_of(rows, {1: "a", 2: "b", 3: "c"}, memory)) == [3, 2, 1]
    weighted = AstraeaLtgf(weights=(("a", 9.0), ("b", 3.0)))
    assert ranked(snapshot_of(rows, {1: "a", 2: "b", 3: "c"}, memory), weighted) == [3, 1, 2]


def test_what_was_served_before_the_window_is_forgotten() -> None:
    """A day and two hours ago account a had all; both had nothing since, so a is first by name."""
    rows = [build.pending(1, 4), build.pending(2, 4)]
    memory = {
        "attained_gpu_s": {1: 100.0},
        "first_run_s": {1: build.NOW_S - 27 * HOUR_S},
        "waiting_since_s": {1: build.NOW_S - 26 * HOUR_S, 2: build.NOW_S},
    }
    snap = snapshot_of(rows, {1: "a", 2: "b"}, memory)

    assert ranked(snap) == [1, 2]
    assert ranked(snap, AstraeaLtgf(buckets=30)) == [2, 1]


def test_below_a_fifth_of_its_quota_an_account_comes_first_whatever_it_had() -> None:
    """Twenty GPUs, ten each: b had much, but its first job precedes the third of a."""
    rows = [build.pending(i, 1) for i in range(1, 9)]
    accounts = {i: "a" if i <= 4 else "b" for i in range(1, 9)}
    memory = {
        "attained_gpu_s": {5: 50 * HOUR_S},
        "first_run_s": {5: build.NOW_S - 2 * HOUR_S},
        "waiting_since_s": {5: build.NOW_S - 1},
    }
    snap = snapshot_of(rows, accounts, memory, nodes=(20,))

    assert ranked(snap) == [1, 6, 2, 7, 3, 4, 8, 5]
    assert ranked(snap, AstraeaLtgf(least_quota=0.0)) == [1, 2, 3, 4, 6, 7, 8, 5]


@settings(max_examples=40, deadline=None)
@given(
    jobs=st.lists(
        st.tuples(
            st.sampled_from([0.0, 4e3, 2e4, 6e4]),
            st.sampled_from([1.0, 2.0, 4.0]),
            st.sampled_from([3600.0, 14399.0, 14400.0, 50000.0]),
            st.booleans(),
        ),
        min_size=1,
        max_size=8,
    ),
    data=st.data(),
)
def test_inside_an_account_jobs_are_sorted_by_four_keys(
    jobs: list[tuple[float, float, float, bool]], data: st.DataObject
) -> None:
    """Starving ones by submission; the others by step, chance over GPUs, submission.

    In whatever order Slurm lists them.
    """
    n = len(jobs)
    known = past_of([1.0] * 6 + [2.0] * 6, [600.0] * 4 + [9e3] * 2 + [900.0] + [6e4] * 5)
    rows = []
    memory: dict[str, dict[int, float]] = {
        c: {} for c in ("attained_gpu_s", "ran_s", "waiting_since_s", "first_run_s")
    }
    expected = []
    quota = 8.0
    for i, (had_gpu_s, gpus, waited_s, runs) in enumerate(jobs):
        job, submit_s = i + 1, build.NOW_S - 80_000 + 7 * (i % 3)
        more = {"submit_s": submit_s}
        rows.append(
            build.running(job, gpus, ran_s=100, **more)
            if runs
            else build.pending(job, gpus, **more)
        )
        memory["attained_gpu_s"][job] = had_gpu_s
        memory["ran_s"][job] = had_gpu_s / gpus
        memory["waiting_since_s"][job] = build.NOW_S - waited_s
        memory["first_run_s"][job] = submit_s
        lives = [(80_000 - 7 * (k % 3)) for k in range(n)]
        # All are there from 14 s after the first; the first 14 s are summed up one by one.
        total = sum(
            min(gpus, quota / max(1, sum(x > s for x in lives)))
            for s in range(int(min(lives)), int(lives[i]))
        ) + min(gpus, quota / n) * min(lives)
        level = int(fairness_level(np.array([had_gpu_s / total]), 5)[0])
        bins = {1.0: [0, 0, 0, 0, 5, 5], 2.0: [0, 33, 33, 33, 33, 33]}
        sample = bins.get(gpus, [b for g in (1.0, 2.0) for b in bins[g]])
        age = int(had_gpu_s / gpus // 1800)
        reached = sum(b >= age for b in sample)
        chance = sample.count(age) / reached if reached else 1.0
        starves = not runs and waited_s >= 14400
        rest = (0, 0.0) if starves else (level, round(-chance / gpus, 9))
        expected.append((not starves, *rest, submit_s, job))
    shuffled = data.draw(st.permutations(rows))
    snap = snapshot_of(shuffled, {r.job_id: "a" for r in rows}, memory, past=known, nodes=(100,))
    # Everybody fits, so that only the order inside the account is looked at.
    policy = AstraeaLtgf(weights=(("a", 8.0), ("nobody", 92.0)))

    assert ranked(snap, policy) == [e[-1] for e in sorted(expected)]


def test_without_finished_jobs_the_chance_is_left_out() -> None:
    """Two fresh jobs: submission decides; once small jobs are known to be short, they do."""
    rows = [build.pending(1, 4), build.pending(2, 1)]
    accounts = {1: "a", 2: "a"}
    short = past_of([1.0] * 5 + [4.0] * 5, [60.0] * 5 + [9e5] * 5)

    assert ranked(snapshot_of(rows, accounts)) == [1, 2]
    assert ranked(snapshot_of(rows, accounts, past=short)) == [2, 1]


def test_of_jobs_as_likely_to_end_the_smaller_one_frees_more_soon() -> None:
    """The chance is over the GPUs; a job that is half as likely and a quarter as wide is first."""
    rows = [build.pending(1, 4), build.pending(2, 1)]
    accounts = {1: "a", 2: "a"}
    alike = past_of([1.0] * 5 + [4.0] * 5, [60.0] * 10)
    less = past_of([1.0] * 6 + [4.0] * 5, [60.0] * 3 + [9e5] * 3 + [60.0] * 5)
    rare = past_of([1.0] * 8 + [4.0] * 5, [60.0] + [9e5] * 7 + [60.0] * 5)

    assert ranked(snapshot_of(rows, accounts, past=alike)) == [2, 1]
    assert ranked(snapshot_of(rows, accounts, past=less)) == [2, 1]
    assert ranked(snapshot_of(rows, accounts, past=rare)) == [1, 2]


def test_users_are_the_tenants_where_a_cluster_knows_no_accounts() -> None:
    """User 7 has been served, user 8 has not."""
    rows = [build.running(1, 1, uid=7), build.pending(2, 1, uid=7), build.pending(3, 1, uid=8)]
    snap = build.snapshot(build.observed(rows), memory={"waiting_since_s": {2: build.NOW_S}})

    assert ranked(snap)[0] == 3


def loads(seed: int, accounts: dict[str, int], hours: float) -> list[Work]:
    """Jobs of unequal accounts, each enough for the whole cluster: *accounts* by GPUs of a job."""
    draw = np.random.default_rng(seed)
    works: list[Work] = []
    for account, widest in accounts.items():
        sizes = [s for s in (1, 2, 4) if s <= widest]
        arrival_s = START_S
        while arrival_s < START_S + hours * HOUR_S:
            works.append(
                Work(
                    job_id=len(works) + 1,
                    submit_s=arrival_s,
                    size_s=float(draw.choice([900.0, 5400.0, 20000.0])),
                    gpus=float(draw.choice(sizes)),
                    account=account,
                )
            )
            # The first jobs at once, so that every account could use all GPUs from the start.
            started = sum(w.gpus for w in works if w.account == account) >= 20
            arrival_s += float(draw.exponential(1200.0)) if started else 0.0
    return works


def had(works: list[Work], account: str) -> float:
    """GPU-seconds an account was served."""
    return sum(w.gpus * w.ran_s for w in works if w.account == account)


@pytest.mark.parametrize("weights", [(), (("a", 1.0), ("b", 2.0), ("c", 1.0))])
def test_accounts_converge_to_what_they_deserve_and_no_lease_is_cut(
    weights: tuple[tuple[str, float], ...],
) -> None:
    """Three accounts that want more than their quota all the time, over 32 leases.

    Each gets its quota within 5 %; nobody who runs is stopped before a whole lease is over.
    """
    works = loads(3, {"a": 1, "b": 2, "c": 4}, 16.0)
    policy = AstraeaLtgf(weights=weights)
    hours = 16.0
    policy_runs.run(policy, works, 16, until_s=START_S + hours * HOUR_S, knows_left=False)

    table = dict(weights)
    total = sum(table.get(a, 1.0) for a in "abc")
    for account in "abc":
        quota = 16 * table.get(account, 1.0) / total
        ratio = had(works, account) / (quota * hours * HOUR_S)
        assert 0.95 <= ratio <= 1.05, (account, ratio)
    for w in works:
        cut = [e for b, e in w.runs if e != w.end_s and e < START_S + hours * HOUR_S]
        assert all(min(e % 1800.0, -e % 1800.0) < 1e-6 for e in cut)
    assert sum(len(w.runs) > 1 for w in works) > 10


def test_what_one_account_cannot_use_goes_to_the_others() -> None:
    """Account c has one job of one GPU: it always runs, and no GPU is idle."""
    works = loads(5, {"a": 1, "b": 2}, 8.0)
    works.append(Work(job_id=999, submit_s=START_S, size_s=1e9, account="c"))
    policy_runs.run(AstraeaLtgf(), works, 8, until_s=START_S + 8 * HOUR_S, knows_left=False)

    assert had(works, "c") == pytest.approx(8 * HOUR_S)
    assert sum(had(works, a) for a in "abc") == pytest.approx(8 * 8 * HOUR_S, rel=0.01)
    assert had(works, "a") == pytest.approx(had(works, "b"), rel=0.05)


def test_jobs_hold_their_gpus_for_half_an_hour() -> None:
    """What the engine reads; between the ends of leases it need not ask."""
    policy = AstraeaLtgf()
    snap = snapshot_of([build.running(1), build.pending(2)], {1: "a", 2: "b"})

    assert isinstance(policy, Leasing)
    assert policy.lease_s == 1800.0
    assert policy.next_change_s(snap, policy.order(snap), np.array([True, False])) == math.inf
