"""An ordinary account with the Operator level and without, confined as by the unit; PrivateData.

One cluster with a slurmdbd serves all: levels are slurmdbd's.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from bad_inputs import row
from patience import PATIENCE
from schedd import BIN, ROOT, Schedd, schedd_in, toy_steps
from victims import sank

from slurm_dl.sandbox import Sandbox, SandboxNodes, SandboxSpec
from slurm_dl.slurm.accounting.job_runs import Accounting
from slurm_dl.slurm.accounting.past_jobs import PastReader
from slurm_dl.slurm.tool_runner import Slurm
from slurm_dl.traces import read_trace

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.full("needs a cluster with slurmdbd and MariaDB of its own"),
]

DAEMON, USER = "games", "nobody"
"""Accounts that every host has, and that are nobody in Slurm to begin with."""

CONFINED = [sys.executable, str(ROOT / "tests" / "confined.py")]
STEPS = 80
LACKS = "account games may not change other users' jobs: in slurmdbd it "


@pytest.fixture(scope="module")
def box(module_directory: Path) -> Iterator[Sandbox]:
    """Two nodes of two GPUs, and a slurmdbd."""
    spec = SandboxSpec(
        groups=(SandboxNodes(nodes=2, gpus=2),),
        accounting=True,
        # No other number in a sentence is a job's.
        slurm_conf_extra=("FirstJobId=47110",),
    )
    made = Sandbox.up(module_directory / "c", spec)
    try:
        yield made
    finally:
        made.down(remove=True)


@pytest.fixture
def place(box: Sandbox, short_directory: Path) -> Iterator[Schedd]:
    """A place for a daemon that runs as `DAEMON` under what the unit says; none started."""
    private_data(box, "none")
    with schedd_in(box, short_directory) as daemon:
        thresholds = {"parameters": {"thresholds_gpu_s": [20, 5000]}}
        daemon.configure(daemon={"nodes_every_s": 1}, policy=thresholds)
        daemon.config.chmod(0o644)
        owner = pwd.getpwnam(DAEMON)
        for name in ("state", "run"):
            os.chown(daemon.home / name, owner.pw_uid, owner.pw_gid)
        daemon.command = [
            *(*CONFINED, "--user", DAEMON),
            *("--writable", str(daemon.home / "state")),
            *("--writable", str(daemon.home / "run")),
            *("--", str(BIN / "dlschedd")),
        ]
        try:
            yield daemon
        finally:
            log = daemon.home / "schedd.log"
            sys.stdout.write(log.read_text("utf-8", "replace") if log.exists() else "no log")


def level(box: Sandbox, word: str) -> None:
    """Give the daemon's account an AdminLevel; it becomes a user of slurmdbd at the first time."""
    known = box.run(["sacctmgr", "-nP", "show", "user", DAEMON, "format=User"]).stdout.strip()
    if not known:
        box.run(["sacctmgr", "-i", "add", "user", DAEMON, "account=root"])
    # It fails where nothing changes.
    box.run(["sacctmgr", "-i", "modify", "user", DAEMON, "set", f"adminlevel={word}"], check=False)


def private_data(box: Sandbox, words: str) -> None:
    """Put PrivateData into force, as an admin does on a running cluster."""
    conf = Path(box.env["SLURM_CONF"])
    lines = [line for line in conf.read_text("utf-8").splitlines() if "PrivateData" not in line]
    conf.write_text("\n".join([*lines, f"PrivateData={words}", ""]), "utf-8")
    box.run(["scontrol", "reconfigure"])


def status(place: Schedd) -> dict[str, Any]:
    """What dlctl status says."""
    answer: dict[str, Any] = json.loads(place.ask("dlctl", "status", "--json").stdout)
    return answer


def doctor(place: Schedd) -> dict[str, Any]:
    """What dlctl doctor says of the account's rights."""
    done = place.ask(
        *("dlctl", "doctor", "--config", str(place.config), "--account", DAEMON, "--json"),
        check=False,
    )
    checks = json.loads(done.stdout)["checks"]
    found: dict[str, Any] = next(c for c in checks if c["check"] == "rights")
    return found


def sleeper(box: Sandbox, user: str | None, gpus: int = 1) -> str:
    """A job that sleeps, of *user*; its id."""
    argv = ["sbatch", "--parsable", f"--gres=gpu:{gpus}", "--wrap", "sleep 600"]
    return box.run(argv, user=user).stdout.strip()


def priority(place: Schedd, job: str) -> int:
    """Slurm's priority of a job."""
    return int(place.job(job, "Priority")[0])


