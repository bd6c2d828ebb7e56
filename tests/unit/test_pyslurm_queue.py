"""The queue by pyslurm: the worker's words, what is asked of squeue besides, and who reads."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from slurm_dl.model.errors import ClusterError
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobState
from slurm_dl.model.plan import SetSiteFactor
from slurm_dl.slurm.pyslurm import reader_choice as readers
from slurm_dl.slurm.pyslurm import worker_program
from slurm_dl.slurm.pyslurm.reader_choice import (
    AutoQueue,
    CheckedQueue,
    disagreement,
    reader_choice,
)
from slurm_dl.slurm.pyslurm.worker_process import (
    Answer,
    EndedError,
    PausedError,
    PyslurmProcess,
    environment,
)
from slurm_dl.slurm.pyslurm.worker_queue import PyslurmQueue, columns_of
from slurm_dl.slurm.read.comment_claims import ClaimReader
from slurm_dl.slurm.read.gpu_holdings import Holdings
from slurm_dl.slurm.read.job_reader import JobReader
from slurm_dl.slurm.read.job_table import JobTable
from slurm_dl.slurm.read.node_choices import Exclusions
from slurm_dl.slurm.read.node_reader import NODE_FIELDS, ClusterReading, read_nodes, site_of
from slurm_dl.slurm.read.queue_reader import CliQueue, ReaderChoice
from slurm_dl.slurm.read.squeue_fields import JOB_FIELDS
from slurm_dl.slurm.releases import Release
from slurm_dl.slurm.running_config import SiteConfig
from slurm_dl.slurm.tool_runner import Slurm
from slurm_dl.slurm.write.actions import Actor

FAKE = Path(__file__).parents[1] / "fake_pyslurm"
NONCE = "xnonce"


@pytest.fixture(scope="module")
def fake() -> ModuleType:
    """The pyslurm of the tests, in this process."""
    spec = importlib.util.spec_from_file_location("fake_pyslurm", FAKE / "pyslurm.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAKE_PYSLURM", "here")
        patch.setattr(sys, "dont_write_bytecode", True)
        spec.loader.exec_module(module)
    return module


def site() -> ClusterReading:
    """Four nodes in two partitions."""
    plain = {"StateComplete": "idle", "CPUs": "16", "Memory": "9", "Gres": "gpu:4", "Features": ""}
    rows = [
        plain | {"NodeList": f"n{i}", "Partition": partition, "features_act": "big"}
        for i in range(1, 5)
        for partition in ("gpu", "debug")
    ]
    text = "".join(f"{NONCE}f".join(r[n] for n in NODE_FIELDS) + f"{NONCE}r\n" for r in rows)
    return site_of(
        read_nodes(text, NONCE),
        topology="",
        reservations=(),
        config=SiteConfig(release=Release(24, 11, 5), tracks_memory=True),
        type_row={},
    )


SITE = site()

SQUEUE = {
    "JobID": "7",
    "JobArrayID": "7",
    "HetJobID": "N/A",
    "State": "PENDING",
    "Reason": "Priority",
    "Partition": "gpu",
    "UserID": "0",
    "UserName": "root",
    "Account": "(null)",
    "QOS": "normal",
    "NumNodes": "1",
    "NumTasks": "1",
    "Sockets": "*",
    "NumCPUs": "1",
    "tres-alloc": "N/A",
    "tres-per-node": "N/A",
    "tres-per-job": "N/A",
    "tres-per-task": "N/A",
    "tres-per-socket": "N/A",
    "NodeList": "",
    "SubmitTime": "100",
    "StartTime": "N/A",
    "EndTime": "N/A",
    "EligibleTime": "100",
    "TimeLimit": "1:00:00",
    "RestartCnt": "0",
    "Requeue": "1",
    "BatchFlag": "1",
    "OverSubscribe": "OK",
    "PriorityLong": "5",
    "Reservation": "(null)",
    "ReqNodes": "",
    "Feature": "(null)",
    "WCKey": "(null)",
    "Name": "train",
    "Comment": "(null)",
}
"""A job in squeue's words; the fake's job without any attribute is the same one."""

RUN = {"state": "RUNNING", "state_reason": "None", "start_time": 200, "end_time": 3800}
SQUEUE_RUN = {"State": "RUNNING", "Reason": "None", "StartTime": "200", "EndTime": "3800"}

SAME: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "plain": ({}, {}),
    "tracked": (
        {"requested_tres": {"cpu": 8, "node": 2, "mem": 64000, "gres/gpu": 4}, "num_nodes": 2},
        {"tres-alloc": "cpu=8,mem=62.50G,node=2,billing=8,gres/gpu=4", "NumNodes": "2"},
    ),
    "typed by node": (
        {"gres_per_node": {"gres/gpu:a100": 2}, "num_nodes": 3},
        {"tres-per-node": "gres/gpu:a100:2", "NumNodes": "3"},
    ),
    "shards": ({"gres_per_node": {"gres/shard": 2}}, {"tres-per-node": "gres/shard:2"}),
    "running": (
        {**RUN, "allocated_nodes": "n[1-2]", "num_nodes": 2, "allocated_tres": {"gres/gpu": 3}},
        {**SQUEUE_RUN, "NodeList": "n[1-2]", "NumNodes": "2", "tres-alloc": "gres/gpu=3"},
    ),
    "without limit": ({"time_limit": None}, {"TimeLimit": "UNLIMITED"}),
    "running without limit": (
        {**RUN, "time_limit": None, "end_time": 2**33, "allocated_nodes": "n1"},
        {**SQUEUE_RUN, "TimeLimit": "UNLIMITED", "EndTime": "NONE", "NodeList": "n1"},
    ),
    "array": (
        {"array_id": 7, "array_tasks_waiting": "0,2,4,6", "array_tasks_parallel": 2},
        {"JobArrayID": "7_[0-6:2]"},
    ),
    "last of an array": (
        {"array_id": 5, "array_tasks_waiting": "9", "array_tasks_parallel": 3},
        {"JobArrayID": "5_9"},
    ),
    "task 0": (
        {**RUN, "array_id": 5, "allocated_nodes": "n1"},
        {**SQUEUE_RUN, "JobArrayID": "5_0", "NodeList": "n1"},
    ),
    "task 3": (
        {**RUN, "array_id": 5, "array_task_id": 3, "allocated_nodes": "n1"},
        {**SQUEUE_RUN, "JobArrayID": "5_3", "NodeList": "n1"},
    ),
    "cancelled array": (
        {"array_id": 7, "state": "CANCELLED", "start_time": 150, "end_time": 150},
        {"State": "CANCELLED", "StartTime": "150", "EndTime": "150"},
    ),
    "leader of a gang": (
        {"heterogeneous_id": 7},
        {"HetJobID": "7", "JobArrayID": "7+0"},
    ),
    "component of a gang": (
        {"heterogeneous_id": 5, "heterogeneous_offset": 2},
        {"HetJobID": "5", "JobArrayID": "5+2"},
    ),
    "choosy": (
        {"required_nodes": "n[1-2]", "num_nodes": 2, "constraints": ["big", "new&odd"]},
        {"ReqNodes": "n[1-2]", "NumNodes": "2", "Feature": "big,new&odd"},
    ),
    "interactive, exclusive, of nobody": (
        {
            "is_batch_job": False,
            "resource_sharing": "NO",
            "user_id": 54321,
            "is_requeueable": False,
        },
        {
            "BatchFlag": "0",
            "OverSubscribe": "NO",
            "Requeue": "0",
            "UserID": "54321",
            "UserName": "54321",
        },
    ),
    "hostile": (
        {"name": list(b"\xff\n\x1b[31m\xe2\x82"), "comment": list(b"slurm_dl \x80")},
        {"Name": "\ufffd\n\x1b[31m\ufffd", "Comment": "slurm_dl \ufffd"},
    ),
    "opted in": (
        {"comment": '{"slurm_dl": {"v": 1, "sig": "USR1", "grace_s": 60}}'},
        {"Comment": '{"slurm_dl": {"v": 1, "sig": "USR1", "grace_s": 60}}'},
    ),
    "held in two partitions": (
        {"partition": "gpu,debug", "priority": 0, "state_reason": "JobHeldUser", "qos": None},
        {"Partition": "gpu,debug", "PriorityLong": "0", "Reason": "JobHeldUser", "QOS": "(null)"},
    ),
    "reserved": ({"reservation": "slurm_dl_4"}, {"Reservation": "slurm_dl_4"}),
    "sockets": ({"sockets_per_node": 2}, {"Sockets": "2"}),
}


def read_text(*rows: Mapping[str, str]) -> JobTable:
    """What squeue's words read as."""
    records = [SQUEUE | dict(row) for row in rows]
    text = "".join(f"{NONCE}f".join(r[n] for n in JOB_FIELDS) + f"{NONCE}r\n" for r in records)
    return JobReader(ClaimReader(max_grace_s=600)).read(text, NONCE, SITE, now_s=300.0)


