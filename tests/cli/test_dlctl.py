"""dlctl as admins run it, and what holds for every command of ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from patience import PATIENCE

from slurm_dl.cli.dlctl.command import dlctl
from slurm_dl.cli.dlqueue.command import dlqueue
from slurm_dl.cli.dlschedd.command import dlschedd
from slurm_dl.ledger.sqlite.store import SqliteStore
from slurm_dl.ledger.store_protocol import StoreChange
from slurm_dl.model.booking import entry
from slurm_dl.model.ids import JobId
from slurm_dl.model.steer import Steer
from slurm_dl.model.throttle import THROTTLE, Throttled

Schedd = Any
"""The class of that name in conftest.py, which cannot be imported."""

Command = Callable[..., "subprocess.CompletedProcess[str]"]


def walk(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """*command* and everything below it that is ours."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None, f"{path} {name}"
            yield from walk(child, f"{path} {name}")


EVERY = [
    *walk(dlctl, "dlctl"),
    *walk(dlqueue, "dlqueue"),
    *walk(dlschedd, "dlschedd"),
]


@pytest.mark.parametrize(("path", "command"), EVERY, ids=[path for path, _ in EVERY])
def test_every_command_and_option_has_help(path: str, command: click.Command) -> None:
    """What it does, an example that calls it by its name, and a sentence for each option."""
    text = command.get_help(click.Context(command, info_name=path))

    assert command.help
    assert "Example" in text
    example = text.partition("Example")[2]
    assert path.split(maxsplit=1)[0] in example
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{path} {parameter.opts}"
        if isinstance(parameter.type, click.FloatRange):
            with pytest.raises(click.BadParameter):
                parameter.type.convert("nan", parameter, None)


DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(("path", "command"), EVERY, ids=[path for path, _ in EVERY])
def test_every_command_and_option_is_documented(path: str, command: click.Command) -> None:
    """docs/operate/commands.md names each command, and each option of the two that have many."""
    text = (DOCS / "operate" / "commands.md").read_text("utf-8")
    if "sandbox " not in path:
        assert f"`{path.rsplit(maxsplit=1)[-1]}" in text or f"{path} " in text
    if path in {"dlqueue", "dlschedd"}:
        for parameter in command.params:
            # --socket is explained for all of them; --config and the like are in the synopsis.
            assert any(option in text for option in parameter.opts), parameter.opts


def test_every_field_of_an_answer_is_documented(reading: Schedd) -> None:
    """docs/develop/control-protocol.md names each field of the answers."""
    text = (DOCS / "develop" / "control-protocol.md").read_text("utf-8")
    answers = [
        json.loads(reading.ask("status", "--json").stdout),
        json.loads(reading.ask("queue", "--json").stdout),
        json.loads(reading.ask("queue", "--json").stdout)["jobs"][0],
        json.loads(reading.ask("queue", "why", "1", "--json").stdout),
    ]

    missing = {key for answer in answers for key in answer if f"`{key}`" not in text}

    assert missing == set()


@pytest.mark.parametrize(
    "app",
    [
        "cli.dlctl.command",
        "cli.dlqueue.command",
        "cli.dlschedd.command",
        "cli.dlsim.command",
        "daemon.control.client",
        "cli.commandline",
    ],
)
def test_help_is_fast(app: str) -> None:
    """Nothing heavy is imported before a command is run: users wait at every prompt."""
    heavy = "{'numpy', 'pydantic', 'yaml', 'rich', 'structlog', 'ClusterShell', 'scipy'}"
    code = f"import sys, slurm_dl.{app}; print(sorted({heavy} & set(sys.modules)))"

    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60 * PATIENCE,
        check=True,
    )

    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("name", "typed", "line"),
    [
        ("dlctl", "--he", "--help\n"),
        ("dlqueue", "--he", "--help\n"),
        ("dlschedd", "--he", "--help\n"),
        ("dlctl", "doc", "doctor\nCheck the configuration"),
        ("dlctl", "pau", "pause\nStop the daemon"),
        ("dlsim", "wha", "whatif\nRank policies"),
        ("dlsim", "sweep", ""),
    ],
)
def test_shells_can_complete(name: str, typed: str, line: str) -> None:
    """Options and commands, with what they do; a TAB imports nothing heavy."""
    env = {
        **os.environ,
        f"_{name.upper()}_COMPLETE": "zsh_complete",
        "COMP_WORDS": f"{name} {typed}",
        "COMP_CWORD": "1",
    }
    code = (
        "import sys; sys.modules.update(numpy=None, pydantic=None, yaml=None, rich=None); "
        f"from slurm_dl.cli.{name}.command import main; main()"
    )

    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60 * PATIENCE,
        check=False,
        env=env,
    )

    assert done.stdout.startswith(f"plain\n{line}" if line else "\n"), done.stderr
    assert done.stderr == ""


