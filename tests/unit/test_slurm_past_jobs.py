"""Jobs that are over, out of sacct: live, and from a dump."""

from __future__ import annotations

import gzip
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_dl.model.completed_jobs import Past
from slurm_dl.model.errors import ClusterError, ConfigError
from slurm_dl.slurm.accounting.job_runs import NoAccountingError
from slurm_dl.slurm.accounting.past_jobs import (
    FIELDS,
    LATE_S,
    PastReader,
    past_of,
    read_runs,
    run_of,
)
from slurm_dl.slurm.tool_runner import Slurm
from slurm_dl.traces.slurm.past_jobs_dump import read_dump

DAY_S = 86_400.0
NOW_S = 20_000 * DAY_S
NONCE = "xabcdefghi"


def record(job: str, end_s: float, ran_s: float = 600.0, **more: str) -> dict[str, str]:
    """A run that ended so many seconds before now."""
    end = NOW_S - end_s
    values = {
        "JobName": f"name{job}",
        "JobID": job,
        "User": "ann",
        "Account": "vision",
        "Submit": f"{end - ran_s - 60:.0f}",
        "Start": f"{end - ran_s:.0f}",
        "End": f"{end:.0f}",
        "State": "COMPLETED",
        "ElapsedRaw": f"{ran_s:.0f}",
        "ReqTRES": "billing=1,cpu=1,gres/gpu=9",
        "AllocTRES": "billing=1,cpu=1,gres/gpu=4",
    }
    return {**values, **more}


def printed(records: list[dict[str, str]], nonce: str = NONCE) -> str:
    """As ``sacct --parsable --delimiter=NONCE`` prints them."""
    return "".join("".join(f"{r[f]}{nonce}" for f in FIELDS) + "\n" for r in records)


class Dbd(Slurm):
    """Answers for a window as slurmdbd does: every run that was there in it."""

    def __init__(self, *records: dict[str, str]) -> None:
        self.calls = Counter()
        self.records = [*records]
        self.windows: list[tuple[float, float]] = []
        self.error = ""
        self.longest_s = float("inf")
        self.there = True

    def has(self, tool: str) -> bool:  # noqa: ARG002
        """Whether sacct is installed."""
        return self.there

    def run(self, tool: str, *args: str, within_s: float = float("inf")) -> str:  # noqa: ARG002
        """One window."""
        given = dict(arg.partition("=")[::2] for arg in args)
        begin_s, end_s = (
            datetime.fromisoformat(given[name]).replace(tzinfo=UTC).timestamp()
            for name in ("--starttime", "--endtime")
        )
        self.windows.append((begin_s, end_s))
        if self.error:
            raise ClusterError(self.error)
        if end_s - begin_s > self.longest_s:
            msg = "sacct --allusers: no answer in 30 s; is slurmdbd overloaded or down?"
            raise ClusterError(msg)
        there = [
            r
            for r in self.records
            if float(r["Start"]) <= end_s
            and (not r["End"].isdecimal() or float(r["End"]) >= begin_s)
        ]
        return printed(there, given["--delimiter"])


def jobs_of(past: Past) -> list[tuple[str, str, str, float, float]]:
    """(user, account, name, GPUs, seconds) of each job, in order."""
    return [
        (past.users[u], past.accounts[a], past.names[n], g, r)
        for u, a, n, g, r in zip(
            past.user, past.account, past.name, past.gpus, past.ran_s, strict=True
        )
    ]


