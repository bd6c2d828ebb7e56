"""What the backend relies on, each fact on a real Slurm."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_dl.model.errors import ClusterError
from slurm_dl.model.handover import Run
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.jobs import Held, JobState
from slurm_dl.model.plan import (
    Attach,
    Detach,
    Requeue,
    Reserve,
    SetSiteFactor,
    Signal,
    Unseal,
)
from slurm_dl.model.snapshot import Observed
from slurm_dl.sandbox import PartitionSpec, Sandbox, SandboxSpec
from slurm_dl.slurm.cluster import SlurmCluster
from slurm_dl.slurm.read.grammar import one_spelling
from slurm_dl.slurm.tool_runner import Slurm
from slurm_dl.slurm.write.current_job import job_now
from slurm_dl.slurm.write.release_all import release_all

pytestmark = pytest.mark.slurm

Eventually = Callable[..., object]
HANDOVER = HandoverId(7)
OURS = "slurm_dl_7"
WHY = "test"

# Writes what it is told into the file named after the signalled part.
TRAPS = """#!/bin/bash
trap 'echo batch >> told.$SLURM_JOB_ID' USR1
srun --overlap bash -c 'trap "echo step >> told.$SLURM_JOB_ID" USR1
touch ready.$SLURM_JOB_ID; while :; do sleep 0.2; done' &
while :; do wait; sleep 0.1; done
"""


@pytest.fixture
def slurm(sandbox: Sandbox) -> Slurm:
    return Slurm(slurm_conf=Path(sandbox.env["SLURM_CONF"]))


@pytest.fixture
def cluster(slurm: Slurm) -> SlurmCluster:
    return SlurmCluster(slurm, max_grace_s=600)


def submit(box: Sandbox, *options: str, script: str = "#!/bin/sh\nsleep 600\n") -> JobId:
    argv = ["sbatch", "--parsable", "--output=/dev/null", "-N1", *options]
    return JobId(int(box.run(argv, stdin=script).stdout.partition(";")[0]))


def row(seen: Observed, job_id: int) -> int:
    return seen.jobs.row_of()[JobId(job_id)]


def state(seen: Observed, job_id: int) -> JobState:
    return JobState(seen.jobs.state[row(seen, job_id)])


def run_of(seen: Observed, job_id: int) -> Run:
    at = row(seen, job_id)
    return Run(JobId(job_id), float(seen.jobs.start_s[at]), int(seen.jobs.restarts[at]))


def labels(seen: Observed) -> dict[str, int]:
    return {text.label: int(job_id) for job_id, text in seen.texts.items()}


@pytest.fixture
def until(
    cluster: SlurmCluster, eventually: Eventually
) -> Callable[[Callable[[Observed], bool], str], Observed]:
    """Observe until it is so, and give back that observation."""

    def wait(is_so: Callable[[Observed], bool], what: str) -> Observed:
        last: list[Observed] = []

        def look() -> bool:
            last[:] = [cluster.observe()]
            return is_so(last[0])

        eventually(look, 60.0, what=what)
        return last[0]

    return wait


Until = Callable[[Callable[[Observed], bool], str], Observed]


def is_running(*job_ids: int) -> Callable[[Observed], bool]:
    def running(seen: Observed) -> bool:
        known = seen.jobs.row_of()
        return all(j in known and state(seen, j) is JobState.RUNNING for j in job_ids)

    return running


def priorities(box: Sandbox, *job_ids: int) -> dict[str, int]:
    """Priority of each record of these jobs by its label; only SiteFactor moves it here.

    Other jobs are not asked for: their names may hold line feeds.
    """
    found = {}
    whole = {"SLURM_BITSTR_LEN": "0"}
    shown = [box.run(["scontrol", "-o", "show", "job", str(j)], env=whole).stdout for j in job_ids]
    for line in "".join(shown).splitlines():
        job = dict(word.partition("=")[::2] for word in line.split())
        if job["JobState"] in {"PENDING", "RUNNING"}:
            label = job["JobId"]
            if "ArrayTaskId" in job:
                label = one_spelling(f"{job['ArrayJobId']}_[{job['ArrayTaskId']}]")
            if "HetJobOffset" in job:
                label = f"{job['HetJobId']}+{job['HetJobOffset']}"
            found[label] = int(job["Priority"])
    return found


def test_empty_cluster_is_seen_whole(cluster: SlurmCluster) -> None:
    """No jobs but what has finished, all nodes, their GPUs, leaves and partitions."""
    seen = cluster.observe()

    assert set(seen.jobs.state.tolist()) <= {JobState.COMPLETED, JobState.FAILED}
    assert len(seen.held) == 0
    assert seen.nodes.name == ("n1", "n2", "n3", "n4")
    assert seen.nodes.up.all()
    assert seen.nodes.gpus.tolist() == [4.0] * 4
    assert seen.nodes.leaf.tolist() == [0, 0, 1, 1]
    assert seen.partitions == ("gpu",)
    assert seen.gpu_types == ("a100",)
    assert seen.node_in.all()


@pytest.fixture
def featured(sandbox: Sandbox) -> Iterator[None]:
    """Features for the time of a test; of n2's two only one is active."""

    def set_features(node: str, available: str, active: str) -> None:
        both = (f"AvailableFeatures={available}", f"ActiveFeatures={active}")
        sandbox.run(["scontrol", "update", f"NodeName={node}", *both])

    set_features("n1", "big,new", "big,new")
    set_features("n2", "big,new", "big")
    set_features("n3", "new", "new")
    yield
    for node in ("n1", "n2", "n3"):
        set_features(node, "", "")


