"""Deadlines of jobs: those that count, what their owners are told, what policies make of them."""

from __future__ import annotations

import dataclasses
import itertools
import math
from pathlib import Path
from typing import Any

import build
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_dl import sim
from slurm_dl.daemon.enrich import Enricher
from slurm_dl.engine.cycle import Cycle
from slurm_dl.engine.decide import decide
from slurm_dl.engine.explain.plan_reasons import why
from slurm_dl.engine.promise_terms import counted_deadlines
from slurm_dl.engine.settings import Deadlines, Settings
from slurm_dl.estimates.training_speed import SitePriors
from slurm_dl.model.contract import Claim
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import Held, JobState
from slurm_dl.model.promise import Promise
from slurm_dl.model.snapshot import JobText, Snapshot
from slurm_dl.model.value_curve import ValueCurve
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.policies.edf import Edf
from slurm_dl.policies.gavel.objectives import GavelCost, GavelCostSlo
from slurm_dl.policies.karuna import Karuna

NOW_S = int(build.NOW_S)
DAY_S = 86_400
SOON_S = NOW_S + 5000


def snapshot(
    *jobs: tuple[str, float, int | None], parts: tuple[int, ...] = (), **more: object
) -> Snapshot:
    """Jobs of ACCOUNT or ACCOUNT@UID, with GPUs and a deadline, on two pools of 8 GPUs each.

    Args:
        parts: The pool of each job, 2 is both; empty: all in the first.
    """
    parts = parts or (0,) * len(jobs)
    rows, claims, texts = [], {}, {}
    for i, ((owner, gpus, due_s), part) in enumerate(zip(jobs, parts, strict=True), 1):
        account, _, uid = owner.partition("@")
        whose = {"uid": int(uid or i), **more}
        rows.append(build.pending(i, gpus, partition=part % 2, limit_s=1000.0, **whose))
        claims[JobId(i)] = Claim(due_s=due_s)
        texts[JobId(i)] = JobText(label=str(i), account=account, qos="normal")
    also = {JobId(i): (1,) for i, part in enumerate(parts, 1) if part == 2}
    seen = build.observed(rows, nodes=(8, 8), claims=claims, texts=texts, also_in=also)
    seen = dataclasses.replace(seen, node_in=np.array([[True, False], [False, True]]))
    return dataclasses.replace(build.snapshot(seen), managed=np.array([True, True]))


def numbers(snap: Snapshot, rules: Deadlines | None) -> list[int]:
    """Ids of the jobs whose deadline counts; the others each have a reason."""
    found = counted_deadlines(snap, rules)
    due_s = np.full(len(snap.jobs), np.inf) if found.due_s is None else found.due_s
    ids = snap.jobs.job_id[np.isfinite(due_s)].tolist()
    assert {*ids, *found.refused} == set(snap.jobs.job_id.tolist())
    assert not {*ids} & {*found.refused}
    return list(map(int, ids))


ALL = Deadlines(share=1.0, account_share=1.0)


@pytest.mark.parametrize(
    ("jobs", "rules", "counted", "word"),
    [
        ([("a", 2, SOON_S)], Deadlines(), [1], ""),
        # A quarter of 8 GPUs for an account, half for all.
        (
            [("a", 2, SOON_S), ("a", 1, SOON_S)],
            Deadlines(),
            [1],
            "account a may have deadlines on 2 of 8 GPUs",
        ),
        ([("a", 3, SOON_S), ("a", 1, SOON_S)], Deadlines(), [2], "account a may have"),
        ([(c, 2, SOON_S) for c in "abc"], Deadlines(), [1, 2], "all jobs may have deadlines on 4"),
        ([("", 9, SOON_S)], ALL, [], "user 1 may have"),
        # A user of two accounts has one share.
        ([("a@1", 2, SOON_S), ("b@1", 1, SOON_S)], Deadlines(), [1], "user 1 may have"),
        ([("@1", 2, SOON_S), ("b@1", 1, SOON_S), ("@2", 2, SOON_S)], Deadlines(), [1, 3], "user 1"),
        ([("a", 1, NOW_S)], ALL, [], "it has passed"),
        ([("a", 1, NOW_S + 14 * DAY_S)], ALL, [1], ""),
        ([("a", 1, NOW_S + 14 * DAY_S + 1)], ALL, [], "it is more than 14 d ahead"),
        ([("a", 1, 10**12)], ALL, [], "it is more than 14 d ahead"),
        ([("a", 1, SOON_S)], Deadlines(qos=("urgent",)), [], "jobs of QOS normal may have none"),
        ([("a", 1, SOON_S)], Deadlines(qos=("urgent", "normal")), [1], ""),
        ([("a", 1, SOON_S)], None, [], "Slurm itself preempts"),
    ],
)
def test_a_deadline_counts_within_the_bounds_of_the_site(
    jobs: list[tuple[str, float, int]], rules: Deadlines | None, counted: list[int], word: str
) -> None:
    """First submitted first; whoever is refused has the reason."""
    snap = snapshot(*jobs)

    assert numbers(snap, rules) == counted
    assert word in "; ".join(counted_deadlines(snap, rules).refused.values())


