"""dlschedd as a process beside a real Slurm: what it costs, what it does, what it survives."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE

from slurm_dl.sandbox import Sandbox

pytestmark = pytest.mark.slurm

Eventually = Callable[..., object]

YAML = """\
cluster: {{slurm_conf: {slurm_conf}}}
manage: {{partitions: [gpu]}}
daemon: {{poll_s: 1, fast_poll_s: 0.5, nodes_every_s: {nodes_every_s}, shadow: false}}
policy: {{parameters: {{thresholds_gpu_s: {thresholds}}}}}
paths:
  state_dir: {directory}/state
  run_dir: {directory}/run
  audit_log: {directory}/audit.jsonl
"""

FAR = "[1.0e8, 1.0e9]"


class Schedd:
    """One dlschedd on one sandbox."""

    def __init__(self, box: Sandbox, directory: Path) -> None:
        self.box = box
        self.directory = directory
        self.socket = directory / "run" / "dlschedd.sock"
        self.config = directory / "dl.yaml"
        self.process: subprocess.Popen[bytes] | None = None

    def configure(self, *, thresholds: str = FAR, nodes_every_s: float = 3600) -> None:
        """Write the configuration file."""
        text = YAML.format(
            slurm_conf=self.box.env["SLURM_CONF"],
            directory=self.directory,
            thresholds=thresholds,
            nodes_every_s=nodes_every_s,
        )
        self.config.write_text(text, "utf-8")
        self.config.chmod(0o640)

    @contextmanager
    def running(self, *, killed: bool = False) -> Iterator[Schedd]:
        """Run it; in the end it is killed, or ended by SIGTERM and must end well."""
        with (self.directory / "log").open("ab") as log:
            code = "from slurm_dl.cli.dlschedd.command import main; main()"
            self.process = subprocess.Popen(
                [sys.executable, "-c", code, "--config", str(self.config)], stdout=log, stderr=log
            )
        try:
            yield self
        finally:
            if self.process.poll() is None:
                self.process.send_signal(signal.SIGKILL if killed else signal.SIGTERM)
            status = self.process.wait(60 * PATIENCE)
        assert status == (-signal.SIGKILL if killed else 0), (self.directory / "log").read_text(
            "utf-8"
        )

    def ask(self, app: str, *args: str) -> subprocess.CompletedProcess[str]:
        """``dlctl`` or ``dlqueue`` on it."""
        env = {**os.environ, "SLURM_DL_SOCKET": str(self.socket)}
        return subprocess.run(
            [sys.executable, "-c", f"from slurm_dl.cli.dl{app}.command import main; main()", *args],
            capture_output=True,
            text=True,
            timeout=60 * PATIENCE,
            check=False,
            env=env,
            stdin=subprocess.DEVNULL,
        )

    def status(self) -> dict[str, Any]:
        """Its status; empty while it does not answer."""
        answer = self.ask("ctl", "status", "--json")
        return json.loads(answer.stdout) if answer.returncode == 0 else {}

    def cycles(self) -> int:
        """Cycles it has made."""
        return int(self.status().get("cycles", 0))

    def queue(self) -> dict[str, dict[str, Any]]:
        """The jobs it shows, by label."""
        answer = self.ask("queue", "--json")
        return {j["job"]: j for j in json.loads(answer.stdout)["jobs"]} if answer.stdout else {}


@pytest.fixture
def schedd(sandbox: Sandbox, short_directory: Path) -> Schedd:
    """A live dlschedd that is configured and not started."""
    made = Schedd(sandbox, short_directory)
    made.configure()
    return made


def submit(box: Sandbox, *options: str, script: str = "#!/bin/sh\nsleep 600\n") -> str:
    """The job id of a batch job with some GPUs."""
    argv = ["sbatch", "--parsable", "--output=/dev/null", "-N1", *options]
    return box.run(argv, stdin=script).stdout.strip()


def fill(box: Sandbox, eventually: Eventually, *options: str) -> None:
    """Four jobs run, one on each node; those that come after them wait and are told a place."""
    for _ in range(4):
        submit(box, "--gres=gpu:4", *options)
    eventually(
        lambda: box.run(["squeue", "-h", "-o", "%T"]).stdout.split() == ["RUNNING"] * 4,
        within_s=60,
    )


def rpcs(box: Sandbox) -> dict[str, int]:
    """Counts of slurmctld's RPCs by message type."""
    text = box.run(["sdiag"]).stdout
    part = text.partition("Remote Procedure Call statistics by message type")[2]
    part = part.partition("Remote Procedure Call statistics by user")[0]
    return {
        m[1]: int(m[2]) for m in re.finditer(r"^\s+(\w+)\s*\(.*count:(\d+)", part, re.MULTILINE)
    }


