"""Which jobs are in the line, the labels of its places, and who is served before his turn."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
from build import NOW_S, observed, pending, running, snapshot
from hypothesis import given
from hypothesis import strategies as st

from slurm_dl.engine.decide import decide
from slurm_dl.engine.settings import Overdue, Preemption, Settings
from slurm_dl.engine.waiting_line import keep, relabel
from slurm_dl.ledger.store_protocol import MemoryStore
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import Held
from slurm_dl.model.plan import OpenHandover, Plan, SetSiteFactor
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.base import Policy
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.policies.fifo import Fifo
from slurm_dl.policies.shortest import Srtf

SETTINGS = Settings(
    partitions=frozenset({"gpu"}), preemption=Preemption(beneficiaries="all", commitment="ignored")
)
BY_SITE = dataclasses.replace(SETTINGS, equals="site")
LAS = DiscreteLas(thresholds_gpu_s=(1000.0,))
B = SETTINGS.band_width


def written(plan: Plan) -> dict[int, int]:
    """The SiteFactors that *plan* writes."""
    return {int(a.job_id): a.value for a in plan.actions if isinstance(a, SetSiteFactor)}


def waiting(n: int = 6, **memory: dict[int, float]) -> Snapshot:
    """A full node, and jobs that wait for it; Slurm's own priority grows with the id."""
    rows = [running(1, 4)]
    rows += [pending(i, 4, priority=100 + i, limit_s=1000.0 * i) for i in range(2, n + 2)]
    return snapshot(observed(rows, nodes=(4.0,), held={1: {0: 4.0}}), memory=memory)


@pytest.mark.parametrize(
    ("policy", "equal"),
    [
        (LAS, [{2, 3, 4, 5}, {6, 7}]),  # Its two tiers; inside them only the submission counts.
        (Fifo(), [{2, 3, 4, 5, 6, 7}]),
        (Srtf(), [{2}, {3}, {4}, {5}, {6}, {7}]),
    ],
)
def test_the_sites_weights_decide_between_equals_where_it_wants(
    policy: Policy, equal: list[set[int]]
) -> None:
    """Equals have one SiteFactor, better ones a higher one, and RANK goes by Slurm's priority."""
    snap = waiting(attained_gpu_s={6: 5000.0, 7: 5000.0})
    plan = decide(snap, policy, BY_SITE)

    found = written(plan)
    groups: dict[int, set[int]] = {}
    for job_id, value in found.items():
        groups.setdefault(value, set()).add(job_id)
    assert [groups[value] for value in sorted(groups, reverse=True)] == equal
    served = [int(j) for j in snap.jobs.job_id[np.argsort(plan.rank)] if j > 1]
    assert served == [j for group in equal for j in sorted(group, reverse=True)]


def test_a_job_that_joins_its_equals_gets_their_site_factor() -> None:
    """And nothing else is written."""
    first = written(decide(waiting(), LAS, BY_SITE))
    again = decide(waiting(7, site_factor=first), LAS, BY_SITE)

    assert written(again) == {8: first[2]}


@pytest.mark.parametrize(
    ("begins_in_s", "more", "has_place"),
    [
        (10.0, {"held": Held.BEGIN_TIME}, True),
        (86_400.0, {"held": Held.BEGIN_TIME}, False),
        (0.0, {"held": Held.USER_OR_ADMIN}, False),
        (0.0, {"held": Held.DEPENDENCY}, False),
        (0.0, {}, True),
    ],
)
def test_jobs_that_cannot_start_soon_take_no_place(
    begins_in_s: float, more: dict[str, Any], *, has_place: bool
) -> None:
    """Fifty jobs that begin next week would take all there are."""
    seen = observed([running(1, 4), pending(2, 4, **more)], nodes=(4.0,), held={1: {0: 4.0}})
    begins = {JobId(2): NOW_S + begins_in_s} if begins_in_s else {}
    plan = decide(snapshot(dataclasses.replace(seen, begins=begins)), LAS, SETTINGS)

    assert (2 in written(plan)) == has_place


def test_what_an_older_version_wrote_is_replaced_at_once() -> None:
    """One band for each tier: the first fifty get places of their own, the others 0."""
    rows = [running(1, 4), *(pending(i, 4) for i in range(2, 82))]
    old = {i: float(2 * B) for i in range(1, 82)}
    snap = snapshot(observed(rows, nodes=(4.0,), held={1: {0: 4.0}}), memory={"site_factor": old})
    found = written(decide(snap, LAS, SETTINGS))
    after = snapshot(
        observed(rows, nodes=(4.0,), held={1: {0: 4.0}}), memory={"site_factor": {**old, **found}}
    )

    places = [found.get(i, 2 * B) for i in range(2, 52)]
    assert all(a > b > 0 for a, b in itertools.pairwise(places))
    assert [found[i] for i in range(52, 82)] == [0] * 30
    assert not written(decide(after, LAS, SETTINGS))


MOST = 12
LINES = st.lists(st.integers(0, MOST + 2), max_size=8)
"""What the places of a line had before; 0: nothing."""


@given(labels=LINES)
def test_labels_fall_strictly_within_their_bounds(labels: list[int]) -> None:
    """Whatever was there before."""
    new = relabel(labels, MOST)

    assert len(new) == len(labels)
    assert all(before > after for before, after in itertools.pairwise(new))
    assert all(1 <= label <= MOST for label in new)


