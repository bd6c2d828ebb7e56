"""Writes that change the request of a pending job."""

from __future__ import annotations

from dataclasses import replace

import pytest
from squeue_records import RUNNING, answer

from slurm_dl.model.errors import ClusterError
from slurm_dl.model.ids import JobId
from slurm_dl.model.plan import Reshape, Trim
from slurm_dl.model.shape import Shape
from slurm_dl.slurm.tool_runner import Slurm
from slurm_dl.slurm.write.release_all import asked_again
from slurm_dl.slurm.write.request_changes import change_request

WAITS = RUNNING | {
    "JobID": "7",
    "JobArrayID": "7",
    "State": "PENDING",
    "NumCPUs": "4",
    "tres-alloc": "cpu=4,mem=8G,node=1,billing=4",
    "tres-per-node": "gres:gpu:1",
}


class OneJob(Slurm):
    """Lists one record and keeps what is written."""

    def __init__(self, record: dict[str, str]) -> None:
        self._record = record
        self.done: list[str] = []

    def run(self, tool: str, *args: str) -> str:
        """The record."""
        if tool == "squeue":
            return answer(args, [self._record])
        self.done.append(" ".join(args))
        return ""


def written(action: Trim | Reshape, fields: dict[str, str]) -> list[str]:
    slurm = OneJob(WAITS | fields)
    change_request(slurm, action)
    return slurm.done


def size(shape: str, cpus: int = 0, mem_mb: int = 0) -> Reshape:
    return Reshape(job_id=JobId(7), shape=Shape.of(shape), cpus=cpus, mem_mb=mem_mb, why="test")


def trim(cpus: int, mem_mb: int = 0) -> Trim:
    return Trim(job_id=JobId(7), cpus=cpus, mem_mb=mem_mb, why="test")


TYPED = {"tres-per-node": "gres/gpu:a100:1,gres/nvme:2"}
TWO_TASKS = {"NumTasks": "2"}


@pytest.mark.parametrize(
    ("action", "fields", "settings"),
    [
        (
            size("2x2", cpus=8, mem_mb=32000),
            {},
            (
                "NumNodes=2-2 Gres=gpu:2 NumTasks=2 TasksPerNode=1 "
                "NumCPUs=16 CPUsPerTask=8 MinCPUsNode=8 MinMemoryNode=32000"
            ),
        ),
        # All of it also where nothing else is to change; the type and other GRES stay.
        (
            size("1x1"),
            TYPED,
            (
                "NumNodes=1-1 Gres=gpu:a100:1,nvme:2 NumTasks=1 TasksPerNode=1 "
                "NumCPUs=4 CPUsPerTask=4 MinCPUsNode=4"
            ),
        ),
        # Releases from 24.11 on show --cpus-per-task there.
        (
            size("1x2"),
            {"tres-per-task": "cpu=4"},
            (
                "NumNodes=1-1 Gres=gpu:2 NumTasks=1 TasksPerNode=1 "
                "NumCPUs=4 CPUsPerTask=4 MinCPUsNode=4"
            ),
        ),
        # squeue shows three nodes of a pending job that asks for two.
        (
            size("1x4"),
            {"NumNodes": "3", "NumTasks": "4", "NumCPUs": "8", "tres-alloc": "cpu=8,node=2"},
            (
                "NumNodes=1-1 Gres=gpu:4 NumTasks=2 TasksPerNode=2 "
                "NumCPUs=4 CPUsPerTask=2 MinCPUsNode=4"
            ),
        ),
        (trim(2), TWO_TASKS, "NumCPUs=2 CPUsPerTask=1 MinCPUsNode=2"),
        (trim(4, 1000), {}, "MinMemoryNode=1000"),
        (trim(4), {}, ""),
        (size("2x2"), {"State": "RUNNING"}, ""),
        (trim(1), {"State": "RUNNING"}, ""),
    ],
)
def test_one_update_or_none(action: Trim | Reshape, fields: dict[str, str], settings: str) -> None:
    """The whole of a size; of a cut what is less; nothing of a job that does not wait."""
    assert written(action, fields) == ([f"update JobId=7 {settings}"] if settings else [])


