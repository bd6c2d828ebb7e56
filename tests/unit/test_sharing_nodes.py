"""Where jobs that ask for shares of a GPU are sent, and what shares leave to everybody else."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_dl.engine.decide import decide
from slurm_dl.engine.placing.free_resources import FreeResources
from slurm_dl.engine.placing.gpu_sharing import with_shares
from slurm_dl.engine.placing.place_waiting import Placed
from slurm_dl.engine.settings import Placement, Settings
from slurm_dl.model.contract import Claim
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import F64, Held, JobRow, JobState
from slurm_dl.model.nodes import SharedGpu
from slurm_dl.model.pair_rates import NO_RULE, PairRule
from slurm_dl.model.plan import SetSteer
from slurm_dl.model.profile import Beside, Load, Profile
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.model.steer import Steer
from slurm_dl.placement.best_fit import BestFit
from slurm_dl.placement.free_nodes import FreeNodes
from slurm_dl.policies.fifo import Fifo
from slurm_dl.policies.lucid import Lucid
from tests.build import NOW_S, observed, pending, running, snapshot

PROFILES = {
    name: Profile(name=name, label=label, load=Load(gpu_mem_mb=mem), beside=beside)  # type: ignore[arg-type]
    for name, label, mem, beside in (
        ("tiny", 0, 10_000, (Beside(other="small", rate=0.95),)),
        ("small", 0, 12_000, (Beside(other="tiny", rate=0.99),)),
        ("jumbo", 2, 10_000, ()),
        ("huge", 0, 35_000, ()),
        ("new", None, 10_000, ()),
    )
}
HOW = Placement(steer=True, pack=True, profiles=PROFILES, gpu_mem_mb={"a100": 40_000.0})

LARGE = 900  # A job that waits for more whole GPUs than there are


def gpu(node: int, index: int, *jobs: int, share: float = 0.5, first: bool = True) -> SharedGpu:
    """A device with these jobs on it."""
    return SharedGpu(
        node=node,
        index=index,
        jobs=tuple(JobId(j) for j in jobs),
        shares=(share,) * len(jobs),
        first=first,
    )


def half(job_id: int, **more: Any) -> JobRow:  # noqa: ANN401
    """A waiting job that asks for half a GPU."""
    return pending(job_id, 0.5, **more)


def scene(
    rows: Sequence[JobRow],
    models: Mapping[int, str],
    *,
    shared: Sequence[SharedGpu] = (),
    whole: Mapping[int, Mapping[int, float]] | None = None,
    nodes: Sequence[float] = (2, 2, 2),
    memory: Mapping[str, Mapping[int, float]] | None = None,
    steers: Mapping[JobId, Steer] | None = None,
    crowded: bool = True,
    claims: Mapping[int, Claim] | None = None,
    **more: Any,  # noqa: ANN401
) -> Snapshot:
    """Jobs of *models*; who shares which device follows from *shared*.

    *crowded*: a large job waits besides, so that there are fewer free GPUs than are waited for.
    """
    if crowded:
        rows = [*rows, pending(LARGE, 100)]
    held: dict[int, dict[int, float]] = {j: dict(on) for j, on in (whole or {}).items()}
    for device in shared:
        for job, share in zip(device.jobs, device.shares, strict=True):
            held.setdefault(job, {})[device.node] = share
    values = {"sharable": np.ones(len(nodes), dtype=np.bool_), **more}
    seen = observed(
        rows,
        nodes=nodes,
        held=held,
        claims={
            JobId(j): dataclasses.replace((claims or {}).get(j, Claim()), model=models.get(j))
            for j in (*models, *(claims or {}))
        },
        shared=tuple(shared),
        **values,
    )
    return snapshot(seen, memory=memory, steers=steers or {})


def busy(**shares: float) -> dict[str, Profile]:
    """Small models that keep a GPU so busy."""
    return {
        name: Profile(name=name, load=Load(gpu_util=share, gpu_mem_mb=1500))
        for name, share in shares.items()
    }


def column(snap: Snapshot, values: Mapping[int, float]) -> F64:
    """``(n,)`` *values* of the jobs, 1 for the others."""
    return np.array([values.get(job, 1.0) for job in snap.jobs.job_id.tolist()])


def sent(
    snap: Snapshot, how: Placement = HOW, rule: PairRule = NO_RULE
) -> dict[int, list[int] | None]:
    """Node rows on which each job may start; None where it is to start nowhere."""
    ranked = np.argsort(snap.jobs.job_id)
    placed = with_shares(snap, ranked, (), how, Placed(), rule=rule)
    assert not placed.spots
    return {
        int(job): None if wait.within is None else np.flatnonzero(wait.within).tolist()
        for job, wait in placed.waits.items()
    }


def steer(**more: float) -> dict[JobId, Steer]:
    """Job 9 was sent to the third node before."""
    times = {"since_s": NOW_S, "until_s": NOW_S, **more}
    return {JobId(9): Steer(job_id=JobId(9), kind="wait", avoid=("n1", "n2"), why="", **times)}


R1, R2, R3, J8, J9 = running(1, 0.5), running(2, 0.5), running(3, 1), half(8), half(9)
MEASURED = Claim(gpu_busy=0.1, gpu_mem_mb=1000)
TINY_2 = {2: "tiny", 9: "tiny"}
TINY = dict.fromkeys((1, 2, 3, 7, 8, 9), "tiny")
ON_N1, LATER, ON_N2 = [gpu(0, 0, 1)], [gpu(0, 1, 1, first=False)], [gpu(1, 0, 2)]
STRANGERS = [("jumbo", "jumbo"), ("tiny", "huge"), ("tiny", "new"), ("tiny", ""), ("", "tiny")]
Case = tuple[list[JobRow], dict[int, str], dict[str, Any], dict[int, list[int] | None]]
CASES: dict[str, Case] = {
    "a friend's half": ([R2, J9], TINY, {"shared": ON_N2}, {9: [1]}),
    **{
        f"{host}-{guest}": ([R1, J9], {1: host, 9: guest}, {"shared": ON_N1}, {9: [1]})
        for host, guest in STRANGERS
    },
    "nobody's model": ([R1, J9], {9: "tiny"}, {"shared": ON_N1}, {9: [1]}),
    "no label": ([R1, J9], {1: "new", 9: "tiny"}, {"shared": ON_N1}, {9: [1]}),
    # A measured 0.99 beats the 0.95 that a label promises.
    "the best host": ([R1, R2, J9], {**TINY, 2: "small"}, {"shared": ON_N1 + ON_N2}, {9: [1]}),
    "a full device is no host, nor is one for a quarter": (
        [R1, R2, pending(8, 0.25), J9],
        TINY,
        {"shared": [gpu(0, 0, 1, 2)]},
        {8: [1], 9: [2]},
    ),
    "nor one for more than is left": (
        [running(1, 0.25), J9],
        TINY,
        {"shared": [gpu(0, 0, 1, share=0.25)]},
        {9: [1]},
    ),
    "not where Slurm takes a lower device": ([R1, J9], TINY, {"shared": LATER}, {9: [1]}),
    "not where two are half free": (
        [R1, R2, J9],
        TINY,
        {"shared": [gpu(0, 0, 1), gpu(0, 1, 2)]},
        {9: [1]},
    ),
    "no other device has room": (
        [R1, R3, J9],
        {1: "tiny", 9: "tiny"},
        {"shared": LATER, "whole": {3: {0: 1}}},
        {9: [0]},
    ),
    # In one pass Slurm would put both on the same device.
    "nodes of their own": ([half(7), J8, J9], {}, {}, {7: [0], 8: [1], 9: [2]}),
    "two that get on begin together": ([J8, J9], TINY, {}, {8: [0], 9: [0]}),
    "two fill the only GPU": ([half(7), J8, J9], TINY, {"nodes": (1,)}, {7: [0], 8: [0], 9: None}),
    "the least loaded is another": ([J8, J9], TINY, {"spreads_shares": True}, {8: [0], 9: [1]}),
    # The best gets the nodes on which whole GPUs will be free, the others start nowhere.
    "without a place": (
        [running(1, 2), R2, R3, J8, J9],
        {},
        {"nodes": (2, 2), "shared": ON_N2, "whole": {1: {0: 2}, 3: {1: 1}}},
        {8: [0], 9: None},
    ),
    "it stays where it was sent": ([J9], {}, {"steers": steer()}, {9: [2]}),
    "where shares are": ([J9], {}, {"sharable": np.array([False, False, True])}, {9: [2]}),
    "CPUs count": ([R1, half(9, cpus=64)], TINY, {"shared": ON_N1}, {9: [1]}),
    "and of those sent there": ([half(8, cpus=40), half(9, cpus=40)], TINY, {}, {8: [0], 9: [1]}),
    "a node for itself": (
        [running(1, 1), half(9, exclusive=True)],
        {},
        {"whole": {1: {0: 1}}},
        {9: [1]},
    ),
    "else the fuller node": ([running(1, 1), J9], {}, {"whole": {1: {0: 1}}}, {9: [0]}),
    # It is not certain that it would come beside the friend.
    "a free device beside nobody": (
        [R1, R2, running(3, 0.5), J9],
        TINY,
        {"nodes": (2, 4), "shared": [*LATER, gpu(1, 0, 2, 3)]},
        {9: [1]},
    ),
    "away from an unknown device": ([R1, J9], {}, {"whole": {1: {0: 0.5}}}, {9: [1]}),
    # They are one record: kept together from others, not from each other.
    "an array": ([half(8, tasks=3), J9], {8: "tiny", 9: "new"}, {}, {8: [0, 1], 9: [2]}),
    "one could join": ([R1, half(8, tasks=3)], TINY, {"shared": ON_N1}, {8: [1, 2]}),
    "not beside one of three GPUs": (
        [running(1, 1.5), J9],
        TINY,
        {"shared": ON_N1, "whole": {1: {1: 0.5, 2: 0.5}}, "nodes": (1, 2, 2, 2)},
        {9: [3]},
    ),
    "two nodes": ([R1, pending(9, 0.5, n_nodes=2)], TINY, {"shared": ON_N1}, {9: [1, 2]}),
}


@pytest.mark.parametrize(("rows", "models", "more", "expected"), CASES.values(), ids=CASES)
def test_a_job_is_sent_beside_one_it_gets_on_with_or_where_it_is_alone(
    rows: list[JobRow],
    models: dict[int, str],
    more: dict[str, Any],
    expected: dict[int, list[int] | None],
) -> None:
    """To each job the node rows where it may start; None: nowhere yet."""
    listed = {row.job_id for row in rows}
    assert (
        sent(scene(rows, {j: m for j, m in models.items() if m and j in listed}, **more))
        == expected
    )


@pytest.mark.parametrize(
    ("rows", "more", "expected"),
    [
        # Five GPUs are free.
        ([R2, J9], {"shared": ON_N2}, {9: [0]}),
        ([R2, pending(7, 4), J9], {"shared": ON_N2}, {9: [0]}),
        ([R2, pending(7, 5), J9], {"shared": ON_N2}, {9: [1]}),
        ([R2, pending(7, 4), J8, J9], {"shared": ON_N2}, {8: [1], 9: [0]}),
        # A share counts as a GPU, and so does each task of an array.
        ([R2, pending(7, 1, tasks=5), J9], {"shared": ON_N2}, {9: [1]}),
        ([R2, pending(7, 5, held=Held.USER_OR_ADMIN), J9], {"shared": ON_N2}, {9: [0]}),
        # Of the others' partition nothing counts, nor does a node that is down.
        ([R2, pending(7, 5, partition=1), J9], {"shared": ON_N2}, {9: [0]}),
        ([J8, J9], {"nodes": (1, 1)}, {8: [0], 9: [1]}),
        # Its GPU is on a node with a neighbour's free half, which Slurm might take.
        ([R2, J9], {"shared": ON_N2, "nodes": (0, 2)}, {9: [1]}),
        # The free GPU has too few CPUs beside it.
        (
            [R1, R2, half(9, cpus=40)],
            {"shared": ON_N2, "nodes": (2, 2), "whole": {1: {0: 0.5}}, "cpus": (30, 64)},
            {9: [1]},
        ),
    ],
)
def test_nobody_shares_while_there_are_gpus_for_all(
    rows: list[JobRow], more: dict[str, Any], expected: dict[int, list[int] | None]
) -> None:
    """A device of its own, unless there is none beside nobody."""
    columns = {"cpus": more.pop("cpus")} if "cpus" in more else None
    models = {row.job_id: "tiny" for row in rows}
    snap = scene(rows, models, crowded=False, columns=columns, **more)

    assert sent(snap) == expected


def test_why_it_shares_or_not() -> None:
    """The load is part of the reason."""
    rows = [R2, J9]
    for crowded, nodes, why in (
        (True, (2, 2), "beside job 2 (tiny): more GPUs are waited for than are free"),
        (False, (2, 2), "nobody shares yet; there are free GPUs for all that wait"),
        (False, (0, 2), "beside job 2 (tiny): no node has a GPU for it alone"),
    ):
        snap = scene(rows, TINY_2, shared=ON_N2, nodes=nodes, crowded=crowded)
        placed = with_shares(snap, np.argsort(snap.jobs.job_id), (), HOW, Placed())
        assert why in placed.waits[JobId(9)].why


SLOTS: dict[str, tuple[list[JobRow], dict[int, str], dict[int, Claim], dict[int, Any]]] = {
    "the second waits": ([half(7), J8, J9], {9: "tiny"}, {}, {7: [0], 8: None, 9: [1]}),
    "one that runs": ([R1, J8], {}, {}, {8: None}),
    "one that runs and is known": ([R1, J8], {1: "tiny"}, {}, {8: [1]}),
    "one that says half of it": ([R1, J8], {}, {1: Claim(gpu_busy=0.1)}, {8: None}),
    "one that measured itself": ([R1, J8], {}, {1: MEASURED}, {8: [1]}),
    "what is said before it runs": ([half(7), J8], {}, {8: MEASURED}, {7: [0], 8: None}),
    "a model without figures": ([R1, J8], {8: "bare"}, {}, {8: None}),
    # They are one record; once it runs nobody else comes.
    "an array": ([half(7, tasks=2), J8], {}, {}, {7: [0], 8: None}),
}


@pytest.mark.parametrize("case", SLOTS)
def test_one_unmeasured_job_at_a_time(case: str) -> None:
    """While GPUs are short; further ones wait, and say for what."""
    rows, models, claims, expected = SLOTS[case]
    profiles = {**PROFILES, "bare": Profile(name="bare")}
    how = dataclasses.replace(HOW, profile_slots=1, profiles=profiles)
    shared = ON_N1 if R1 in rows else []
    snap = scene(rows, models, shared=shared, claims=claims)

    assert sent(snap, how) == expected
    placed = with_shares(snap, np.argsort(snap.jobs.job_id), (), how, Placed())
    waits = {wait.why for wait in placed.waits.values() if wait.within is None}
    assert waits <= {"one of the 1 GPUs for jobs whose model was not measured yet"}
    calm = scene(rows, models, shared=shared, claims=claims, crowded=False)
    assert None not in sent(calm, how).values(), "at low load nobody waits"


@pytest.mark.parametrize("first", [half(7, tasks=2), pending(7, 0.5 * 3, n_nodes=3)])
def test_each_gpu_of_an_unmeasured_job_takes_a_slot(first: JobRow) -> None:
    """Of the tasks of an array, and on each node of a job on several."""
    snap = scene([first, J8, J9], {9: "tiny"}, nodes=(2,) * 5)

    assert sent(snap, dataclasses.replace(HOW, profile_slots=2))[8] is None
    assert sent(snap, dataclasses.replace(HOW, profile_slots=4))[8] is not None


@pytest.mark.parametrize(
    ("claim", "expected"),
    [
        (Claim(), [1]),
        (Claim(gpu_busy=0.1), [1]),
        (Claim(gpu_busy=0.1, gpu_mem_mb=1000), [0]),
        (Claim(gpu_busy=0.1, gpu_mem_mb=39_000), [1]),
    ],
)
def test_a_stranger_is_a_host_once_it_has_measured_itself(
    claim: Claim, expected: list[int]
) -> None:
    """By its own figures; it never is the one that joins."""
    how = dataclasses.replace(HOW, profiles=busy(light=0.1))
    snap = scene([R1, J9], {9: "light"}, shared=ON_N1, claims={1: claim})

    assert sent(snap, how) == {9: expected}
    reverse = scene([R1, J9], {1: "light"}, shared=ON_N1, claims={9: claim})
    assert sent(reverse, how) == {9: [1]}


def test_the_policys_rule_is_what_counts() -> None:
    """Labels by the tree of the site's mode, the length, the first host; each changes the node."""
    how = dataclasses.replace(HOW, sharing_mode="mps", profiles=busy(light=0.5, heavy=0.9))
    r1, r2 = running(1, 0.5, ran_s=50.0), running(2, 0.5, ran_s=90.0)
    models = {1: "light", 2: "heavy", 9: "light"}
    left = {1: 100.0, 2: 100.0, 9: 150.0}

    def node(rule: PairRule, left_s: Mapping[int, float] = left, **more: Any) -> object:  # noqa: ANN401
        snap = scene([r1, r2, J9], {**models, **more.pop("models", {})}, shared=ON_N1 + ON_N2)
        snap = snap.derived(left_s=column(snap, left_s))
        return sent(snap, dataclasses.replace(how, **more), rule=rule)[9]

    assert node(PairRule()) == [0], "the best sum"
    assert node(PairRule(first_host=True)) == [1]
    assert node(PairRule(by_labels=True, first_host=True)) == [0], "1 + 2"
    assert node(PairRule(first_host=True), least_pair_speed=1.7) == [0], "2.55 - 0.66 * 1.4"
    assert node(PairRule(first_host=True), least_pair_speed=1.6) == [1], "under MPS"
    slices = {"sharing_mode": "slices", "least_pair_speed": 1.6}
    assert node(PairRule(first_host=True), **slices) == [0], "2.84 - 1.4, and 1.84"
    assert node(PairRule(most_ratio=2.0), {**left, 1: 70.0}) == [1]
    assert node(PairRule(most_ratio=2.0), {**left, 1: 70.0, 2: 70.0}) == [2]


