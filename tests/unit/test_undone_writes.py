"""SiteFactors that Slurm undoes: when they are written again, and what waits for a pass to end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import build
import pytest
from fake_cluster import FakeCluster
from fake_slurm import FakeJob

from slurm_dl.engine.cycle import Carry, Cycle
from slurm_dl.engine.settings import Preemption, Settings
from slurm_dl.engine.site_factors import UndoneWrites
from slurm_dl.engine.waiting_line import PLACES
from slurm_dl.ledger.sqlite.store import SqliteStore
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.contract import Contract
from slurm_dl.model.errors import ClusterError
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import Held, JobState
from slurm_dl.model.plan import ClusterAction, OpenHandover, Reserve, SetSiteFactor, Unseal
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
BAND = SETTINGS.band_width
JOB = JobId(7)


class Undoing(FakeCluster):
    """A Slurm whose priorities keep the SiteFactor of another time.

    Attributes:
        undoes: The SiteFactor that counts in place of each one that is written; None: that.
    """

    undoes: Callable[[int], int | None] = staticmethod(lambda _: None)

    def _held(self, job: FakeJob) -> Held:
        return Held.LIMIT if job.qos == "full" else super()._held(job)

    def _do(self, action: ClusterAction) -> None:
        super()._do(action)
        if isinstance(action, SetSiteFactor):
            counts = self.undoes(action.value)
            if counts is not None:
                self.jobs[action.job_id].site_factor = counts


@dataclass
class Life:
    """One daemon's cycles, a second apart.

    Attributes:
        in_pass: Whether a backfill pass is under way at each cycle; the last goes on.
    """

    cluster: Undoing
    ledger: Ledger
    carry: Carry = field(default_factory=Carry)
    in_pass: bool = False
    silent: bool = False
    asked: int = 0

    def ask(self, jobs: Collection[JobId]) -> dict[JobId, bool]:
        """Whose priority was set by hand."""
        self.asked += 1
        if self.silent:
            msg = "sprio: timed out"
            raise ClusterError(msg)
        return self.cluster.set_by_hand(jobs)

    def cycle(self, *, acting: bool = True) -> Cycle:
        """One cycle, a second after the last."""
        self.cluster.advance(1)
        more = {"carry": self.carry, "ask_by_hand": self.ask, "backfilling": lambda: self.in_pass}
        return build.cycle(self.cluster, self.ledger, POLICY, SETTINGS, acting=acting, **more)

    def writes(self, cycle: Cycle) -> dict[int, int]:
        """The SiteFactors that were written in *cycle*."""
        done = [d.action for d in cycle.done]
        return {a.job_id: a.value for a in done if isinstance(a, SetSiteFactor)}


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    """Two jobs and one GPU: job 2 waits."""
    cluster = Undoing(nodes=1, gpus=1)
    for _ in range(2):
        cluster.submit(1, work_s=1000, contract=Contract(grace_s=5))
    ledger = Ledger(SqliteStore(tmp_path / "ledger"))
    yield Life(cluster, ledger)
    ledger.close()


@pytest.mark.parametrize("counts", [0, 300 * BAND], ids=["lower", "higher"])
def test_what_was_undone_once_is_written_once_more(life: Life, counts: int) -> None:
    """At the next look, in both directions, with the same value."""
    life.cluster.undoes = lambda _: counts
    first = life.writes(life.cycle())
    life.cluster.undoes = lambda _: None
    again = life.cycle()

    assert set(first) == {2}
    assert life.writes(again) == first
    assert again.plan.unhonoured == (2,)
    assert not life.cycle().plan.unhonoured
    assert life.cluster.jobs[JobId(2)].site_factor == first[2]


def test_a_place_that_was_given_up_is_taken_back_again(tmp_path: Path) -> None:
    """A SiteFactor of 0 that is undone leaves a job in front that belongs behind."""
    cluster = Undoing(nodes=1, gpus=1)
    cluster.submit(1, work_s=1000)
    first = cluster.submit(1, work_s=1000, qos="full")
    others = [cluster.submit(1, work_s=1000) for _ in range(PLACES)]
    ledger = Ledger(SqliteStore(tmp_path / "ledger"))
    life = Life(cluster, ledger)
    assert set(life.writes(life.cycle())) == set(others)
    cluster.jobs[first].qos = ""
    cluster.undoes = lambda value: 300 * BAND if value == 0 else None
    assert life.writes(life.cycle())[others[-1]] == 0
    cluster.undoes = lambda _: None

    assert life.writes(life.cycle()) == {others[-1]: 0}
    ledger.close()


@pytest.mark.parametrize(
    ("in_pass", "cycles"), [(False, [0, 1, 3, 7, 15, 31, 63, 127, 191]), (True, list(range(200)))]
)
def test_the_pause_grows_unless_a_pass_explains_it(*, in_pass: bool, cycles: list[int]) -> None:
    """Slurm that never honours a write is asked less and less often."""
    undone = UndoneWrites()
    wrote = []
    for cycle in range(200):
        # The first write is of a place that was not written before.
        if cycle == 0 or undone.due([JOB]):
            wrote.append(cycle)
            undone.wrote(JOB, in_pass=in_pass)

    assert wrote == cycles


def test_a_write_that_counted_once_begins_anew() -> None:
    """The pause is that of one spell."""
    undone = UndoneWrites()
    for _ in range(5):
        if undone.due([JOB]):
            undone.wrote(JOB, in_pass=False)
    assert not undone.due([JOB])
    undone.due([])

    assert undone.due([JOB]) == {JOB}


def test_first_writes_wait_for_the_end_of_a_pass_for_one_cycle(life: Life) -> None:
    """And no longer: passes may follow each other closely."""
    life.in_pass = True

    assert [bool(life.writes(life.cycle())) for _ in range(3)] == [False, True, False]


def test_what_was_undone_does_not_wait(life: Life) -> None:
    """In the pass that has undone it, it is likely to be past its turn."""
    life.cluster.undoes = lambda _: 0
    life.cycle()
    life.in_pass = True

    assert all(life.writes(life.cycle()) for _ in range(3))


def test_reservations_that_end_within_two_cycles_are_deleted_in_one(tmp_path: Path) -> None:
    """Each deletion ends a backfill pass; so do creations, which one decision makes together."""
    cluster = Undoing(nodes=2, gpus=1)
    ledger = Ledger(SqliteStore(tmp_path / "ledger"))
    life = Life(cluster, ledger, in_pass=True)
    for _ in range(2):
        cluster.submit(1, work_s=1000, contract=Contract(grace_s=5))
    for _ in range(70):
        life.cycle()
    for _ in range(2):
        cluster.submit(1, work_s=1000, contract=Contract(grace_s=5))
    made, ended = [], []
    for cycle in range(60):
        done = [d.action for d in life.cycle().done if not d.error]
        made += [cycle for a in done if isinstance(a, Reserve)]
        ended += [cycle for a in done if isinstance(a, Unseal)]
    ledger.close()

    assert len(made) == len(ended) == 2
    assert len(set(made)) == len(set(ended)) == 1


@pytest.mark.parametrize(
    ("priority", "had_place", "restarted", "silent"),
    [
        pytest.param(5, False, False, False, id="came so"),
        pytest.param(5, True, False, False, id="had its place"),
        pytest.param(1, True, False, False, id="an earlier priority"),
        pytest.param(300 * BAND, True, True, False, id="nothing remembered"),
        pytest.param(5, False, False, True, id="Slurm falls silent"),
    ],
)
def test_a_job_whose_priority_was_set_by_hand_is_left_alone_until_its_release(
    life: Life, *, priority: int, had_place: bool, restarted: bool, silent: bool
) -> None:
    """No GPUs are taken back for it, none of its places is written; then it is served."""
    life.cluster.advance(1)
    if had_place:
        assert 2 in life.writes(life.cycle())
    waits = life.cluster.jobs[JobId(2)]
    waits.by_hand = priority
    cycles = [life.cycle()]
    life.carry = Carry() if restarted else life.carry
    life.silent = silent
    cycles += [life.cycle() for _ in range(75)]

    plan = cycles[-1].plan
    assert not any(life.writes(c) for c in cycles)
    assert not any(isinstance(d.action, OpenHandover) for c in cycles for d in c.done)
    assert f"set by hand (Priority={priority})" in plan.notes[waits.job_id]
    assert not plan.unhonoured
    assert life.asked < 12

    waits.by_hand, life.silent = None, False
    for _ in range(20):
        life.cycle()
    assert waits.state is JobState.RUNNING


def test_a_running_job_whose_priority_was_set_by_hand_is_a_victim_and_not_written(
    life: Life,
) -> None:
    """Its place would not count in Slurm when it waits again."""
    life.cluster.advance(1)
    life.cluster.jobs[JobId(2)].by_hand = 5
    life.cycle()
    life.cluster.cancel(JobId(1))
    life.cluster.advance(1)
    new = life.cluster.submit(1, work_s=1000)
    cycles = [life.cycle() for _ in range(90)]

    assert life.cluster.jobs[new].state is JobState.RUNNING
    assert not any(2 in life.writes(c) for c in cycles)


def test_shadow_mode_asks_rarely(life: Life) -> None:
    """Nothing is written, so no priority ever is what it should be."""
    life.cluster.jobs[JobId(2)].site_factor = 300 * BAND
    for _ in range(60):
        life.cycle(acting=False)

    assert 0 < life.asked < 12