@pytest.mark.usefixtures("featured")
def test_nodes_that_a_pending_job_may_use(
    sandbox: Sandbox, cluster: SlurmCluster, until: Until
) -> None:
    """What the owner asked for is what Slurm does: each job starts there and nowhere else."""
    expected = {
        ("--exclude=n1,n3",): ["n2", "n4"],
        ("--nodelist=n[2,4]", "-N2"): ["n2", "n4"],
        ("--constraint=big",): ["n1", "n2"],
        ("--constraint=big&new",): ["n1"],
        ("--constraint=new", "--exclude=n1"): ["n3"],
        ("--constraint=big|new",): [],
        ("--nodelist=n1", "-N2"): [],
    }
    jobs = {submit(sandbox, "-H", *options): nodes for options, nodes in expected.items()}
    free = submit(sandbox, "-H", "--prefer=big")
    argv = ["sbatch", "--parsable", "-H", "-N1", ":", "-N1"]
    het = JobId(int(sandbox.run(argv, stdin="#!/bin/sh\nsleep 600\n").stdout))

    seen = cluster.observe()

    assert named(seen) == jobs | {het: [], het + 1: []}
    assert free not in seen.choices
    for job, nodes in jobs.items():
        sandbox.run(["scontrol", "release", str(job)])
        seen = until(is_running(job), "the job to run")
        held = [seen.nodes.name[n] for n in seen.held.nodes_of(row(seen, job)).tolist()]
        assert not nodes or set(held) <= set(nodes)
        assert job not in seen.excluded
        if job in seen.choices and nodes:  # Where else it may run: it could be moved.
            assert seen.choices[job][seen.held.nodes_of(row(seen, job))].all()


def named(seen: Observed) -> dict[int, list[str]]:
    """The nodes that are left to each restricted job, by names."""
    choices = dict(seen.choices)
    for job, excluded in seen.excluded.items():
        choices[job] = ~excluded & choices.get(job, True)
    return {
        job: [name for name, may in zip(seen.nodes.name, mask, strict=True) if may]
        for job, mask in choices.items()
    }


def test_change_of_the_excluded_nodes_is_seen(sandbox: Sandbox, cluster: SlurmCluster) -> None:
    """Owners may change it while the job waits: it is asked about anew with the nodes."""
    job = submit(sandbox, "-H", "--exclude=n1")
    array = submit(sandbox, "-H", "--array=0-9", "--exclude=n[1-3]")
    assert named(cluster.observe()) == {job: ["n2", "n3", "n4"], array: ["n4"]}

    sandbox.run(["scontrol", "update", f"JobId={job}", "ExcNodeList=n[1-2]"])
    cluster.refresh_nodes()
    assert named(cluster.observe()) == {job: ["n3", "n4"], array: ["n4"]}

    later = submit(sandbox, "-H", "--exclude=n4")
    assert named(cluster.observe())[later] == ["n1", "n2", "n3"]
    sandbox.run(["scontrol", "hold", f"{array}_3"])
    seen = cluster.observe()
    assert named(seen)[labels(seen)[f"{array}_3"]] == ["n4"]