def test_the_length_of_each_counts_though_they_are_alike() -> None:
    """Two of one model, of which the first is too long for the host."""
    how = dataclasses.replace(HOW, profiles=busy(light=0.5))
    snap = scene([R1, J8, J9], dict.fromkeys((1, 8, 9), "light"), shared=ON_N1)
    snap = snap.derived(left_s=column(snap, {1: 10.0, 8: 21.0, 9: 20.0}))

    assert sent(snap, how, PairRule(most_ratio=2.0)) == {8: [1], 9: [0]}
    # Of the policy's own predictions job 8 is the one that is short enough.
    left_gpu_s = column(snap, {1: 10.0, 8: 20.0, 9: 21.0})
    rule = PairRule(most_ratio=2.0, left_gpu_s=left_gpu_s)
    assert sent(snap, how, rule) == {8: [0], 9: [1]}


@pytest.mark.parametrize(("larger", "expected"), [(8, {8: [1], 9: [0]}), (9, {8: [0], 9: [1]})])
def test_what_each_measured_itself_counts_though_they_are_alike(
    larger: int, expected: dict[int, list[int]]
) -> None:
    """Two of one model, of which one once took all of a GPU."""
    claims = {larger: Claim(gpu_busy=0.1, gpu_mem_mb=39_000)}
    snap = scene([R1, J8, J9], dict.fromkeys((1, 8, 9), "tiny"), shared=ON_N1, claims=claims)

    assert sent(snap) == expected


