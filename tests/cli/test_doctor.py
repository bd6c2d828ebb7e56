"""dlctl doctor as admins run it: with and without a daemon, and on real Slurm daemons."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slurm_dl.sandbox import Sandbox, SandboxSpec

Schedd = Any
"""The class of that name in conftest.py, which cannot be imported."""

Command = Callable[..., "subprocess.CompletedProcess[str]"]
Told = dict[str, dict[str, Any]]


def checks(done: subprocess.CompletedProcess[str]) -> Told:
    """What each check said, by its name."""
    return {check["check"]: check for check in json.loads(done.stdout)["checks"]}


def configure(directory: Path, box: Sandbox) -> Path:
    """A configuration for a sandbox's cluster."""
    path = directory / "dl.yaml"
    path.write_text(
        f"cluster: {{slurm_conf: {box.env['SLURM_CONF']}}}\nmanage: {{partitions: [gpu]}}\n"
        f"paths: {{state_dir: {directory}/state, run_dir: {directory}/run,"
        f" audit_log: {directory}/state/audit.jsonl}}\n",
        "utf-8",
    )
    path.chmod(0o640)
    (directory / "state").mkdir(mode=0o700)
    return path


def test_a_running_daemon_is_asked(reading: Schedd, command: Command) -> None:
    """Also where Slurm itself cannot be reached: then with status 1, and everything is told."""
    done = command("ctl", "doctor", "--config", str(reading.directory / "dl.yaml"), "--json")

    told = checks(done)
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["ok"] is False
    assert told["configuration"]["level"] == "ok"
    assert told["daemon"]["found"].startswith("shadow mode")
    assert told["cycles"]["level"] == "ok"
    assert told["slurm"]["level"] == "error"
    assert told["clock"] == {
        "check": "clock",
        "level": "skipped",
        "found": "Slurm was not reached",
        "advice": None,
    }


def test_the_table_has_a_line_for_each_check(reading: Schedd, command: Command) -> None:
    """With a heading, and a count at the end."""
    arguments = ("doctor", "--config", str(reading.directory / "dl.yaml"))
    done = command("ctl", *arguments)

    lines = done.stdout.splitlines()
    names = list(checks(command("ctl", *arguments, "--json")))
    assert lines[0].split() == ["CHECK", "RESULT", "FOUND", "WHAT", "TO", "DO"]
    assert all(line.startswith(name) for line, name in zip(lines[1:-1], names, strict=True))
    assert " ok, " in lines[-1]
    assert "skipped" in lines[-1]


def test_a_wrong_configuration_is_2(command: Command, tmp_path: Path) -> None:
    """And its mistake the first thing told."""
    bad = tmp_path / "bad.yaml"
    bad.write_text("manage: {partitions: [gpu]}\ndaemon: {poll_s: -5}\n", "utf-8")

    done = command("ctl", "doctor", "--config", str(bad), "--json")

    assert done.returncode == 2
    assert f"{bad}:2: daemon.poll_s" in checks(done)["configuration"]["found"]


def test_an_unknown_account_is_2_and_one_line(command: Command) -> None:
    """Nothing is looked at."""
    done = command("ctl", "doctor", "--account", "nobody-of-that-name")

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        "dlctl: --account: there is no account 'nobody-of-that-name' on this host"
    ]


@pytest.mark.parametrize(
    ("release", "warned"),
    [
        ("24.11.5", ""),
        ("21.08.8", "outside the supported range 22.05 to 26.05"),
        ("23.02.1", "a requeued job loses its GPUs"),
    ],
)
def test_the_daemon_warns_of_a_release(schedd: Schedd, release: str, warned: str) -> None:
    """Once, when it has seen the cluster for the first time."""
    schedd.start(env={"FAKE_SLURM_RELEASE": release})
    schedd.eventually(lambda: schedd.log.count('"event": "cycle"') > 0, within_s=30, what="a cycle")
    schedd.stop()

    warnings = [
        line for line in map(json.loads, schedd.log.splitlines()) if "this Slurm" in line["event"]
    ]
    assert len(warnings) == (1 if warned else 0)
    assert all(w["level"] == "warning" and warned in w["because"] for w in warnings)


