"""A dump of accounting that a site made: what counts in it, what does not, and what is told."""

from __future__ import annotations

import gzip
import json
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from slurm_dl.model.errors import ConfigError
from slurm_dl.model.trace import Trace
from slurm_dl.slurm.accounting.past_jobs import HEADER, FetchTally, StandIns, history, line_of
from slurm_dl.slurm.accounting.query import FIELDS
from slurm_dl.slurm.tool_runner import Slurm
from slurm_dl.traces import read_trace
from slurm_dl.traces.builder import Gathering
from slurm_dl.traces.slurm.dumps import dump_records, read_dump, sacct_command

T0 = 1_767_225_600
RECORDINGS = sorted(Path(__file__).parents[1].glob("data/slurm-*/history.txt"))


def run(job: str, at: int = 100, took: int = 60, **more: str) -> list[str]:
    """A record of a run of two GPUs that began *at* seconds after `T0`."""
    values = {
        "JobID": job, "User": "ann", "Account": "vision", "Submit": str(T0),
        "Start": str(T0 + at), "End": str(T0 + at + took), "State": "COMPLETED",
        "ElapsedRaw": str(took), **dict.fromkeys(("ReqTRES", "AllocTRES"), "cpu=1,gres/gpu=2"),
        **more,
    }  # fmt: skip
    return [values[name] for name in FIELDS]


