"""From where a job should go to what Slurm is told, and what is left of that in the end."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from build import NOW_S, observed, pending, running, snapshot
from fake_cluster import FakeCluster
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from slurm_dl.engine.cycle import Cycle, run_cycle
from slurm_dl.engine.placing.place_waiting import Placed
from slurm_dl.engine.placing.steering import LONGEST_DEFER_S, cleared_for, steering
from slurm_dl.engine.settings import Placement, Preemption, Settings
from slurm_dl.ledger.sqlite.store import SqliteStore
from slurm_dl.ledger.store_protocol import MemoryStore
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.contract import Contract
from slurm_dl.model.handover import Run
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.jobs import Held, JobState
from slurm_dl.model.plan import Action, ClearSteer, ForgetSteer, OpenHandover, Requeue, SetSteer
from slurm_dl.model.profile import Profile
from slurm_dl.model.snapshot import JobText, LeftOut, Snapshot
from slurm_dl.model.steer import Steer
from slurm_dl.placement.best_fit import BestFit
from slurm_dl.placement.candidate_nodes import CandidateNodes
from slurm_dl.placement.free_nodes import FreeNodes
from slurm_dl.placement.resource_request import PendingJob
from slurm_dl.placement.scheme import Answer, Placer, Spot, Wait
from slurm_dl.policies.base import Policy
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.policies.fifo import Fifo

NODES = ("n1", "n2", "n3")
STEER_FOR_S = 100.0
DEFER_S = 30.0


@dataclass(frozen=True)
class Told:
    """A scheme that answers as it is told to, whatever is free."""

    name: ClassVar[str] = "told"
    source: ClassVar[str] = ""
    interpretation: ClassVar[str] = ""
    says: Mapping[JobId, Answer] = field(default_factory=dict)

    def begin(
        self, _snap: Snapshot, _stock: FreeNodes, _profiles: Mapping[str, Profile], /
    ) -> Placer:
        """See `Scheme`."""
        return self

    def place(self, want: PendingJob, _offer: CandidateNodes, /) -> Answer:
        """See `Placer`."""
        return self.says.get(want.job_id)


def spot(*nodes: str) -> Spot:
    return Spot(nodes=tuple(NODES.index(n) for n in nodes), why="it is best there")


def wait(*nodes: str, for_s: float = 50.0) -> Wait:
    within = np.isin(NODES, nodes) if nodes else None
    return Wait(within=within, for_s=for_s, why="something better")


class World:
    """A cluster of three nodes of four GPUs, and a daemon over it."""

    def __init__(self) -> None:
        self.cluster = FakeCluster(nodes=3, gpus=4)
        self.ledger = Ledger(MemoryStore())
        self.says: dict[JobId, Answer] = {}
        self.policy: Policy = Fifo()
        self.limits = Preemption(enabled=False)
        self.placement = Placement(
            scheme=Told(self.says), steer=True, steer_for_s=STEER_FOR_S, defer_s=DEFER_S
        )

    def cycle(self) -> list[Action]:
        """One cycle; what it did about steers."""
        cycle = self.whole_cycle()
        return [
            d.action
            for d in cycle.done
            if isinstance(d.action, SetSteer | ClearSteer | ForgetSteer)
        ]

    def whole_cycle(self) -> Cycle:
        """One cycle."""
        return run_cycle(
            self.cluster,
            self.ledger,
            self.policy,
            Settings(
                partitions=frozenset({"gpu"}),
                preemption=self.limits,
                placement=self.placement,
            ),
            clock=self.cluster.clock,
            acting=True,
        )

    def fill(self) -> JobId:
        """A job that takes all there is."""
        job = self.cluster.submit(12, n_nodes=3, work_s=1e9)
        self.cluster.advance(1)
        return job

    def excluded(self, job: JobId) -> set[str]:
        """Names of the nodes a job excludes in Slurm."""
        return {f"n{row + 1}" for row in self.cluster.jobs[job].excluded}

    def runs_on(self, job: JobId) -> set[str]:
        """Names of the nodes a job runs on."""
        return {f"n{row + 1}" for row in self.cluster.jobs[job].nodes}

    def requeue(self, job: JobId) -> None:
        """As somebody else might."""
        is_now = self.cluster.jobs[job]
        run = Run(job, is_now.start_s, is_now.restarts)
        self.cluster.apply(Requeue(handover_id=HandoverId(1), run=run, why="by hand"))

    def steers(self) -> Mapping[JobId, Steer]:
        """What the ledger remembers."""
        return self.ledger.snapshot(self.cluster.observe(), frozenset({"gpu"})).steers


@pytest.fixture
def world() -> World:
    """An empty cluster."""
    return World()


def only(actions: list[Action]) -> Action:
    (action,) = actions
    return action


def test_job_is_kept_from_all_other_nodes_and_starts_where_it_should(world: World) -> None:
    """Then that is written down, and nothing is done to it any more."""
    runs = world.fill()
    job = world.cluster.submit(2, work_s=1e9)
    world.says[job] = spot("n2")

    assert isinstance(only(world.cycle()), SetSteer)
    assert world.excluded(job) == {"n1", "n3"}
    assert world.cycle() == [], "what is achieved has an empty diff"

    world.cluster.cancel(runs)
    world.cluster.advance(1)
    assert world.runs_on(job) == {"n2"}
    ended = only(world.cycle())
    assert isinstance(ended, ForgetSteer)
    assert ended.outcome == "honoured"
    assert world.cycle() == []
    world.cluster.cancel(job)
    assert getattr(only(world.cycle()), "outcome", "") == "gone"
    assert world.steers() == {}


def test_dry_run_only_says_where(world: World) -> None:
    """Nothing is written where steering is off, but the answer is told."""
    world.placement = dataclasses.replace(world.placement, steer=False)
    world.fill()
    job = world.cluster.submit(2, work_s=1e9)
    world.says[job] = spot("n2")

    cycle = world.whole_cycle()

    assert not any(isinstance(d.action, SetSteer) for d in cycle.done)
    assert cycle.plan.notes[job].startswith("it is to start on n2 (it is best there)")


def test_steer_that_slurm_does_not_honour_is_noted(world: World) -> None:
    """It is compared with where the job really runs."""
    runs = world.fill()
    job = world.cluster.submit(2, work_s=1e9)
    world.says[job] = spot("n2")
    world.cycle()
    world.cluster.exclude(job, "n2")
    world.cluster.cancel(runs)
    world.cluster.advance(1)

    assert getattr(only(world.cycle()), "outcome", "") == "not honoured"


def test_new_answer_is_written_once(world: World) -> None:
    """Another spot, a wait, and none: each is one write, and the owner's nodes stay throughout."""
    world.fill()
    job = world.cluster.submit(2, work_s=1e9, exclude=["n1"])
    for answer, excluded in (
        (spot("n2"), {"n1", "n3"}),
        (spot("n3"), {"n1", "n2"}),
        (wait("n3"), {"n1", "n2"}),
        (wait("n2", "n3"), {"n1"}),
        (wait(), {"n1"}),
    ):
        world.says[job] = answer
        assert isinstance(only(world.cycle()), SetSteer), answer
        assert world.excluded(job) == excluded
        assert world.steers()[job].own == ("n1",)
        assert world.cycle() == []
    del world.says[job]

    cleared = only(world.cycle())

    assert isinstance(cleared, ClearSteer)
    assert cleared.own == ("n1",)
    assert cleared.lift
    assert world.excluded(job) == {"n1"}
    assert world.steers() == {}
    assert world.cycle() == []