@pytest.mark.parametrize(
    ("owner", "rules"), [("a", Deadlines()), ("b", Deadlines(share=0.25, account_share=1.0))]
)
def test_the_reason_does_not_tell_what_others_have(owner: str, rules: Deadlines) -> None:
    """Slurm may hide the jobs of others, also those of an account, from the owner."""
    reasons = {
        counted_deadlines(snapshot(*others, ("a", 1, SOON_S)), rules).refused[JobId(3)]
        for others in (
            [(owner, 1, SOON_S), (owner, 1, SOON_S)],
            [(owner, 1.5, SOON_S), (owner, 0.25, SOON_S)],
        )
    }

    assert len(reasons) == 1


def test_all_tasks_of_an_array_ask_for_their_gpus() -> None:
    """An array of many small tasks is no way around the share."""
    assert numbers(snapshot(("a", 1, SOON_S), tasks=2), Deadlines()) == [1]
    assert numbers(snapshot(("a", 1, SOON_S), tasks=3), Deadlines()) == []


def test_each_gpu_type_has_its_share() -> None:
    """Deadlines on a type of which there are few GPUs do not take all of them."""
    jobs = [(owner, 4.0, SOON_S) for owner in "abc"]
    snap = snapshot(*jobs)
    seen = dataclasses.replace(
        snap.seen,
        jobs=dataclasses.replace(snap.jobs, gpu_type=np.array([1, 1, 0], np.int16)),
        nodes=dataclasses.replace(snap.seen.nodes, gpu_type=np.array([0, 1], np.int16)),
        gpu_types=("k80", "a100"),
        node_in=np.ones((2, 2), np.bool_),
    )
    snap = dataclasses.replace(snap, seen=seen)

    rules = Deadlines(share=0.75, account_share=0.5)

    assert numbers(snap, rules) == [1, 3]
    assert "6 of 8 a100 GPUs" in counted_deadlines(snap, rules).refused[JobId(2)]


@pytest.mark.parametrize(
    ("held", "begins_in_s", "counted"),
    [
        (Held.NO, None, 1),
        (Held.USER_OR_ADMIN, None, 2),
        (Held.DEPENDENCY, None, 2),
        (Held.LIMIT, None, 2),
        (Held.UNAVAILABLE, None, 2),
        (Held.BEGIN_TIME, DAY_S, 2),
        # After a requeue Slurm keeps a job back for two minutes.
        (Held.BEGIN_TIME, 120, 1),
    ],
)
def test_a_job_that_cannot_start_keeps_no_other_from_its_deadline(
    held: Held, begins_in_s: int | None, counted: int
) -> None:
    """A held job costs nothing, so its deadline holds no share of the GPUs."""
    snap = snapshot(("a", 4, SOON_S), ("a", 4, SOON_S))
    columns = snap.jobs.held.copy()
    columns[0] = held
    seen = dataclasses.replace(
        snap.seen,
        jobs=dataclasses.replace(snap.jobs, held=columns),
        begins={} if begins_in_s is None else {JobId(1): snap.now_s + begins_in_s},
    )
    half = Deadlines(share=0.5, account_share=0.5)

    assert numbers(dataclasses.replace(snap, seen=seen), half) == [counted]


JOBS = st.tuples(
    st.sampled_from(["a@1", "b@1", "b@2"]),
    st.sampled_from([1.0, 2.0, 3.0, 5.0]),
    st.sampled_from([NOW_S - 1, SOON_S, NOW_S + 20 * DAY_S]),
)
SHARES = st.sampled_from([0.25, 0.5, 1.0])


