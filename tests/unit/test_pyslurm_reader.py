"""The queue by pyslurm: faults of its process, a job's words, and what squeue is asked besides.

The process is a real one, pyslurm is tests/fake_pyslurm. tests/docker holds the reader to the
contract on a real Slurm.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from squeue_records import words

from slurm_dl.model.errors import ClusterError
from slurm_dl.model.ids import JobId
from slurm_dl.model.plan import SetSiteFactor
from slurm_dl.slurm.controller import SiteConfig
from slurm_dl.slurm.pyslurm import reader
from slurm_dl.slurm.pyslurm.reader import FIELDS, PyslurmProcess, PyslurmQueue, jobs_in
from slurm_dl.slurm.read.comment_claims import ClaimReader
from slurm_dl.slurm.read.job_reader import JobReader
from slurm_dl.slurm.read.job_table import JobTable
from slurm_dl.slurm.read.node_reader import NODE_FIELDS, ClusterReading, read_nodes, site_of
from slurm_dl.slurm.read.record_parser import JOB_FIELDS
from slurm_dl.slurm.releases import Release
from slurm_dl.slurm.tool_runner import Slurm
from slurm_dl.slurm.write.actions import Actor

FAKE = Path(__file__).parents[1] / "fake_pyslurm"
NONCE = "xnonce"
NOTHING = ("root", "N/A", "N/A", "N/A", "N/A")


class Commands(Slurm):
    """Lists *told* as squeue, counts what it is asked, and has the environment of a worker."""

    def __init__(self, jobs: Path, *, timeout_s: float = 20.0) -> None:
        self.told: dict[str, tuple[str, ...]] = {}
        self.asked: list[str] = []
        self.timeout_s = timeout_s
        self.env = {"FAKE_PYSLURM": str(jobs), "LC_ALL": "C"}

    def run(self, tool: str, *args: str, within_s: float = 0.0) -> str:
        """User and requests of the one job named, or of all; nothing of what else is asked."""
        del within_s
        if tool != "squeue":
            self.asked.append(" ".join(args))
            return ""
        which = args[0].removeprefix("--jobs=") if args[0].startswith("--jobs=") else "all"
        self.asked.append(which)
        nonce = args[-1].rpartition(":")[2].removesuffix("r")
        rows = self.told if which == "all" else {which: self.told[which]}
        return "".join(
            f"{nonce}f".join((job, job, *words)) + f"{nonce}r\n" for job, words in rows.items()
        )


@pytest.fixture(autouse=True)
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker's program, with the fake among the packages of its interpreter."""
    path = tmp_path / "with_fake.py"
    packages = f"import runpy, sys\nsys.path.insert(0, {str(FAKE)!r})\n"
    path.write_text(f"{packages}runpy.run_path({str(reader.PROGRAM)!r}, run_name='__main__')\n")
    monkeypatch.setattr(reader, "PROGRAM", path)


@pytest.fixture
def slurm(tmp_path: Path) -> Commands:
    return Commands(tmp_path / "jobs.json")


@pytest.fixture
def queue(slurm: Commands) -> Iterator[PyslurmQueue]:
    made = PyslurmQueue(slurm)
    yield made
    made.close()


def site() -> ClusterReading:
    """Four nodes in two partitions."""
    plain = {"StateComplete": "idle", "CPUs": "16", "Memory": "9", "Gres": "gpu:4", "Features": ""}
    rows = [
        plain | {"NodeList": f"n{i}", "Partition": partition, "features_act": "big"}
        for i in range(1, 5)
        for partition in ("gpu", "debug")
    ]
    text = "".join(f"{NONCE}f".join(r[n] for n in NODE_FIELDS) + f"{NONCE}r\n" for r in rows)
    config = SiteConfig(release=Release(25, 11, 2), tracks_memory=True)
    nodes = read_nodes(text, NONCE)
    return site_of(nodes, topology="", reservations=(), config=config, type_row={})


SITE = site()


def table(queue: PyslurmQueue, slurm: Commands, *jobs: Mapping[str, Any]) -> JobTable:
    """What *queue* reads while Slurm has *jobs*."""
    Path(slurm.env["FAKE_PYSLURM"]).write_text(json.dumps(jobs), encoding="ascii")
    for job in jobs:
        slurm.told.setdefault(str(job["id"]), NOTHING)
    return queue.table(JobReader(ClaimReader(max_grace_s=600)), SITE, now_s=300.0)