def test_a_decision_goes_by_the_rule_of_its_policy() -> None:
    """Labels 1 and 2 of Lucid keep two apart that are fast enough together."""
    placement = dataclasses.replace(HOW, profiles=busy(light=0.1, heavy=0.9))
    settings = Settings(partitions=frozenset({"gpu"}), placement=placement)
    snap = scene([R1, half(9, limit_s=60)], {1: "light", 9: "heavy"}, shared=ON_N1)

    assert "beside job 1" in decide(snap, Fifo(), settings).notes[JobId(9)]
    assert "nobody shares" in decide(snap, Lucid(), settings).notes[JobId(9)]
    assert "beside job 1" in decide(snap, Lucid(labels=False), settings).notes[JobId(9)]


@pytest.mark.parametrize(("first", "second"), [("safe", "rough"), ("rough", "safe")])
def test_of_two_that_begin_together_either_may_be_the_host(first: str, second: str) -> None:
    """The bound on what a host loses must hold for both: nobody knows who starts first."""
    profiles = {
        name: Profile(name=name, load=Load(gpu_mem_mb=1), beside=(Beside(other=other, rate=rate),))
        for name, other, rate in (("safe", "rough", 0.6), ("rough", "safe", 0.99))
    }
    how = dataclasses.replace(HOW, profiles=profiles, max_host_slowdown=0.03)
    snap = scene([half(8), half(9)], {8: first, 9: second}, nodes=(2,))

    assert sent(snap, how) == {8: [0], 9: None}


