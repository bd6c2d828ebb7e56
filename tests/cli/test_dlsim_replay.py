"""dlsim record and dlsim replay as people run them."""

from __future__ import annotations

import dataclasses
import functools
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
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
from slurm_dl.cli.dlsim import replay as sim_replay
from slurm_dl.cli.dlsim.follow_daemon import Follower
from slurm_dl.cli.dlsim.record import record_command
from slurm_dl.cli.dlsim.replay import replay_command
from slurm_dl.daemon.control.client import DaemonError
from slurm_dl.model.plan import SetSiteFactor
from slurm_dl.policies.fifo import Fifo
from slurm_dl.recording import snapshot_file
from slurm_dl.recording.cycles_file import RecordedCycle, Recording, RecordingError, Setup, Writer

Schedd = Any
"""The class of that name in conftest.py, which cannot be imported."""


@pytest.fixture(scope="module")
def stream() -> Stream:
    """Ninety cycles with hand-overs."""
    return fake_cluster()


@pytest.fixture
def file(stream: Stream, tmp_path: Path) -> Path:
    """A recording of them."""
    path = tmp_path / "day.jsonl.gz"
    with Writer(path, stream.setup) as writer:
        for cycle in stream.cycles:
            writer.write(cycle.snapshot, cycle.plan)
    return path


def called(command: click.Command, *args: object) -> Result:
    """Run *command* as its group would, with the exit statuses of all our commands."""
    return in_process(functools.partial(run, command, "dlsim"), *args)


def test_the_recorded_policy_plans_the_same(file: Path, stream: Stream) -> None:
    """A line for each cycle, the sum at the end, and equal plans are told."""
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


def test_the_lines_count_what_was_planned(file: Path, stream: Stream) -> None:
    """As JSON too, from the plans themselves."""
    answer = json.loads(called(replay_command, file, "--json").stdout)

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


def tampered(cycles: Sequence[Any]) -> list[Any]:
    """The same cycles, the first written SiteFactor and one rank changed."""
    changed = list(cycles)
    at, cycle = next(
        (i, c)
        for i, c in enumerate(changed)
        if c.plan.actions and isinstance(c.plan.actions[0], SetSiteFactor)
    )
    write = dataclasses.replace(cycle.plan.actions[0], value=42)
    rank = cycle.plan.rank.copy()
    rank[0] += 7
    plan = dataclasses.replace(cycle.plan, actions=(write, *cycle.plan.actions[1:]), rank=rank)
    changed[at] = dataclasses.replace(cycle, plan=plan)
    return changed


def test_a_difference_is_told_with_job_field_and_both_values(
    stream: Stream, tmp_path: Path
) -> None:
    """With file and line; the status is 1, and only with --diff."""
    path = tmp_path / "r.jsonl"
    cycles = tampered(stream.cycles)
    at = next(i for i, (a, b) in enumerate(zip(cycles, stream.cycles, strict=True)) if a is not b)
    with Writer(path, stream.setup) as writer:
        for cycle in cycles:
            writer.write(cycle.snapshot, cycle.plan)

    result = called(replay_command, path, "--diff")

    assert result.exit_code == 1
    told = [line for line in result.stdout.splitlines() if line.startswith(f"  {path}:{at + 2}: ")]
    write = stream.cycles[at].plan.actions[0]
    assert isinstance(write, SetSiteFactor)
    rank = int(stream.cycles[at].plan.rank[0])
    job = int(stream.cycles[at].snapshot.jobs.job_id[0])
    place, values = f"  {path}:{at + 2}", f"recorded 42, now {write.value}"
    assert told == [
        f"{place}: action 1 (SetSiteFactor of job {write.job_id}): value: {values}",
        f"{place}: job {job}: rank: recorded {rank + 7}, now {rank}",
    ]
    assert result.stdout.splitlines()[-1] == "1 of 90 plans differ"
    assert called(replay_command, path).exit_code == 0


def test_another_policy_is_held_against_the_recorded_one(file: Path, stream: Stream) -> None:
    """What the target would be, who moves, how many runs are preempted: none by fifo."""
    result = called(replay_command, file, "--policy", "fifo")
    answer = json.loads(called(replay_command, file, "--policy", "fifo", "--json").stdout)

    assert result.exit_code == 0
    assert "; target +" in result.stdout
    summary = answer["summary"]
    assert summary["policies"] == ["fifo"]
    assert summary["preempted_runs"] == 0 < summary["preempted_runs_then"]
    assert summary["ranks_moved"] > 0
    assert summary["target_gained"] > 0
    gains = {
        job
        for told, cycle in zip(answer["cycles"], stream.cycles, strict=True)
        for job in told["target_gained"]
        if job in cycle.plan.target
    }
    assert gains == set()
    assert called(replay_command, file, "--policy", "fifo", "--diff").exit_code == 1


