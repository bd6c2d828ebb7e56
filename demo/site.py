"""The demo's own place: one directory, a private Slurm in it, and dlschedd as a real process.

Whatever is started here is ended here, by process id; the directory goes only after a success.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from demo.workload import GPUS_PER_NODE, NODES, Training, Workload
from slurm_dl.client_config import SOCKET_NAME
from slurm_dl.daemon.control.client import Client, DaemonError
from slurm_dl.json_types import Json, JsonObject
from slurm_dl.model.errors import ClusterError, ConfigError
from slurm_dl.sandbox import LIVELY_SCHEDULER, Sandbox, SandboxNodes, SandboxSpec
from slurm_dl.sandbox.process_control import eventually

CRED_EXPIRE_S: Final = 5
"""Slurm's default is 120; a requeued job is held for this long + 1 s."""

PARTITION: Final = "gpu"
CHECKOUT: Final = Path(__file__).resolve().parents[1]
TRAINING: Final = CHECKOUT / "examples" / "train_toy.py"

# Backfill in whole seconds: by default it rounds to minutes, longer than most jobs here.
_SPEC: Final = SandboxSpec(
    groups=(SandboxNodes(nodes=NODES, gpus=GPUS_PER_NODE),),
    cred_expire_s=CRED_EXPIRE_S,
    kill_wait_s=2,
    scheduler_parameters=f"{LIVELY_SCHEDULER},bf_resolution=1",
    slurm_conf_extra=("MinJobAge=7200",),
)
_JOB_FIELDS: Final = ("JobID", "StateCompact", "SubmitTime", "StartTime", "EndTime", "RestartCnt")


class Site:
    """Directory and cluster.

    Attributes:
        directory: Everything the demo makes lies below it.
        box: The private Slurm, once it was started.
    """

    box: Sandbox

    def __init__(self) -> None:
        for name in ("dlsubmit", "dlschedd", "dlrun"):
            _tool(name)
        if not TRAINING.exists():
            msg = f"{TRAINING} is missing: run the demo from a whole checkout"
            raise ConfigError(msg)
        # /tmp: the path of a slurmd's socket may have 107 bytes, a checkout's may be too long.
        self.directory = Path(tempfile.mkdtemp(prefix=f"slurm_dl-demo-{os.getpid()}-", dir="/tmp"))
        self.directory.chmod(0o755)

    def start(self) -> None:
        """Bring the cluster up.

        Raises:
            ConfigError: Not root, or packages are missing.
            ClusterError: A daemon did not come up.
        """
        self.box = Sandbox.up(self.directory / "slurm", _SPEC)

    @property
    def environ(self) -> dict[str, str]:
        """Environment of a user's command: nothing is inherited but the time zone."""
        zone = {"TZ": os.environ["TZ"]} if "TZ" in os.environ else {}
        return {
            "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            # A template of root's own would change what is shown.
            "HOME": str(self.directory),
            "USER": "root",
            **zone,
            **self.box.env,
        }

    def runs(self, arm: str) -> Path:
        """Directory of an arm: logs of the jobs, and their run directories by job id."""
        path = self.directory / arm
        path.mkdir(exist_ok=True)
        return path

    def submit(self, job: Training, arm: str) -> int:
        """Submit *job* with dlsubmit, as a user would; its id.

        Raises:
            ClusterError: dlsubmit failed.
        """
        command = [
            *(_tool("dlsubmit"), "--parsable", f"--gpus={job.gpus}", f"--name={job.name}"),
            *(f"--time={job.limit_min}", "--signal=USR1@10", "--grace=20", "--run-dir=."),
            *("--", sys.executable, str(TRAINING), f"--steps={job.steps}"),
            *(f"--step-s={job.step_s:g}", "--checkpoint-every=25", f"--seed={job.seed}"),
        ]
        try:
            done = subprocess.run(
                command,
                cwd=self.runs(arm),
                env=self.environ,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
        except subprocess.TimeoutExpired:
            msg = f"dlsubmit of {job.name} did not end within 60 s"
            raise ClusterError(msg) from None
        if done.returncode != 0:
            msg = f"dlsubmit of {job.name} failed: {done.stderr.strip() or 'no message'}"
            raise ClusterError(msg)
        return int(done.stdout)

    def jobs(self) -> dict[int, SlurmJob]:
        """Every job by Slurm's own records, finished ones too."""
        fields = ",".join(f"{name}:|" for name in (*_JOB_FIELDS, "NodeList"))
        text = self.box.run(
            ["squeue", "-a", "-h", "-t", "all", "-O", fields], env={"SLURM_TIME_FORMAT": "%s"}
        ).stdout
        return {job.job_id: job for job in map(SlurmJob, text.split())}

    def wait_idle(self) -> None:
        """Wait until no node holds anything."""

        def idle() -> bool:
            return all(node.state.startswith("IDLE") for node in self.box.status().nodes)

        eventually(idle, 90.0, 0.5, what="all nodes to be idle")

    def close(self, *, keep: bool) -> None:
        """End the cluster, and remove the directory unless it is to be kept."""
        slurm = self.directory / "slurm"
        try:
            if (slurm / "sandbox.json").exists():
                Sandbox.open(slurm).down(remove=not keep)
        finally:
            if not keep:
                shutil.rmtree(self.directory, ignore_errors=True)


class SlurmJob:
    """One job as squeue has it.

    Attributes:
        state: Compact state, such as ``PD``, ``R``, ``CD``.
        submit_s: Epoch seconds; a requeue overwrites it.
        start_s: Of the last run, epoch seconds; 0 if there is none.
        end_s: Of the last run, epoch seconds; 0 if there is none.
        nodes: Node list in Slurm's words.
    """

    __slots__ = ("end_s", "job_id", "nodes", "restarts", "start_s", "state", "submit_s")

    def __init__(self, line: str) -> None:
        job_id, self.state, submit, start, end, restarts, self.nodes, _ = line.split("|")
        self.job_id = int(job_id)
        self.restarts = int(restarts)
        self.submit_s, self.start_s, self.end_s = (
            float(word) if word.isdigit() else 0.0 for word in (submit, start, end)
        )


class Daemon:
    """dlschedd beside the site's Slurm.

    Attributes:
        directory: Its configuration, state, socket and log.
    """

    def __init__(self, site: Site, workload: Workload) -> None:
        self.directory = site.directory / "dlschedd"
        self.directory.mkdir()
        config = self.directory / "slurm_dl.yaml"
        config.write_text(configuration(self.directory, site.box.env["SLURM_CONF"], workload))
        config.chmod(0o600)
        self.client = Client(self.directory / SOCKET_NAME, timeout_s=10)
        self.log = self.directory / "dlschedd.log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [_tool("dlschedd"), "--config", str(config), "--live", "--allow-root"],
                cwd=self.directory,
                env=site.environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # A Ctrl-C at the terminal is the demo's to answer, in its own order.
                start_new_session=True,
            )
        try:
            eventually(self._acts, 30.0, 0.2, what="dlschedd to act")
        except BaseException:
            self.stop()
            raise

    @property
    def ledger(self) -> Path:
        """The ledger's file."""
        return self.directory / "ledger.sqlite"

    @property
    def audit_log(self) -> Path:
        """What it did and why, one JSON object a line."""
        return self.directory / "audit.jsonl"

    def ask(self, request: str, **fields: Json) -> JsonObject | None:
        """What it answers; None while it has nothing to say.

        Raises:
            ClusterError: It has ended.
        """
        with contextlib.suppress(DaemonError):
            return self.client.ask(request, **fields)
        self.check()
        return None

    def check(self) -> None:
        """Raise ClusterError if it has ended."""
        if self._process.poll() is not None:
            msg = f"dlschedd has ended with status {self._process.returncode}: see {self.log}"
            raise ClusterError(msg)

    def stop(self) -> None:
        """End it as a service manager would."""
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _acts(self) -> bool:
        answer = self.ask("status")
        return answer is not None and answer.get("doing") == "acting"