def test_pending_job_of_several_partitions(make_sandbox: Callable[..., Sandbox]) -> None:
    """The first it names is its partition, the others stand beside until it runs."""
    partitions = (PartitionSpec("gpu"), PartitionSpec("debug"), PartitionSpec("long"))
    box = make_sandbox(SandboxSpec(partitions=partitions))
    cluster = SlurmCluster(Slurm(slurm_conf=Path(box.env["SLURM_CONF"])), max_grace_s=600)
    job = submit(box, "-H", "--partition=long,gpu,debug")
    one = submit(box, "-H", "--partition=debug")

    seen = cluster.observe()

    assert seen.partitions[seen.jobs.partition[row(seen, job)]] == "long"
    assert seen.partitions[seen.jobs.partition[row(seen, one)]] == "debug"
    assert {j: [seen.partitions[p] for p in more] for j, more in seen.also_in.items()} == {
        job: ["gpu", "debug"]
    }


def test_site_factor_of_an_array_reaches_its_pending_record_alone(
    sandbox: Sandbox, cluster: SlurmCluster, until: Until
) -> None:
    """The record is not split, and running tasks keep theirs, although they share its id."""
    array = submit(sandbox, "--array=0-99:3%2", "--gpus-per-node=1")
    seen = until(lambda s: (s.jobs.state == JobState.RUNNING).sum() == 2, "two tasks to run")
    before = labels(seen)
    assert f"{array}_[6-99:3]" in before

    cluster.apply(SetSiteFactor(job_id=array, value=5000, why=WHY))

    assert labels(cluster.observe()) == before
    assert cluster.site_factors().get(array, 5000) == 5000
    now = priorities(sandbox, array)
    assert now.pop(f"{array}_[6-99:3]") >= 5000
    assert len(now) == 2
    assert all(priority < 5000 for priority in now.values())


def test_site_factor_of_the_last_task_leaves_its_siblings_alone(
    sandbox: Sandbox, cluster: SlurmCluster, until: Until
) -> None:
    """The last task of an array to start has the array's own id."""
    array = submit(sandbox, "--array=0-2", "--gpus-per-node=1")
    seen = until(lambda s: (s.jobs.state == JobState.RUNNING).sum() == 3, "three tasks to run")
    label = seen.texts[array].label
    assert label.startswith(f"{array}_")

    cluster.apply(SetSiteFactor(job_id=array, value=5000, why=WHY))

    now = priorities(sandbox, array)
    assert now.pop(label) >= 5000
    assert len(now) == 2
    assert all(priority < 5000 for priority in now.values())


def test_site_factor_of_plain_and_het_jobs(
    sandbox: Sandbox, cluster: SlurmCluster, until: Until
) -> None:
    """Pending and running jobs take it at once; a het component apart from its leader."""
    until(is_running(running := submit(sandbox, "--gpus-per-node=1")), "the job to run")
    argv = ["sbatch", "--parsable", "-H", "-N1", ":", "-N1"]
    het = int(sandbox.run(argv, stdin="#!/bin/sh\nsleep 600\n").stdout)
    assert cluster.observe().texts[JobId(het + 1)].label == f"{het}+1"

    cluster.apply(SetSiteFactor(job_id=running, value=3000, why=WHY))
    sandbox.run(["scontrol", "release", str(het)])
    cluster.apply(SetSiteFactor(job_id=JobId(het + 1), value=4000, why=WHY))

    now = priorities(sandbox, running, het)
    assert now[str(running)] >= 3000
    assert now[f"{het}+1"] >= 4000
    assert now[f"{het}+0"] < 4000

    cluster.apply(SetSiteFactor(job_id=running, value=0, why=WHY))
    assert priorities(sandbox, running)[str(running)] < 3000


def test_job_that_was_never_seen_is_refused(cluster: SlurmCluster) -> None:
    """Without a label of the last observation there is nothing safe to name."""
    cluster.observe()
    with pytest.raises(ClusterError, match="was not in the queue"):
        cluster.apply(SetSiteFactor(job_id=JobId(999_999), value=1, why=WHY))


