"""Trace readers: real files against counts made another way, every kind of bad line, any bytes."""

from __future__ import annotations

import csv
import dataclasses
import gzip
import json
import math
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_dl.experiments.bootstrap_interval import resampled
from slurm_dl.experiments.grid import faster
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.trace import Ending, Trace
from slurm_dl.model.value_curve import ValueCurve
from slurm_dl.traces import (
    FORMATS,
    LeftOutLine,
    Reason,
    detect_format,
    read_trace,
    summarize,
    write_trace,
)
from slurm_dl.traces import builder as gather_module
from slurm_dl.traces import file_lines as lines_module
from slurm_dl.traces.builder import SHOWN_PER_REASON
from slurm_dl.traces.file_lines import read_head
from slurm_dl.traces.format_registry import BY_MODELS

ROOT = Path(__file__).parents[2]
TRACES = ROOT / "traces"
SAMPLES = ROOT / "tests" / "data" / "traces"

OF_FORMAT = {
    "tiresias": TRACES / "tiresias" / "60_job.csv",
    "muri": TRACES / "muri" / "trace3.csv",
    "itp": TRACES / "elasticflow" / "cluster10.csv",
    "philly": TRACES / "philly" / "philly.csv.gz",
    "philly-json": SAMPLES / "philly_job_log.json",
    "helios": SAMPLES / "helios.csv",
    "chronus": SAMPLES / "chronus.csv",
    "pai": SAMPLES / "pai",
    "gavel": TRACES / "gavel" / "max_min_fairness.trace",
    "synergy": TRACES / "synergy" / "srtf.log",
    "pollux": TRACES / "pollux" / "workload-1.csv",
    "sacct": SAMPLES / "sacct.txt",
}


def dicts(path: Path) -> list[dict[str, str]]:
    """The lines of a table as the csv module of Python reads them, no code of ours between."""
    opener: Any = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", newline="") as stream:
        return [row for row in csv.DictReader(stream) if any(row.values())]


def columns(trace: Trace) -> list[tuple[str, float, float, float, str, str, int]]:
    """Every column of a trace, job by job, with names in place of their numbers."""
    return [
        (
            trace.job_id[i],
            float(trace.submit_s[i]),
            float(trace.duration_s[i]),
            float(trace.gpus[i]),
            trace.users[trace.user[i]],
            trace.models[trace.model[i]] if trace.model[i] >= 0 else "",
            int(trace.ending[i]),
        )
        for i in range(len(trace))
    ]


def reasons(trace: Trace) -> dict[Reason, int]:
    """Lines left out, by reason."""
    counts: Counter[Reason] = Counter()
    for bad in trace.bad:
        assert isinstance(bad, LeftOutLine)
        counts[bad.reason] += bad.lines
    return dict(counts)


# Real files against what an independent reading of them gives.


def named(row: dict[str, str]) -> str:
    """The model, with the batch size where that is told."""
    batch = row.get("batch_size")
    return f"{row['model_name']} (batch size {batch})" if batch else row["model_name"]


@pytest.mark.parametrize(
    ("path", "form", "submit"),
    [
        *((p, "tiresias", "submit_time") for p in sorted(TRACES.glob("tiresias-derived/*.csv"))),
        (OF_FORMAT["tiresias"], "tiresias", "submit_time"),
        (TRACES / "elasticflow" / "enriched" / "cluster10.csv", "itp", "submission_time"),
        (TRACES / "elasticflow" / "enriched" / "elasticVpollux_e.csv", "itp", "submit_time"),
    ],
    ids=lambda value: value.stem if isinstance(value, Path) else "",
)
def test_tables_of_jobs_and_models_are_read_whole(path: Path, form: str, submit: str) -> None:
    trace = read_trace(path)

    assert trace.format == form
    assert trace.bad == ()
    numbers = (submit, "duration", "num_gpu")
    assert sorted(columns(trace)) == sorted(
        (r["job_id"], *(float(r[name]) for name in numbers), "", named(r), 0) for r in dicts(path)
    )
    due = {r["job_id"]: float(r.get("deadline") or r.get("ddl") or "inf") for r in dicts(path)}
    assert due == dict(zip(trace.job_id, deadlines(trace), strict=True))


def deadlines(trace: Trace) -> list[float]:
    """The deadline of each job; inf for one without."""
    return [math.inf] * len(trace) if trace.due_s is None else trace.due_s.tolist()


def test_chronus_counts_in_minutes_and_its_best_deadline_is_taken() -> None:
    """The earliest of the highest value; none for best effort. Jobs without GPUs are counted."""
    trace = read_trace(OF_FORMAT["chronus"])

    assert trace.job_id == ("1", "0", "3")
    assert (trace.submit_s / 60).tolist() == [5, 10, 20]
    assert (trace.duration_s / 60).tolist() == [106, 96, 30]
    assert [at_s / 60 for at_s in deadlines(trace)] == [240, 199, math.inf]
    assert reasons(trace) == {Reason.NO_GPU: 1, Reason.FIELDS: 1}


