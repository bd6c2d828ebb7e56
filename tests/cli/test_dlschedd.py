"""The daemon as a process: signals, lock, reload, pause, audit, and what it says when it ends."""

from __future__ import annotations

import json
import os
import pwd
import signal
import socket
import stat
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from patience import PATIENCE

Eventually = Callable[..., object]
Schedd = Any
"""The class of that name in conftest.py, which cannot be imported."""


def status(schedd: Schedd) -> dict[str, Any]:
    answer = schedd.ask("status", "--json")
    assert answer.returncode == 0, answer.stderr
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


def audit(schedd: Schedd) -> list[dict[str, Any]]:
    return [json.loads(line) for line in schedd.audit.read_text("utf-8").splitlines()]


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_on_a_signal_and_leaves_nothing(schedd: Schedd, how: signal.Signals) -> None:
    """TERM and INT end it with status 0, the socket goes, start and stop are written down."""
    schedd.start()

    assert schedd.stop(how) == 0

    assert not schedd.socket.exists()
    assert [(w["action"], w["reason"]) for w in audit(schedd)] == [
        ("start", "shadow mode"),
        ("stop", how.name),
    ]


def test_a_sleeping_daemon_ends_at_once(schedd: Schedd, eventually: Eventually) -> None:
    """A signal ends the sleep: with an hour to the next poll nobody waits for it."""
    schedd.configure(poll_s=3600)
    process = schedd.start("--set", "daemon.nodes_every_s=3600")

    process.send_signal(signal.SIGTERM)

    eventually(lambda: process.poll() is not None, within_s=20, what="dlschedd to end")
    assert schedd.stop() == 0


def test_shadow_is_the_default_and_live_acts(schedd: Schedd, eventually: Eventually) -> None:
    """Without daemon.shadow: false or --live nothing is done; with it something is."""
    schedd.start()
    eventually(lambda: status(schedd)["cycles"] >= 3, within_s=20)
    assert {w["action"] for w in audit(schedd)} == {"start"}
    schedd.stop()

    schedd.start("--live")

    eventually(lambda: "set_site_factor" in schedd.audit.read_text("utf-8"), within_s=20)
    assert status(schedd)["live"] is True
    assert status(schedd)["doing"] == "acting"


def test_shadow_wins_over_the_configuration(schedd: Schedd, eventually: Eventually) -> None:
    """--shadow never acts, whatever the file says."""
    schedd.configure(shadow="false")
    schedd.start("--shadow")

    eventually(lambda: status(schedd)["cycles"] >= 3, within_s=20)

    assert {w["action"] for w in audit(schedd)} == {"start"}


def test_a_second_daemon_is_refused_by_name(schedd: Schedd) -> None:
    """Two daemons on one ledger would fight; the second one names the first and ends with 1."""
    first = schedd.start()

    second = subprocess.run(
        schedd.argv(), capture_output=True, text=True, timeout=60 * PATIENCE, check=False
    )

    assert second.returncode == 1
    assert second.stderr == (
        f"dlschedd: another dlschedd (pid {first.pid}) runs on {schedd.directory}/state: "
        "stop it first\n"
    )
    assert schedd.ask("status").returncode == 0


def test_after_a_kill_the_next_one_starts(schedd: Schedd) -> None:
    """SIGKILL leaves a socket and a lock file behind; neither is in the way."""
    schedd.start()
    schedd.stop(signal.SIGKILL)
    assert schedd.socket.exists()

    schedd.start()

    assert status(schedd)["cycles"] >= 1


def test_a_hangup_reloads_and_a_bad_file_does_not(schedd: Schedd, eventually: Eventually) -> None:
    """SIGHUP takes a good file; a bad one is refused in log, status and audit, and named."""
    process = schedd.start()
    schedd.configure(poll_s=0.7)
    process.send_signal(signal.SIGHUP)
    eventually(lambda: status(schedd)["reloaded"] is not None, within_s=20)
    assert status(schedd)["reloaded"]["ok"]

    schedd.configure(poll_s=-1)
    process.send_signal(signal.SIGHUP)

    eventually(lambda: not status(schedd)["reloaded"]["ok"], within_s=20)
    assert "dl.yaml:3: daemon.poll_s" in status(schedd)["reloaded"]["message"]
    assert "daemon.poll_s" in schedd.log
    assert [w["result"] == "ok" for w in audit(schedd) if w["action"] == "reload"] == [True, False]
    running = json.loads(schedd.ask("show-config", "--running", "--json").stdout)["values"]
    assert next(v["value"] for v in running if v["key"] == "daemon.poll_s") == 0.7


