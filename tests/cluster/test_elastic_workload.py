"""Sixteen jobs on a live Slurm, twice: half of them elastic, then the same all rigid."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from conftest import MakeSandbox
from patience import PATIENCE
from schedd import Schedd, schedd_in

from slurm_dl.sandbox.spec import SandboxNodes, SandboxSpec
from slurm_dl.slurm.read.grammar import expand

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.full("runs a workload of minutes twice"),
    pytest.mark.timeout(900),
]

NODES, PER_NODE = 4, 2
GPUS = NODES * PER_NODE
SPEC = SandboxSpec(
    groups=(SandboxNodes(nodes=NODES, gpus=PER_NODE, gpu_type="a100"),), nodes_per_leaf=0
)
SIZES = "1,2,2x2"
LEAST = 1
GRACE_S = 15
HOLD_S = 10.0
"""A requeued job may not start for so long in the sandbox."""
WORK = (
    *((0, 2, 150, True), (3, 1, 40, False), (9, 1, 50, True), (15, 2, 50, False)),
    *((20, 2, 50, True), (24, 1, 50, False), (31, 1, 40, True), (36, 2, 40, False)),
    *((42, 1, 50, True), (48, 2, 60, False), (55, 2, 50, True), (61, 1, 30, False)),
    *((68, 1, 40, True), (75, 1, 40, False), (82, 2, 60, True), (90, 2, 40, False)),
)
"""Arrival (s), GPUs asked for, seconds of work on one GPU, and whether it is elastic."""
STEP_S = 0.5
"""On one GPU; a tenth of it is serial."""

TRAINING = f"""
import json, os, sys, time
from slurm_dl import job

total = int(sys.argv[1])
gpus = int(os.environ["SLURM_NNODES"]) * int(os.environ["SLURM_GPUS_ON_NODE"])
checkpoint = job.resume_from()
step = json.loads(checkpoint.read_text()) if checkpoint else 0
log = open(job.run_dir() / "steps.jsonl", "a", buffering=1)
while step < total:
    begun_s = time.time()
    time.sleep({STEP_S} * (0.1 + 0.9 / gpus))
    step += 1
    line = dict(run=job.restart_count(), step=step, begun_s=begun_s, ended_s=time.time(), gpus=gpus)
    log.write(json.dumps(line) + "\\n")
    job.report(step, total)
    asked = job.should_checkpoint()
    if asked or step % 20 == 0:
        time.sleep(0.3)
        path = job.run_dir() / f"at{{step}}.json"
        path.write_text(str(step))
        job.checkpoint_saved(path, step=step)
        if asked and step < total:
            job.exit_for_requeue()
