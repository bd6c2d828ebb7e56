"""dlctl record and dlsim replay as people run them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import Result
from in_process import in_process
from patience import PATIENCE
from rich.console import Console
from rich.progress import Progress
from streams import Stream, fake_cluster

import slurm_dl
from slurm_dl.cli.commandline import run
from slurm_dl.cli.dlctl.record import record
from slurm_dl.cli.dlsim import replay as sim_replay
from slurm_dl.cli.dlsim.replay import replay_command
from slurm_dl.daemon.control.client import Client
from slurm_dl.model.plan import SetSiteFactor
from slurm_dl.recording.cycles_file import RecordedCycle, Recording, RecordingError, Writer

Schedd = Any
"""The class of that name in conftest.py, which cannot be imported."""


@pytest.fixture(scope="module")
def stream() -> Stream:
    """Ninety cycles with hand-overs."""
    return fake_cluster()


def written(path: Path, stream: Stream, *, planned: bool = True) -> Path:
    """A recording of *stream*, with its plans or without."""
    with Writer(path, stream.setup) as writer:
        for cycle in stream.cycles:
            writer.write(cycle.snapshot, cycle.plan if planned else None)
    return path


@pytest.fixture
def file(stream: Stream, tmp_path: Path) -> Path:
    """A recording of them."""
    return written(tmp_path / "day.jsonl.gz", stream)


def answered(*args: object) -> Any:  # noqa: ANN401 - any JSON
    """What ``dlsim replay ARGS --json`` tells."""
    return json.loads(called(replay_command, *args, "--json").stdout)


def called(command: click.Command, *args: object) -> Result:
    """Run *command* as its group would, with the exit statuses of all our commands."""
    return in_process(functools.partial(run, command, "dlsim"), *args)


def test_the_recorded_policy_plans_the_same(file: Path, stream: Stream) -> None:
    """A line for each cycle, the sum at the end, and equal plans are told; as JSON too."""
    result = called(replay_command, file, "--diff")

    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["TIME", "(UTC)", "JOBS", "RUNNING", "WAITING", "ACTIONS"]
    assert len(lines) == 1 + len(stream.cycles) + 3
    assert lines[1].startswith("1970-01-12 13:46:40 ")
    assert lines[-3] == "90 cycles over 4:27 with discrete_las"
    runs = {v.run for c in stream.cycles for h in c.snapshot.handovers for v in h.victims}
    assert lines[-2].endswith(f"; {len(runs)} runs to be preempted")
    assert lines[-1] == "all plans are equal to the byte"
    assert result.stderr == ""

    answer = answered(file)
    assert answer["cut_off"] is None
    assert answer["version"] == slurm_dl.__version__
    for told, cycle in zip(answer["cycles"], stream.cycles, strict=True):
        state = cycle.snapshot.jobs.state.tolist()
        assert told["now_s"] == cycle.snapshot.now_s
        assert (told["running"], told["waiting"]) == (state.count(2), state.count(0))
        assert sum(told["actions"].values()) == len(cycle.plan.actions)
        assert told["equal"] is True
    total = sum(len(c.plan.actions) for c in stream.cycles)
    assert sum(answer["summary"]["actions"].values()) == total


def test_a_difference_is_told_with_job_field_and_both_values(
    stream: Stream, tmp_path: Path
) -> None:
    """With file and line; the status is 1, and only with --diff."""
    at, cycle, write = next(
        (at, cycle, action)
        for at, cycle in enumerate(stream.cycles)
        for action in cycle.plan.actions[:1]
        if isinstance(action, SetSiteFactor)
    )
    was = cycle.plan.rank.copy()
    was[0] += 7
    actions = (dataclasses.replace(write, value=42), *cycle.plan.actions[1:])
    plan = dataclasses.replace(cycle.plan, actions=actions, rank=was)
    other = (*stream.cycles[:at], dataclasses.replace(cycle, plan=plan), *stream.cycles[at + 1 :])
    path = written(tmp_path / "r.jsonl", dataclasses.replace(stream, cycles=other))

    result = called(replay_command, path, "--diff")

    assert result.exit_code == 1
    place = f"  {path}:{at + 2}: "
    values = f"recorded 42, now {write.value}"
    job, rank = int(cycle.snapshot.jobs.job_id[0]), int(cycle.plan.rank[0])
    assert [line for line in result.stdout.splitlines() if line.startswith(place)] == [
        f"{place}action 1 (SetSiteFactor of job {write.job_id}): value: {values}",
        f"{place}job {job}: rank: recorded {rank + 7}, now {rank}",
    ]
    assert result.stdout.splitlines()[-1] == "1 of 90 plans differ"
    assert called(replay_command, path).exit_code == 0


def test_another_policy_is_held_against_the_recorded_one(
    file: Path, stream: Stream, tmp_path: Path
) -> None:
    """What the target would be, who moves, how many runs are preempted: none by fifo.

    Without recorded plans the recorded policy and limits say what they were.
    """
    result, answer = (
        called(replay_command, file, "--policy", "fifo"),
        answered(file, "--policy", "fifo"),
    )
    assert result.exit_code == 0
    assert "; target +" in result.stdout
    summary = answer["summary"]
    assert summary["policies"] == ["fifo"]
    assert summary["preempted_runs"] == 0 < summary["preempted_runs_then"]
    assert summary["ranks_moved"] > 0
    assert summary["target_gained"] > 0
    for told, cycle in zip(answer["cycles"], stream.cycles, strict=True):
        assert not {*told["target_gained"]} & cycle.plan.target
    assert called(replay_command, file, "--policy", "fifo", "--diff").exit_code == 1
    unplanned = written(tmp_path / "r", stream, planned=False)
    assert answered(unplanned, "--policy", "fifo")["summary"] == summary


def test_one_parameter_changed_keeps_the_others(file: Path) -> None:
    """The recorded ones, not the defaults; what is as recorded changes nothing."""
    same = called(replay_command, file, "-p", "thresholds_gpu_s=[60.0, 400.0]", "--diff")
    other = called(replay_command, file, "-p", "promote_knob=0", "--diff")

    assert (same.exit_code, other.exit_code) == (0, 1)
    assert "against the recorded policy" in other.stdout


def test_mistakes_in_options_are_2(file: Path) -> None:
    """One line that names the option, before anything is decided."""
    for *args, said in (
        ("--policy", "none", "--policy: must be one of "),
        ("-p", "promote_knob", "-p promote_knob: must be KEY=VALUE"),
        ("-p", "knob=1", "-p knob: "),
        ("-p", "promote_knob=[1]", "-p promote_knob: "),
        ("-p", "promote_knob=-1", "-p promote_knob: promote_knob must be a finite number"),
        ("-p", "promote_knob=!!python/object:os.system x", "-p promote_knob=!!python"),
    ):
        result = called(replay_command, file, *args)
        assert result.exit_code == 2
        assert len(result.stderr.splitlines()) == 1, result.stderr
        assert result.stderr.startswith(f"dlsim: {said}")
        assert result.stdout == ""


def test_a_hostile_recording_is_2(file: Path, stream: Stream, tmp_path: Path) -> None:
    """One line with file and line number, no traceback; so is one without cycles or plans.

    One that was cut off is used; that is told beside the result, which programs can read.
    """
    one = dataclasses.replace(stream, cycles=stream.cycles[:1])
    unplanned = written(tmp_path / "unplanned", one, planned=False)
    spoiled = tmp_path / "spoiled"
    spoiled.write_bytes(unplanned.read_bytes().replace(b'"job_id":{', b'"job_ib":{', 1))
    empty = written(tmp_path / "empty", dataclasses.replace(stream, cycles=()))

    for path, options, said in (
        (unplanned, ("--diff",), f"dlsim: {unplanned}:2: no plan was recorded"),
        (spoiled, (), f"dlsim: {spoiled}:2: snapshot.seen.jobs.job_id: is required"),
        (empty, (), f"dlsim: {empty}: no cycle is in it"),
        (Path("/none"), (), "dlsim: /none: no such file\n"),
    ):
        result = called(replay_command, path, *options)
        assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
        assert result.stderr.startswith(said)

    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) * 2 // 3])
    result = called(replay_command, file, "--json")
    assert result.exit_code == 0
    answer = json.loads(result.stdout)
    assert 10 < answer["summary"]["cycles"] < 90
    assert answer["cut_off"].startswith(f"{file}:{answer['summary']['cycles'] + 2}: ")
    assert result.stderr == f"dlsim: {answer['cut_off']}\n"


def test_the_bar_is_for_terminals_and_long_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is drawn at first; later it stands, and is taken away."""
    monkeypatch.setattr(sim_replay, "_QUIET_S", 0.0)
    drawn = io.StringIO()
    progress = Progress(console=Console(file=drawn, force_terminal=True, width=80))
    bar = sim_replay._Bar(100, progress)

    assert drawn.getvalue() == ""
    bar.reach(50)
    bar.reach(50)
    progress.stop()

    assert "50%" in drawn.getvalue()
    silent = sim_replay._Bar(100, None)
    silent.reach(100)