def test_spot_is_given_up_after_its_time_and_not_tried_again(world: World) -> None:
    """Moving from spot to spot gives it no more time; once it has started it begins anew."""
    runs = world.fill()
    job = world.cluster.submit(2, work_s=1e9)
    world.says[job] = spot("n2")
    world.cycle()
    world.cluster.advance(int(STEER_FOR_S / 2))
    world.says[job] = spot("n3")
    assert isinstance(only(world.cycle()), SetSteer)
    world.cluster.advance(int(STEER_FOR_S / 2))

    given_up = only(world.cycle())

    assert isinstance(given_up, SetSteer)
    assert given_up.steer.kind == "over"
    assert world.excluded(job) == set()
    assert world.cycle() == []
    del world.says[job]
    assert world.cycle() == []
    world.says[job] = spot("n3")
    assert world.cycle() == []
    world.cluster.cancel(runs)
    world.cluster.advance(1)
    assert getattr(only(world.cycle()), "outcome", "") == "let go"
    world.requeue(job)
    world.fill()
    world.cluster.advance(10)
    assert isinstance(only(world.cycle()), SetSteer)
    assert world.excluded(job) == {"n1", "n2"}


def test_job_is_put_off_from_look_to_look_and_let_go_at_once(world: World) -> None:
    """It starts nowhere while the scheme says so, and by itself when nobody looks any more."""
    job = world.cluster.submit(2, work_s=1e9)
    world.says[job] = wait()
    assert isinstance(only(world.cycle()), SetSteer)
    for _ in range(3):  # Each time for as long again as it has been.
        left_s = world.cluster.jobs[job].eligible_s - world.cluster.now_s
        world.cluster.advance(int(left_s - DEFER_S / 2) + 1)
        assert isinstance(only(world.cycle()), SetSteer)
        assert world.cycle() == []
    assert world.cluster.jobs[job].state is JobState.PENDING

    world.says[job] = spot("n2")
    action = only(world.cycle())
    assert isinstance(action, SetSteer)
    assert action.lift
    world.cluster.advance(1)

    assert world.runs_on(job) == {"n2"}
    late = world.cluster.submit(2, work_s=1e9)
    world.says[late] = wait()
    world.cycle()
    world.cluster.advance(int(DEFER_S) + 1)
    assert world.cluster.jobs[late].state is JobState.RUNNING


