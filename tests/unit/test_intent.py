"""Who is served: the column arithmetic against plain loops and sorted()."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import ClassVar

import build
import numpy as np
import pytest
from build import NOW_S, observed, pending, running, snapshot
from hypothesis import given
from hypothesis import strategies as st

from slurm_dl.engine.decide import decide
from slurm_dl.engine.intent import checked, intend, rank_jobs
from slurm_dl.engine.out_of_reach import out_of_reach
from slurm_dl.engine.settings import Preemption, Settings
from slurm_dl.engine.target import NOBODY, choose_target, pools, serve
from slurm_dl.ledger.lease_credits import OWED
from slurm_dl.model.booking import entry
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import Bool, Held, JobRow, JobState
from slurm_dl.model.plan import OpenHandover
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.base import Order, Preempts
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.policies.fifo import Fifo, FifoSkip

LIVE = (JobState.PENDING, JobState.CONFIGURING, JobState.RUNNING, JobState.SUSPENDED)
GPUS = st.sampled_from([0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 8.0])
A100, V100 = 0, 1


def served_by_hand(wants: list[float], room: float, *, skips: bool) -> list[bool]:
    """Each in turn takes what it wants if that is left."""
    served: list[bool] = []
    for want in wants:
        fits = want <= room
        if not fits and not skips:
            return served + [False] * (len(wants) - len(served))
        room -= want * fits
        served.append(fits)
    return served


@given(wants=st.lists(GPUS, max_size=30), room=st.integers(0, 40), skips=st.booleans())
def test_serving_equals_a_plain_loop(wants: list[float], room: int, skips: bool) -> None:  # noqa: FBT001
    """A few NumPy passes serve whom a loop over the jobs serves."""
    served = serve(np.array(wants), float(room), skips=skips)

    assert served.tolist() == served_by_hand(wants, room, skips=skips)


def test_serving_takes_more_than_one_pass() -> None:
    """What fits at first may not fit once others have been served."""
    wants = np.array([5.0, 3.0, 4.0, 1.0, 2.0, 1.0, 1.0])

    assert serve(wants, 8.0, skips=True).nonzero()[0].tolist() == [0, 1]
    assert serve(wants, 7.0, skips=True).nonzero()[0].tolist() == [0, 3, 5]
    assert serve(wants, 6.0, skips=False).nonzero()[0].tolist() == [0]
    assert serve(wants, 4.5, skips=True).nonzero()[0].tolist() == [1, 3]


@pytest.mark.parametrize("skips", [True, False])
def test_tenths_of_a_gpu_fill_it(skips: bool) -> None:  # noqa: FBT001
    """0.2 + 0.4 + 0.3 + 0.1 is one GPU, in whichever order they are served."""
    for wants in itertools.permutations((0.2, 0.4, 0.3, 0.1)):
        assert serve(np.array(wants), 1.0, skips=skips).all()


def mixed(rows: list[JobRow], *, a100: int = 2, v100: int = 2, up: int = 99) -> Snapshot:
    """Nodes of 4 GPUs, *a100* of one type and *v100* of the other, the first *up* of them up."""
    m = a100 + v100
    columns = {"up": np.arange(m) < up, "gpu_type": [A100] * a100 + [V100] * v100}
    return build.snapshot(build.observed(rows, nodes=(4,) * m, columns=columns))


def target_by_hand(
    snap: Snapshot, ranked: list[int], pinned: list[int], *, skips: bool
) -> list[int]:
    """A loop over jobs and types, behind *pinned* ones that hold what they hold."""
    jobs, nodes = snap.jobs, snap.seen.nodes
    left = {
        kind: float(nodes.gpus[nodes.up & (nodes.gpu_type == kind)].sum()) for kind in (A100, V100)
    }
    anywhere = sum(left.values())
    target = []
    for row in [*pinned, *(r for r in ranked if r not in pinned)]:
        want, kind = float(jobs.gpus[row]), int(jobs.gpu_type[row])
        waits = jobs.state[row] == JobState.PENDING
        if not want or (waits and jobs.held[row] != Held.NO):
            continue
        fits = want <= anywhere and (kind < 0 or want <= left[kind])
        if not fits and row not in pinned:
            if not skips:
                break
            continue
        anywhere -= want
        if kind >= 0:
            left[kind] -= want
        target.append(row)
    return target


@st.composite
def clusters(draw: st.DrawFn, *, kinds: tuple[int, ...]) -> tuple[Snapshot, list[int], list[int]]:
    """A snapshot, a ranking of its jobs, and pinned running jobs, which need not fit."""
    n = draw(st.integers(1, 14))
    rows = []
    for i in range(n):
        state = draw(st.sampled_from([JobState.PENDING, JobState.PENDING, JobState.RUNNING]))
        make = build.pending if state == JobState.PENDING else build.running
        gpus = draw(st.sampled_from([0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0]))
        held = draw(st.sampled_from([Held.NO, Held.NO, Held.LIMIT]))
        rows.append(make(i + 1, gpus, held=held, gpu_type=draw(st.sampled_from(kinds))))
    snap = mixed(rows, a100=draw(st.integers(0, 3)), v100=draw(st.integers(1, 3)))
    going = [i for i, r in enumerate(rows) if r.state == JobState.RUNNING]
    pinned = draw(st.lists(st.sampled_from(going), unique=True)) if going else []
    return snap, draw(st.permutations(range(n))), pinned


@given(case=clusters(kinds=(-1, A100, V100)), skips=st.booleans())
def test_the_target_equals_a_plain_loop_over_types(
    case: tuple[Snapshot, list[int], list[int]],
    skips: bool,  # noqa: FBT001
) -> None:
    """GPUs of two types, jobs that want one of them or any, pinned jobs, held jobs, no GPUs."""
    snap, ranked, pinned = case
    found = choose_target(
        snap, np.array(ranked), np.array(pinned, dtype=np.int64) if pinned else NOBODY, skips=skips
    )

    assert found.tolist() == target_by_hand(snap, ranked, pinned, skips=skips)


@given(case=clusters(kinds=(-1,)), skips=st.booleans())
def test_types_that_nobody_asks_for_change_nothing(
    case: tuple[Snapshot, list[int], list[int]],
    skips: bool,  # noqa: FBT001
) -> None:
    """One more job that wants a type, and needs more than there is, takes the other path."""
    snap, ranked, pinned = case
    jobs = snap.jobs
    rows = [
        JobRow(**{n: getattr(jobs, n)[i].item() for n in JobRow.__slots__})
        for i in range(len(jobs))
    ]
    typed = mixed(
        [*rows, build.pending(99, 1000, gpu_type=V100)],
        a100=int((snap.seen.nodes.gpu_type == A100).sum()),
        v100=int((snap.seen.nodes.gpu_type == V100).sum()),
    )
    fixed = np.array(pinned, dtype=np.int64)

    plain = choose_target(snap, np.array(ranked), fixed, skips=skips)
    other = choose_target(typed, np.array([*ranked, len(rows)]), fixed, skips=skips)

    assert plain.tolist() == other.tolist()


def test_only_nodes_that_are_up_count() -> None:
    """Four nodes of which three are up hold three jobs of a node each."""
    snap = mixed([build.pending(i, 4) for i in (1, 2, 3, 4)], up=3)

    assert choose_target(snap, np.arange(4), NOBODY, skips=True).tolist() == [0, 1, 2]


PINNED_IN_VAIN = [
    build.running(1, 8, gpu_type=-1),
    build.running(2, 2, gpu_type=-1),
    build.pending(3, 1, gpu_type=-1),
]
"""One node of 4 GPUs is up; job 1 runs on nodes that are being drained."""


@pytest.mark.parametrize("skips", [True, False])
def test_pinned_jobs_are_in_the_target_whatever_is_up(skips: bool) -> None:  # noqa: FBT001
    """They cannot be moved, so the target that leaves them out cannot be reached."""
    snap = mixed(PINNED_IN_VAIN, a100=1, v100=2, up=1)
    target = choose_target(snap, np.arange(3), np.array([0, 1]), skips=skips)

    assert {0, 1} <= set(target.tolist())


def test_a_pinned_job_that_does_not_fit_stops_nobody() -> None:
    """With and without a job that wants a type somewhere behind, the same jobs are served."""
    typed = [*PINNED_IN_VAIN, build.pending(4, 1000, gpu_type=V100)]
    plain = mixed(PINNED_IN_VAIN, a100=1, v100=2, up=1)
    other = mixed(typed, a100=1, v100=2, up=1)
    pinned = np.array([0, 1])

    expected = choose_target(other, np.arange(4), pinned, skips=False).tolist()
    assert choose_target(plain, np.arange(3), pinned, skips=False).tolist() == expected


@dataclasses.dataclass(frozen=True, eq=False)
class _Told:
    """A policy that says what it was told to say, job by job."""

    name: ClassVar[str] = "told"
    source: ClassVar[str] = ""
    interpretation: ClassVar[str] = ""
    preempts: ClassVar[Preempts] = "rank"
    skips: ClassVar[bool] = True
    said: dict[int, tuple[int, float, float]]
    with_tie: bool = True

    @property
    def tiers(self) -> int:
        """Four."""
        return 4

    def order(self, snap: Snapshot, /) -> Order:
        """What it was told."""
        said = [self.said[j] for j in snap.jobs.job_id.tolist()]
        return Order(
            tier=np.array([s[0] for s in said], dtype=np.int16),
            key=np.array([s[1] for s in said], dtype=np.float64),
            tie=np.array([s[2] for s in said], dtype=np.float64) if self.with_tie else None,
            promote=np.zeros(len(said), dtype=np.bool_),
            tiers=4,
        )

    def next_change_s(self, snap: Snapshot, order: Order, running: Bool, /) -> float:  # noqa: ARG002
        """Never."""
        return math.inf


class _ToldTiers(_Told):
    preempts: ClassVar[Preempts] = "tier"


class _ToldNobody(_Told):
    preempts: ClassVar[Preempts] = "never"


@pytest.mark.parametrize("told", [_Told, _ToldTiers, _ToldNobody])
@given(data=st.data(), with_tie=st.booleans())
def test_ranking_equals_sorted_whatever_the_listing_order(
    told: type[_Told],
    data: st.DataObject,
    with_tie: bool,  # noqa: FBT001
) -> None:
    """(who may displace whom, tier, key, tie, first submit, id), with many equal values."""
    n = data.draw(st.integers(1, 10))
    few = st.sampled_from([0.0, 1.0, 2.0])
    said = {i + 1: (data.draw(st.integers(0, 3)), data.draw(few), data.draw(few)) for i in range(n)}
    first = {i + 1: data.draw(few) for i in range(n)}
    rows = [
        dataclasses.replace(build.running(i + 1), state=data.draw(st.sampled_from(list(JobState))))
        for i in range(n)
    ]
    rows = data.draw(st.one_of(st.just(rows), st.permutations(rows)))
    snap = build.snapshot(build.observed(rows), memory={"first_submit_s": first})
    policy = told(said, with_tie=with_tie)

    def place(job: JobRow) -> tuple[float, ...]:
        tier, key, tie = said[job.job_id]
        waits = job.state == JobState.PENDING
        groups = {"never": (waits, tier), "tier": (tier, waits), "rank": (tier,)}[told.preempts]
        return (*groups, key, tie * with_tie, first[job.job_id], job.job_id)

    live = [r for r in rows if r.state in LIVE]
    ranked = rank_jobs(snap, policy.order(snap), policy.preempts)
    assert snap.jobs.job_id[ranked].tolist() == [r.job_id for r in sorted(live, key=place)]


def test_jobs_of_other_partitions_have_no_place() -> None:
    """Only managed partitions are ordered; rank() is -1 for the others and for finished jobs."""
    rows = [
        build.pending(1, partition=1),
        build.pending(2),
        dataclasses.replace(build.running(3), state=JobState.COMPLETED),
        build.running(4),
    ]
    intent = intend(build.snapshot(build.observed(rows)), Fifo())

    assert intent.ranked.tolist() == [3, 1]
    assert intent.rank().tolist() == [-1, 1, -1, 0]
    assert intent.target.tolist() == [3, 1]


def test_who_does_not_fit_is_waited_for_or_passed_by() -> None:
    """FIFO waits for the job of 12; fifo_skip serves the one behind it. The runner keeps on."""
    rows = [build.pending(1, 12), build.pending(2, 4), build.running(3, 8)]
    snap = build.snapshot(build.observed(rows))

    assert intend(snap, Fifo()).target.tolist() == [2]
    assert intend(snap, FifoSkip()).target.tolist() == [2, 1]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"tier": np.array([0, 4], dtype=np.int16)}, "tiers outside 0 to 3"),
        ({"tier": np.array([0, -1], dtype=np.int16)}, "tiers outside 0 to 3"),
        ({"key": np.array([0.0, math.nan])}, "not a number"),
        ({"key": np.zeros(3)}, "columns of shapes"),
        ({"tie": np.zeros(1)}, "columns of shapes"),
        ({"promote": np.zeros((2, 1), dtype=np.bool_)}, "columns of shapes"),
        ({"start_s": np.zeros(1)}, "columns of shapes"),
        ({"book": (entry(OWED, "", {}),)}, "no policy's"),
    ],
)
def test_nonsense_is_refused(change: dict[str, object], why: str) -> None:
    """The message names the policy and what is wrong."""
    policy = _Told({1: (0, 0.0, 0.0), 2: (3, 1.0, 0.0)})
    order = policy.order(build.snapshot(build.observed([build.pending(1), build.pending(2)])))

    assert checked(order, policy, 2) is order
    with pytest.raises(ValueError, match=f"policy told: .*{why}"):
        checked(dataclasses.replace(order, **change), policy, 2)  # type: ignore[arg-type]


def test_a_tie_that_is_not_a_number_is_refused() -> None:
    """Like a key; its place among others would be an accident."""
    policy = _Told({1: (0, 0.0, math.nan), 2: (0, 0.0, 1.0)})
    snap = build.snapshot(build.observed([build.pending(1), build.pending(2)]))
    with pytest.raises(ValueError, match="not a number"):
        checked(policy.order(snap), policy, 2)


POLICY = DiscreteLas(thresholds_gpu_s=(1000.0,))
SETTINGS = Settings(
    partitions=frozenset({"gpu", "other"}),
    preemption=Preemption(
        beneficiaries="all", commitment="ignored", min_quantum_s=0, cooldown_s=0, limit_reserve_s=0
    ),
)


def two_partitions(node_in: list[list[int]]) -> Snapshot:
    """A full cluster of two nodes; eight jobs wait in the first partition, one in the second."""
    rows = [running(1, 4, ran_s=9000), running(2, 4, ran_s=9000, partition=1)]
    rows += [pending(i, 4) for i in range(3, 11)] + [pending(11, 4, partition=1)]
    seen = observed(rows, nodes=(4.0, 4.0), held={1: {0: 4.0}, 2: {1: 4.0}}, opted_in=[1, 2])
    seen = dataclasses.replace(seen, node_in=np.array(node_in, dtype=np.bool_))
    snap = snapshot(seen, memory={"attained_gpu_s": {1: 36_000.0, 2: 36_000.0}})
    return dataclasses.replace(snap, managed=np.array([True, True]))


@pytest.mark.parametrize(
    ("node_in", "groups", "target"),
    [
        ([[1, 0], [0, 1]], [{0}, {1}], {3, 11}),
        ([[1, 1], [0, 1]], [{0, 1}], {3, 4}),
    ],
)
def test_partitions_that_share_nodes_are_one_pool(
    node_in: list[list[int]], groups: list[set[int]], target: set[int]
) -> None:
    """The queue of one partition does not fill the target of another."""
    snap = two_partitions(node_in)
    plan = decide(snap, POLICY, SETTINGS)

    assert [set(pool.partitions or {0, 1}) for pool in pools(snap)] == groups
    assert plan.target == target


@pytest.mark.parametrize(
    ("n_nodes", "gpus", "choice", "staying", "expected"),
    [
        (2, 8, None, [0], True),
        (1, 4, None, [0], False),
        (2, 2, None, [0], False),
        (1, 4, [True, False], [0], True),
        (1, 4, [False, True], [0], False),
        (2, 8, None, [], False),
        (1, 16, None, [0], False),  # It would find none with nobody there either.
    ],
)
def test_a_job_is_out_of_reach_where_jobs_that_stay_hold_its_nodes(
    n_nodes: int, gpus: float, choice: list[bool] | None, staying: list[int], *, expected: bool
) -> None:
    """Two nodes of four GPUs; the job at row 0 holds two GPUs of the first."""
    rows = [running(1, 2), pending(2, gpus, n_nodes=n_nodes)]
    seen = observed(rows, nodes=(4.0, 4.0), held={1: {0: 2.0}})
    choices = {} if choice is None else {JobId(2): np.array(choice)}
    snap = snapshot(dataclasses.replace(seen, choices=choices))

    found = out_of_reach(snap, np.array(staying, dtype=np.int64), 900.0)

    assert found.tolist() == [False, expected]


@pytest.mark.parametrize("fruitless", [False, True])
def test_a_job_that_cannot_start_keeps_no_gpus_from_others(*, fruitless: bool) -> None:
    """Job 2 wants both nodes, and on one runs a job without a contract; or it was tried in vain."""
    rows = [running(1, 1), pending(2, 4 if fruitless else 8, n_nodes=1 if fruitless else 2)]
    rows += [running(3, 4, ran_s=9000), pending(4, 4)]
    seen = observed(rows, nodes=(4.0, 4.0), held={1: {0: 1.0}, 3: {1: 4.0}}, opted_in=[3])
    tried = {"fruitless": {2: 1.0}, "last_fruitless_s": {2: NOW_S - 60}} if fruitless else {}
    snap = snapshot(seen, memory={"attained_gpu_s": {3: 36_000.0}, **tried})
    plan = decide(snap, POLICY, SETTINGS)

    [opened] = [a.handover for a in plan.actions if isinstance(a, OpenHandover)]
    assert opened.beneficiaries == (JobId(4),)