# The process.

DEAD = "os.write(1, b'{\"version\": '); "
FAULTS = {
    "ends": ("sys.exit('fatal: no slurm.conf')", "ended with 1; fatal: no slurm.conf"),
    "ends within an answer": (DEAD + "sys.exit(0)", "ended with 0"),
    "crashes": ("os.abort()", "ended with -6"),
    "hangs": ("time.sleep(600)", r"no answer in 0\.5 s"),
    "hangs within an answer": (DEAD + "time.sleep(600)", r"no answer in 0\.5 s"),
    "is noisy": ("[os.write(2, b'noise ' * 9000) for _ in iter(int, 1)]", r"no answer in 0\.5 s"),
    "no JSON": ("print('libslurm: error', flush=True); time.sleep(600)", "answered rubbish"),
    "no object": ("print([], flush=True); time.sleep(600)", "answered rubbish"),
    "too deep": ("print('[' * 900, flush=True); time.sleep(600)", "answered rubbish"),
    "no UTF-8": ("os.write(1, b'{\"\\xff\": 1}\\n'); time.sleep(600)", "answered rubbish"),
    "too much": ("print('{}' + ' ' * 99_999, flush=True); time.sleep(600)", "answered rubbish"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_worker_that_fails_is_ended_and_replaced_after_a_pause(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says how it failed; nothing is started before the pause is over."""
    body, words = FAULTS[fault]
    program = tmp_path / "worker.py"
    program.write_text(f"import os, sys, time\nsys.stdin.readline()\n{body}\n", encoding="ascii")
    later_s = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + later_s[0])
    process = PyslurmProcess(Commands(tmp_path / "no", timeout_s=0.5 if "0" in words else 20.0))
    with monkeypatch.context() as patch:
        patch.setattr(reader, "PROGRAM", program)
        patch.setattr(reader, "MOST_BYTES", 1000)
        patch.setattr(reader, "time", clock)
        with pytest.raises(ClusterError, match=f"^pyslurm: {words}"):
            process.ask(do="version")
        assert process.child is None
        patch.undo()
        monkeypatch.setattr(reader, "time", clock)
        with pytest.raises(ClusterError, match="a short time ago"):
            process.ask(do="version")
        later_s[0] = reader.PAUSE_S
        process._slurm.timeout_s = 20.0
        assert process.ask(do="version") == {"version": "25.11.2"}
    process.close()


def test_the_worker_serves_until_its_input_ends(queue: PyslurmQueue, slurm: Commands) -> None:
    """One process answers all polls, gets nothing of our environment, and ends with us."""
    for _ in range(2):
        with pytest.raises(ClusterError, match="Unable to contact slurm controller"):
            queue.process.ask(do="queue", fields=FIELDS)
    child = queue.process.child
    assert table(queue, slurm, {"id": 7}).job_id == [7]
    assert queue.process.child is child
    told = Path(f"/proc/{child.pid}/environ").read_bytes().split(b"\0")[:-1]
    assert set(told) == {f"{k}={v}".encode() for k, v in slurm.env.items()}
    child.stdin.close()
    child.stdin = None
    assert child.wait(20) == 0


@pytest.mark.parametrize(
    ("release", "version", "words"),
    [
        (Release(25, 11, 1), "25.11.2", None),
        (Release(26, 5, 5), "25.11.2", None),
        (Release(25, 11, 1), "18.8.0", r"18\.8\.0 does not belong to Slurm 25\.11\.1"),
        (Release(22, 5, 8), "25.11.2", r"there is no pyslurm for Slurm 22\.05\.8"),
    ],
)
def test_pyslurm_must_belong_to_the_release(
    queue: PyslurmQueue, slurm: Commands, release: Release, version: str, words: str | None
) -> None:
    """One that was built for another Slurm reads other fields than it says, without an error."""
    slurm.env["FAKE_VERSION"] = version
    if words is None:
        assert queue.check(release) == version
    else:
        with pytest.raises(ClusterError, match=words):
            queue.check(release)


# The jobs.

SQUEUE = dict.fromkeys(JOB_FIELDS, "N/A") | words(
    "State=PENDING Reason=Priority Partition=gpu UserID=0 UserName=root QOS=normal NumNodes=1 "
    "NumTasks=1 Sockets=* NumCPUs=1 NodeList= SubmitTime=100 EligibleTime=100 TimeLimit=1:00:00 "
    "RestartCnt=0 Requeue=1 BatchFlag=1 OverSubscribe=OK PriorityLong=5 Name=train"
)
"""A job in squeue's words; the fake's job without any attribute is the same one."""

RUN = {"state": "RUNNING", "state_reason": "None", "start_time": 200, "end_time": 3800}
RUNS = {"State": "RUNNING", "Reason": "None", "StartTime": "200", "EndTime": "3800"}
CLAIM = '{"slurm_dl": {"v": 1, "sig": "USR1", "grace_s": 60}}'

SAME: list[tuple[dict[str, Any], dict[str, str]]] = [
    ({}, {}),
    (
        {"requested_tres": {"cpu": 8, "node": 2, "mem": 64000, "gres/gpu": 4}, "num_nodes": 2},
        {"tres-alloc": "cpu=8,mem=62.50G,node=2,billing=8,gres/gpu=4", "NumNodes": "2"},
    ),
    ({"gres_per_node": {"gres/gpu:a100": 2}}, {"tres-per-node": "gres/gpu:a100:2"}),
    ({"gres_per_node": {"gres/shard": 2}}, {"tres-per-node": "gres/shard:2"}),
    (
        {**RUN, "allocated_nodes": "n[1-2]", "num_nodes": 2, "allocated_tres": {"gres/gpu": 3}},
        {**RUNS, "NodeList": "n[1-2]", "NumNodes": "2", "tres-alloc": "gres/gpu=3"},
    ),
    (
        {**RUN, "time_limit": None, "end_time": 2**33, "allocated_nodes": "n1"},
        {**RUNS, "TimeLimit": "UNLIMITED", "EndTime": "NONE", "NodeList": "n1"},
    ),
    ({"array_id": 5, "array_tasks_waiting": "0-6:2"}, {"JobArrayID": "5_[0-6:2]"}),
    ({"array_id": 5, "array_tasks_waiting": "9"}, {"JobArrayID": "5_9"}),
    (
        {**RUN, "array_id": 5, "allocated_nodes": "n1"},
        {**RUNS, "JobArrayID": "5_0", "NodeList": "n1"},
    ),
    ({"array_id": 5, "array_task_id": 3}, {"JobArrayID": "5_3"}),
    ({"heterogeneous_id": 5}, {"HetJobID": "5", "JobArrayID": "5+0"}),
    ({"heterogeneous_id": 5, "heterogeneous_offset": 2}, {"HetJobID": "5", "JobArrayID": "5+2"}),
    (
        {"required_nodes": "n[1-2]", "constraints": ["big", "new&odd"], "sockets_per_node": 2},
        {"ReqNodes": "n[1-2]", "Feature": "big,new&odd", "Sockets": "2"},
    ),
    (
        {"is_batch_job": False, "resource_sharing": "NO", "is_requeueable": False},
        {"BatchFlag": "0", "OverSubscribe": "NO", "Requeue": "0"},
    ),
    (
        {"name": list(b"\xff\n\x1b[31m\xe2\x82"), "comment": list(b"slurm_dl \x80")},
        {"Name": "\ufffd\n\x1b[31m\ufffd", "Comment": "slurm_dl \ufffd"},
    ),
    ({"comment": CLAIM, "wckey": "w"}, {"Comment": CLAIM, "WCKey": "w"}),
    (
        {"partition": "gpu,debug", "priority": 0, "state_reason": "JobHeldUser", "qos": None},
        {"Partition": "gpu,debug", "PriorityLong": "0", "Reason": "JobHeldUser", "QOS": "(null)"},
    ),
    ({"reservation": "slurm_dl_4", "account": "a"}, {"Reservation": "slurm_dl_4", "Account": "a"}),
]


def test_jobs_read_the_same_by_both(queue: PyslurmQueue, slurm: Commands) -> None:
    """Whatever a job is, pyslurm's attributes come to the same row as squeue's words."""
    rows = [
        SQUEUE | {"JobID": str(job), "JobArrayID": str(job)} | words
        for job, (_, words) in enumerate(SAME, start=20)
    ]
    text = "".join(f"{NONCE}f".join(r[n] for n in JOB_FIELDS) + f"{NONCE}r\n" for r in rows)
    by_squeue = JobReader(ClaimReader(max_grace_s=600)).read(text, NONCE, SITE, now_s=300.0)
    jobs = ({"id": job, **attributes} for job, (attributes, _) in enumerate(SAME, start=20))

    assert table(queue, slurm, *jobs) == by_squeue


def test_what_pyslurm_loses_is_asked_of_squeue_once(queue: PyslurmQueue, slurm: Commands) -> None:
    """New jobs cost one squeue, a single one a cheap one, and an idle poll none."""
    slurm.told = {str(i): ("ada", "gres/gpu:a100:4", "N/A", "N/A", "N/A") for i in range(1, 9)}

    for jobs, asked in (
        ((1, 2), ["all"]),
        ((1, 2), []),
        ((1, 2, 3), ["3"]),
        ((3, 4, 5), ["all"]),
        ((1, 3), ["1"]),
        ((), []),
    ):
        slurm.asked.clear()
        read = table(queue, slurm, *({"id": job} for job in jobs))
        assert (read.gpus, read.gpu_type) == ([4.0] * len(jobs), ["a100"] * len(jobs))
        assert {text.user for text in read.texts.values()} <= {"ada"}
        assert slurm.asked == asked
    slurm.asked.clear()
    table(queue, slurm, {"id": 3}, {"id": 4})
    queue.forget()
    table(queue, slurm, {"id": 3}, {"id": 4})
    assert slurm.asked == ["all", "all"]


def test_an_unreadable_job_is_counted_and_no_other_is_lost(
    queue: PyslurmQueue, slurm: Commands
) -> None:
    """Whether pyslurm fails on it or its words are unknown; nothing readable at all is an error."""
    bad = ({"id": 2, "constraints": 5}, {"id": 3, "state": "NEW"})

    read = table(queue, slurm, {"id": 1}, *bad, {"id": 4})

    assert (read.job_id, sorted(read.left_out), read.unreadable) == ([1, 4], [2, 3], 2)
    for jobs in (bad[:1], bad[1:]):
        with pytest.raises(ClusterError, match="none of 1 records"):
            table(queue, slurm, *jobs)


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"jobs": {}, "unreadable": []},
        {"jobs": [], "unreadable": None},
        {"jobs": [], "unreadable": ["7"]},
        {"jobs": ["7" * len(FIELDS)], "unreadable": []},
        {"jobs": [["7"]], "unreadable": []},
        {"jobs": [["7"] * (len(FIELDS) - 1) + [None]], "unreadable": []},
    ],
)
def test_an_answer_of_another_shape_is_no_queue(answer: dict[str, Any]) -> None:
    """It is JSON from another process: everything in it is looked at."""
    with pytest.raises(ClusterError, match="no queue"):
        jobs_in(answer)


def test_site_factors_of_single_jobs_are_set_by_the_worker(
    queue: PyslurmQueue, slurm: Commands, tmp_path: Path
) -> None:
    """But for 0. Arrays and gangs are named by labels, for scontrol; a refusal is an error."""
    actor = Actor(slurm, queue.set_site_factor)
    labels = {1: "1", 2: "2_[3-4]", 3: "3+0", 13: "13"}
    actor.know({JobId(job): label for job, label in labels.items()}, no_preemption="")

    for job_id, value in ((1, 10_000), (1, 0), (1, -3), (2, 5), (3, 5)):
        actor.apply(SetSiteFactor(job_id=JobId(job_id), value=value, why="test"))
    with pytest.raises(ClusterError, match="Access/permission denied"):
        actor.apply(SetSiteFactor(job_id=JobId(13), value=1, why="test"))

    assert (tmp_path / "jobs.changes").read_text(encoding="ascii") == "1 10000\n1 -3\n"
    assert slurm.asked == [
        "update JobId=1 SiteFactor=0",
        "update JobId=2_[3-4] SiteFactor=5",
        "update JobId=3+0 SiteFactor=5",
    ]