def test_interval_after_a_requeue_is_slurms(world: World) -> None:
    """A job that was put off, started all the same and was requeued is not let go earlier."""
    job = world.cluster.submit(2, work_s=1e9)
    world.says[job] = wait()
    world.cycle()
    world.cluster.jobs[job].eligible_s = world.cluster.now_s
    world.cluster.advance(1)
    assert world.runs_on(job)
    world.requeue(job)
    eligible_s = world.cluster.jobs[job].eligible_s

    action = only(world.cycle())

    assert isinstance(action, ClearSteer)
    assert not action.lift
    assert world.cluster.jobs[job].eligible_s == eligible_s > world.cluster.now_s


def test_list_that_a_requeued_job_brings_back_is_cleared(world: World) -> None:
    """Slurm keeps it over the run; whether the start was seen does not matter."""
    for seen in (True, False):
        runs = world.fill()
        job = world.cluster.submit(2, work_s=1e9, exclude=["n3"])
        world.says[job] = spot("n2")
        world.cycle()
        world.cluster.cancel(runs)
        world.cluster.advance(1)
        if seen:
            world.cycle()
        del world.says[job]
        world.requeue(job)
        assert world.excluded(job) == {"n1", "n3"}

        assert isinstance(only(world.cycle()), ClearSteer)

        assert world.excluded(job) == {"n3"}
        assert world.cycle() == []
        world.cluster.cancel(job)
        world.cycle()