def test_dlctl_reload_tells_the_outcome(schedd: Schedd) -> None:
    """Good: 0 and what changed. Bad: 1 and what is wrong. What is fixed: named and refused."""
    schedd.start()
    schedd.configure(poll_s=0.9)
    good = schedd.ask("reload")
    schedd.configure(more="nonsense: 1\n")
    bad = schedd.ask("reload")
    schedd.configure(more="control: {socket_mode: '0600'}\n")
    fixed = schedd.ask("reload")

    assert (good.returncode, "daemon.poll_s" in good.stdout) == (0, True)
    assert (bad.returncode, "nonsense" in bad.stderr) == (1, True)
    assert (fixed.returncode, "control.socket_mode: cannot change" in fixed.stderr) == (1, True)


def test_a_reload_changes_the_admins(schedd: Schedd) -> None:
    """The list of who may command is in force at once; a name nobody has is refused."""
    schedd.start()
    schedd.configure(more="control: {admins: [root, no-such-user-here]}\n")
    refused = schedd.ask("reload")
    schedd.configure(more="control: {admins: [root, nobody]}\n")

    assert "no user 'no-such-user-here'" in refused.stderr
    assert schedd.ask("reload").returncode == 0


def test_a_pause_survives_a_restart(schedd: Schedd, eventually: Eventually) -> None:
    """Paused means paused: nothing is done until somebody resumes, also by the next daemon."""
    schedd.start()
    assert schedd.ask("pause", "--reason", "cooling").returncode == 0
    schedd.stop()
    schedd.start("--live")
    eventually(lambda: status(schedd)["cycles"] >= 3, within_s=20)

    assert status(schedd)["paused"]["reason"] == "cooling"
    assert "set_site_factor" not in schedd.audit.read_text("utf-8")
    said = schedd.ask("queue")
    assert "paused by user" in said.stderr
    assert schedd.ask("resume").stdout == "resumed\n"
    eventually(lambda: "set_site_factor" in schedd.audit.read_text("utf-8"), within_s=20)


def test_with_a_full_audit_log_it_looks_and_does_not_act(
    schedd: Schedd,
    eventually: Eventually,
) -> None:
    """It says so once, goes on looking, and acts again by itself when there is room."""
    schedd.audit.symlink_to("/dev/full")
    schedd.start("--live")
    eventually(lambda: status(schedd)["cycles"] >= 3, within_s=20)

    assert status(schedd)["actions"]["done"] == 0
    assert "audit log" in status(schedd)["doing"]
    assert schedd.log.count("audit log cannot be written") == 1
    schedd.audit.unlink()

    eventually(lambda: status(schedd)["actions"]["done"] > 0, within_s=20)
    assert audit(schedd)[0]["action"] == "start"


def test_while_slurm_is_silent_it_says_so(schedd: Schedd, eventually: Eventually) -> None:
    """The last queue stays readable, marked as old news; after the silence work goes on."""
    schedd.start()
    schedd.slurm_is_down(down=True)
    eventually(lambda: status(schedd)["failures"] >= 2, within_s=20)

    assert "squeue: no answer" in status(schedd)["trouble"]["message"]
    assert schedd.ask("queue").returncode == 0
    schedd.slurm_is_down(down=False)

    eventually(lambda: status(schedd)["failures"] == 0, within_s=30)


def test_systemd_is_told(schedd: Schedd, eventually: Eventually) -> None:
    """READY after the start, WATCHDOG and STATUS while it runs, RELOADING and STOPPING."""
    path = schedd.directory / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(path))
        manager.setblocking(False)
        heard: list[str] = []

        def has(word: str) -> bool:
            while True:
                try:
                    heard.extend(manager.recv(4096).decode().splitlines())
                except BlockingIOError:
                    return any(line.startswith(word) for line in heard)

        process = schedd.start(env={"NOTIFY_SOCKET": str(path)})
        eventually(lambda: has("READY=1") and has("WATCHDOG=1"), within_s=20)
        eventually(lambda: has("STATUS=shadow: 2 running, 4 pending"), within_s=20)
        assert not has("RELOADING=1")
        process.send_signal(signal.SIGHUP)
        eventually(lambda: has("RELOADING=1") and has("MONOTONIC_USEC="), within_s=20)
        schedd.stop()
        assert has("STOPPING=1")
        assert heard.index("READY=1") < heard.index("RELOADING=1") < heard.index("STOPPING=1")


def test_files_are_closed_to_others_and_the_socket_is_not(schedd: Schedd) -> None:
    """Everybody may ask; ledger, lock and audit log are the daemon's."""
    schedd.start()

    modes = {
        path.name: stat.S_IMODE(path.stat().st_mode)
        for path in [*(schedd.directory / "state").iterdir(), schedd.audit, schedd.socket]
    }

    assert modes.pop("dlschedd.sock") == 0o666
    assert {name for name, mode in modes.items() if mode & 0o007} == set()
    assert stat.S_IMODE(schedd.socket.parent.stat().st_mode) == 0o755