JOBS = [str(i) for i in range(1, 7)]


@pytest.mark.parametrize(
    ("app", "typed", "offered"),
    [
        ("queue", ["why", ""], JOBS),
        ("queue", ["when", "3"], ["3"]),
        ("queue", ["-j", "4,"], [f"4,{job}" for job in JOBS]),
        ("queue", ["-p", "g"], ["gpu"]),
        ("queue", ["-p", "x,g"], ["x,gpu"]),
        ("queue", ["why", "user"], []),
        ("ctl", ["logs", "-f", "2"], ["2"]),
        ("submit", ["--model", "resnet50"], ["resnet50"]),
        ("submit", ["-p", "g"], ["gpu"]),
    ],
)
def test_shells_complete_what_the_daemon_sees(
    app: str,
    typed: list[str],
    offered: list[str],
    command: Command,
    reading: Schedd,
) -> None:
    """Jobs, partitions and models; without a daemon only models, and no word of it."""
    env = {
        f"_DL{app.upper()}_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join([f"dl{app}", *typed]),
        "COMP_CWORD": str(len(typed)),
    }

    said = command(app, env={**env, "SLURM_DL_SOCKET": str(reading.socket)})
    without = command(app, env={**env, "SLURM_DL_SOCKET": "/nonexistent"})

    assert said.stdout.split() == [f"plain,{word}" for word in offered]
    assert without.stdout == (said.stdout if "--model" in typed else "\n")
    assert said.stderr == without.stderr == ""