def test_steers_outlive_the_daemon(world: World, tmp_path: Path) -> None:
    """All that is known of them, of jobs that wait and of those that run."""
    path = tmp_path / "ledger.sqlite"
    world.ledger = Ledger(SqliteStore(path))
    runs = world.fill()
    job = world.cluster.submit(2, work_s=1e9, exclude=["n1"])
    for answer in (spot("n2"), spot("n3"), wait("n3"), spot("n3")):
        world.says[job] = answer
        world.cycle()
    for _ in range(2):
        before = world.steers()[job]
        world.ledger.close()
        world.ledger = Ledger(SqliteStore(path))
        assert world.steers() == {job: before}
        world.cluster.cancel(runs)
        world.cluster.advance(1)
        world.cycle()
    assert world.steers()[job].kind == "started"
    world.requeue(job)
    del world.says[job]
    world.cycle()

    assert world.excluded(job) == {"n1"}
    world.ledger.close()


@pytest.mark.parametrize(
    ("writes", "own"),
    [
        (("n1",), {"n1"}),
        ((), set()),
        (("n1", "n3"), set()),
        (("n1", "n2", "n3"), {"n2"}),
    ],
)
def test_what_the_owner_writes_meanwhile_is_the_owners(
    world: World, writes: tuple[str, ...], own: set[str]
) -> None:
    """Another list is all the owner's; of one that ours was added to, the rest is."""
    world.fill()
    job = world.cluster.submit(2, work_s=1e9)
    world.says[job] = spot("n2")
    world.cycle()
    assert world.excluded(job) == {"n1", "n3"}

    world.cluster.exclude(job, *writes)
    del world.says[job]
    world.cycle()

    assert world.excluded(job) == own
    assert world.steers() == {}


def test_refused_write_makes_nothing_the_owners(world: World) -> None:
    """What we wrote before is still known to be ours when the next write fails."""
    world.fill()
    job = world.cluster.submit(2, work_s=1e9, exclude=["n1"])
    world.says[job] = spot("n2")
    world.cycle()
    world.says[job] = spot("n3")
    world.cluster.fail = [SetSteer]
    world.cycle()
    assert world.excluded(job) == {"n1", "n3"}

    world.cycle()
    assert world.excluded(job) == {"n1", "n2"}
    world.says[job] = spot("n2")
    world.cluster.fail = [SetSteer]
    world.cycle()
    del world.says[job]
    world.cycle()
    assert world.excluded(job) == {"n1"}

    free = world.cluster.submit(2, work_s=1e9)
    world.says[free] = spot("n2")
    world.cycle()
    world.says[free] = wait("n2", "n3")
    world.cluster.fail = [SetSteer]
    world.cycle()
    assert world.excluded(free) == {"n1", "n3"}
    world.cycle()
    assert world.excluded(free) == {"n1"}


def test_beneficiaries_of_a_handover_are_freed() -> None:
    """Before anything else, and what the scheme says of them does not count meanwhile."""
    seen = observed([pending(1, 2), pending(2, 2)], nodes=(4, 4, 4))
    steers = {
        JobId(j): Steer(
            job_id=JobId(j),
            kind="spot",
            avoid=("n1",),
            since_s=NOW_S,
            until_s=NOW_S + 9,
            why="",
        )
        for j in (1, 2)
    }
    excluded = dict.fromkeys((JobId(1), JobId(2)), np.array([True, False, False]))
    snap = dataclasses.replace(
        snapshot(dataclasses.replace(seen, excluded=excluded)), steers=steers
    )
    how = Placement(scheme=Told(), steer=True)

    freed = list(cleared_for(snap, {JobId(1), JobId(7)}, how))
    rest = list(steering(snap, Placed(), {JobId(1)}, how))

    assert [(type(a), a.job_id) for a in freed] == [(ClearSteer, 1)]
    assert [(type(a), a.job_id) for a in rest] == [(ClearSteer, 2)]


def of(*rows: object, steer: Steer, **more: object) -> Snapshot:
    """A snapshot of *rows* in which one job is steered."""
    seen = observed(list(rows), nodes=(4, 4, 4))
    seen = dataclasses.replace(seen, **more)
    return dataclasses.replace(snapshot(seen), steers={steer.job_id: steer})


