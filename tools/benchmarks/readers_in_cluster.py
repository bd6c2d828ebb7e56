"""Runs inside the cluster as root, for bench_readers.py: fills the queue, polls it by each reader.

``fill JOBS TASKS`` submits; ``both ROUNDS`` polls by turns; ``one READER ROUNDS`` polls by one
reader, in a process of its own, for what belongs to one alone: memory, RPCs and writes. Each prints
JSON.
"""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
import time
from pathlib import Path

from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobState
from slurm_dl.model.plan import SetSiteFactor
from slurm_dl.model.snapshot import Observed
from slurm_dl.slurm.cluster import SlurmCluster
from slurm_dl.slurm.pyslurm.reader import PyslurmProcess, PyslurmQueue
from slurm_dl.slurm.tool_runner import Slurm

# One shell for many jobs: starting Python for each sbatch would cost more than sbatch itself.
_SUBMIT = r"""
for ((i = $1; i < $2; i++)); do
  case $((i % 8)) in
    0) shape=(--gpus-per-node=1) ;; 1) shape=(--gpus=4 --nodes=2) ;;
    2) shape=(--gres=gpu:a100:2) ;; 3) shape=(--gpus=h100:3) ;;
    4) shape=(--ntasks=4 --gpus-per-task=1) ;; 5) shape=(--gres=shard:2) ;;
    6) shape=(--nodes=4 --gpus-per-node=4 --exclude=n1) ;; 7) shape=(--constraint=a100) ;;
  esac
  claim=()
  ((i % 4)) && claim=("--comment={\"slurm_dl\":{\"v\":1,\"sig\":\"USR1\",\"grace_s\":120}}")
  sbatch --quiet --hold --uid=alice "${shape[@]}" "${claim[@]}" --requeue \
    --time=$((60 + i % 1000)) --job-name="train-$i" --output=/dev/null \
    <<<$'#!/bin/sh\nexec sleep 60' || exit 1
done
"""
_RPC = re.compile(
    r"^\s+(REQUEST_\w+)\s+\(\s*\d+\) count:(\d+)\s+ave_time:\d+\s+total_time:(\d+)", re.MULTILINE
)
_TASKS_AN_ARRAY = 1000
_WRITES = 100
_SBATCH = ("/usr/bin/sbatch", "--quiet", "--hold", "--uid=alice")


def fill(jobs: int, tasks: int) -> None:
    """Held jobs of alice from two shells, and held arrays."""
    half = jobs // 2
    shells = [
        subprocess.Popen(["/bin/bash", "-c", _SUBMIT, "submit", str(first), str(last)])
        for first, last in ((0, half), (half, jobs))
    ]
    if any(list(map(subprocess.Popen.wait, shells))):
        sys.exit("the jobs could not be submitted")
    for _ in range(tasks // _TASKS_AN_ARRAY):
        subprocess.run(
            [*_SBATCH, "--gpus=1", f"--array=1-{_TASKS_AN_ARRAY}", "--output=/dev/null"],
            input=b"#!/bin/sh\nexec sleep 60\n",
            check=True,
        )


def cluster_of(reader: str) -> tuple[SlurmCluster, PyslurmProcess | None]:
    """A cluster read by *reader*, and the worker if it has one."""
    slurm = Counting()
    if reader == "cli":
        return SlurmCluster(slurm, max_grace_s=600), None
    queue = PyslurmQueue(slurm)
    return SlurmCluster(slurm, max_grace_s=600, queue=queue), queue.process


class Counting(Slurm):
    """Keeps how much the last squeue said."""

    def __init__(self) -> None:
        super().__init__(timeout_s=60)
        self.received = 0
        self.last: tuple[str, ...] = ()

    def run(self, tool: str, *args: str, within_s: float = 60) -> str:
        """As usual."""
        said = super().run(tool, *args, within_s=within_s)
        if tool == "squeue":
            self.received = len(said.encode())
            self.last = args
        return said


def both(rounds: int) -> dict[str, object]:
    """Milliseconds of idle polls by each reader, by turns."""
    made = {reader: cluster_of(reader) for reader in ("cli", "pyslurm")}
    took: dict[str, list[float]] = {reader: [] for reader in made}
    n_jobs = 0
    try:
        for number in range(rounds + 2):
            for reader, (cluster, _) in made.items():
                began = time.perf_counter()
                n_jobs = len(cluster.observe().jobs)
                if number >= 2:  # the first ones learn what is remembered afterwards
                    took[reader].append((time.perf_counter() - began) * 1e3)
    finally:
        for cluster, _ in made.values():
            cluster.close()
    return {"records": n_jobs, "ms": took}


def one(reader: str, rounds: int) -> dict[str, object]:
    """Memory of us and our child, bytes moved and RPCs, over idle polls by one reader."""
    cluster, process = cluster_of(reader)
    try:
        cluster.observe()
        seen = cluster.observe()
        subprocess.run(["/usr/bin/sdiag", "--reset"], check=True, capture_output=True)
        for _ in range(rounds):
            cluster.observe()
        said = subprocess.run(["/usr/bin/sdiag"], check=True, capture_output=True, text=True).stdout
        slurm = cluster._slurm  # noqa: SLF001
        assert isinstance(slurm, Counting)  # noqa: S101 - we have made it
        child = None if process is None else process.child
        child_kb = _squeue_peak_kb(slurm.last) if child is None else _peak_kb(child.pid)
        return {
            "bytes": slurm.received if process is None else process.received,
            "write_ms": _write_ms(cluster, seen),
            "parent_peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "child_peak_mb": child_kb / 1024,
            "rpcs": {
                name: {"a_poll": int(count) / rounds, "ms_a_poll": int(total) / 1e3 / rounds}
                for name, count, total in _RPC.findall(said)
                if name in {"REQUEST_JOB_INFO", "REQUEST_PARTITION_INFO"}
            },
        }
    finally:
        cluster.close()


def _write_ms(cluster: SlurmCluster, seen: Observed) -> list[float]:
    """How long each of some SiteFactors took."""
    took = []
    pending = seen.jobs.job_id[seen.jobs.state == JobState.PENDING].tolist()
    for number, job_id in enumerate(pending[:_WRITES]):
        action = SetSiteFactor(job_id=JobId(job_id), value=1000 + number, why="benchmark")
        began = time.perf_counter()
        cluster.apply(action)
        took.append((time.perf_counter() - began) * 1e3)
    return took


def _peak_kb(pid: int) -> int:
    """Highest resident memory of a process so far; 0 if it has ended."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    found = re.search(r"VmHWM:\s+(\d+)", status)
    return int(found[1]) if found else 0


def _squeue_peak_kb(args: tuple[str, ...]) -> int:
    # What the system keeps of an ended child includes ours, from which it was forked.
    peak = 0
    with subprocess.Popen(["/usr/bin/squeue", *args], stdout=subprocess.DEVNULL) as squeue:
        while squeue.poll() is None:
            if Path(f"/proc/{squeue.pid}/exe").resolve().name == "squeue":
                peak = max(peak, _peak_kb(squeue.pid))
    return peak


def main(what: str, *words: str) -> None:
    """Do one of the three."""
    said: object = None
    if what == "fill":
        fill(int(words[0]), int(words[1]))
    elif what == "both":
        said = both(int(words[0]))
    else:
        said = one(words[0], int(words[1]))
    print(json.dumps(said))


if __name__ == "__main__":
    main(*sys.argv[1:])
