"""Jobs of the simulated Slurm that do what their own scripts say."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import slurm_scenarios as scenes

from slurm_dl.engine.settings import Settings
from slurm_dl.model.completed_jobs import Records
from slurm_dl.model.contract import Claim, Contract
from slurm_dl.model.errors import ClusterError
from slurm_dl.model.handover import Run
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.jobs import Held, Origin
from slurm_dl.model.plan import Requeue
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.policies.shortest import Srtf
from slurm_dl.simulation.slurm.job_columns import JobBehaviour
from slurm_dl.simulation.slurm.overheads import PRODUCTION
from slurm_dl.simulation.slurm.scenario import Scenario, simulate_plain, simulate_slurm
from slurm_dl.simulation.slurm.scheduling_passes import Phases
from slurm_dl.simulation.slurm.scripted_cluster import JobScript, Scripts
from slurm_dl.simulation.slurm.simulated_cluster import EPOCH_S, SlurmSim

CLOCKS = Phases(tick_s=0.0, full_s=0.0, backfill_s=0.0)


def scene(jobs: list[scenes.Job], *scripts: JobScript, **more: Any) -> Scenario:  # noqa: ANN401
    return scenes.scenario(
        jobs, more.pop("shape", "1x1"), scripts=Scripts(scripts), phases=CLOCKS, **more
    )


def cluster(*scripts: JobScript, at_s: float = 100.0, **more: Any) -> SlurmSim:  # noqa: ANN401
    """As many jobs of 1000 s as there are scripts, one a second, some time later."""
    jobs = [(float(i), 1000.0, 1.0) for i in range(len(scripts))]
    sim = scene(jobs, *scripts, **more).cluster("gpu")
    sim.machine.advance_to(at_s)
    return sim


def work_gpu_s(records: Records) -> float:
    """Lasting work of all jobs."""
    lost = sum(float(each.sum()) for each in records.lost_gpu_s.values())
    return float(records.service_gpu_s.sum()) - lost


def test_a_usual_script_is_a_usual_job() -> None:
    """With and without scripts, all that becomes of jobs is the same to the bit."""
    rng = np.random.default_rng(3)
    jobs = [(float(t), float(s), 1.0) for t, s in zip(
        np.sort(rng.uniform(0, 9000, 12)), rng.uniform(300, 9000, 12), strict=True)]  # fmt: skip
    plain = scenes.scenario(
        jobs, "1x2", costs=PRODUCTION, phases=CLOCKS,
        habits=JobBehaviour(checkpoint_every_s=3600.0),
    )  # fmt: skip
    scripted = dataclasses.replace(plain, scripts=Scripts((JobScript(reports="never"),) * 12))
    settings = Settings(partitions=frozenset({"gpu"}))

    one, other = (
        simulate_slurm(each, policy=DiscreteLas(), settings=settings) for each in (plain, scripted)
    )

    assert one.records.preemptions.sum() > 0
    for name in ("start_s", "end_s", "service_gpu_s", "preemptions", "submit_s"):
        assert np.array_equal(getattr(one.records, name), getattr(other.records, name)), name


@pytest.mark.parametrize(("heirs", "ends"), [(0, 1), (1, 2), (4, 4)])
def test_a_job_leaves_by_its_timer_and_its_work_goes_on(heirs: int, ends: int) -> None:
    """Its heirs do the rest, or it does; in all it is the work of one job."""
    chain = [JobScript(leaves_after_s=1000.0, heir=i + 1, gap_s=60.0) for i in range(heirs)]
    last = JobScript(leaves_after_s=1000.0)
    jobs = [(0.0, 3500.0, 1.0)] * (heirs + 1)

    records = simulate_plain(scene(jobs, *chain, last, costs=PRODUCTION)).records

    assert work_gpu_s(records) == pytest.approx(3500.0)
    assert np.isfinite(records.end_s).sum() == ends
    assert records.success.sum() == 1
    assert "redone" not in records.lost_gpu_s
    assert max(records.runs.end_s - records.runs.start_s) < 1000.0 + 40.0
    assert records.preemptions.sum() == 0


def test_cancelled_and_submitted_anew_it_keeps_what_it_saved() -> None:
    """Preempted after 500 s, the next job has 500 s less to do, and no restart."""
    first = JobScript(heir=1, heir_after="preemption", checkpoint_every_s=0.0)
    sim = cluster(first, JobScript(), at_s=500.0)
    jobs = sim.machine.jobs
    sim.machine.signal(0)
    sim.machine.advance_to(500.0)
    sim.machine.requeue(0)
    sim.machine.advance_to(501.0)

    assert (jobs.saved_s[1], jobs.submit_s[1]) == (500.0, 501.0)
    sim.machine.advance_to_end()
    assert jobs.end_s[1] == pytest.approx(1001.0, abs=60.0)
    assert jobs.restarts.tolist() == [0, 0]
    assert jobs.success.tolist() == [False, True]


def test_one_that_comes_after_another_waits_for_the_heirs_of_that() -> None:
    """The clock of a session begins when all of its work is done."""
    scripts = (
        JobScript(leaves_after_s=600.0, heir=2), JobScript(after=0, think_s=50.0), JobScript(),
    )  # fmt: skip

    records = simulate_plain(scene([(0.0, 1000.0, 1.0)] * 3, *scripts)).records

    assert records.submit_s[1] == pytest.approx(records.end_s[2] + 50.0)
    assert np.isfinite(records.end_s).all()


def test_nobody_starts_before_the_begin_time() -> None:
    sim = cluster(JobScript(begin_s=700.0), at_s=10.0)
    seen = sim.observe()

    assert seen.jobs.held.tolist() == [Held.BEGIN_TIME]
    assert seen.begins == {JobId(1): EPOCH_S + 700.0}
    sim.machine.advance_to_end()
    assert sim.machine.jobs.first_start_s[0] == pytest.approx(700.0, abs=1.0)
    assert sim.machine.jobs.first_submit_s[0] == 0.0


SAVED = Claim(contract=Contract(), saved_s=int(EPOCH_S + 60))


@pytest.mark.parametrize(
    ("script", "running", "waiting"),
    [
        (JobScript(), Claim(contract=Contract()), Claim(contract=Contract())),
        (JobScript(claim=None), None, None),
        (JobScript(claims_while_it_runs=False), None, Claim(contract=Contract())),
        (JobScript(checkpoint_every_s=60.0), SAVED, Claim(contract=Contract())),
        (
            JobScript(checkpoint_every_s=60.0, reports="never"),
            Claim(contract=Contract()), Claim(contract=Contract()),
        ),
        (
            JobScript(reports="now"),
            dataclasses.replace(SAVED, saved_s=int(EPOCH_S + 100)), Claim(contract=Contract()),
        ),
    ],
)  # fmt: skip
def test_a_job_claims_what_its_script_says(
    script: JobScript, running: Claim | None, waiting: Claim | None
) -> None:
    claims = cluster(script, script).observe().claims

    assert (claims.get(JobId(1)), claims.get(JobId(2))) == (running, waiting)


def test_a_requeue_is_refused_once_it_runs() -> None:
    refuses = JobScript(requeue_refused=True)
    sim = cluster(refuses, refuses)
    run = Run(JobId(1), EPOCH_S, 0)

    assert sim.observe().jobs.requeueable.tolist() == [False, True]
    with pytest.raises(ClusterError, match="job 1: Job can not be requeued"):
        sim.apply(Requeue(handover_id=HandoverId(1), run=run, why="test"))


def test_it_can_hold_more_than_slurm_tells() -> None:
    """A node is full for others, and the daemon sees one GPU and all CPUs."""
    sim = cluster(JobScript(held=(1, 4), gpus=1.0, cpus=64), JobScript(), shape="1x4")
    seen = sim.observe()

    assert seen.jobs.gpus.tolist() == [1.0, 1.0]
    assert seen.jobs.cpus.tolist() == [64, 1]
    assert (seen.held.gpus.tolist(), seen.held.cpus.tolist()) == ([1.0], [64])
    sim.machine.advance_to_end()
    assert sim.machine.jobs.first_start_s[1] >= 1000.0


def test_a_claimed_progress_is_what_policies_see() -> None:
    """Its time left follows from it as the daemon has it; that of an honest job is the truth."""
    seen: list[Snapshot] = []

    class Watches(Srtf):
        def order(self, snap: Snapshot, /) -> Any:  # noqa: ANN401 - as Srtf has it
            seen.append(snap)
            return super().order(snap)

    made = scene(
        [(0.0, 9000.0, 1.0)] * 2 + [(2000.0, 9.0, 1.0)],
        *(JobScript(progress=0.9), JobScript(), JobScript()), shape="1x2",
    )  # fmt: skip
    simulate_slurm(made, policy=Watches(), settings=Settings(partitions=frozenset({"gpu"})))
    snap = next(s for s in seen if s.memory.ran_s[0] > 900.0)

    assert snap.progress is not None
    assert snap.left_s is not None
    assert snap.left_from is not None
    assert snap.progress[0] == 0.9
    assert snap.left_s[0] == pytest.approx(snap.memory.ran_s[0] / 9)
    assert snap.left_from[:2].tolist() == [Origin.REPORTED, Origin.KNOWN]
    assert snap.left_s[1] == pytest.approx(9000.0 - snap.memory.ran_s[1], abs=2.0)
    assert math.isclose(snap.progress[1], 1 - snap.left_s[1] / 9000.0)