# Recording.


def recorded(path: Path) -> list[RecordedCycle]:
    """The cycles of a recording that is whole."""
    with Recording(path) as recording:
        cycles = list(recording)
        assert recording.cut_off == ""
    return cycles


def test_a_running_daemon_is_recorded(reading: Schedd, tmp_path: Path) -> None:
    """Each cycle once, with the daemon's plan; the file replays to the same, and is kept safe."""
    out = tmp_path / "r.jsonl.gz"

    done = reading.ask("record", str(out), "--cycles", "3", "--json")
    again = reading.ask("record", str(out), "--cycles", "1")

    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told == {"file": str(out), "cycles": 3, "bytes": out.stat().st_size}
    assert out.stat().st_mode & 0o777 == 0o600
    cycles = recorded(out)
    assert [len(c.snapshot.jobs) for c in cycles] == [6, 6, 6]
    assert cycles[0].setup.parameters["thresholds_gpu_s"] == [1e8, 1e9]
    shown = json.loads(reading.ask("queue", "--json").stdout)["jobs"]
    last = cycles[-1]
    ranks = dict(zip(last.snapshot.jobs.job_id.tolist(), last.plan.rank.tolist(), strict=True))
    assert {job["job_id"]: job["rank"] - 1 for job in shown} == ranks
    assert called(replay_command, out, "--diff").exit_code == 0
    assert again.returncode == 2
    assert again.stderr.startswith(f"dlctl: {out} is there already; --force overwrites it")