def plain(job: int = 1, **more: object) -> Steer:
    values = {"kind": "spot", "avoid": ("n1",), "since_s": NOW_S, "until_s": NOW_S + 9, "why": ""}
    return Steer(job_id=JobId(job), **{**values, **more})


def judged(snap: Snapshot, how: Placement | None = None) -> list[Action]:
    how = how or Placement(scheme=Told(), steer=True)
    return list(steering(snap, Placed(), frozenset(), how))


N1 = np.array([True, False, False])


def test_job_that_is_not_listed_is_gone_unless_records_were_unreadable() -> None:
    """A record that could not be read is not a job that has left."""
    assert [getattr(a, "outcome", "") for a in judged(of(steer=plain()))] == ["gone"]
    assert judged(of(steer=plain(), unreadable=1)) == []
    for job_id, outcomes in ((1, []), (2, ["gone"])):
        left_out = {JobId(job_id): LeftOut(uid=1, label=str(job_id))}
        ended = judged(of(steer=plain(), unreadable=1, left_out=left_out))
        assert [getattr(a, "outcome", "") for a in ended] == outcomes


def test_what_is_not_known_is_left_alone() -> None:
    """Until Slurm has said what a job excludes nothing is written over it."""
    unknown = {JobId(1): np.zeros(3, dtype=np.bool_)}

    assert judged(of(pending(1), steer=plain(), choices=unknown)) == []
    told = of(pending(1), steer=plain(), choices=unknown, excluded={JobId(1): N1})
    assert [type(a) for a in judged(told)] == [ClearSteer]


def test_job_that_slurm_would_never_start_is_let_go_for_a_while() -> None:
    """BadConstraints means that we left it too little: it is not steered again at once."""
    row = pending(1, held=Held.UNAVAILABLE, priority=0)
    snap = of(row, steer=plain(), excluded={JobId(1): N1})

    action = only(judged(snap))

    assert isinstance(action, SetSteer)
    assert (action.steer.kind, action.steer.avoid, action.steer.left) == ("over", (), ("n1",))
    after = of(pending(1), steer=action.steer)
    how = Placement(scheme=Told(), steer=True)
    for placed in (
        Placed(spots={JobId(1): spot("n2")}),
        Placed(waits={JobId(1): wait("n2")}),
        Placed(),
    ):
        assert list(steering(after, placed, frozenset(), how)) == []


def test_array_is_steered_as_a_whole_and_never_to_one_spot() -> None:
    """All its tasks would go to the place of one."""
    row = pending(1, 1, tasks=5)
    seen = observed([row], nodes=(4, 4, 4), texts={JobId(1): JobText(label="1_[1-5]")})
    snap = snapshot(seen)
    how = Placement(scheme=Told(), steer=True)

    assert not list(steering(snap, Placed(spots={JobId(1): spot("n2")}), frozenset(), how))
    action = only(list(steering(snap, Placed(waits={JobId(1): wait("n2")}), frozenset(), how)))

    assert isinstance(action, SetSteer)
    assert action.steer.avoid == ("n1", "n3")


def test_tasks_take_the_list_of_their_array_along() -> None:
    """One that runs keeps it, one that waits again is cleared; the array's is remembered."""
    texts = {
        JobId(1): JobText(label="1_[4-5]"),
        JobId(2): JobText(label="1_2"),
        JobId(3): JobText(label="1_3"),
    }
    rows = [pending(1, 1, tasks=2), pending(2, 1, restarts=1), running(3)]
    there = {JobId(1): N1, JobId(2): N1 | np.array([False, False, True])}
    steer = plain(kind="wait", avoid=("n1",))
    snap = of(*rows, steer=steer, texts=texts, excluded=there)

    actions = judged(snap)

    assert [(type(a), a.job_id) for a in actions] == [(SetSteer, 1), (SetSteer, 2)]
    kept = [a.steer for a in actions if isinstance(a, SetSteer)]
    assert [(s.kind, s.avoid, s.own, s.left) for s in kept] == [
        ("over", (), (), ("n1",)),
        ("over", (), ("n3",), ("n1",)),
    ]
    later = of(running(3), steer=kept[0], texts={JobId(3): JobText(label="1_3")})
    assert judged(later) == []
    back = of(
        pending(3, 1, restarts=1),
        steer=kept[0],
        texts={JobId(3): JobText(label="1_3")},
        excluded={JobId(3): N1},
    )
    assert [(type(a), a.job_id) for a in judged(back)] == [(SetSteer, 3)]
    nobody = of(running(8), steer=kept[0], texts={JobId(8): JobText(label="8")})
    assert [getattr(a, "outcome", "") for a in judged(nobody)] == ["gone"]