class Squeue(Slurm):
    """Tells requests by job, task and socket, and counts how often it is asked."""

    def __init__(self, told: Mapping[str, tuple[str, str, str]] | None = None) -> None:
        self.told = dict(told or {})
        self.asked: list[str] = []
        self.is_down = False

    def run(self, tool: str, *args: str, within_s: float = 0.0) -> str:
        """The requests of the one job named, or of all."""
        del within_s
        assert tool == "squeue"
        which = args[0].removeprefix("--jobs=") if args[0].startswith("--jobs=") else "all"
        self.asked.append(which)
        if self.is_down or which not in {"all", *self.told}:
            msg = "squeue failed"
            raise ClusterError(msg)
        nonce = args[-1].rpartition(":")[2].removesuffix("r")
        rows = self.told if which == "all" else {which: self.told[which]}
        return "".join(
            f"{nonce}f".join((job, job, *words)) + f"{nonce}r\n" for job, words in rows.items()
        )


class Worker(PyslurmProcess):
    """Answers with these jobs, as the worker tells them."""

    def __init__(self, fake: ModuleType, *jobs: Mapping[str, Any]) -> None:
        super().__init__({}, timeout_s=1)
        self.fake = fake
        self.jobs = jobs
        self.fails: list[ClusterError] = []
        self.asked: list[dict[str, Any]] = []

    def ask(self, **request: str | int) -> Answer:
        """The queue; anything else is only remembered."""
        self.asked.append(request)
        if self.fails:
            raise self.fails.pop(0)
        if request["do"] != "queue":
            return {}
        jobs = {j.get("id", 7): self.fake.Job(**({"job_id": 7} | _named(j))) for j in self.jobs}
        columns, unreadable = worker_program.columns_of(jobs)
        return json.loads(json.dumps({"columns": columns, "unreadable": unreadable}))