"""
_ON_NODES = re.compile(r" Nodes=(\S+) CPU_IDs=\S+ Mem=\S+ GRES=gpu:a100:(\d+)")


@dataclass(kw_only=True)
class Job:
    """One job of the workload.

    Attributes:
        gpus: What it asks for.
        since_s: When it was submitted, epoch seconds.
        seen: At each look (epoch s): state, restarts, and GPUs held on each node.
    """

    id: str
    gpus: int
    elastic: bool
    steps: int
    since_s: float
    seen: dict[float, tuple[str, int, dict[str, int]]] = field(default_factory=dict)
    log: list[dict[str, Any]] = field(default_factory=list)

    @property
    def end_s(self) -> float:
        """First look that found it ended."""
        return next(at for at, (state, _, _) in self.seen.items() if state == "COMPLETED")

    def held(self, at: float) -> dict[str, int]:
        """GPUs by node at that look."""
        return self.seen[at][2] if at in self.seen else {}

    def held_gpu_s(self, from_s: float = 0.0, to_s: float = float("inf")) -> float:
        """GPU-seconds that it held between the two instants."""
        return sum(
            max(0.0, min(after, to_s) - max(at, from_s)) * sum(self.held(at).values())
            for at, after in pairwise(self.seen)
        )


@dataclass(kw_only=True)
class Outcome:
    """A workload that has ended.

    Attributes:
        resized_s: Job and instant (epoch s) of each change of size of a job that had run.
    """

    jobs: list[Job]
    resized_s: list[tuple[str, float]]

    @property
    def looks(self) -> list[float]:
        """All looks, epoch seconds."""
        return sorted({at for job in self.jobs for at in job.seen})

    def mean_jct_s(self) -> float:
        """From submission to end."""
        return sum(job.end_s - job.since_s for job in self.jobs) / len(self.jobs)

    def makespan_s(self) -> float:
        """From the first submission to the last end."""
        return max(job.end_s for job in self.jobs) - min(job.since_s for job in self.jobs)

    def utilisation(self) -> float:
        """GPU-seconds held of those that there were over the makespan."""
        return sum(job.held_gpu_s() for job in self.jobs) / GPUS / self.makespan_s()

    def restarts(self) -> int:
        """Of all jobs."""
        return sum(len({line["run"] for line in job.log}) - 1 for job in self.jobs)

    def lost_gpu_s(self) -> float:
        """GPU-seconds held but not trained in around restarts, and those kept free for resizes."""
        return sum(self._lost_gpu_s(job) for job in self.jobs)

    def _lost_gpu_s(self, job: Job) -> float:
        lost, done = 0.0, 0
        for before, line in pairwise(job.log):
            done = max(done, before["step"])
            if line["step"] <= done:
                lost += (line["ended_s"] - line["begun_s"]) * line["gpus"]
            if before["run"] == line["run"]:
                continue
            stop_s, go_s = before["ended_s"], line["begun_s"]
            lost += job.held_gpu_s(stop_s, go_s)
            if any(job.id == one and stop_s < at < go_s for one, at in self.resized_s):
                idle = [
                    after - at
                    for at, after in pairwise(job.seen)
                    if stop_s < at < go_s and not job.held(at)
                ]
                lost += sum(idle) * line["gpus"]
        return lost

    def longest_wait_for_surplus_s(self) -> float:
        """Seconds that a rigid job waited while GPUs that would do for it were but lent.

        Counted over each wait in all: all looks at which no node had enough free GPUs for it, and
        one would have had with those of elastic jobs beyond their least size. Not counted is the
        time for which Slurm holds the job back after a requeue.
        """
        looks, worst = self.looks, 0.0
        for job in (job for job in self.jobs if not job.elastic):
            waits: dict[int, float] = {}
            requeued: dict[int, float] = {0: 0.0}
            for at, after in pairwise(looks):
                if at not in job.seen or job.seen[at][0] != "PENDING":
                    continue
                run = job.seen[at][1]
                began_s = requeued.setdefault(run, at)
                if at >= began_s + HOLD_S * bool(run) and self._lent(at, job.gpus):
                    waits[run] = waits.get(run, 0.0) + after - at
            worst = max([worst, *waits.values()])
        return worst

    def _lent(self, at: float, need: int) -> bool:
        """No node has so many free GPUs, and one would have without what is lent."""
        free = {f"n{i + 1}": PER_NODE for i in range(NODES)}
        for job in self.jobs:
            for node, gpus in job.held(at).items():
                free[node] -= gpus
        if max(free.values()) >= need:
            return False
        for job in (job for job in self.jobs if job.elastic):
            held = job.held(at)
            for node, gpus in held.items():
                free[node] += min(gpus, sum(held.values()) - LEAST)
        return max(free.values()) >= need


def run_workload(place: Schedd, *, elastic: bool) -> Outcome:
    """Submit the jobs as they arrive, look twice a second until all have ended."""
    script = place.home / "train.py"
    script.write_text(TRAINING)
    jobs, begun_s, left = dict[str, Job](), time.time(), list(WORK)
    while left or any(_state(job) != "COMPLETED" for job in jobs.values()):
        _look(place, jobs)
        assert time.time() < begun_s + 300 * PATIENCE, {j.id: _state(j) for j in jobs.values()}
        if left and time.time() >= begun_s + left[0][0]:
            _, gpus, work_s, flexible = left.pop(0)
            steps = round(work_s / STEP_S)
            options = ["--time", "30", "--signal", "USR1@5", "--grace", str(GRACE_S)]
            options += ["--sizes", SIZES] * (elastic and flexible)
            since_s = time.time()
            command = (sys.executable, str(script), str(steps))
            job_id = place.submit(gpus, *command, options=options)
            jobs[job_id] = Job(
                id=job_id, gpus=gpus, elastic=elastic and flexible, steps=steps, since_s=since_s
            )
        time.sleep(0.4)
    for job in jobs.values():
        path = place.home / "slurm_dl_runs" / job.id / "steps.jsonl"
        job.log = [json.loads(line) for line in path.read_text().splitlines()]
    # A size written before a start, or twice for one hand-over, is no further resize.
    written = [e for e in place.audit(action="reshape", result="ok") if e["handover"]]
    resizes = {(e["handover"], str(e["job"])): e["epoch_s"] for e in written}
    return Outcome(
        jobs=list(jobs.values()), resized_s=[(job, at) for (_, job), at in resizes.items()]
    )


def _state(job: Job) -> str:
    return job.seen[max(job.seen)][0] if job.seen else ""


def _look(place: Schedd, jobs: dict[str, Job]) -> None:
    text = place.box.run(["scontrol", "-o", "-d", "show", "job"], check=False).stdout
    at = time.time()
    for line in text.splitlines():
        job_id, state, restarts = (
            line.partition(f"{name}=")[2].partition(" ")[0]
            for name in ("JobId", "JobState", "Restarts")
        )
        if job_id not in jobs:
            continue
        held = dict[str, int]()
        if state in ("RUNNING", "COMPLETING"):
            held = {node: int(gpus) for ns, gpus in _ON_NODES.findall(line) for node in expand(ns)}
        jobs[job_id].seen[at] = (state, int(restarts), held)


@pytest.fixture
def places(make_sandbox: MakeSandbox, short_directory: Path) -> Iterator[list[Schedd]]:
    """Two places on one cluster: the second daemon knows nothing of the first one's jobs."""
    box = make_sandbox(SPEC)
    homes = [short_directory / name for name in "er"]
    for home in homes:
        home.mkdir()
    with schedd_in(box, homes[0]) as first, schedd_in(box, homes[1]) as second:
        for place in (first, second):
            place.configure(
                resizing={"steadiness": 1, "cooldown_s": 5},
                placement={"scheme": "best_fit", "steer": True, "settle_s": 4},
                preemption={"checkpoint_cost_s": 1},
            )
        yield [first, second]


def test_elastic_and_rigid_jobs_share_a_cluster(places: list[Schedd]) -> None:
    """All end with each step done once, lent GPUs come back in time; the figures are printed."""
    outcomes = []
    for place, elastic in zip(places, (True, False), strict=True):
        place.start()
        outcomes.append(run_workload(place, elastic=elastic))
        place.stop()
    for name, out in zip(("half elastic", "all rigid"), outcomes, strict=True):
        print(  # noqa: T201 - what docs/evaluate/elastic.md publishes
            f"{name}: mean JCT {out.mean_jct_s():.1f} s, makespan {out.makespan_s():.0f} s, "
            f"utilisation {out.utilisation():.1%}, {len(out.resized_s)} resizes, "
            f"{out.restarts()} restarts, {out.lost_gpu_s():.0f} GPU-s lost, "
            f"longest wait for lent GPUs {out.longest_wait_for_surplus_s():.1f} s"
        )
    for out in outcomes:
        for job in out.jobs:
            assert [line["step"] for line in job.log] == list(range(1, job.steps + 1)), job.id
    mixed, rigid = outcomes
    assert mixed.resized_s
    assert not rigid.resized_s
    assert mixed.longest_wait_for_surplus_s() <= GRACE_S + 10
