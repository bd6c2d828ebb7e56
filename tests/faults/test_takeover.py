"""Two daemons on one state directory: one acts, the other takes over, and never both act."""

from __future__ import annotations

import json
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from controller_pair import HOSTS, ControllerPair, controller_pair
from schedd import ROOT, Schedd, schedd_in, toy_steps
from victims import STEPS, sank, victim

from slurm_dl.sandbox import Sandbox

pytestmark = pytest.mark.slurm

LEASE_S = 8
"""So long that a daemon on a busy machine always renews it in time."""
POLL_S = 2
TOOLS = ("squeue", "sinfo", "scontrol", "scancel", "sprio")

SHIM = """\
#!/bin/sh
echo "$0 $*" >> {home}/calls
if [ -e {home}/stop ]; then
    case "$*" in
        *SiteFactor=*) {stop} $PPID && rm {home}/stop ;;
    esac
fi
exec {tool} "$@"
"""
"""Notes each command of one daemon; stops that daemon in the middle of its next write if told."""

STOP = """\
import os, signal, sqlite3, sys, time
while True:
    os.kill(int(sys.argv[2]), signal.SIGSTOP)
    try:
        sqlite3.connect(sys.argv[1], timeout=0.5, isolation_level=None).execute("BEGIN IMMEDIATE")
        break
    except sqlite3.OperationalError:
        os.kill(int(sys.argv[2]), signal.SIGCONT)
        time.sleep(0.05)
"""
"""Stops a daemon while it does not hold the lock of the ledger: else nobody could take over."""


@pytest.fixture
def pair(sandbox: Sandbox, short_directory: Path) -> Iterator[tuple[Schedd, Schedd]]:
    """Two places for daemons, each with its own socket and log, over one state directory."""
    homes = [short_directory / name for name in ("one", "two")]
    for home in homes:
        home.mkdir(mode=0o755)
    with schedd_in(sandbox, homes[0]) as one, schedd_in(sandbox, homes[1]) as two:
        configure(one, two)
        yield one, two


def configure(*places: Schedd, **takeover: object) -> None:
    """Let all share the state directory of the first."""
    state = places[0].home / "state"
    for place in places:
        place.configure(
            daemon={"poll_s": POLL_S, "log_level": "debug", "log_format": "json"},
            takeover={"enabled": True, "lease_s": LEASE_S, **takeover},
            cluster={"bin_dir": str(bin_of(place))},
            paths={"state_dir": str(state), "audit_log": str(state / "audit.jsonl")},
        )


def bin_of(place: Schedd) -> Path:
    """Slurm's tools for one daemon, which note how they are called."""
    directory = place.home / "bin"
    directory.mkdir(exist_ok=True)
    (directory / "stop.py").write_text(STOP, encoding="utf-8")
    stop = f"{sys.executable} {directory}/stop.py {place.home}/state/ledger.sqlite"
    for tool in TOOLS:
        shim = directory / tool
        text = SHIM.format(home=place.home, tool=f"/usr/bin/{tool}", stop=stop)
        shim.write_text(text, encoding="utf-8")
        shim.chmod(shim.stat().st_mode | stat.S_IXUSR)
    return directory


def writes(place: Schedd) -> list[str]:
    """The commands by which one daemon has changed something in Slurm."""
    path = place.home / "calls"
    calls = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    verbs = ("update", "create", "delete", "requeue", "--signal")
    return [call for call in calls if any(verb in call for verb in verbs)]


def sees_running(place: Schedd, job: str) -> bool:
    """By the daemon's last look the job runs."""
    rows = json.loads(place.ask("dlqueue", "--json").stdout)["jobs"]
    return any(row["job"] == job and row["state"] == "R" for row in rows)