@pytest.mark.slurm
def test_a_cluster_in_good_order(
    make_sandbox: Callable[[SandboxSpec], Sandbox], command: Command, short_directory: Path
) -> None:
    """A new sandbox is one: its time limit and its haste are told, and the daemon is not there."""
    box = make_sandbox(SandboxSpec())

    done = command("ctl", "doctor", "--config", str(configure(short_directory, box)), "--json")

    told = checks(done)
    assert done.returncode == 0, done.stdout
    assert [n for n, c in told.items() if c["level"] == "error"] == []
    warned = [n for n, c in told.items() if c["level"] == "warning"]
    assert warned == ["backfill window", "backfill passes", "kill wait", "client file", "daemon"]
    assert [n for n, c in told.items() if c["level"] == "skipped"] == ["cycles"]
    assert "tested" in told["release"]["found"]


BAD = (
    *("JobRequeue=0", "PriorityFlags=INCR_ONLY", "PrivateData=jobs", "MinJobAge=2"),
    *("PriorityWeightAge=20000000", "PreemptType=preempt/partition_prio", "PreemptMode=REQUEUE"),
    "SchedulerParameters=bf_max_job_test=2000,bf_window=2880",
)


@pytest.mark.slurm
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"cred_expire_s": 120, "slurm_conf_extra": BAD},
            {
                "job records": ("error", ""),
                "priority weights": ("error", ""),
                "priority flags": ("error", ""),
                # Root sees all.
                "private data": ("ok", "PrivateData=jobs"),
                "requeue": ("warning", ""),
                "requeue hold": ("warning", "waits 121 s"),
                "preemption": ("warning", ""),
                "backfill depth": ("warning", ""),
                "backfill window": ("warning", "2880 min ahead"),
            },
        ),
        (
            {"nodes_per_leaf": 0, "slurm_conf_extra": ("SelectTypeParameters=CR_CORE,CR_LLN",)},
            {
                "placement": ("warning", "all nodes count as one leaf switch"),
                "fragments": ("warning", "LLN in SelectTypeParameters (CR_LLN)"),
                "node weights": ("warning", "Weight 1, 7"),
                "profiles": ("warning", "of-nobody (1)"),
            },
        ),
        (
            # Slurmctld then does not print the weights at all: told, and not taken for nought.
            {"slurm_conf_extra": ("PriorityType=priority/basic",)},
            {
                "priority plugin": ("error", ""),
                "priority weights": ("skipped", "PriorityWeightAge"),
            },
        ),
    ],
    ids=["bad order", "spreads jobs", "no multifactor"],
)
def test_what_is_wrong_with_a_cluster(
    make_sandbox: Callable[[SandboxSpec], Sandbox],
    command: Command,
    short_directory: Path,
    changes: dict[str, Any],
    expected: dict[str, tuple[str, str]],
) -> None:
    """As slurmctld tells it; with a node that Slurm takes first, and a job of an unknown model."""
    box = make_sandbox(SandboxSpec(start_slurmd=False, **changes))
    path = configure(short_directory, box)
    with path.open("a", encoding="utf-8") as file:
        file.write("placement: {scheme: best_fit, steer: true}\n")
    comment = json.dumps({"slurm_dl": {"model": "of-nobody"}})
    for argv in (
        ["scontrol", "update", "NodeName=n2", "Weight=7"],
        ["sbatch", "--hold", f"--comment={comment}", "--wrap=true"],
    ):
        subprocess.run(argv, env={**os.environ, **box.env}, check=True, capture_output=True)

    done = command("ctl", "doctor", "--config", str(path), "--json")

    told = checks(done)
    assert done.returncode == any(level == "error" for level, _ in expected.values())
    assert {name: told[name]["level"] for name in expected} == {
        n: v[0] for n, v in expected.items()
    }
    assert [n for n, (_, words) in expected.items() if words not in told[n]["found"]] == []
