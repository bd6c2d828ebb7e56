"""For whom others are preempted, whose requests are cut, and who gives CPUs back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import build
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_dl.engine.decide import decide
from slurm_dl.engine.placing.trim_requests import trims
from slurm_dl.engine.settings import Defragment, Native, Overdue, Placement, Preemption, Settings
from slurm_dl.model.contract import Claim, Contract
from slurm_dl.model.handover import Handover
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobRow
from slurm_dl.model.nodes import Allocations
from slurm_dl.model.plan import OpenHandover, Plan, SetSiteFactor, Trim
from slurm_dl.model.snapshot import JobText, Snapshot
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.policies.fifo import FifoSkip

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


CPUS = 64
GPUS = 8
TRIMMED = Settings(partitions=frozenset({"gpu"}), placement=Placement(trim=True))


def site(
    used: Mapping[int, tuple[float, int]],
    waiting: Sequence[JobRow],
    claims: Mapping[int, Claim],
    trimmed: frozenset[JobId] = frozenset(),
    **more: Any,  # noqa: ANN401
) -> Snapshot:
    """Nodes of 8 GPUs, 64 CPUs, 800 MB; *used*: node -> GPUs and CPUs of a job there."""
    running = [build.running(i + 1, gpus) for i, (gpus, _) in enumerate(used.values())]
    seen = build.observed(
        [*running, *waiting],
        nodes=[GPUS] * len(used),
        claims={JobId(j): claim for j, claim in claims.items()},
        columns={"mem_mb": [800] * len(used)},
        **more,
    )
    held = Allocations(
        job=np.arange(len(used), dtype=np.int32),
        node=np.array(list(used), dtype=np.int32),
        gpus=np.array([gpus for gpus, _ in used.values()]),
        cpus=np.array([cpus for _, cpus in used.values()], dtype=np.int32),
        mem_mb=np.full(len(used), 100, dtype=np.int64),
    )
    snap = build.snapshot(dataclasses.replace(seen, held=held))
    return dataclasses.replace(snap, trimmed=trimmed)


def cut(snap: Snapshot) -> list[Trim]:
    return [a for a in decide(snap, FifoSkip(), TRIMMED).actions if isinstance(a, Trim)]


HUNGRY = build.pending(9, 4, cpus=48)
LEAST = Claim(least_cpus=32)
BESIDE = [build.pending(8, 4, cpus=56), build.pending(9, 4, cpus=32)]
WIDER = [build.pending(8, 4, cpus=56), build.pending(9, 4, cpus=33)]
NO_GPUS = [build.pending(8, 0, cpus=60), HUNGRY]
MEMORY = build.pending(9, 4, cpus=8, mem_mb=750)
ARRAY = {JobId(9): JobText(label="9_[1-3]")}


@pytest.mark.parametrize(
    ("snap", "expected"),
    [
        (site({0: (4, 24)}, [HUNGRY], {9: LEAST}), [(9, 32, 0)]),
        (site({0: (4, 24)}, [HUNGRY], {9: Claim(least_cpus=1)}), [(9, 32, 0)]),
        (site({0: (4, 24)}, [MEMORY], {9: Claim(least_mem_mb=400)}), [(9, 0, 400)]),
        (site({0: (4, 24)}, NO_GPUS, {9: LEAST}), [(9, 32, 0)]),
        (site({0: (4, 24)}, NO_GPUS, {8: Claim(least_cpus=1), 9: LEAST}), [(9, 32, 0)]),
        (site({0: (0, 0)}, BESIDE, {8: LEAST}), [(8, 32, 0)]),
        (site({0: (0, 0)}, WIDER, {8: LEAST}), []),
        (site({0: (0, 0)}, BESIDE, {}), []),
        (site({0: (4, 8)}, [HUNGRY], {9: LEAST}), []),
        (site({0: (4, 40)}, [HUNGRY], {9: LEAST}), []),
        (site({0: (4, 24)}, [HUNGRY], {}), []),
        (site({0: (4, 24)}, [HUNGRY], {9: Claim(least_cpus=32, most_nodes=4)}), []),
        (site({0: (6, 24)}, [HUNGRY], {9: LEAST}), []),
        (site({0: (4, 24)}, [HUNGRY], {9: LEAST}, trimmed=frozenset({JobId(9)})), []),
        (site({0: (4, 24)}, [HUNGRY], {9: LEAST}, texts=ARRAY), []),
    ],
    ids=[
        "40 CPUs are free, its part is 32", "never below its part", "memory likewise",
        "no part goes with a job without GPUs", "whatever its owner allows",
        "another one fits beside its part", "who asks for more than its part waits",
        "who allows nothing keeps all", "it fits as it is",
        "it would not fit with its part either", "its owner has not said so",
        "Slurm does not take it", "there are no GPUs", "it was cut once", "it is an array",
    ],
)  # fmt: skip
def test_cuts(snap: Snapshot, expected: list[tuple[int, int, int]]) -> None:
    """On a node of 8 GPUs, of jobs of 4 GPUs that ask for more than 32 CPUs."""
    assert [(trim.job_id, trim.cpus, trim.mem_mb) for trim in cut(snap)] == expected
    off = Settings(partitions=frozenset({"gpu"}))
    assert not [a for a in decide(snap, FifoSkip(), off).actions if isinstance(a, Trim)]


def test_only_the_first_of_the_window_and_only_nodes_for_all_are_looked_at() -> None:
    """A queue of any length costs no more than its window; a hand-over's room is for its jobs."""
    waiting = [build.pending(9 + i, 4, cpus=48) for i in range(3)]
    snap = site(dict.fromkeys(range(3), (4, 24)), waiting, {job.job_id: LEAST for job in waiting})
    ranked = np.arange(len(snap.jobs), dtype=np.int64)
    (other,) = opened(world())
    elsewhere = dataclasses.replace(other, beneficiaries=(), nodes=("n1", "n3"))
    assert [t.job_id for t in trims(snap, ranked, (), 2)] == [9, 10]
    assert [t.job_id for t in trims(snap, ranked, [elsewhere], 2)] == [9]