READS_OF_OTHERS = {
    "REQUEST_PING",
    "REQUEST_STATS_INFO",
    "MESSAGE_NODE_REGISTRATION_STATUS",
    "MESSAGE_EPILOG_COMPLETE",
    "REQUEST_COMPLETE_BATCH_SCRIPT",
    "REQUEST_STEP_COMPLETE",
}


def test_an_idle_poll_costs_at_most_three_calls_and_writes_nothing(
    schedd: Schedd, sandbox: Sandbox, eventually: Eventually
) -> None:
    """With nothing moving, slurmctld is asked no more than three times a poll and never told."""
    fill(sandbox, eventually)
    for _ in range(6):
        submit(sandbox, "--gres=gpu:4")
    with schedd.running():
        eventually(lambda: schedd.status().get("actions", {}).get("done", 0) >= 6, within_s=60)
        first, before = schedd.cycles(), rpcs(sandbox)
        eventually(lambda: schedd.cycles() >= first + 10, within_s=60)
        after, last = rpcs(sandbox), schedd.cycles()

    spent = {k: n - before.get(k, 0) for k, n in after.items() if n > before.get(k, 0)}
    ours = {k: n for k, n in spent.items() if k not in READS_OF_OTHERS}
    assert sum(ours.values()) <= 3 * (last - first + 1)
    assert sum(ours.values()) >= last - first
    assert not [k for k in ours if "UPDATE" in k or "REQUEUE" in k or "KILL" in k]


def test_the_order_reaches_slurm_and_the_user(
    schedd: Schedd, sandbox: Sandbox, eventually: Eventually
) -> None:
    """SiteFactor stands in Slurm, dlqueue shows rank and tier, names are harmless."""
    fill(sandbox, eventually, "--job-name=a [red] b|c")
    waiting = submit(sandbox, "--gres=gpu:4", "--array=1-9%2", "--job-name=\x1b[2Jx")
    with schedd.running():
        eventually(lambda: schedd.status().get("actions", {}).get("done", 0) >= 1, within_s=60)
        factors = sandbox.run(["sprio", "-h", "-o", "%i %S"]).stdout.split()
        assert int(factors[1]) > 0
        shown = schedd.ask("queue")
        assert f"{waiting}_[1-9]" in shown.stdout
        assert "a [red] b|c" in shown.stdout
        assert "\x1b" not in shown.stdout
        why = schedd.ask("queue", "why", f"{waiting}_7")
        assert "It has rank 5 of 5, in tier" in why.stdout
        assert "Z: priority: " in why.stdout


def test_a_dead_slurmctld_is_waited_for(
    schedd: Schedd, sandbox: Sandbox, eventually: Eventually
) -> None:
    """Killed and started again under the daemon: no crash, two looks, then work goes on."""
    job = submit(sandbox, "--gres=gpu:4")
    with schedd.running():
        eventually(lambda: schedd.status().get("doing") == "acting", within_s=60)
        assert "as of" not in schedd.ask("queue").stdout
        sandbox.kill_daemon("slurmctld")
        eventually(lambda: schedd.status().get("failures", 0) >= 1, within_s=60)
        assert "contact" in schedd.status()["trouble"]["message"].lower()
        eventually(lambda: schedd.status()["stale"], within_s=60)
        for words in (["queue"], ["queue", "why", job], ["ctl", "status"]):
            first = schedd.ask(*words).stdout.splitlines()[0]
            assert re.search(r"as of \d+ s ago.* unable to contact", first.lower()), first
        for words in (["queue", "--json"], ["queue", "why", job, "--json"]):
            told = json.loads(schedd.ask(*words).stdout)
            assert (told["stale"], told["age_s"] > 2) == (True, True)
            assert "contact" in told["last_error"].lower()
        sandbox.start_daemon("slurmctld")
        eventually(lambda: schedd.status().get("doing") == "acting", within_s=90)
        fresh = submit(sandbox, "--gres=gpu:4", "--begin=now+1hour")
        eventually(lambda: fresh in schedd.queue(), within_s=60)
        assert (schedd.status()["bugs"], schedd.status()["stale"]) == (0, False)