def test_chronus_jobs_have_the_values_of_all_their_deadlines(tmp_path: Path) -> None:
    """Seconds after the submission; what a better one covers, and what is worth 0, is left out."""
    head = "job_id,user,num_gpu,submit_time,duration,expect_time_list,expect_value_list,best_effort"
    rows = (
        "b,ann,1,20,90,159-189-229,10-8-5,0",
        "a,ann,1,10,90,60-40-80-90,8-10-10-0,0",
        "c,ann,1,30,90,60-40,8-0,0",
        f"d,ann,1,40,90,{'-'.join('123456789')},{'-'.join('987654321')},0",
    )
    path = tmp_path / "chronus.csv"
    path.write_text("\n".join([head, *rows]))
    trace = read_trace(path, "chronus")

    first = ValueCurve((40 * 60.0, 60 * 60.0), (10.0, 8.0))
    second = ValueCurve((159 * 60.0, 189 * 60.0, 229 * 60.0), (10.0, 8.0, 5.0))
    assert trace.job_id == ("a", "b", "c")
    assert trace.curves == (first, second, None)
    assert trace.curves_by_row() == {0: first.shifted(600.0), 1: second.shifted(1200.0)}
    later = trace.of_jobs(np.array([2, 1]), submit_s=np.array([0.0, 60.0]))
    assert later.curves_by_row() == {1: second.shifted(60.0)}
    assert reasons(trace) == {Reason.FIELDS: 1}
    with pytest.raises(ValueError, match="curves"):
        dataclasses.replace(trace, curves=())


def test_a_table_may_call_it_deadline_and_a_deadline_moves_with_its_job(tmp_path: Path) -> None:
    """At twice the load and in a resample a job has as long as before."""
    path = tmp_path / "own.csv"
    path.write_text(
        "submit_s,duration_s,gpus,Deadline\n0,5,1,1970-01-01T00:01:30\n1e5,5,1,\n"
        "3e5,5,1,1970-01-04T12:00:00\n"
    )
    trace = read_trace(path)

    assert trace.format == "slurm_dl"
    assert deadlines(trace) == [90, math.inf, 302_400]
    for other in (faster(trace, 2.0), resampled(trace, 3)):
        assert other.due_s is not None
        ahead_s = (other.due_s - other.submit_s).tolist()
        assert set(ahead_s) <= {90.0, math.inf, 2400.0}
    with pytest.raises(ValueError, match="a deadline is no time"):
        dataclasses.replace(trace, due_s=np.full(3, np.nan))


@pytest.mark.parametrize("name", ["trace1", "trace1_pr", "trace3", "trace3_pr"])
def test_muri_durations_are_iterations_times_the_time_of_one(name: str) -> None:
    path = TRACES / "muri" / f"{name}.csv"
    trace = read_trace(path)
    rows = {r["job_id"]: r for r in dicts(path)}

    assert len(trace) == len(rows) == {"trace1": 1494, "trace3": 992}[name.removesuffix("_pr")]
    for i, job_id in enumerate(trace.job_id):
        row = rows[job_id]
        assert trace.duration_s[i] == int(row["iterations"]) * int(row["iteration_time"]) / 1000
        assert trace.submit_s[i] == int(row["submit_time"]) / 1000
        assert trace.models[trace.model[i]] == row["model_name"]
    if name.endswith("_pr"):
        assert not trace.submit_s.any()
        assert trace.job_id == tuple(rows)


def test_all_itp_clusters_together_have_the_jobs_that_were_published() -> None:
    paths = sorted((TRACES / "elasticflow").glob("cluster*.csv*"))
    traces = [read_trace(path) for path in paths]

    assert len(paths) == 10
    assert {t.format for t in traces} == {"itp"}
    assert sum(map(len, traces)) == 69_351
    assert all(t.bad == () for t in traces)
    rows = dicts(paths[0])
    assert traces[0].gpu_s == sum(int(r["duration"]) * int(r["num_gpu"]) for r in rows)


def test_philly_is_read_whole() -> None:
    """Jobs submitted together keep the order of the file."""
    rows = dicts(OF_FORMAT["philly"])
    trace = read_trace(OF_FORMAT["philly"])

    assert len(trace) == len(rows) == 82_247
    assert trace.bad == ()
    assert trace.name == "philly"
    assert trace.gpu_s == pytest.approx(sum(float(r["gpu_time"]) for r in rows), rel=1e-12)
    assert set(trace.users) == {r["cluster"] for r in rows}
    row = rows[int(trace.job_id[4711])]
    assert trace.submit_s[4711] == seconds(row["timestamp"])
    assert trace.duration_s[4711] == float(row["duration"])
    assert list(trace.submit_s) == sorted(trace.submit_s)
    together = np.diff(trace.submit_s) == 0
    assert together.sum() > 100
    assert (np.diff(np.array(trace.job_id, dtype=int))[together] > 0).all()


def test_gavel_durations_are_steps_over_measured_speed() -> None:
    path = OF_FORMAT["gavel"]
    lines = [line.split("\t") for line in path.read_text().splitlines()]
    trace = read_trace(path)

    assert trace.bad == ()
    assert len(trace) == len(lines) == 96
    first = trace.job_id.index("0")
    # 925,982 steps of ResNet-18 (batch size 128) on 4 GPUs at 69.95051765177759 steps a second.
    assert lines[0][5:7] == ["925982", "4"]
    assert trace.duration_s[first] == 925_982 / 69.95051765177759
    assert trace.gpus[first] == 4
    for i, job_id in enumerate(trace.job_id):
        assert trace.submit_s[i] == float(lines[int(job_id)][9])
        assert trace.models[trace.model[i]] == lines[int(job_id)][0]