def test_requeued_array_task_stays_visible(
    sandbox: Sandbox, cluster: SlurmCluster, until: Until
) -> None:
    """While other tasks of its array wait, squeue folds a requeued one away unless asked not to."""
    array = submit(sandbox, "--array=0-20", "--gpus-per-node=4")
    seen = until(lambda s: (s.jobs.state == JobState.RUNNING).sum() == 4, "four tasks to run")
    victim = run_of(seen, labels(seen)[f"{array}_0"])

    cluster.apply(Requeue(handover_id=HANDOVER, run=victim, why=WHY))

    seen = until(lambda s: state(s, victim.job_id) is JobState.PENDING, "the task to be pending")
    assert seen.texts[victim.job_id].label == f"{array}_0"
    assert seen.jobs.restarts[row(seen, victim.job_id)] == victim.restarts + 1
    assert seen.jobs.start_s[row(seen, victim.job_id)] == 0
    assert len(labels(seen)) == len(seen.jobs)


def test_requeue_is_right_for_one_run_only(
    sandbox: Sandbox, cluster: SlurmCluster, until: Until
) -> None:
    """Another run, a finished job and a job that is gone are refused; a pending one is done."""
    seen = until(is_running(job := submit(sandbox, "--gpus-per-node=1")), "the job to run")
    run = run_of(seen, job)
    for other in (
        Run(job, run.start_s + 1, run.restarts),
        Run(job, run.start_s, run.restarts + 1),
    ):
        with pytest.raises(ClusterError, match="not in the run that was chosen"):
            cluster.apply(Requeue(handover_id=HANDOVER, run=other, why=WHY))
    assert run_of(cluster.observe(), job) == run

    cluster.apply(Requeue(handover_id=HANDOVER, run=run, why=WHY))
    seen = until(lambda s: state(s, job) is JobState.PENDING, "the job to be pending")
    assert seen.jobs.held[row(seen, job)] == Held.BEGIN_TIME
    cluster.apply(Requeue(handover_id=HANDOVER, run=run, why=WHY))
    assert cluster.observe().jobs.restarts[row(seen, job)] == run.restarts + 1

    with pytest.raises(ClusterError, match="is gone"):
        cluster.apply(Requeue(handover_id=HANDOVER, run=Run(JobId(999_999), 1.0, 0), why=WHY))


def test_job_that_its_owner_withdraws_is_left_alone(
    sandbox: Sandbox, cluster: SlurmCluster, until: Until
) -> None:
    """Once Requeue=0 is set it is neither told to save and end nor requeued."""
    seen = until(is_running(job := submit(sandbox, script=TRAPS)), "the job to run")
    run = run_of(seen, job)
    sandbox.run(["scontrol", "update", f"JobId={job}", "Requeue=0"])

    for action in (signal(run, "full"), Requeue(handover_id=HANDOVER, run=run, why=WHY)):
        with pytest.raises(ClusterError, match=f"job {job} may not be requeued any more"):
            cluster.apply(action)

    seen = cluster.observe()
    assert run_of(seen, job) == run
    assert state(seen, job) is JobState.RUNNING
    assert not seen.jobs.requeueable[row(seen, job)]


def test_finished_job_is_never_run_again(
    sandbox: Sandbox, cluster: SlurmCluster, until: Until
) -> None:
    """A job that completes during its grace stays completed."""
    job = submit(sandbox, script="#!/bin/sh\nsleep 2\n")
    run = run_of(until(is_running(job), "the job to run"), job)
    until(lambda s: state(s, job) is JobState.COMPLETED, "the job to be complete")

    with pytest.raises(ClusterError, match="not in the run that was chosen"):
        cluster.apply(Requeue(handover_id=HANDOVER, run=run, why=WHY))

    assert state(cluster.observe(), job) is JobState.COMPLETED


def send(cluster: SlurmCluster, action: Signal) -> None:
    """Signal a job, and wait for slurmctld's answer."""
    finish = cluster.apply(action)
    assert finish is not None
    assert finish(30.0)


