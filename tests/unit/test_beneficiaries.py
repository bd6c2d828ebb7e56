"""For whom others are preempted: by default only for jobs that may be preempted themselves."""

from __future__ import annotations

import dataclasses
from typing import Any

import build
import pytest

from slurm_dl.engine.decide import decide
from slurm_dl.engine.settings import Defragment, Native, Overdue, Preemption, Settings
from slurm_dl.model.contract import Claim, Contract
from slurm_dl.model.ids import JobId
from slurm_dl.model.plan import OpenHandover, Plan, SetSiteFactor
from slurm_dl.policies.discrete_las import DiscreteLas

LIMITS = Preemption(min_quantum_s=0, cooldown_s=0, limit_reserve_s=0)
SETTINGS = Settings(partitions=frozenset({"gpu"}), preemption=LIMITS, overdue=Overdue(after_s=0))
ALL = dataclasses.replace(
    SETTINGS,
    preemption=dataclasses.replace(LIMITS, beneficiaries="all", commitment="ignored"),
)
POLICY = DiscreteLas()


def taken_for(plan: Plan) -> set[int]:
    """The jobs for which GPUs are taken back."""
    return {
        job
        for action in plan.actions
        if isinstance(action, OpenHandover)
        for job in action.handover.beneficiaries
    }


def plan_of(
    *waiting: Any,  # noqa: ANN401
    settings: Settings = SETTINGS,
    opted_in: tuple[int, ...] = (),
    nodes: tuple[float, ...] = (4, 4),
    **more: Any,  # noqa: ANN401
) -> Plan:
    """Jobs 1 and 2 have run for long on 4 GPUs each and have opted in; *waiting* are new."""
    rows = [build.running(1, 4), build.running(2, 4), *waiting]
    held = {1: {0: 4.0}, 2: {1: 4.0}}
    seen = build.observed(rows, nodes=nodes, held=held, opted_in=(1, 2, *opted_in), **more)
    served = {"attained_gpu_s": {1: 90_000.0, 2: 80_000.0}}
    return decide(build.snapshot(seen, memory=served), POLICY, settings)


@pytest.mark.parametrize(
    ("contract", "row", "settings", "expected"),
    [
        (None, {}, SETTINGS, False),
        (None, {}, ALL, True),
        (Contract(), {}, SETTINGS, True),
        (Contract(grace_s=5000), {}, SETTINGS, False),
        (Contract(), {"requeueable": False}, SETTINGS, False),
    ],
    ids=["no contract", "no contract, all", "opted in", "grace too long", "no requeue"],
)
def test_others_are_preempted_for_jobs_that_may_be_preempted(
    contract: Contract | None, row: dict[str, Any], settings: Settings, *, expected: bool
) -> None:
    """A contract that the site does not accept is none."""
    contracts = {1: Contract(), 2: Contract(), 3: contract}
    claims = {JobId(j): Claim(contract=c) for j, c in contracts.items() if c is not None}
    plan = plan_of(build.pending(3, 4, **row), settings=settings, claims=claims)

    assert (taken_for(plan) == {3}) is expected
    assert ("may not be preempted itself" in plan.notes.get(JobId(3), "")) is not expected


def test_a_job_that_displaces_nobody_does_not_keep_others_from_it() -> None:
    """Ahead of a job that has opted in stands one that has not and that would fill the cluster."""
    waiting = (build.pending(3, 8, n_nodes=2), build.pending(4, 4))

    assert taken_for(plan_of(*waiting, opted_in=(4,))) == {4}


def test_it_starts_where_there_is_room_and_shares_no_freed_room() -> None:
    """Free GPUs are served by rank; what is freed for another job is not for it."""
    plan = plan_of(build.pending(3, 2), build.pending(4, 4), opted_in=(4,), nodes=(4, 4, 2))

    assert 3 in plan.target
    assert taken_for(plan) == {4}
    assert "Slurm is to start it" in plan.notes[JobId(3)]

    share = plan_of(build.pending(3, 0.5, limit_s=3600.0), nodes=(4, 4))
    assert 3 in share.target

    both = plan_of(build.pending(3, 2), build.pending(4, 2), opted_in=(3,))
    assert taken_for(both) == {3}


def test_once_it_is_overdue_its_gpus_are_kept_for_it() -> None:
    """It still displaces nobody, and others are not served before it any more."""
    waiting = (build.pending(3, 8, n_nodes=2), build.pending(4, 4))
    late = dataclasses.replace(SETTINGS, overdue=Overdue(after_s=1000))
    plan = plan_of(*waiting, opted_in=(4,), settings=late)

    assert taken_for(plan) == set()
    assert 3 in plan.target


def test_nobody_is_moved_for_it() -> None:
    """Moves cost those who are moved a restart as well."""
    rows = [build.running(1, 2), build.running(2, 2), build.pending(3, 4)]
    for opted_in, expected in (((1, 2), set()), ((1, 2, 3), {3})):
        seen = build.observed(
            rows, nodes=(4, 4), held={1: {0: 2.0}, 2: {1: 2.0}}, opted_in=opted_in
        )
        moving = dataclasses.replace(SETTINGS, defragment=Defragment(enabled=True, after_s=0))
        assert taken_for(decide(build.snapshot(seen), POLICY, moving)) == expected


def test_where_slurm_preempts_it_waits_in_the_last_tier() -> None:
    """Inside the QOS Slurm displaces by priority, so the priority may exceed nobody who runs."""
    texts = build.texts(qos=dict.fromkeys((1, 2, 3, 4), "dl"))
    native = dataclasses.replace(SETTINGS, mode=Native("dl"))
    waiting = (build.pending(3, 4), build.pending(4, 4))
    plan = plan_of(*waiting, opted_in=(4,), settings=native, texts=texts)
    factors = {a.job_id: a.value for a in plan.actions if isinstance(a, SetSiteFactor)}

    assert factors[JobId(3)] < min(factors[JobId(1)], factors[JobId(2)]) < factors[JobId(4)]
