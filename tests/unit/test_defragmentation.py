"""Jobs moved together on the fake cluster: the gang starts, the moved run on, limits hold."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import build
import numpy as np
import pytest
from fake_cluster import FakeCluster

from slurm_dl.engine.cycle import Cycle
from slurm_dl.engine.preemption.defragmentation import defragment
from slurm_dl.engine.preemption.eligibility import victims
from slurm_dl.engine.settings import Defragment, Preemption, Settings
from slurm_dl.ledger.sqlite.store import SqliteStore
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.contract import Contract
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobState
from slurm_dl.model.plan import Attach, OpenHandover, Requeue, Reserve, SetSteer, Signal
from slurm_dl.model.steer import Steer
from slurm_dl.policies.fifo import FifoSkip

CONTRACT = Contract(grace_s=30)
LIMITS = Preemption(
    beneficiaries="all",
    commitment="ignored",
    min_quantum_s=5,
    cooldown_s=600,
    limit_reserve_s=0,
    max_grace_s=60,
)
MOVING = Settings(
    partitions=frozenset({"gpu"}),
    preemption=LIMITS,
    defragment=Defragment(enabled=True, after_s=20),
)


class Site:
    """Four nodes of four GPUs under a policy that lets nobody displace anybody."""

    def __init__(self, path: Path, settings: Settings = MOVING) -> None:
        self.cluster = FakeCluster(nodes=4, gpus=4)
        self.ledger = Ledger(SqliteStore(path / "ledger.sqlite"))
        self.settings = settings
        self.opened: list[OpenHandover] = []

    def cycle(self, *, acting: bool = True) -> Cycle:
        """One cycle of the daemon."""
        cycle = build.cycle(self.cluster, self.ledger, FifoSkip(), self.settings, acting=acting)
        self.opened += [d.action for d in cycle.done if isinstance(d.action, OpenHandover)]
        return cycle

    def go_on(self, seconds: int, every: int = 2) -> None:
        """Let time pass, with a cycle every few seconds."""
        for _ in range(0, seconds, every):
            self.cluster.advance(every)
            self.cycle()

    def fragment(self, *, opted_in: bool = True, pinned: bool = False) -> list[JobId]:
        """One long job of two GPUs on each node, the rest of the node free."""
        contract = CONTRACT if opted_in else None
        long = []
        for n in range(4):
            nodes = (f"n{n + 1}",) if pinned else ()
            long.append(self.cluster.submit(2, work_s=400, contract=contract, nodes=nodes))
            self.cluster.submit(2, work_s=5)
        self.go_on(12)
        at = [self.cluster.jobs[j].nodes for j in long]
        assert len(set(at)) == 4, at
        return long


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_a_gang_starts_after_the_smallest_set_of_moves(site: Site) -> None:
    """Eight GPUs on two nodes: two of the four small jobs move, resume, and no more."""
    long = site.fragment()
    gang = site.cluster.submit(8, n_nodes=2, work_s=50)
    site.go_on(60)

    assert site.cluster.jobs[gang].state in (JobState.RUNNING, JobState.COMPLETED)
    moved = [j for j in long if site.cluster.jobs[j].restarts]
    assert len(moved) == 2
    assert len(site.opened) == 1
    for job in moved:
        assert site.cluster.jobs[job].state is JobState.RUNNING
        assert site.cluster.jobs[job].saved_s > 0, "it goes on from its checkpoint"
    site.go_on(500)
    assert {j.state for j in site.cluster.jobs.values()} == {JobState.COMPLETED}
    assert not site.cluster.reservations
    assert not site.ledger.handovers


def test_room_is_kept_for_who_moves(site: Site) -> None:
    """Small newcomers may not take the place that a moved job is to go on in."""
    long = site.fragment()
    site.cluster.submit(8, n_nodes=2, work_s=100)
    site.go_on(30)
    assert site.opened
    newcomers = [site.cluster.submit(2, work_s=300) for _ in range(4)]
    site.go_on(40)
    moved = [j for j in long if site.cluster.jobs[j].restarts]
    assert [site.cluster.jobs[j].state for j in moved] == [JobState.RUNNING] * 2
    assert all(site.cluster.jobs[j].state is JobState.PENDING for j in newcomers)


def test_nobody_is_moved_twice_in_the_cool_down(site: Site) -> None:
    long = site.fragment()
    site.cluster.submit(8, n_nodes=2, work_s=20)
    site.go_on(80)
    moved = {j for j in long if site.cluster.jobs[j].restarts}
    gangs = [site.cluster.submit(12, n_nodes=3, work_s=20) for _ in range(2)]
    site.go_on(200)
    assert moved
    assert all(site.cluster.jobs[j].restarts == 1 for j in moved)
    assert all(site.cluster.jobs[j].state is JobState.PENDING for j in gangs)


@pytest.mark.parametrize(
    ("jobs", "how", "seconds"),
    [
        ({"opted_in": False}, MOVING, 100),
        ({"pinned": True}, MOVING, 60),
        ({}, MOVING, 16),
        ({}, dataclasses.replace(MOVING, defragment=Defragment(after_s=20)), 100),
    ],
    ids=["did not agree", "can go nowhere else", "gang has not waited", "switched off"],
)
def test_who_is_not_moved(
    tmp_path: Path, jobs: dict[str, bool], how: Settings, seconds: int
) -> None:
    """No hand-over is opened, and no job is put back."""
    site = Site(tmp_path, how)
    long = site.fragment(**jobs)
    site.cluster.submit(8, n_nodes=2, work_s=20)
    site.go_on(seconds)
    assert not site.opened
    assert all(site.cluster.jobs[j].restarts == 0 for j in long)


def test_shadow_mode_only_says_so(site: Site) -> None:
    site.fragment()
    gang = site.cluster.submit(8, n_nodes=2, work_s=20)
    before = len(site.cluster.applied)
    said = []
    for _ in range(20):
        site.cluster.advance(2)
        cycle = site.cycle(acting=False)
        said += [a for a in cycle.plan.actions if isinstance(a, OpenHandover)]
    assert {a.handover.beneficiaries for a in said} == {(gang,)}
    assert "moved elsewhere" in said[0].why
    assert len(site.cluster.applied) == before


def test_whole_nodes_are_freed_one_at_a_time(tmp_path: Path) -> None:
    """Half of each node is used; two nodes are to be free, and then nobody moves any more."""
    how = Defragment(enabled=False, free_nodes=2)
    site = Site(tmp_path, dataclasses.replace(MOVING, defragment=how))
    long = site.fragment()
    site.go_on(150)
    used = {n for j in long for n in site.cluster.jobs[j].nodes}
    assert len(used) == 2
    assert len(site.opened) == 2
    assert all(not o.handover.beneficiaries for o in site.opened)
    assert sum(site.cluster.jobs[j].restarts for j in long) == 2
    assert not site.cluster.reservations


def test_the_order_of_the_steps(site: Site) -> None:
    """Sealed before anybody is signalled, and those who moved are let in."""
    site.fragment()
    gang = site.cluster.submit(8, n_nodes=2, work_s=50)
    site.go_on(80)
    kinds = [type(a) for a in site.cluster.applied]
    assert kinds.index(Reserve) < kinds.index(Signal) < kinds.index(Requeue)
    attached = [a.job_id for a in site.cluster.applied if isinstance(a, Attach)]
    moved = [v.run.job_id for v in site.opened[0].handover.victims]
    assert attached[0] == gang
    assert set(attached[1:]) == set(moved)


def test_if_the_gang_goes_away_nobody_moves(site: Site) -> None:
    """Cancelled before anybody was signalled: all is undone."""
    long = site.fragment()
    gang = site.cluster.submit(8, n_nodes=2, work_s=50)
    site.cluster.fail = [Reserve] * 20
    site.go_on(26)
    assert site.opened
    site.cluster.cancel(gang)
    site.go_on(60)
    assert all(site.cluster.jobs[j].restarts == 0 for j in long)
    assert not site.ledger.handovers


@pytest.mark.parametrize("free_nodes", [0, 1])
def test_a_list_of_its_last_run_keeps_nobody_from_where_he_moves(
    tmp_path: Path, free_nodes: int
) -> None:
    """What kept a job from nodes when it started stands there still when it is requeued."""
    settings = dataclasses.replace(
        MOVING, defragment=Defragment(enabled=not free_nodes, after_s=20, free_nodes=0)
    )
    site = Site(tmp_path, settings)
    long = site.fragment()
    on = {job: frozenset(site.cluster.jobs[job].nodes) for job in long}
    for job in long:
        others = frozenset(range(4)) - on[job]
        site.cluster.jobs[job].excluded = others
        avoid = tuple(f"n{n + 1}" for n in sorted(others))
        now_s = site.cluster.now_s
        steer = Steer(job_id=job, kind="started", avoid=avoid, since_s=now_s, until_s=now_s, why="")
        site.ledger.begin(SetSteer(steer=steer, why=""))
    site.settings = dataclasses.replace(
        settings, defragment=dataclasses.replace(settings.defragment, free_nodes=free_nodes)
    )
    if not free_nodes:
        site.cluster.submit(8, n_nodes=2, work_s=300)

    site.go_on(80)

    moved = [j for j in long if site.cluster.jobs[j].restarts]
    assert moved
    assert [site.cluster.jobs[j].state for j in moved] == [JobState.RUNNING] * len(moved)
    assert all(on[j].isdisjoint(site.cluster.jobs[j].nodes) for j in moved)


@pytest.mark.parametrize("free", ["n1", "n3", ""])
def test_nobody_is_moved_to_where_others_have_a_right(free: str) -> None:
    """Where a scheme keeps nodes for those who are guaranteed them, nobody is seated there."""
    rows = [*(build.running(j, 2) for j in (1, 2, 3)), build.pending(9, 4)]
    held = {j: {j - 1: 2.0} for j in (1, 2, 3)}
    seen = build.observed(rows, nodes=(4, 4, 4), held=held, opted_in=(1, 2, 3))
    snap = build.snapshot(seen)
    limits = dataclasses.replace(LIMITS, max_grace_s=600)
    settings = dataclasses.replace(MOVING, preemption=limits)
    waiting = np.array([3], dtype=np.int64)
    may = np.array([name == free for name in seen.nodes.name])

    moves, _ = defragment(
        snap,
        waiting,
        victims(snap, limits),
        (),
        settings,
        may_displace=np.ones(4, dtype=np.bool_),
        within=lambda _: may,
    )

    assert (None if moves is None else moves.seats) == ((free,) if free else None)


def test_no_node_is_freed_while_somebody_waits(tmp_path: Path) -> None:
    """It would be his at once, and the next one would have to be freed for nobody."""
    site = Site(tmp_path, dataclasses.replace(MOVING, defragment=Defragment()))
    site.fragment()
    gang = site.cluster.submit(16, n_nodes=4, work_s=20)
    site.settings = dataclasses.replace(MOVING, defragment=Defragment(free_nodes=2))
    site.go_on(60)
    assert not site.opened
    site.cluster.cancel(gang)
    site.go_on(20)
    assert site.opened
