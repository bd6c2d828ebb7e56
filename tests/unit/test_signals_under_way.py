"""Signals that slurmctld does not answer for at once: the cycle goes on, and each is sent once."""

from __future__ import annotations

import build
import pytest
from fake_cluster import FakeCluster

from slurm_dl.engine.cycle import Carry, Cycle
from slurm_dl.engine.settings import Preemption, Settings
from slurm_dl.ledger.store_protocol import MemoryStore
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.contract import Contract
from slurm_dl.model.errors import ClusterError
from slurm_dl.model.handover import VictimState
from slurm_dl.model.ids import JobId
from slurm_dl.model.plan import ClusterAction, Signal, Unfinished
from slurm_dl.model.snapshot import Observed
from slurm_dl.policies.discrete_las import DiscreteLas

POLICY = DiscreteLas(thresholds_gpu_s=(60.0,))
LIMITS = Preemption(
    beneficiaries="all",
    commitment="ignored",
    min_quantum_s=8,
    max_grace_s=600,
    handover_timeout_s=80,
    limit_reserve_s=0,
)
SETTINGS = Settings(partitions=frozenset({"gpu"}), preemption=LIMITS)
GRACE_S = 30
ANSWERED, SILENT, NOT_IN_TIME = "answered", "silent", "not in time"


class SlowAnswers(FakeCluster):
    """Delivers each signal, and answers for it when it is told to.

    Attributes:
        answer: What becomes of the signals to each job.
        asked: Whether the end of a signal was asked for since the last look.
    """

    def __init__(self) -> None:
        super().__init__(nodes=3, gpus=4)
        self.answer: dict[JobId, str] = {}
        self.asked = False

    def observe(self) -> Observed:
        """See `Cluster`."""
        self.asked = False
        return super().observe()

    def apply(self, action: ClusterAction, /) -> Unfinished | None:
        """See `Cluster`."""
        assert not self.asked or not isinstance(action, Signal), "one was waited for alone"
        super().apply(action)
        if not isinstance(action, Signal):
            return None
        job = action.run.job_id

        def finish(_within_s: float) -> bool:
            self.asked = True
            if self.answer.get(job) == NOT_IN_TIME:
                msg = "no answer"
                raise ClusterError(msg)
            return self.answer.get(job, ANSWERED) == ANSWERED

        return finish


class Life:
    """A daemon whose three jobs of a node each are to make room for one of all nodes."""

    def __init__(self) -> None:
        self.cluster = SlowAnswers()
        self.ledger = Ledger(MemoryStore())
        self.carry = Carry()
        submit, contract = self.cluster.submit, Contract(grace_s=GRACE_S)
        self.victims = [submit(4, work_s=30000, contract=contract, save_s=20) for _ in range(3)]
        for _ in range(10):
            self.cycle()
        self.waits = submit(12, n_nodes=3, work_s=10)

    def cycle(self) -> Cycle:
        """Two seconds later."""
        self.cluster.advance(2)
        return build.cycle(self.cluster, self.ledger, POLICY, SETTINGS, carry=self.carry)

    def until_signalled(self) -> None:
        """Run cycles until signals were sent."""
        for _ in range(20):
            self.cycle()
            if any(self.signals()):
                return
        pytest.fail("nobody was signalled")

    def states(self) -> list[VictimState]:
        """How far each victim is."""
        (handover,) = self.ledger.handovers
        by_job = {v.run.job_id: v.state for v in handover.victims}
        return [by_job[job] for job in self.victims]

    def signals(self) -> list[int]:
        """How many signals each victim has had."""
        return [len(self.cluster.jobs[job].signals) for job in self.victims]


@pytest.mark.parametrize("later", [ANSWERED, NOT_IN_TIME])
def test_only_the_one_that_is_not_answered_for_waits(later: str) -> None:
    """It is not signalled again meanwhile; it is booked with the answer, or sent again without."""
    life = Life()
    slow = life.victims[1]
    life.cluster.answer[slow] = SILENT
    life.until_signalled()
    done, waits = VictimState.SIGNALLED, VictimState.SIGNALLING
    assert life.states() == [done, waits, done]

    for _ in range(3):
        life.cycle()
    assert life.signals() == [1, 1, 1]
    life.cluster.answer[slow] = later
    cycle = life.cycle()
    results = [d.error for d in cycle.done if isinstance(d.action, Signal)]

    if later == ANSWERED:
        assert (results, life.states(), life.signals()) == ([""], [done] * 3, [1, 1, 1])
    else:
        assert results[0] == "no answer"
        assert life.signals() == [1, 2, 1]


@pytest.mark.parametrize("later", [SILENT, NOT_IN_TIME])
def test_an_acknowledgement_stands_for_the_answer(later: str) -> None:
    """The job is not signalled again, and is requeued like the others."""
    life = Life()
    slow = life.victims[1]
    life.cluster.answer[slow] = later
    life.until_signalled()
    assert life.states()[1] is VictimState.SIGNALLING
    life.cluster.jobs[slow].acked_run = 0

    life.cycle()

    assert life.states()[1] is not VictimState.SIGNALLING
    for _ in range(GRACE_S):
        life.cycle()
    assert life.signals() == [1, 1, 1]
    assert [life.cluster.jobs[job].restarts for job in life.victims] == [1, 1, 1]


def test_a_job_that_ends_meanwhile_stays_ended() -> None:
    """An answer that comes after the job has gone changes nothing."""
    life = Life()
    slow = life.victims[1]
    life.cluster.answer[slow] = SILENT
    life.until_signalled()
    life.cluster.cancel(slow)
    life.cycle()
    assert life.states()[1] is VictimState.GONE

    life.cluster.answer[slow] = ANSWERED
    life.cycle()

    assert life.states()[1] is VictimState.GONE