def test_signal_reaches_whom_the_contract_names(
    sandbox: Sandbox, cluster: SlurmCluster, until: Until, eventually: Eventually
) -> None:
    """The batch script, the steps, or both; of an array the one task; never another run."""
    array = submit(sandbox, "--array=0-2", "--gpus-per-node=1", script=TRAPS)
    seen = until(lambda s: (s.jobs.state == JobState.RUNNING).sum() == 3, "three tasks to run")
    folder = sandbox.jobs_directory
    runs = [run_of(seen, labels(seen)[f"{array}_{task}"]) for task in range(3)]
    ready = [folder / f"ready.{run.job_id}" for run in runs]
    eventually(lambda: all(path.exists() for path in ready), 30.0, what="the traps to be set")

    def told(run: Run) -> list[str]:
        path = folder / f"told.{run.job_id}"
        return sorted(path.read_text(encoding="ascii").split()) if path.exists() else []

    other = Run(runs[0].job_id, runs[0].start_s, 1)
    with pytest.raises(ClusterError, match="not in the run that was chosen"):
        cluster.apply(signal(other, "full"))
    send(cluster, signal(runs[0], "batch"))
    eventually(lambda: told(runs[0]) == ["batch"], 10.0, what="the batch script to be told")
    send(cluster, signal(runs[1], "steps"))
    eventually(lambda: told(runs[1]) == ["step"], 10.0, what="the step to be told")
    send(cluster, signal(runs[2], "full"))
    eventually(lambda: told(runs[2]) == ["batch", "step"], 10.0, what="both to be told")

    assert [told(run) for run in runs] == [["batch"], ["step"], ["batch", "step"]]
    assert is_running(*[run.job_id for run in runs])(cluster.observe())


def signal(run: Run, target: str) -> Signal:
    return Signal(handover_id=HANDOVER, run=run, signal="USR1", target=target, why=WHY)


def reserve(nodes: tuple[str, ...], duration_s: float = 600.0) -> Reserve:
    return Reserve(
        handover_id=HANDOVER, nodes=nodes, uids=(os.getuid(),), duration_s=duration_s, why=WHY
    )


def unseal(name: str = OURS) -> Unseal:
    return Unseal(name=name, handover_id=HANDOVER, why=WHY)


def test_sealed_hand_over(
    sandbox: Sandbox, cluster: SlurmCluster, until: Until, eventually: Eventually
) -> None:
    """Freed GPUs go to the attached job and not to those before it; the seal lapses by itself."""
    victims = [submit(sandbox, f"-wn{n}", "--gpus-per-node=4") for n in (1, 2, 3, 4)]
    seen = until(is_running(*victims), "the victims to run")
    others = [submit(sandbox, "--gpus-per-node=1") for _ in range(3)]
    wanted = submit(sandbox, "-N2", "--gpus-per-node=4")
    cluster.observe()
    cluster.watch_reservations = True

    cluster.apply(reserve(("n1", "n2"), 61.0))
    cluster.apply(reserve(("n1", "n2"), 61.0))
    cluster.apply(Attach(handover_id=HANDOVER, job_id=wanted, why=WHY))
    seen = cluster.observe()
    assert seen.reserved == {wanted: OURS}
    assert [r.name for r in seen.reservations] == [OURS]
    assert 61 < seen.reservations[0].end_s - seen.now_s <= 121
    assert seen.nodes.up.all()

    cluster.apply(Requeue(handover_id=HANDOVER, run=run_of(seen, victims[0]), why=WHY))
    until(lambda s: state(s, victims[0]) is JobState.PENDING, "the first victim to be gone")
    cluster.apply(Requeue(handover_id=HANDOVER, run=run_of(seen, victims[1]), why=WHY))
    seen = until(is_running(wanted), "the beneficiary to run")
    assert all(state(seen, job) is JobState.PENDING for job in others)

    cluster.apply(Detach(job_id=wanted, why=WHY))
    assert cluster.observe().reserved == {wanted: OURS}
    cluster.apply(unseal())
    seen = cluster.observe()
    assert seen.reservations[0].end_s - seen.now_s <= 10
    assert is_running(wanted)(seen)
    eventually(lambda: not cluster.observe().reservations, 150.0, what="the reservation to lapse")
    assert is_running(wanted)(cluster.observe())
    cluster.apply(unseal())


