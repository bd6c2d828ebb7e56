"""A whole dlschedd process over a cluster in memory: everything but Slurm is real."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from patience import PATIENCE

DRIVER = """
import os, sys, time
from dataclasses import dataclass, replace

import slurm_dl.daemon.assembly as assembly
from slurm_dl.cli.dlschedd.command import main

sys.path.append(TESTS)
from fake_cluster import FakeCluster
from slurm_dl.slurm.releases import parse_release
from slurm_dl.ledger.sqlite.store import SqliteStore
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.errors import ClusterError
from slurm_dl.model.snapshot import JobText
from pathlib import Path

HOSTILE = "net \\x1b[2J[red]x[/]\\nroot"


class Cluster(FakeCluster):
    watch_reservations = False
    release = parse_release(os.environ.get("FAKE_SLURM_RELEASE", "24.11.5"))

    def __init__(self):
        super().__init__(nodes=2, gpus=4)
        self._began = time.time()
        for i in range(6):
            self.submit(4, work_s=1e6, uid=1000 + i % 2)
        self.advance(7200)

    def observe(self):
        if Path(sys.argv[0] + ".down").exists():
            raise ClusterError("squeue: no answer")
        self.advance(max(0, int(7200 + time.time() - self._began + 1e6 - self.now_s)))
        seen = super().observe()
        texts = {
            j.job_id: JobText(
                label=str(j.job_id), name=HOSTILE, user="user%d" % j.uid,
                reason="Resources", nodes=",".join("node-%04d" % n for n in j.nodes),
            )
            for j in self.jobs.values()
        }
        return replace(seen, texts=texts)

    def refresh_nodes(self):
        pass


CLUSTER = Cluster()


def assemble(config, *, generation=None):
    state = config.paths.state_dir
    return assembly.Components(
        cluster=CLUSTER,
        ledger=Ledger(SqliteStore(state / "ledger.sqlite", generation=generation)),
        policy=config.policy.make(),
        settings=assembly.settings_of(config),
    )


assembly.assemble = assemble
sys.argv[0] = NAME
main()
"""

YAML = """\
cluster: {{slurm_conf: {directory}/slurm.conf}}
manage: {{partitions: [gpu]}}
daemon: {{poll_s: {poll_s}, fast_poll_s: 0.2, shadow: {shadow}, log_format: json}}
policy: {{parameters: {{thresholds_gpu_s: [1.0e8, 1.0e9]}}}}
paths:
  state_dir: {directory}/state
  run_dir: {directory}/run
  audit_log: {directory}/audit.jsonl
"""

Eventually = Callable[..., object]


@dataclass
class Schedd:
    """One dlschedd in one directory, and the commands that talk to it."""

    directory: Path
    eventually: Eventually
    process: subprocess.Popen[bytes] | None = None
    options: tuple[str, ...] = ()
    starts: int = field(default=0)

    def __post_init__(self) -> None:
        self.configure()
        (self.directory / "slurm.conf").write_text("SlurmUser=root\n", "utf-8")

    @property
    def socket(self) -> Path:
        """Where it listens."""
        return self.directory / "run" / "dlschedd.sock"

    @property
    def audit(self) -> Path:
        """Its audit log."""
        return self.directory / "audit.jsonl"

    @property
    def log(self) -> str:
        """Everything all its processes logged so far."""
        files = sorted(self.directory.glob("log.*"))
        return "".join(f.read_text("utf-8", "replace") for f in files)

    def configure(self, *, poll_s: object = 0.5, shadow: str = "true", more: str = "") -> None:
        """Write its configuration file."""
        text = YAML.format(directory=self.directory, poll_s=poll_s, shadow=shadow)
        path = self.directory / "dl.yaml"
        path.write_text(text + more, "utf-8")
        path.chmod(0o640)

    def argv(self, *options: str) -> list[str]:
        """The command that runs it."""
        driver = DRIVER.replace("NAME", repr(str(self.directory / "dlschedd")))
        driver = driver.replace("TESTS", repr(str(Path(__file__).parents[1])))
        config = str(self.directory / "dl.yaml")
        return [sys.executable, "-c", driver, "--config", config, *options]

    def slurm_is_down(self, *, down: bool) -> None:
        """Whether its cluster answers."""
        flag = self.directory / "dlschedd.down"
        if down:
            flag.touch()
        else:
            flag.unlink(missing_ok=True)

    def start(self, *options: str, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start it and wait until it has looked once or ended."""
        self.starts += 1
        with (self.directory / f"log.{self.starts}").open("wb") as log:
            process = subprocess.Popen(
                self.argv(*options), stdout=log, stderr=log, env={**os.environ, **(env or {})}
            )
        self.process = process
        self.eventually(
            lambda: process.poll() is not None or self.ask("queue").returncode == 0,
            within_s=30,
            every_s=0.05,
            what="dlschedd to answer",
        )
        return process

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """End it and return its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        status = self.process.wait(30 * PATIENCE)
        self.process = None
        return status

    def ask(self, command: str, *args: str) -> subprocess.CompletedProcess[str]:
        """Run ``dlqueue`` or ``dlctl COMMAND`` on it."""
        socket = ["--socket", str(self.socket)]
        if command == "queue":
            return run("queue", *socket, *args)
        return run("ctl", command, *socket, *args)


def run(
    app: str, *args: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """One of the commands, as a user would run it, its output piped."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_DL_")}
    return subprocess.run(
        [sys.executable, "-c", f"from slurm_dl.cli.dl{app}.command import main; main()", *args],
        capture_output=True,
        text=True,
        timeout=60 * PATIENCE,
        check=False,
        env={**clean, **(env or {})},
        stdin=subprocess.DEVNULL,
    )


@pytest.fixture(scope="session")
def command() -> Callable[..., subprocess.CompletedProcess[str]]:
    """``command("ctl", "status")``: run a command as a user would."""
    return run


@pytest.fixture
def schedd(short_directory: Path, eventually: Eventually) -> Iterator[Schedd]:
    """A dlschedd that is not started yet; it ends with the test."""
    with _ending(Schedd(short_directory, eventually)) as made:
        yield made


@pytest.fixture(scope="module")
def reading(eventually: Eventually, module_directory: Path) -> Iterator[Schedd]:
    """A dlschedd in shadow mode that a module's tests only read from."""
    with _ending(Schedd(module_directory, eventually)) as made:
        made.start()
        yield made


@contextmanager
def _ending(made: Schedd) -> Iterator[Schedd]:
    try:
        yield made
    finally:
        if made.process is not None:
            made.stop(signal.SIGKILL)