def stand_by(place: Schedd) -> None:
    """Start a daemon that will not act yet, and wait until it says so."""
    with (place.home / "schedd.log").open("ab") as log:
        place.process = subprocess.Popen(
            [*place.command, "--config", str(place.config), "--live", "--allow-root"],
            env=place.env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    place.until("it to stand by", lambda: doing(place).startswith("stand-by: "), 30)


def status(place: Schedd) -> dict[str, Any]:
    """What `dlctl status --json` says; empty if nobody answers."""
    done = place.ask("dlctl", "status", "--json", check=False)
    answer: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {}
    return answer


def doing(place: Schedd) -> str:
    """What the daemon says that it does."""
    return str(status(place).get("doing", ""))


def events(place: Schedd) -> list[str]:
    """The events in one daemon's log, in their order."""
    lines = (place.home / "schedd.log").read_text(encoding="utf-8").splitlines()
    return [str(json.loads(line)["event"]) for line in lines if line.startswith("{")]


def test_a_killed_daemon_is_taken_over(pair: tuple[Schedd, Schedd]) -> None:
    """The second one acts in its second look, and ends the hand-over that was under way."""
    one, two = pair
    one.command = [sys.executable, str(ROOT / "tests" / "faulty_schedd.py"), "applied:Signal"]
    one.start()
    assert doing(one).startswith(("acting", "only looking for"))
    stand_by(two)
    assert f"acts (pid {one.process.pid}, renewed " in doing(two)
    assert two.ask("dlqueue", check=False).returncode != 0
    assert "stand-by" in two.ask("dlctl", "pause", check=False).stderr
    big = victim(one)
    one.until("the large job to sink", lambda: sank(one, big) or one.died())
    small = one.toy(1, 4)
    one.until("the first daemon to be killed as it signals", one.died)
    assert writes(two) == []
    killed_at = len(one.audit())

    two.until("the second one to take over", lambda: one.audit(action="take_over")[1:])
    two.until("it to act", lambda: "action" in events(two), 30)
    since = events(two)[events(two).index("takes over") :]
    # A poll is one cycle: one to look, and in the next one it acts.
    assert since[: since.index("action")].count("cycle") <= 1, since
    taken = one.audit()[killed_at:][0]
    assert taken["action"] == "take_over"
    assert taken["details"]["generation"] == 2
    silent_s = float(taken["reason"].split("silent for ")[1].split()[0])
    assert silent_s >= LEASE_S
    for job in (small, big):
        two.until_state(job, "COMPLETED", within_s=120)
    assert toy_steps(one.home, big) == list(range(1, STEPS + 1))
    two.until("nothing to be left", lambda: not two.reservations(), 20)
    two.until("the hand-over to be closed", lambda: one.open_handovers() == 0, 20)


@pytest.mark.full("waits for a lease to run out and for jobs of a paused daemon")
def test_a_daemon_that_was_paused_does_nothing_more(pair: tuple[Schedd, Schedd]) -> None:
    """Stopped between two writes and resumed after it was taken over, it writes no second one."""
    one, two = pair
    one.start()
    stand_by(two)
    wall = one.toy(16, 400, options=["--no-preempt"])
    one.until_state(wall, "RUNNING")
    # Who runs is told nothing; so the next write is one for a job that waits.
    one.until("it to be seen running", lambda: sees_running(one, wall))
    before = len(writes(one))
    (one.home / "stop").touch()
    waiting = [one.toy(1, 4, options=["--no-preempt"]) for _ in range(4)]
    one.until("the first daemon to be stopped in a write", lambda: not (one.home / "stop").exists())
    assert one.process is not None
    two.until("the second one to take over", lambda: one.audit(action="take_over")[1:])
    for job in waiting:
        two.until(
            f"job {job} to be ordered",
            lambda j=int(job): one.audit(action="set_site_factor", job=j, result="ok"),  # type: ignore[misc]
            30,
        )
    done = len(one.audit())
    one.process.send_signal(signal.SIGCONT)
    one.until("the first one to stand by", lambda: doing(one).startswith("stand-by: "), 30)

    # The one it was in when it was stopped, which Slurm has had since.
    assert len(writes(one)) == before + 1, writes(one)[before:]
    assert all(e["action"] == "set_site_factor" for e in one.audit()[done:]), one.audit()[done:]
    assert f"acts (pid {two.process.pid if two.process else 0}, " in doing(one)
    assert "acts no more" in events(one)

    # And it is as good a stand-by as any: the other ends, and it goes on without a delay.
    two.stop()
    one.until("the first one to act again", lambda: doing(one) == "acting", 30)
    assert one.audit(action="take_over")[-1]["reason"] == "nobody held the lease"
    one.box.run(["scancel", *waiting, wall])


@pytest.mark.full("needs two controllers and waits until each takes over")
def test_the_daemon_goes_where_slurmctld_is(short_directory: Path) -> None:
    """With a real backup controller: the daemon beside the acting one acts, there and back."""
    with controller_pair(short_directory) as controllers:
        there = {host: at_host(controllers, short_directory, host) for host in HOSTS}
        a, b = (there[host] for host in HOSTS)
        configure(a, b, follow_slurmctld=True)
        try:
            stand_by(b)
            assert doing(b) == "stand-by: slurmctld acts on ctla, and this is ctlb"
            a.start()
            b.until("the other to act", lambda: "ctla acts (pid " in doing(b))

            controllers.kill("ctla")
            a.until("the first to stand by", lambda: doing(a).startswith("stand-by: "), 60)
            b.until("the second to act", lambda: doing(b) == "acting", 60)
            assert [e["action"] for e in a.audit() if e["action"] == "stand_by"] == ["stand_by"]

            controllers.start("ctla")
            b.until("the second to stand by", lambda: doing(b).startswith("stand-by: "), 60)
            a.until("the first to act", lambda: doing(a) == "acting", 60)
            assert [e["details"]["host"] for e in a.audit(action="take_over")] == [
                "ctla",
                "ctlb",
                "ctla",
            ]
        finally:
            for place in (a, b):
                if place.process is not None and place.process.poll() is None:
                    place.kill()


def at_host(controllers: ControllerPair, directory: Path, host: str) -> Schedd:
    """A place for a daemon on one of the two hosts."""
    home = directory / host
    home.mkdir(mode=0o755)
    place = Schedd(box=controllers.box, home=home)
    place.command = controllers.on(host, *place.command)
    return place