def test_detached_job_waits_like_any_other(
    sandbox: Sandbox, cluster: SlurmCluster, until: Until
) -> None:
    """Attach and Detach set and clear the name of the pending record, whole arrays too."""
    until(is_running(submit(sandbox, "-N4", "--exclusive")), "the cluster to be full")
    plain = submit(sandbox, "-N4", "--gpus-per-node=4")
    array = submit(sandbox, "-H", "--array=0-9:3", "-N4")
    before = labels(cluster.observe())
    cluster.apply(reserve(("n4",)))
    cluster.apply(Attach(handover_id=HANDOVER, job_id=plain, why=WHY))
    cluster.apply(Attach(handover_id=HANDOVER, job_id=array, why=WHY))
    assert cluster.observe().reserved == {plain: OURS, array: OURS}

    for _ in range(2):
        cluster.apply(Detach(job_id=plain, why=WHY))
        cluster.apply(Detach(job_id=array, why=WHY))
    cluster.apply(Detach(job_id=JobId(999_999), why=WHY))

    seen = cluster.observe()
    assert seen.reserved == {}
    assert labels(seen) == before
    cluster.watch_reservations = True
    cluster.apply(unseal())
    assert cluster.observe().reservations == ()
    cluster.apply(unseal())


def test_standing_reservation_must_be_the_one_wanted(
    sandbox: Sandbox, cluster: SlurmCluster
) -> None:
    """Of that name, but over other nodes or not active yet, it is no success."""
    cluster.observe()
    cluster.watch_reservations = True
    cluster.apply(reserve(("n1", "n2", "n4")))
    cluster.apply(reserve(("n4", "n2", "n1")))
    with pytest.raises(ClusterError, match=r"it also has n4$"):
        cluster.apply(reserve(("n1", "n2")))
    with pytest.raises(ClusterError, match=r"it also has n4; it lacks n3$"):
        cluster.apply(reserve(("n1", "n2", "n3")))
    cluster.apply(unseal())

    create = ["scontrol", "create", "reservation", f"ReservationName={OURS}"]
    sandbox.run([*create, "StartTime=now+1hour", "Duration=5", "Nodes=n[1-2]", "Users=root"])
    with pytest.raises(ClusterError, match=r"it is not active$"):
        cluster.apply(reserve(("n1", "n2")))


def test_reservation_is_made_for_those_users_that_have_a_name(
    sandbox: Sandbox, cluster: SlurmCluster
) -> None:
    """A uid without a name here is left out; with no name left there is no reservation."""
    nobody = 4_000_000_111
    base = reserve(("n1",))
    cluster.apply(replace(base, uids=(nobody, *base.uids)))
    shown = sandbox.run(["scontrol", "show", "reservation", "--oneliner", OURS]).stdout
    assert " Users=root " in shown
    cluster.apply(unseal())

    with pytest.raises(ClusterError, match=f"for nobody: uid {nobody} has no user name"):
        cluster.apply(replace(base, uids=(nobody,)))
    assert OURS not in sandbox.run(["scontrol", "show", "reservation"]).stdout


def test_lapsed_reservation_leaves_nobody_held(
    sandbox: Sandbox, cluster: SlurmCluster, until: Until
) -> None:
    """Slurm must not hold the jobs that still wait when the reservation is gone."""
    until(is_running(submit(sandbox, "-N4", "--exclusive")), "the cluster to be full")
    wanted = submit(sandbox, "-N4", "--gpus-per-node=4")
    cluster.observe()
    cluster.apply(reserve(("n1",)))
    cluster.apply(Attach(handover_id=HANDOVER, job_id=wanted, why=WHY))

    sandbox.run(["scontrol", "update", f"ReservationName={OURS}", "EndTime=now+2"])

    seen = until(lambda s: not s.reserved, "the job to lose the reservation")
    assert seen.jobs.held[row(seen, wanted)] == Held.NO
    assert seen.jobs.priority[row(seen, wanted)] > 0


def test_only_our_reservations_are_ever_touched(sandbox: Sandbox, cluster: SlurmCluster) -> None:
    """A name that does not begin as ours is refused, whatever it is."""
    create = ["scontrol", "create", "reservation", "ReservationName=course", "StartTime=now"]
    sandbox.run([*create, "Duration=5", "Nodes=n4", "Users=root", "Flags=IGNORE_JOBS"])
    try:
        for name in ("course", "slurm_dl_7,course", "slurm_dl_7 course", "slurm_dl_", ""):
            with pytest.raises(ClusterError, match="not ours"):
                cluster.apply(unseal(name))
        with pytest.raises(ClusterError, match="overlaps"):
            cluster.apply(reserve(("n3", "n4")))
        seen = cluster.observe()
        assert seen.reservations == ()
        assert seen.nodes.up.tolist() == [True, True, True, False]
    finally:
        sandbox.run(["scontrol", "delete", "ReservationName=course"])


