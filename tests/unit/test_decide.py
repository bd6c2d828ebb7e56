"""Ranks, SiteFactors and whole plans."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import build
import numpy as np
import pytest
from fake_cluster import FakeCluster
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_dl.engine.decide import decide
from slurm_dl.engine.settings import Placement, Preemption, Settings
from slurm_dl.ledger.sqlite.store import SqliteStore
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.contract import Claim, Contract
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import Held, JobRow, JobState
from slurm_dl.model.plan import Plan, Promote, SetSiteFactor
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.placement.cells.hived import Cells
from slurm_dl.placement.scheme import Scheme
from slurm_dl.policies.base import Order
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.policies.fifo import Fifo

POLICY = DiscreteLas(thresholds_gpu_s=(1000.0, 5000.0))
B = 1000
SETTINGS = Settings(
    partitions=frozenset({"gpu"}),
    band_width=B,
    preemption=Preemption(beneficiaries="all", commitment="ignored"),
)


def _factors(plan: Plan) -> dict[int, int]:
    return {a.job_id: a.value for a in plan.actions if isinstance(a, SetSiteFactor)}


@pytest.mark.parametrize("scheme", [None, Cells(cells={"a": {"node": 1}})])
def test_the_policy_is_asked_once_for_its_order(
    scheme: Scheme | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where nodes are guaranteed by that order: a policy may solve a linear program."""
    asked: list[Snapshot] = []
    order = DiscreteLas.order

    def counting(self: DiscreteLas, snap: Snapshot) -> Order:
        asked.append(snap)
        return order(self, snap)

    monkeypatch.setattr(DiscreteLas, "order", counting)
    how = dataclasses.replace(SETTINGS, placement=Placement(scheme=scheme, steer=True))
    decide(build.snapshot(build.observed([build.pending(1), build.running(2)])), POLICY, how)

    assert len(asked) == 1


def test_each_waiting_job_has_a_place_of_its_own() -> None:
    """Whole band widths, falling by rank; a job never written (0) is behind all of them."""
    seen = build.observed([build.pending(i) for i in (1, 2, 3)])
    memory = {"attained_gpu_s": {1: 5000.0, 2: 1000.0}}

    found = _factors(decide(build.snapshot(seen, memory=memory), POLICY, SETTINGS))

    assert found[3] > found[2] > found[1] > 0
    assert all(value % B == 0 for value in found.values())


def test_nothing_is_written_when_nothing_moves() -> None:
    """An idle queue costs no write."""
    seen = build.observed([build.pending(1), build.running(2)])
    memory = {"site_factor": {1: 3 * B, 2: 3 * B}}

    assert decide(build.snapshot(seen, memory=memory), POLICY, SETTINGS).actions == ()


def test_only_the_window_is_written_best_first() -> None:
    """Of a long queue only what could start soon gets a place; the rest stays behind."""
    seen = build.observed([build.pending(i) for i in range(1, 101)])
    few = dataclasses.replace(SETTINGS, window=10)

    assert list(_factors(decide(build.snapshot(seen), POLICY, few))) == list(range(1, 11))


def test_a_running_job_that_sinks_is_not_written() -> None:
    """Slurm looks at its SiteFactor once it waits again, and then it gets a new place."""
    seen = build.observed([build.running(1)])
    memory = {"attained_gpu_s": {1: 1500.0}, "site_factor": {1: 3 * B}}

    assert _factors(decide(build.snapshot(seen, memory=memory), POLICY, SETTINGS)) == {}


def test_ranks_follow_tier_then_key_then_id() -> None:
    """The order is total, and the id decides what nothing else does."""
    rows = [build.pending(j, submit_s=5.0) for j in (4, 2, 3)] + [build.pending(1, submit_s=9.0)]
    memory = {"attained_gpu_s": {2: 1000.0}}
    plan = decide(build.snapshot(build.observed(rows), memory=memory), POLICY, SETTINGS)

    assert plan.rank.tolist() == [1, 3, 0, 2]