@pytest.mark.parametrize("name", ["2869ce", "51b7ef"])
def test_gavel_jobs_nobody_measured_are_left_out(name: str) -> None:
    path = TRACES / "gavel" / f"{name}.trace"
    lines = [line.split("\t") for line in path.read_text().splitlines()]
    table = ROOT / "slurm_dl" / "traces" / "formats" / "gavel_steps_per_s.json"
    measured = json.loads(table.read_text())["steps_per_s"]
    known = [str(i) for i, f in enumerate(lines) if f[6] in measured.get(f[0], {})]
    trace = read_trace(path)

    assert sorted(trace.job_id) == sorted(known)
    assert reasons(trace) == {Reason.NO_RATE: len(lines) - len(known)}
    for i, job_id in enumerate(trace.job_id):
        fields = lines[int(job_id)]
        assert trace.submit_s[i] == float(fields[5])
        assert trace.duration_s[i] == int(fields[4]) / measured[fields[0]][fields[6]]["v100"]


def test_shockwave_tells_its_durations() -> None:
    path = TRACES / "shockwave" / "tacc_120jobs.trace"
    lines = [line.split("\t") for line in path.read_text().splitlines()]
    trace = read_trace(path)

    assert trace.format == "gavel"
    assert columns(trace) == [
        (str(i), float(f[11]), float(f[10]), float(f[6]), "", f[0], 0)
        for i, f in sorted(enumerate(lines), key=lambda item: float(item[1][11]))
    ]


@pytest.mark.parametrize("name", ["srtf.log", "static_100job_6_3_1100.0"])
def test_synergy_durations_are_iterations_times_the_time_of_one(name: str) -> None:
    path = TRACES / "synergy" / name
    lines = [line.split(",") for line in path.read_text().splitlines()]
    trace = read_trace(path)

    assert trace.format == "synergy"
    assert trace.name == name.removesuffix(".log")
    assert len(trace) == len(lines) == 100
    gnmt = [float(f[3]) * 0.12 for f in lines if f[1] == "gnmt"]
    model = trace.models.index("gnmt")
    assert sorted(trace.duration_s[trace.model == model]) == pytest.approx(sorted(gnmt))


def test_pollux_durations_are_those_of_measured_models(tmp_path: Path) -> None:
    """Read by hand: one epoch after another at progress / (step + passes more) seconds."""
    trace = read_trace(OF_FORMAT["pollux"])
    rows = dicts(OF_FORMAT["pollux"])

    assert trace.bad == ()
    assert trace.batch is not None
    found = zip(trace.job_id, trace.submit_s, trace.gpus, trace.batch, strict=True)
    keys = ("name", "time", "num_replicas", "batch_size")
    assert [tuple(map(str, (j, int(s), int(g), b))) for j, s, g, b in found] == [
        tuple(row[key] for key in keys) for row in rows
    ]
    # A batch of 32 on 4 GPUs is measured as it is: 8 samples each, of which no more fit.
    path = tmp_path / "one.csv"
    path.write_text("name,time,application,num_replicas,batch_size\na,0,yolov3,4,32\n")
    models = TRACES / "pollux" / "models"
    place = next(
        row for row in dicts(models / "yolov3" / "placements.csv")
        if (row["placement"], row["local_bsz"]) == ("4", "8")
    )  # fmt: skip
    trained = [dicts(file) for file in (models / "yolov3").glob("validation-*.csv")]
    ends = [0.0, *(min(float(t[i]["progress"]) for t in trained) for i in range(50))]
    own = dicts(models / "yolov3" / "validation-32.csv")
    gain = [
        (float(row["grad_var"]) + float(row["grad_sqr"]))
        / (float(row["grad_var"]) / (32 / 8) + float(row["grad_sqr"]))
        for row in own
    ]
    seconds_s = sum(np.diff(ends) / gain) * float(place["step_time"])

    (duration_s,) = read_trace(path, f"{BY_MODELS}{models}").duration_s

    assert duration_s == pytest.approx(seconds_s, rel=1e-12)


# Made-up samples: what each format can say.


def seconds(text: str) -> float:
    return datetime.fromisoformat(text + "+00:00").timestamp()


def test_philly_json_sums_attempts_and_tells_what_it_leaves_out() -> None:
    trace = read_trace(OF_FORMAT["philly-json"])
    long = ("application_1506638472019_14199", seconds("2017-10-07 01:11:39"), 74 + 193_182, 8)

    assert columns(trace) == [
        ("two_nodes", seconds("2017-10-06 00:00:00"), 100, 3, "u1", "", Ending.CANCELLED),
        (*long, "ce2f4c", "", Ending.COMPLETED),
        ("failed", seconds("2017-10-08 00:00:00"), 7, 1, "u2", "", Ending.FAILED),
    ]
    once = ("NEVER_RAN", "NOT_ENDED", "TIME", "STATE", "NEGATIVE", "GPUS")
    assert reasons(trace) == {**{Reason[name]: 1 for name in once}, Reason.BROKEN: 4}
    whole = OF_FORMAT["philly-json"].read_text().splitlines()
    for bad in trace.bad:
        if bad.line and "no string" not in bad.why:
            assert whole[bad.line - 1].lstrip()[0] in "{[n"