WAITS = {"State": "PENDING", "Start": "Unknown", "End": "Unknown", "ElapsedRaw": "0"}
LATER = {"Submit": str(T0 + 60)}
NEVER_RAN = {"State": "CANCELLED by 7", "AllocTRES": ""}
DATES = {"Submit": "2026-01-01T00:00:00", "Start": "2026-01-01T00:01:40"}
READ: dict[str, tuple[list[Sequence[str]], dict[str, float], list[str]]] = {
    "runs of a job are one job": (
        [
            run("1", 10, 50, State="REQUEUED"), run("1", 100, 30, **LATER),
            run("2", 0, 5, State="CANCELLED by 1000"),
        ],
        {"1": 80, "2": 5}, [],
    ),
    # The newer one stands first: its jobs are not lost, and one put back since still waits.
    "a wait that an older dump tells is over": (
        [
            run("1", 10, 50), run("2", 10, 50, State="REQUEUED"), run("2", **{**WAITS, **LATER}),
            run("1", **WAITS), run("2", **WAITS),
        ],
        {"1": 50},
        [
            "3: job that had not ended: 1 times, here first",
            "5: a later record says that job 1 waits no more",
            "6: a later record says that job 2 waits no more",
        ],
    ),
    # It has the record of all for as long as it runs, and ends with its own.
    "a last task that runs is one task": (
        [run("9_[3-3]", 0, 1, State="RUNNING"), run("9_3", 0, 60)], {"9_3": 60},
        ["2: each task of '9_[3-3]' has a record of its own"],
    ),
    # 22.05 keeps that of an array's last task if slurmdbd was away when it started; nobody knows
    # how long it ran, and those that are known count once.
    "the record of an array does not count with its tasks": (
        [*(run(f"16_{n}") for n in range(4)), run("16_[0-4]", Start="None", ElapsedRaw="0")],
        {f"16_{n}": 60 for n in range(4)}, ["6: job '16_[0-4]' ended and has no Start"],
    ),
    # Also where it stands before the others; with none or several left it is nobody's.
    "a record for many with a run is the one task left": (
        [
            run("5_[0-2%4]", took=70), run("5_0"), run("5_2"), run("6_[0-1]"), run("6_0"),
            run("6_1"), run("7_[0-9]"), run("7_0"),
        ],
        dict.fromkeys(["5_0", "5_2", "6_0", "6_1", "7_0"], 60) | {"5_1": 70},
        [
            "5: each task of '6_[0-1]' has a record of its own",
            "8: one record of a run for 10 tasks, '7_[0-9]'",
        ],
    ),
    "what did not run is counted by its reason": (
        [
            run("1"), run("2", State="RUNNING", End="Unknown"), run("3", **WAITS),
            run("4_[1-9]", **WAITS), run("5", **NEVER_RAN, Start="None", ElapsedRaw="0"),
            run("6_[0-9]", took=0, **NEVER_RAN), run("7", ReqTRES="cpu=1", AllocTRES="cpu=1"),
            run("8.batch"), run("9", State="DEADLINE", Start="None", ElapsedRaw=str(T0)),
        ],
        {"1": 60},
        [
            "3: job that had not ended: 3 times, here first",
            "6: job that never ran: 2 times, here first",
            "8: job without GPUs: 1 times, here first",
            "9: job step: 1 times, here first",
            "10: job '9' ended and has no Start",
        ],
    ),
    # Headers again, runs told twice, and a run that the first dump saw under way.
    "dumps one after the other are one": (
        [
            run("1"), run("2", State="RUNNING", End="Unknown", ElapsedRaw="30"), FIELDS, run("1"),
            run("2", took=90),
        ],
        {"1": 60, "2": 90},
        [
            "3: a later record says how this run of job 2 ended",
            "5: this run of job 1 was told before",
        ],
    ),
    # Dates are those of UTC, as the command asks for them.
    "times are seconds or dates": (
        [run("1"), run("2", End="2026-01-01T00:02:40", **DATES)], {"1": 60, "2": 60}, [],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("records", "jobs", "said"), READ.values(), ids=READ)
def test_what_counts_in_a_dump(
    path: Path, records: list[Sequence[str]], jobs: dict[str, float], said: list[str]
) -> None:
    """Each job for as long as it ran, and each line that is left out, with its number."""
    trace = read(path, *records)

    assert lengths(trace) == jobs
    assert told(trace) == said
    assert {*trace.submit_s.tolist()} == {T0}


def test_broken_lines_are_told_by_their_number(path: Path) -> None:
    broken = ({"Submit": "soon"}, {"ElapsedRaw": "nan"}, {"ElapsedRaw": "-5"}, {"State": "\x1b[2J"})
    lines = (run(str(job), **more) for job, more in enumerate(broken, start=2))
    trace = read(path, ["8", "ann"], run("1"), *lines)

    assert lengths(trace) == {"1": 60}
    assert [line.partition(":")[0] for line in told(trace)] == ["2", "4", "5", "6", "7"]
    assert "\x1b" not in "".join(told(trace))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the dump is."""
    return tmp_path / "dump.txt"


def read(path: Path, *records: Sequence[str], header: str = HEADER) -> Trace:
    path.write_text("\n".join([header, *("|".join(r) for r in records)]) + "\n", "utf-8")
    return read_dump(path)


def lengths(trace: Trace) -> dict[str, float]:
    return dict(zip(trace.job_id, trace.duration_s.tolist(), strict=True))


def told(trace: Trace) -> list[str]:
    return [str(bad).partition("dump.txt:")[2] for bad in trace.bad]


def test_columns_may_stand_in_any_order_and_people_may_be_missing(path: Path) -> None:
    """A packed dump is read as it is."""
    asked = [name for name in reversed(FIELDS) if name not in {"User", "Account"}]
    record = dict(zip(FIELDS, run("1"), strict=True))
    trace = read(path, [record[name] for name in asked], header="|".join(asked))
    assert lengths(trace) == {"1": 60}
    assert trace.users == ("",)

    packed = path.with_suffix(".txt.gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    trace = read_dump(packed)
    assert (lengths(trace), trace.name, trace.format) == ({"1": 60}, "dump", "sacct")


def test_other_headers_and_no_jobs_are_refused(path: Path) -> None:
    """With the way out."""
    for header, said in (
        (f"{HEADER}|JobName", "column 'jobname' is not taken"),
        (HEADER.replace("|Start", ""), "no column Start"),
        (f"{HEADER}|Start", "column start is there twice"),
        ("|".join(run("1")), "no column JobID"),
        ("", "no column JobID"),
    ):
        with pytest.raises(ConfigError, match="dlsim history --sacct-command") as caught:
            read(path, run("1"), header=header)
        assert f"dump.txt:1: {said}" in str(caught.value)
    with pytest.raises(ConfigError, match="no job could be read"):
        read(path)


def test_the_command_asks_for_nothing_that_a_user_writes() -> None:
    """What it prints is one command for a shell, and its header is the one that is read."""
    begin_s, end_s = float(T0), T0 + 31 * 86_400.0
    words = shlex.split(sacct_command(begin_s, end_s, cluster="big"))

    assert words[:3] == ["TZ=UTC", "SLURM_TIME_FORMAT=standard", "sacct"]
    assert {"--allusers", "--duplicates", "--allocations", "--parsable2", "--clusters=big"} < {
        *words
    }
    assert "--noheader" not in words
    assert words[-2:] == ["--starttime=2026-01-01T00:00:00", "--endtime=2026-02-01T00:00:00"]
    assert f"--format={','.join(FIELDS)}" in words
    nameless = sacct_command(begin_s, end_s, people=False)
    assert "User" not in nameless
    assert "Account" not in nameless


class Recorded(Slurm):
    """A sacct that says what one once said."""

    def __init__(self, text: str) -> None:
        self.calls = Counter()
        self.text = text

    def run(self, *_args: str, within_s: float = float("inf")) -> str:
        """All of it."""
        assert within_s
        return self.text


@pytest.mark.parametrize("recorded", RECORDINGS, ids=lambda path: path.parent.name)
def test_recordings_of_real_releases_are_read_live_and_as_dumps(recorded: Path, path: Path) -> None:
    """And give the same jobs, under people's names or others."""
    text = recorded.read_text("utf-8")
    told = json.loads(recorded.with_name("sacct.json").read_text("utf-8"))
    tally = FetchTally()
    live = list(history(Recorded(text), told["begin_s"], told["end_s"], tally=tally))
    trace = read(path, *(line.split("|") for line in text.splitlines()))
    left_out = Gathering(str(path))
    runs = dump_records(path, left_out, tally=FetchTally(), stand_ins=StandIns())
    nameless = [line_of(record) for _, record in runs]

    assert told["header"] == HEADER
    assert (tally.unreadable, len(set(live))) == (0, tally.runs)
    for lines in (live, nameless):
        path.write_text("".join([f"{HEADER}\n", *lines]), "utf-8")
        again = read_trace(path)
        assert lengths(again) == lengths(trace)
    assert all(name.startswith("user-") for name in again.users)
    assert trace.gpus[trace.job_id.index(told["ids"]["stopped"])] == 1
    assert told["ids"]["twice"] not in trace.job_id  # It was still running.
    assert (trace.duration_s > 0).all()


TASKS = st.integers(0, 5)
LABELS = st.one_of(
    st.integers(1, 3).map(str),
    TASKS.map("9_{}".format),
    st.tuples(TASKS, TASKS).map(lambda ends: f"9_[{min(ends)}-{max(ends)}]"),
)
RECORDS = st.builds(
    lambda label, at, took, state: run(
        label,
        at,
        took,
        State=state,
        Start="None" if state == "PENDING" else str(T0 + at),
        Submit=str(T0 + at),
    ),
    LABELS,
    st.integers(0, 3),
    st.integers(0, 3),
    st.sampled_from(["COMPLETED", "FAILED", "REQUEUED", "RUNNING", "PENDING", "CANCELLED by 1"]),
)


@example(
    records=[
        run("9_[3-3]", 0, 1, State="RUNNING"),
        run("9_[3-3]", 1, 0, State="CANCELLED by 1", Submit=str(T0 + 1)),
    ],
    copies=1,
)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(RECORDS, max_size=12), st.integers(1, 3))
def test_nothing_counts_twice(path: Path, records: list[list[str]], copies: int) -> None:
    """However often it is told, no job is longer than its runs, and every line is accounted for."""
    path.write_text("\n".join([HEADER, *("|".join(r) for r in records * copies)]) + "\n", "utf-8")
    left_out = Gathering(str(path))
    tally = FetchTally()
    written = list(dump_records(path, left_out, tally=tally))
    lines = [line for line, _ in written]

    assert len(records) * copies == len(lines) + sum(bad.lines for bad in left_out.left_out)
    assert (tally.runs, lines) == (len(lines), sorted(set(lines)))
    once: Counter[str] = Counter()
    told = {line_of(record): record for _, record in written}
    assert len(told) == len(written)
    for record in told.values():
        once[record["JobID"]] += int(record["ElapsedRaw"])
    try:
        trace = read_dump(path)
    except ConfigError:
        return
    assert all(length <= once[job] for job, length in lengths(trace).items())
    tasks = [job for job in trace.job_id if "[" in job]
    assert not tasks