def test_jobs_are_read_in_the_order_in_which_they_ended() -> None:
    """Those of the last days, with whose they are and what they had."""
    dbd = Dbd(
        record("1", 100, 50),
        record("2", 3 * DAY_S, User="bob", Account="nlp"),
        record("3", 5 * DAY_S),
        record("4", 10, End="Unknown", State="RUNNING"),
        record("5", 20, ReqTRES="cpu=1", AllocTRES="cpu=1"),
        record("6", 20, 0.0, State="CANCELLED by 1000", AllocTRES=""),
        record("7", 30, 9, AllocTRES=""),
        record("8_3", 40, 8, State="TIMEOUT"),
    )
    past = PastReader(dbd, days=4, clock=lambda: NOW_S).read()

    assert jobs_of(past) == [
        ("bob", "nlp", "name2", 4.0, 600.0),
        ("ann", "vision", "name1", 4.0, 50.0),
        ("ann", "vision", "name8_3", 4.0, 8.0),
        ("ann", "vision", "name7", 9.0, 9.0),
    ]
    assert past.submit_s.tolist()[1] == NOW_S - 210
    assert past.start_s.tolist()[1] == NOW_S - 150
    assert past.end_s.tolist()[1] == NOW_S - 100
    assert [round((e - b) / DAY_S) for b, e in dbd.windows] == [1, 1, 1, 1]


def test_later_reads_ask_for_what_is_new_and_forget_what_is_old() -> None:
    """What ended in the last hour is asked for again; nothing counts twice."""
    dbd = Dbd(record("1", 3.5 * DAY_S), record("2", 100))
    now_s = NOW_S
    reader = PastReader(dbd, days=4, clock=lambda: now_s)
    assert len(reader.read()) == 2

    dbd.windows.clear()
    dbd.records += [record("3", -500), record("4", 1800, 60)]
    now_s += 0.75 * DAY_S
    again = reader.read()

    assert dbd.windows == [(NOW_S - LATE_S, now_s)]
    assert [again.names[i] for i in again.name] == ["name4", "name2", "name3"]


def test_runs_of_a_job_are_one_job_and_so_are_its_components() -> None:
    """Requeued: all runs together, once the last is over. Heterogeneous: all components."""
    runs = [
        run_of(r)
        for r in (
            record("1", 5000, 1000, State="REQUEUED"),
            record("1", 3000, 700, State="PREEMPTED"),
            record("1", 1000, 200, AllocTRES="gres/gpu=8"),
            record("2", 900, 50, State="REQUEUED"),
            record("3+0", 800, 50, AllocTRES="gres/gpu=2"),
            record("3+1", 790, 60, AllocTRES="gres/gpu=1"),
            record("1", 700, 30, User="bob"),
        )
    ]
    past = past_of([run for run in runs if run is not None])

    assert jobs_of(past) == [
        ("ann", "vision", "name1", 8.0, 1900.0),
        ("ann", "vision", "name3+0", 3.0, 60.0),
        ("bob", "vision", "name1", 4.0, 30.0),
    ]
    assert past.submit_s[0] == NOW_S - 5000 - 1000 - 60
    assert past.end_s[1] == NOW_S - 790


HOSTILE = st.one_of(
    st.text(max_size=60),
    st.sampled_from(
        [
            "9|eve|x|1|1|2|COMPLETED|1||gres/gpu=9",
            "\n",
            "a\nb",
            "\n\n",
            "\r\n",
            "",
            "\x00\x1b[2J",
            printed([record("666", 1)], nonce="xzzzzzzzzz"),
        ]
    ),
)


@given(names=st.lists(HOSTILE.filter(lambda n: NONCE not in n), min_size=1, max_size=5))
def test_no_name_forges_a_record_or_hides_one(names: list[str]) -> None:
    """Whatever is in it, each record is one job with that name."""
    text = printed([record(str(i + 1), 100, JobName=name) for i, name in enumerate(names)])
    runs, unreadable = read_runs(text, NONCE)

    assert unreadable == 0
    assert [run.name for run in runs] == [name[:1024] for name in names]


def test_output_that_is_cut_short_is_not_used() -> None:
    """Nor is one in which nothing can be read; single bad records are left out."""
    text = printed([record("1", 10), record("2", 10, End="soon"), record("3", 10)])
    runs, unreadable = read_runs(text, NONCE)
    assert ([run.job for run in runs], unreadable) == (["1", "3"], 1)

    with pytest.raises(ClusterError, match="stops in the middle"):
        read_runs(text[:-1], NONCE)
    with pytest.raises(ClusterError, match="none of 1 records"):
        read_runs(printed([record("no job", 10)]), NONCE)