def test_release_all_gives_the_cluster_back(
    sandbox: Sandbox, slurm: Slurm, cluster: SlurmCluster, until: Until
) -> None:
    """SiteFactors, reservation names and reservations go; a second time nothing is left to do."""
    until(is_running(running := submit(sandbox, "-N4", "--exclusive")), "the job to run")
    array = submit(sandbox, "--array=0-30:10", "--gpus-per-node=1")
    held = submit(sandbox, "-H")
    cluster.observe()
    for job, value in ((running, 9000), (array, 8000), (held, 7000)):
        cluster.apply(SetSiteFactor(job_id=job, value=value, why=WHY))
    cluster.apply(reserve(("n1",)))
    cluster.apply(Attach(handover_id=HANDOVER, job_id=array, why=WHY))

    assert list(release_all(slurm, ["other"])) == [
        f"job {array}_[0-30:10]: ReservationName=",
        f"reservation {OURS}: deleted",
    ]
    seen = cluster.observe()
    assert sorted(release_all(slurm, ["gpu"])) == sorted(
        f"job {seen.texts[job].label}: SiteFactor=0" for job in (running, array, held)
    )

    # sprio names neither running nor held jobs: of those it is not known that they have been done.
    again = set(release_all(slurm, ["gpu"]))
    assert again <= {f"job {seen.texts[job].label}: SiteFactor=0" for job in (running, array, held)}
    sandbox.run(["scontrol", "release", str(held)])
    now = priorities(sandbox, running, array, held)
    assert all(priority < 7000 for priority in now.values())
    assert cluster.observe().reserved == {}


def test_text_of_users_forges_nothing(sandbox: Sandbox, cluster: SlurmCluster) -> None:
    """Newlines, bars, separators of an older call, escapes and broken UTF-8 stay in their field."""
    old = "x" + secrets.token_hex(5)[:9]
    forged = f"9{old}f9{old}fRUNNING{old}r\n9|9|RUNNING\n"
    texts = {
        "a\nb|c": forged,
        forged: "x" * 1024,
        "\x1b[2Jgone": '{"slurm_dl":{"sig":"USR1"}}\n' + forged,
        "\udcff\udcc3(": "\udcff\udcfe",
    }
    jobs = [
        submit(sandbox, "-H", f"--job-name={name}", f"--comment={comment}")
        for name, comment in texts.items()
    ]

    seen = cluster.observe()

    pending = seen.jobs.job_id[seen.jobs.state == JobState.PENDING]
    assert sorted(pending.tolist()) == sorted(jobs)
    assert not (seen.jobs.state == JobState.RUNNING).any()
    assert seen.unreadable == 0
    assert not any(seen.claim(job).contract for job in jobs)
    assert seen.texts[jobs[0]].name == "a\\nb|c"
    assert seen.texts[jobs[2]].name == "\\x1b[2Jgone"
    assert all(text.name.isprintable() for text in seen.texts.values())


@pytest.fixture
def rpcs(sandbox: Sandbox) -> Callable[[], dict[str, int]]:
    """Read RPCs since the last call, by name; sdiag's own not counted."""

    def count() -> dict[str, int]:
        text = sandbox.run(["sdiag"]).stdout.partition("by message type")[2].partition("by user")[0]
        sandbox.run(["sdiag", "--reset"])
        found = re.findall(r"(REQUEST_\w+)\s*\(\s*\d+\)\s*count:(\d+)", text)
        ours = {name: int(n) for name, n in found if name != "REQUEST_STATS_INFO"}
        return {name: n for name, n in ours.items() if not name.startswith("REQUEST_COMPLETE")}

    return count