def test_one_parameter_changed_keeps_the_others(file: Path) -> None:
    """The recorded ones, not the defaults; what is as recorded changes nothing."""
    same = called(replay_command, file, "-p", "thresholds_gpu_s=[60.0, 400.0]", "--diff")
    other = called(replay_command, file, "-p", "promote_knob=0", "--diff")

    assert (same.exit_code, other.exit_code) == (0, 1)
    assert "against the recorded policy" in other.stdout


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--policy", "none"], "--policy: must be one of "),
        (["-p", "promote_knob"], "-p promote_knob: must be KEY=VALUE"),
        (["-p", "knob=1"], "-p knob: "),
        (["-p", "promote_knob=[1]"], "-p promote_knob: "),
        (["-p", "promote_knob=-1"], "-p promote_knob: promote_knob must be a finite number"),
        (["-p", "promote_knob=!!python/object:os.system x"], "-p promote_knob=!!python"),
    ],
    ids=["policy", "no value", "unknown", "type", "range", "tag"],
)
def test_mistakes_in_options_are_2(file: Path, args: list[str], said: str) -> None:
    """One line that names the option, before anything is decided."""
    result = called(replay_command, file, *args)

    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert result.stderr.startswith(f"dlsim: {said}")
    assert result.stdout == ""


def test_a_hostile_recording_is_2(file: Path, tmp_path: Path) -> None:
    """One line with file and line number, no traceback; so is one without cycles or plans."""
    lines = file.with_suffix("")
    with Recording(file) as recording:
        first = next(iter(recording))
    with Writer(lines, first.setup) as writer:
        writer.write(first.snapshot)
    no_plan = called(replay_command, lines, "--diff")
    spoiled = tmp_path / "spoiled"
    spoiled.write_bytes(lines.read_bytes().replace(b'"job_id":{', b'"job_ib":{', 1))
    empty = tmp_path / "empty"
    Writer(empty, first.setup).close()

    results = [
        no_plan,
        called(replay_command, spoiled),
        called(replay_command, empty),
        called(replay_command, "/none"),
    ]

    assert [r.exit_code for r in results] == [2, 2, 2, 2]
    assert [len(r.stderr.splitlines()) for r in results] == [1, 1, 1, 1]
    assert f"dlsim: {lines}:2: no plan was recorded" in results[0].stderr
    assert f"dlsim: {spoiled}:2: snapshot.seen.jobs.job_id: is required" in results[1].stderr
    assert f"dlsim: {empty}: no cycle is in it" in results[2].stderr
    assert results[3].stderr == "dlsim: /none: no such file\n"


def test_a_file_that_was_cut_off_is_used_and_told(file: Path) -> None:
    """On standard error, so that the result stays readable for programs."""
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) * 2 // 3])

    result = called(replay_command, file, "--json")

    assert result.exit_code == 0
    answer = json.loads(result.stdout)
    assert 10 < answer["summary"]["cycles"] < 90
    assert answer["cut_off"].startswith(f"{file}:{answer['summary']['cycles'] + 2}: ")
    assert result.stderr == f"dlsim: {answer['cut_off']}\n"


def test_without_recorded_plans_another_policy_is_held_against_the_setup(
    stream: Stream, tmp_path: Path
) -> None:
    """The recorded policy and limits say what the plans were."""
    path = tmp_path / "r"
    with Writer(path, stream.setup) as writer:
        for cycle in stream.cycles:
            writer.write(cycle.snapshot)

    unplanned, planned = (
        json.loads(called(replay_command, p, "--policy", "fifo", "--json").stdout)["summary"]
        for p in (path, _planned(stream, tmp_path / "p"))
    )

    assert unplanned == planned


def _planned(stream: Stream, path: Path) -> Path:
    with Writer(path, stream.setup) as writer:
        for cycle in stream.cycles:
            writer.write(cycle.snapshot, cycle.plan)
    return path


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