def test_tasks_that_started_under_an_earlier_steer_are_cleared_too() -> None:
    """Of an array all that it was ever kept from is remembered."""
    texts = {JobId(1): JobText(label="1_[3-4]"), JobId(2): JobText(label="1_2")}
    rows, how = [pending(1, 1, tasks=2), running(2)], Placement(scheme=Told(), steer=True)
    steer = plain(kind="wait", avoid=("n1",))
    for nodes, left in ((("n1", "n2"), ("n1",)), (("n1", "n3"), ("n1", "n3"))):
        there = {JobId(1): np.isin(NODES, steer.avoid)}
        snap = of(*rows, steer=steer, texts=texts, excluded=there)
        placed = Placed(waits={JobId(1): wait(*nodes)})
        action = only(list(steering(snap, placed, frozenset(), how)))
        assert isinstance(action, SetSteer)
        steer = action.steer
        assert steer.left == left
    assert steer.avoid == ("n2",)

    back = [pending(1, 1, tasks=2), pending(2, 1, restarts=1)]
    there = {JobId(1): np.isin(NODES, ["n2"]), JobId(2): N1}
    again = of(*back, steer=steer, texts=texts, excluded=there)

    mine = [a for a in judged(again) if isinstance(a, SetSteer) and a.job_id == JobId(2)]
    assert [(a.steer.kind, a.steer.excluded) for a in mine] == [("over", frozenset())]


def test_owner_may_use_what_only_we_exclude() -> None:
    """The nodes that a job may be placed on are those its owner lets it use."""
    snap = of(pending(1), steer=plain(own=("n3",)), excluded={JobId(1): np.array([1, 0, 1]) > 0})

    choice = snap.choice(JobId(1))

    assert choice is not None
    assert choice.tolist() == [True, True, False]