def _named(job: Mapping[str, Any]) -> dict[str, Any]:
    return {"job_id" if name == "id" else name: value for name, value in job.items()}


NOTHING = ("N/A", "N/A", "N/A")


def read_jobs(
    fake: ModuleType, *jobs: Mapping[str, Any], told: tuple[str, str, str] = NOTHING
) -> tuple[JobTable, Exclusions]:
    """What pyslurm's words read as."""
    slurm = Squeue({str(job.get("id", 7)): told for job in jobs})
    queue = PyslurmQueue(slurm, Worker(fake, *jobs))
    return queue.read(JobReader(ClaimReader(max_grace_s=600)), SITE, now_s=300.0)


@pytest.mark.parametrize("case", SAME)
def test_a_job_reads_the_same_by_both(case: str, fake: ModuleType) -> None:
    """Whatever a job is, pyslurm's attributes come to the same row as squeue's words."""
    attributes, words = SAME[case]

    assert read_jobs(fake, attributes)[0] == read_text(words)


def test_requests_that_pyslurm_loses_come_from_squeue(fake: ModuleType) -> None:
    """Of ``--gpus=a100:4`` pyslurm knows the number, and only where GPUs are accounted for."""
    told = ("gres/gpu:a100:4", "N/A", "N/A")

    table, _ = read_jobs(fake, {}, told=told)

    assert table == read_text({"tres-per-job": told[0]})
    assert (table.gpus, table.gpu_type) == ([4.0], ["a100"])