def test_helios_leaves_out_cpu_jobs_as_one_number() -> None:
    trace = read_trace(OF_FORMAT["helios"])

    assert [(c[0], *c[2:5], c[6]) for c in columns(trace)] == [
        ("1425516", 10, 16, "uzqls", Ending.FAILED),
        ("1425511", 36_848, 1, "uXBbc", Ending.COMPLETED),
        ("1425512", 249, 4, "uVMrF", Ending.FAILED),
        ("1425513", 675_233, 1, "uzqls", Ending.CANCELLED),
        ("1425517", 11, 8, "uzqls", Ending.FAILED),
    ]
    assert trace.submit_s[1] == seconds("2020-06-09 18:41:01")
    assert reasons(trace) == {Reason.NO_GPU: 2, Reason.STATE: 1, Reason.DURATION: 1}
    (cpu_jobs,) = (b for b in trace.bad if isinstance(b, LeftOutLine) and b.reason == Reason.NO_GPU)
    assert (cpu_jobs.line, cpu_jobs.lines) == (5, 2)


HELIOS_HEADER = "job_id,user,gpu_num,state,submit_time,duration"
SACCT_HEADER = "JobID|Submit|State|ElapsedRaw|AllocTRES|User|Account"
OWN_HEADER = "submit_s,duration_s,gpus"
FORMS = {
    "local": ("2020-04-01 02:00:00", "2020-04-01T03:00:00"),
    "offset": ("2020-04-01T10:00:00+08:00", "2020-04-01 03:00:00Z"),
    "seconds": ("1585706400", "1585710000.0"),
}


def with_times(path: Path, header: str, times: Sequence[str]) -> Path:
    """A trace of one job a time."""
    line = {
        HELIOS_HEADER: "{n},u,8,COMPLETED,{time},120",
        SACCT_HEADER: "{n}|{time}|COMPLETED|120|gres/gpu=8|u|a",
        OWN_HEADER: "{time},120,8",
    }[header]
    lines = [line.format(n=n, time=time) for n, time in enumerate(times)]
    path.write_text("\n".join([header, *lines, ""]), "utf-8")
    return path


@pytest.mark.parametrize("header", [HELIOS_HEADER, SACCT_HEADER, OWN_HEADER])
def test_times_are_local_or_have_an_offset_or_are_seconds(header: str, tmp_path: Path) -> None:
    """In each format the same two moments; two forms in a column are nobody's guess."""
    for form, times in FORMS.items():
        trace = read_trace(with_times(tmp_path / "a.csv", header, times))
        assert trace.submit_s.tolist() == [1585706400, 1585710000], form
        assert trace.bad == ()
        for other in FORMS.keys() - {form}:
            mixed = with_times(tmp_path / "b.csv", header, [*times, FORMS[other][0]])
            with pytest.raises(ConfigError, match=r"b\.csv:4: the submission is a .*in line 2 a"):
                read_trace(mixed)
    bad = with_times(tmp_path / "c.csv", header, [*times, "2020-04-01 10:00:00 CST", "1e999"])
    assert reasons(read_trace(bad)) == {Reason.TIME: 2}


def test_virtual_clusters_are_accounts(tmp_path: Path) -> None:
    """Of Helios and of Philly as released; a trace that tells none has none.

    No result depends on one, so a job whose virtual cluster is no name counts as any other.
    """
    helios = read_trace(OF_FORMAT["helios"])
    assert helios.account_names == ("vcpDC", "vcJkd", "vchbv", "vcpDC", "vcpDC")
    philly = read_trace(OF_FORMAT["philly-json"])
    assert philly.account_names is not None
    assert dict(zip(philly.job_id, philly.account_names, strict=True))["two_nodes"] == "v1"
    assert read_trace(OF_FORMAT["tiresias"]).account_names is None

    whole = OF_FORMAT["helios"].read_text()
    path = tmp_path / "helios.csv"
    for bad in ("v\x1b[31m", "v" * 5000):
        path.write_text(whole.replace("vcJkd", bad))
        assert columns(read_trace(path)) == columns(helios)
        assert read_trace(path).account_names == ("vcpDC", "", "vchbv", "vcpDC", "vcpDC")
    rows = [line.split(",") for line in whole.splitlines()]
    at = rows[0].index("vc")
    path.write_text("\n".join(",".join(row[:at] + row[at + 1 :]) for row in rows) + "\n")
    assert columns(read_trace(path)) == columns(helios)
    assert read_trace(path).account_names is None


def test_all_that_is_a_jobs_goes_with_it() -> None:
    """To a part of a trace, and where others are drawn to its times."""
    trace = read_trace(OF_FORMAT["helios"])
    part = trace.of_jobs(np.array([1, 4]))
    assert columns(part) == [columns(trace)[1], columns(trace)[4]]
    assert part.account_names == ("vcJkd", "vcpDC")

    drawn = trace.of_jobs(np.array([1, 1, 2, 0, 4]), job_id=trace.job_id, submit_s=trace.submit_s)
    assert drawn.account_names == ("vcJkd", "vcJkd", "vchbv", "vcpDC", "vcpDC")
    assert [row[:2] for row in columns(drawn)] == [row[:2] for row in columns(trace)]
    assert drawn.duration_s[0] == trace.duration_s[1]
    assert resampled(trace, 7).account is not None


