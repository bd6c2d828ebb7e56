"""Where jobs go on a real Slurm: two leaf switches of four nodes with eight GPUs each.

Who ran where, and when, is taken from Slurm's own records: sacct on the completion log.
"""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from ClusterShell.NodeSet import NodeSet
from schedd import Schedd, schedd_in

from slurm_dl.sandbox import Sandbox, SandboxNodes, SandboxSpec

pytestmark = [pytest.mark.slurm, pytest.mark.full("walls of jobs on four clusters take minutes")]

POLL_S = 1.0
LOCALITY_WAIT_S = 30.0
SETTLE_S = 4.0
SLACK_S = 15.0
"""Polls, scheduling passes and the rounding of whole seconds."""

LEAVES = ({"n1", "n2", "n3", "n4"}, {"n5", "n6", "n7", "n8"})

PROFILES = {
    "lopsided": {"skew": 0.77, "source": "a made-up model with one large tensor"},
    "even": {"skew": 0.10, "source": "a made-up model of many small tensors"},
}


@dataclass(frozen=True)
class Ran:
    """One job as sacct has it."""

    nodes: frozenset[str]
    eligible_s: float
    start_s: float
    end_s: float
    state: str


@pytest.fixture
def box(make_sandbox: Callable[[SandboxSpec], Sandbox], tmp_path: Path) -> Sandbox:
    """The cluster; slurmctld writes each job that ends into a log of its own."""
    return make_sandbox(
        SandboxSpec(
            groups=(SandboxNodes(nodes=8, gpus=8, cpus=64),),
            nodes_per_leaf=4,
            slurm_conf_extra=(
                "JobCompType=jobcomp/filetxt",
                f"JobCompLoc={tmp_path / 'completions'}",
            ),
        )
    )


@pytest.fixture
def place(box: Sandbox, short_directory: Path) -> Iterator[Schedd]:
    """A place for a daemon, with two profiles."""
    with schedd_in(box, short_directory) as daemon:
        profiles = daemon.home / "profiles"
        profiles.mkdir()
        profiles.chmod(0o755)
        for name, values in PROFILES.items():
            path = profiles / f"{name}.yaml"
            path.write_text(yaml.safe_dump({"name": name, **values}), encoding="utf-8")
            path.chmod(0o644)
        yield daemon


def start(daemon: Schedd, **placement: object) -> None:
    """Start a daemon that steers."""
    section = {"steer": True, "settle_s": SETTLE_S, "steer_for_s": 120, **placement}
    daemon.configure(
        placement=section,
        paths={"profile_dir": str(daemon.home / "profiles")},
        preemption={"enabled": False},
    )
    daemon.start()


def fill(box: Sandbox, node: str, gpus: int, seconds: int) -> str:
    """Occupy GPUs of one node for a while."""
    done = box.run(
        [
            *("sbatch", "--parsable", "--output=/dev/null", f"--nodelist={node}", "--nodes=1"),
            *(f"--gpus-per-node={gpus}", "--ntasks-per-node=1", "--mem=100"),
            f"--wrap=exec sleep {seconds}",
        ]
    )
    return str(done.stdout).strip()


def submit(daemon: Schedd, gpus: int, model: str, nodes: str, seconds: float) -> str:
    """Submit a job that does nothing for a while."""
    options = ["--nodes", nodes, "--model", model, "--no-preempt", "--mem=100"]
    return daemon.submit(gpus, "sleep", str(seconds), options=options)


def accounts(daemon: Schedd, log: Path, jobs: Sequence[str]) -> dict[str, Ran]:
    """What sacct says of *jobs*, which must all have ended."""
    fields = "--format=jobid,nodelist,start,end,state"
    done = daemon.box.run(["sacct", "-c", "-f", str(log), "--parsable2", "--noheader", fields])
    ran = {}
    for line in done.stdout.splitlines():
        job, nodes, began, ended, state = line.split("|")
        if job in jobs:
            ran[job] = Ran(
                nodes=frozenset(NodeSet(nodes)),
                eligible_s=_epoch(daemon.job(job, "EligibleTime")[0]),
                start_s=_epoch(began),
                end_s=_epoch(ended),
                state=state,
            )
    assert set(ran) == set(jobs), done.stdout
    assert {r.state for r in ran.values()} == {"COMPLETED"}
    return ran


def _epoch(slurm_time: str) -> float:
    return dt.datetime.fromisoformat(slurm_time).astimezone().timestamp()