def test_requests_are_asked_for_once(fake: ModuleType) -> None:
    """New jobs cost one squeue, a single one a cheap one, and an idle poll none."""
    slurm = Squeue({str(i): ("gres/gpu:2", "N/A", "N/A") for i in range(1, 9)})
    worker = Worker(fake, {"id": 1}, {"id": 2})
    queue = PyslurmQueue(slurm, worker)
    reader = JobReader(ClaimReader(max_grace_s=600))

    def poll(*jobs: int) -> list[str]:
        slurm.asked.clear()
        worker.jobs = tuple({"id": job} for job in jobs)
        assert queue.read(reader, SITE, now_s=300.0)[0].gpus == [2.0] * len(jobs)
        return list(slurm.asked)

    assert poll(1, 2) == ["all"]
    assert poll(1, 2) == []
    assert poll(1, 2, 3) == ["3"]
    assert poll(3, 4, 5) == ["all"]
    assert poll(1, 3) == ["1"]
    assert poll() == []
    assert poll(3, 4) == ["all"]
    queue.forget()
    assert poll(3, 4) == ["all"]
    assert poll(3, 4) == []


def test_a_job_that_is_gone_when_squeue_is_asked_is_no_error(fake: ModuleType) -> None:
    """Squeue refuses an id it has forgotten; only then are all asked for, and silence is told."""
    slurm = Squeue({"1": NOTHING})
    worker = Worker(fake, {"id": 1})
    queue = PyslurmQueue(slurm, worker)
    reader = JobReader(ClaimReader(max_grace_s=600))
    queue.read(reader, SITE, now_s=300.0)

    worker.jobs = ({"id": 1}, {"id": 2})
    assert queue.read(reader, SITE, now_s=300.0)[0].gpus == [0.0, 0.0]
    assert slurm.asked == ["1", "2", "all"]

    slurm.is_down = True
    worker.jobs = ({"id": 1}, {"id": 3})
    with pytest.raises(ClusterError, match="squeue failed"):
        queue.read(reader, SITE, now_s=300.0)


def test_exclusions_are_those_of_pending_jobs(fake: ModuleType) -> None:
    """They come with the queue, so that none is ever unknown."""
    running = RUN | {"id": 3, "excluded_nodes": "n3", "allocated_nodes": "n1"}

    _, excluded = read_jobs(fake, {"id": 1, "excluded_nodes": "n[1-2]"}, {"id": 2}, running)

    assert excluded.nodes == {1: "n[1-2]"}
    assert not excluded.unknown


def test_an_unreadable_job_is_counted_and_no_other_is_lost(fake: ModuleType) -> None:
    """By the worker, whose pyslurm may fail on one job, and by the reader of words."""
    jobs = ({"id": 1}, {"id": 2, "constraints": 5}, {"id": 3, "state": "NEW"}, {"id": 4})

    table, _ = read_jobs(fake, *jobs)

    assert (table.job_id, table.unreadable) == ([1, 4], 2)


def test_nothing_readable_at_all_is_an_error(fake: ModuleType) -> None:
    """Then it is another pyslurm, or another Slurm."""
    with pytest.raises(ClusterError, match="none of 2 records"):
        read_jobs(fake, {"id": 1, "state": "A"}, {"id": 2, "state": "B"})