def test_a_requeued_job_has_its_place_before_its_interval_is_over() -> None:
    """Its begin time is left alone: without a place it is kept to nodes that are full."""
    back = half(9, held=Held.BEGIN_TIME, restarts=1)
    tenant = [gpu(0, 0, 1)]

    assert sent(scene([running(1, 0.5), back], {}, shared=tenant)) == {9: [1]}
    rows = [running(1, 0.5), running(2, 1), back]
    full = scene(rows, {}, nodes=(1, 1), shared=tenant, whole={2: {1: 1}})
    assert sent(full) == {9: [1]}, "whole GPUs come free there"
    rows[1:2] = [running(2, 0.5), running(3, 0.5)]
    pair = [gpu(0, 0, 1), gpu(1, 0, 2, 3)]
    assert sent(scene(rows, {}, nodes=(1, 1), shared=pair)) == {9: [1]}
    assert sent(scene([running(1, 0.5), back], {}, nodes=(1,), shared=tenant)) == {}
    ours = steer(not_before_s=NOW_S + 9)
    put_off = scene([running(1, 0.5), back], {}, nodes=(1,), shared=tenant, steers=ours)
    assert sent(put_off) == {9: None}, "this begin time is ours"
    not_yet = half(9, held=Held.BEGIN_TIME)
    assert sent(scene([not_yet], {})) == {}, "its owner's begin time"