@pytest.mark.parametrize(
    ("per_node", "updates", "gres"),
    [
        ("gres:gpu:2", 2, "gpu:v100:2"),
        ("N/A", 2, "gpu:v100:2"),
        ("gres:gpu:a100:2", 1, "gpu:a100:2"),
    ],
)
def test_a_type_is_added_once_the_request_is_taken_away(
    per_node: str, updates: int, gres: str
) -> None:
    """Also if that is all that an earlier write did; a type that its owner named stays."""
    action = replace(size("1x2"), gpu_type="v100")

    done = written(action, {"tres-per-node": per_node})

    assert done[: updates - 1] == ["update JobId=7 TresPerNode="] * (updates - 1)
    assert len(done) == updates
    assert f" Gres={gres} " in done[-1]


@pytest.mark.parametrize(
    ("action", "fields", "why"),
    [
        (size("1x2"), {"tres-per-node": "N/A", "tres-per-job": "gres:gpu:1"}, "by --gpus,"),
        (size("1x2"), {"tres-per-node": "N/A", "tres-per-task": "gres:gpu:1"}, "--gpus-per-task"),
        (size("1x2"), {"tres-per-task": "cpu=1,gres/gpu=1"}, "--gpus-per-task"),
        (size("1x2"), {"tres-per-socket": "gres:gpu:1"}, "--gpus-per-socket"),
        (size("1x2"), {"tres-per-node": "N/A"}, "no GPUs"),
        (size("1x2"), {"tres-per-node": "gres:gpu:a:1,gres:gpu:b:1"}, "one kind"),
        (size("1x2"), {"tres-per-node": "gres:gpu:1,gres:shard:1"}, "one kind"),
        (size("1x2"), {"NumTasks": "3", "tres-alloc": "cpu=4,node=2"}, "3 tasks on 2 nodes"),
        (size("1x2", cpus=3), TWO_TASKS, "3 CPUs a node do not go into 2 tasks"),
        (trim(1), TWO_TASKS, "1 CPUs a node do not go into 2 tasks"),
        (size("1x2"), {"JobArrayID": "7_[1-3]"}, "by itself"),
        (size("1x2"), {"JobID": "8"}, "by itself"),
        (size("1x2"), {"NumTasks": "many"}, "cannot be read"),
    ],
)
def test_what_cannot_be_changed_is_refused(
    action: Trim | Reshape, fields: dict[str, str], why: str
) -> None:
    """By name, and before anything is written."""
    with pytest.raises(ClusterError, match=why):
        written(action, fields)


ELASTIC = '{"slurm_dl":{"v":1,"sig":"USR2","sizes":"1x1,1x2,2x2","asked":"1x1"}}'
WIDE = ["3", "16", "cpu=16,mem=64000M,node=2", "gres/gpu:a100:2", "32000M", ELASTIC]
"""Nodes as shown, CPUs, TRES, GPUs and memory of each node, comment: a job that asked for 1x1."""


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ("1x1", 4, 16000)),
        ({2: "cpu=16,mem=125G,node=2"}, ("1x1", 4, 0)),
        ({5: ELASTIC.replace('"1x1"}', '"1x4"}')}, ("1x4", 16, 64000)),
        (
            {5: ELASTIC.replace('"asked":"1x1"', '"cpus_per_gpu":6,"asked":"1x1"')},
            ("1x1", 6, 16000),
        ),
        # It does not say which it asked for.
        ({5: ELASTIC.replace(',"asked":"1x1"', "")}, None),
        ({0: "1-1", 2: "cpu=16", 1: "8"}, ("1x1", 4, 0)),
        ({2: "cpu=4,mem=16000M,node=1", 3: "gres:gpu:1", 1: "4"}, None),
        ({5: ELASTIC.replace("sizes", "other")}, None),
        ({5: "(null)"}, None),
        ({3: "N/A"}, None),
    ],
)
def test_the_size_asked_for_is_given_back(
    changes: dict[int, str], expected: tuple[str, int, int] | None
) -> None:
    """With its CPUs, and its memory where that goes by the node; of who has it nothing."""
    told = [changes.get(at, word) for at, word in enumerate(WIDE)]
    found = asked_again(JobId(7), told)
    assert (found and (str(found.shape), found.cpus, found.mem_mb)) == expected