def answer(**columns: object) -> Answer:
    """A whole answer of no job, with these columns instead."""
    names = (*JOB_FIELDS, "ExcNodes")
    return {"columns": {**{name: [] for name in names}, **columns}, "unreadable": 0}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({}, "no columns"),
        ({"columns": []}, "no columns"),
        (answer(Name=None), "Name is no list of words"),
        (answer(Name=[5]), "Name is no list of words"),
        (answer(JobID=["1"]), "not of one length"),
        (answer(**{n: ["1", "1"] for n in (*JOB_FIELDS, "ExcNodes")}), "different numbers"),
        (answer(**{n: ["x"] for n in (*JOB_FIELDS, "ExcNodes")}), "different numbers"),
        (dict(answer()) | {"unreadable": None}, "how many jobs"),
        (dict(answer()) | {"unreadable": -1}, "how many jobs"),
    ],
)
def test_an_answer_of_another_shape_is_no_queue(wrong: Answer, words: str) -> None:
    """It is JSON from another process: everything in it is looked at."""
    with pytest.raises(ClusterError, match=words):
        columns_of(wrong)


def test_the_worker_sets_site_factors(tmp_path: Path) -> None:
    """A whole worker, asked over its pipes; a refusal is told in Slurm's words."""
    jobs = tmp_path / "jobs.json"
    env = environment("") | {
        "PYTHONPATH": str(FAKE),
        "FAKE_PYSLURM": str(jobs),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    queue = PyslurmQueue(Squeue(), PyslurmProcess(env, timeout_s=20))
    try:
        assert queue.set_site_factor(JobId(7), 10_000)
        assert not queue.set_site_factor(JobId(7), 0)
        assert queue.set_site_factor(JobId(8), -3)
        with pytest.raises(ClusterError, match="Access/permission denied"):
            queue.set_site_factor(JobId(13), 1)
    finally:
        queue.close()
    assert (tmp_path / "jobs.changes").read_text(encoding="ascii") == "7 10000\n8 -3\n"


class Scontrol(Slurm):
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, ...]] = []

    def run(self, tool: str, *args: str, within_s: float = 0.0) -> str:
        """Nothing."""
        del within_s
        self.told.append((tool, *args))
        return ""


def test_only_a_record_by_itself_is_written_by_the_cheaper_way() -> None:
    """Arrays and gangs are named by labels, and what the other way refuses scontrol does."""
    slurm, cheaper = Scontrol(), []

    def set_site_factor(job_id: JobId, value: int) -> bool:
        cheaper.append((job_id, value))
        return value != 0

    actor = Actor(slurm, set_site_factor)
    actor.know({JobId(1): "1", JobId(2): "2_[3-4]", JobId(3): "3+0"}, no_preemption="")
    for job_id, value in ((1, 5), (1, 0), (2, 5), (3, 5)):
        actor.apply(SetSiteFactor(job_id=JobId(job_id), value=value, why="test"))

    assert cheaper == [(1, 5), (1, 0)]
    assert [call[2:] for call in slurm.told] == [
        ("JobId=1", "SiteFactor=0"),
        ("JobId=2_[3-4]", "SiteFactor=5"),
        ("JobId=3+0", "SiteFactor=5"),
    ]


