"""Jobs start in the order of RANK on a real Slurm whose own priorities say the contrary."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from schedd import Schedd, schedd_in

from slurm_dl.engine.settings import Settings
from slurm_dl.sandbox import Sandbox, SandboxNodes, SandboxSpec

pytestmark = pytest.mark.slurm

GPUS = 3
CPUS = (1, 4, 8)
"""CPUs of the jobs that wait, in the order of their submission: each is worth more than the last.

Of 16 CPUs on one node the job size is 0.53, 0.63 and 0.75.
"""

OWN_ORDER = (
    "PriorityWeightAge=1000",
    "PriorityWeightJobSize=30000",
    "PriorityFavorSmall=NO",
    "PriorityCalcPeriod=1",
)
LEAST_GAP = 1000
"""By how much Slurm's own priorities of two jobs differ at least."""


@pytest.fixture
def place(make_sandbox: Callable[..., Sandbox], short_directory: Path) -> Iterator[Schedd]:
    """A cluster of one node with three GPUs, and where a daemon can live."""
    spec = SandboxSpec(
        groups=(SandboxNodes(nodes=1, gpus=GPUS),), nodes_per_leaf=0, slurm_conf_extra=OWN_ORDER
    )
    with schedd_in(make_sandbox(spec), short_directory) as daemon:
        daemon.configure(policy={"order": "fifo", "parameters": {}})
        yield daemon


def submit(place: Schedd, cpus: int) -> str:
    """A job with one GPU that goes on until it is cancelled."""
    argv = ["sbatch", "--parsable", "--output=/dev/null", "--gres=gpu:1", f"--cpus-per-task={cpus}"]
    return place.box.run([*argv, "--wrap=exec sleep 600"]).stdout.strip()


def priorities(place: Schedd) -> dict[str, int]:
    """Slurm's priority of each job that waits."""
    said = place.box.run(["squeue", "-ht", "PD", "-o", "%A %Q"]).stdout
    return {job: int(value) for job, value in (line.split() for line in said.splitlines())}


def ranks(place: Schedd) -> dict[str, int]:
    """RANK of each job that waits, as dlqueue tells it."""
    told = json.loads(place.ask("dlqueue", "--json").stdout)
    return {row["job"]: row["rank"] for row in told["jobs"] if row["state"] == "PD"}


def test_jobs_start_in_the_order_of_rank(place: Schedd) -> None:
    """Three jobs wait for three GPUs that come free one after the other.

    Slurm's own priorities say the reverse of the order of submission, by thousands.
    """
    blockers = [submit(place, 1) for _ in range(GPUS)]
    for job in blockers:
        place.until_state(job, "RUNNING")
    waiting = [submit(place, cpus) for cpus in CPUS]

    def own_order() -> bool:
        own = [priorities(place).get(job, 0) for job in waiting]
        return all(b - a >= LEAST_GAP for a, b in itertools.pairwise(own))

    place.until("Slurm to prefer the last one", own_order)

    place.start()
    place.until("dlqueue to tell the ranks", lambda: set(ranks(place)) == set(waiting))
    seen = place.cycles()
    place.until("two more looks", lambda: place.cycles() >= seen + 2)
    band = Settings(partitions=frozenset({"gpu"})).band_width
    place.until("the order to be written", lambda: min(priorities(place).values()) >= band, 60.0)
    rank = ranks(place)

    started: list[str] = []
    for blocker in blockers:
        place.box.run(["scancel", blocker])
        started += next_to_start(place, [job for job in waiting if job not in started])

    assert sorted(waiting, key=rank.__getitem__) == waiting
    assert started == waiting


def next_to_start(place: Schedd, waiting: list[str]) -> list[str]:
    """Those of the jobs that run, once any does."""
    place.until("the next job to start", lambda: running(place, waiting))
    return running(place, waiting)


def running(place: Schedd, jobs: list[str]) -> list[str]:
    """Those of *jobs* that have their GPU."""
    return [job for job in jobs if place.state(job) == "RUNNING"]
