"""A real dlschedd process on a sandbox, for tests of the whole."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from patience import PATIENCE, eventually

from slurm_dl.client_config import SOCKET_NAME
from slurm_dl.config import load
from slurm_dl.config.derived_files import client_config_of
from slurm_dl.daemon.control.client import Client, DaemonError
from slurm_dl.model.booking import Entry
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.promise import Promise, promises_in
from slurm_dl.sandbox import Sandbox

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
TOY = [sys.executable, str(ROOT / "examples" / "train_toy.py")]

FAST = {
    "daemon": {"poll_s": 1, "fast_poll_s": 0.5, "nodes_every_s": 10, "shadow": False},
    "policy": {"order": "discrete_las", "parameters": {"thresholds_gpu_s": [60, 5000]}},
    "preemption": {
        "min_quantum_s": 3,
        "cooldown_s": 3,
        "max_grace_s": 150,
        "limit_reserve_s": 0,
        "start_margin_s": 20,
        "handover_timeout_s": 180,
        # Many jobs of these tests have neither a contract nor a time limit.
        "commitment": "ignored",
    },
    "breakers": {"cluster_share": 0, "failed_share": 0},
    "writes": {"rate_per_s": 100, "burst": 200},
}
"""A daemon in a hurry: seconds where a site has minutes."""


@dataclass(kw_only=True)
class Schedd:
    """One place in which daemons live one after the other.

    Attributes:
        box: The cluster they look after.
        home: Configuration, ledger, socket, logs.
        process: The one that is alive, if any.
    """

    box: Sandbox
    home: Path
    process: subprocess.Popen[bytes] | None = None
    command: Sequence[str] = field(default_factory=lambda: [str(BIN / "dlschedd")])

    @property
    def config(self) -> Path:
        """The configuration file."""
        return self.home / "slurm_dl.yaml"

    @property
    def socket(self) -> Path:
        """Where the daemon answers."""
        return self.home / "run" / SOCKET_NAME

    @property
    def env(self) -> dict[str, str]:
        """Environment for commands that ask the daemon or submit to its cluster.

        It names the socket as well: a command that has to find it in the configuration first spends
        most of its time on that.
        """
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH"))}
        own = {
            "SLURM_DL_CONFIG": str(self.config),
            "SLURM_DL_SOCKET": str(self.socket),
            "SLURM_DL_CLIENT": str(self.home / "client.yaml"),
        }
        return {**clean, **self.box.env, **own}

    def configure(self, **sections: dict[str, Any]) -> None:
        """Write the configuration: FAST, with these sections' keys replaced."""
        tree: dict[str, Any] = {
            "cluster": {"slurm_conf": self.box.env["SLURM_CONF"]},
            "manage": {"partitions": ["gpu"]},
            "paths": {
                "state_dir": str(self.home / "state"),
                "run_dir": str(self.home / "run"),
                "audit_log": str(self.home / "state" / "audit.jsonl"),
                "template_dir": str(self.home / "templates"),
            },
        }
        for name in (*FAST, *(n for n in sections if n not in FAST)):
            tree[name] = {**tree.get(name, {}), **FAST.get(name, {}), **sections.get(name, {})}
        (self.home / "state").mkdir(exist_ok=True)
        (self.home / "run").mkdir(exist_ok=True)
        self.config.write_text(yaml.safe_dump(tree), encoding="utf-8")
        self.config.chmod(0o600)
        with suppress(ConfigError):  # A wrong configuration is what some tests are of.
            client = client_config_of(load(self.config)).text()
            (self.home / "client.yaml").write_text(client, encoding="utf-8")

    def start(self, *options: str, mode: str = "--live", **env: str) -> None:
        """Start a daemon and wait until it answers."""
        with (self.home / "schedd.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*self.command, "--config", str(self.config), mode, "--allow-root", *options],
                env={**self.env, **env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        eventually(
            lambda: self.process is None or self.answers() or self.died(), 120.0, what="dlschedd"
        )
        assert self.answers(), (self.home / "schedd.log").read_text(encoding="utf-8")

    def cycles(self) -> int:
        """How often the daemon has looked at the cluster."""
        # Asked here, as a command for each look would keep a core from what starts.
        return int(str(Client(self.socket).ask("status")["cycles"]))

    def answers(self) -> bool:
        """The daemon has looked at least once."""
        try:
            return self.cycles() > 0
        except DaemonError:
            return False

    def died(self) -> bool:
        """The process is gone."""
        return self.process is not None and self.process.poll() is not None

    def stop(self) -> None:
        """End the daemon as an admin would."""
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(60 * PATIENCE)
            self.process = None

    def kill(self) -> None:
        """End the daemon without giving it a chance."""
        self.process.kill()
        self.process.wait(60 * PATIENCE)
        self.process = None

    def ask(self, *argv: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run one of our commands."""
        return subprocess.run(
            [str(BIN / argv[0]), *argv[1:]],
            env=self.env,
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=60 * PATIENCE,
            check=check,
        )

    def submit(self, gpus: int, *command: str, options: Sequence[str] = ()) -> str:
        """Submit with dlsubmit; the job id."""
        argv = ["dlsubmit", "--parsable", "--gpus", str(gpus), *options, "--", *command]
        return self.ask(*argv).stdout.strip()

    def toy(self, gpus: int, steps: int, *more: str, options: Sequence[str] = ()) -> str:
        """Submit a toy training of *steps* steps of 0.25 s; the job id."""
        return self.submit(
            gpus, *TOY, "--steps", str(steps), "--step-s", "0.25", *more, options=options
        )

    def audit(self, **wanted: object) -> list[dict[str, Any]]:
        """Audit entries whose fields are as *wanted*, oldest first."""
        path = self.home / "state" / "audit.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        entries = [json.loads(line) for line in lines]
        return [e for e in entries if all(e.get(k) == v for k, v in wanted.items())]

    def book(self) -> list[Entry]:
        """The entries that policies have in the ledger on disk."""
        with sqlite3.connect(f"file:{self.home}/state/ledger.sqlite?mode=rw", uri=True) as db:
            rows = db.execute("SELECT kind, key, body FROM book").fetchall()
        db.close()
        return [Entry(kind=kind, key=key, body=body) for kind, key, body in rows]

    def promises(self) -> dict[str, Promise]:
        """The answers to the deadlines of live jobs, by job."""
        return {str(job): promise for job, promise in promises_in(self.book()).items()}

    def attained_gpu_s(self, job: str) -> float:
        """What the ledger on disk says the job has had."""
        with sqlite3.connect(f"file:{self.home}/state/ledger.sqlite?mode=rw", uri=True) as db:
            row = db.execute("SELECT attained_gpu_s FROM job WHERE job_id = ?", (job,)).fetchone()
        db.close()
        return float(row[0]) if row else 0.0

    def open_handovers(self) -> int:
        """Hand-overs the ledger on disk holds open."""
        with sqlite3.connect(f"file:{self.home}/state/ledger.sqlite?mode=rw", uri=True) as db:
            row = db.execute("SELECT count(*) FROM handover WHERE closed = ''").fetchone()
        db.close()
        return int(row[0])

    def job(self, job: str, *fields: str) -> list[str]:
        """Fields of ``scontrol show job`` that hold no blank."""
        text = self.box.run(["scontrol", "-o", "show", "job", job]).stdout
        return [text.partition(f" {f}=")[2].partition(" ")[0] for f in fields]

    def state(self, job: str) -> str:
        """Slurm's state of the job."""
        return self.job(job, "JobState")[0]

    def until(self, what: str, predicate: Callable[[], object], within_s: float = 60.0) -> None:
        """Wait for *predicate*; on the deadline say *what* was waited for, and the daemon's log."""
        try:
            eventually(predicate, within_s, what=what)
        except Exception as err:
            log = (self.home / "schedd.log").read_text(encoding="utf-8", errors="replace")
            audit = "\n".join(str(e) for e in self.audit()[-25:])
            err.add_note(f"daemon's log:\n{log[-4000:]}\naudit:\n{audit}")
            raise

    def until_state(self, job: str, *states: str, within_s: float = 60.0) -> None:
        """Wait until Slurm says the job is in one of *states*."""
        self.until(f"job {job} to be {states}", lambda: self.state(job) in states, within_s)

    def reservations(self) -> list[str]:
        """Names of our reservations that keep nodes; Slurm lists lapsed ones for a while."""
        text = self.box.run(["scontrol", "-o", "show", "reservations"]).stdout
        names = [
            line.partition(" ")[0].removeprefix("ReservationName=")
            for line in text.splitlines()
            if "State=ACTIVE" in line
        ]
        return [n for n in names if n.startswith("slurm_dl_")]


def toy_steps(home: Path, job: str) -> list[int]:
    """The steps a toy training logged, in the order in which it logged them."""
    lines = (home / "slurm_dl_runs" / job / "loss.jsonl").read_text(encoding="utf-8").splitlines()
    return [int(json.loads(line)["step"]) for line in lines]


@contextmanager
def schedd_in(box: Sandbox, home: Path) -> Iterator[Schedd]:
    """A place for daemons; whatever is alive at the end is ended, the jobs too."""
    daemon = Schedd(box=box, home=home)
    daemon.configure()
    try:
        yield daemon
    finally:
        if daemon.process is not None and daemon.process.poll() is None:
            daemon.process.kill()
            daemon.process.wait(60 * PATIENCE)
        # Jobs still write into *home*, which goes away next.
        eventually(lambda: _no_jobs(box), 60.0, what="the jobs to end")


def running_schedd(**sections: dict[str, Any]) -> object:
    """A fixture: a daemon on the shared cluster, begun under `FAST` with these sections' keys."""

    @pytest.fixture
    def place(sandbox: Sandbox, short_directory: Path) -> Iterator[Schedd]:
        """A running daemon."""
        with schedd_in(sandbox, short_directory) as daemon:
            daemon.configure(**sections)
            daemon.start()
            yield daemon

    return place


def _no_jobs(box: Sandbox) -> bool:
    if not box.status().is_up:
        Sandbox.up(box.directory)
    jobs = box.run(["squeue", "-ah", "-o", "%A"]).stdout.split()
    if jobs:
        box.run(["scancel", "--quiet", "--signal=KILL", *jobs], check=False)
        box.run(["scancel", "--quiet", *jobs], check=False)
    return not jobs