@pytest.mark.parametrize(("tasks", "status"), [("1", 0), ("1_7", 0), ("1;ls", 2)])
def test_logs_shows_the_file_that_slurm_names(
    reading: Schedd, tasks: str, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through scontrol on PATH; a pipe gets control characters written out."""
    (tmp_path / "o.log").write_text("step 1 \x1b[2J\n")
    told = f"JobId=1\n   UserId=me({os.geteuid()}) x\n   StdOut={tmp_path}/o.log\n"
    (tmp_path / "told").write_text(told)
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(f"#!/bin/sh\ncat {tmp_path}/told\n")
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    said = reading.ask("logs", tasks)

    assert said.returncode == status
    assert said.stdout == ("" if status else "step 1 \\x1b[2J\n")
    assert "\x1b" not in said.stderr


def test_status_is_for_people_and_programs(reading: Schedd) -> None:
    """What it does, how many jobs and GPUs, and when it looked; the same as JSON."""
    said = reading.ask("status")
    answer = json.loads(reading.ask("status", "--json").stdout)

    assert said.returncode == 0
    lines = dict(line.split(":", 1) for line in said.stdout.splitlines())
    assert lines["dlschedd"].strip() == "shadow mode: plans and touches nothing"
    assert lines["jobs"].strip() == "4 PD, 2 R; 6 managed and live"
    assert lines["GPUs"].strip() == "8 of 8 held, 8 in all"
    assert f"pid {answer['pid']}" in lines["process"]
    assert answer["jobs"]["PD"] == 4
    assert answer["live"] is False


@pytest.mark.parametrize(
    "args",
    [["status"], ["pause"], ["resume"], ["reload"], ["breakers"], ["promises"], ["snapshot", "-"]],
    ids=lambda a: a[0],
)
def test_without_a_daemon_it_says_what_to_do(
    command: Command, tmp_path: Path, args: list[str]
) -> None:
    """One line that names the socket, status 1."""
    missing = tmp_path / "s"

    answer = command("ctl", *args, "--socket", str(missing))

    assert answer.returncode == 1
    assert len(answer.stderr.splitlines()) == 1
    assert f"does not listen on {missing}" in answer.stderr


def test_pause_and_resume(schedd: Schedd) -> None:
    """Both say what is so now; resuming what runs is no error."""
    schedd.start()

    assert schedd.ask("pause", "--reason", "x\x1b[2Jy").stdout == "paused\n"
    assert "x[2Jy" in schedd.ask("status").stdout
    assert schedd.ask("resume").stdout == "resumed\n"
    assert schedd.ask("resume").stdout == "was not paused\n"
    assert json.loads(schedd.ask("pause", "--json").stdout)["paused"]["reason"] == ""


def test_breakers_are_listed_and_reset(schedd: Schedd) -> None:
    """Name, bound, state; a reset is remembered, with who did it."""
    schedd.start()

    listed = schedd.ask("breakers").stdout.splitlines()
    assert listed[0].split() == ["BREAKER", "BOUND", "STATE", "WHY"]
    assert [line.split()[:3] for line in listed[1:]] == [
        ["gpus_per_hour", "off", "-"],
        ["cluster_share", "1", "ok"],
        ["failed_restarts", "0.5", "ok"],
    ]
    done = schedd.ask("breakers", "reset", "cluster_share")
    assert done.stdout.startswith("cluster_share had not tripped")
    again = json.loads(schedd.ask("breakers", "reset", "cluster_share", "--json").stdout)
    assert again == {"breaker": "cluster_share", "was_tripped": False, "why": None}
    schedd.eventually(lambda: "by user" in schedd.ask("breakers").stdout, 10.0)
    unknown = schedd.ask("breakers", "reset", "everything")
    assert (unknown.returncode, len(unknown.stderr.splitlines())) == (2, 1)
    missing = schedd.ask("breakers", "reset")
    names = "Choose from: gpus_per_hour, cluster_share, failed_restarts (see "
    assert (missing.returncode, len(missing.stderr.splitlines())) == (2, 1)
    assert names in missing.stderr


def test_check_config_names_every_mistake(command: Command, tmp_path: Path) -> None:
    """All at once, with file and line, status 2; --json has them as a list."""
    path = tmp_path / "dl.yaml"
    path.write_text("manage: {partitions: []}\ndaemon:\n  poll_s: -1\n", "utf-8")

    said = command("ctl", "check-config", str(path))
    answer = command("ctl", "check-config", str(path), "--json")

    assert said.returncode == answer.returncode == 2
    assert [line.split(": ")[1] for line in said.stderr.splitlines()] == [
        f"{path}:1",
        f"{path}:3",
    ]
    assert len(json.loads(answer.stdout)["errors"]) == 2


def test_check_config_of_a_good_file(command: Command, reading: Schedd) -> None:
    """Status 0 and one line; --set is checked with it."""
    path = str(reading.directory / "dl.yaml")

    good = command("ctl", "check-config", path)
    bad = command("ctl", "check-config", path, "--set", "daemon.poll_s=x")

    assert (good.returncode, good.stdout, good.stderr) == (0, f"{path}: ok\n", "")
    short = command("ctl", "check-config", path, "--set", "preemption.max_grace_s=60")
    assert (short.returncode, short.stdout) == (0, good.stdout)
    assert "below dlsubmit's default grace of 120 s" in short.stderr
    assert bad.returncode == 2
    assert "daemon.poll_s" in bad.stderr


def test_show_config_names_origins(command: Command, reading: Schedd) -> None:
    """Each value with its file and line, flag or default; --running asks the daemon."""
    path = str(reading.directory / "dl.yaml")

    said = command("ctl", "show-config", "--config", path, "--set", "daemon.poll_s=7")
    running = json.loads(reading.ask("show-config", "--running", "--json").stdout)["values"]

    rows = {line.split()[0]: line.split()[1:] for line in said.stdout.splitlines()}
    assert rows["daemon.poll_s"] == ["7", "flag"]
    assert rows["manage.partitions"][0] == "gpu"
    assert rows["manage.partitions"][-1] == f"{path}:2"
    assert rows["cluster.timeout_s"][-1] == "default"
    assert next(v["value"] for v in running if v["key"] == "daemon.poll_s") == 0.5


def test_snapshot_is_a_file_that_can_be_replayed(schedd: Schedd) -> None:
    """The saved file holds the queue as the daemon saw it."""
    from slurm_dl.recording.snapshot_file import decode  # noqa: PLC0415

    schedd.start()
    path = schedd.directory / "saved.json"

    said = schedd.ask("snapshot", str(path))
    refused = schedd.ask("snapshot", "/nowhere/saved.json")

    assert said.returncode == 0, said.stderr
    assert len(decode(json.loads(path.read_text("utf-8"))).jobs) == 6
    assert refused.returncode == 1
    assert "/nowhere/saved.json: No such file" in refused.stderr


def test_placements_are_listed_and_shown(command: Command) -> None:
    """What placement.scheme and placement.rules can be: source, its reading, what can be set."""
    found = json.loads(command("ctl", "placements", "--json").stdout)
    kinds = {p["name"]: p["kind"] for p in found}

    assert kinds["best_fit"] == "scheme"
    assert set(kinds.values()) <= {"scheme", "rule"}
    for placement in found:
        assert placement.keys() >= {"name", "kind", "source", "interpretation", "parameters"}
        assert placement["source"]
        assert all(parameter["meaning"] for parameter in placement["parameters"])
    table = command("ctl", "placements").stdout
    assert all(name in table for name in kinds)
    said = command("ctl", "placements", "show", "consolidate").stdout
    assert said.startswith("consolidate (scheme): ")
    assert "Source: Tiresias, NSDI 2019" in said
    assert "  locality_wait_s (default 600): How long a job waits" in said
    answer = json.loads(command("ctl", "placements", "show", "best_fit", "--json").stdout)
    assert answer == next(p for p in found if p["name"] == "best_fit")


@pytest.fixture
def released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Any, Any]]:
    """Runs release-all without a Slurm: its result, and what of the ledger it was told of."""
    told: list[Any] = []

    def undo(
        _: object, __: object, *, steers: object, throttles: object, **___: object
    ) -> Iterator[str]:
        told.append((steers, throttles))
        yield "job 7: ExcNodeList="

    monkeypatch.setattr("slurm_dl.slurm.write.release_all.release_all", undo)
    monkeypatch.setattr("slurm_dl.cli.dlctl.release_all.slurm_of", lambda _: None)
    path = tmp_path / "dl.yaml"
    path.write_text(
        "manage: {partitions: [gpu]}\n"
        f"paths: {{state_dir: {tmp_path}/state, run_dir: {tmp_path}/run}}\n",
        "utf-8",
    )

    def run(*options: str) -> tuple[Any, Any]:
        arguments = ["release-all", "--config", str(path), "--yes", *options]
        result = CliRunner().invoke(dlctl, arguments)
        assert result.exception is None, result.exception
        return result, told[-1]

    return run


def test_release_all_undoes_what_the_ledger_has_as_ours(
    released: Callable[..., tuple[Any, Any]], tmp_path: Path
) -> None:
    """It is only read."""
    steer = Steer(
        job_id=JobId(7), kind="spot", avoid=("n1",), since_s=1.0, until_s=2.0, why="because"
    )
    (tmp_path / "state").mkdir()
    store = SqliteStore(tmp_path / "state" / "ledger.sqlite")
    throttled = Throttled(own=3, ours=1, before=2)
    booked = [entry(THROTTLE, 9, throttled.body())]
    store.save(StoreChange(steers=[steer], booked=booked))
    store.close()

    result, told = released("--json")

    assert told == ((steer,), {JobId(9): throttled})
    assert json.loads(result.stdout) == {
        "ok": True,
        "done": ["job 7: ExcNodeList="],
        "error": None,
        "note": None,
    }
    assert result.stderr == ""


def test_release_all_says_that_there_is_no_ledger(
    released: Callable[..., tuple[Any, Any]], tmp_path: Path
) -> None:
    """It goes on by what stands in Slurm, and makes none."""
    result, told = released()

    assert told == ((), {})
    assert result.exit_code == 0
    assert result.stdout == "job 7: ExcNodeList=\n"
    assert result.stderr.startswith("dlctl: the ledger is not there or cannot be read (")
    assert not (tmp_path / "state").exists()
    assert "cannot be read" in json.loads(released("--json")[0].stdout)["note"]


def test_release_all_does_not_fight_a_daemon(schedd: Schedd, command: Command) -> None:
    """A daemon that acts would do it all again: it has to be stopped or paused first."""
    schedd.start("--live")
    config = str(schedd.directory / "dl.yaml")

    answer = command("ctl", "release-all", "--config", config, "--yes")

    assert answer.returncode == 1
    assert "acts: stop it, or 'dlctl pause', first" in answer.stderr


def test_release_all_asks_first(command: Command, schedd: Schedd) -> None:
    """With nobody to answer, nothing is done."""
    answer = command("ctl", "release-all", "--config", str(schedd.directory / "dl.yaml"))

    assert answer.returncode == 1
    assert "stopped" in answer.stderr
    assert answer.stdout == ""


def test_an_unknown_command_is_one_line_and_2(command: Command) -> None:
    """As every other mistake on the command line."""
    answer = command("ctl", "nonsense")

    assert answer.returncode == 2
    assert answer.stderr == "dlctl: No such command 'nonsense'. (see 'dlctl --help')\n"