def configuration(directory: Path, slurm_conf: str, workload: Workload) -> str:
    """The daemon's configuration: production's defaults with seconds instead of minutes."""
    sections: Mapping[str, Mapping[str, object]] = {
        "cluster": {"slurm_conf": slurm_conf},
        "manage": {"partitions": [PARTITION]},
        "daemon": {"poll_s": 1, "fast_poll_s": 1},
        "policy": {
            "order": "discrete_las",
            "parameters": {"thresholds_gpu_s": [workload.threshold_gpu_s]},
        },
        "preemption": {
            "min_quantum_s": workload.quantum_s,
            "cooldown_s": workload.quantum_s,
            "max_preemptions": 3,
            "max_grace_s": 30,
            "handover_timeout_s": 60,
            "limit_reserve_s": 30,
            "start_margin_s": 20,
            "checkpoint_cost_s": 3,
        },
        # Of a cluster as small as this most GPUs change hands within an hour.
        "breakers": {"cluster_share": 0},
        "writes": {"rate_per_s": 20, "burst": 100},
        "paths": {
            "state_dir": str(directory),
            "run_dir": str(directory),
            "audit_log": str(directory / "audit.jsonl"),
        },
    }
    # JSON's scalars and lists are YAML's.
    lines = ["# dlschedd of the demo"]
    for name, section in sections.items():
        lines += ["", f"{name}:", *(f"  {k}: {json.dumps(v)}" for k, v in section.items())]
    return "\n".join(lines) + "\n"


def _tool(name: str) -> str:
    """One of the project's commands, beside the interpreter that runs the demo."""
    path = Path(sys.executable).parent / name
    if not path.exists():
        msg = f"{name} is not installed beside {sys.executable}: run make demo, which installs it"
        raise ConfigError(msg)
    return str(path)