class Scripted:
    """A daemon's answers, with a clock of their own."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.cycles = 0
        self.started_s = 5.0
        self.reloaded: dict[str, Any] | None = None
        self.seen_s = 0.0
        self.policy: list[dict[str, Any]] = [
            {"key": "policy.order", "value": "discrete_las"},
            {"key": "policy.parameters.promote_knob", "value": 2.0},
            {"key": "policy.parameters.thresholds_gpu_s", "value": [60.0, 400.0]},
        ]
        self.meanwhile: Callable[[], None] = lambda: None

    def cycle(self) -> None:
        """It has looked once more."""
        self.cycles += 1
        self.seen_s += 10.0

    def __call__(self, request: str) -> Any:  # noqa: ANN401
        """The answer to *request*."""
        if request == "status":
            return {
                "started_s": self.started_s,
                "now_s": 100.0,
                "next_poll_s": 103.0,
                "cycles": self.cycles,
                "seen_s": self.seen_s or None,
                "reloaded": self.reloaded,
                "version": slurm_dl.__version__,
            }
        if request == "config":
            rows = [
                {"key": "config_file", "value": "/etc/x"},
                {"key": "manage.partitions", "value": ["gpu"]},
                {"key": "preemption.min_quantum_s", "value": 8},
            ]
            return {"values": [*rows, *self.policy]}
        assert request == "snapshot"
        self.meanwhile()
        snapshot = self._stream.cycles[self.cycles].snapshot
        return {"snapshot": json.loads(json.dumps(snapshot_file.encode(snapshot)))}


def test_each_cycle_is_seen_once_with_what_was_in_force(stream: Stream) -> None:
    """Repeats are skipped, gaps are counted, a restart is no gap."""
    daemon = Scripted(stream)
    follower = Follower(daemon)

    assert follower.look() is None
    daemon.cycle()
    first = follower.look()
    assert first is not None
    assert first.snapshot.now_s == stream.cycles[1].snapshot.now_s
    assert first.setup.policy == "discrete_las"
    assert first.setup.make() == stream.policy
    assert first.setup.settings.partitions == {"gpu"}
    assert first.setup.settings.preemption.min_quantum_s == 8
    assert follower.look() is None
    assert follower.wait_s == 3.0
    daemon.cycle()
    daemon.cycle()
    assert follower.look() is not None
    assert follower.missed == 1
    daemon.started_s, daemon.cycles = 500.0, 1
    assert follower.look() is not None
    assert follower.missed == 1


def test_a_reload_holds_from_the_cycle_after_it(stream: Stream) -> None:
    """Between the two the daemon tells a configuration that made no plan yet."""
    daemon = Scripted(stream)
    follower = Follower(daemon)
    daemon.cycle()
    daemon.policy = [{"key": "policy.order", "value": "fifo"}]
    daemon.reloaded = {"ok": True, "at_s": daemon.seen_s + 1}

    assert follower.look() is None
    daemon.cycle()
    seen = follower.look()

    assert seen is not None
    assert seen.setup == Setup.of(Fifo(), seen.setup.settings)
    daemon.reloaded = {"ok": False, "at_s": daemon.seen_s + 99}
    daemon.cycle()
    assert follower.look() is not None


def test_what_changes_while_it_is_asked_is_not_taken(stream: Stream) -> None:
    """The snapshot may be of this cycle or of the next: it is asked for again."""
    daemon = Scripted(stream)
    follower = Follower(daemon)
    daemon.cycle()
    daemon.meanwhile = daemon.cycle

    assert follower.look() is None
    assert follower.wait_s == 0.0
    daemon.meanwhile = lambda: None
    seen = follower.look()
    assert seen is not None
    assert seen.snapshot.now_s == stream.cycles[daemon.cycles].snapshot.now_s
    assert follower.missed == 0


@pytest.mark.parametrize("field", ["policy.order", "preemption.min_quantum_s", "snapshot"])
def test_answers_that_are_not_understood(stream: Stream, field: str) -> None:
    """One sentence; nothing is recorded of a guess."""
    daemon = Scripted(stream)
    daemon.cycle()
    daemon.policy.append({"key": field, "value": "nonsense"})
    ask: Callable[[str], Any] = daemon
    if field == "snapshot":
        ask = lambda request: {} if request == "snapshot" else daemon(request)  # noqa: E731

    with pytest.raises(DaemonError, match="is not understood"):
        Follower(ask).look()


def recorded(path: Path) -> list[RecordedCycle]:
    """The cycles of a recording that is whole."""
    with Recording(path) as recording:
        cycles = list(recording)
        assert recording.cut_off == ""
    return cycles


def test_a_running_daemon_is_recorded(reading: Schedd, tmp_path: Path) -> None:
    """Its cycles, each once, with the plans; the file replays to the same, and is kept safe."""
    out = tmp_path / "r.jsonl.gz"

    done = called(record_command, "--socket", reading.socket, "--out", out, "--cycles", 2)
    again = called(record_command, "--socket", reading.socket, "--out", out, "--cycles", 2)

    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith(f"2 cycles in {out} (")
    assert out.stat().st_mode & 0o777 == 0o600
    cycles = recorded(out)
    assert [len(c.snapshot.jobs) for c in cycles] == [6, 6]
    assert cycles[0].snapshot.now_s < cycles[1].snapshot.now_s
    assert cycles[0].setup.parameters["thresholds_gpu_s"] == [1e8, 1e9]
    assert called(replay_command, out, "--diff").exit_code == 0
    assert again.exit_code == 2
    assert again.stderr.startswith(f"dlsim: {out} is there already; --force overwrites it")


def test_the_recorded_plan_is_the_daemons(reading: Schedd, tmp_path: Path) -> None:
    """The daemon does not tell its plan, but the ranks that it shows are those recorded."""
    out = tmp_path / "r.jsonl"
    out.write_text("old", "utf-8")

    done = called(record_command, "--socket", reading.socket, "--out", out, "--for", 1.5, "--force")

    assert done.exit_code == 0, done.stderr
    shown = json.loads(reading.ask("queue", "--json").stdout)["jobs"]
    last = recorded(out)[-1]
    assert last.plan is not None
    ranks = dict(zip(last.snapshot.jobs.job_id.tolist(), last.plan.rank.tolist(), strict=True))
    assert {job["job_id"]: job["rank"] - 1 for job in shown} == ranks


def test_an_anonymous_recording_of_a_daemon(reading: Schedd, tmp_path: Path) -> None:
    """No user and no job name of its cluster is in the file, and the plans still fit."""
    out = tmp_path / "r.jsonl"

    done = called(
        record_command, "--socket", reading.socket, "--out", out, "--cycles", 1, "--anonymous"
    )

    assert done.exit_code == 0, done.stderr
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
    reading: Schedd, tmp_path: Path, eventually: Callable[..., object], number: signal.Signals
) -> None:
    """Status 0, and the sum is told."""
    out = tmp_path / "r.jsonl.gz"
    code = (
        "from slurm_dl.cli.commandline import run; "
        "from slurm_dl.cli.dlsim.record import record_command; "
        "run(record_command, 'dlsim')"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, "--socket", str(reading.socket), "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        eventually(lambda: _has_a_cycle(out), within_s=30, every_s=0.05)
        process.send_signal(number)
        said, wrong = process.communicate(timeout=30 * PATIENCE)
    finally:
        process.kill()
        process.wait()

    assert (process.returncode, wrong) == (0, "")
    assert "cycle" in said
    assert len(recorded(out)) >= 1


def test_without_a_daemon_nothing_is_written(tmp_path: Path) -> None:
    """Status 1 and what to do; an old file stays even with --force."""
    out = tmp_path / "r"
    out.write_text("old", "utf-8")

    result = called(record_command, "--socket", tmp_path / "none", "--out", out, "--force")

    assert result.exit_code == 1
    assert "does not listen" in result.stderr
    assert out.read_text("utf-8") == "old"


def test_where_nothing_can_be_written(reading: Schedd, tmp_path: Path) -> None:
    """One line that names the file."""
    out = tmp_path / "none" / "r"

    result = called(record_command, "--socket", reading.socket, "--out", out, "--cycles", 1)

    assert result.exit_code == 1
    assert result.stderr == f"dlsim: {out}: {os.strerror(2)}; 0 cycles are in it\n"


@pytest.mark.parametrize("command", [record_command, replay_command])
def test_the_commands_explain_themselves(command: click.Command) -> None:
    """Help with examples for the command, a sentence for each option."""
    text = command.get_help(click.Context(command, info_name=f"dlsim {command.name}"))

    assert f"dlsim {command.name}" in text.partition("Example")[2]
    for parameter in command.params:
        assert not isinstance(parameter, click.Option) or parameter.help
