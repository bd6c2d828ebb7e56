"""What really happened, out of Slurm's accounting, and whose it was."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from report_cases import life, records_of

from slurm_dl.cli.dlsim.experiment_commands import report_command
from slurm_dl.model.errors import ConfigError
from slurm_dl.report.html.page_data import (
    ENDED,
    MOVED,
    PREEMPTED,
    Schedule,
    Subject,
    how_they_ended,
    page_data,
)
from slurm_dl.traces.format_registry import read_trace
from slurm_dl.traces.recorded_schedule import RecordedSchedule, read_recorded

HELIOS_JOBS = {"vcpDC": 3, "vcJkd": 1, "vchbv": 1}
HEADER = "JobID|User|Account|Submit|Start|End|State|ElapsedRaw|ReqTRES|AllocTRES"
SHORT = "JobID|User|Submit|State|ElapsedRaw|AllocTRES"
WITHOUT_START = "1|ada|2026-01-05T00:00:00|COMPLETED|9|gres/gpu=1"
OWN = "job_id,submit_s,duration_s,gpus,user,model,ending\n1,0,5,1,a,,COMPLETED\n"


def row(
    job: str, submit: str, start: str, elapsed_s: int, *, gpus: int = 1, state: str = "COMPLETED",
    user: str = "ada", account: str = "vision",
) -> str:  # fmt: skip
    """A line of sacct; times are of one day."""
    times = [f"2026-01-05T{t}" if t[0].isdigit() else t for t in (submit, start)]
    tres = f"cpu=1,gres/gpu={gpus}"
    return "|".join([job, user, account, *times, "Unknown", state, str(elapsed_s), tres, tres])


LINES = (
    row("1", "00:00:00", "00:00:10", 100, gpus=2, state="PREEMPTED"),
    row("1", "00:01:50", "00:05:00", 50, gpus=2),
    row("2", "00:00:30", "00:00:30", 60, user="bob", account="language", state="FAILED"),
    row("3+0", "00:02:00", "00:03:00", 40, gpus=4, account=""),
    row("3+1", "00:02:00", "00:03:00", 30, gpus=1, account=""),
    row("4", "00:10:00", "Unknown", 70),
    row("5", "00:11:00", "00:10:59", 70),
)


def recorded_of(tmp_path: Path, *lines: str, header: str = HEADER) -> RecordedSchedule:
    path = tmp_path / "history.txt"
    path.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    told = read_recorded(path, read_trace(path))
    assert told is not None
    return told


def accounts_in(tmp_path: Path) -> tuple[str, ...] | None:
    """The account of each job of the file that `recorded_of` wrote."""
    return read_trace(tmp_path / "history.txt").account_names


def test_accounts_are_told_where_the_file_has_them(tmp_path: Path) -> None:
    """That of the last run that tells one, empty without; none without the column.

    An id that is used again by another user is another job, with the runs of its own.
    """
    recorded_of(tmp_path, *LINES)
    assert accounts_in(tmp_path) == ("vision", "language", "", "vision", "vision")
    recorded_of(
        tmp_path,
        row("1", "00:00:00", "00:00:10", 100, state="PREEMPTED"),
        row("1", "00:01:50", "00:05:00", 50, account="language"),
        row("1", "00:06:00", "00:07:00", 50, account=""),
    )
    assert accounts_in(tmp_path) == ("language",)
    again = row("7", "01:00:00", "01:00:00", 20, user="bob", account="language")
    told = recorded_of(tmp_path, row("7", "00:00:00", "00:00:00", 10), again)
    assert accounts_in(tmp_path) == ("vision", "language")
    assert told.records.service_gpu_s.tolist() == [10, 20]
    assert told.records.preemptions.tolist() == [0, 0]
    told = recorded_of(tmp_path, WITHOUT_START, header=SHORT)
    assert accounts_in(tmp_path) is None
    assert not told.knows_runs


def test_runs_are_those_that_slurm_tells(tmp_path: Path) -> None:
    """A requeued job has two, the parts of a heterogeneous one each their own GPUs.

    A run of unknown or impossible start is not drawn where nobody knows it was.
    """
    told = recorded_of(tmp_path, *LINES)
    records, runs = told.records, told.records.runs
    zero = records.submit_s[0]

    assert records.job_id == ("1", "2", "3", "4", "5")
    times = ((column - zero).tolist() for column in (runs.start_s, runs.end_s))
    assert list(zip(runs.job.tolist(), *times, runs.gpus.tolist(), strict=True)) == [
        (1, 30, 90, 1), (0, 10, 110, 2), (2, 180, 210, 1), (2, 180, 220, 4), (0, 300, 350, 2),
    ]  # fmt: skip
    assert records.preemptions.tolist() == [1, 0, 0, 0, 0]
    assert (records.start_s - zero).tolist()[:3] == [10, 30, 180]
    assert (records.end_s - zero).tolist()[:3] == [350, 90, 220]
    assert np.isnan([*records.start_s[3:], *records.end_s[3:]]).all()
    assert records.service_gpu_s.tolist() == [300, 60, 190, 0, 0]
    assert records.success.tolist() == [True, False, True, False, False]


def test_parts_of_a_heterogeneous_job_do_not_follow_each_other(tmp_path: Path) -> None:
    """They run at the same time, and one that ends first has not moved; a requeue is one of all."""
    again = [
        row(f"3+{part}", "00:02:00", "00:03:00", took_s, account="", state="PREEMPTED")
        for part, took_s in enumerate((40, 30, 40))
    ]
    later = [
        row(f"3+{part}", "00:03:40", "00:03:40", took_s, account="")
        for part, took_s in enumerate((60, 70, 90))
    ]
    recorded_of(tmp_path, *again, *later, LINES[2], header=HEADER)
    status, said, data = report(tmp_path, "--recorded")
    assert status == 0, said
    (schedule,) = data["schedules"]
    how = base64.b64decode(schedule["runs"]["how"])
    start = np.frombuffer(base64.b64decode(schedule["runs"]["start"]), dtype="<u4") * data["tick_s"]
    end = np.frombuffer(base64.b64decode(schedule["runs"]["end"]), dtype="<u4") * data["tick_s"]

    assert sorted(zip(start.round().tolist(), end.round().tolist(), how, strict=True)) == [
        (0, 60, ENDED), (150, 180, PREEMPTED), (150, 190, MOVED), (150, 190, MOVED),
        (190, 250, ENDED), (190, 260, ENDED), (190, 280, ENDED),
    ]  # fmt: skip


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(-4, 12), st.integers(0, 4)), max_size=9),
    st.tuples(st.booleans(), st.booleans(), st.booleans()),
)
def test_how_a_run_ended_is_told_by_the_next_that_begins_after_it(
    drawn: list[tuple[int, int, int]], finished: tuple[bool, ...]
) -> None:
    """Brute force over the runs of a job, a run of no length among them."""
    job, start, took = np.array(drawn, dtype=np.int64).reshape(-1, 3).T
    end = start + took
    told = how_they_ended(job, start, end, np.array(finished))
    runs = sorted(zip(job.tolist(), start.tolist(), end.tolist(), range(len(job)), strict=True))
    for at, (whose, _, over, row_) in enumerate(runs):
        later = [begins for one, begins, *_ in runs[at + 1 :] if one == whose and begins >= over]
        expected = PREEMPTED
        if later:
            expected = MOVED if min(later) == over else PREEMPTED
        elif finished[whose]:
            expected = ENDED

        assert told[row_] == expected


def test_other_formats_and_other_files_tell_nothing(tmp_path: Path) -> None:
    """A trace of a paper says when jobs were submitted; a file that has changed is refused."""
    path = tmp_path / "history.txt"
    path.write_text(OWN)
    assert read_recorded(path, read_trace(path)) is None
    path.write_text(f"{HEADER}\n{LINES[2]}\n", encoding="utf-8")
    trace = read_trace(path)
    path.write_text(f"{HEADER}\n{LINES[3]}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="job 2 is not in it any more"):
        read_recorded(path, trace)


def test_fairness_is_told_by_account_too() -> None:
    """The jobs of an account are one; Jain's index is over accounts: x is 1 and 1/4.

    Without accounts there is no such table: an empty one would say that all are alike.
    """
    lives = [
        life(0, (0, 100), gpus=2, user="ada"),
        life(0, (0, 100), user="bob"),
        life(0, (300, 400), user="cyd"),
    ]
    schedule = Schedule(label="p", about=(), records=records_of(lives))

    def data_of(accounts: list[str] | None) -> Any:  # noqa: ANN401 - any JSON
        subject = Subject(title="t", cluster="1x4", node_gpus=(4,), accounts=accounts)
        return page_data(subject, [schedule])

    data = data_of(["vision", "vision", ""])
    (found,) = data["schedules"]
    shown = found["accounts"]["shown"]
    assert [(one["name"], one["jobs"], one["service_gpu_s"]) for one in shown] == [
        ("vision", 2, 300), ("", 1, 100),
    ]  # fmt: skip
    assert found["accounts"]["jain"] == pytest.approx(1.25**2 / (2 * (1 + 0.25**2)))
    assert found["users"]["jain"] == pytest.approx(2.25**2 / (3 * (2 + 0.25**2)))
    assert found["users"]["in_all"] == 3
    assert data["jobs"]["accounts"] == ["vision", ""]
    for accounts in (None, ["", "", ""]):
        assert data_of(accounts)["schedules"][0]["accounts"] is None


def report(tmp_path: Path, *options: str) -> tuple[int, str, dict[str, Any]]:
    """Status, what was printed, and the data of the page."""
    page = tmp_path / "r.html"
    told = CliRunner().invoke(
        report_command,
        [str(tmp_path / "history.txt"), "--cluster", "2x4", "--out", str(page), *options],
    )
    if not page.exists():
        return told.exit_code, f"{told.output}{told.exception}", {}
    text = page.read_text(encoding="utf-8")
    found = re.search(r'id="data">(.*?)</script>', text, re.DOTALL)
    return told.exit_code, told.output, json.loads(found[1])


def test_the_command_shows_what_was_beside_what_would_be(tmp_path: Path) -> None:
    """Two schedules of the same jobs; only the simulated one has nodes, if it is placed.

    What happened can be shown alone; jobs whose runs are not known are told.
    """
    recorded_of(tmp_path, *LINES[:4])
    status, said, data = report(tmp_path, "--recorded", "--policies", "fifo", "--costs", "slurm")

    assert status == 0, said
    assert [s["label"] for s in data["schedules"]] == ["recorded", "fifo"]
    assert [s["nodes_known"] for s in data["schedules"]] == [False, True]
    assert [s["figures"]["preemptions"] for s in data["schedules"]] == [1, 0]
    assert data["jobs"]["accounts"] == ["vision", "language", ""]
    recorded_of(tmp_path, *LINES)
    status, said, data = report(tmp_path, "--recorded")
    assert (status, [s["label"] for s in data["schedules"]]) == (0, ["recorded"])
    assert "of 2 of 5 jobs it is not known when they ran" in said


def test_virtual_clusters_of_a_published_trace_are_accounts(tmp_path: Path) -> None:
    """Fairness is told by them, whatever is simulated."""
    sample = Path(__file__).parents[1] / "data" / "traces" / "helios.csv"
    (tmp_path / "history.txt").write_bytes(sample.read_bytes())
    status, said, data = report(tmp_path, "--policies", "fifo", "--cluster", "4x4")

    assert status == 0, said
    (schedule,) = data["schedules"]
    assert {one["name"]: one["jobs"] for one in schedule["accounts"]["shown"]} == HELIOS_JOBS
    assert schedule["accounts"]["in_all"] == len(HELIOS_JOBS)


@pytest.mark.parametrize(
    ("content", "options", "says"),
    [
        (f"{HEADER}\n{LINES[0]}\n", (), "say what is to be shown"),
        (f"{SHORT}\n{WITHOUT_START}\n", ("--recorded",), "no column Start"),
        (OWN, ("--recorded",), "does not tell when jobs really ran"),
    ],
)
def test_nothing_to_show_is_an_error(
    content: str, options: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    """It says what is missing, and no page is written."""
    (tmp_path / "history.txt").write_text(content, encoding="utf-8")
    status, said, data = report(tmp_path, *options)

    assert (status != 0, data) == (True, {})
    assert says in said