@settings(max_examples=60, deadline=None)
@given(
    jobs=st.lists(st.tuples(JOBS, st.integers(0, 2)), min_size=1, max_size=6),
    rules=st.builds(Deadlines, share=SHARES, account_share=SHARES),
)
def test_what_counts_is_the_first_set_that_fits(
    jobs: list[tuple[tuple[str, float, int], int]], rules: Deadlines
) -> None:
    """Of all sets within the bounds, the one that has the earliest jobs; found by trying all."""
    asked = [job for job, _ in jobs]
    parts = tuple(part for _, part in jobs)

    def fits(chosen: tuple[bool, ...]) -> bool:
        inside = [(job, part) for job, part, yes in zip(asked, parts, chosen, strict=True) if yes]
        if any(not 0 < due_s - NOW_S <= 14 * DAY_S for (_, _, due_s), _ in inside):
            return False
        for pool in (0, 1):
            here = [job for job, part in inside if part in (pool, 2)]
            if sum(gpus for _, gpus, _ in here) > rules.share * 8:
                return False
            for owner in ("a", "b", "1", "2"):
                own = [gpus for of, gpus, _ in here if owner in of]
                if sum(own) > rules.account_share * 8:
                    return False
        return True

    best = max(filter(fits, itertools.product((False, True), repeat=len(jobs))))

    assert numbers(snapshot(*asked, parts=parts), rules) == [
        i for i, yes in enumerate(best, 1) if yes
    ]


@pytest.mark.parametrize(
    ("ahead_s", "answered_s", "due_s", "kept_s"),
    [
        ((100, 200, 300), None, 100, (100, 200, 300)),
        ((-100, 200, 300), None, 200, (200, 300)),
        ((0, 200), None, 200, (200,)),
        ((100, 999, 1001), None, 100, (100, 999)),
        ((-300, -200), None, None, None),
        ((1001, 1002), None, None, None),
        ((100, 200, 300), 200, 200, (100, 200, 300)),
        ((-100, 200, 2000), 2000, 2000, (-100, 200, 2000)),
        ((-100, 200), -100, -100, (-100, 200)),
        ((100, 200), 150, 100, (100, 200)),
    ],
)
def test_of_several_deadlines_the_next_or_the_promised_one_counts(
    ahead_s: tuple[int, ...],
    answered_s: int | None,
    due_s: int | None,
    kept_s: tuple[int, ...] | None,
) -> None:
    """Within the bounds of the site, which are for those that are not answered."""
    curve = ValueCurve(
        tuple(float(NOW_S + s) for s in ahead_s), tuple(9.0 - i for i in range(len(ahead_s)))
    )
    snap = snapshot(("a", 2, NOW_S + ahead_s[0]), ("b", 2, SOON_S))
    claims = {**snap.seen.claims, JobId(1): Claim(due_s=NOW_S + ahead_s[0], curve=curve)}
    snap = dataclasses.replace(snap, seen=dataclasses.replace(snap.seen, claims=claims))
    if answered_s is not None:
        answer = Promise(
            says="yes", due_s=NOW_S + answered_s, at_s=NOW_S, gpus=2.0, needs_s=9, rests_on="limit"
        )
        snap = dataclasses.replace(snap, booked=(answer.entry(JobId(1)),))
    rules = Deadlines(share=1.0, account_share=1.0, longest_ahead_s=1000)
    enricher = Enricher(profiles={}, site=SitePriors(), deadlines=rules, policy=Edf())

    found, seen = counted_deadlines(snap, rules, shared=False), enricher(snap)

    assert (JobId(1) in found.refused) is (due_s is None)
    assert seen.curves == found.curves
    assert JobId(2) not in found.curves
    if due_s is None or kept_s is None:
        assert JobId(1) not in found.curves
        return
    assert seen.due_s is not None
    assert seen.due_s[0] - NOW_S == due_s
    assert tuple(at_s - NOW_S for at_s in found.curves[JobId(1)].due_s) == kept_s