class Scripted:
    """A reader that gives what it is told to: a table or an error, the last one again and again."""

    def __init__(self, name: str, *says: JobTable | ClusterError) -> None:
        self.choice = ReaderChoice("pyslurm" if name == "pyslurm" else "cli", "scripted")
        self.says = list(says)
        self.reads = 0
        self.closed = 0
        self.learnt = 0
        self.written: list[int] = []
        self.asked_again: list[JobId] = []

    def table(self, reader: JobReader, site: ClusterReading, *, now_s: float) -> JobTable:
        """As `CliQueue.table`."""
        return self.read(reader, site, now_s=now_s)[0]

    def read(self, *_: object, now_s: float) -> tuple[JobTable, Exclusions]:
        """What it says next."""
        del now_s
        self.reads += 1
        said = self.says.pop(0) if len(self.says) > 1 else self.says[0]
        if isinstance(said, ClusterError):
            raise said
        return said, CliQueue(Scontrol())._excluded

    def learn_splits(self, *_: object) -> None:
        """Counted."""
        self.learnt += 1

    def set_site_factor(self, _: JobId, value: int) -> bool:
        """Remembered; the value 13 is refused, 14 ends the worker."""
        if value == 14:
            msg = "gone"
            raise EndedError(msg)
        if value == 13:
            msg = "no"
            raise ClusterError(msg)
        self.written.append(value)
        return True

    def ask_again(self, job_id: JobId) -> None:
        """Remembered."""
        self.asked_again.append(job_id)

    def forget(self) -> None:
        """Nothing to forget."""

    def close(self) -> None:
        """Counted."""
        self.closed += 1


TABLE = read_text({})
READER = JobReader(ClaimReader(max_grace_s=600))
Poll = Callable[[], JobTable]
FITS = ReaderChoice("pyslurm", "it fits")


def automatic(
    pyslurm: Scripted, cli: Scripted, choice: ReaderChoice = FITS
) -> tuple[AutoQueue, list[ReaderChoice], Poll]:
    """An `AutoQueue`, what it says it takes, and one poll of it."""
    told: list[ReaderChoice] = []
    queue = AutoQueue(pyslurm, cli, lambda _: choice, told.append)
    return queue, told, lambda: queue.read(READER, SITE, now_s=0.0)[0]


def test_auto_reads_by_pyslurm_as_long_as_it_works() -> None:
    """One failure is read by squeue and forgotten with the next success."""
    error = ClusterError("crash")
    pyslurm, cli = (
        Scripted("pyslurm", TABLE, error, error, TABLE, error, TABLE),
        Scripted("cli", TABLE),
    )
    queue, told, poll = automatic(pyslurm, cli)

    assert queue.choice is None
    for reads in (0, 1, 2, 2, 3, 3):
        assert poll() == TABLE
        assert cli.reads == reads
    assert told == [FITS] == [queue.choice]


def test_auto_gives_pyslurm_up_after_three_failures_in_a_row() -> None:
    """And says so once, with the reason; its process is ended."""
    pyslurm, cli = Scripted("pyslurm", ClusterError("crash")), Scripted("cli", TABLE)
    queue, told, poll = automatic(pyslurm, cli)

    for _ in range(6):
        assert poll() == TABLE

    assert (pyslurm.reads, pyslurm.closed, cli.reads) == (3, 1, 6)
    assert [choice.reader for choice in told] == ["pyslurm", "cli"]
    assert "3 times in a row, at last so: crash" in told[-1].reason
    assert queue.choice == told[-1]


def test_polls_in_a_pause_do_not_count() -> None:
    """A worker that died once is tried again after its pause, however often is polled in it."""
    paused = PausedError("soon")
    says = (ClusterError("crash"), paused, paused, paused, paused, TABLE)
    pyslurm, cli = Scripted("pyslurm", *says), Scripted("cli", TABLE)
    _, told, poll = automatic(pyslurm, cli)

    for _ in range(7):
        poll()

    assert (cli.reads, len(told)) == (5, 1)


def test_a_silent_slurm_is_not_pyslurms_fault() -> None:
    """Then the poll fails, as without pyslurm, and pyslurm is still the reader afterwards."""
    down = ClusterError("slurmctld is down")
    pyslurm, cli = Scripted("pyslurm", *[down] * 5, TABLE), Scripted("cli", *[down] * 5, TABLE)
    queue, told, poll = automatic(pyslurm, cli)

    for _ in range(5):
        with pytest.raises(ClusterError, match="is down"):
            poll()
    assert poll() == TABLE
    assert (cli.reads, len(told)) == (5, 1)
    queue.close()
    assert pyslurm.closed == 1