@given(
    used=st.lists(st.tuples(st.integers(0, GPUS), st.integers(0, CPUS)), min_size=1, max_size=4),
    asks=st.lists(
        st.tuples(st.integers(1, GPUS), st.integers(1, CPUS), st.integers(1, CPUS)), max_size=4
    ),
)
def test_nobody_gets_less_than_the_lesser_of_wish_and_part(
    used: list[tuple[int, int]], asks: list[tuple[int, int, int]]
) -> None:
    waiting = [build.pending(50 + i, g, cpus=c) for i, (g, c, _) in enumerate(asks)]
    claims = {50 + i: Claim(least_cpus=least) for i, (_, _, least) in enumerate(asks)}
    snap = site({i: (float(g), c) for i, (g, c) in enumerate(used)}, waiting, claims)
    ranked = np.arange(len(snap.jobs), dtype=np.int64)
    for trim in trims(snap, ranked, (), 200):
        gpus, cpus, least = asks[trim.job_id - 50]
        assert trim.cpus >= min(cpus, CPUS * gpus // GPUS)
        assert trim.cpus >= min(cpus, least)
        assert trim.cpus < cpus


HOW = Settings(
    partitions=frozenset({"gpu"}),
    placement=Placement(trim=True),
    preemption=Preemption(min_quantum_s=0, cooldown_s=0, limit_reserve_s=0),
)
RUNS = Claim(contract=Contract(), least_cpus=32)
WAITS = Claim(contract=Contract())


def running_with(snap: Snapshot, cpus: dict[int, int]) -> Snapshot:
    """*snap* in which the running jobs ask for the CPUs that they hold."""
    column = snap.jobs.cpus.copy()
    for job_id, n in cpus.items():
        column[snap.jobs.rows[JobId(job_id)]] = n
    return snap.with_jobs(cpus=column)


def world(
    runs: Claim = RUNS,
    waits: Claim = WAITS,
    *,
    gpus: int = 4,
    cpus: int = 32,
    **more: Any,  # noqa: ANN401
) -> Snapshot:
    """Job 1 holds 4 of 8 GPUs and 56 of 64 CPUs; job 9 waits for 4 GPUs and 32 CPUs."""
    job = build.pending(9, gpus, cpus=cpus)
    return running_with(site({0: (4, 56)}, [job], {1: runs, 9: waits}, **more), {1: 56})


def opened(snap: Snapshot, how: Settings = HOW) -> list[Handover]:
    plan = decide(snap, FifoSkip(), how)
    return [a.handover for a in plan.actions if isinstance(a, OpenHandover)]


def test_a_job_that_came_first_gives_back_for_one_that_came_later() -> None:
    """It is to go on where it is, and nobody is stopped for good."""
    (handover,) = opened(world())
    assert handover.purpose == "trim"
    assert handover.beneficiaries == (9,)
    assert handover.moved == (1,)
    assert handover.nodes == handover.seats == ("n1",)


@pytest.mark.parametrize(
    ("snap", "how"),
    [
        (world(), dataclasses.replace(HOW, placement=Placement())),
        (world(), dataclasses.replace(HOW, preemption=Preemption(enabled=False))),
        (world(Claim(contract=Contract())), HOW),
        (world(Claim(least_cpus=32)), HOW),
        (world(Claim(contract=Contract(), least_cpus=48)), HOW),
        (world(cpus=40), HOW),
        (world(gpus=5), HOW),
        (world(trimmed=frozenset({JobId(1)})), HOW),
        (world(texts={JobId(1): JobText(label="5_1")}), HOW),
        (world(waits=Claim()), HOW),
        (world(cpus=8), HOW),
    ],
    ids=[
        "trim is off", "no preemption", "its owner allows no less", "no contract", "it keeps 48",
        "more than its part is asked for", "no GPUs", "it was cut once", "a task of an array",
        "it has no contract",
        "it fits",
    ],
)  # fmt: skip
def test_nobody_is_stopped(snap: Snapshot, how: Settings) -> None:
    assert opened(snap, how) == []


def test_who_asks_for_more_than_its_part_and_allows_less_is_cut_too() -> None:
    """Its request is cut before the other job is signalled."""
    snap = world(waits=Claim(contract=Contract(), least_cpus=32), cpus=40)
    (handover,) = opened(snap)
    actions = decide(snap, FifoSkip(), HOW).actions
    (trim,) = [a for a in actions if isinstance(a, Trim)]
    assert (trim.job_id, trim.cpus, trim.handover_id) == (9, 32, handover.handover_id)


@given(
    used=st.lists(st.tuples(st.integers(1, GPUS), st.integers(1, CPUS)), min_size=1, max_size=4),
    least=st.integers(1, CPUS),
    gpus=st.integers(1, GPUS),
    cpus=st.integers(1, CPUS),
)
def test_all_fit_together_afterwards(
    used: list[tuple[int, int]], least: int, gpus: int, cpus: int
) -> None:
    """Nobody keeps less than its part or its wish, and the one that waits fits beside them."""
    claim = Claim(contract=Contract(), least_cpus=least)
    claims = {i + 1: claim for i in range(len(used))} | {50: WAITS}
    held = {i: (float(g), c) for i, (g, c) in enumerate(used)}
    snap = site(held, [build.pending(50, gpus, cpus=cpus)], claims)
    snap = running_with(snap, {i + 1: c for i, (_, c) in enumerate(used)})
    short = all(GPUS - g < gpus or CPUS - c < cpus for g, c in used)
    after = [min(c, max(least, CPUS * g // GPUS)) for g, c in used]
    could = [
        i for i, (g, _) in enumerate(used) if GPUS - g >= gpus and CPUS - after[i] >= cpus
    ]  # One job on each node: it gives back or it does not.
    found = [h for h in opened(snap) if h.purpose == "trim"]
    assert bool(found) == (short and bool(could) and cpus <= CPUS * gpus // GPUS)
    for handover in found:
        (victim,) = handover.victims
        assert victim.run.job_id - 1 in could
        assert np.isin(handover.nodes, [f"n{victim.run.job_id}"]).all()
