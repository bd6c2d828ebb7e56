"""The contract, held against a Slurm on this host through the command-line reader.

tests/docker holds other releases, and the other reader, to the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from contract.actions import ON_SLURM, size, state_of, steer, told, until
from contract.filling import cases_of, fill, own_cluster, release_of
from contract.on_slurm import OnSlurm, backend, wrong_action, wrong_jobs
from contract.subject import CLAIM, SMALL

from slurm_dl.model.ids import JobId
from slurm_dl.model.plan import SetSteer
from slurm_dl.model.snapshot import Observed
from slurm_dl.slurm.tool_runner import Slurm
from slurm_dl.slurm.write.release_all import release_all

pytestmark = pytest.mark.slurm


@pytest.fixture(scope="module")
def subject() -> Iterator[OnSlurm]:
    """A small cluster that each action finds empty."""
    with own_cluster(SMALL) as box, backend(box, "cli") as cluster:
        yield OnSlurm(box, cluster)


def test_jobs_are_reported_as_they_were_submitted() -> None:
    """All cases stand in one cluster and are right, field by field, in one observation."""
    with own_cluster() as box, backend(box, "cli") as cluster:
        cases = cases_of(release_of(box))
        problems, _ = wrong_jobs(cluster, cases, fill(box, cases))

    assert {name: wrong for name, wrong in problems.items() if wrong} == {}


@pytest.mark.parametrize("name", ON_SLURM)
def test_action(subject: OnSlurm, name: str) -> None:
    """Each action does what it must, and is refused when it must be."""
    assert wrong_action(subject, name) == []


def tasks(seen: Observed, array: JobId) -> dict[str, str]:
    """The state of each listed record of an array, by its label."""
    head = f"{array}_"
    found = [job for job, text in seen.texts.items() if text.label.startswith(head)]
    return {seen.texts[job].label: state_of(seen, job) for job in found}


def test_steer_of_a_pending_array_is_of_all_its_tasks(subject: OnSlurm) -> None:
    """It is not split by it, tasks that run are not touched, and those that start obey it."""
    subject.empty()
    array = subject.submit("--array=1-4", "-N1", "--gpus-per-node=3", CLAIM)
    subject.until(lambda s: tasks(s, array).get(f"{array}_[3-4]") == "PENDING", "two tasks to run")
    first = next(j for j, t in subject.observe().texts.items() if t.label == f"{array}_1")

    subject.apply(steer(array, "n1"))

    seen = subject.observe()
    assert tasks(seen, array) == {
        f"{array}_1": "RUNNING",
        f"{array}_2": "RUNNING",
        f"{array}_[3-4]": "PENDING",
    }
    assert told(subject, array)["excluded"] == ["n1"]
    subject.cancel_task(array, 1)
    subject.cancel_task(array, 2)
    until(subject, first, "FAILED")
    seen = subject.until(
        lambda s: "RUNNING" in (tasks(s, array).get(f"{array}_{n}") for n in (3, 4)),
        "a task to start",
    )
    third = next(
        j
        for j, t in seen.texts.items()
        if t.label in (f"{array}_3", f"{array}_4") and state_of(seen, j) == "RUNNING"
    )
    assert told(subject, third)["split"] == {"n2": 3.0}


@pytest.mark.parametrize("ledger", [True, False])
def test_release_all_leaves_the_owners_exclusions(subject: OnSlurm, ledger: bool) -> None:  # noqa: FBT001 - drawn
    """By the ledger, or by how ours are written; what was put off may start."""
    subject.empty()
    job = subject.submit("-H", "-N1", "-xn1")
    plain = subject.submit("-H", "-N1")
    subject.observe()
    soon_s = subject.observe().now_s + 900
    actions = [
        steer(job, "n2", own=("n1",)),
        steer(plain, "n2", not_before_s=soon_s),
    ]
    for action in actions:
        subject.apply(action)

    lines = released(subject, [a for a in actions if ledger])

    assert f"job {job}: ExcNodeList=n1" in lines
    more = " StartTime=now" if ledger else ""
    assert f"job {plain}: ExcNodeList={more}" in lines
    subject.refresh()
    assert [told(subject, j)["excluded"] for j in (job, plain)] == [["n1"], []]
    assert [line for line in released(subject, []) if "ExcNodeList" in line] == []


def test_release_all_gives_the_size_asked_for_back(subject: OnSlurm) -> None:
    """To who waits in another, with its CPUs; and the second time there is nothing to do."""
    subject.empty()
    claim = '--comment={"slurm_dl":{"v":1,"sig":"USR1","sizes":"1x1,2x2","asked":"1x1"}}'
    job = subject.submit("-H", "--gpus-per-node=a100:1", "-c2", claim)
    subject.apply(size(job, "2x2", cpus=4))
    is_now = told(subject, job)
    assert (is_now["n_nodes"], is_now["gpus"]) == (2, 4)

    assert f"job {job}: size 1x1" in released(subject, [])
    subject.refresh()

    is_now = told(subject, job)
    assert (is_now["n_nodes"], is_now["gpus"], is_now["cpus"]) == (1, 1, 2)
    assert not [line for line in released(subject, []) if "size" in line]


def released(subject: OnSlurm, actions: list[SetSteer]) -> list[str]:
    """What release-all says, with the steers of *actions* in the ledger."""
    since_s = subject.observe().now_s + 5
    steers = [dataclasses.replace(action.steer, since_s=since_s) for action in actions]
    slurm = Slurm(slurm_conf=Path(subject.slurm_conf))
    return list(release_all(slurm, ["gpu"], steers=steers))


def test_a_job_holds_what_it_was_given_not_what_it_shows(subject: OnSlurm) -> None:
    """22.05 takes the update and shows it, and starts the job with the GPUs it asked for before."""
    subject.empty()
    job = subject.submit("-H", "--gpus-per-node=2", "--comment=Nodes=n1 CPU_IDs=0 Mem=0 GRES= ")
    subject.scontrol("update", f"JobId={job}", "TresPerNode=gres/gpu:1")
    subject.scontrol("release", str(job))

    seen = subject.until(
        lambda s: state_of(s, job) == "RUNNING" and s.jobs.gpus[s.jobs.row_of()[job]] == 2,
        "two GPUs",
    )

    assert "gpu:1 " in subject.scontrol("show", "job", str(job)).replace("\n", " ")
    assert list(told(subject, job)["split"].values()) == [2]
    assert seen.held.gpus.sum() == 2
