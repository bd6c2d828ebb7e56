"""How one cycle is applied: how long it goes on, what errors end, who is tried again when."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from fake_cluster import FakeCluster

from slurm_dl.engine.cycle import Carry, Cycle, run_cycle
from slurm_dl.engine.settings import Preemption, Settings
from slurm_dl.engine.write_retries import Effort, Refusals
from slurm_dl.ledger.sqlite.store import SqliteStore
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.contract import Contract
from slurm_dl.model.errors import ClusterError
from slurm_dl.model.handover import Run
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.plan import (
    Action,
    Attach,
    CloseHandover,
    ClusterAction,
    Detach,
    MarkGone,
    Promote,
    Requeue,
    Reserve,
    SetSiteFactor,
    Signal,
    Unseal,
)
from slurm_dl.policies.discrete_las import DiscreteLas

POLICY = DiscreteLas(thresholds_gpu_s=(60.0, 400.0))
SETTINGS = Settings(
    partitions=frozenset({"gpu"}),
    preemption=Preemption(
        beneficiaries="all",
        commitment="ignored",
        min_quantum_s=8,
        start_margin_s=12,
        limit_reserve_s=0,
    ),
)


class Slow(FakeCluster):
    """A fake whose actions take time, and that refuses what it is told to refuse."""

    def __init__(self) -> None:
        super().__init__(nodes=2, gpus=4)
        self.took_s = 0.0
        self.each_s = 0.0
        self.refused: set[tuple[type[ClusterAction], JobId]] = set()
        self.tried: list[ClusterAction] = []

    def timer(self) -> float:
        """Seconds spent in actions."""
        return self.took_s

    def apply(self, action: ClusterAction, /) -> None:
        """Do it, or refuse it, and let its time pass in either case."""
        self.took_s += self.each_s
        self.tried.append(action)
        if (type(action), _job(action)) in self.refused:
            msg = f"refused: {action}"
            raise ClusterError(msg)
        super().apply(action)


def _job(action: ClusterAction) -> JobId:
    if isinstance(action, Signal | Requeue):
        return action.run.job_id
    return JobId(getattr(action, "job_id", 0))


@dataclass
class Life:
    """One daemon's cycles over a cluster."""

    cluster: Slow
    ledger: Ledger
    carry: Carry = field(default_factory=Carry)
    budget: int = 10_000

    def cycle(self, write_for_s: float = math.inf) -> Cycle:
        """One cycle with a fresh budget."""
        tokens = iter(range(self.budget))
        return run_cycle(
            self.cluster,
            self.ledger,
            POLICY,
            SETTINGS,
            clock=self.cluster.clock,
            acting=True,
            may_write=lambda: next(tokens, None) is not None,
            timer=self.cluster.timer,
            write_for_s=write_for_s,
            carry=self.carry,
        )

    def tried(self) -> list[JobId]:
        """The jobs that were tried since the last call, in order."""
        jobs = [_job(action) for action in self.cluster.tried]
        self.cluster.tried.clear()
        return jobs


@pytest.fixture
def life(tmp_path: Path) -> Life:
    """A cluster that is empty yet."""
    return Life(Slow(), Ledger(SqliteStore(tmp_path / "ledger.sqlite")))


def submit(life: Life, number: int) -> None:
    """Queue so many jobs, none of which can ever start."""
    for _ in range(number):
        life.cluster.submit(1000, work_s=1)


def refuse(life: Life, kind: type[ClusterAction], jobs: Collection[int]) -> None:
    """Refuse this kind of action for these jobs until further notice."""
    life.cluster.refused |= {(kind, JobId(j)) for j in jobs}


# How long a cycle goes on.


def test_slow_updates_end_with_the_time(life: Life) -> None:
    """Of 50 updates of 0.6 s a cycle begins those of its 5 s; the next one goes on there."""
    submit(life, 1000)
    life.cluster.each_s = 0.6

    first = life.cycle(write_for_s=5.0)
    assert life.tried() == [*range(1, 10)]
    assert len(first.left) == 41
    life.cycle(write_for_s=5.0)

    assert life.tried() == [*range(10, 19)]


def test_a_silent_slurm_is_written_to_once(life: Life) -> None:
    """An update that ends in a timeout uses up the time, so no other waits for its own."""
    submit(life, 1000)
    life.cluster.each_s = 30.0
    refuse(life, SetSiteFactor, range(1, 1001))

    cycle = life.cycle(write_for_s=5.0)

    assert len(cycle.done) == 1
    assert len(cycle.left) == 49