def test_jobs_that_are_over_or_elsewhere_hold_no_share() -> None:
    """An ended job, and one in a partition that is not managed, leave room for the others."""
    snap = snapshot(("a", 2, SOON_S), ("a", 2, SOON_S), ("a", 2, SOON_S), parts=(0, 1, 0))
    columns = snap.jobs.state.copy()
    columns[0] = JobState.COMPLETED
    jobs = dataclasses.replace(snap.jobs, state=columns)
    seen = dataclasses.replace(snap.seen, jobs=jobs)
    snap = dataclasses.replace(snap, seen=seen, managed=np.array([True, False]))
    found = counted_deadlines(snap, Deadlines())

    assert found.due_s is not None
    assert found.due_s.tolist() == [math.inf, math.inf, SOON_S]
    assert found.refused == {}


@pytest.mark.parametrize(
    ("policy", "left_s", "due_s", "words"),
    [
        (Karuna(), 1000.0, SOON_S, ", at least 1 h 6 min to spare."),
        (Karuna(), 6000.0, SOON_S, ", up to 16 min 40 s too late"),
        (Karuna(), math.inf, SOON_S, "Z.\n"),
        (Karuna(), 1000.0, NOW_S - 1, "; its deadline is not counted: it has passed."),
        (DiscreteLas(), 1000.0, SOON_S, "policy discrete_las does not go by deadlines."),
    ],
)
def test_the_owner_is_told_of_the_deadline(
    policy: Any,  # noqa: ANN401 - any policy
    left_s: float,
    due_s: int,
    words: str,
) -> None:
    snap = dataclasses.replace(snapshot(("a", 1, due_s)), left_s=np.array([left_s]))
    how = Settings(partitions=frozenset({"gpu"}))
    cycle = Cycle(snap, decide(snap, policy, how), acting=False, settings=how)

    told = "\n".join(why(cycle, policy, JobId(1)))

    assert "Due 1970-01-24 " in told
    assert words in told


def test_the_daemon_lets_policies_go_by_what_jobs_claim() -> None:
    """Gavel's costs alone give nothing to the job of all GPUs, and its deadline half of the time.

    Karuna puts it first at its latest start, and last before.
    """
    know = Enricher(profiles={}, site=SitePriors(), deadlines=ALL)
    claimed = snapshot(("a", 16, NOW_S + 2000), ("a", 8, None), ("a", 8, None))
    seen = dataclasses.replace(claimed.seen, node_in=np.ones((2, 2), np.bool_))
    snap = know(dataclasses.replace(claimed, seen=seen))
    silent = know(dataclasses.replace(claimed, seen=dataclasses.replace(seen, claims={})))

    assert snap.due_s is not None
    assert snap.due_s.tolist() == [NOW_S + 2000, math.inf, math.inf]
    assert silent.due_s is None
    for policy, each, shares in (
        (GavelCost(), snap, [0, 1, 1]),
        (GavelCostSlo(), silent, [0, 1, 1]),
        (GavelCostSlo(), snap, [0.5, 0.5, 0.5]),
    ):
        found = policy.order(each).share
        assert found is not None
        assert found[:, 0] == pytest.approx(np.array(shares))
    last = Karuna().tiers - 1
    assert Karuna(margin_s=1000.0).order(snap).tier.tolist() == [0, 1, 1]
    assert Karuna(margin_s=900.0).order(snap).tier.tolist() == [last, 1, 1]
    assert Karuna(margin_s=1000.0).order(silent).tier.tolist() == [1, 1, 1]


def test_policies_go_by_the_deadlines_of_a_trace(tmp_path: Path) -> None:
    """Two GPUs: a job of both for 1000 s, due in 2200 s, and six of one; with and without costs."""
    path = tmp_path / "due.csv"
    path.write_text("submit_s,duration_s,gpus,due_s\n7,1000,2,2207\n" + "7,1000,1,\n" * 6)

    end_s = {
        name: sim.simulate(path, name, "1x2").jobs["end_s"][0]
        for name in ("gavel_cost", "gavel_cost_slo", "karuna")
    }

    assert end_s["gavel_cost"] == 4007
    assert end_s["gavel_cost_slo"] <= 2207
    assert end_s["karuna"] == pytest.approx(2207 - 300)
    on_slurm = sim.simulate(path, "karuna", "1x2", costs="slurm").jobs["end_s"]
    assert 1900 < on_slurm[0] <= 2207 < max(on_slurm[1:])