@hypothesis_settings(max_examples=40, stateful_step_count=30, deadline=None)
class Steering(RuleBasedStateMachine):
    """A cluster, its users, and a daemon whose scheme changes its mind at random."""

    @initialize()
    def begin(self) -> None:
        """An empty cluster."""
        self.world = World()
        self.own: dict[JobId, set[str]] = {}
        self.jobs: list[JobId] = []

    def _waiting(self) -> list[JobId]:
        jobs = self.world.cluster.jobs
        return [j for j in self.jobs if jobs[j].state is JobState.PENDING]

    @rule(
        gpus=st.integers(1, 4),
        work_s=st.sampled_from([5, 60, 500]),
        own=st.sets(st.sampled_from(NODES), max_size=1),
    )
    def submit(self, gpus: int, work_s: int, own: set[str]) -> None:
        """A job that excludes a node, or none."""
        job = self.world.cluster.submit(gpus, work_s=work_s, exclude=sorted(own))
        self.jobs.append(job)
        self.own[job] = own

    @rule(at=st.integers(0, 99), nodes=st.sets(st.sampled_from(NODES), min_size=1, max_size=2))
    def go_there(self, at: int, nodes: set[str]) -> None:
        """From now on the scheme wants a job within these nodes, or on one of them."""
        if self.jobs:
            job = self.jobs[at % len(self.jobs)]
            left = sorted(nodes - self.own[job])
            if left:
                self.world.says[job] = wait(*left) if at % 2 else spot(left[0])

    @rule(at=st.integers(0, 99))
    def wait_anywhere(self, at: int) -> None:
        """From now on the scheme wants a job not to start."""
        if self.jobs:
            self.world.says[self.jobs[at % len(self.jobs)]] = wait()

    @rule(at=st.integers(0, 99))
    def say_nothing(self, at: int) -> None:
        """From now on the scheme has nothing to say of a job."""
        if self.jobs:
            self.world.says.pop(self.jobs[at % len(self.jobs)], None)

    @rule()
    def cycle(self) -> None:
        """The daemon looks; a second look at the same has nothing to do."""
        self.world.cycle()
        assert self.world.cycle() == []

    @rule(kind=st.sampled_from([SetSteer, ClearSteer]))
    def refused_cycle(self, kind: type[SetSteer | ClearSteer]) -> None:
        """The daemon looks, and Slurm refuses something."""
        self.world.cluster.fail = [kind]
        self.world.cycle()
        self.world.cluster.fail = []

    @rule(seconds=st.sampled_from([1, 7, 40, 120]))
    def go_on(self, seconds: int) -> None:
        """Time passes and nobody looks."""
        self.world.cluster.advance(seconds)

    @rule(at=st.integers(0, 99), end=st.booleans())
    def somebody_intervenes(self, at: int, end: bool) -> None:  # noqa: FBT001 - drawn
        """A running job is requeued, or any is cancelled."""
        jobs = self.world.cluster.jobs
        runs = [j for j in self.jobs if jobs[j].state is JobState.RUNNING]
        if end and self.jobs:
            self.world.cluster.cancel(self.jobs[at % len(self.jobs)])
        elif runs:
            self.world.requeue(runs[at % len(runs)])

    @invariant()
    def somewhere_is_left(self) -> None:
        """No waiting job is kept from all nodes, and its owner's exclusions stand."""
        for job in self._waiting() if self.jobs else []:
            excluded = self.world.excluded(job)
            assert excluded < set(NODES)
            assert self.own[job] <= excluded

    def teardown(self) -> None:
        """Steering is switched off: of all jobs that wait only the owner's part is left."""
        if not self.jobs:
            return
        self.world.placement = dataclasses.replace(self.world.placement, steer=False)
        self.world.cycle()
        assert self.world.cycle() == []
        for job in self._waiting():
            assert self.world.excluded(job) == self.own[job]
        for job in [j for j in self.jobs if self.world.runs_on(j)]:
            self.world.requeue(job)
        self.world.cycle()
        for job in self._waiting():
            assert self.world.excluded(job) == self.own[job]


TestSteering = Steering.TestCase


def test_begin_time_of_its_owner_stays(world: World) -> None:
    """It is neither brought forward by putting the job off, nor lifted with what we wrote."""
    world.placement = dataclasses.replace(world.placement, settle_s=40.0)
    soon, later = world.cluster.now_s + 20, world.cluster.now_s + 80_000
    news = world.cluster.submit(2, work_s=1e9, begin_s=soon)
    far = world.cluster.submit(2, work_s=1e9, begin_s=later)
    changed = world.cluster.submit(2, work_s=1e9)
    for job in (news, far, changed):
        world.says[job] = wait()

    world.cycle()
    assert world.cluster.jobs[news].eligible_s == world.cluster.now_s + DEFER_S
    assert world.cluster.jobs[far].eligible_s == later
    assert world.cluster.jobs[changed].eligible_s == world.cluster.now_s + DEFER_S
    world.cluster.jobs[changed].eligible_s = later
    for answer in (wait(), spot("n2"), None):
        world.says.update(dict.fromkeys((far, changed), answer))  # type: ignore[arg-type]
        world.cluster.advance(20)
        world.cycle()
        assert world.cluster.jobs[far].eligible_s == later
        assert world.cluster.jobs[changed].eligible_s == later
    assert world.steers().keys() <= {news}