def test_job_that_was_changed_is_asked_about_again_by_whoever_reads_next() -> None:
    """After a change of the reader too."""
    pyslurm, cli = Scripted("pyslurm", TABLE), Scripted("cli", TABLE)
    queue, _, poll = automatic(pyslurm, cli)
    poll()

    queue.ask_again(JobId(7))
    CheckedQueue(queue, CliQueue(Scontrol())).ask_again(JobId(8))

    assert pyslurm.asked_again == cli.asked_again == [7, 8]


def test_splits_and_writes_go_to_whom_the_last_reading_came_from() -> None:
    """What one reader told is not asked of the other; a write that fails is left to scontrol."""
    pyslurm, cli = Scripted("pyslurm", TABLE, ClusterError("crash"), TABLE), Scripted("cli", TABLE)
    queue, _, poll = automatic(pyslurm, cli)

    for learnt in ((1, 0), (1, 1), (2, 1)):
        poll()
        queue.learn_splits(Holdings(), TABLE)
        queue.set_site_factor(JobId(1), sum(learnt))
        assert (pyslurm.learnt, cli.learnt) == learnt
    assert (pyslurm.written, cli.written) == ([1, 3], [2])
    assert not queue.set_site_factor(JobId(1), 13)


def test_auto_takes_squeue_where_pyslurm_does_not_fit() -> None:
    """It is not even tried then."""
    pyslurm, cli = Scripted("pyslurm", TABLE), Scripted("cli", TABLE)
    queue, told, poll = automatic(pyslurm, cli, ReaderChoice("cli", "there is none"))

    poll()

    assert (pyslurm.reads, cli.reads, told) == (0, 1, [queue.choice])


def test_pyslurm_is_believed_once_it_has_agreed_with_squeue() -> None:
    """An empty queue proves nothing; a failure makes it prove itself again."""
    empty = read_text()
    pyslurm = Scripted("pyslurm", empty, TABLE, TABLE, ClusterError("crash"), TABLE)
    cli = Scripted("cli", empty, TABLE)
    queue = CheckedQueue(pyslurm, cli)  # type: ignore[arg-type] # it has what is asked of it
    expected = ((1, False), (2, True), (2, True), (2, False), (3, True), (3, True))

    for reads, believed in expected:
        try:
            queue.read(READER, SITE, now_s=0.0)
        except ClusterError as err:
            assert str(err) == "crash"  # noqa: PT017 - one of six
        assert cli.reads == reads
        assert queue.set_site_factor(JobId(1), 5) is believed


@pytest.mark.parametrize(
    "words",
    [
        {"UserID": "1"},
        {"tres-per-node": "gres/gpu:1"},
        {"SubmitTime": "101"},
        {"TimeLimit": "59:00"},
        {"Partition": "debug"},
        {"RestartCnt": "1"},
        {"JobID": "8"},
        {"Name": "other"},
        {"Account": "other"},
        {"QOS": "other"},
        {"Comment": '{"slurm_dl": {"v": 1, "sig": "USR1", "grace_s": 60}}'},
    ],
)
def test_pyslurm_that_says_other_things_is_not_believed(words: dict[str, str]) -> None:
    """One built for another Slurm reads other fields than it says, without an error."""
    queue = CheckedQueue(Scripted("pyslurm", read_text(words)), Scripted("cli", TABLE))  # type: ignore[arg-type]

    for _ in range(2):
        with pytest.raises(ClusterError, match=r"disagree: .*is it built for this Slurm"):
            queue.read(READER, SITE, now_s=0.0)


def test_jobs_that_move_between_two_readings_are_left_out() -> None:
    """They are no sign of a wrong pyslurm, nor of a right one."""
    started = SQUEUE_RUN | {"NodeList": "n1", "JobID": "8"}
    one, other = read_text({}, {"JobID": "8"}), read_text({}, started)

    assert disagreement(one, other, began_s=300.0) == (1, "")
    assert one.state == [JobState.PENDING] * 2