def test_no_cycle_is_missed_over_a_reload(schedd: Schedd, tmp_path: Path) -> None:
    """Each cycle has the limits that it was planned with; the end of the daemon ends the file."""
    schedd.configure(poll_s=0.2)
    schedd.start()
    daemon, out = Client(schedd.socket), tmp_path / "r.jsonl"

    def cycles() -> int:
        return int(str(daemon.ask("status")["cycles"]))

    with _recording(schedd, out, "--for", "1h") as process:
        unrecorded = -len(recorded(out)) + cycles()
        schedd.configure(poll_s=0.2, more="ranking: {window: 3}\n")
        daemon.ask("reload")
        schedd.eventually(lambda: len(recorded(out)) > 6, within_s=30, every_s=0.05)
        schedd.eventually(lambda: cycles() - len(recorded(out)) <= unrecorded, within_s=10)
        schedd.stop()
        said, wrong = process.communicate(timeout=30 * PATIENCE)

    windows = [cycle.setup.settings.window == 3 for cycle in recorded(out)]
    assert set(windows) == {False, True}
    assert windows == sorted(windows)
    assert process.returncode == 1
    assert said == f"{len(windows)} cycles in {out}\n"
    assert wrong.startswith("dlctl: dlschedd has ended the recording")
    assert called(replay_command, out, "--diff").exit_code == 0


@contextlib.contextmanager
def _recording(schedd: Schedd, out: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A ``dlctl record`` that has its first cycle; it ends with the block."""
    code = "from slurm_dl.cli.dlctl.command import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "record", "--socket", str(schedd.socket), str(out), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        schedd.eventually(lambda: _has_a_cycle(out), within_s=30, every_s=0.05)
        yield process
    finally:
        process.kill()
        process.communicate()


def test_an_anonymous_recording_of_a_daemon(reading: Schedd, tmp_path: Path) -> None:
    """No user and no job name of its cluster is in the file, and the plans still fit.

    With --force it takes the place of another file, not of what that links to.
    """
    out, linked = tmp_path / "r.jsonl", tmp_path / "linked"
    linked.write_text("old", "utf-8")
    out.symlink_to(linked)

    done = reading.ask("record", str(out), "--for", "2s", "--anonymous", "--force")

    assert done.returncode == 0, done.stderr
    assert linked.read_text("utf-8") == "old"
    assert b"user10" not in out.read_bytes()
    assert b"[red]" not in out.read_bytes()
    assert b'"user":"user-1"' in out.read_bytes()
    assert called(replay_command, out, "--diff").exit_code == 0


def _has_a_cycle(path: Path) -> bool:
    """Whether a recording under way has its first cycle whole."""
    try:
        with Recording(path) as recording:
            return any(True for _ in recording)
    except RecordingError:
        return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_recording_with_a_whole_file(
    reading: Schedd, tmp_path: Path, number: signal.Signals
) -> None:
    """Status 0, and the sum is told."""
    out = tmp_path / "r.jsonl.gz"
    with _recording(reading, out, "--cycles", "1000") as process:
        process.send_signal(number)
        said, wrong = process.communicate(timeout=30 * PATIENCE)

    assert (process.returncode, wrong) == (0, "")
    assert said.endswith(f" in {out}\n")
    assert len(recorded(out)) >= 1


def test_what_cannot_be_recorded(reading: Schedd, tmp_path: Path) -> None:
    """One line each; without a daemon an old file stays even with --force."""
    old = tmp_path / "r"
    old.write_text("old", "utf-8")
    nowhere = tmp_path / "none" / "r"

    results = [
        called(record, "--socket", tmp_path / "none", old, "--cycles", 1, "--force"),
        called(record, "--socket", reading.socket, nowhere, "--cycles", 1),
        called(record, "--socket", reading.socket, nowhere),
        called(record, "--socket", reading.socket, nowhere, "--for", "3"),
    ]

    assert [r.exit_code for r in results] == [1, 1, 2, 2]
    assert [len(r.stderr.splitlines()) for r in results] == [1, 1, 1, 1]
    assert "does not listen" in results[0].stderr
    assert results[1].stderr == f"dlsim: {nowhere}: {os.strerror(2)}\n"
    assert old.read_text("utf-8") == "old"


@pytest.mark.parametrize(("command", "name"), [(record, "dlctl"), (replay_command, "dlsim")])
def test_the_commands_explain_themselves(command: click.Command, name: str) -> None:
    """Help with examples for the command, a sentence for each option."""
    text = command.get_help(click.Context(command, info_name=f"{name} {command.name}"))

    assert f"{name} {command.name}" in text.partition("Example")[2]
    for parameter in command.params:
        assert not isinstance(parameter, click.Option) or parameter.help
