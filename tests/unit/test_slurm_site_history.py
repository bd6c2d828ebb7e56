"""A site's own history out of sacct, and the command that writes it."""

from __future__ import annotations

import gzip
import json
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from in_process import in_process

from slurm_dl.cli.dlsim.command import main
from slurm_dl.model.errors import ClusterError
from slurm_dl.slurm import tool_runner
from slurm_dl.slurm.accounting.site_history import (
    FIELDS,
    HEADER,
    SHORTEST,
    FetchTally,
    StandIns,
    history,
    window_arguments,
)
from slurm_dl.slurm.tool_runner import Slurm
from slurm_dl.traces import read_trace

RECORDINGS = sorted(Path(__file__).parents[1].glob("data/slurm-*/history.txt"))
DAY_S = 86_400
BEGIN = datetime(2026, 3, 1, tzinfo=UTC)
END = BEGIN + timedelta(days=3)
NO_ANSWER = ClusterError("sacct --allusers: no answer in 300 s; is slurmdbd overloaded or down?")


def record(job: str, start_h: float, hours: float, **more: str) -> dict[str, str]:
    """A run of 2 GPUs, so many hours after `BEGIN`."""
    start_s = int(BEGIN.timestamp() + 3600 * start_h)
    return {
        "JobID": job,
        "User": "ann",
        "Account": "vision",
        "Submit": str(start_s - 60),
        "Start": str(start_s),
        "End": str(start_s + int(3600 * hours)),
        "State": "COMPLETED",
        "ElapsedRaw": str(int(3600 * hours)),
        "ReqTRES": "cpu=1,gres/gpu=2",
        "AllocTRES": "cpu=1,gres/gpu=2",
        **more,
    }


class Dbd(Slurm):
    """Answers for a window as slurmdbd does: every run that was there in it."""

    def __init__(self, *records: dict[str, str]) -> None:
        self.calls = Counter()
        self.records = records
        self.windows: list[tuple[datetime, datetime]] = []
        self.longest: timedelta | None = None
        self.tail = ""

    def run(self, tool: str, *args: str, within_s: float = float("inf")) -> str:
        """One window."""
        assert (tool, within_s) == ("sacct", float("inf"))
        given = dict(arg.partition("=")[::2] for arg in args)
        begin, end = (
            datetime.fromisoformat(given[name]).replace(tzinfo=UTC)
            for name in ("--starttime", "--endtime")
        )
        if self.longest is not None and end - begin > self.longest:
            raise NO_ANSWER
        self.windows.append((begin, end))
        return (
            "".join(
                "|".join(r[name] for name in FIELDS) + "\n"
                for r in self.records
                if float(r["Submit"]) < end.timestamp()
                and (not r["End"].isdecimal() or float(r["End"]) >= begin.timestamp())
            )
            + self.tail
        )


def fetch(dbd: Slurm, **more: Any) -> tuple[list[list[str]], FetchTally]:  # noqa: ANN401
    tally = FetchTally()
    lines = list(history(dbd, BEGIN, END, tally=tally, **more))
    return [line.rstrip("\n").split("|") for line in lines], tally


def test_a_run_that_spans_windows_appears_once() -> None:
    """Whatever a window lists, a run is written where it ended, or at the very end."""
    dbd = Dbd(
        record("1", 1, 2),
        record("2", 20, 40),
        record("3", 23, 1),
        record("4", 30, 500),
        record("5", 71.5, 1, End="Unknown", State="RUNNING"),
        record("6", -5, 2),
    )
    lines, tally = fetch(dbd)

    # 6 ended before the beginning.
    assert Counter(line[0] for line in lines) == Counter("12345")
    assert (tally.runs, tally.with_gpus, tally.done) == (5, 5, 1.0)
    assert [b - a for a, b in dbd.windows] == [timedelta(days=1)] * 3


def test_a_window_that_takes_too_long_is_halved() -> None:
    """Half a day is asked for where a day is too much, from there on, and nothing is lost."""
    dbd = Dbd(*(record(str(n), n, 1) for n in range(60)))
    dbd.longest = timedelta(hours=7)
    lines, _ = fetch(dbd)

    assert sorted(int(line[0]) for line in lines) == list(range(60))
    assert max(b - a for a, b in dbd.windows) == timedelta(hours=6)
    assert all(b == a for (_, b), (a, _) in zip(dbd.windows, dbd.windows[1:], strict=False))


def test_a_slurmdbd_that_never_answers_is_given_up() -> None:
    dbd = Dbd()
    dbd.longest = SHORTEST / 2

    with pytest.raises(ClusterError, match="no answer"):
        fetch(dbd)


