"""A job that has waited too long is served first, and none gains by it what it did not wait for."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from build import NOW_S, observed, pending, running, snapshot

from slurm_dl.engine.decide import decide
from slurm_dl.engine.settings import Overdue, Preemption, Settings
from slurm_dl.ledger.store_protocol import MemoryStore
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import Held
from slurm_dl.model.plan import OpenHandover, Plan, SetSiteFactor
from slurm_dl.policies.base import Policy
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.policies.fifo import Fifo

DAY_S = 86_400.0
LIMITS = Preemption(
    beneficiaries="all", commitment="ignored", min_quantum_s=0, cooldown_s=0, limit_reserve_s=0
)
SETTINGS = Settings(
    partitions=frozenset({"gpu"}), preemption=LIMITS, overdue=Overdue(after_s=DAY_S, share=0.25)
)
POLICY = DiscreteLas(thresholds_gpu_s=(1000.0,))


def plan_of(
    gangs: dict[int, float],
    *,
    policy: Policy = POLICY,
    settings: Settings = SETTINGS,
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
    [(Overdue(after_s=0.0), {}), (SETTINGS.overdue, {"held": Held.DEPENDENCY})],
)
def test_a_job_is_not_overdue_if_it_could_not_start(overdue: Overdue, more: dict[str, Any]) -> None:
    """Nor where the bound is off."""
    settings = dataclasses.replace(SETTINGS, overdue=overdue)

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
    snap = ledger.snapshot(
        dataclasses.replace(seen, now_s=NOW_S + 48 * 3600.0), SETTINGS.partitions
    )

    waited_s = snap.now_s - snap.memory.waiting_since_s
    assert np.all(waited_s >= [0, 48 * 3600])
    assert waited_s[0] <= 4 * 3600.0 + 600.0