def test_promotion_is_booked_and_ranked_at_once() -> None:
    """The promoted job is in the first tier in the same plan that says so."""
    policy = DiscreteLas(thresholds_gpu_s=(1000.0,), promote_knob=1.0)
    memory = {
        "attained_gpu_s": {1: 4000.0},
        "ran_s": {1: 100.0},
        "waiting_since_s": {1: build.NOW_S - 100},
    }
    plan = decide(
        build.snapshot(build.observed([build.pending(1)]), memory=memory), policy, SETTINGS
    )

    assert [a.job_id for a in plan.actions if isinstance(a, Promote)] == [1]
    assert plan.tier.tolist() == [0]


def test_an_ignored_site_factor_is_reported() -> None:
    """Slurm accepts updates that it does not honour."""
    rows = [
        build.pending(1, priority=50),
        build.pending(2, priority=2 * B + 50),
        build.pending(3, priority=3 * B + 50),
    ]
    memory = {"site_factor": {1: 3 * B, 2: 2 * B, 3: B}}
    snap = build.snapshot(build.observed(rows), memory=memory)
    plan = decide(snap, POLICY, SETTINGS)

    assert plan.unhonoured == (1, 3)
    assert not _factors(plan)
    assert all("SiteFactor" in plan.notes[JobId(job)] for job in plan.unhonoured)
    again = decide(dataclasses.replace(snap, rewrite=frozenset({JobId(3)})), POLICY, SETTINGS)
    assert _factors(again) == {3: B}


@pytest.mark.parametrize("held", [h for h in Held if h is not Held.NO])
def test_why_a_job_cannot_start_is_said(held: Held) -> None:
    """Slurm's reason comes out in words."""
    seen = build.observed([build.pending(1, held=held)])

    assert decide(build.snapshot(seen), POLICY, SETTINGS).notes[JobId(1)].startswith(("it", "what"))


def test_the_target_is_a_greedy_gang_fit_by_rank() -> None:
    """16 GPUs: the first takes 10, the second (8) does not fit, the third (6) does."""
    rows = [build.pending(1, 10), build.pending(2, 8), build.pending(3, 6), build.pending(4, 1)]

    assert decide(build.snapshot(build.observed(rows)), POLICY, SETTINGS).target == {1, 3}


def test_the_target_counts_types_apart() -> None:
    """A job that wants a type gets none of another."""
    rows = [build.pending(1, 4, gpu_type=1), build.pending(2, 4, gpu_type=0)]

    assert decide(build.snapshot(build.observed(rows)), POLICY, SETTINGS).target == {2}


def test_a_protected_job_is_in_the_target_whatever_its_rank() -> None:
    """Who cannot be moved takes room away from those that could."""
    rows = [build.running(1, 16, n_nodes=4), build.pending(2, 1)]
    seen = build.observed(rows, held={1: dict.fromkeys(range(4), 4.0)})
    snap = build.snapshot(seen, memory={"attained_gpu_s": {1: 90000.0}})

    assert decide(snap, POLICY, SETTINGS).target == {1}


@st.composite
def snapshots(draw: st.DrawFn) -> tuple[list[JobRow], dict[str, dict[int, float]], list[int]]:
    """Jobs in any state, some opted in, with some history."""
    rows: list[JobRow] = []
    memory: dict[str, dict[int, float]] = {"attained_gpu_s": {}, "site_factor": {}}
    opted_in = []
    for job_id in range(1, draw(st.integers(1, 8)) + 1):
        make = draw(st.sampled_from([build.pending, build.running]))
        rows.append(
            make(
                job_id,
                draw(st.sampled_from([1.0, 2.0, 4.0, 0.5, 0.0])),
                partition=draw(st.sampled_from([0, 0, 0, 1, -1])),
                held=draw(st.sampled_from([Held.NO, Held.NO, Held.DEPENDENCY])),
                tasks=draw(st.sampled_from([1, 3])) if make is build.pending else 1,
            )
        )
        memory["attained_gpu_s"][job_id] = draw(st.floats(0, 9000))
        memory["site_factor"][job_id] = draw(st.sampled_from([0, B, 3 * B]))
        if draw(st.booleans()):
            opted_in.append(job_id)
    return rows, memory, opted_in