def test_idle_poll_costs_two_rpcs(
    sandbox: Sandbox,
    cluster: SlurmCluster,
    until: Until,
    rpcs: Callable[[], dict[str, int]],
) -> None:
    """The budget is three read RPCs a poll: the queue is two, watched reservations one more."""
    until(is_running(submit(sandbox, "--gpus-per-node=1")), "the job to run")
    submit(sandbox, "-H")
    cluster.observe()
    rpcs()

    cluster.observe()
    assert rpcs() == {"REQUEST_JOB_INFO": 1, "REQUEST_PARTITION_INFO": 1}

    cluster.watch_reservations = True
    cluster.observe()
    assert sum(rpcs().values()) == 3

    cluster.refresh_nodes()
    assert sum(rpcs().values()) == 8, "nodes and partitions thrice, reservations; settings are two"

    cluster.watch_reservations = False
    cluster.observe()
    assert sum(rpcs().values()) == 4
    cluster.observe()
    assert sum(rpcs().values()) == 2
    waiting = submit(sandbox, "-H")
    rpcs()
    seen = cluster.observe()
    assert sum(rpcs().values()) == 4

    cluster.look_again(seen, frozenset(), nodes=True)
    assert sum(rpcs().values()) == 4, "nodes, partitions twice, reservations"
    cluster.look_again(seen, frozenset({waiting}), nodes=False)
    assert sum(rpcs().values()) == 2, "its conditions are known; scontrol asks for it alone"

    cluster.apply(reserve(("n1",)))
    cluster.watch_reservations = True
    rpcs()
    cluster.observe()
    assert sum(rpcs().values()) == 5, "the nodes of our reservation"
    cluster.apply(unseal())


def test_conditions_with_large_numbers_are_read(sandbox: Sandbox, cluster: SlurmCluster) -> None:
    """Else a user who asks for thousands of CPUs twice could fail each poll."""
    jobs = [submit(sandbox, "-H", "--mincpus=2048", "--tmp=4096") for _ in range(2)]
    seen = cluster.observe()
    assert not any(seen.choices[job].any() for job in jobs), "no node has so much disk"
    assert [int(seen.jobs.cpus[row(seen, job)]) for job in jobs] == [2048, 2048]


def test_uneven_split_is_the_real_one(
    sandbox: Sandbox, cluster: SlurmCluster, until: Until, rpcs: Callable[[], dict[str, int]]
) -> None:
    """GPUs asked for in all are counted where they are, at one more RPC and only once."""
    until(is_running(submit(sandbox, "-wn2", "--gpus-per-node=3")), "the filler to run")
    seen = until(is_running(job := submit(sandbox, "-N2", "-wn2,n3", "--gpus=4")), "it to run")
    mine = seen.held.job == row(seen, job)

    names = [seen.nodes.name[node] for node in seen.held.node[mine]]
    assert dict(zip(names, seen.held.gpus[mine].tolist(), strict=True)) == {"n2": 1.0, "n3": 3.0}

    rpcs()
    cluster.observe()
    assert sum(rpcs().values()) == 2


def test_dead_controller_is_an_error_and_never_an_empty_cluster(
    sandbox: Sandbox, slurm: Slurm, cluster: SlurmCluster
) -> None:
    """Nothing is read, nothing is taken as done; once it is back everything is there."""
    job = submit(sandbox, "-H")
    before = cluster.observe()
    attempts = [
        cluster.observe,
        cluster.refresh_nodes,
        cluster.site_factors,
        lambda: job_now(slurm, job),
        lambda: cluster.apply(SetSiteFactor(job_id=job, value=1, why=WHY)),
        lambda: cluster.apply(reserve(("n1",))),
        lambda: cluster.apply(Detach(job_id=job, why=WHY)),
        lambda: cluster.apply(Requeue(handover_id=HANDOVER, run=Run(job, 1.0, 0), why=WHY)),
        lambda: cluster.apply(signal(Run(job, 1.0, 0), "batch")),
        lambda: cluster.apply(unseal()),
    ]
    sandbox.stop_daemon("slurmctld")
    try:
        # Side by side: Slurm's tools try for several seconds before they give up.
        with ThreadPoolExecutor(len(attempts)) as threads:
            errors = [thread.exception() for thread in [threads.submit(a) for a in attempts]]
        assert [type(error) for error in errors] == [ClusterError] * len(attempts)
        assert "squeue" in str(errors[0])
        assert "Unable to contact slurm controller" in str(errors[0])
    finally:
        sandbox.start_daemon("slurmctld")

    after = cluster.observe()
    assert after.jobs.job_id.tolist() == before.jobs.job_id.tolist()
    assert job_now(slurm, JobId(999_999)) is None
