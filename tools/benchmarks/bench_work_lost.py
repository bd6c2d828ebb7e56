"""Work lost per preemption: dlschedd's choice of victims, or Slurm's own PreemptMode=REQUEUE.

Forty jobs on a sandbox of 16 GPUs. Sixteen long ones save at intervals drawn at random; half of
them also save when they are asked to. Twenty-four short ones come in two bursts of twelve, and
preempt long ones where no GPU is free. Lost is, for each preemption of a long job, its GPUs
times the steps that it had to compute again, and times the rest of the run that was no step that
counted: start, saving, and waiting out the grace.

    python tools/benchmarks/bench_work_lost.py dlschedd --seed 1 --handovers 1
    python tools/benchmarks/bench_work_lost.py slurm --seed 1 --grace 0

Needs root and Debian's Slurm packages, as the sandbox does.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import yaml

from slurm_dl.sandbox import PartitionSpec, Sandbox, SandboxNodes, SandboxSpec
from slurm_dl.sandbox.process_control import eventually

GPUS = 16
SHORT = 12
BURSTS = 2
STEP_S = 0.25
GRACE_S = 4
BETWEEN_S = 60.0
START_S = 2.0
"""What a run takes before its first step: imports, and reading the checkpoint."""

_BIN = Path(sys.executable).parent

_TRAINING = f"""\
import json, sys, time
from slurm_dl import job

steps, every, listens = (int(word) for word in sys.argv[1:4])
time.sleep({START_S})
found = job.resume_from()
step = json.load(open(found)) if found else 0
log = open(job.run_dir() / "steps.jsonl", "a", buffering=1)
print(json.dumps({{"from": step}}), file=log)
while step < steps:
    time.sleep({STEP_S})
    step += 1
    print(json.dumps({{"step": step}}), file=log)
    asked = bool(listens) and job.should_checkpoint()
    if asked or step % every == 0:
        path = job.run_dir() / f"{{step % (2 * every)}}.json"
        path.write_text(json.dumps(step))
        job.checkpoint_saved(path, step=step)
    if asked:
        job.exit_for_requeue()