def test_jobs_that_did_not_ask_for_shares_are_untouched() -> None:
    """Whole GPUs, no GPU, and everybody where packing is off or no node hands out shares."""
    rows = [pending(7, 1), pending(8, 0), half(9, held=Held.USER_OR_ADMIN)]

    assert sent(scene(rows, {})) == {}
    assert sent(scene([half(9)], {}), Placement(steer=True)) == {}
    assert sent(scene([half(9)], {}, sharable=None)) == {}


def test_the_plan_writes_it_into_the_excluded_nodes() -> None:
    """The same way as for every other job; a job without room is put off."""
    snap = scene([running(1, 0.5), half(9)], {}, nodes=(2, 2), shared=[gpu(0, 0, 1)])
    settings = Settings(partitions=frozenset({"gpu"}), placement=HOW)

    steers = [a.steer for a in decide(snap, Fifo(), settings).actions if isinstance(a, SetSteer)]

    assert [(s.job_id, s.avoid, s.kind) for s in steers] == [(9, ("n1",), "wait")]
    alone = scene([running(1, 0.5), half(9)], {}, nodes=(2,), shared=[gpu(0, 0, 1)])
    (steer,) = [a.steer for a in decide(alone, Fifo(), settings).actions if isinstance(a, SetSteer)]
    assert steer.not_before_s > NOW_S


