"""Pending tasks of arrays: several records of squeue that are one, and the task it leaves out."""

from __future__ import annotations

import os
import re
import time
import tracemalloc
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from squeue_records import RUNNING, answer, words

from slurm_dl.model.errors import ClusterError
from slurm_dl.model.ids import JobId
from slurm_dl.model.plan import Detach
from slurm_dl.model.snapshot import LeftOut
from slurm_dl.slurm.controller import SiteConfig
from slurm_dl.slurm.read.comment_claims import ClaimReader
from slurm_dl.slurm.read.grammar import tasks_as_one, tasks_of
from slurm_dl.slurm.read.job_reader import JobReader
from slurm_dl.slurm.read.job_table import JobTable
from slurm_dl.slurm.read.node_reader import ClusterReading, read_nodes, site_of
from slurm_dl.slurm.read.queue_reader import ArrayTasks, CliQueue
from slurm_dl.slurm.read.record_parser import job_fields, job_records, one_per_job
from slurm_dl.slurm.releases import Release
from slurm_dl.slurm.tool_runner import TOOLS, Slurm
from slurm_dl.slurm.write.actions import Actor
from slurm_dl.slurm.write.release_all import release_all

PLAIN = RUNNING | words("State=PENDING Reason=Priority NodeList=")
STEPPED = [f"6_{task}" for task in range(0, 100, 10)]
"""What squeue lists of ``6_[0-100:10]``: the last one is missing."""


OLDER = Release(24, 11, 5)


def site(release: Release) -> ClusterReading:
    config = SiteConfig(release=release, tracks_memory=True)
    return site_of(read_nodes("", "x"), topology="", reservations=(), config=config, type_row={})


class Squeue(Slurm):
    """A queue of (id, label, other fields); `folded` is what one record an array would say."""

    def __init__(self, *rows: tuple[int, str, dict[str, str]]) -> None:
        self.calls = Counter()
        self.rows = rows
        self.folded = {6: "6_[0-100:10%2]"}
        self.done: list[str] = []
        self.longest = 0

    def run(self, tool: str, *args: str) -> str:
        """Slurm's answer."""
        self.longest = max(self.longest, *map(len, args))
        if tool == "sprio" or "show" in args:
            return ""
        if tool != "squeue":
            self.done.append(" ".join([tool, *args]))
            return ""
        if args[-1].startswith("--format="):
            return "".join(
                f"{job_id} (null) 1 0 * * * N/A 0 (null)\n" for job_id, _, _ in self.rows
            )
        rows = self.rows
        if "--array" not in args:
            self.calls["folded"] += 1
            named = args[0].removeprefix("--jobs=").split(",")
            ids = set(map(int, named)) if "--jobs" in args[0] else self.folded.keys()
            rows = tuple((i, label, {}) for i, label in self.folded.items() if i in ids)
        return answer(
            args,
            [PLAIN | more | {"JobID": str(i), "JobArrayID": label} for i, label, more in rows],
        )


def stepped(*more: tuple[int, str, dict[str, str]]) -> Squeue:
    return Squeue(*((6, label, {}) for label in STEPPED), *more)


def read(slurm: Slurm, release: Release = OLDER) -> JobTable:
    reader = JobReader(ClaimReader(max_grace_s=600))
    return CliQueue(slurm).table(reader, site(release), now_s=500.0)


@pytest.mark.parametrize(
    ("tasks", "label"),
    [
        ([3, 1, 2], "6_[1-3]"),
        ([0, 5, 6, 7, 9], "6_[0,5-7,9]"),
        ([20, 30, 10], "6_[10-30:10]"),
        ([0, 20], "6_[0,20]"),
        ([0, 2, 4, 5], "6_[0,2,4-5]"),
    ],
)
def test_tasks_as_one_label(tasks: list[int], label: str) -> None:
    """Ranges, and a step where all tasks are in it."""
    assert tasks_as_one([f"6_{task}" for task in tasks]) == label


@given(st.sets(st.integers(0, 3_000), min_size=2, max_size=40))
def test_every_task_is_in_the_label_and_no_other(tasks: set[int]) -> None:
    """Whatever the tasks are, the label names exactly them."""
    label = tasks_as_one([f"6_{task}" for task in tasks])

    assert label is not None
    assert tasks_of(label) == sorted(tasks)


@pytest.mark.parametrize("labels", [["6_1", "7_2"], ["6_1", "6_1"], ["6", "6"], ["6_1", "x"]])
def test_what_is_not_one_array_is_not_made_one(labels: list[str]) -> None:
    """Tasks of different arrays, the same task twice, no tasks."""
    assert tasks_as_one(labels) is None