def test_job_with_a_begin_time_far_ahead_takes_no_place(world: World) -> None:
    """Who may start now is placed as if it were not there, however new it is."""
    world.placement = dataclasses.replace(world.placement, scheme=BestFit(), settle_s=40.0)
    far = world.cluster.submit(12, n_nodes=3, work_s=1, begin_s=world.cluster.now_s + 80_000)
    near = world.cluster.submit(4, work_s=1, begin_s=world.cluster.now_s + 30)

    notes = world.whole_cycle().plan.notes

    assert "not eligible yet" in notes[far]
    assert notes[near].startswith("it is to start on")


def test_waiting_of_a_job_that_is_put_off_counts(world: World) -> None:
    """It waits for room, though Slurm says BeginTime: it may be promoted, and is not twice late."""
    job = world.cluster.submit(2, work_s=1e9)
    world.cluster.advance(1)
    world.requeue(job)
    world.says[job] = wait()
    world.fill()
    world.cluster.advance(10)
    world.cycle()
    waited_since_s = world.cluster.now_s
    for _ in range(4):
        world.cluster.advance(20)
        world.cycle()
    snap = world.whole_cycle().snapshot

    assert snap.jobs.held[snap.jobs.row_of()[job]] == Held.NO
    assert snap.memory.waiting_since_s[snap.jobs.row_of()[job]] <= waited_since_s


def test_gpus_are_taken_back_for_a_job_that_is_put_off(world: World) -> None:
    """A victim that was inside its quantum at first gives way when that is over."""
    world.limits = Preemption(
        beneficiaries="all", commitment="ignored", min_quantum_s=50, cooldown_s=0, limit_reserve_s=0
    )
    world.policy = DiscreteLas(thresholds_gpu_s=(100.0,))
    world.cluster.submit(12, n_nodes=3, work_s=1e9, contract=Contract(grace_s=10))
    world.cluster.advance(20)
    job = world.cluster.submit(4, work_s=1e9)
    world.says[job] = wait()
    cycle = world.whole_cycle()
    assert not any(isinstance(a, OpenHandover) for a in cycle.plan.actions)
    assert world.cluster.jobs[job].eligible_s > world.cluster.now_s

    for _ in range(8):
        world.cluster.advance(10)
        cycle = world.whole_cycle()

    assert world.runs_on(job)


def test_begin_time_that_is_over_holds_nobody() -> None:
    """Slurm says BeginTime until its scheduler has looked; one that is not known is believed."""
    rows = [pending(job_id, 1, held=Held.BEGIN_TIME) for job_id in (1, 2, 3)]
    seen = observed(rows, begins={JobId(1): NOW_S, JobId(2): NOW_S + 1})
    ledger = Ledger(MemoryStore())
    ledger.book(seen)

    held = ledger.snapshot(seen, frozenset({"gpu"})).jobs.held.tolist()

    assert held == [Held.NO, Held.BEGIN_TIME, Held.BEGIN_TIME]


def test_a_long_queue_that_is_put_off_is_not_written_at_each_look(world: World) -> None:
    """The longer it has been put off, the further; never so far that it is forgotten."""
    job = world.cluster.submit(2, work_s=1e9)
    world.says[job] = wait()
    writes = []
    for look in range(400):
        writes += [look] * len(world.cycle())
        ahead_s = world.cluster.jobs[job].eligible_s - world.cluster.now_s
        assert 0 < ahead_s <= LONGEST_DEFER_S
        world.cluster.advance(10)

    assert world.cluster.jobs[job].state is JobState.PENDING
    assert np.diff(writes).max() == pytest.approx((LONGEST_DEFER_S - DEFER_S / 2) / 10, abs=1)
    del world.says[job]
    world.cycle()
    world.cluster.advance(1)
    assert world.runs_on(job)
