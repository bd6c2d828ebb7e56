"""The environment of a job that has fewer nodes than its batch script began with."""

from __future__ import annotations

import pytest

from slurm_dl.job.controller import CallFailedError, JobStatus
from slurm_dl.job.in_place import may_shrink, on_fewer, wait_for_fewer

THREE = {
    "SLURM_JOB_NODELIST": "n[1-3]",
    "SLURM_NODELIST": "n[1-3]",
    "SLURM_JOB_NUM_NODES": "3",
    "SLURM_NNODES": "3",
    "SLURM_NTASKS": "4",
    "SLURM_NPROCS": "4",
    "SLURM_TASKS_PER_NODE": "1(x2),2",
    "SLURM_JOB_CPUS_PER_NODE": "2(x3)",
    "SLURM_GPUS_PER_NODE": "2",
    "SLURM_GPUS_ON_NODE": "2",
    "SLURM_HOSTFILE": "/run/slurm_dl.ranks",
    "HOME": "/home/u",
}
"""As Slurm 22.05.8 says it to a batch script on three nodes, the last of which has two tasks."""


@pytest.mark.parametrize(
    ("nodes", "count", "tasks", "tasks_in_all", "cpus"),
    [
        ("n1", "1", "1", "1", "2"),
        ("n[1-2]", "2", "1(x2)", "2", "2(x2)"),
        ("n[1,3]", "2", "1,2", "3", "2(x2)"),
        *((same, "", "", "", "") for same in ("n[1-3]", "", "(null)", "n4", "n[1,4]", "n[1-4]")),
    ],
)
def test_what_is_said_anew(
    nodes: str, count: str, tasks: str, tasks_in_all: str, cpus: str
) -> None:
    """Every variable by which srun goes; nothing where the nodes are not fewer of the same."""
    expected = {
        "SLURM_JOB_NODELIST": nodes,
        "SLURM_NODELIST": nodes,
        "SLURM_JOB_NUM_NODES": count,
        "SLURM_NNODES": count,
        "SLURM_TASKS_PER_NODE": tasks,
        "SLURM_JOB_CPUS_PER_NODE": cpus,
        "SLURM_NTASKS": tasks_in_all,
        "SLURM_NPROCS": tasks_in_all,
    }
    assert on_fewer(THREE, nodes) == (expected if count else {})


@pytest.mark.parametrize(
    ("comment", "nodes", "may"),
    [
        ('{"slurm_dl":{"v":1,"in_place":1}}', "n[1-3]", True),
        ('{"slurm_dl":{"v":1,"in_place":1}}', "n1", False),
        ('{"slurm_dl":{"v":1,"in_place":"1"}}', "n[1-3]", False),
        ('{"slurm_dl":{"v":1}}', "n[1-3]", False),
        ("in_place", "n[1-3]", False),
    ],
)
def test_only_who_says_so_looks_at_its_nodes(comment: str, nodes: str, *, may: bool) -> None:
    """Others ask Slurm nothing more than before."""
    standing = JobStatus("RUNNING", None, comment)
    assert may_shrink(standing, {"SLURM_JOB_NODELIST": nodes}) == may


class Controller:
    """Slurm: silent at first, then all nodes, then one."""

    def __init__(self) -> None:
        self._answers = iter(["", "n[1-3]", "n1", "n1"])

    def nodes(self) -> str:
        """The next answer."""
        answer = next(self._answers)
        if not answer:
            msg = "squeue did not answer within 10 s"
            raise CallFailedError(msg)
        return answer


@pytest.mark.parametrize("ended", [False, True])
def test_it_looks_until_it_has_fewer(*, ended: bool) -> None:
    """Not if dlrun is told to end meanwhile. Where the ranks are not known it asks again."""
    pauses, ranks = iter([False, ended, False]), iter([None, {"R": "1"}])
    after = wait_for_fewer(
        Controller(),  # type: ignore[arg-type]
        THREE,
        lambda _: next(ranks),
        until_s=float("inf"),
        pause=lambda _: next(pauses),
        log=lambda _: None,
    )
    if ended:
        assert after == {}
    else:
        assert (after["SLURM_NNODES"], after["HOME"], after["R"]) == ("1", "/home/u", "1")
        assert "SLURM_HOSTFILE" not in after