"""

_CONFIG = {
    "daemon": {"poll_s": 1, "fast_poll_s": 0.5, "nodes_every_s": 10, "shadow": False},
    "policy": {"order": "discrete_las", "parameters": {"thresholds_gpu_s": [20, 100000]}},
    "breakers": {"cluster_share": 0, "failed_share": 0},
    "writes": {"rate_per_s": 100, "burst": 200},
}

_PREEMPTION = {
    "min_quantum_s": 3,
    "cooldown_s": 3,
    "limit_reserve_s": 0,
    "start_margin_s": 20,
    "handover_timeout_s": 180,
    "max_grace_s": 150,
    "max_preemptions": 50,
    "checkpoint_cost_s": START_S,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """What the preemptions of one workload cost.

    Attributes:
        preemptions: How often a long job was stopped and put back.
        steps_gpu_s: Steps that were computed again, GPU-seconds.
        other_gpu_s: The rest of those runs that was no step that counted, GPU-seconds.
        short_wait_s: Mean time from the release of a short job to its start, seconds.
    """

    preemptions: int
    steps_gpu_s: float
    other_gpu_s: float
    short_wait_s: float

    @property
    def each_gpu_s(self) -> float:
        """GPU-seconds lost per preemption."""
        return (self.steps_gpu_s + self.other_gpu_s) / max(1, self.preemptions)


def cluster(who: str, grace_s: int) -> SandboxSpec:
    """The cluster; where Slurm preempts, short jobs go to a partition of a higher tier."""
    parts: tuple[PartitionSpec, ...] = (PartitionSpec("gpu"),)
    extra: tuple[str, ...] = ()
    if who == "slurm":
        options = ("PreemptMode=REQUEUE", f"GraceTime={grace_s}", "PriorityTier=1")
        parts = (
            PartitionSpec("gpu", options=options),
            PartitionSpec("short", options=("PreemptMode=OFF", "PriorityTier=10")),
        )
        extra = (
            "PreemptType=preempt/partition_prio",
            "PreemptMode=REQUEUE",
            "SlurmctldParameters=preempt_send_user_signal",
        )
    return SandboxSpec(
        groups=(SandboxNodes(nodes=4, gpus=4, cpus=16),),
        nodes_per_leaf=0,
        partitions=parts,
        slurm_conf_extra=extra,
    )


@contextmanager
def daemon(home: Path, env: dict[str, str]) -> Iterator[None]:
    """Dlschedd as it is configured here."""
    with (home / "schedd.log").open("wb") as log:
        config = ("--config", str(home / "slurm_dl.yaml"))
        process = subprocess.Popen(
            [str(_BIN / "dlschedd"), *config, "--live", "--allow-root"],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        try:
            yield
        finally:
            process.terminate()
            process.wait(60)


def configure(box: Sandbox, home: Path, handovers: int) -> None:
    """Write slurm_dl.yaml."""
    for name in ("state", "run"):
        (home / name).mkdir()
    paths = {"state_dir": "state", "run_dir": "run", "audit_log": "state/audit.jsonl"}
    tree = _CONFIG | {
        "preemption": _PREEMPTION | {"max_handovers": handovers},
        "cluster": {"slurm_conf": box.env["SLURM_CONF"]},
        "manage": {"partitions": ["gpu"]},
        "paths": {key: str(home / name) for key, name in paths.items()},
    }
    (home / "slurm_dl.yaml").write_text(yaml.safe_dump(tree), encoding="utf-8")
    (home / "slurm_dl.yaml").chmod(0o600)


class Workload:
    """The forty jobs of one seed."""

    def __init__(self, box: Sandbox, home: Path, env: dict[str, str], *, seed: int) -> None:
        self._box, self._home, self._env = box, home, env
        self._dice = random.Random(seed)  # noqa: S311 - a workload, not a secret
        (home / "train.py").write_text(_TRAINING, encoding="utf-8")
        self.long: list[str] = []
        self.submitted_s: dict[str, float] = {}
        self.started_s: dict[str, float] = {}
        self.held_s: dict[str, list[float]] = {}
        self._run: dict[str, str] = {}
        self._over = threading.Event()

    def submit_long(self) -> None:
        """All long jobs; they save every 10 to 80 s."""
        listening = [True, False] * (GPUS // 2)
        self._dice.shuffle(listening)
        for listens in listening:
            self.long.append(
                self._submit("gpu", 100_000, self._dice.randint(40, 320), listens=listens)
            )

    def burst(self, partition: str, after_s: float) -> None:
        """A burst of short jobs of 6 to 14 s, all at once *after_s* from now at the earliest."""
        begins_s = time.monotonic() + after_s
        steps = [self._dice.randint(24, 56) for _ in range(SHORT)]
        held = [self._submit(partition, n, 1000, "--hold", listens=True) for n in steps]
        time.sleep(max(0.0, begins_s - time.monotonic()))
        self._box.run(["scontrol", "release", ",".join(held)])
        self.submitted_s.update(dict.fromkeys(held, time.monotonic()))

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Note meanwhile who runs since when."""
        thread = threading.Thread(target=self._watch)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.2):
            now_s = time.monotonic()
            told = self._box.run(["squeue", "-h", "-t", "R", "-o", "%A %S"]).stdout
            for line in told.splitlines():
                job, start = line.split()
                if self._run.get(job) != start:
                    self._run[job] = start
                    self.held_s.setdefault(job, []).append(0.0)
                    self.started_s.setdefault(job, now_s)
                began_s = time.mktime(time.strptime(start, "%Y-%m-%dT%H:%M:%S"))
                self.held_s[job][-1] = max(self.held_s[job][-1], time.time() - began_s)

    def lost(self) -> Lost:
        """What the preemptions cost."""
        count, again, other = 0, 0.0, 0.0
        for job in self.long:
            runs = list(self._runs(job))
            for (first, last), (then, _), held_s in zip(
                runs, runs[1:], self.held_s[job], strict=False
            ):
                count += 1
                again += (last - then) * STEP_S
                other += held_s - (last - first) * STEP_S
        waits = [
            self.started_s[j] - at for j, at in self.submitted_s.items() if j in self.started_s
        ]
        return Lost(
            preemptions=count,
            steps_gpu_s=round(again, 2),
            other_gpu_s=round(other, 2),
            short_wait_s=round(sum(waits) / max(1, len(waits)), 2),
        )

    def _runs(self, job: str) -> Iterator[tuple[int, int]]:
        """The step before the first and the last one of each run."""
        first = last = -1
        path = self._home / "slurm_dl_runs" / job / "steps.jsonl"
        for line in path.read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            if "from" in entry:
                if first >= 0:
                    yield first, last
                first = last = entry["from"]
            else:
                last = entry["step"]
        yield first, last

    def _submit(self, partition: str, steps: int, every: int, *options: str, listens: bool) -> str:
        command = [sys.executable, str(self._home / "train.py"), str(steps), str(every)]
        argv = ["--parsable", "--gpus", "1", "--partition", partition, "--time", "60"]
        argv += [
            *options,
            "--grace",
            str(GRACE_S),
            f"--signal=USR1@{GRACE_S}",
            "--",
            *command,
            str(int(listens)),
        ]
        done = subprocess.run(
            [str(_BIN / "dlsubmit"), *argv],
            env=self._env,
            cwd=self._home,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()


def measure(who: str, *, seed: int, handovers: int, grace_s: int) -> Lost:
    """One workload, from the start of the cluster to its end."""
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sdl-", dir="/tmp")))
        home.chmod(0o755)
        box = Sandbox.up(home / "c", cluster(who, grace_s))
        stack.callback(box.down, remove=True)
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH"))}
        # Checkpoints are minutes apart elsewhere, and so are reports of them.
        own = {"SLURM_DL_CONFIG": str(home / "slurm_dl.yaml"), "SLURM_DL_SAVED_EVERY_S": "1"}
        env = {**clean, **box.env, **own}
        configure(box, home, handovers)
        if who == "dlschedd":
            stack.enter_context(daemon(home, env))
        work = Workload(box, home, env, seed=seed)
        work.submit_long()
        eventually(lambda: len(box.run(["squeue", "-ht", "R"]).stdout.splitlines()) == GPUS, 120)
        with work.watched():
            for _ in range(BURSTS):
                work.burst("gpu" if who == "dlschedd" else "short", BETWEEN_S)
            time.sleep(BETWEEN_S)
        return work.lost()


def main() -> None:
    """Measure one seed, and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("who", choices=["dlschedd", "slurm"], help="who chooses the victims")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--handovers", type=int, default=4, help="preemption.max_handovers")
    parser.add_argument("--grace", type=int, default=GRACE_S, help="GraceTime of Slurm's partition")
    options = parser.parse_args()
    lost = measure(
        options.who, seed=options.seed, handovers=options.handovers, grace_s=options.grace
    )
    told = {**vars(options), **asdict(lost)}
    print(json.dumps({**told, "each_gpu_s": round(lost.each_gpu_s, 2)}))


if __name__ == "__main__":
    main()