def test_without_a_limit_everything_is_tried(life: Life) -> None:
    """A simulator passes no time, and all of its plan is applied whatever it takes."""
    submit(life, 50)
    life.cluster.each_s = 1000.0

    cycle = life.cycle()

    assert len(cycle.done) == 50
    assert cycle.left == ()


def test_two_refused_writes_in_a_row_end_the_writes(life: Life) -> None:
    """It may be about all of them; others wait for the next cycle, not for hours of refusals."""
    submit(life, 10)
    refuse(life, SetSiteFactor, [2, 4, 5])

    cycle = life.cycle()

    assert life.tried() == [1, 2, 3, 4, 5]
    assert len(cycle.left) == 5


# What a failed step of a hand-over ends.

RESERVE = [
    Reserve(handover_id=HandoverId(h), nodes=("n1",), uids=(1,), duration_s=60, why="")
    for h in range(6)
]
WRITE = [SetSiteFactor(job_id=JobId(j), value=1, why="") for j in range(6)]
GONE = [MarkGone(handover_id=HandoverId(h), job_id=JobId(9), outcome="", why="") for h in range(6)]


def run(job: int) -> Run:
    return Run(job_id=JobId(job), start_s=1.0, restarts=0)


def signal(job: int, handover: int = 0) -> Signal:
    return Signal(
        handover_id=HandoverId(handover), run=run(job), signal="USR1", target="steps", why=""
    )


def requeue(job: int, handover: int = 0) -> Requeue:
    return Requeue(handover_id=HandoverId(handover), run=run(job), why="")


def tried(
    actions: Sequence[Action],
    *,
    fail: Collection[Action],
    each_s: float = 0.0,
    for_s: float = math.inf,
) -> list[Action]:
    """Those of *actions* that a cycle would try if those in *fail* failed."""
    now = [0.0]
    effort = Effort(timer=lambda: now[0], for_s=for_s)
    done: list[Action] = []
    for action in actions:
        if effort.allows(action):
            now[0] += each_s
            done.append(action)
            effort.note(action, failed=action in fail)
    return done


@pytest.mark.parametrize(
    "step",
    [
        SetSiteFactor(job_id=JobId(1), value=1, why="", handover_id=HandoverId(0)),
        RESERVE[0],
        Attach(handover_id=HandoverId(0), job_id=JobId(1), why=""),
        Detach(handover_id=HandoverId(0), job_id=JobId(1), why=""),
        Unseal(handover_id=HandoverId(0), name="slurm_dl_0", why=""),
    ],
    ids=lambda step: type(step).__name__,
)
def test_a_failed_step_ends_its_handover_and_no_other(step: ClusterAction) -> None:
    """What follows is right only after it: no signal without a seal, no end without an unseal."""
    close = CloseHandover(handover_id=HandoverId(0), outcome="", why="")
    others: list[Action] = [RESERVE[1], signal(7, handover=1), GONE[1], WRITE[0]]

    assert tried([step, signal(2), GONE[0], close, *others], fail=[step]) == [step, *others]


@pytest.mark.parametrize("first", [signal(1), requeue(1)], ids=["signal", "requeue"])
def test_a_failed_victim_does_not_hold_up_the_others(first: ClusterAction) -> None:
    """One that cannot be signalled must not keep one that has acknowledged from its requeue."""
    gone = MarkGone(handover_id=HandoverId(0), job_id=JobId(3), outcome="", why="")

    assert tried(
        [first, signal(2), requeue(3), gone, requeue(4)], fail=[first, signal(2), requeue(3)]
    ) == [first, signal(2), requeue(3), requeue(4)]


def test_after_a_failed_victim_the_handover_is_not_wound_up() -> None:
    """Steps about the hand-over as a whole count on all of its victims."""
    unseal = Unseal(handover_id=HandoverId(0), name="slurm_dl_0", why="")
    close = CloseHandover(handover_id=HandoverId(0), outcome="", why="")

    assert tried([signal(1), requeue(1), unseal, close, WRITE[0]], fail=[signal(1)]) == [
        signal(1),
        WRITE[0],
    ]


def test_quick_refusals_of_handovers_do_not_end_the_cycle() -> None:
    """An account that may not make reservations still orders the queue."""
    actions: list[Action] = [*RESERVE, *WRITE]

    assert tried(actions, fail=RESERVE, each_s=0.01, for_s=5.0) == actions