def _place(rows: list[JobRow]) -> dict[int, dict[int, float]]:
    """Running jobs on the first node with room; those that find none are left without."""
    free = [4.0] * 4
    held: dict[int, dict[int, float]] = {}
    for row in sorted(rows, key=lambda r: r.job_id):
        if row.state is JobState.RUNNING and row.gpus:
            node = next((n for n in range(4) if free[n] >= row.gpus), None)
            if node is not None:
                free[node] -= row.gpus
                held[row.job_id] = {node: row.gpus}
    return held


def _snap(
    rows: list[JobRow], memory: Mapping[str, Mapping[int, float]], opted_in: list[int]
) -> Snapshot:
    seen = build.observed(rows, held=_place(rows), opted_in=opted_in)
    return build.snapshot(seen, memory=memory)


@settings(max_examples=80)
@given(case=snapshots(), data=st.data())
def test_the_plan_does_not_depend_on_listing_order(
    case: tuple[list[JobRow], dict[str, dict[int, float]], list[int]], data: st.DataObject
) -> None:
    """Equal clusters give equal plans, action for action, whatever order Slurm lists jobs in."""
    rows, memory, opted_in = case
    shuffled = data.draw(st.permutations(rows))
    limits = Preemption(
        beneficiaries="all", commitment="ignored", min_quantum_s=0, limit_reserve_s=0, cooldown_s=0
    )
    chosen = dataclasses.replace(SETTINGS, preemption=limits)

    one = decide(_snap(rows, memory, opted_in), POLICY, chosen)
    two = decide(_snap(shuffled, memory, opted_in), POLICY, chosen)

    assert one.actions == two.actions
    assert one.notes == two.notes
    assert one.target == two.target


@settings(max_examples=80)
@given(case=snapshots())
def test_what_was_written_is_not_written_again(
    case: tuple[list[JobRow], dict[str, dict[int, float]], list[int]],
) -> None:
    """The SiteFactors of a plan, once honoured, leave nothing to write."""
    rows, memory, opted_in = case
    off = dataclasses.replace(SETTINGS, preemption=Preemption(enabled=False))
    written = _factors(decide(_snap(rows, memory, opted_in), POLICY, off))
    after = {**memory, "site_factor": {**memory["site_factor"], **written}}

    assert not _factors(decide(_snap(rows, after, opted_in), POLICY, off))


def test_fifo_never_preempts() -> None:
    """With one tier nobody is worse than anybody."""
    big = build.running(1, 16, n_nodes=4)
    seen = build.observed(
        [big, build.pending(2, 1)],
        held={1: dict.fromkeys(range(4), 4.0)},
        claims={JobId(1): Claim(contract=Contract())},
    )
    plan = decide(build.snapshot(seen, memory={"attained_gpu_s": {1: 1e9}}), Fifo(), SETTINGS)

    assert {type(a) for a in plan.actions} == {SetSiteFactor}


def test_out_of_budget_writes_are_left_and_derived_again(tmp_path: Path) -> None:
    """The token bucket stops standalone writes; the next cycle plans them anew."""
    cluster = FakeCluster(nodes=1, gpus=1)
    for _ in range(5):
        cluster.submit(1, work_s=100)
    ledger = Ledger(SqliteStore(tmp_path / "ledger"))
    tokens = iter([True, True, False, False, False])

    first = build.cycle(cluster, ledger, POLICY, SETTINGS, may_write=lambda: next(tokens))
    second = build.cycle(cluster, ledger, POLICY, SETTINGS)
    ledger.close()

    assert (len(first.done), len(first.left)) == (2, 3)
    left = [a.job_id for a in first.left if isinstance(a, SetSiteFactor)]
    assert [d.action.job_id for d in second.done if isinstance(d.action, SetSiteFactor)] == left


def test_looking_only_changes_nothing_on_the_cluster(tmp_path: Path) -> None:
    """Shadow mode plans the same and does nothing."""
    cluster = FakeCluster(nodes=1, gpus=1)
    cluster.submit(1, work_s=100)
    ledger = Ledger(SqliteStore(tmp_path / "ledger"))
    cycle = build.cycle(cluster, ledger, POLICY, SETTINGS, acting=False)
    ledger.close()

    assert cycle.left == cycle.plan.actions != ()
    assert not cluster.applied
    assert np.all(cycle.snapshot.memory.site_factor == 0)