def test_pai_joins_its_tables(tmp_path: Path) -> None:
    by_directory = read_trace(OF_FORMAT["pai"])
    by_table = read_trace(OF_FORMAT["pai"] / "pai_job_table.csv")
    for table in OF_FORMAT["pai"].iterdir():
        (tmp_path / f"{table.name}.gz").write_bytes(gzip.compress(table.read_bytes()))

    assert columns(by_directory) == [
        ("ps_and_workers", 900, 1040, 4.25, "u1", "", Ending.FAILED),
        ("one_task", 1000, 590, 0.5, "u1", "", Ending.COMPLETED),
    ]
    assert columns(by_table) == columns(read_trace(tmp_path)) == columns(by_directory)
    told = {"NO_GPU": 2, "NOT_ENDED": 2, "BROKEN": 2, "STATE": 1, "DUPLICATE": 1}
    assert reasons(by_directory) == {Reason[name]: lines for name, lines in told.items()}


def test_sacct_makes_one_job_of_all_runs() -> None:
    """And of the parts of a heterogeneous job, where ids show them."""
    trace = read_trace(OF_FORMAT["sacct"])
    assert columns(trace) == [
        ("101", seconds("2026-03-02 07:00:00"), 3500, 8, "ben", "", Ending.CANCELLED),
        ("106", seconds("2026-03-02 08:31:00"), 30, 2, "nlp", "", Ending.FAILED),
        ("109", seconds("2026-03-02 08:31:00"), 86_400, 16, "carl", "", Ending.FAILED),
        ("100", seconds("2026-03-02 09:00:00"), 3600, 4, "anna", "", Ending.COMPLETED),
    ]
    told = {"STEP": 2, "NOT_ENDED": 2, "NO_GPU": 1, "NEVER_RAN": 1, "TIME": 1, "STATE": 1}
    assert reasons(trace) == {Reason[name]: lines for name, lines in told.items()}
    parts = read_trace(SAMPLES / "sacct_jobid.txt")
    assert [(c[0], *c[2:4], c[6]) for c in columns(parts)] == [
        ("200_3", 100, 1, Ending.COMPLETED),
        ("201", 300, 6, Ending.COMPLETED),
    ]
    assert reasons(parts) == {Reason.NOT_ENDED: 2}


def test_sacct_leaves_a_line_out_whole(tmp_path: Path) -> None:
    """One whose account or user is no name, a number none, or told before, adds to no job."""
    path, day = tmp_path / "history", "2026-03-02T"
    path.write_text(
        "JobID|User|Account|Submit|State|ElapsedRaw|AllocTRES\n"
        f"1|ann|vision|{day}09:00:00|PREEMPTED|9|gres/gpu=1\n"
        f"1|ann|vision|{day}09:00:00|PREEMPTED|9|gres/gpu=1\n"
        f"1|ann|\x1bvision|{day}10:00:00|COMPLETED|50|gres/gpu=4\n"
        f"2|ann|{'v' * 300}|{day}09:00:00|COMPLETED|9|gres/gpu=1\n"
        f"3|\x1bann|vision|{day}09:00:00|COMPLETED|9|gres/gpu=1\n"
        f"4|ann|vision|{day}09:00:00|COMPLETED|9|gres/gpu={'9' * 400}\n"
        f"5|ann|vision|{day}09:00:00|COMPLETED|9|gres/gpu={'9' * 30}\n"
        f"6|ann|vision|{day}09:00:00|COMPLETED|{'9' * 5000}|gres/gpu=1\n"
    )
    trace = read_trace(path)

    assert [(c[0], *c[2:5], c[6]) for c in columns(trace)] == [("1", 9, 1, "ann", Ending.FAILED)]
    told = {Reason.NAME: 3, Reason.NUMBER: 1, Reason.OUT_OF_RANGE: 2, Reason.DUPLICATE: 1}
    assert reasons(trace) == told


# Detection.


@pytest.mark.parametrize(("name", "path"), OF_FORMAT.items())
def test_each_sample_is_recognized_by_its_own_format_only(
    name: str, path: Path, tmp_path: Path
) -> None:
    if path.is_file() and name != "pai":
        renamed = tmp_path / "data.bin"
        renamed.write_bytes(path.read_bytes())
        path = renamed
    head = read_head(path)

    assert [f.name for f in FORMATS.values() if f.recognizes(head)] == [name]
    assert detect_format(path) == name


def test_what_cannot_be_read_or_written_is_the_users_fault(tmp_path: Path) -> None:
    """An unknown format is refused with a list; a named one must fit."""
    odd, cut, sixty = tmp_path / "odd.csv", tmp_path / "cut.csv.gz", OF_FORMAT["tiresias"]
    odd.write_text("a,b,c\n1,2,3\n")
    cut.write_bytes(OF_FORMAT["philly"].read_bytes()[:50_000])
    wrong: list[tuple[Path, str | None, str]] = [
        (odd, None, rf"(?s){odd}: begins like no format.*{'.*'.join(FORMATS)}"),
        (sixty, "slurm", "'slurm' is unknown; there are slurm_dl, sacct, philly"),
        (sixty, "philly", r"60_job\.csv:1: no column timestamp; format 'philly'"),
        (sixty, "pai", r"no pai_task_table\.csv in it"),
        (sixty, "synergy", r"no job could be read.*60_job\.csv:1: 7 fields"),
        (tmp_path / "none.csv", None, r"none\.csv: cannot be read: No such file"),
        (cut, None, r"cut\.csv\.gz: cannot be read: Compressed file ended"),
        (tmp_path, None, "begins like no format"),
        (tmp_path, "tiresias", "not a file"),
        (Path("/dev/zero"), None, "/dev/zero: not a file"),
    ]
    for path, form, why in wrong:
        with pytest.raises(ConfigError, match=why):
            read_trace(path, form)
    with pytest.raises(ConfigError, match="cannot be written: No such file"):
        write_trace(read_trace(sixty), tmp_path / "none" / "trace.csv")