@given(labels=LINES)
def test_as_many_labels_stay_as_can(labels: list[int]) -> None:
    """Against all subsets: places whose labels fall, and leave room for the places between."""

    def may_stay(places: tuple[int, ...]) -> bool:
        inside = all(len(labels) - i <= labels[i] <= MOST - i for i in places)
        return inside and all(labels[i] - labels[j] >= j - i for i, j in itertools.pairwise(places))

    count = len(labels)
    best = max(
        k for k in range(count + 1) if any(map(may_stay, itertools.combinations(range(count), k)))
    )
    kept = keep(labels, MOST)

    assert len(kept) == best
    assert may_stay(tuple(kept))


@given(labels=st.sets(st.integers(1, 200), max_size=40), data=st.data())
def test_a_line_that_only_loses_jobs_is_not_written(labels: set[int], data: st.DataObject) -> None:
    """Nor one in which nothing moves."""
    line = sorted(labels, reverse=True)
    left = [label for label in line if data.draw(st.booleans())]

    # Room below each label for those behind it, as `relabel` itself leaves it.
    if all(label >= len(left) - i for i, label in enumerate(left)):
        assert relabel(left, 214) == left


DAY_S = 86_400.0
LIMITS = Preemption(
    beneficiaries="all", commitment="ignored", min_quantum_s=0, cooldown_s=0, limit_reserve_s=0
)
OVERDUE = Settings(
    partitions=frozenset({"gpu"}), preemption=LIMITS, overdue=Overdue(after_s=DAY_S, share=0.25)
)
POLICY = DiscreteLas(thresholds_gpu_s=(1000.0,))


def plan_of(
    gangs: dict[int, float],
    *,
    policy: Policy = POLICY,
    settings: Settings = OVERDUE,
    waited_s: float = DAY_S + 1,
    **more: Any,  # noqa: ANN401
) -> Plan:
    """Four nodes of four GPUs full of small jobs, small ones that wait, and gangs (id: GPUs)."""
    small = [running(i, 4, ran_s=5000) for i in range(1, 5)] + [pending(i, 4) for i in range(5, 9)]
    rows = [*small, *(pending(i, gpus, n_nodes=4, **more) for i, gpus in gangs.items())]
    held = {i: {i - 1: 4.0} for i in range(1, 5)}
    seen = observed(rows, held=held, opted_in=range(1, 5))
    since = {row.job_id: NOW_S for row in rows}
    since |= {i: NOW_S - waited_s + rank / 100 for rank, i in enumerate(gangs)}
    had = {**dict.fromkeys(range(1, 5), 900.0), **dict.fromkeys(gangs, 2000.0)}
    return decide(
        snapshot(seen, memory={"attained_gpu_s": had, "waiting_since_s": since}), policy, settings
    )


def test_a_gang_that_smaller_jobs_pass_is_served_once_it_is_overdue() -> None:
    """It heads the line, its GPUs are taken back for it, and its owner is told."""
    before, late = (plan_of({20: 16.0}, waited_s=s) for s in (DAY_S - 1, DAY_S + 1))

    assert before.target == {1, 2, 3, 4}
    assert late.target == {20}
    line = {a.job_id: a.value for a in late.actions if isinstance(a, SetSiteFactor)}
    assert max(line, key=lambda job_id: line[job_id]) == 20
    [opened] = [a.handover for a in late.actions if isinstance(a, OpenHandover)]
    assert opened.beneficiaries == (JobId(20),)
    assert "waited longer than" in late.notes[JobId(20)]


@pytest.mark.parametrize(
    ("gangs", "served"),
    [
        ({20: 2.0, 21: 2.0}, {20, 21}),  # A quarter of 16 GPUs.
        ({20: 2.0, 21: 2.0, 22: 1.0}, {20, 21}),
        ({20: 12.0, 21: 1.0}, {20}),  # The first whatever its size.
        ({20: 64.0, 21: 4.0}, {21}),  # It never fits.
    ],
)
def test_overdue_jobs_claim_a_share_of_the_gpus(gangs: dict[int, float], served: set[int]) -> None:
    """Longest wait first; beyond the share they have the place that the policy gives them."""
    assert {j for j in plan_of(gangs).target if j >= 20} == served


@pytest.mark.parametrize(
    ("overdue", "more"),
    [(Overdue(after_s=0.0), {}), (OVERDUE.overdue, {"held": Held.DEPENDENCY})],
)
def test_a_job_is_not_overdue_if_it_could_not_start(overdue: Overdue, more: dict[str, Any]) -> None:
    """Nor where the bound is off."""
    settings = dataclasses.replace(OVERDUE, overdue=overdue)

    assert plan_of({20: 16.0}, settings=settings, **more).target == {1, 2, 3, 4}


def test_where_the_policy_preempts_nobody_it_heads_the_line() -> None:
    """And nobody is stopped for it."""
    plan = plan_of({20: 16.0}, policy=Fifo())

    assert plan.rank[-1] == min(plan.rank[4:])
    assert not [a for a in plan.actions if isinstance(a, OpenHandover)]


def test_a_held_job_does_not_become_overdue() -> None:
    """Its wait begins when it is released, give or take ten minutes."""
    ledger = Ledger(MemoryStore())
    for hours in range(0, 49, 4):
        held = Held.USER_OR_ADMIN if hours < 48 else Held.NO
        seen = observed([pending(1, submit_s=NOW_S, held=held), pending(2, submit_s=NOW_S)])
        ledger.book(dataclasses.replace(seen, now_s=NOW_S + hours * 3600.0))
    snap = ledger.snapshot(dataclasses.replace(seen, now_s=NOW_S + 48 * 3600.0), OVERDUE.partitions)

    waited_s = snap.now_s - snap.memory.waiting_since_s
    assert np.all(waited_s >= [0, 48 * 3600])
    assert waited_s[0] <= 4 * 3600.0 + 600.0