def test_whole_gpu_jobs_are_placed_beside_it_all() -> None:
    """A scheme and the packer do not get into each other's way."""
    snap = scene([running(1, 0.5), pending(8, 2), half(9)], {}, shared=[gpu(0, 0, 1)])
    how = Placement(scheme=BestFit(), steer=True, pack=True, profiles=PROFILES)

    plan = decide(snap, Fifo(), Settings(partitions=frozenset({"gpu"}), placement=how))

    avoided = {a.job_id: a.steer.avoid for a in plan.actions if isinstance(a, SetSteer)}
    assert avoided == {8: ("n1", "n3"), 9: ("n1", "n3")}
    assert "nobody shares" in plan.notes[JobId(9)]


@pytest.mark.parametrize(
    ("shared", "free"),
    [
        ([], 8),
        ([gpu(0, 0, 1), gpu(0, 1, 2)], 6),
        ([gpu(0, 0, 1, 2)], 7),
        ([gpu(0, 0, 1), gpu(1, 1, 2)], 6),
    ],
)
def test_two_halves_on_two_devices_leave_six_whole_ones(shared: list[SharedGpu], free: int) -> None:
    """Eight GPUs on two nodes, as both count them for jobs that want whole ones."""
    rows = [running(j, 0.5) for g in shared for j in g.jobs]
    snap = scene(rows, {}, nodes=(4, 4), shared=shared)
    stock = FreeNodes.of(snap, {})

    assert FreeResources.free_in(snap).gpus.sum() == free
    assert (stock.gpus * stock.count).sum() == free