def test_pyslurm_that_tells_of_some_jobs_only_is_not_believed() -> None:
    """Neither of an empty queue nor of half of one, where squeue lists jobs of long ago."""
    both = read_text({}, {"JobID": "8"})
    for part in (read_text(), TABLE):
        queue = CheckedQueue(Scripted("pyslurm", part), Scripted("cli", both))  # type: ignore[arg-type]

        with pytest.raises(ClusterError, match=r"disagree: .* job \d first"):
            queue.read(READER, SITE, now_s=300.0)


@pytest.mark.parametrize(
    "words",
    [
        {"SubmitTime": "300"},
        SQUEUE_RUN | {"NodeList": "n1", "StartTime": "301"},
        {"State": "CANCELLED", "StartTime": "0"},
    ],
)
def test_jobs_that_came_between_two_readings_are_not_missed(words: dict[str, str]) -> None:
    """Nor tasks of an array, which get an id of their own when they start or are cancelled."""
    other = read_text({}, words | {"JobID": "8"})

    assert disagreement(TABLE, other, began_s=300.0) == (1, "")


def test_jobs_that_pyslurm_cannot_read_are_not_missed() -> None:
    """They are counted already."""
    other = read_text({}, {"JobID": "8"})
    one = read_text({})
    one.unreadable = 1

    assert disagreement(one, other, began_s=300.0) == (1, "")


def test_a_queue_of_which_nothing_can_be_read_is_not_empty(fake: ModuleType) -> None:
    """As where a pyslurm has no attribute of the name that is asked for."""
    with pytest.raises(ClusterError, match="none of 2 records can be read"):
        read_jobs(fake, {"id": 7, "cpus": "x", "constraints": 1}, {"id": 8, "constraints": 1})


def test_a_worker_that_ended_at_a_write_proves_itself_again() -> None:
    """The next one may be on another libslurm; a refusal of Slurm says nothing of that kind."""
    pyslurm, cli = Scripted("pyslurm", TABLE), Scripted("cli", TABLE)
    queue = CheckedQueue(pyslurm, cli)  # type: ignore[arg-type]
    reads = []

    for value in (5, 13, 14, 5):
        queue.read(READER, SITE, now_s=0.0)
        reads.append(cli.reads)
        with suppress(ClusterError):
            queue.set_site_factor(JobId(1), value)

    assert reads == [1, 1, 1, 2]


@pytest.mark.parametrize(
    ("release", "version", "reader", "words"),
    [
        ("26.05.5", "25.11.2", "pyslurm", "25.11.2 can be imported and belongs to Slurm 26.05.5"),
        ("25.11.1", "25.11.0", "pyslurm", "belongs to Slurm 25.11.1"),
        ("25.11.1", "18.8.0", "cli", "18.8.0 does not belong to Slurm 25.11.1"),
        ("26.05.5", "what?", "cli", "pyslurm what? does not belong"),
        ("22.05.8", None, "cli", "there is no pyslurm for Slurm 22.05.8"),
        ("26.05.5", ClusterError("no module"), "cli", "no module"),
    ],
)
def test_auto_chooses_by_release_and_version(
    release: str,
    version: str | ClusterError | None,
    reader: str,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where there is no pyslurm for this Slurm none is looked for, and none is imported."""

    def probe(_: object) -> str:
        assert version is not None
        if isinstance(version, ClusterError):
            raise version
        return version

    class Config(Scontrol):
        slurm_conf = ""

    monkeypatch.setattr(readers, "probe", probe)
    choice = reader_choice(Config(), "auto", release)

    assert choice.reader == reader
    assert words in choice.reason
    assert reader_choice(Config(), "cli", release).reason == "cluster.reader is cli"
    if reader == "cli":
        with pytest.raises(ClusterError, match=r"cluster\.reader is pyslurm, but "):
            reader_choice(Config(), "pyslurm", release)