def test_records_of_one_job_become_one() -> None:
    """Pending tasks share an id; all else stays as it was, in its order."""
    rows = [("1", "1"), ("6", "6_3"), ("9", "6_2"), ("6", "6_4"), ("7", "7"), ("7", "7")]
    text = "".join(f"{job_id}xf{label}xfPENDINGxr\n" for job_id, label in rows)

    records, unreadable = job_records(text, "x", 3)

    assert records == [
        *(["1", "1", "PENDING"], ["6", "6_[3-4]", "PENDING"]),
        *(["9", "6_2", "PENDING"], ["7", "7", "PENDING"]),
    ]
    assert unreadable == 1


def test_records_that_differ_in_more_than_the_label_are_not_mixed() -> None:
    """Two records of one id that are no tasks of one array stand for the first alone."""
    raw = ["6xf6_3xfPENDING", "6xf6_4xfRUNNING", "8xf8xfPENDING"]

    assert one_per_job(raw, "x") == ([raw[0], raw[2]], 1)


def test_last_task_of_a_stepped_array_is_found() -> None:
    """The listing by tasks leaves it out; the folded one has it, and what has its own record."""
    slurm = stepped((9, "6_110", {"State": "RUNNING"}))
    slurm.folded = {6: "6_[0-100:10%2]"}

    table = read(slurm)

    assert table.job_id == [6, 9]
    assert table.tasks == [11, 1]
    assert table.texts[6].label == "6_[0-100:10]"


def test_requeued_task_is_not_counted_twice() -> None:
    """It is in the folded listing too, and has a record."""
    slurm = stepped((9, "6_110", {"RestartCnt": "1"}))
    slurm.folded = {6: "6_[0-110:10]"}

    table = read(slurm)

    assert (table.tasks, table.texts[6].label) == ([11, 1], "6_[0-100:10]")


def test_other_arrays_are_not_asked_about() -> None:
    """Only a step makes squeue leave one out."""
    slurm = Squeue(*((6, f"6_{task}", {}) for task in (1, 2, 3, 7)), (9, "9", {}))

    assert read(slurm).texts[6].label == "6_[1-3,7]"
    assert slurm.calls["folded"] == 0


def test_stepped_array_is_asked_about_once() -> None:
    """And again when it has changed, and with the nodes."""
    slurm = stepped()
    table = read(slurm)
    table.texts[6] = replace(table.texts[6], label="6_[0-90:10]")
    arrays = ArrayTasks(slurm)

    for asked in (2, 2):
        arrays.complete(table)
        assert slurm.calls["folded"] == asked
        table.texts[6] = replace(table.texts[6], label="6_[0-90:10]")
    table.texts[6] = replace(table.texts[6], label="6_[10-90:10]")
    slurm.folded = {6: "6_[10-100:10]"}
    arrays.complete(table)
    assert table.tasks == [10]
    assert slurm.calls["folded"] == 3
    arrays.forget()
    arrays.complete(table)
    assert slurm.calls["folded"] == 4


@pytest.mark.parametrize("folded", [{}, {6: "6_[10-100:10]"}, {6: "6"}])
def test_array_that_changes_while_it_is_read_is_left_out(folded: dict[int, str]) -> None:
    """Of half a picture nothing is made: naming some of the pending tasks would split them off.

    No other job is, nothing is done to the array, and the next look has it again.
    """
    slurm = stepped((9, "9", {}))
    slurm.folded = folded
    queue = CliQueue(slurm)

    def look() -> JobTable:
        return queue.table(JobReader(ClaimReader(max_grace_s=600)), site(OLDER), now_s=500.0)

    table = look()

    assert (table.job_id, table.unreadable) == ([9], 1)
    assert table.left_out == {JobId(6): LeftOut(uid=1000, label="6_[0-90:10]")}
    assert JobId(6) not in table.texts
    with pytest.raises(ClusterError, match="changed while it was read"):
        Actor(slurm).apply(Detach(job_id=JobId(6), why="test"))
    with pytest.raises(ClusterError, match="1 things could not be released"):
        list(release_all(slurm, ["gpu"]))
    assert slurm.done == ["scontrol update JobId=9 SiteFactor=0"]
    slurm.folded = {6: "6_[0-100:10]"}
    assert (look().job_id, look().left_out) == ([6, 9], {})


