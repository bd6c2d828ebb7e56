"""The simulated Slurm as the engine meets it: what is shown, what is done, what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import slurm_scenarios as scenes

from slurm_dl.model.errors import ClusterError
from slurm_dl.model.handover import Run
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.jobs import Held, JobState
from slurm_dl.model.plan import (
    Attach,
    ClearSteer,
    Detach,
    Requeue,
    Reserve,
    Reshape,
    SetSiteFactor,
    SetSteer,
    Signal,
    Trim,
    Unseal,
)
from slurm_dl.model.shape import Shape
from slurm_dl.model.steer import Steer
from slurm_dl.simulation.job_knowledge import JobSizes, TraceKnowledge
from slurm_dl.simulation.slurm.job_columns import JobBehaviour, NodeFailures
from slurm_dl.simulation.slurm.simulated_cluster import EPOCH_S, SlurmSim

FIRST, SECOND = JobId(1), JobId(2)
ONE, TWO = HandoverId(1), HandoverId(2)


def cluster(jobs: list[scenes.Job], shape: str = "1x1", **more: Any) -> SlurmSim:  # noqa: ANN401
    """A cluster to which nothing has happened."""
    return scenes.scenario(jobs, shape, **more).cluster("gpu")


def reserve(*nodes: str, handover: HandoverId = ONE, duration_s: float = 90.0) -> Reserve:
    return Reserve(
        handover_id=handover, nodes=nodes, uids=(1000,), duration_s=duration_s, why="test"
    )


def signal(run: Run) -> Signal:
    return Signal(handover_id=ONE, run=run, signal="USR1", target="batch", why="test")


def reshape(job: JobId, shape: str) -> Reshape:
    return Reshape(job_id=job, shape=Shape.of(shape), cpus=0, mem_mb=0, why="test")


def steer(job: JobId, *avoid: str, not_before_s: float = 0.0) -> Steer:
    return Steer(
        job_id=job,
        kind="spot",
        avoid=avoid,
        since_s=0.0,
        until_s=0.0,
        not_before_s=not_before_s,
        why="test",
    )


def state(sim: SlurmSim, job: JobId) -> JobState:
    jobs = sim.observe().jobs
    return JobState(int(jobs.state[jobs.row_of()[job]]))


def run_of(sim: SlurmSim, job: JobId) -> Run:
    jobs = sim.observe().jobs
    row = jobs.row_of()[job]
    return Run(job, float(jobs.start_s[row]), int(jobs.restarts[row]))


def test_what_is_shown_is_what_slurm_tells() -> None:
    """Whole seconds, jobs that have come, who holds what where."""
    sim = cluster([(0.25, 100.0, 4.0), (0.5, 10.0, 2.0), (50.0, 1.0, 1.0)], "2x4")
    sim.machine.advance_to(3.75)
    seen = sim.observe()

    assert seen.now_s == EPOCH_S + 3
    assert seen.jobs.job_id.tolist() == [1, 2]
    assert seen.jobs.start_s.tolist() == [EPOCH_S, EPOCH_S]
    assert seen.jobs.state.tolist() == [JobState.RUNNING] * 2
    assert seen.held.job.tolist() == [0, 1]
    assert seen.held.node.tolist() == [0, 1]
    assert seen.held.gpus.tolist() == [4.0, 2.0]
    assert (seen.jobs.end_s - seen.jobs.start_s).tolist() == seen.jobs.limit_s.tolist()


def test_finished_jobs_are_listed_for_a_while() -> None:
    sim = cluster([(0.0, 10.0, 1.0)], costs=scenes.ideal(min_job_age_s=60.0))
    sim.machine.advance_to(60.0)
    assert state(sim, FIRST) is JobState.COMPLETED
    sim.machine.advance_to(71.0)

    assert len(sim.observe().jobs) == 0


def test_the_order_is_site_factor_and_then_job_id() -> None:
    sim = cluster([(0.0, 10.0, 1.0), *((1.0, 10.0, 1.0) for _ in range(3))])
    sim.machine.advance_to(5.0)
    sim.apply(SetSiteFactor(job_id=JobId(4), value=100, why="test"))
    assert sim.observe().jobs.priority.tolist() == [1, 1, 1, 101]
    sim.machine.advance_to_end()

    assert sim.machine.jobs.first_start_s.tolist() == [0.0, 20.0, 30.0, 10.0]


def test_a_seal_keeps_a_node_until_it_lapses() -> None:
    """A reservation of 90 s is one of two minutes: Slurm takes whole ones."""
    sim = cluster([(0.0, 0.5, 1.0), (5.0, 10.0, 1.0), (6.0, 10.0, 1.0)])
    sim.machine.advance_to(1.0)
    sim.apply(reserve("n1"))
    sim.machine.advance_to(7.0)
    assert [r.name for r in sim.observe().reservations] == ["slurm_dl_1"]
    sim.apply(Attach(handover_id=ONE, job_id=JobId(3), why="test"))
    sim.apply(SetSiteFactor(job_id=JobId(3), value=1, why="test"))
    assert sim.observe().reserved == {JobId(3): "slurm_dl_1"}
    sim.machine.advance_to_end()

    assert sim.machine.jobs.first_start_s.tolist() == [0.0, 121.0, 7.0]
    assert sim.observe().reservations == ()


def test_unsealed_nodes_are_everybodys_at_once() -> None:
    sim = cluster([(0.0, 0.5, 1.0), (5.0, 10.0, 1.0)])
    sim.machine.advance_to(1.0)
    sim.apply(reserve("n1"))
    sim.machine.advance_to(9.0)
    sim.apply(Unseal(name="slurm_dl_1", handover_id=ONE, why="test"))
    sim.machine.advance_to_end()

    assert sim.machine.jobs.first_start_s.tolist() == [0.0, 9.0]


def test_a_detached_job_is_like_any_other() -> None:
    sim = cluster([(0.0, 10.0, 1.0), (1.0, 10.0, 1.0)])
    sim.machine.advance_to(2.0)
    sim.apply(reserve("n1"))
    sim.apply(Attach(handover_id=ONE, job_id=SECOND, why="test"))
    sim.apply(Detach(job_id=SECOND, why="test", handover_id=ONE))
    sim.machine.advance_to_end()

    assert sim.machine.jobs.first_start_s[1] == 122.0


def test_a_steered_job_starts_on_what_is_left_and_not_before_it_may() -> None:
    """The list outlives a requeue, and is seen while the job waits."""
    sim = cluster([(0.0, 10.0, 2.0), (1.0, 50.0, 1.0), (1.0, 50.0, 1.0)], "2x1")
    sim.machine.advance_to(5.0)
    sim.apply(SetSteer(steer=steer(SECOND, "n1"), why="test"))
    sim.apply(SetSteer(steer=steer(JobId(3), not_before_s=EPOCH_S + 30.0), why="test"))
    seen = sim.observe()
    assert {job: nodes.tolist() for job, nodes in seen.excluded.items()} == {2: [True, False]}
    assert seen.jobs.held.tolist() == [Held.NO, Held.NO, Held.BEGIN_TIME]
    sim.machine.advance_to(29.0)
    assert sim.machine.room.holds[1].tolist() == [1]
    sim.apply(SetSteer(steer=steer(JobId(3), not_before_s=EPOCH_S + 32.0), why="test"))
    sim.machine.advance_to(31.0)
    assert state(sim, JobId(3)) is JobState.PENDING
    sim.machine.advance_to(33.0)
    assert sim.machine.room.holds[2].tolist() == [0]
    assert sim.observe().excluded == {}

    sim.apply(Requeue(handover_id=ONE, run=run_of(sim, SECOND), why="test"))
    sim.machine.advance_to(40.0)
    assert [*sim.observe().excluded] == [2] or state(sim, SECOND) is JobState.RUNNING
    assert sim.machine.room.holds[1].tolist() == [1]


def test_a_steer_that_is_undone_leaves_nothing() -> None:
    """A job that was put off starts at once; what does not wait any more is left alone."""
    sim = cluster([(0.0, 10.0, 1.0), (0.0, 10.0, 1.0)], "1x1")
    sim.machine.advance_to(5.0)
    sim.apply(SetSteer(steer=steer(SECOND, "n1", not_before_s=EPOCH_S + 1000.0), why="test"))
    sim.apply(SetSteer(steer=steer(FIRST, "n1"), why="test"))
    sim.machine.advance_to(20.0)
    assert state(sim, SECOND) is JobState.PENDING

    sim.apply(ClearSteer(job_id=SECOND, own=(), lift=True, why="test"))
    sim.apply(ClearSteer(job_id=FIRST, own=(), lift=True, why="test"))
    sim.machine.advance_to_end()

    assert sim.machine.jobs.first_start_s.tolist() == [0.0, 20.0]
    assert sim.observe().excluded == {}


def test_two_seals_may_not_overlap() -> None:
    sim = cluster([(0.0, 10.0, 1.0)], "2x1")
    sim.apply(reserve("n1"))

    with pytest.raises(ClusterError, match="reserved already"):
        sim.apply(reserve("n1", "n2", handover=TWO))


def test_what_does_not_exist_is_refused() -> None:
    sim = cluster([(0.0, 10.0, 1.0), (500.0, 1.0, 1.0)])

    with pytest.raises(ClusterError, match="reservation slurm_dl_1 does not exist"):
        sim.apply(Attach(handover_id=ONE, job_id=FIRST, why="test"))
    for job in (SECOND, JobId(3), JobId(0)):
        with pytest.raises(ClusterError, match=f"job {job} does not exist"):
            sim.apply(SetSiteFactor(job_id=job, value=1, why="test"))


def test_only_the_run_that_was_chosen_is_signalled_and_requeued() -> None:
    sim = cluster([(0.0, 100.0, 1.0)])
    sim.machine.advance_to(10.0)
    run = run_of(sim, FIRST)
    other = Run(FIRST, run.start_s, run.restarts + 1)

    for action in (signal(other), Requeue(handover_id=ONE, run=other, why="test")):
        with pytest.raises(ClusterError, match="is not in the run that was chosen"):
            sim.apply(action)
    assert state(sim, FIRST) is JobState.RUNNING


def test_a_preemption_goes_through_its_states() -> None:
    """Running, acknowledged, completing, held, running again where it had stopped."""
    costs = scenes.ideal(save_s=4.0, ack_s=1.0, stop_s=2.0, epilog_s=3.0, cred_expire_s=9.0)
    sim = cluster([(0.0, 100.0, 1.0)], costs=costs, habits=JobBehaviour(limit_factor=10.0))
    sim.machine.advance_to(30.0)
    run = run_of(sim, FIRST)
    sim.apply(signal(run))
    sim.machine.advance_to(34.5)
    assert sim.observe().claim(FIRST).acked_run is None
    sim.machine.advance_to(35.0)
    assert sim.observe().claim(FIRST).acked_run == 0
    sim.apply(Requeue(handover_id=ONE, run=run, why="test"))
    assert state(sim, FIRST) is JobState.COMPLETING
    sim.machine.advance_to(40.5)
    seen = sim.observe()
    assert seen.jobs.state[0] == JobState.PENDING
    assert seen.jobs.held[0] == Held.BEGIN_TIME
    assert seen.jobs.restarts[0] == 1
    assert seen.jobs.start_s[0] == 0.0
    assert seen.claim(FIRST).acked_run is None
    # The same again: it is in the queue, which is what was wanted.
    sim.apply(Requeue(handover_id=ONE, run=run, why="test"))
    sim.machine.advance_to_end()

    assert sim.machine.jobs.end_s[0] == 40.0 + 10.0 + 70.0


def test_a_dead_node_is_shown_as_down_once_it_is_missed() -> None:
    failures = NodeFailures(mtbf_s=100.0, mttr_s=1e6)
    sim = cluster(
        [(0.0, 1e5, 1.0)], "2x1", failures=failures, costs=scenes.ideal(slurmd_timeout_s=50.0)
    )
    ups = []
    for at_s in np.arange(0.0, 2000.0, 10.0):
        sim.machine.advance_to(float(at_s))
        ups.append(int(sim.observe().nodes.up.sum()))

    assert ups[0] == 2
    assert ups[-1] == 0
    assert ups == sorted(ups, reverse=True)
    assert state(sim, FIRST) is JobState.PENDING


TWICE_AS_FAST = JobSizes(
    gpus=np.array([1.0, 4.0]), nodes=np.array([1.0, 2.0]), rate=np.array([1.0, 2.0])
)
ELASTIC = TraceKnowledge(sizes=(None, TWICE_AS_FAST))


def behind_a_full_cluster(**costs: float) -> SlurmSim:
    """Two nodes of two GPUs that are busy for 10 s, and a job of one GPU and 100 s that waits."""
    jobs = [(0.0, 10.0, 4.0), (0.0, 100.0, 1.0)]
    sim = cluster(jobs, "2x2", known=ELASTIC, costs=scenes.ideal(**costs))
    sim.machine.advance_to(1.0)
    return sim


def test_a_job_changes_its_size_while_it_waits_and_works_at_its_speed() -> None:
    """100 s on one GPU are 50 s on four; a run keeps the size it began in."""
    sim = behind_a_full_cluster()
    claim = sim.observe().claims[SECOND]
    assert (claim.sizes, claim.asked) == ((Shape(1, 1), Shape(2, 2)), Shape(1, 1))

    sim.apply(reshape(SECOND, "2x2"))

    waits = sim.observe().jobs
    assert (waits.n_nodes[1], waits.gpus[1], waits.cpus[1]) == (2, 4, 2)
    sim.machine.advance_to(30.0)
    sim.apply(reshape(SECOND, "1x1"))
    runs = sim.observe()
    assert runs.held.gpus[runs.held.job == 1].tolist() == [2, 2]
    assert runs.jobs.gpus[1] == 4
    sim.machine.advance_to_end()
    records = sim.machine.jobs.records()
    assert (records.runs.end_s - records.runs.start_s).tolist() == [10, 50]
    assert records.service_gpu_s.tolist() == [40, 200]
    assert (records.runs.gpus.tolist(), records.gpus.tolist()) == ([4, 4], [4, 1])


def test_work_that_was_saved_in_one_size_counts_in_another() -> None:
    """After 20 s at speed 2 a job has 60 s left to do on one GPU."""
    sim = behind_a_full_cluster(cred_expire_s=4.0)
    sim.apply(reshape(SECOND, "2x2"))
    sim.machine.advance_to(30.0)
    before = run_of(sim, SECOND)
    sim.apply(signal(before))
    sim.apply(Requeue(handover_id=ONE, run=before, why="test"))
    sim.apply(reshape(SECOND, "1x1"))
    sim.machine.advance_to_end()
    runs = sim.machine.jobs.records().runs
    assert runs.gpus.tolist() == [4, 4, 1]
    assert (runs.end_s - runs.start_s).tolist() == [10, 20, 60]


def test_a_size_that_fits_nowhere_waits_and_a_cut_is_refused() -> None:
    """As on Slurm nobody refuses it; the size asked for, written back, starts."""
    sim = behind_a_full_cluster()
    sim.apply(reshape(SECOND, "3x1"))
    sim.machine.advance_to(300.0)
    assert state(sim, SECOND) is JobState.PENDING
    with pytest.raises(ClusterError, match="cuts none"):
        sim.apply(Trim(job_id=SECOND, cpus=1, mem_mb=0, why="test"))
    sim.apply(reshape(SECOND, "1x1"))
    sim.machine.advance_to(301.0)
    assert state(sim, SECOND) is JobState.RUNNING