def test_log_lines_are_json_and_escape_users(schedd: Schedd, eventually: Eventually) -> None:
    """Every line of the log can be parsed, whatever users call their jobs."""
    schedd.start("--live", "--set", "daemon.log_level=debug")
    eventually(lambda: status(schedd)["actions"]["done"] > 0, within_s=20)
    schedd.stop()

    lines = [json.loads(line) for line in schedd.log.splitlines()]

    assert {"started", "cycle", "action", "stopping"} <= {line["event"] for line in lines}
    assert "\x1b" not in schedd.log


def once(schedd: Schedd, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        schedd.argv("--once", *options),
        capture_output=True,
        text=True,
        timeout=60 * PATIENCE,
        check=False,
    )


def test_once_prints_the_plan_and_touches_nothing(schedd: Schedd) -> None:
    """One look: the queue, the places of the four jobs that wait, status 0."""
    schedd.configure(shadow="false")

    done = once(schedd)

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].split()[:3] == ["JOBID", "PARTITION", "NAME"]
    assert done.stdout.count("set_site_factor") == 4
    assert done.stdout.count("not done") == 4
    assert "\x1b" not in done.stdout
    assert not schedd.audit.exists()


def test_once_live_acts_in_a_second_cycle(schedd: Schedd) -> None:
    """--live does what the first look planned, and writes it down."""
    done = once(schedd, "--live", "--json")

    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["acting"] is True
    assert [a["result"] for a in answer["actions"]] == ["ok"] * 4
    assert len(audit(schedd)) == 4


def test_once_respects_a_pause(schedd: Schedd) -> None:
    """A paused site is not touched by hand either; the status says that nothing was done."""
    schedd.start()
    schedd.ask("pause")
    schedd.stop()

    done = once(schedd, "--live")

    assert done.returncode == 1
    assert "paused by user" in done.stderr


def test_once_fails_when_slurm_is_silent(schedd: Schedd) -> None:
    """One line, status 1."""
    schedd.slurm_is_down(down=True)

    done = once(schedd)

    assert (done.returncode, done.stderr) == (1, "dlschedd: squeue: no answer\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--shadow", "--live"], "exclude each other"),
        (["--json"], "goes with --once"),
        (["--nonsense"], "No such option"),
        (["--set", "daemon.poll_s=x"], "daemon.poll_s"),
        (["--set", "x"], "KEY=VALUE"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_2(
    schedd: Schedd,
    options: list[str],
    message: str,
) -> None:
    """What is wrong with the command line is said in one line without a traceback."""
    done = subprocess.run(
        schedd.argv(*options), capture_output=True, text=True, timeout=60 * PATIENCE, check=False
    )

    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("dlschedd: ")
    assert message in done.stderr


def test_all_mistakes_of_a_file_are_named_at_once(schedd: Schedd) -> None:
    """Status 2, one line for each mistake, each with its line."""
    schedd.configure(poll_s=-1, more="nonsense: 1\n")

    done = once(schedd)

    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root is refused")
def test_root_is_refused_where_slurm_runs_as_somebody_else(schedd: Schedd) -> None:
    """The reason is given, and --allow-root is the way around."""
    (schedd.directory / "slurm.conf").write_text("# x\nslurmuser=slurm # y\n", "utf-8")

    refused, allowed = once(schedd), once(schedd, "--allow-root")

    assert refused.returncode == 2
    assert "SlurmUser is slurm" in refused.stderr
    assert "--allow-root" in refused.stderr
    assert allowed.returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give the file away")
def test_a_configuration_others_can_write_is_refused(schedd: Schedd) -> None:
    """Whoever can write the file can steer the daemon."""
    path = schedd.directory / "dl.yaml"
    os.chown(path, pwd.getpwnam("nobody").pw_uid, 0)

    done = once(schedd)

    assert done.returncode == 2
    assert str(path) in done.stderr


def test_directories_can_be_given_on_the_command_line(schedd: Schedd) -> None:
    """--state-dir holds ledger, lock and audit log."""
    here = schedd.directory / "here: #1"

    done = once(schedd, "--live", "--state-dir", str(here), "--run-dir", str(here))

    assert done.returncode == 0, done.stderr
    assert {"audit.jsonl", "ledger.sqlite", "lock"} <= {path.name for path in here.iterdir()}
    assert not (schedd.directory / "state").exists()


def test_many_clients_at_once_do_not_slow_the_loop(schedd: Schedd, eventually: Eventually) -> None:
    """Fifty readers over and over, some stuck: cycles go on being made and all are answered."""
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415

    from slurm_dl.daemon.control.client import Client  # noqa: PLC0415

    schedd.start()
    before = status(schedd)["cycles"]
    stuck = [socket.socket(socket.AF_UNIX) for _ in range(10)]
    for sock in stuck:
        sock.connect(str(schedd.socket))
        sock.sendall(b'{"request": "queue"}\n' * 50)

    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(lambda _: Client(schedd.socket).ask("queue"), range(300)))

    assert all(len(a["jobs"]) == 6 for a in answers)  # type: ignore[arg-type]
    eventually(lambda: status(schedd)["cycles"] > before + 1, within_s=20)
    for sock in stuck:
        sock.close()