@pytest.mark.parametrize("name", ["bytes.bin", "not_gzip.gz", "empty.csv"])
def test_files_without_sense_are_refused(name: str) -> None:
    path = SAMPLES / "hostile" / name
    for format_name in (None, *FORMATS):
        with pytest.raises(ConfigError, match=name if format_name != "pai" else "pai_task_table"):
            read_trace(path, format_name)


# Bad lines.


def test_every_kind_of_bad_line_is_told_and_the_rest_is_read() -> None:
    path = SAMPLES / "hostile" / "tiresias_bad_lines.csv"
    trace = read_trace(path)

    assert trace.job_id == ("ok", "latin\ufffd", "last", "quoted,name", "after")
    assert trace.models[trace.model[3]] == 'm "x"'
    assert trace.model[2] == -1
    lines = {
        Reason.FIELDS: [3, 4, 21, 22], Reason.NUMBER: [5, 6, 7, 8, 12], Reason.NEGATIVE: [9, 10],
        Reason.GPUS: [11], Reason.DURATION: [13, 14], Reason.DUPLICATE: [15],
        Reason.NAME: [16, 24, 25], Reason.OUT_OF_RANGE: [17, 18, 19], Reason.TOO_LONG: [29],
    }  # fmt: skip
    assert [(b.line, b.reason) for b in trace.bad if isinstance(b, LeftOutLine)] == sorted(
        (line, reason) for reason, several in lines.items() for line in several
    )
    assert str(trace.bad[0]) == f"{path}:3: 3 fields, expected 7"
    assert str(trace.bad[2]) == f"{path}:5: duration is 'nan', not a number"
    assert all(str(bad).isprintable() for bad in trace.bad)


def test_a_file_from_windows_is_read_the_same(tmp_path: Path) -> None:
    path = tmp_path / "60_job.csv"
    text = OF_FORMAT["tiresias"].read_bytes()
    path.write_bytes(b"\xef\xbb\xbf" + text.replace(b"\n", b"\r\n").upper().replace(b"VGG", b"vgg"))
    log = tmp_path / "log"
    log.write_bytes(b"\xef\xbb\xbf" + OF_FORMAT["philly-json"].read_bytes())
    trace, plain = read_trace(path), read_trace(OF_FORMAT["tiresias"])

    assert trace.format == "tiresias"
    assert trace.bad == ()
    assert (trace.job_id, trace.name) == (plain.job_id, plain.name)
    assert (trace.duration_s == plain.duration_s).all()
    assert columns(read_trace(log, "philly-json")) == columns(read_trace(OF_FORMAT["philly-json"]))


def test_a_million_bad_lines_are_told_in_a_few(tmp_path: Path) -> None:
    path = tmp_path / "many.csv"
    header = "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n"
    path.write_text(header + "a,1,0,0,m,5,0\n" + "b,1,0\n" * 5000 + "c,1,0,0,m,0,0\n")
    trace = read_trace(path)
    summary = summarize(trace)

    assert len(trace.bad) == SHOWN_PER_REASON + 2
    assert reasons(trace) == {Reason.FIELDS: 5000, Reason.DURATION: 1}
    assert summary.lines_left_out == 5001
    assert [(kind.reason, kind.lines) for kind in summary.left_out] == [
        ("wrong number of fields", 5000),
        ("duration not above 0", 1),
    ]
    assert summary.left_out[0].examples[0] == f"{path}:3: 3 fields, expected 7"
    assert len(summary.left_out[0].examples) == 3


@pytest.mark.parametrize(
    "tail",
    [
        "\n\n{'status': broken}, {}]", "[" * 100_000, '{"a":' * 100_000, '"' + "x" * 100_000,
        "9" * 5000,
    ],
    ids=["broken", "lists", "mappings", "text", "number"],
)  # fmt: skip
def test_a_broken_philly_log_is_read_up_to_the_break(tail: str, tmp_path: Path) -> None:
    """Also one that nests without end."""
    job = json.loads(OF_FORMAT["philly-json"].read_text())[0]
    path = tmp_path / "log"
    path.write_text(f"[{json.dumps(job)}, {tail}")
    trace = read_trace(path)

    assert len(trace) == 1
    assert reasons(trace) == {Reason.BROKEN: 1}
    assert trace.bad[0].line == 1 + tail.count("\n")
    assert "the rest is left out" in trace.bad[0].why
    with pytest.raises(ConfigError, match="no job could be read"):
        read_trace(SAMPLES / "hostile" / "philly_broken.json")