def test_times_are_written_as_the_reader_takes_them(tmp_path: Path) -> None:
    """The dump is read back as the jobs that were there, requeues put together."""
    dbd = Dbd(
        record("1", 1, 2),
        record("2_7", 10, 3, State="REQUEUED"),
        record("2_7", 20, 30),
        record("3", 5, 1, State="CANCELLED by 1000", User="bob"),
        record("4", 60, 1, End="Unknown", State="RUNNING"),
        record("5", 6, 1, ReqTRES="cpu=1", AllocTRES="cpu=1"),
    )
    lines, tally = fetch(dbd)
    path = tmp_path / "history.txt"
    path.write_text("\n".join([HEADER, *("|".join(line) for line in lines)]) + "\n", "utf-8")

    trace = read_trace(path)

    assert trace.format == "sacct"
    assert dict(zip(trace.job_id, trace.duration_s.tolist(), strict=True)) == {
        "1": 2 * 3600,
        "3": 3600,
        "2_7": 33 * 3600,
    }
    assert trace.submit_s.tolist() == [BEGIN.timestamp() + 3600 * h - 60 for h in (1, 5, 10)]
    assert set(trace.gpus.tolist()) == {2.0}
    assert (tally.runs, tally.with_gpus) == (6, 5)


def test_pseudonyms_are_stable_and_leave_nothing() -> None:
    """The same person has the same number all through, and the state names nobody either."""
    dbd = Dbd(
        record("1", 1, 1),
        record("2", 2, 1, User="bob", State="CANCELLED by 1000"),
        record("3", 30, 1),
        record("4", 50, 1, User="", Account="speech"),
    )
    lines, _ = fetch(dbd, stand_ins=StandIns())

    assert [line[1] for line in lines] == ["user-1", "user-2", "user-1", ""]
    assert [line[2] for line in lines] == ["account-1", "account-1", "account-1", "account-2"]
    assert lines[1][6] == "CANCELLED"
    text = "\n".join("|".join(line) for line in lines)
    assert not any(word in text for word in ("ann", "bob", "1000", "vision", "speech"))


@pytest.mark.parametrize(
    "broken", ["1|2|3\n", "\n", "|".join("1" * 11) + "\n", "|".join(["x"] * 10) + "\n"]
)
def test_broken_records_are_left_out_and_counted(broken: str) -> None:
    dbd = Dbd(record("1", 1, 1))
    dbd.tail = broken
    # The later windows have nothing that can be read.
    with pytest.raises(ClusterError, match="none of 1 records"):
        fetch(dbd)
    dbd = Dbd(record("1", 1, 500))
    dbd.tail = broken
    lines, tally = fetch(dbd)

    assert [line[0] for line in lines] == ["1"]
    assert tally.unreadable == 3


def test_output_that_is_cut_short_is_an_error() -> None:
    dbd = Dbd(record("1", 1, 1))
    dbd.tail = "2|ann"

    with pytest.raises(ClusterError, match="stops in the middle"):
        fetch(dbd)


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="no time between"):
        list(history(Dbd(), END, BEGIN, tally=FetchTally()))
    with pytest.raises(ValueError, match="no name of a cluster"):
        fetch(Dbd(), cluster="--delimiter=x")


def test_no_field_that_a_user_writes_is_asked_for() -> None:
    assert not {"JobName", "Comment", "WorkDir", "WCKey", "SubmitLine"} & set(FIELDS)
    assert "--clusters=big" in window_arguments(BEGIN, END, "big")


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.parent.name)
def test_recorded_histories_are_read(path: Path, tmp_path: Path) -> None:
    """A window of each release, through the command's own way into the reader of traces."""
    told = json.loads(path.with_name("sacct.json").read_text("utf-8"))

    class Recorded(Slurm):
        def __init__(self) -> None:
            self.calls = Counter()

        def run(self, *_args: str, within_s: float = float("inf")) -> str:
            assert within_s
            return path.read_text("utf-8")

    begin, end = (datetime.fromtimestamp(told[k], UTC) for k in ("begin_s", "end_s"))
    tally = FetchTally()
    lines = list(history(Recorded(), begin, end, tally=tally))
    dump = tmp_path / "dump.txt"
    dump.write_text(f"{told['header']}\n{''.join(lines)}", "utf-8")
    trace = read_trace(dump)

    assert told["header"] == HEADER
    assert tally.unreadable == 0
    assert len(set(lines)) == len(lines)
    stopped = list(trace.job_id).index(told["ids"]["stopped"])
    assert trace.gpus[stopped] == 1
    assert "twice" in told["ids"]
    assert told["ids"]["twice"] not in trace.job_id  # It was still running.
    assert np.all(trace.duration_s > 0)


def test_all_supported_releases_are_recorded() -> None:
    there = {path.parent.name for path in RECORDINGS}

    assert {"slurm-22.05", "slurm-24.11", "slurm-26.05"} <= there


# The command.

Dlsim = Callable[..., Result]


