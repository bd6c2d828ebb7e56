"""A private Slurm for measurements: its jobs, its log with milliseconds, and dlschedd beside it.

A job is a shell script under dlrun that works by sleeping, so that sixteen of them run on two cores
without getting into each other's way. It notes when it does what, to the microsecond.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import yaml

from slurm_dl.sandbox import Sandbox, SandboxNodes, SandboxSpec
from slurm_dl.sandbox.process_control import eventually

NODES = 4
GPUS_PER_NODE = 4
PARTITION = "gpu"
GRACE_S = 20.0

SPEC = SandboxSpec(
    groups=(SandboxNodes(nodes=NODES, gpus=GPUS_PER_NODE),),
    nodes_per_leaf=0,
    cred_expire_s=5,
    kill_wait_s=5,
    # Finished jobs stay until they have been counted; a line for each look of the scheduler.
    slurm_conf_extra=("MinJobAge=7200", "SlurmctldDebug=debug2"),
)

TOOLS = Path(sys.executable).parent

# $1: seconds of work in all. $2: seconds a save takes. $3: seconds a restore takes.
_WORKER = r"""#!/bin/bash
work=$1 save=$2 restore=$3 state=$SLURM_DL_RUN_DIR/done_us notes=$SLURM_DL_RUN_DIR/notes
note() { echo "$1 $SLURM_RESTART_COUNT $EPOCHREALTIME" >>"$notes"; }
stop() {
    now=${EPOCHREALTIME/./}
    note signal
    sleep "$save"
    echo $((before + now - began)) >"$state.new" && mv "$state.new" "$state"
    note saved
    kill "$!" 2>/dev/null
    exit 75
}
before=0
if [[ -e $state ]]; then
    note restore
    sleep "$restore"
    read -r before <"$state"
fi
began=${EPOCHREALTIME/./}
trap stop USR1
note work
left=$((work * 1000 - before))
((left > 0)) && sleep "$((left / 1000000)).$(printf %06d $((left % 1000000)))" &
wait
note end
"""

# As dlsubmit's template has it.
_SCRIPT = r"""#!/bin/bash
trap '' USR1
SLURM_DL_RUN_DIR={runs}/"$SLURM_JOB_ID"
mkdir -p -- "$SLURM_DL_RUN_DIR" || exit 1
export SLURM_DL_RUN_DIR
export SLURM_DL_SIGNAL=USR1
export SLURM_DL_GRACE_S={grace_s:g}
export SLURM_RESTART_COUNT="${{SLURM_RESTART_COUNT:-0}}"
exec {dlrun} --launcher plain -- {command}
"""

_LOG_LINE = re.compile(r"\[([0-9T:.-]{23})\] (.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """One thing a job wrote down: ``work``, ``signal``, ``saved``, ``restore`` or ``end``."""

    what: str
    restart: int
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One job by Slurm's own records; times are whole seconds.

    Attributes:
        state: In Slurm's word.
        start_s: Of the last run, epoch seconds; 0 if there is none.
        end_s: Of the last run, epoch seconds; 0 if there is none.
        eligible_s: When it may or might start, epoch seconds.
    """

    state: str
    restarts: int
    start_s: float
    end_s: float
    eligible_s: float
    nodes: str