def test_reconfigure_and_a_changed_partition_do_no_harm(
    schedd: Schedd, sandbox: Sandbox, eventually: Eventually
) -> None:
    """A reconfigure and a drained node between two polls: it reads on."""
    schedd.configure(nodes_every_s=1)
    submit(sandbox, "--gres=gpu:4")
    with schedd.running():
        eventually(lambda: schedd.cycles() >= 2, within_s=60)
        sandbox.run(["scontrol", "reconfigure"])
        sandbox.run(["scontrol", "update", "NodeName=n4", "State=DRAIN", "Reason=test"])
        eventually(lambda: schedd.status()["gpus"]["up"] == 12.0, within_s=60)
        sandbox.run(["scontrol", "update", "NodeName=n4", "State=RESUME"])
        eventually(lambda: schedd.status()["gpus"]["up"] == 16.0, within_s=60)
        assert schedd.status()["bugs"] == 0


def test_release_all_gives_the_queue_back(
    schedd: Schedd, sandbox: Sandbox, eventually: Eventually
) -> None:
    """After the daemon has gone, nothing of ours is left in Slurm; each undoing is named.

    Slurm does not tell the SiteFactors of jobs that run: they are reset as well.
    """
    fill(sandbox, eventually)
    for _ in range(2):
        submit(sandbox, "--gres=gpu:4")
    with schedd.running():
        eventually(lambda: schedd.status().get("actions", {}).get("done", 0) >= 2, within_s=60)
        refused = schedd.ask("ctl", "release-all", "--config", str(schedd.config), "--yes")
        assert refused.returncode == 1

    done = schedd.ask("ctl", "release-all", "--config", str(schedd.config), "--yes")

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("SiteFactor=0") == 6
    factors = sandbox.run(["sprio", "-h", "-o", "%S"]).stdout.split()
    assert set(factors) == {"0"}


def test_service_is_counted_and_survives_a_kill(
    schedd: Schedd, sandbox: Sandbox, eventually: Eventually
) -> None:
    """A daemon killed without warning knows afterwards what the job had before."""
    job = submit(sandbox, "--gres=gpu:4")

    def attained() -> float:
        return float(schedd.queue().get(job, {}).get("attained_gpu_h", 0.0))

    with schedd.running(killed=True):
        eventually(lambda: attained() > 0.002, within_s=60)
        before = attained()
    with schedd.running():
        eventually(lambda: attained() >= before, within_s=60)
        row = schedd.queue()[job]
        assert row["attained_gpu_h"] == pytest.approx(4 * row["time_s"] / 3600, abs=0.01)


def test_pause_keeps_hands_off(schedd: Schedd, sandbox: Sandbox, eventually: Eventually) -> None:
    """While paused no job's SiteFactor changes; the new one gets its own after the resume."""
    submit(sandbox, "--gres=gpu:4")
    with schedd.running():
        eventually(lambda: schedd.status().get("doing") == "acting", within_s=60)
        assert schedd.ask("ctl", "pause", "--reason", "test").returncode == 0
        before = schedd.status()["actions"]["done"]
        fresh = [submit(sandbox, "--gres=gpu:4") for _ in range(5)][-1]
        eventually(lambda: fresh in schedd.queue(), within_s=60)
        seen = schedd.cycles()
        eventually(lambda: schedd.cycles() >= seen + 3, within_s=60)
        assert schedd.status()["actions"]["done"] == before
        assert schedd.ask("ctl", "resume").returncode == 0
        eventually(lambda: schedd.status()["actions"]["done"] > before, within_s=60)
