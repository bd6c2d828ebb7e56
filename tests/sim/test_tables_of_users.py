"""Tables that users have: the own format with few columns, --columns, sacct's Elapsed and JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slurm_dl.model.errors import ConfigError
from slurm_dl.model.trace import Trace
from slurm_dl.traces import read_trace
from slurm_dl.traces.format_registry import BY_COLUMNS
from slurm_dl.traces.summary import left_out_json

SAMPLES = Path(__file__).parents[1] / "data" / "traces"
DAY_S = 86_400.0
OF_2026_S = 1_767_225_600.0
"""The beginning of 2026 in UTC."""


def rows(trace: Trace) -> list[tuple[str, float, float, float, str, int]]:
    """The jobs; by submission."""
    users = [trace.users[u] for u in trace.user.tolist()]
    numbers = (trace.submit_s.tolist(), trace.duration_s.tolist(), trace.gpus.tolist())
    return list(zip(trace.job_id, *numbers, users, trace.ending.tolist(), strict=True))


def written(path: Path, text: str) -> Path:
    path.write_text(text, "utf-8")
    return path


TABLES: dict[str, tuple[str, str | None, list[tuple[object, ...]]]] = {
    "three columns are enough, a job is called by its line": (
        "gpus,submit_s,duration_s\n2,0,10\n\n1,5,0.5\n", None,
        [("2", 0, 10, 2, "", 0), ("4", 5, 0.5, 1, "", 0)],
    ),
    "semicolons, quotes between them, and an optional column": (
        '"submit_s";"duration_s";gpus;user\n0;10;1;"a;b"\n', None, [("2", 0, 10, 1, "a;b", 0)],
    ),
    "tabs": (
        'job_id\tsubmit_s\tduration_s\tgpus\tending\n"a\tb"\t0\t10\t1\tfailed\n"7"\t1\t2\t3\t\n',
        None, [("7", 1, 2, 3, "", 0)],
    ),
    "other names in any case, times and durations as Slurm and others write them": (
        """JobNo;#GPU;Submit;Run;Who;more, or less
1;2;2026-01-01T00:00:00Z;1-00:00:01;ada;
2;1;2026-01-01 02:00:00+02:00;01:00:00;bo;x,y
3;1;2026-01-01T00:00:02.5Z;90;bo;
""",
        "gpus=#gpu, submit_s=SUBMIT,duration_s=Run,User=who,job_id=JobNo",
        [
            ("1", OF_2026_S, DAY_S + 1, 2, "ada", 0),
            ("2", OF_2026_S, 3600, 1, "bo", 0),
            ("3", OF_2026_S + 2.5, 90, 1, "bo", 0),
        ],
    ),
    "a column of which nothing is said has its own name; a comma in a name is quoted": (
        'submit_s,"n, gpus",len,user\n0,1,10,ada\n', 'duration_s=len,"gpus=n, gpus"',
        [("2", 0, 10, 1, "ada", 0)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TABLES)
def test_tables_of_users_are_read(case: str, tmp_path: Path) -> None:
    text, given, expected = TABLES[case]
    path = written(tmp_path / "t.csv", text)

    trace = read_trace(path, None if given is None else BY_COLUMNS + given)

    assert rows(trace) == expected
    assert trace.format == ("slurm_dl" if given is None else BY_COLUMNS + given)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("gpu=b", "'gpu' is no column of ours; there are submit_s.*account.*; nearest: gpus"),
        ("gpus=gpuz,submit_s=a,duration_s=c", "no column gpuz.*there are a, gpu, c; nearest: gpu"),
        ("gpus=gpu,submit_s=a,duration_s=c,user=who", "no column who; .*there are a, gpu, c"),
        ("gpus=gpu", "no column submit_s; format 'columns' needs submit_s, duration_s, gpu"),
        ("gpus=a,GPUS=c", "gpus is named twice"), ("gpus=", "gpus needs a name"),
        ("", "'' is no column of ours"), ('"gpus=a', "quotes do not fit"),
    ],
)  # fmt: skip
def test_columns_that_are_not_there_are_named_with_the_nearest(
    given: str, why: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "t.csv", "a,gpu,c\n0,1,10\n")

    with pytest.raises(ConfigError, match=why):
        read_trace(path, BY_COLUMNS + given)


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ("timestamp,duration,num_gpus,gpu_time", "nearest: philly, lacks cluster"),
        ("submit_s;gpus;user", "nearest: slurm_dl, lacks duration_s"),
        ("timestamp;duration;num_gpus;cluster", "nearest: philly, has ';' between its columns"),
        ("JobID|Submit|State|AllocTRES", "nearest: sacct, lacks elapsedraw or elapsed"),
        ("job_id,num_gpu,submit_time,duration,interval,iteration_time",
         "nearest: tiresias, has iteration_time too many"),
    ],
)  # fmt: skip
def test_an_unknown_table_is_told_which_format_is_nearest(
    header: str, words: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        read_trace(written(tmp_path / "t.csv", header + "\n1,2,3,4\n"))

    first, second = str(caught.value).splitlines()
    assert words in first
    assert {"helios", "--columns"} <= set(second.replace(",", " ").split())


@pytest.mark.parametrize("release", ["22.05", "24.11", "26.05"])
def test_the_json_of_sacct_is_the_table_that_it_prints(release: str) -> None:
    """Of one cluster at one moment: requeued, an array, heterogeneous, failed, cancelled, running.

    The table has Elapsed alone, and JobID.
    """
    table, told = (read_trace(SAMPLES / f"sacct_{release}.{end}") for end in ("txt", "json"))

    assert told.format == "sacct"
    assert len(told) > 6
    assert sorted(rows(told)) == sorted(rows(table))
    assert told.account_names == table.account_names
    assert left_out_json(told)["by_reason"] == left_out_json(table)["by_reason"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"job_id": "7; rm"}, "unusable name"), ({"job_id": [1]}, "unusable name"),
        ({"state": "COMPLETED"}, "unknown state"), ({"time": 5}, "not a time"),
        ({"time": {"submission": 10**40, "elapsed": 5}}, "out of range"),
        ({"time": {"submission": 1795906809, "elapsed": -5}}, "negative"),
        ({"time": {"submission": 9, "elapsed": {"set": True, "number": "x"}}}, "not a number"),
        ({"tres": {"allocated": {"gres": 1}}}, "job without GPUs"),
        ({"user": "a\x1b[1m"}, "unusable name"), (None, "broken record"),
    ],
)  # fmt: skip
def test_a_broken_job_of_json_is_left_out_and_counted(
    change: dict[str, object] | None, reason: str, tmp_path: Path
) -> None:
    good = json.loads((SAMPLES / "sacct_22.05.json").read_text())["jobs"][1]
    bad = "no job" if change is None else {**good, "job_id": 99, **change}
    trace = read_trace(written(tmp_path / "j", json.dumps({"jobs": [bad, good]})))

    assert len(trace) == 1
    told = left_out_json(trace)
    assert (told["lines"], told["by_reason"]) == (1, {reason: 1})


def test_what_waits_of_an_array_is_none_of_its_tasks(tmp_path: Path) -> None:
    jobs = json.loads((SAMPLES / "sacct_26.05.json").read_text())["jobs"]
    task = next(job for job in jobs if job["job_id"] == 8)
    unset = {"set": False, "infinite": False, "number": 0}
    rest = {**task, "array": {"job_id": 2, "task_id": unset}, "state": {"current": ["PENDING"]}}
    trace = read_trace(written(tmp_path / "j", json.dumps({"jobs": [task, rest]})))

    assert trace.job_id == ("2_0",)
