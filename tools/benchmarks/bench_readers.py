"""The two readers of the queue side by side: squeue and pyslurm, on one slurmctld, one queue.

In the cluster of docker/ for Slurm 26.05, which has a pyslurm; it is started if it is not up, and
left as it was. The jobs are held, so that slurmctld does nothing else; arrays come in a second
case, as squeue lists them task by task. Jobs of the last five minutes count too, and slurmctld
takes 10,000 in all: begin with a new cluster.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import measure

HERE = Path(__file__).parent
DOCKER = HERE.parents[1] / "docker"
RELEASE = "26.05"
READERS = ("cli", "pyslurm")
PYTHON = "/opt/slurm_dl/bin/python"
DOCKER_CLI = shutil.which("docker") or sys.exit("there is no docker command")
PROJECT = os.environ.get("SLURM_DL_PROJECT") or "slurm_dl-2605"


def docker(*argv: str, program: str | None = None) -> str:
    """What docker says."""
    done = subprocess.run(
        [DOCKER_CLI, *argv], input=program or "", capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"docker {' '.join(argv)}: {done.stderr[-2000:]}")
    return done.stdout.strip()


def container(part: str, *, running: bool = True) -> str:
    """The container of one part of the cluster; empty if there is none."""
    labels = {"project": PROJECT, "service": part}
    wanted = [f"--filter=label=com.docker.compose.{k}={v}" for k, v in labels.items()]
    return docker("ps", "--quiet", *([] if running else ["--all"]), *wanted)


@contextmanager
def cluster() -> Iterator[str]:
    """The container to measure in, on a cluster without jobs and without a dlschedd that polls."""
    was_up = bool(container("slurmctld"))
    if not was_up:
        measure.say("starting the cluster")
        subprocess.run([str(DOCKER / "up"), RELEASE], check=True, stdout=subprocess.DEVNULL)
    schedd, inside = container("dlschedd"), container("login")
    if schedd:
        docker("stop", "--time=10", schedd)
    try:
        cancel(inside)
        yield inside
    finally:
        cancel(inside)
        if schedd:
            docker("start", schedd)
        if not was_up:
            subprocess.run([str(DOCKER / "down"), RELEASE], check=True)


def cancel(inside: str) -> None:
    """Cancel what is in the queue."""
    docker("exec", inside, "scancel", "--user=alice")


def run(inside: str, *words: str) -> Any:  # noqa: ANN401 - JSON
    """One run of the program inside; what it printed."""
    program = (HERE / "readers_in_cluster.py").read_text(encoding="utf-8")
    said = docker("exec", "--interactive", inside, PYTHON, "-", *words, program=program)
    return json.loads(said)


def measured(inside: str, rounds: int) -> dict[str, Any]:
    """Both readers on the queue as it stands."""
    polls = run(inside, "both", str(rounds))
    alone = {reader: run(inside, "one", reader, str(max(5, rounds // 4))) for reader in READERS}
    for reader, took in polls.pop("ms").items():
        took.sort()
        alone[reader]["median_ms"] = statistics.median(took)
        alone[reader]["p95_ms"] = took[min(len(took) - 1, round(0.95 * len(took)))]
    return {**polls, "rounds": rounds, **alone}


def table(cases: dict[str, dict[str, Any]]) -> list[list[str]]:
    """A row for each case and reader."""
    rows = [
        [
            "case",
            "records",
            "reader",
            "poll median",
            "p95",
            "moved",
            "we, peak",
            "child, peak",
            "a write",
            "RPCs a poll",
        ]
    ]
    for name, case in cases.items():
        for reader in READERS:
            one = case[reader]
            rpcs = one["rpcs"].values()
            a_poll = sum(r["a_poll"] for r in rpcs)
            inside_ms = sum(r["ms_a_poll"] for r in rpcs)
            rows.append(
                [
                    name,
                    f"{case['records']:,}",
                    reader,
                    f"{one['median_ms']:.0f} ms",
                    f"{one['p95_ms']:.0f} ms",
                    f"{one['bytes'] / 1e6:.2f} MB",
                    f"{one['parent_peak_mb']:.0f} MB",
                    f"{one['child_peak_mb']:.0f} MB",
                    f"{statistics.median(one['write_ms']):.1f} ms",
                    f"{a_poll:.2f}, {inside_ms:.1f} ms in slurmctld",
                ]
            )
    return rows


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=5000, help="held jobs (default 5000)")
    parser.add_argument("--tasks", type=int, default=4000, help="held array tasks (default 4000)")
    parser.add_argument("--rounds", type=int, default=40, help="polls by each reader (default 40)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON too")
    options = parser.parse_args()
    cases = {}
    with cluster() as inside:
        versions = {
            "slurm": docker("exec", inside, "scontrol", "--version"),
            "pyslurm": docker("exec", inside, "cat", "/opt/pyslurm/status"),
        }
        measure.say(f"{versions['slurm']}, {versions['pyslurm']}; submitting {options.jobs} jobs")
        run(inside, "fill", str(options.jobs), "0")
        cases[f"{options.jobs:,} jobs"] = measured(inside, options.rounds)
        if options.tasks:
            measure.say(f"and arrays of {options.tasks} tasks")
            run(inside, "fill", "0", str(options.tasks))
            cases[f"and {options.tasks:,} array tasks"] = measured(inside, options.rounds)
    measure.report("bench_readers", {**versions, "cases": cases}, table(cases))
    if options.json:
        print(json.dumps({**versions, "cases": cases}, indent=1))


if __name__ == "__main__":
    main()