@pytest.fixture
def dlsim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Dlsim]:
    """``dlsim history`` in a directory of its own, with tools that print what a file holds."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in (*tool_runner.TOOLS, "sacct"):
        script = f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\ncat {tmp_path}/answer\n'
        (tools / tool).write_text(script, "utf-8")
        (tools / tool).chmod(0o755)
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.chdir(tmp_path)

    def run(*args: str) -> Result:
        return in_process(main, "history", *args)

    return run


def answer(*records: dict[str, str]) -> None:
    text = "".join("|".join(r[name] for name in FIELDS) + "\n" for r in records)
    Path("answer").write_text(text, "utf-8")


SINCE = ("--since", "2026-03-01", "--until", "2026-03-02")


def test_the_command_writes_a_trace(dlsim: Dlsim) -> None:
    """Whole, readable by its owner alone, and taken by the simulator as it is."""
    answer(record("1", 1, 2), record("2", 2, 2, User="bob"))
    result = dlsim(*SINCE, "--cluster", "big", "out.txt")

    assert result.exit_code == 0, result.output
    assert "2 runs in out.txt, 2 of them with GPUs" in result.stdout
    assert stat.S_IMODE(Path("out.txt").stat().st_mode) == 0o600
    assert len(read_trace(Path("out.txt"))) == 2
    asked = Path("asked").read_text("utf-8")
    assert "--starttime=2026-03-01T00:00:00 --endtime=2026-03-02T00:00:00" in asked
    assert "--clusters=big" in asked
    assert not list(Path().glob(".out*"))


def test_a_packed_and_nameless_history(dlsim: Dlsim) -> None:
    answer(record("1", 1, 2))
    result = dlsim(*SINCE, "--anonymous", "out.txt.gz")

    assert result.exit_code == 0
    assert b"ann" not in gzip.decompress(Path("out.txt.gz").read_bytes())
    assert len(read_trace(Path("out.txt.gz"))) == 1


def test_a_history_without_gpus_is_told(dlsim: Dlsim) -> None:
    """The most likely reason is a line that slurm.conf lacks, so it is named."""
    answer(record("1", 1, 2, ReqTRES="cpu=1", AllocTRES="cpu=1"))
    result = dlsim(*SINCE, "out.txt")

    assert result.exit_code == 1
    assert "AccountingStorageTRES=gres/gpu" in result.stderr
    assert Path("out.txt").exists()


def test_gpus_that_are_recorded_only_lately_are_told(dlsim: Dlsim) -> None:
    answer(record("1", -50, 60, ReqTRES="cpu=1", AllocTRES="cpu=1"), record("2", 2, 1))
    result = dlsim(*SINCE, "out.txt")

    assert result.exit_code == 0
    assert "no run with GPUs before 2026-03-01" in result.stderr


@pytest.mark.parametrize(
    ("args", "status", "said"),
    [
        (("out.txt",), 2, "--since"),
        (("--since", "yesterday", "out.txt"), 2, "yesterday"),
        ((*SINCE, "nowhere/out.txt"), 2, "there is no directory"),
        (("--since", "2026-03-02", "--until", "2026-03-01", "out.txt"), 2, "no time between"),
        ((*SINCE, "--cluster", "a b", "out.txt"), 2, "no name of a cluster"),
        ((*SINCE, "there.txt"), 2, "--force overwrites it"),
    ],
)
def test_mistakes_are_named(dlsim: Dlsim, args: tuple[str, ...], status: int, said: str) -> None:
    answer(record("1", 1, 2))
    Path("there.txt").write_text("mine", "utf-8")
    result = dlsim(*args)

    assert result.exit_code == status
    assert said in result.stderr
    assert Path("there.txt").read_text("utf-8") == "mine"
    assert not Path("out.txt").exists()


def test_nothing_is_left_behind_by_a_failure(dlsim: Dlsim) -> None:
    """A sacct that fails, or that has nothing to tell, leaves what was there."""
    Path("out.txt").write_text("mine", "utf-8")
    answer()
    empty = dlsim(*SINCE, "--force", "out.txt")
    Path("answer").unlink()
    failed = dlsim(*SINCE, "--force", "out.txt")

    assert (empty.exit_code, failed.exit_code) == (1, 1)
    assert "no run of that time" in empty.stderr
    assert "sacct" in failed.stderr
    assert Path("out.txt").read_text("utf-8") == "mine"
    assert not list(Path().glob(".out*"))


def test_without_sacct_it_says_so(dlsim: Dlsim) -> None:
    Path("tools/sacct").unlink()
    result = dlsim(*SINCE, "out.txt")

    assert result.exit_code == 1
    assert "sacct is not installed" in result.stderr


def test_help_has_an_example(dlsim: Dlsim) -> None:
    result = dlsim("--help")

    assert result.exit_code == 0
    assert "dlsim history --since" in result.stdout