def test_an_operator_without_any_privilege_of_the_host_does_all_its_work(
    place: Schedd, box: Sandbox
) -> None:
    """Order, signal, requeue another user's job and reserve: no capability, no file, no call more.

    Afterwards accounting tells both runs of the job that gave way, to the ledger's reader and to
    the estimates'.
    """
    level(box, "Operator")
    place.start()
    seen = Path(f"/proc/{place.process.pid}/status").read_text("utf-8")
    facts = dict(line.split(":\t", 1) for line in seen.splitlines() if ":\t" in line)
    uid = str(pwd.getpwnam(DAEMON).pw_uid)
    assert set(facts["Uid"].split()) == {uid}
    assert {int(facts[f"Cap{kind}"], 16) for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {0}
    assert (facts["NoNewPrivs"], facts["Seccomp"]) == ("1", "2")
    mounts = Path(f"/proc/{place.process.pid}/mountinfo").read_text("utf-8").splitlines()
    roots = [line.split() for line in mounts if line.split()[4] == "/"]
    assert roots[-1][5].startswith("ro")

    big = place.toy(4, STEPS, "--checkpoint-every", "1000", options=["--grace", "30"])
    place.until("the large job to sink", lambda: sank(place, big))
    small = place.toy(1, 6)
    for job in (small, big):
        place.until_state(job, "COMPLETED", within_s=120)

    done = {entry["action"] for entry in place.audit(result="ok")}
    assert {"set_site_factor", "reserve", "attach", "signal", "requeue"} <= done
    assert [e for e in place.audit() if e["result"] != "ok"] == []
    assert place.job(big, "Restarts") == ["1"]
    comment = box.run(["squeue", "-h", "-t", "all", "-j", big, "-o", "%k"]).stdout
    assert json.loads(comment)["slurm_dl"]["preempted"] == [1, 0]
    assert toy_steps(place.home, big) == list(range(1, STEPS + 1))
    assert doctor(place)["level"] == "ok"
    two_runs_in_accounting(place, box, int(big))
    the_printed_sacct_command_makes_a_history(place, box, big, small)


def two_runs_in_accounting(place: Schedd, box: Sandbox, job: int) -> None:
    """A real slurmdbd's sacct is read, with the run before the requeue and the one after."""
    slurm = Slurm(slurm_conf=Path(box.env["SLURM_CONF"]))

    def told() -> list[Any]:
        runs = Accounting(slurm).runs([job], within_s=20).runs
        return sorted((r for r in runs if r.job_id == job), key=lambda r: r.start_s)

    # slurmctld tells slurmdbd a little later than us.
    place.until("slurmdbd to know both runs", lambda: len(told()) == 2 and told()[1].end_s, 60)
    first, second = told()
    assert first.gpus == second.gpus == 4
    assert first.end_s <= second.start_s
    by_slurm = first.end_s - first.start_s + second.end_s - second.start_s
    assert place.attained_gpu_s(str(job)) == pytest.approx(4 * by_slurm, abs=8)

    def ran_s() -> list[float]:
        return [float(run_s) for run_s in PastReader(slurm, days=1).read().ran_s]

    place.until("the past to hold both jobs", lambda: len(ran_s()) >= 2, 60)
    assert max(ran_s()) == pytest.approx(by_slurm, abs=2)


def the_printed_sacct_command_makes_a_history(
    place: Schedd, box: Sandbox, big: str, small: str
) -> None:
    """The line as an admin types it; the dump is read, and both jobs are in it as they ran."""
    since = (datetime.now(UTC) - timedelta(days=1)).strftime("%Y-%m-%d")
    line = place.ask("dlsim", "history", "--sacct-command", "--since", since).stdout
    assert line.count("\n") == 1
    dump, made = place.home / "dump.txt", place.home / "history.txt"
    with dump.open("wb") as file:
        done = subprocess.run(
            ["/bin/bash", "-c", line], stdout=file, stderr=subprocess.PIPE, env=box.env, check=False
        )
    assert (done.returncode, done.stderr) == (0, b"")
    place.ask("dlsim", "history", "--from-sacct", str(dump), str(made))

    trace = read_trace(made)
    rows = {job: row for row, job in enumerate(trace.job_id)}
    runs = Accounting(Slurm(slurm_conf=Path(box.env["SLURM_CONF"]))).runs([int(big)], within_s=20)
    ran_s = sum(run.end_s - run.start_s for run in runs.runs)
    assert len(runs.runs) == 2
    assert trace.duration_s[rows[big]] == pytest.approx(ran_s, abs=1)
    assert (trace.gpus[rows[big]], trace.gpus[rows[small]]) == (4, 1)
    assert trace.submit_s[rows[big]] < trace.submit_s[rows[small]]

    asked = ("--from-sacct", str(dump), "--cluster", "2x2", "--json", "-")
    told = json.loads(place.ask("dlsim", "whatif", *asked).stdout)
    assert told["jobs"] == told["jobs_counted"] == len(trace) >= 2
    assert {row["policy"]: row["unfinished"] for row in told["policies"]} == {
        "fifo_skip": 0,
        "discrete_las": 0,
    }


def test_without_the_level_it_does_nothing_and_says_so(place: Schedd, box: Sandbox) -> None:
    """It tries nothing, believes nothing was done, names the command; with the level it begins.

    Taken away again, it stops by itself.
    """
    level(box, "None")
    for running in [sleeper(box, None, gpus=2) for _ in range(2)]:
        place.until_state(running, "RUNNING")
    # Who waits is told its place.
    job = sleeper(box, USER)
    before = priority(place, job)
    place.start()
    place.until("a cycle that could act", lambda: status(place)["cycles"] > 3)

    doing = status(place)["doing"]
    assert doing.startswith(f"only looking: {LACKS}has AdminLevel None")
    row("the account lacks the right").check(doing.removeprefix("only looking: "))
    assert status(place)["live"]
    assert status(place)["actions"] == {"done": 0, "failed": 0}
    assert place.audit(action="set_site_factor") == []
    assert priority(place, job) == before
    rights = doctor(place)
    assert rights["level"] == "error"
    assert "it may not touch other users' jobs" in rights["found"]
    assert rights["advice"] == "sacctmgr modify user games set adminlevel=Operator"
    log = (place.home / "schedd.log").read_text("utf-8")
    assert log.count("only looking") == 1
    assert "sacctmgr modify user games set adminlevel=Operator" in log

    level(box, "Operator")
    place.until("it to act", lambda: status(place)["doing"] == "acting")
    place.until("the order to be written", lambda: priority(place, job) != before)
    level(box, "None")
    place.until("it to stop", lambda: LACKS in status(place)["doing"])


def as_user(place: Schedd, user: str, *argv: str) -> subprocess.CompletedProcess[str]:
    """One of our commands as an ordinary user."""
    return subprocess.run(
        [*CONFINED, "--user", user, "--", str(BIN / argv[0]), *argv[1:]],
        env={**place.env, "SLURM_DL_SOCKET": str(place.home / "run" / "dlschedd.sock")},
        capture_output=True,
        text=True,
        timeout=60 * PATIENCE,
        check=False,
    )


def shown(place: Schedd, user: str) -> set[str]:
    """Job ids that dlqueue shows to *user*."""
    done = as_user(place, user, "dlqueue", "--json")
    assert done.returncode == 0, done.stderr
    return {job["job"] for job in json.loads(done.stdout)["jobs"]}


def test_private_data_is_kept_and_followed(place: Schedd, box: Sandbox) -> None:
    """A user sees what squeue shows them and no more; it follows a reconfigure by itself.

    Whoever may not see the queue does not take it for an empty one.
    """
    level(box, "Operator")
    mine, theirs = sleeper(box, USER), sleeper(box, None)
    place.start()
    place.until("both jobs to be seen", lambda: shown(place, USER) == {mine, theirs})

    private_data(box, "jobs")
    place.until("the other's to be hidden", lambda: shown(place, USER) == {mine})
    by_squeue = box.run(["squeue", "-ah", "-o", "%i"], user=USER).stdout.split()
    assert set(by_squeue) == {mine}
    refused = as_user(place, USER, "dlqueue", "why", theirs)
    no_such = as_user(place, USER, "dlqueue", "why", "999999")
    assert refused.returncode == no_such.returncode == 1
    # The seconds until the next look may differ.
    hidden, unknown = (re.sub(r" in \d+ s\n$", "", x.stderr) for x in (refused, no_such))
    assert hidden.replace(theirs, "N") == unknown.replace("999999", "N")
    story = as_user(place, USER, "dlqueue", "why", mine).stdout
    assert theirs not in story
    assert {mine, theirs} <= shown(place, DAEMON)

    level(box, "None")
    place.until("it to notice", lambda: status(place)["failures"] > 0)
    message = status(place)["trouble"]["message"]
    assert LACKS in message
    row("Slurm hides the queue from it").check(message)
    seen_before = json.loads(place.ask("dlqueue", "--json").stdout)["jobs"]
    assert {job["job"] for job in seen_before} == {mine, theirs}

    level(box, "Operator")
    private_data(box, "none")
    place.until("all to be well again", lambda: shown(place, USER) == {mine, theirs})
    assert status(place)["failures"] == 0