def test_a_philly_log_longer_than_the_buffer_is_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "slurm_dl.traces.formats.philly_json"
    monkeypatch.setattr(f"{module}.MAX_OBJECT", 1500)
    monkeypatch.setattr(f"{module}._CHUNK", 301)
    job = json.loads(OF_FORMAT["philly-json"].read_text())[0]
    jobs = [{**job, "jobid": f"jöb {i}"} for i in range(50)]
    path = tmp_path / "log"
    path.write_text(json.dumps(jobs, ensure_ascii=False, indent=1))
    trace = read_trace(path)

    assert trace.bad == ()
    assert trace.job_id == tuple(j["jobid"] for j in jobs)


def test_there_is_an_end_to_bytes_and_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However small a file was packed."""
    header = "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n"
    path = tmp_path / "bomb.csv.gz"
    path.write_bytes(gzip.compress(header.encode() + b"x" * 1_000_000))
    monkeypatch.setattr(lines_module, "MAX_UNPACKED_BYTES", 100_000)
    with pytest.raises(ConfigError, match=r"bomb\.csv\.gz: more than"):
        read_trace(path)
    monkeypatch.setattr(gather_module, "MAX_JOBS", 59)
    with pytest.raises(ConfigError, match=r"60_job\.csv:61: more than 59 jobs"):
        read_trace(OF_FORMAT["tiresias"])


# Any bytes, and back and forth.

WORDS = st.sampled_from(
    [
        *("0", "1", "-1", "2.5", "nan", "inf", "1e999", "9" * 400, "", " ", "\0", '"', '""', "\r"),
        *("COMPLETED", "Terminated", "CANCELLED by 5", "Unknown", "None", "gres/gpu=4", "gres/gpu"),
        *("2017-10-09 07:01:55", "2017-13-09 07:01:55", "2026-03-02T09:00:00", "٣", "a\x1b[1m"),
        *(
            "0001-01-01 00:00:00",
            "9999-12-31 23:59:59",
            "job",
            "alexnet",
            "ncf",
            "LM (batch size 5)",
        ),
    ]
)
HEADERS = {
    "tiresias": "job_id,num_gpu,submit_time,duration,model_name,interval",
    "muri": "job_id,num_gpu,submit_time,iterations,iteration_time,model_name",
    "itp": "job_id,submission_time,duration,num_gpu,model_name",
    "philly": "timestamp,duration,num_gpus,cluster",
    "helios": "job_id,user,gpu_num,state,submit_time,duration",
    "chronus": (
        "job_id,user,num_gpu,submit_time,duration,expect_time_list,expect_value_list,best_effort"
    ),
    "slurm_dl": "job_id,submit_s,duration_s,gpus,user,model,ending",
    "sacct": "JobID|Submit|State|ElapsedRaw|AllocTRES|User|Account",
    "synergy": "0,alexnet,0,5,1",
    f"{BY_MODELS}{TRACES}/pollux/models": "name,time,application,num_replicas,batch_size",
    "gavel": "LM (batch size 5)\tc\t-s\t1\t100\t0\t1",
}


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_no_fields_crash_a_reader(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    name = data.draw(st.sampled_from(sorted(HEADERS)))
    header = HEADERS[name]
    delimiter = next(d for d in "\t|," if d in header)
    width = header.count(delimiter) + 1
    rows = data.draw(st.lists(st.lists(WORDS, min_size=width - 1, max_size=width + 1), max_size=8))
    path = tmp_path_factory.getbasetemp() / "fields"
    path.write_text("\n".join([header, *(delimiter.join(row) for row in rows)]))

    reads_or_refuses(path, name)


@given(content=st.binary(max_size=300), name=st.sampled_from([None, *FORMATS]))
@settings(max_examples=100, deadline=None)
def test_no_bytes_crash_a_reader(
    content: bytes, name: str | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "bytes"
    path.write_bytes(content)

    reads_or_refuses(path, name)


JSON = st.recursive(
    WORDS | st.none() | st.integers() | st.floats(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["status", "attempts", "detail", "gpus", "start_time", "end_time", "jobid", "user"]
            ),
            inner,
            max_size=6,
        )
    ),
    max_leaves=12,
)


@given(
    change=st.dictionaries(
        st.sampled_from(["status", "attempts", "jobid", "user", "submitted_time"]), JSON
    )
)
@settings(max_examples=60, deadline=None)
def test_no_json_crashes_the_philly_reader(
    change: dict[str, object], tmp_path_factory: pytest.TempPathFactory
) -> None:
    job = json.loads(OF_FORMAT["philly-json"].read_text())[0]
    path = tmp_path_factory.getbasetemp() / "json"
    path.write_text(json.dumps([job | change]))

    reads_or_refuses(path, "philly-json")


def reads_or_refuses(path: Path, name: str | None) -> None:
    """Read *path*: a sound trace, or an error made for people."""
    try:
        trace = read_trace(path, name)
    except ConfigError as err:
        assert str(err)  # noqa: PT017 - either outcome is right
    else:
        assert len(trace) > 0
        assert all(job_id.isprintable() for job_id in trace.job_id)
        assert all(user.isprintable() for user in trace.users)


NAMES = st.text(st.characters(exclude_categories=["C", "Z"]), max_size=8)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Sound traces with odd names and numbers."""
    ids = draw(st.lists(NAMES.filter(bool), min_size=1, max_size=6, unique=True))
    count = len(ids)

    def column(values: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(values, min_size=count, max_size=count))

    users = tuple(draw(st.lists(NAMES, min_size=1, max_size=3, unique=True)))
    models = tuple(draw(st.lists(NAMES.filter(bool), max_size=3, unique=True)))
    accounts = tuple(draw(st.lists(NAMES.filter(bool), max_size=3, unique=True)))
    account = np.array(column(st.integers(-1, len(accounts) - 1)), dtype=np.int32)
    due_s = np.array(column(st.just(math.inf) | st.floats(-1e11, 1e11)))
    return Trace(
        name="drawn",
        format="generated",
        job_id=tuple(ids),
        submit_s=np.array(sorted(column(st.floats(0, 1e11)))),
        duration_s=np.array(column(st.floats(1e-9, 1e10))),
        gpus=np.array(column(st.floats(1e-3, 1e6))),
        user=np.array(column(st.integers(0, len(users) - 1)), dtype=np.int32),
        model=np.array(column(st.integers(-1, len(models) - 1)), dtype=np.int32),
        ending=np.array(column(st.sampled_from([0, 1, 2])), dtype=np.int8),
        account=account if (account >= 0).any() else None,
        due_s=due_s if np.isfinite(due_s).any() else None,
        users=users,
        models=models,
        accounts=accounts,
    )


