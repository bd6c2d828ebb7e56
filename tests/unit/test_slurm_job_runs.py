"""What sacct tells of single jobs: its recorded output, and output that is broken or hostile."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import build
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_dl.ledger.attained_service import AttainedService
from slurm_dl.ledger.rebuild_from_accounting import chain_of, rebuild
from slurm_dl.model.errors import ClusterError
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobRow, JobState
from slurm_dl.slurm.accounting.job_runs import (
    IDS_AT_ONCE,
    Accounting,
    NoAccountingError,
    read_runs,
    run_arguments,
)
from slurm_dl.slurm.tool_runner import TOOLS, Slurm

RECORDINGS = sorted(Path(__file__).parents[1].glob("data/slurm-*/sacct.json"))

GOOD = "7|1000|500|506|510|560|REQUEUED|45|00:00:05|billing=1,cpu=1,gres/gpu=2,node=1"


class Told(Slurm):
    """Answers as it is told to, and remembers what it was asked."""

    def __init__(self, *answers: str | ClusterError, installed: bool = True) -> None:
        self.calls = Counter()
        self.answers = list(answers)
        self.asked: list[tuple[str, ...]] = []
        self.limits_s: list[float] = []
        self.installed = installed
        self.on_run: Callable[[], None] = lambda: None

    def has(self, tool: str) -> bool:
        """Whether it is there."""
        return self.installed or tool in TOOLS

    def run(self, tool: str, *args: str, within_s: float = float("inf")) -> str:
        """The next answer; nothing once there are no more."""
        self.calls[tool] += 1
        self.asked.append(args)
        self.limits_s.append(within_s)
        self.on_run()
        answer = self.answers.pop(0) if self.answers else ""
        if isinstance(answer, ClusterError):
            raise answer
        return answer


def ids_of(args: Sequence[str]) -> list[int]:
    return [int(i) for i in args[-1].removeprefix("--jobs=").split(",")]


@pytest.fixture(params=RECORDINGS, ids=lambda path: path.parent.name)
def recorded(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    path = request.param
    text = path.with_suffix(".txt").read_bytes().decode("utf-8", errors="replace")
    return text, json.loads(path.read_text("utf-8"))


def test_all_supported_releases_are_recorded() -> None:
    """Without recordings the tests over them would test nothing."""
    there = {path.parent.name for path in RECORDINGS}

    assert {"slurm-22.05", "slurm-24.11", "slurm-26.05"} <= there


def test_every_recorded_record_can_be_read(recorded: tuple[str, dict[str, Any]]) -> None:
    """Nothing is left out, whatever the release writes for times, states and resources."""
    text, told = recorded
    wanted = frozenset(int(j) for j in told["jobs"])

    runs, unreadable = read_runs(text, wanted)

    assert unreadable == 0
    assert {run.job_id for run in runs} == wanted


def test_recorded_chains_are_those_that_squeue_saw(
    recorded: tuple[str, dict[str, Any]],
) -> None:
    """Each job has as many earlier runs as restarts, and a present one, at squeue's own times."""
    text, told = recorded
    runs, _ = read_runs(text, frozenset(int(j) for j in told["jobs"]))

    for job, row in told["jobs"].items():
        chain = chain_of(
            [run for run in runs if run.job_id == int(job)],
            uid=int(row["UserID"]),
            submit_s=float(row["SubmitTime"]),
            restarts=int(row["RestartCnt"]),
        )
        assert chain.complete, job
        assert chain.present is not None, job
        spans = told["runs"].get(job, [])
        assert [run.start_s for run in chain.earlier] == [start_s for start_s, _ in spans], job
        # A requeue is up to one second behind the end of its run.
        ends = [requeue_s for _, requeue_s in spans]
        assert [run.end_s for run in chain.earlier] == pytest.approx(ends, abs=1.0), job


def test_recorded_gpus_and_states(recorded: tuple[str, dict[str, Any]]) -> None:
    """GPUs as they were held; none where there are none; who waits has no start."""
    text, told = recorded
    runs, _ = read_runs(text, frozenset(int(j) for j in told["jobs"]))
    of = {
        name: [run for run in runs if run.job_id == int(job)] for name, job in told["ids"].items()
    }

    assert [run.gpus for run in of["twice"]] == [2, 2, 2]
    assert [run.is_requeued for run in of["twice"]] == [True, True, False]
    assert [run.gpus for run in of["plain"]] == [None]
    assert [(run.start_s, run.end_s) for run in of["waiting"]] == [(0, 0)]
    assert [(run.start_s, run.elapsed_s) for run in of["cancelled"]] == [(0, 0)]
    (slept,) = of["slept"]
    assert slept.is_suspended
    assert 5 <= slept.suspended_s <= told["now_s"] - slept.start_s