@pytest.mark.parametrize(
    "more",
    [
        {"ElapsedRaw": "-5"},
        {"ElapsedRaw": "1e3"},
        {"Submit": "9" * 15},
        {"State": ""},
        {"JobID": "7; rm"},
    ],
)
def test_a_record_with_a_value_that_cannot_be_is_none(more: dict[str, str]) -> None:
    """It is counted, not guessed at."""
    with pytest.raises(ValueError, match=r"."):
        run_of(record("1", 10, **more))


def test_a_window_that_takes_too_long_is_halved() -> None:
    """And what was read before an error is not asked for again."""
    dbd = Dbd(record("1", 1.5 * DAY_S), record("2", 100))
    dbd.longest_s = 0.3 * DAY_S
    reader = PastReader(dbd, days=2, clock=lambda: NOW_S)
    assert len(reader.read()) == 2

    dbd.error = "sacct: slurmdbd is down"
    with pytest.raises(ClusterError, match="is down"):
        reader.read()
    dbd.error = ""
    dbd.windows.clear()
    assert len(reader.read()) == 2
    assert dbd.windows == [(NOW_S - LATE_S, NOW_S)]


def test_a_slurmdbd_that_never_answers_is_an_error() -> None:
    """The windows do not shrink for ever."""
    dbd = Dbd()
    dbd.longest_s = 0
    with pytest.raises(ClusterError, match="no answer in"):
        PastReader(dbd, days=2, clock=lambda: NOW_S).read()
    assert len(dbd.windows) < 12


def test_no_accounting_is_an_error_of_its_own() -> None:
    """Asking again soon is of no use."""
    dbd = Dbd()
    dbd.error = "sacct failed (exit 1): Slurm accounting storage is disabled"
    with pytest.raises(NoAccountingError, match="disabled"):
        PastReader(dbd, days=1, clock=lambda: NOW_S).read()
    dbd.there = False
    with pytest.raises(NoAccountingError, match="not installed"):
        PastReader(dbd, days=1, clock=lambda: NOW_S).read()


def dump(path: Path, records: list[dict[str, str]], fields: tuple[str, ...]) -> Path:
    """A dump with a header, as sacct -P makes it."""
    lines = ["|".join(fields), *("|".join(r[f] for f in fields) for r in records)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_a_dump_is_read_with_bars_in_names(tmp_path: Path) -> None:
    """The name stands last; lines that are no records are counted."""
    fields = (*FIELDS[1:], FIELDS[0])
    records = [
        record("1", 10, JobName="a|b|c"),
        record("2", 20, JobName="x\nwhat"),
        record("1.batch", 10),
        record("1", 10, JobName="a|b|c"),
    ]
    found = read_dump(dump(tmp_path / "d.txt", records, fields))

    assert [job[2] for job in jobs_of(found.past)] == ["x", "a|b|c"]
    assert (found.left_out, found.has_names) == (1, True)

    packed = tmp_path / "d.gz"
    packed.write_bytes(gzip.compress((tmp_path / "d.txt").read_bytes()))
    assert jobs_of(read_dump(packed).past) == jobs_of(found.past)


def test_a_dump_without_names_is_read_too(tmp_path: Path) -> None:
    """As 'dlsim history' writes it."""
    found = read_dump(dump(tmp_path / "d.txt", [record("1", 10)], FIELDS[1:]))

    assert not found.has_names
    assert found.past.names == ("",)
    assert np.isclose(found.past.ran_s, 600).all()


def test_what_is_no_dump_is_refused(tmp_path: Path) -> None:
    """With what is missing, and how to make one."""
    path = tmp_path / "d.txt"
    path.write_text("JobID|User\n1|ann\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"no column Submit, Start.*--format="):
        read_dump(path)
    with pytest.raises(ConfigError, match="no finished run"):
        read_dump(dump(path, [record("1", 10, State="RUNNING", End="Unknown")], FIELDS))
    with pytest.raises(ConfigError, match="cannot be read"):
        read_dump(tmp_path / "nothing")