@given(trace=traces())
@settings(max_examples=60, deadline=None)
def test_what_is_written_is_read_back_exactly(
    trace: Trace, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "written.csv"
    write_trace(trace, path)
    back = read_trace(path)

    assert back.bad == ()
    assert back.format == "slurm_dl"
    assert columns(back) == columns(trace)
    assert back.account_names == trace.account_names
    assert deadlines(back) == deadlines(trace)


@pytest.mark.parametrize("name", ["tiresias", "muri", "philly-json", "helios", "pai", "sacct"])
def test_a_read_trace_is_written_and_read_back_the_same(name: str, tmp_path: Path) -> None:
    trace = read_trace(OF_FORMAT[name])
    write_trace(trace, tmp_path / "written.csv")
    back = read_trace(tmp_path / "written.csv")

    assert columns(back) == columns(trace)
    assert back.account_names == trace.account_names
    assert deadlines(back) == deadlines(trace)
    assert (back.users, back.models) == (trace.users, trace.models)
    assert back.accounts == trace.accounts


def test_the_summary_agrees_with_the_file() -> None:
    rows = dicts(OF_FORMAT["tiresias"])
    summary = summarize(read_trace(OF_FORMAT["tiresias"]))
    gpu_s = sum(int(r["num_gpu"]) * int(r["duration"]) for r in rows)
    last_s = max(int(r["submit_time"]) for r in rows)

    assert summary.jobs == 60
    assert summary.gpu_hours == pytest.approx(gpu_s / 3600)
    assert summary.span_s == last_s
    assert summary.mean_gpus == pytest.approx(gpu_s / last_s)
    assert dict(summary.jobs_by_gpus) == Counter(float(r["num_gpu"]) for r in rows)
    assert (summary.users, summary.models) == (0, len({r["model_name"] for r in rows}))
    assert summary.endings == (("completed", 60),)
    assert summary.left_out == ()
    assert (summary.duration_s[0], summary.duration_s[-1]) == (121, 1800)


# The data that travel with the repository.


def test_the_carried_oracles_belong_to_the_carried_traces() -> None:
    oracles = ROOT / "tests" / "data" / "oracles"
    runs = json.loads((oracles / "tiresias_runs.json").read_text())["runs"]
    complete = [run for run in runs if run["complete"]]
    carried = {p.stem for p in TRACES.glob("tiresias*/*.csv")}

    assert {run["trace"] for run in complete} <= carried
    for path in sorted((oracles / "tiresias_jobs").glob("*.csv")):
        trace = path.name.split("__")[2]
        jobs = {r["job_id"] for r in dicts(path)}
        known = read_trace(next(TRACES.glob(f"tiresias*/{trace}.csv"))).job_id
        assert jobs <= set(known), path.name


@pytest.mark.parametrize(
    ("name", "key", "unit"),
    [
        ("muri_start_overhead_s", "overhead_s", "s"),
        ("tacc_preemption_overhead_s", "quantiles_s", "s"),
        ("tiresias_gpu_time_samples", "samples_gpu_s", "GPU-s"),
    ],
)
def test_measured_tables_tell_where_they_are_from(name: str, key: str, unit: str) -> None:
    folder = ROOT / "slurm_dl" / "simulation" / "ideal" / "measured"
    table = json.loads((folder / f"{name}.json").read_text())

    assert "@" in table["origin"]
    assert table["licence"] in {"MIT", "Apache-2.0"}
    assert table["unit"] == unit
    assert table[key]


def test_the_data_stay_small() -> None:
    files = [p for p in TRACES.rglob("*") if p.is_file()]

    assert sum(p.stat().st_size for p in files) < 9e6
    for folder in {p.parent for p in files if p.suffix in {".csv", ".gz", ".trace"}}:
        ups = [up for up in (folder, *folder.parents) if TRACES in up.parents]
        assert any("LICENSE" in p.name for up in ups for p in up.iterdir())