def test_a_lost_ledger_is_rebuilt_from_a_recording(recorded: tuple[str, dict[str, Any]]) -> None:
    """What the recorded jobs have had is what squeue said of their runs meanwhile."""
    text, told = recorded
    ids = [int(j) for j in told["jobs"]]
    states = {"RUNNING": JobState.RUNNING, "SUSPENDED": JobState.SUSPENDED}
    rows = [
        JobRow(
            job_id=JobId(int(job)),
            state=states[row["State"]],
            uid=int(row["UserID"]),
            gpus=2 if job == told["ids"]["twice"] else 1,
            submit_s=float(row["SubmitTime"]),
            start_s=float(row["StartTime"]),
            restarts=int(row["RestartCnt"]),
        )
        for job, row in told["jobs"].items()
        if row["State"] in states
    ]
    seen = build.observed(rows, now_s=told["now_s"])
    service = build.folded(AttainedService.empty(), seen).service

    rebuilt = rebuild(service, seen, read_runs(text, frozenset(ids))[0], ids)

    assert rebuilt.short == frozenset()
    had = dict(zip(rebuilt.service.job_id.tolist(), rebuilt.service.ran_s.tolist(), strict=True))
    for row in rows:
        if row.state is JobState.RUNNING:
            spans = told["runs"].get(str(row.job_id), [])
            ran_s = sum(end - start for start, end in spans) + told["now_s"] - row.start_s
            assert had[row.job_id] == pytest.approx(ran_s, abs=len(spans) + 1.0)
    slept = int(told["ids"]["slept"])
    start_s = next(row.start_s for row in rows if row.job_id == slept)
    assert 0 < had[slept] <= told["now_s"] - start_s - 5


def test_no_field_that_a_user_writes_is_asked_for() -> None:
    """Job names and comments may hold bars and line ends."""
    fields = run_arguments([1])[-2].removeprefix("--format=").split(",")

    assert not {"JobName", "Comment", "WorkDir", "WCKey", "SubmitLine"} & set(fields)
    assert {"--duplicates", "--allusers", "--allocations"} <= set(run_arguments([1]))


def test_a_record_is_read_field_by_field() -> None:
    (run,), unreadable = read_runs(GOOD + "\n", frozenset({7}))

    assert unreadable == 0
    assert (run.job_id, run.uid, run.submit_s, run.eligible_s) == (7, 1000, 500, 506)
    assert (run.start_s, run.end_s, run.elapsed_s, run.suspended_s) == (510, 560, 45, 5)
    assert (run.gpus, run.is_requeued, run.is_part, run.is_suspended) == (2, True, False, False)


def test_who_was_cancelled_while_waiting_never_started() -> None:
    """22.05.8 gives the end as the start of such a job; that it held nothing tells."""
    text = "7|1000|500|500|560|560|CANCELLED by 0|0|00:00:00|\n"
    (run,), _ = read_runs(text, frozenset({7}))

    assert (run.start_s, run.end_s, run.gpus) == (0, 560, None)


def test_long_suspensions_have_days() -> None:
    text = GOOD.replace("00:00:05", "2-03:00:01") + "\n"

    assert read_runs(text, frozenset({7}))[0][0].suspended_s == 2 * 86400 + 3 * 3600 + 1


@pytest.mark.parametrize(
    "broken",
    [
        "7|1000|500",
        GOOD + "|more",
        GOOD.replace("7|", "7_[1-3]|", 1),
        GOOD.replace("7|", "7.batch|", 1),
        GOOD.replace("|1000|", "|-1|"),
        GOOD.replace("|1000|", "|root|"),
        GOOD.replace("|500|", "|Unknown|"),
        GOOD.replace("|500|", "|tomorrow|"),
        GOOD.replace("|560|", "|400|"),
        GOOD.replace("|560|", "|" + "9" * 400 + "|"),
        GOOD.replace("|45|", "|4.5|"),
        GOOD.replace("|45|", "|-3|"),
        GOOD.replace("|45|", "|\u0664|"),
        GOOD.replace("00:00:05", "UNLIMITED"),
        GOOD.replace("gpu=2", "gpu=" + "9" * 400),
        GOOD.replace("REQUEUED", ""),
        "",
        "\x00" * 50,
    ],
)
def test_a_broken_record_is_left_out_and_counted(broken: str) -> None:
    """One bad record is no reason to do without the others."""
    runs, unreadable = read_runs(f"{GOOD}\n{broken}\n", frozenset({7}))

    assert (len(runs), unreadable) == (1, 1)


