"""dlqueue as users run it: in a pipe, on a terminal, against a daemon that is not there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError
from light import HEAVY, loaded, times_as_long
from on_terminal import on_terminal
from patience import PATIENCE

Schedd = Any
"""The class of that name in conftest.py, which cannot be imported."""

Command = Callable[..., "subprocess.CompletedProcess[str]"]

FULL = (
    "JOBID PARTITION NAME USER ST GPUS TIER RANK ATTAINED(GPU-h) RESTARTS TIME DONE LEFT "
    "NODELIST(REASON)"
)


def test_a_pipe_gets_plain_columns(reading: Schedd) -> None:
    """Full headings, one line for each job, no escape codes, nothing cut."""
    answer = reading.ask("queue")

    lines = answer.stdout.splitlines()
    assert lines[0].split() == FULL.split()
    assert len(lines) == 7
    assert answer.stderr == ""
    assert "\x1b" not in answer.stdout


def test_names_of_users_are_printed_safely(reading: Schedd) -> None:
    """Control characters and line breaks are gone, markup is text."""
    answer = reading.ask("queue")

    assert "net [2J[red]x[/]root" in answer.stdout
    terminal = on_terminal("dlqueue", "--socket", str(reading.socket), columns=200)
    assert "net [2J[red]x[/]root" in terminal
    assert "\x1b[2J" not in terminal


@pytest.mark.parametrize("columns", [80, 100, 132])
def test_it_fits_a_terminal(reading: Schedd, columns: int) -> None:
    """No line is wider than the terminal and no number is cut; at 80 columns headings shrink."""
    said = on_terminal(
        "dlqueue", "--socket", str(reading.socket), "--sort", "running", columns=columns
    )

    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in said.splitlines()]
    assert max(len(line.rstrip()) for line in lines) <= columns
    assert len(lines) == 7
    first = lines[1].split()
    assert first[0] == "1"
    # 4 GPUs for 2 hours, in tier 0 of far thresholds.
    assert "8.0" in lines[1]
    assert re.search(r" (1:59:5|2:0\d:\d)\d ", lines[1])
    assert ("ATTAINED(GPU-h)" in lines[0]) == (columns >= 132)
    assert "GPU-h" in lines[0]


def test_a_terminal_gets_colours(reading: Schedd) -> None:
    """Running jobs stand out."""
    assert "\x1b[32m" in on_terminal("dlqueue", "--socket", str(reading.socket), columns=100)


@pytest.mark.parametrize(
    ("sort", "expected"),
    [
        ("rank", ["1", "2", "3", "4", "5", "6"]),
        ("-rank", ["6", "5", "4", "3", "2", "1"]),
        ("running", ["1", "2", "3", "4", "5", "6"]),
        ("attained", ["3", "4", "5", "6", "1", "2"]),
        ("user,-job", ["5", "3", "1", "6", "4", "2"]),
        ("-user", ["2", "4", "6", "1", "3", "5"]),
        ("-time,job", ["1", "2", "3", "4", "5", "6"]),
    ],
)
def test_the_list_is_sorted_as_asked(reading: Schedd, sort: str, expected: list[str]) -> None:
    """By several words, each either way, as squeue's --sort; equals by rank."""
    lines = reading.ask("queue", "-h", "-S", sort).stdout.splitlines()

    assert [line.split()[0] for line in lines] == expected


