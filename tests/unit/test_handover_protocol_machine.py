"""The preemption protocol as a state machine: any call may fail, anybody may do anything meanwhile.

Users, admins and nodes do what they do; at each call of the daemon Slurm or the disk may refuse, do
it and not say so, or the daemon may die; a second daemon may take the ledger over in the middle of
a step; slurmctld may forget its last seconds. What must hold is in `protocol_witness`.

The same examples each time, few of them. A long search, with new examples each time::

    SLURM_DL_EXAMPLES=2000 python -m pytest tests/unit/test_handover_protocol_machine.py
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from protocol_life import Fault, Faults, How, Killed, Life
from protocol_witness import Invariants
from protocol_world import OVER, World

from slurm_dl.engine.settings import Defragment, Preemption, Resizing, Settings
from slurm_dl.model.contract import Contract
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobState
from slurm_dl.model.shape import Shape
from slurm_dl.policies.base import Policy
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.policies.elastic.afs import Afs

NODES, GPUS = 3, 4
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - the ledger syncs a lot
EXAMPLES = int(os.environ.get("SLURM_DL_EXAMPLES", "0"))
MOST_JOBS = 14
POLICY = DiscreteLas(thresholds_gpu_s=(60.0, 400.0), promote_knob=4.0)
LIMITS = Preemption(
    min_quantum_s=8,
    cooldown_s=40,
    max_preemptions=3,
    max_grace_s=40,
    handover_timeout_s=80,
    start_margin_s=12,
    limit_reserve_s=5,
)
CALLS = (
    *("observe", "book", "any", "SetSiteFactor", "Reserve", "Attach", "Detach", "Unseal"),
    *("Signal", "Signal", "Requeue", "Requeue", "Shrink", "Shrink"),
    *("begin OpenHandover", "begin Signal", "begin Requeue", "begin Shrink"),
    *("settle Reserve", "settle Attach", "settle Signal", "settle MarkGone"),
    *("settle Unseal", "settle CloseHandover", "settle SetSiteFactor"),
)
"""Where something may go wrong; see `protocol_life`."""

STEPS = tuple(call for call in CALLS if call not in ("observe", "book", "any"))

calls = st.sampled_from(CALLS)
hows: st.SearchStrategy[How] = st.sampled_from(
    ["refused", "unanswered", "killed before", "killed after"]
)
contracts = st.builds(
    Contract,
    signal=st.sampled_from(["USR1", "TERM"]),
    target=st.sampled_from(["batch", "steps", "full"]),
    grace_s=st.sampled_from([6.0, 12.0, 30.0, 60.0]),
    requeued_by=st.sampled_from(["daemon", "daemon", "job"]),
)
acts = st.sampled_from(["cancels", "fails", "requeues", "holds", "recants", "fixes"])
elastic = st.sampled_from(["1x1,1x2,1x4", "1x1,2x1,2x2", "1x4,2x4,3x4", "1x1,1x3,3x4", "1x1,1x9"])
policies: st.SearchStrategy[Policy] = st.sampled_from([POLICY, POLICY, Afs()])
behaviours = st.sampled_from(["save", "save", "save", "ignore", "finish", "requeue_itself"])


class Protocol(RuleBasedStateMachine):
    """A small cluster, its people, and its daemon."""

    def __init__(self) -> None:
        super().__init__()
        self.dir = Path(tempfile.mkdtemp(prefix="slurm_dl-machine-", dir=MEMORY))
        self.faults = Faults()
        self.paused = False
        self.life: Life | None = None

    @initialize(
        hold_s=st.sampled_from([2.0, 6.0]),
        ending_s=st.sampled_from([0, 0, 3]),
        max_handovers=st.integers(1, 3),
        max_victims=st.sampled_from([1, 2, 64]),
        per_hour=st.sampled_from([0.0, 0.0, 0.0, 12.0]),
        moves=st.booleans(),
        passes=st.lists(st.booleans(), min_size=1, max_size=12) | st.just([True]),
        undoes=st.booleans(),
        spared_s=st.sampled_from([(8.0, 40.0), (30.0, 5.0)]),
        sizes=st.sampled_from([(12,), (4, 4, 4), (8, 4), (4, 4, 2, 2), (2,) * 6]),
        elastic=st.lists(elastic, max_size=3),
        policy=policies,
        behaviour=behaviours,
        contract=contracts.filter(lambda c: c.grace_s <= LIMITS.max_grace_s),
        wanted=st.lists(
            st.tuples(st.sampled_from([1, 1, 2, 3]), st.integers(1, GPUS)), min_size=1, max_size=3
        ),
        in_place=st.booleans(),
    )
    def sunk_jobs_hold_the_cluster(
        self,
        *,
        hold_s: float,
        ending_s: int,
        max_handovers: int,
        max_victims: int,
        per_hour: float,
        moves: bool,
        passes: list[bool],
        undoes: bool,
        spared_s: tuple[float, float],
        sizes: tuple[int, ...],
        elastic: list[str],
        in_place: bool,
        policy: Policy,
        behaviour: str,
        contract: Contract,
        wanted: list[tuple[int, int]],
    ) -> None:
        """Jobs that agreed to be preempted have had their share, and others come."""
        limits = dataclasses.replace(
            LIMITS,
            max_handovers=max_handovers,
            max_victims=max_victims,
            max_gpus_per_hour=per_hour,
            min_quantum_s=spared_s[0],
            cooldown_s=spared_s[1],
        )
        self.world = World(nodes=NODES, gpus=GPUS, hold_s=hold_s, ending_s=ending_s)
        self.world.passes, self.world.undoes = passes, undoes
        self.settings = Settings(
            partitions=frozenset({"gpu"}),
            preemption=limits,
            defragment=Defragment(enabled=moves, after_s=10.0, max_moves=2),
            resizing=Resizing(expand=True, steadiness=0.1, cooldown_s=5.0, max_per_day=6),
        )
        self.witness = Invariants(self.world, self.dir / "ledger", self.settings)
        self.world.witness = self.witness
        self.policy = policy
        elastic = [*(["1x4,2x4,3x4"] if in_place else []), *elastic]
        for gpus, named in itertools.zip_longest(sizes, elastic[: len(sizes)], fillvalue=""):
            self._submit(
                gpus=int(gpus),
                sizes=str(named),
                in_place=in_place,
                n_nodes=-(-gpus // GPUS),
                work_s=400,
                contract=contract,
                behaviour=behaviour,
            )
        self._start()
        for _ in range(3):
            self._cycle()
            self.world.advance(11)
        for n_nodes, share in wanted:
            self._submit(gpus=n_nodes * share, n_nodes=n_nodes, work_s=20, contract=None)

    def _submit(
        self,
        *,
        gpus: float,
        n_nodes: int,
        work_s: int,
        contract: Contract | None,
        behaviour: str = "save",
        save_s: int = 3,
        sizes: str = "",
        in_place: bool = False,
        deaf: bool = False,
        **more: object,
    ) -> JobId:
        if contract is not None and behaviour == "requeue_itself":
            contract = dataclasses.replace(contract, requeued_by="job")
        elif contract is not None and in_place:
            contract = dataclasses.replace(contract, target="batch", requeued_by="daemon")
        job_id = self.world.submit(
            gpus,
            n_nodes=n_nodes,
            work_s=work_s,
            contract=contract,
            on_signal=behaviour,  # type: ignore[arg-type]
            save_s=save_s,
            **more,  # type: ignore[arg-type]
        )
        self.world.jobs[job_id].sizes = tuple(Shape.of(size) for size in sizes.split(",") if size)
        self.world.jobs[job_id].in_place = in_place
        self.witness.submitted[job_id] = n_nodes, gpus
        if deaf:
            self.world.deaf.add(job_id)
        return job_id

    # The daemon.

    def _start(self) -> None:
        self.life = Life(self.world, self.dir / "ledger", self.policy, self.faults)
        self.life.on_done = self.witness.done
        self.witness.life = self.life

    def _cycle(self) -> None:
        """One cycle of the daemon, if there is one; one that died is followed by another later."""
        life = self.life
        if life is None:
            return
        self.witness.settings = self.settings
        try:
            life.cycle(self.settings, acting=not self.paused)
        except Killed:
            life.end()
            if self.life is life:
                self.life = None
            return
        self.witness.after(life)
        if self.life is not life:
            life.end()

    @rule(times=st.integers(1, 10), every_s=st.integers(1, 4))
    def daemon_runs(self, *, times: int, every_s: int) -> None:
        """The daemon goes on for a while, or one starts."""
        if self.life is None:
            self._start()
        for _ in range(times):
            self._cycle()
            self.world.advance(every_s)

    @rule(at=calls, how=hows, skip=st.sampled_from([0, 0, 0, 1, 2]), times=st.integers(1, 4))
    def goes_wrong(self, *, at: str, how: How, skip: int, times: int) -> None:
        """The daemon goes on, and one of its calls goes wrong."""
        self.faults.coming.append(Fault(at, how, skip))
        self.daemon_runs(times=times, every_s=2)

    @rule(
        at=st.sampled_from(STEPS),
        how=hows,
        which=st.integers(0, 3),
        what=acts,
        contract=st.none() | contracts,
        times=st.integers(1, 5),
    )
    def goes_wrong_and_a_victim_acts(
        self,
        *,
        at: str,
        how: How,
        which: int,
        what: str,
        contract: Contract | None,
        times: int,
    ) -> None:
        """A step of a hand-over goes wrong, and one of its jobs does something before the next."""
        self.faults.coming.append(Fault(at, how))
        struck = self.faults.struck
        for _ in range(3):
            self.daemon_runs(times=1, every_s=1)
            if self.faults.struck > struck:
                break
        if self.life is None:
            self._start()
        victims = [v.run.job_id for h in self.life.ledger.handovers for v in h.victims]
        if victims:
            self._act(victims[which % len(victims)], what, contract)
        self.daemon_runs(times=times, every_s=2)

    @rule(at=calls, skip=st.integers(0, 2), seconds=st.integers(1, 30))
    def takes_long(self, *, at: str, skip: int, seconds: int) -> None:
        """One of its calls takes its time."""
        self._meanwhile(at, skip, lambda: self.world.advance(seconds))

    @rule(at=calls, cycles=st.integers(2, 8), every_s=st.integers(1, 8))
    def is_taken_over(self, *, at: str, cycles: int, every_s: int) -> None:
        """Another daemon takes the ledger over while the first one is inside a call."""

        def another() -> None:
            first = self.life
            self._start()
            for _ in range(cycles):
                self._cycle()
                self.world.advance(every_s)
            assert first is not None

        self._meanwhile(at, 0, another)

    def _meanwhile(self, at: str, skip: int, do: Callable[[], None]) -> None:
        self.faults.coming.append(Fault(at, "meanwhile", skip, do))
        self.daemon_runs(times=2, every_s=2)

    @precondition(lambda self: self.life is not None)
    @rule(seconds=st.integers(0, 30))
    def daemon_is_killed(self, *, seconds: int) -> None:
        """Between two cycles."""
        self.life.end()
        self.life = None
        self.world.advance(seconds)
        self.daemon_runs(times=2, every_s=2)

    # Time, nodes, slurmctld, admins.

    @rule(seconds=st.integers(1, 40))
    def time_passes(self, *, seconds: int) -> None:
        """Without the daemon."""
        self.world.advance(seconds)

    @rule(
        name=st.sampled_from(["n1", "n2", "n3"]),
        at=st.none() | calls,
        seconds=st.integers(0, 60),
        times=st.integers(0, 4),
    )
    def node_dies(self, *, name: str, at: str | None, seconds: int, times: int) -> None:
        """One of the nodes, for a while; perhaps while the daemon is inside a call."""
        if at is None:
            self.world.lose_node(name)
        else:
            self._meanwhile(at, 0, lambda: self.world.lose_node(name))
        self.daemon_runs(times=times, every_s=2)
        self.world.advance(seconds)
        self.world.return_node(name)

    @rule(times=st.integers(1, 4), every_s=st.integers(1, 20))
    def slurm_is_silent(self, *, times: int, every_s: int) -> None:
        """Slurmctld does not answer for a while."""
        self.world.down = True
        self.daemon_runs(times=times, every_s=every_s)
        self.world.down = False

    @rule(forgets_s=st.integers(1, 5))
    def slurm_forgets(self, *, forgets_s: int) -> None:
        """Slurmctld dies, and another starts from what was saved last."""
        self.world.crash(forgets_s)
        self.daemon_runs(times=2, every_s=2)

    @rule(changes=st.integers(1, 3), times=st.integers(1, 6))
    def slurm_ignores(self, *, changes: int, times: int) -> None:
        """It takes changes of sizes, says that all is well, and does nothing."""
        self.world.ignores = changes
        self.daemon_runs(times=times, every_s=2)
        self.world.ignores = 0

    @rule(times=st.integers(1, 4), every_s=st.integers(1, 20))
    def admin_pauses(self, *, times: int, every_s: int) -> None:
        """The daemon is to look only, for a while."""
        self.paused = True
        self.daemon_runs(times=times, every_s=every_s)
        self.paused = False

    @rule(
        enabled=st.booleans(),
        max_victims=st.sampled_from([1, 2, 64]),
        max_preemptions=st.integers(0, 3),
        min_quantum_s=st.sampled_from([8.0, 45.0]),
        times=st.integers(1, 4),
    )
    def admin_reconfigures(
        self,
        *,
        enabled: bool,
        max_victims: int,
        max_preemptions: int,
        min_quantum_s: float,
        times: int,
    ) -> None:
        """Other limits are in force, for a while."""
        before = self.settings
        limits = dataclasses.replace(
            before.preemption,
            enabled=enabled,
            max_victims=max_victims,
            max_preemptions=max_preemptions,
            min_quantum_s=min_quantum_s,
        )
        self.settings = dataclasses.replace(before, preemption=limits)
        self.daemon_runs(times=times, every_s=2)
        self.settings = before

    # Users.

    @precondition(lambda self: len(self.world.jobs) < MOST_JOBS)
    @rule(
        n_nodes=st.sampled_from([1, 1, 1, 2, 3]),
        share=st.integers(1, GPUS),
        work_s=st.integers(3, 120),
        contract=st.none() | contracts,
        behaviour=behaviours,
        save_s=st.integers(1, 20),
        kind=st.sampled_from(["plain"] * 9 + ["share", "fixed", "het", "alone", "short", "after"]),
        sizes=st.just("") | st.just("") | elastic,
        in_place=st.booleans(),
        deaf=st.sampled_from([False, False, False, True]),
        times=st.integers(0, 6),
    )
    def user_submits(
        self,
        *,
        n_nodes: int,
        share: float,
        work_s: int,
        contract: Contract | None,
        behaviour: str,
        save_s: int,
        kind: str,
        sizes: str = "",
        in_place: bool = False,
        deaf: bool = False,
        times: int,
    ) -> None:
        """A job of any shape, of any size among some that it names."""
        more: dict[str, object] = {}
        match kind:
            case "share":
                n_nodes, share = 1, 0.5
            case "fixed" | "het":
                more["requeueable"] = False
            case "alone":
                more["exclusive"] = True
            case "short":
                more["limit_s"] = 30.0
            case "after":
                more["after"] = JobId(len(self.world.jobs))
            case _:
                pass
        job_id = self._submit(
            gpus=n_nodes * share,
            n_nodes=n_nodes,
            work_s=work_s,
            contract=contract,
            behaviour=behaviour,
            save_s=save_s,
            sizes=sizes,
            in_place=in_place,
            deaf=deaf,
            **more,
        )
        if kind == "het":
            self.world.het.add(job_id)
        self.daemon_runs(times=times, every_s=2)

    @rule(
        data=st.data(),
        what=acts,
        at=st.none() | calls,
        contract=st.none() | contracts,
        seconds=st.sampled_from([0, 0, 5, 12]),
    )
    def user_acts(
        self,
        *,
        data: st.DataObject,
        what: str,
        at: str | None,
        contract: Contract | None,
        seconds: int,
    ) -> None:
        """On a job of theirs, now or while the daemon is inside a call that takes its time."""
        alive = [j for j, job in self.world.jobs.items() if job.state not in OVER]
        job_id = data.draw(st.sampled_from(sorted(alive or self.world.jobs)))

        def act() -> None:
            self._act(job_id, what, contract)
            self.world.advance(seconds)

        if at is None:
            act()
        else:
            self._meanwhile(at, 0, act)

    def _act(self, job_id: JobId, what: str, contract: Contract | None) -> None:
        job = self.world.jobs[job_id]
        match what:
            case "cancels":
                self.world.cancel(job_id)
            case "fails":
                self.world.fails(job_id)
            case "requeues":
                self.world.user_requeues(job_id)
            case "holds":
                if job.state is JobState.PENDING:
                    job.hold = not job.hold
            case "recants":
                job.contract = contract
            case "fixes":
                job.requeueable = not job.requeueable

    # What must be so.

    @invariant()
    def nobody_is_held_or_put_off_by_us(self) -> None:
        """Only users hold jobs here; whoever runs has its nodes."""
        for job in self.world.jobs.values() if self.life is not None else ():
            assert bool(job.nodes) == (job.state in (JobState.RUNNING, JobState.COMPLETING))

    def teardown(self) -> None:
        """Left in peace everything ends, and in time."""
        try:
            if hasattr(self, "world"):
                self._settle()
        finally:
            if self.life is not None:
                self.life.end()
            shutil.rmtree(self.dir)

    def _settle(self) -> None:
        world, witness = self.world, self.witness
        self.faults.coming.clear()
        self.paused = world.down = False
        for name in sorted(world.down_nodes):
            world.return_node(name)
        for job in world.jobs.values():
            job.hold = False
        if self.life is None:
            self._start()
        since_s = world.now_s
        for _ in range(400):
            self._cycle()
            assert self.life is not None
            if not (old := self._open_since(since_s)):
                break
            assert world.now_s - since_s <= witness.longest_s(), f"no end of {old}"
            world.advance(3)
        self._all_jobs_end()
        self._nothing_is_left()

    def _open_since(self, since_s: float) -> list[int]:
        return [h.handover_id for h in self.life.ledger.handovers if h.opened_s <= since_s]

    def _all_jobs_end(self) -> None:
        """Nobody needs to run much longer, so everybody ends; who waits for a failure gives up."""
        world = self.world
        for job in world.jobs.values():
            job.work_s = min(job.work_s, job.done_s + 5)
        for _ in range(300):
            self._cycle()
            world.advance(4)
            for job in world.jobs.values():
                if job.after is not None and world.jobs[job.after].state is JobState.FAILED:
                    world.cancel(job.job_id)
            if all(j.state in OVER for j in world.jobs.values()):
                break
        for job in world.jobs.values():
            assert job.state in OVER, f"job {job.job_id} was lost: {job}"
            if job.state is JobState.FAILED:
                assert job.job_id in world.failed
            elif not world.is_doubtful(job.job_id):
                finished = job.on_signal == "finish" and job.signals
                assert finished or job.done_s >= job.work_s, f"it did not do its work: {job}"

    def _nothing_is_left(self) -> None:
        world, witness = self.world, self.witness
        for _ in range(int(witness.longest_s() / 5) + 20):
            self._cycle()
            if not self.life.ledger.handovers and not world.reservations:
                break
            world.advance(5)
        assert not self.life.ledger.handovers  # type: ignore[union-attr]
        assert not world.reservations
        self._cycle()
        self._cycle()
        assert not self.life.last.plan.actions, "what is as it should be is done once more"
        witness.preempted(self.life)


Protocol.TestCase.settings = settings(
    max_examples=EXAMPLES or 30,
    derandomize=not EXAMPLES,
    database=None,
    stateful_step_count=50 if EXAMPLES else 30,
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
TestProtocolMachine = pytest.mark.long(Protocol.TestCase)


@pytest.mark.parametrize("takeovers", [1, 2])
def test_each_daemon_taken_over_inside_a_signal_sends_it_once_more(takeovers: int) -> None:
    """It has written it down and cannot know that the other does the same; then all goes on."""
    contract = Contract(signal="USR1", target="batch", grace_s=6.0, requeued_by="daemon")
    machine = Protocol()
    machine.sunk_jobs_hold_the_cluster(
        hold_s=2.0,
        ending_s=0,
        max_handovers=1,
        max_victims=1,
        per_hour=0.0,
        moves=False,
        passes=[False],
        undoes=False,
        spared_s=(8.0, 40.0),
        sizes=(12,),
        elastic=[],
        in_place=False,
        policy=POLICY,
        behaviour="save",
        contract=contract,
        wanted=[(1, 1)],
    )
    for _ in range(takeovers):
        machine.is_taken_over(at="Signal", cycles=2, every_s=1)
    machine.daemon_runs(times=4, every_s=2)
    machine.user_submits(
        n_nodes=1,
        share=1,
        work_s=3,
        contract=contract,
        behaviour="save",
        save_s=1,
        kind="plain",
        times=1,
    )
    machine.daemon_runs(times=5, every_s=1)
    victim = machine.world.jobs[JobId(1)]

    assert len(victim.signals) == takeovers + 1
    assert victim.restarts == 1
    machine.teardown()


SHRINKS: dict[tuple[str, How, int], bool] = {
    ("begin Shrink", "refused", 0): True,
    ("begin Shrink", "killed after", 0): False,
    ("Shrink", "refused", 0): False,
    ("Shrink", "unanswered", 0): True,
    ("Shrink", "killed after", 0): True,
    ("Shrink", "unanswered", 1): False,
}
"""What goes wrong at a shrink, how many Slurm ignores, and whether the job gives nodes back."""


@pytest.mark.long
@pytest.mark.parametrize(("at", "how", "ignores"), SHRINKS)
@pytest.mark.parametrize("what", ["cancels", "fails", "requeues", "recants", "fixes", "n1", ""])
def test_a_shrink_goes_wrong_and_then_the_job_does_something(
    what: str, at: str, how: How, ignores: int
) -> None:
    """Its node dies, or it is in another run, or changes its contract: all goes on."""
    machine = Protocol()
    machine.sunk_jobs_hold_the_cluster(
        hold_s=2.0,
        ending_s=0,
        max_handovers=1,
        max_victims=1,
        per_hour=0.0,
        moves=False,
        passes=[False],
        undoes=False,
        spared_s=(8.0, 40.0),
        sizes=(12,),
        elastic=[],
        in_place=True,
        policy=POLICY,
        behaviour="save",
        contract=Contract(grace_s=30.0),
        wanted=[(1, 4)],
    )
    job = machine.world.jobs[JobId(1)]
    machine.world.ignores = ignores
    machine.faults.coming.append(Fault(at, how))
    for _ in range(20):
        machine.daemon_runs(times=1, every_s=1)
        if machine.faults.struck:
            break
    assert machine.faults.struck, "there was no shrink"
    machine.world.ignores = 0
    if what == "n1":
        machine.node_dies(name="n1", at=None, seconds=2, times=0)
    elif what:
        machine._act(JobId(1), what, None)
    machine.daemon_runs(times=20, every_s=2)
    if not what:
        assert (len(job.nodes), job.restarts) == (2, 1 - SHRINKS[at, how, ignores])
    machine.teardown()