def test_output_that_is_cut_short_is_not_used() -> None:
    """Half a list of runs would look like a short history."""
    with pytest.raises(ClusterError, match="stops in the middle"):
        read_runs(f"{GOOD}\n{GOOD[:20]}", frozenset({7}))


def test_output_of_which_nothing_can_be_read_is_an_error() -> None:
    with pytest.raises(ClusterError, match="none of 2 records"):
        read_runs("a\nb\n", frozenset({7}))


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="7|0159REQUEUED:,=/gpu\n \x00é", max_size=200))
def test_no_text_breaks_the_reader(text: str) -> None:
    """Whatever comes is runs of the jobs wanted, or one kind of error."""
    try:
        runs, _ = read_runs(text, frozenset({7}))
    except ClusterError:
        return
    assert all(run.job_id == 7 and run.submit_s > 0 for run in runs)


def test_tasks_that_nobody_asked_about_are_passed_over() -> None:
    """Asked for the id of an array, sacct tells of all its tasks (measured on all releases)."""
    text = f"{GOOD}\n8{GOOD[1:]}\n9{GOOD[1:]}\n"
    told = Accounting(Told(text)).runs([7, 9], within_s=9)

    assert sorted(run.job_id for run in told.runs) == [7, 9]
    assert told.unreadable == 0


def test_ids_are_asked_in_chunks() -> None:
    """No argument is over-long and slurmdbd is not asked for everything at once."""
    slurm = Told()
    ids = list(range(1, 2 * IDS_AT_ONCE + 2))

    told = Accounting(slurm).runs(ids, within_s=9)

    assert [len(ids_of(args)) for args in slurm.asked] == [IDS_AT_ONCE, IDS_AT_ONCE, 1]
    assert [i for args in slurm.asked for i in ids_of(args)] == ids
    assert told.asked == frozenset(ids)


def test_it_stops_when_its_time_is_over() -> None:
    """A slow slurmdbd is not waited for chunk after chunk; what it said is used."""
    now_s = [0.0]
    slurm = Told()

    def slow() -> None:
        now_s[0] += 4.0

    slurm.on_run = slow
    ids = list(range(1, 5 * IDS_AT_ONCE))

    told = Accounting(slurm, clock=lambda: now_s[0]).runs(ids, within_s=10)

    assert slurm.limits_s == [10, 6, 2]
    assert told.asked == frozenset(ids[: 3 * IDS_AT_ONCE])


def test_an_error_in_the_middle_keeps_what_was_told() -> None:
    slurm = Told("", ClusterError("no answer in 3 s"))
    ids = list(range(1, 2 * IDS_AT_ONCE))

    assert Accounting(slurm).runs(ids, within_s=9).asked == frozenset(ids[:IDS_AT_ONCE])


def test_an_error_at_once_is_the_callers() -> None:
    with pytest.raises(ClusterError, match="no answer"):
        Accounting(Told(ClusterError("no answer in 3 s"))).runs([1], within_s=9)


def test_a_cluster_without_accounting_says_so() -> None:
    """As all releases word it."""
    said = "sacct --allusers failed (exit 1): Slurm accounting storage is disabled"

    with pytest.raises(NoAccountingError, match="disabled"):
        Accounting(Told(ClusterError(said))).runs([1], within_s=9)
    with pytest.raises(NoAccountingError, match="not installed"):
        Accounting(Told(installed=False)).runs([1], within_s=9)


def test_slurm_without_sacct_is_a_slurm(tmp_path: Path) -> None:
    """No cluster may fail because it has no accounting tools."""
    for tool in TOOLS:
        (tmp_path / tool).write_text("#!/bin/sh\n", "utf-8")
        (tmp_path / tool).chmod(0o755)
    slurm = Slurm(bin_dir=tmp_path)

    assert not slurm.has("sacct")
    with pytest.raises(ClusterError, match="sacct is not installed"):
        slurm.run("sacct")


def test_a_shorter_limit_is_kept(tmp_path: Path) -> None:
    """What may not hold up a cycle is ended before the usual time."""
    for tool in (*TOOLS, "sacct"):
        (tmp_path / tool).write_text("#!/bin/sh\nexec sleep 60\n", "utf-8")
        (tmp_path / tool).chmod(0o755)

    with pytest.raises(ClusterError, match=r"no answer in 0\.2 s; is slurmdbd"):
        Slurm(bin_dir=tmp_path, timeout_s=50).run("sacct", within_s=0.2)
