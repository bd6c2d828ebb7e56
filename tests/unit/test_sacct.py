"""What sacct tells, as the ledger, the estimates and a history take it."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import build
import pytest

from slurm_dl.ledger.attained_service import AttainedService
from slurm_dl.ledger.rebuild_from_accounting import chain_of, rebuild
from slurm_dl.model.completed_jobs import Past
from slurm_dl.model.errors import ClusterError, ConfigError
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobRow, JobState
from slurm_dl.slurm.accounting import job_runs
from slurm_dl.slurm.accounting.job_runs import IDS_AT_ONCE, Accounting, read_runs
from slurm_dl.slurm.accounting.past_jobs import (
    LATE_S,
    FetchTally,
    PastReader,
    StandIns,
    history,
    past_of,
    readable,
    run_of,
)
from slurm_dl.slurm.accounting.query import (
    FIELDS,
    NAMED_FIELDS,
    SHORTEST_S,
    NoAccountingError,
    arguments,
    parse,
)
from slurm_dl.slurm.tool_runner import TOOLS, Slurm
from slurm_dl.traces.slurm.dumps import read_past_dump

RECORDINGS = sorted(Path(__file__).parents[1].glob("data/slurm-*/sacct.json"))
DAY_S = 86_400.0
NOW_S = 20_000 * DAY_S
NONCE = "xabcdefghi"
DISABLED = "sacct --allusers failed (exit 1): Slurm accounting storage is disabled"

Told = dict[str, str]


def record(job: str, end_s: float, ran_s: float = 600.0, **more: str) -> Told:
    """A run that ended so many seconds before now."""
    end = NOW_S - end_s
    return {
        "JobName": f"name{job}", "Comment": "", "JobID": job, "JobIDRaw": job, "UID": "1000",
        "User": "ann", "Account": "vision", "Submit": f"{end - ran_s - 60:.0f}",
        "Start": f"{end - ran_s:.0f}",
        "Eligible": f"{end - ran_s - 50:.0f}", "End": f"{end:.0f}", "State": "COMPLETED",
        "ElapsedRaw": f"{ran_s:.0f}", "Suspended": "00:00:05",
        "ReqTRES": "billing=1,cpu=1,gres/gpu=9", "AllocTRES": "billing=1,cpu=1,gres/gpu=4", **more,
    }  # fmt: skip


class Dbd(Slurm):
    """Answers as slurmdbd does: every run of the jobs, or that was there in the window."""

    def __init__(self, *records: Told, there: bool = True) -> None:
        self.calls = Counter()
        self.records = [*records]
        self.windows: list[tuple[float, float]] = []
        self.asked: list[list[int]] = []
        self.limits_s: list[float] = []
        self.errors: list[str] = []  # Of the next calls; empty: none
        self.longest_s = float("inf")
        self.there = there
        self.on_run: Callable[[], None] = lambda: None

    def has(self, tool: str) -> bool:
        """Whether it is installed."""
        return self.there or tool in TOOLS

    def run(self, tool: str, *args: str, within_s: float = float("inf")) -> str:
        """One call."""
        assert tool == "sacct"
        self.limits_s.append(within_s)
        self.on_run()
        given = dict(arg.partition("=")[::2] for arg in args)
        if self.errors and (error := self.errors.pop(0)):
            raise ClusterError(error)
        end = given.get("--delimiter", "")
        fields = given["--format"].split(",")
        return "".join(
            (end or "|").join(r[name] for name in fields) + end + "\n" for r in self._found(given)
        )

    def _found(self, given: Told) -> list[Told]:
        if "--jobs" in given:
            self.asked.append([int(job) for job in given["--jobs"].split(",")])
            return self.records
        begin_s, end_s = (
            datetime.fromisoformat(given[name]).replace(tzinfo=UTC).timestamp()
            for name in ("--starttime", "--endtime")
        )
        if end_s - begin_s > self.longest_s:
            msg = "sacct --allusers: no answer in 30 s; is slurmdbd overloaded or down?"
            raise ClusterError(msg)
        self.windows.append((begin_s, end_s))
        return [
            r
            for r in self.records
            if float(r["Start"]) <= end_s
            and (not r["End"].isdecimal() or float(r["End"]) >= begin_s)
        ]


def fetch(dbd: Slurm, days: float = 3, **more: Any) -> tuple[list[list[str]], FetchTally]:  # noqa: ANN401
    tally = FetchTally()
    lines = list(history(dbd, NOW_S - days * DAY_S, NOW_S, tally=tally, **more))
    return [line.rstrip("\n").split("|") for line in lines], tally


def jobs_of(past: Past) -> list[tuple[str, str, str, float, float]]:
    """(user, account, name, GPUs, seconds) of each job, in order."""
    return [
        (past.users[u], past.accounts[a], past.names[n], g, r)
        for u, a, n, g, r in zip(
            past.user, past.account, past.name, past.gpus, past.ran_s, strict=True
        )
    ]


# Records.

READERS: dict[str, Callable[[str], tuple[list[Any], int]]] = {
    "ledger": lambda text: read_runs(text, frozenset({7})),
    "past": lambda text: parse(text, NAMED_FIELDS, run_of, nonce=NONCE),
    "history": lambda text: parse(text, FIELDS, readable),
}
ASKED = {"ledger": job_runs.FIELDS, "past": NAMED_FIELDS, "history": FIELDS}


def line(reader: str, **more: str) -> str:
    told = record("7", 10, State="REQUEUED") | more
    between, end = (NONCE, f"{NONCE}\n") if reader == "past" else ("|", "\n")
    return between.join(told[name] for name in ASKED[reader]) + end


BROKEN: list[tuple[str, Told]] = [
    ("ledger past", {"JobIDRaw": "7_[1-3]", "JobID": "7; rm"}),
    ("ledger", {"JobIDRaw": "7.batch"}),
    ("ledger", {"UID": "-1"}),
    ("ledger", {"UID": "root"}),
    ("ledger", {"Submit": "Unknown"}),
    ("ledger past history", {"Submit": "tomorrow"}),
    ("ledger past history", {"Submit": "9" * 15}),
    ("ledger", {"End": "400"}),
    ("ledger past history", {"End": "9" * 400}),
    ("ledger past", {"ElapsedRaw": "4.5"}),
    ("ledger past", {"ElapsedRaw": "-3"}),
    ("ledger past", {"ElapsedRaw": "1e3"}),
    ("ledger past", {"ElapsedRaw": "\u0664"}),
    ("ledger", {"Suspended": "UNLIMITED"}),
    ("ledger", {"AllocTRES": "gres/gpu=" + "9" * 400}),
    ("ledger past", {"State": ""}),
    ("ledger history", {"State": "a|b"}),
    ("ledger history", {"State": "a\nb"}),
]


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(("by", "more"), BROKEN, ids=range(len(BROKEN)))
def test_a_broken_record_is_left_out_and_counted(reader: str, by: str, more: Told) -> None:
    """One bad record is no reason to do without the others."""
    runs, unreadable = READERS[reader](line(reader) + line(reader, **more) + line(reader))

    assert len(runs) == 3 - (reader in by)
    assert unreadable == (reader in by) * (1 + more.get("State", "").count("\n"))


@pytest.mark.parametrize("reader", READERS)
def test_output_that_is_cut_short_or_unreadable_is_not_used(reader: str) -> None:
    """Half a list of runs would look like a short history."""
    assert READERS[reader]("") == ([], 0)
    whole = line(reader)
    with pytest.raises(ClusterError, match="stops in the middle"):
        READERS[reader](whole + whole[:20])
    with pytest.raises(ClusterError, match="stops in the middle"):
        READERS[reader](whole[:-1])
    end = f"{NONCE}\n" if reader == "past" else "\n"
    with pytest.raises(ClusterError, match=r"none of 2 records|stops in the middle"):
        READERS[reader](f"a{end}\x00{end}")


def test_a_record_is_read_field_by_field() -> None:
    """As the ledger takes it; who was cancelled while waiting never started."""
    text = line(
        "ledger", Submit="500", Eligible="506", Start="510", End="560", Suspended="2-03:00:01"
    )
    # 22.05.8 gives the end as the start of such a job; that it held nothing tells.
    cancelled = line("ledger", State="CANCELLED by 0", AllocTRES="", Start="560", End="560")
    (run, never), _ = read_runs(text + cancelled, frozenset({7}))

    assert (run.job_id, run.uid, run.submit_s, run.eligible_s) == (7, 1000, 500, 506)
    assert (run.start_s, run.end_s, run.elapsed_s) == (510, 560, 600)
    assert run.suspended_s == 2 * 86400 + 3 * 3600 + 1
    assert (run.gpus, run.is_requeued, run.is_part, run.is_suspended) == (4, True, False, False)
    assert (never.start_s, never.end_s, never.gpus) == (0, 560, None)


def test_a_lone_record_that_makes_no_sense_is_no_error_of_the_ledger() -> None:
    """It may be the only job that was asked about."""
    assert read_runs(line("ledger", End="400"), frozenset({7})) == ([], 1)


def test_names_and_comments_alone_are_asked_for_of_what_a_user_writes() -> None:
    """They may hold bars and line ends, so their separator is drawn anew for each call."""
    written = {"JobName", "Comment", "WorkDir", "WCKey", "SubmitLine"}

    assert not written & {*FIELDS, *job_runs.FIELDS}
    assert written & {*NAMED_FIELDS} == {"JobName", "Comment"} == {*NAMED_FIELDS[:2]}
    assert {"--duplicates", "--allusers", "--allocations"} < {*arguments(FIELDS)}
    assert "--clusters=big" in arguments(FIELDS, cluster="big")


# Windows of time.


def test_a_run_that_spans_windows_appears_once() -> None:
    """Whatever a window lists, a run is written where it ended, or at the very end."""
    dbd = Dbd(
        record("1", 2.9 * DAY_S),
        record("2", 1.2 * DAY_S, 1.5 * DAY_S),
        record("3", 2 * DAY_S),
        record("4", -DAY_S, 3 * DAY_S),
        record("5", 1, End="Unknown", State="RUNNING", AllocTRES="", ReqTRES="cpu=1"),
        record("6", 3.01 * DAY_S),
    )
    lines, tally = fetch(dbd)

    assert Counter(told[0] for told in lines) == Counter("12345")
    assert (tally.runs, tally.with_gpus, tally.done) == (5, 4, 1.0)
    assert [b - a for a, b in dbd.windows] == [DAY_S] * 3


@pytest.mark.parametrize(
    "read", [fetch, lambda dbd: PastReader(dbd, days=3, clock=lambda: NOW_S).read()]
)
def test_a_window_that_takes_too_long_is_halved(read: Callable[[Slurm], Any]) -> None:
    """Half a day is asked for where a day is too much, and nothing is lost; not for ever."""
    dbd = Dbd(*(record(str(n), 3600 * n + 1) for n in range(60)))
    dbd.longest_s = 7 * 3600
    found = read(dbd)

    assert len(found[0] if isinstance(found, tuple) else found) == 60
    assert max(b - a for a, b in dbd.windows) == 6 * 3600
    assert all(b == a for (_, b), (a, _) in zip(dbd.windows, dbd.windows[1:], strict=False))
    dbd.longest_s = SHORTEST_S / 2
    with pytest.raises(ClusterError, match="no answer in"):
        read(dbd)


def test_names_of_people_are_replaced_all_through() -> None:
    """The same person has the same number, and the state names nobody either."""
    dbd = Dbd(
        record("1", 5000),
        record("2", 4000, User="bob", State="CANCELLED by 1000"),
        record("3", 3000),
        record("4", 2000, User="", Account="speech"),
    )
    lines, _ = fetch(dbd, days=1, stand_ins=StandIns())

    assert [told[1] for told in lines] == ["user-1", "user-2", "user-1", ""]
    assert [told[2] for told in lines] == ["account-1", "account-1", "account-1", "account-2"]
    text = "\n".join("|".join(told) for told in lines)
    assert not any(word in text for word in ("ann", "bob", "1000", "vision", "speech"))


# Jobs that are over.


def test_jobs_are_read_in_the_order_in_which_they_ended() -> None:
    """Those of the last days; later what is new, and the last hour again; nothing counts twice."""
    dbd = Dbd(
        record("1", 100, 50),
        record("2", 3 * DAY_S, User="bob", Account="nlp"),
        record("3", 5 * DAY_S),
        record("4", 10, End="Unknown", State="RUNNING"),
        record("5", 20, ReqTRES="cpu=1", AllocTRES="cpu=1"),
        record("6", 20, 0.0, State="CANCELLED by 1000", AllocTRES=""),
        record("7", 30, 9, AllocTRES=""),
        record("8_3", 40, 8, State="TIMEOUT", JobName="a|b\n7|"),
        record("9.batch", 50),
    )
    now_s = NOW_S
    reader = PastReader(dbd, days=4, clock=lambda: now_s)
    past = reader.read()

    assert jobs_of(past) == [
        ("bob", "nlp", "name2", 4.0, 600.0),
        ("ann", "vision", "name1", 4.0, 50.0),
        ("ann", "vision", "a|b\n7|", 4.0, 8.0),
        ("ann", "vision", "name7", 9.0, 9.0),
    ]
    assert (past.submit_s[1], past.start_s[1], past.end_s[1]) == (
        *(NOW_S - 210, NOW_S - 150, NOW_S - 100),
    )
    assert [round((e - b) / DAY_S) for b, e in dbd.windows] == [1, 1, 1, 1]

    dbd.errors = ["", "sacct: slurmdbd is down"]
    dbd.records += [record("10", -500), record("11", 1800, 60)]
    now_s += 1.5 * DAY_S
    with pytest.raises(ClusterError, match="is down"):
        reader.read()
    dbd.windows.clear()
    again = reader.read()
    # What was read before the error is kept.
    assert dbd.windows == [(NOW_S + DAY_S - 2 * LATE_S, now_s)]
    assert [again.names[i] for i in again.name][:3] == ["name11", "name1", "a|b\n7|"]
    assert len(again) == 5


def test_runs_of_a_job_are_one_job_and_so_are_its_components() -> None:
    """Requeued: all runs together, once the last is over. Heterogeneous: all components."""
    runs = [
        run_of(told)
        for told in (
            record("1", 5000, 1000, State="REQUEUED"),
            record("1", 3000, 700, State="PREEMPTED"),
            record("1", 1000, 200, AllocTRES="gres/gpu=8"),
            record("2", 900, 50, State="REQUEUED"),
            record("3+0", 800, 50, AllocTRES="gres/gpu=2"),
            record("3+1", 790, 60, AllocTRES="gres/gpu=1"),
            record("1", 700, 30, User="bob"),
        )
    ]
    past = past_of(run for run in runs if run is not None)

    assert jobs_of(past) == [
        ("ann", "vision", "name1", 8.0, 1900.0),
        ("ann", "vision", "name3+0", 3.0, 60.0),
        ("bob", "vision", "name1", 4.0, 30.0),
    ]
    assert past.submit_s[0] == NOW_S - 5000 - 1000 - 60
    assert past.end_s[1] == NOW_S - 790


def test_a_dump_is_read_with_bars_in_names(tmp_path: Path) -> None:
    """The name stands last, or is not there; lines that are no records are counted."""
    path, packed = tmp_path / "d.txt", tmp_path / "d.gz"
    records = [
        record("1", 10, JobName="a|b|c"),
        record("2", 20, JobName="x\nwhat"),
        record("1.batch", 10),
        record("1", 10, JobName="a|b|c"),
    ]

    def dump(*fields: str) -> Path:
        lines = ["|".join(fields), *("|".join(r[f] for f in fields) for r in records)]
        path.write_text("\n".join(lines) + "\n", "utf-8")
        return path

    found = read_past_dump(dump(*FIELDS, "JobName"))
    assert [job[2] for job in jobs_of(found.past)] == ["x", "a|b|c"]
    assert (found.left_out, found.has_names) == (1, True)
    for told in records:
        told["Comment"] = '{"slurm_dl": {"tag": "0123456789ab"}}'
    records[1]["Comment"] += "|"  # Then it is not read, and the rest is taken for the name.
    past = read_past_dump(dump(*FIELDS, "Comment", "JobName")).past
    assert [past.tags[i] for i in past.tag] == ["0123456789ab", "0123456789ab"]
    assert [job[2] for job in jobs_of(past)] == ["|x", "a|b|c"]
    dump(*FIELDS, "JobName")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert jobs_of(read_past_dump(packed).past) == jobs_of(found.past)
    found = read_past_dump(dump("JobIDRaw", *FIELDS[1:]))
    assert (found.has_names, found.past.names, len(found.past)) == (False, ("",), 2)

    with pytest.raises(ConfigError, match=r"no column Submit, Start.*--format="):
        read_past_dump(dump("JobID", "User"))
    records = [record("1", 10, State="RUNNING", End="Unknown")]
    with pytest.raises(ConfigError, match="no finished run"):
        read_past_dump(dump(*FIELDS))
    with pytest.raises(ConfigError, match="cannot be read"):
        read_past_dump(tmp_path / "nothing")


# Single jobs.


def test_ids_are_asked_in_chunks_until_the_time_is_over() -> None:
    """A slow slurmdbd is not waited for chunk after chunk; what it said is used."""
    now_s = [0.0]
    dbd = Dbd()
    ids = list(range(1, 3 * IDS_AT_ONCE + 2))
    told = Accounting(dbd).runs(ids, within_s=9)
    assert [len(some) for some in dbd.asked] == [IDS_AT_ONCE] * 3 + [1]
    assert [job for some in dbd.asked for job in some] == ids
    assert told.asked == frozenset(ids)

    def slow() -> None:
        now_s[0] += 4.0

    dbd.on_run = slow
    dbd.limits_s.clear()
    told = Accounting(dbd, clock=lambda: now_s[0]).runs(ids, within_s=10)
    assert dbd.limits_s == [10, 6, 2]
    assert told.asked == frozenset(ids[: 3 * IDS_AT_ONCE])

    dbd.errors = ["", "no answer in 3 s"]
    assert Accounting(dbd).runs(ids, within_s=9).asked == frozenset(ids[:IDS_AT_ONCE])
    dbd.errors = ["no answer in 3 s"]
    with pytest.raises(ClusterError, match="no answer"):
        Accounting(dbd).runs(ids, within_s=9)


def test_tasks_that_nobody_asked_about_are_passed_over() -> None:
    """Asked for the id of an array, sacct tells of all its tasks (measured on all releases)."""
    told = Accounting(Dbd(*(record(job, 9) for job in "789"))).runs([7, 9], within_s=9)

    assert sorted(run.job_id for run in told.runs) == [7, 9]
    assert told.unreadable == 0


@pytest.mark.parametrize(
    "read",
    [lambda dbd: Accounting(dbd).runs([1], within_s=9), lambda dbd: PastReader(dbd, days=1).read()],
)
def test_a_cluster_without_accounting_says_so(read: Callable[[Slurm], Any]) -> None:
    """As all releases word it; asking again soon is of no use."""
    dbd = Dbd()
    dbd.errors = [DISABLED]
    with pytest.raises(NoAccountingError, match="disabled"):
        read(dbd)
    with pytest.raises(NoAccountingError, match="not installed"):
        read(Dbd(there=False))


def test_a_slurm_may_lack_sacct_and_does_not_wait_for_it_too_long(tmp_path: Path) -> None:
    """No cluster may fail because it has no accounting tools."""

    def tool(name: str, does: str) -> None:
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n", "utf-8")
        (tmp_path / name).chmod(0o755)

    for name in TOOLS:
        tool(name, "")
    assert not Slurm(bin_dir=tmp_path).has("sacct")
    with pytest.raises(ClusterError, match="sacct is not installed"):
        Slurm(bin_dir=tmp_path).run("sacct")
    tool("sacct", "exec sleep 60")
    with pytest.raises(ClusterError, match=r"no answer in 0\.2 s; is slurmdbd"):
        Slurm(bin_dir=tmp_path, timeout_s=50).run("sacct", within_s=0.2)


# Recordings.


def test_all_supported_releases_are_recorded() -> None:
    """Without recordings the tests over them would test nothing."""
    there = {path.parent.name for path in RECORDINGS}

    assert {"slurm-22.05", "slurm-24.11", "slurm-26.05"} <= there


@pytest.fixture(params=RECORDINGS, ids=lambda path: path.parent.name)
def recorded(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    path = request.param
    text = path.with_suffix(".txt").read_bytes().decode("utf-8", errors="replace")
    return text, json.loads(path.read_text("utf-8"))


def test_recorded_chains_are_those_that_squeue_saw(recorded: tuple[str, dict[str, Any]]) -> None:
    """Each job has as many earlier runs as restarts, and a present one, at squeue's own times.

    GPUs are as they were held, none where there are none, and who waits has no start.
    """
    text, told = recorded
    wanted = frozenset(int(job) for job in told["jobs"])
    runs, unreadable = read_runs(text, wanted)

    assert unreadable == 0
    assert {run.job_id for run in runs} == wanted
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
    of = {
        name: [run for run in runs if run.job_id == int(job)] for name, job in told["ids"].items()
    }
    assert [(run.gpus, run.is_requeued) for run in of["twice"]] == [
        (2, True),
        (2, True),
        (2, False),
    ]
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