def test_array_that_is_over_is_not_asked_about() -> None:
    """Slurm goes on listing its tasks in steps, and nothing of it can be missing."""
    slurm = Squeue(*((6, label, {"State": "CANCELLED"}) for label in STEPPED))

    assert read(slurm).tasks == [10]
    assert slurm.calls["folded"] == 0


def test_many_arrays_are_asked_about_without_naming_them() -> None:
    """An argument of Linux holds 128 KiB."""
    slurm = Squeue(*((job, f"{job}_[0-8:2]", {}) for job in range(1, 1_200)))
    slurm.folded = {job: f"{job}_[0-10:2]" for job in range(1, 1_200)}

    table = read(slurm)

    assert set(table.tasks) == {6}
    assert slurm.longest < 20_000


def test_all_tasks_of_a_waiting_array_are_named() -> None:
    """Detach and release-all reach its common record, whose every task they name."""
    ours = {"Reservation": "slurm_dl_4"}
    slurm = Squeue(*((6, label, ours) for label in STEPPED))
    tasks = ",".join(str(task) for task in range(0, 101, 10))

    Actor(slurm).apply(Detach(job_id=JobId(6), why="test"))
    assert slurm.done == [f"scontrol update JobId=6_[{tasks}] ReservationName="]
    slurm.done.clear()
    list(release_all(slurm, ["other"]))
    assert slurm.done[0] == f"scontrol update JobId=6_[{tasks}] ReservationName="


@pytest.mark.parametrize(
    ("release", "word", "exclusive"),
    [
        *[(OLDER, word, True) for word in ("NO", "USER", "MCS", "TOPO")],
        *[(OLDER, word, False) for word in ("OK", "YES")],
        *[(Release(26, 5, 5), word, True) for word in ("NODE", "USER", "MCS", "TOPO")],
        (Release(26, 5, 5), "NO", False),
    ],
)
def test_who_wants_nodes_for_itself(release: Release, word: str, *, exclusive: bool) -> None:
    """Up to 25.11 OverSubscribe says it, and "NO" means yes; from 26.05 on Exclusive does."""
    asked = "Exclusive" if release >= Release(26, 5) else "OverSubscribe"
    assert asked in job_fields(release)
    slurm = Squeue((1, "1", {"OverSubscribe": "NO", asked: word}))

    assert read(slurm, release).exclusive == [exclusive]


PRINTS = """#!/usr/bin/python3 -IS
import sys
nonce = sys.argv[-1].rpartition(":")[2][:-1]
fields = [word.partition(":")[0] for word in sys.argv[-1].removeprefix("--Format=").split(",")]
known = {known!r}
for task in range(30_000):
    known |= {{"JobID": "6", "JobArrayID": f"6_{{task}}"}}
    print((nonce + "f").join(known[name] for name in fields) + nonce + "r")
sum(i * i for i in range(12_000_000))
"""


def test_texts_of_a_huge_array_are_held_once(tmp_path: Path) -> None:
    """Squeue prints them for each task; and its own work is no sign of a slow slurmctld."""
    text = {"Name": "🦥" + "A" * 900, "Comment": "B" * 900}
    for tool in TOOLS:
        (tmp_path / tool).write_text(PRINTS.format(known=PLAIN | text), "utf-8")
        (tmp_path / tool).chmod(0o755)
    slurm = Slurm(bin_dir=tmp_path)
    tracemalloc.start()
    began_s, computed_s = time.monotonic(), os.times().children_user
    try:
        table = CliQueue(slurm).table(JobReader(ClaimReader(max_grace_s=9)), site(OLDER), now_s=5.0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert (table.job_id, table.tasks) == ([6], [30_000])
    assert table.texts[JobId(6)].label == "6_[0-29999]"
    assert peak < 16 * 2**20  # All of it is 60 MB.
    # A busy machine makes the whole longer, not what the tool computes.
    computed_s = os.times().children_user - computed_s
    assert slurm.spent_s < time.monotonic() - began_s - computed_s / 2


def test_folded_listing_is_matched_by_id() -> None:
    """Several stepped arrays are asked about in one call."""
    slurm = Squeue(
        *((6, label, {}) for label in STEPPED),
        *((20, re.sub("^6", "20", label), {}) for label in STEPPED),
    )
    slurm.folded = {6: "6_[0-100:10]", 20: "20_[0-100:10%1]", 30: "30_[0-100:10]"}

    assert read(slurm).tasks == [11, 11]
    assert slurm.calls["folded"] == 1