def test_shares_of_unknown_devices_fill_one_after_the_other() -> None:
    """As Slurm does it: five quarters are on two devices; a job that is ending has left."""
    rows = [running(j, 0.25) for j in range(1, 6)] + [running(6, 2)]
    held = {j: {0: 0.25} for j in range(1, 6)} | {6: {0: 2}}
    snap = scene(rows, {}, nodes=(8,), whole=held)

    assert FreeResources.free_in(snap).gpus.tolist() == [8 - 2 - 2]
    rows[0] = JobRow(job_id=1, state=JobState.COMPLETING, gpus=0.25)
    ending = scene(rows, {}, nodes=(8,), whole=held)
    assert FreeResources.free_in(ending).gpus.tolist() == [8 - 1 - 2]


devices = st.dictionaries(
    st.tuples(st.integers(0, 2), st.integers(0, 2)), st.integers(1, 2), max_size=5
)


@given(
    devices=devices,
    models=st.lists(
        st.sampled_from([None, "tiny", "jumbo", "huge", "new"]), min_size=16, max_size=16
    ),
    asks=st.lists(st.sampled_from([0.25, 0.5, 0.75]), max_size=5),
    order=st.permutations(range(100, 105)),
)
def test_nobody_comes_beside_one_he_does_not_get_on_with(
    devices: dict[tuple[int, int], int],
    models: list[str | None],
    asks: list[float],
    order: Sequence[int],
) -> None:
    """Slurm starts all at once, in any order, each on the first device with room."""
    numbers = iter(range(1, 11))
    shared = [
        gpu(node, index, *(next(numbers) for _ in range(n)), first=_is_first(devices, node, index))
        for (node, index), n in sorted(devices.items())
    ]
    rows = [running(j, 0.5) for g in shared for j in g.jobs]
    rows += [pending(100 + i, ask) for i, ask in enumerate(asks)]
    named = {r.job_id: m for r, m in zip(rows, models, strict=False) if m is not None}
    snap = scene(rows, named, nodes=(3, 3, 3), shared=shared)

    on = {
        (g.node, g.index): [(int(j), s) for j, s in zip(g.jobs, g.shares, strict=True)]
        for g in shared
    }
    may = sent(snap)
    for job in order:
        if job not in may:
            continue
        nodes, share = may[job], asks[job - 100]
        for node in nodes or ():
            at = next(
                (
                    (node, i)
                    for i in range(3)
                    if sum(s for _, s in on.get((node, i), ())) + share <= 1
                ),
                None,
            )
            if at is not None:
                on.setdefault(at, []).append((job, share))
                break
    for there in on.values():
        if any(job >= 100 for job, _ in there) and len(there) > 1:
            pair = sorted(named.get(job, "") for job, _ in there)
            assert len(there) == 2
            assert [s for _, s in there] == [0.5, 0.5]
            assert pair in (["tiny", "tiny"], ["jumbo", "tiny"])


def _is_first(devices: Mapping[tuple[int, int], int], node: int, index: int) -> bool:
    return all(devices.get((node, before)) == 2 for before in range(index))