def closed(schema: Any) -> Any:  # noqa: ANN401 - any JSON
    """The schema, in which no object may have a field that it does not describe."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    parts = {key: closed(part) for key, part in schema.items()}
    return parts | ({"additionalProperties": False} if "properties" in parts else {})


def validator(of: str) -> Draft202012Validator:
    """Of what dlqueue prints as its schema, with nothing left undescribed."""
    schema = json.loads(run_command("--json-schema"))
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator({**closed(schema), "oneOf": [{"$ref": f"#/$defs/{of}"}]})


def run_command(*args: str) -> str:
    """What the command prints, without a daemon."""
    argv = [sys.executable, "-c", "from slurm_dl.cli.dlqueue.command import main; main()", *args]
    return subprocess.run(
        argv, capture_output=True, text=True, timeout=60 * PATIENCE, check=True
    ).stdout


def test_answers_are_what_their_schema_says(reading: Schedd) -> None:
    """The list and why, with every field described and nothing missing."""
    lists = [["--json"], ["--json", "-t", "all"], ["--json", "-p", "other"]]
    listed = [json.loads(reading.ask("queue", *args).stdout) for args in lists]
    whys = [json.loads(reading.ask("queue", "why", job, "--json").stdout) for job in ("1", "4")]

    for answer in listed:
        validator("list").validate(answer)
    for answer in whys:
        validator("why").validate(answer)
    assert whys[0]["past"]["job_id"] == 1


@pytest.mark.parametrize(
    "change",
    [
        {"jobs": None},
        {"total": "6"},
        {"total": -1},
        {"more": 1},
        {"paused": {"by": "root"}},
    ],
)
def test_the_schema_can_fail(reading: Schedd, change: dict[str, object]) -> None:
    """What is no answer does not pass."""
    answer = json.loads(reading.ask("queue", "--json").stdout)

    with pytest.raises(ValidationError):
        validator("list").validate({**answer, **change})
    with pytest.raises(ValidationError):
        validator("why").validate(answer)


def test_json_has_everything(reading: Schedd) -> None:
    """Scripts get whole values, with units in the names."""
    answer = json.loads(reading.ask("queue", "--json").stdout)

    assert [job["job"] for job in answer["jobs"]] == ["1", "2", "3", "4", "5", "6"]
    assert answer["jobs"][0]["rank"] == 1
    assert answer["jobs"][0]["name"].startswith("net \x1b[2J")
    assert answer["doing"].startswith("shadow mode")


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["-u", "user1000"], ["1", "3", "5"]),
        (["--user", "user1000,user1001"], ["1", "2", "3", "4", "5", "6"]),
        (["-u", "user1000", "-u", "1001"], ["1", "2", "3", "4", "5", "6"]),
        (["--me"], []),
        (["-t", "R"], ["1", "2"]),
        (["-t", "pd"], ["3", "4", "5", "6"]),
        (["--states=RUNNING,PENDING"], ["1", "2", "3", "4", "5", "6"]),
        (["-p", "gpu"], ["1", "2", "3", "4", "5", "6"]),
        (["-p", "other"], []),
        (["-u", "root"], []),
        (["-u", "99999"], []),
        (["-w", "n2"], ["2"]),
        (["-w", "n[1-2]"], ["1", "2"]),
        (["-w", "n[1-2]", "-u", "user1000"], ["1"]),
        (["-j", "2,5"], ["2", "5"]),
        (["--jobs=2", "-t", "PD"], []),
        (["-A", "lab"], []),
        (["-q", "normal"], []),
        (["-n", "other"], []),
    ],
)
def test_flags_are_squeues(reading: Schedd, args: list[str], expected: list[str]) -> None:
    """-u -p -t -w -j -A -q -n and --me choose as squeue's do; -h leaves the headings out."""
    lines = reading.ask("queue", "-h", *args).stdout.splitlines()

    assert [line.split()[0] for line in lines] == expected


@pytest.mark.parametrize(
    ("args", "status", "message"),
    [
        (["-t", "ZZ"], 1, "no job state 'ZZ'"),
        (["-u", "nosuch"], 1, "there is no user nosuch"),
        (["-u", "user1000,nosuch", "--json"], 1, "there is no user nosuch"),
        (["-u", "\x1b[2J"], 1, "there is no user \\x1b[2J"),
        (["-o", "%i %x"], 2, "'%x'; it knows %i jobid, %A jobnumber, %P partition"),
        (["-o", "%i %"], 2, "no field '%'"),
        (["-o", "%.6i|%-"], 2, "no field '%-'"),
        (["-o", "%.99999i"], 2, "no field '%9'"),
        (["-o", "jobid,nosuch"], 2, "'nosuch'; it knows jobid, "),
        (["-o", ""], 2, "no field ''"),
        (["-o", "\x1b[2J"], 2, "no field '[2j'"),
        (["-i", "--start"], 2, "exclude each other"),
        (["-i", "-o", "%i"], 2, "exclude each other"),
        (["-w", "n[1-"], 2, "-w: "),
        (["-w", "n[1-2000000]"], 2, "2000000 nodes"),
        (["--sort", "x"], 2, "--sort"),
        (["--sort", "rank,--gpus"], 2, "'--gpus'"),
        (["--sort", "\x1b[2J"], 2, "--sort"),
        (["why"], 2, "JOB"),
        (["why", "99"], 1, "no job 99"),
        (["why", "1;ls"], 1, "no job id"),
        (["why", "\x1b[2J"], 1, "no job id"),
    ],
)
def test_mistakes_are_one_line(reading: Schedd, args: list[str], status: int, message: str) -> None:
    """Each mistake is one line on standard error, without a traceback, and has its status."""
    answer = reading.ask("queue", *args)

    assert answer.returncode == status
    assert len(answer.stderr.splitlines()) == 1
    assert answer.stderr.startswith("dlqueue: ")
    assert message in answer.stderr
    assert "\x1b" not in answer.stderr


@pytest.mark.parametrize(
    ("form", "header", "first"),
    [
        ("%i", "JOBID", "1"),
        ("%.6i|%4t|%.3P|%u", " JOBID|ST  |PAR|USER", "     1|R   |gpu|user1000"),
        ("job %i: %D %R", "job JOBID: NODES NODELIST(REASON)", "job 1: 1 node-0000"),
        ("%T %b %N %r %U", "STATE TRES_PER_NODE NODELIST REASON UID", None),
        ("%l %L %S %V %C %A %a %q", None, None),
        ("jobid,statecompact,GPUS,rank,done", "JOBID ST GPUS RANK DONE", "1 R 4 1 -"),
    ],
)
def test_a_format_is_squeues(
    reading: Schedd, form: str, header: str | None, first: str | None
) -> None:
    """Letters with sizes and text between them, or names; -h leaves the headings out."""
    said = reading.ask("queue", "-o", form).stdout.splitlines()
    bare = reading.ask("queue", "-h", "-o", form).stdout.splitlines()

    assert (len(said), len(bare)) == (7, 6)
    if header is not None and "%" in form:
        assert said[0] == header
    if first is not None:
        assert said[1].split() == first.split() if "%" not in form else said[1] == first


