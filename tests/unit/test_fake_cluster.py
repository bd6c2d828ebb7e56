"""The cluster in memory, where the contract says nothing: jobs that may lie on several nodes."""

from __future__ import annotations

import pytest
from fake_cluster import FakeCluster
from native_qos import NativeQos, WithinCluster

from slurm_dl.model.errors import ClusterError
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobState


def on(cluster: FakeCluster, job: JobId) -> dict[str, float]:
    """GPUs of a job by node."""
    seen = cluster.observe()
    mine = seen.held.job == seen.jobs.row_of()[job]
    nodes = [seen.nodes.name[n] for n in seen.held.node[mine].tolist()]
    return dict(zip(nodes, seen.held.gpus[mine].tolist(), strict=True))


def test_job_with_a_range_takes_the_fewest_nodes_that_hold_it_evenly() -> None:
    """One node where there is one, else fragments; counted by what it really holds."""
    cluster = FakeCluster(nodes=3, gpus=4)
    first = cluster.submit(4, work_s=9, most_nodes=3)
    cluster.advance(1)
    assert on(cluster, first) == {"n1": 4.0}
    for node in ("n2", "n3"):
        cluster.submit(2, work_s=99, nodes=[node])
    second = cluster.submit(4, work_s=99, most_nodes=3)
    fixed = cluster.submit(4, work_s=99)
    cluster.advance(1)

    seen = cluster.observe()

    assert on(cluster, second) == {"n2": 2.0, "n3": 2.0}
    assert seen.claim(second).most_nodes == 3
    assert seen.jobs.n_nodes.tolist()[seen.jobs.row_of()[second]] == 2
    assert on(cluster, fixed) == {}
    third = cluster.submit(3, work_s=99, most_nodes=2)
    cluster.cancel(fixed)
    cluster.advance(1)
    assert cluster.jobs[third].state is JobState.PENDING, "3 GPUs are no even split of 2 nodes"
    cluster.advance(9)
    assert on(cluster, third) == {"n1": 3.0}


def test_owner_may_change_what_a_waiting_job_excludes() -> None:
    """Not of one that runs; and only nodes that there are."""
    cluster = FakeCluster(nodes=2, gpus=4)
    job = cluster.submit(4, work_s=99, exclude=["n1", "n2"])
    cluster.advance(1)
    assert on(cluster, job) == {}
    with pytest.raises(ClusterError, match="no node n9"):
        cluster.exclude(job, "n9")

    cluster.exclude(job, "n1")
    cluster.advance(1)

    assert on(cluster, job) == {"n2": 4.0}
    with pytest.raises(ClusterError, match="no longer pending"):
        cluster.exclude(job)


def test_nobody_is_displaced_on_nodes_that_a_job_excludes() -> None:
    """The job could not start there all the same."""
    cluster = WithinCluster(nodes=2, gpus=4, within=NativeQos(exempt_s=0))
    victim = cluster.submit(4, work_s=99, qos="dl", nodes=["n1"])
    cluster.submit(4, work_s=99, nodes=["n2"])
    cluster.advance(5)
    better = cluster.submit(4, work_s=99, qos="dl", exclude=["n1"])
    cluster.jobs[better].site_factor = 1_000_000
    cluster.advance(5)

    assert cluster.displaced == []
    cluster.exclude(better)
    cluster.advance(1)
    assert [d.victim for d in cluster.displaced] == [victim]