@pytest.mark.parametrize(
    "steps", [RESERVE, [signal(j, handover=j) for j in range(6)], [requeue(j) for j in range(6)]]
)
def test_a_silent_slurm_ends_the_cycle(steps: list[ClusterAction]) -> None:
    """After two timeouts nothing more is tried, not even what the ledger alone could do."""
    promote = Promote(job_id=JobId(1), why="")

    assert tried([*steps, promote, GONE[5], *WRITE], fail=steps, each_s=30.0, for_s=5.0) == [
        *steps[:2]
    ]


def test_a_slow_slurm_that_answers_is_not_silent() -> None:
    """Hand-overs go on past the time, and one refusal among successes does not end them."""
    steps: list[Action] = [RESERVE[0], signal(1), RESERVE[1], signal(2), RESERVE[2], RESERVE[3]]

    assert tried([*steps, *WRITE], fail=[signal(1), signal(2)], each_s=4.0, for_s=5.0) == steps


@pytest.mark.parametrize(("stuck", "other"), [(1, 2), (2, 1)])
def test_a_victim_that_cannot_be_signalled_does_not_strand_the_other(
    life: Life, stuck: int, other: int
) -> None:
    """The other one is signalled in the same cycle, and requeued once it has acknowledged."""
    for _ in range(2):
        life.cluster.submit(4, work_s=10_000, contract=Contract(grace_s=60), uid=1)
    for _ in range(10):
        life.cycle()
        life.cluster.advance(5)
    life.cluster.submit(8, n_nodes=2, work_s=30, uid=2)
    refuse(life, Signal, [stuck])

    life.cycle()
    asked = [_job(a) for a in life.cluster.tried if isinstance(a, Signal)]
    assert sorted(asked) == [1, 2]
    for _ in range(5):
        life.cluster.advance(2)
        life.cycle()

    requeued = {_job(a) for a in life.cluster.applied if isinstance(a, Requeue)}
    assert requeued == {other}


# Who is tried again, and when.


def tries(refusals: Refusals, cycles: int) -> list[int]:
    """The cycles, of so many, in which a write is tried that always fails."""
    found = []
    for number in range(1, cycles + 1):
        todo, left = refusals.sift(WRITE[:1])
        assert [*todo, *left] == WRITE[:1]
        if todo:
            found.append(number)
            refusals.note(WRITE[0], failed=True)
    return found


def test_a_refused_write_rests_twice_as_long_each_time() -> None:
    """2, 4, 8 and so on to 64 cycles are left out between two tries."""
    found = tries(Refusals(), 300)

    assert [b - a - 1 for a, b in itertools.pairwise(found)] == [2, 4, 8, 16, 32, 64, 64, 64]


def test_a_success_clears_what_is_remembered() -> None:
    """After it the next failure is the first one again."""
    refusals = Refusals()
    assert tries(refusals, 5) == [1, 4]
    for _ in range(5):
        refusals.sift(WRITE[:1])
    refusals.note(WRITE[0], failed=False)

    assert tries(refusals, 5) == [1, 4]


def test_what_is_not_planned_any_more_is_forgotten() -> None:
    """The memory holds no jobs of last year."""
    refusals = Refusals()
    refusals.sift(WRITE)
    refusals.note(WRITE[0], failed=True)
    assert refusals.sift(WRITE) == (WRITE[1:], WRITE[:1])

    refusals.sift(WRITE[1:])

    assert refusals.sift(WRITE) == (WRITE, [])


def test_steps_of_handovers_and_the_ledger_do_not_rest() -> None:
    """They have rules of their own for what fails."""
    steps: list[Action] = [
        SetSiteFactor(job_id=JobId(1), value=1, why="", handover_id=HandoverId(0)),
        RESERVE[0],
        signal(1),
        Unseal(handover_id=HandoverId(0), name="slurm_dl_0", why=""),
        Promote(job_id=JobId(1), why=""),
    ]
    refusals = Refusals()
    for step in steps:
        refusals.note(step, failed=True)

    assert refusals.sift(steps) == (steps, [])


def test_refused_jobs_at_the_top_do_not_starve_the_others(life: Life) -> None:
    """With 24 that are always refused and a budget of 20, all others get their turn, and soon."""
    submit(life, 100)
    refuse(life, SetSiteFactor, range(1, 25))
    life.budget = 20

    for _ in range(12 + 5):
        life.cycle()

    written = {j for j, job in life.cluster.jobs.items() if job.site_factor}
    assert written == {*range(25, 51)}


def test_a_write_that_failed_is_tried_behind_the_others(life: Life) -> None:
    """What may be refused again must not come before what has not been tried yet."""
    submit(life, 4)
    refuse(life, SetSiteFactor, [1])
    life.budget = 1

    for _ in range(5):
        life.cycle()

    assert life.tried() == [1, 2, 3, 4, 1]