def test_starts_are_those_of_the_forecast(reading: Schedd) -> None:
    """Waiting jobs alone, the soonest first, each with its median and its latest start."""
    said = reading.ask("queue", "--start").stdout.splitlines()
    answer = json.loads(reading.ask("queue", "--start", "--json").stdout)

    titles = "JOBID PARTITION NAME USER ST START_TIME LATEST_START NODES NODELIST(REASON)"
    assert said[0].split() == titles.split()
    validator("list").validate(answer)
    assert sorted(job["job"] for job in answer["jobs"]) == ["3", "4", "5", "6"]
    medians = [job["start"]["median_s"] or float("inf") for job in answer["jobs"]]
    assert medians == sorted(medians)
    assert {line.split()[0] for line in said[1:]} == {"3", "4", "5", "6"}


def test_why_prints_sentences(reading: Schedd) -> None:
    """Rank and who is ahead, one sentence a line; --json has the row and the history too."""
    said = reading.ask("queue", "why", "4").stdout
    answer = json.loads(reading.ask("queue", "why", "4", "--json").stdout)

    assert "It has rank 4 of 6" in said
    assert said.splitlines() == answer["sentences"]
    assert answer["job"]["job_id"] == 4
    assert answer["history"] == []


def test_without_a_daemon_it_says_what_to_do(command: Command, tmp_path: Path) -> None:
    """One line that names the socket, status 1."""
    missing = tmp_path / "s"

    answer = command("queue", "--socket", str(missing))

    assert answer.returncode == 1
    assert answer.stderr == (
        f"dlqueue: dlschedd does not listen on {missing}: "
        "start it (systemctl start dlschedd), or name its socket (--socket)\n"
    )


@pytest.mark.parametrize("how", ["socket", "client"])
def test_the_environment_says_where_the_daemon_is(
    command: Command, reading: Schedd, how: str
) -> None:
    """SLURM_DL_SOCKET, or the file that SLURM_DL_CLIENT names."""
    client = reading.directory / "client.yaml"
    client.write_text(f"socket: {reading.socket}\nunknown: 1\n")
    env = {
        "socket": {"SLURM_DL_SOCKET": str(reading.socket)},
        "client": {"SLURM_DL_CLIENT": str(client)},
    }[how]

    answer = command("queue", "-h", env=env)

    assert len(answer.stdout.splitlines()) == 6


GARBAGE = {
    "binary": b"\xff\0\n: [",
    "unknown key": b"unknown: 1\ndaemon: {unknown: 2}\n",
    "wrong values": b"native: 7\nmax_grace_s: nan\npolicy: {order: nosuch}\n",
}


@pytest.mark.parametrize(
    ("args", "broken"),
    [
        *((args, "") for args in ([], ["--json"], ["why", "4"], ["when", "4"], ["--start"])),
        *(([], broken) for broken in GARBAGE),
    ],
)
def test_a_prompt_waits_for_few_modules(
    reading: Schedd, tmp_path: Path, args: list[str], broken: str
) -> None:
    """Nothing heavy is imported, the daemon's file is not opened, and a bad one stops nobody."""
    env = {"SLURM_DL_SOCKET": str(reading.socket), "PATH": "/usr/bin:/bin"}
    if broken:
        for variable, name in (("CONFIG", "slurm_dl.yaml"), ("CLIENT", "client.yaml")):
            (tmp_path / name).write_bytes(GARBAGE[broken])
            env[f"SLURM_DL_{variable}"] = str(tmp_path / name)

    shown, modules = loaded("dlqueue", *args, env=env, cwd=tmp_path)

    assert shown
    assert not {name for name in modules if name in HEAVY or name.startswith("OPENED")}
    assert 5 < sum(name.partition(".")[0] == "slurm_dl" for name in modules) <= 30


@pytest.mark.parametrize("args", [[], ["why", "4"]])
def test_a_prompt_waits_hardly_longer_than_for_python(
    reading: Schedd, tmp_path: Path, args: list[str]
) -> None:
    """Six times as long where this was written, 65 ms; 36 times with the daemon's configuration."""
    dlqueue = str(Path(sys.executable).parent / "dlqueue")
    env = {"SLURM_DL_SOCKET": str(reading.socket), "PATH": "/usr/bin:/bin"}

    assert times_as_long([dlqueue, *args], env=env, cwd=tmp_path) < 12


def test_a_reader_that_has_seen_enough_is_no_error(reading: Schedd) -> None:
    """`dlqueue | head -1` prints one line and no traceback."""
    writer = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from slurm_dl.cli.dlqueue.command import main; main()",
            "--socket",
            str(reading.socket),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    writer.stdout.close()

    said = writer.stderr.read()
    writer.wait(30 * PATIENCE)
    writer.stderr.close()

    assert said == b""