class Site:
    """The cluster and the jobs on it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.box = Sandbox.up(directory / "c", SPEC)
        self.runs = directory / "runs"
        self.runs.mkdir()
        self._worker = directory / "worker.sh"
        self._worker.write_text(_WORKER, encoding="utf-8")
        self._worker.chmod(0o755)

    def train(
        self,
        *,
        nodes: int,
        gpus_per_node: int,
        work_s: float,
        limit_min: int,
        save_s: float = 0.0,
        restore_s: float = 0.0,
    ) -> int:
        """Submit a training of *work_s* that saves when it is signalled; its job id."""
        milliseconds = round(work_s * 1000)
        command = f"{self._worker} {milliseconds} {save_s:g} {restore_s:g}"
        return self.submit(command, nodes=nodes, gpus_per_node=gpus_per_node, limit_min=limit_min)

    def submit(self, command: str, *, nodes: int, gpus_per_node: int, limit_min: int) -> int:
        """Submit *command* under dlrun with a contract, as dlsubmit does; its job id."""
        claim = {"v": 1, "sig": "USR1", "to": "batch", "grace_s": GRACE_S, "by": "daemon"}
        script = _SCRIPT.format(
            runs=self.runs, grace_s=GRACE_S, dlrun=TOOLS / "dlrun", command=command
        )
        done = self.box.run(
            [
                *("sbatch", "--parsable", "--requeue", "--open-mode=append"),
                f"--comment={json.dumps({'slurm_dl': claim})}",
                *(f"--nodes={nodes}", "--ntasks-per-node=1", f"--gpus-per-node={gpus_per_node}"),
                *(f"--time={limit_min}", f"--output={self.directory}/runs/%j.out"),
            ],
            stdin=script,
        )
        return int(done.stdout)

    def notes(self, job_id: int) -> list[Note]:
        """What the job wrote down, oldest first."""
        path = self.runs / str(job_id) / "notes"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [
            Note(what=what, restart=int(restart), at_s=float(at_s))
            for what, restart, at_s in (line.split() for line in lines)
        ]

    def jobs(self) -> dict[int, Seen]:
        """Every job by Slurm's records, finished ones too."""
        names = ("JobID", "State", "RestartCnt", "StartTime", "EndTime", "EligibleTime", "NodeList")
        text = self.box.run(
            ["squeue", "-a", "-h", "-t", "all", "-O", ",".join(f"{n}:|" for n in names)],
            env={"SLURM_TIME_FORMAT": "%s"},
        ).stdout
        found = {}
        for line in text.splitlines():
            job_id, state, restarts, start, end, eligible, nodes, _ = line.split("|")
            times = (float(t) if t.isdigit() else 0.0 for t in (start, end, eligible))
            start_s, end_s, eligible_s = times
            found[int(job_id)] = Seen(
                state=state,
                restarts=int(restarts),
                start_s=start_s,
                end_s=end_s,
                eligible_s=eligible_s,
                nodes=nodes.strip(),
            )
        return found

    def log(self) -> Iterator[tuple[float, str]]:
        """The log of slurmctld: epoch seconds with milliseconds, and the text of each line."""
        path = self.box.log_directory / "slurmctld.log"
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            match = _LOG_LINE.fullmatch(line)
            if match:
                yield datetime.fromisoformat(match[1]).timestamp(), match[2]

    def wait_idle(self) -> None:
        """Wait until no node holds anything."""
        eventually(
            lambda: all(n.state == "IDLE" for n in self.box.status().nodes),
            120.0,
            0.5,
            what="all nodes to be idle",
        )


@contextmanager
def site() -> Iterator[Site]:
    """A cluster of its own; it and its directory are gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="sdl-fid-", dir="/tmp") as name:
        directory = Path(name)
        directory.chmod(0o755)
        try:
            yield Site(directory)
        finally:
            if (directory / "c" / "sandbox.json").exists():
                Sandbox.open(directory / "c").down(remove=True)


class Schedd:
    """dlschedd beside a site's Slurm."""

    def __init__(self, at: Site, sections: Mapping[str, Mapping[str, object]]) -> None:
        self.directory = at.directory / "dlschedd"
        self.directory.mkdir()
        config = self.directory / "slurm_dl.yaml"
        tree = {
            "cluster": {"slurm_conf": at.box.env["SLURM_CONF"]},
            "manage": {"partitions": [PARTITION]},
            "paths": {
                "state_dir": str(self.directory),
                "run_dir": str(self.directory),
                "audit_log": str(self.directory / "audit.jsonl"),
            },
            **{name: dict(values) for name, values in sections.items()},
        }
        config.write_text(yaml.safe_dump(tree), encoding="utf-8")
        config.chmod(0o600)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH"))}
        self._env = {**kept, **at.box.env, "SLURM_DL_CONFIG": str(config)}
        with (self.directory / "dlschedd.log").open("wb") as log:
            self._process = subprocess.Popen(
                [str(TOOLS / "dlschedd"), "--config", str(config), "--live", "--allow-root"],
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            eventually(self._acts, 30.0, what="dlschedd to act")
        except BaseException:
            self.stop()
            raise

    def audit(self) -> list[dict[str, object]]:
        """What it did, oldest first."""
        lines = (self.directory / "audit.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    def stop(self) -> None:
        """End it as a service manager would."""
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _acts(self) -> bool:
        asked = subprocess.run(
            [str(TOOLS / "dlctl"), "status", "--json"],
            env=self._env,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        return asked.returncode == 0 and json.loads(asked.stdout)["cycles"] > 1


def load_average() -> float:
    """Processes that wanted a core, averaged over the last minute."""
    return os.getloadavg()[0]


def pace(until_s: float) -> None:
    """Sleep until the epoch second *until_s*."""
    time.sleep(max(0.0, until_s - time.time()))


def quantile(samples: Sequence[float], frac: float) -> float:
    """The smallest sample that at least *frac* of all do not exceed."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, max(0, -int(-frac * len(ordered) // 1) - 1))]