def until_all_ended(daemon: Schedd, jobs: Sequence[str], within_s: float) -> None:
    """Wait for all of *jobs*."""
    daemon.until(
        "all jobs to end",
        lambda: all(daemon.state(j) not in ("PENDING", "RUNNING", "COMPLETING") for j in jobs),
        within_s,
    )


def test_skewed_models_are_consolidated_and_others_take_fragments(
    place: Schedd, box: Sandbox, tmp_path: Path
) -> None:
    """Three GPUs are free on each node; one node becomes free as a whole."""
    walls = [fill(box, f"n{n}", 5, 20 if n == 6 else 75) for n in range(1, 9)]
    place.until("the nodes to be used", lambda: all(place.state(w) == "RUNNING" for w in walls))
    start(
        place,
        scheme="consolidate",
        parameters={"locality_wait_s": LOCALITY_WAIT_S},
    )
    even = submit(place, 8, "even", "1-4", 40)
    lopsided = submit(place, 8, "lopsided", "1-4", 40)
    too_late = submit(place, 8, "lopsided", "1-4", 5)
    until_all_ended(place, [even, lopsided, too_late], 150)

    ran = accounts(place, tmp_path / "completions", [even, lopsided, too_late])
    wall = accounts_of_walls(box, tmp_path / "completions", walls)
    assert len(ran[even].nodes) > 1, "it takes fragments at once"
    assert ran[even].start_s - ran[even].eligible_s <= SLACK_S
    assert ran[lopsided].nodes == {"n6"}, "it waits for a whole node"
    assert ran[lopsided].start_s >= wall["n6"]
    assert len(ran[too_late].nodes) > 1, "no node came free in time"
    for job in ran.values():
        assert job.start_s - job.eligible_s <= LOCALITY_WAIT_S + SLACK_S
    waited_s = ran[too_late].start_s - ran[too_late].eligible_s
    assert waited_s >= LOCALITY_WAIT_S - SETTLE_S - POLL_S
    assert not any("not honoured" in str(entry) for entry in place.audit())


def accounts_of_walls(box: Sandbox, log: Path, walls: Sequence[str]) -> dict[str, float]:
    """When each wall that has ended did, by its node."""
    done = box.run(
        ["sacct", "-c", "-f", str(log), "-P", "--noheader", "--format=jobid,nodelist,end"]
    )
    lines = [line.split("|") for line in done.stdout.splitlines()]
    return {nodes: _epoch(end) for job, nodes, end in lines if job in walls}


@pytest.mark.parametrize(("model", "nodes"), [("even", {"n1", "n5"}), ("lopsided", {"n5", "n6"})])
def test_a_skewed_gang_waits_for_one_switch(
    place: Schedd, box: Sandbox, tmp_path: Path, model: str, nodes: set[str]
) -> None:
    """Two whole nodes on different switches come free first, then a second one on one of them."""
    ends = {"n1": 15, "n5": 15, "n6": 27}
    walls = [fill(box, f"n{n}", 8, ends.get(f"n{n}", 90)) for n in range(1, 9)]
    place.until("the nodes to be used", lambda: all(place.state(w) == "RUNNING" for w in walls))
    start(place, scheme="consolidate", parameters={"locality_wait_s": LOCALITY_WAIT_S})
    gang = submit(place, 16, model, "2", 2)
    until_all_ended(place, [gang], 90)
    ran = accounts(place, tmp_path / "completions", [gang])[gang]
    assert ran.nodes == nodes
    assert ran.start_s - ran.eligible_s <= LOCALITY_WAIT_S + SLACK_S


def test_no_node_ever_holds_two_distributed_jobs(
    place: Schedd, box: Sandbox, tmp_path: Path
) -> None:
    """Ten jobs of two nodes each, of which two would fit on every node; small ones beside."""
    start(place, scheme="best_fit", rules={"contention": {}})
    gangs = [submit(place, 6, "even", "2", 10 + n % 3) for n in range(10)]
    small = [submit(place, 1, "even", "1", 5) for _ in range(6)]
    until_all_ended(place, [*gangs, *small], 200)
    ran = accounts(place, tmp_path / "completions", [*gangs, *small])
    for one, other in itertools.combinations(gangs, 2):
        a, b = ran[one], ran[other]
        if a.start_s < b.end_s and b.start_s < a.end_s:
            assert not a.nodes & b.nodes, f"{one} and {other} ran side by side on {a.nodes}"
    at_once = max(sum(b.start_s <= a.start_s < b.end_s for b in ran.values()) for a in ran.values())
    assert at_once > 2, "they do run side by side elsewhere"
    assert not box.run(["squeue", "-h"]).stdout
