"""On a real Slurm nobody is stopped for a job that a limit or a licence would keep waiting."""

from __future__ import annotations

import getpass
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from schedd import Schedd, schedd_in
from victims import sank

from slurm_dl.sandbox import Sandbox, SandboxNodes, SandboxSpec

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.full("needs the database, which `make test` does not install"),
]

OPTED_IN = json.dumps({"slurm_dl": {"v": 1, "sig": "USR1", "grace_s": 3, "by": "daemon"}})
LOOKS = 5
LIMITS = (
    ("add", "account", "free"),
    ("add", "account", "lab"),
    ("add", "user", getpass.getuser(), "account=free,lab"),
    ("add", "qos", "games"),
    ("modify", "qos", "games", "set", "MaxTRESPerUser=gres/gpu=4"),
    ("modify", "account", "lab", "set", "GrpTRES=gres/gpu=4"),
    ("modify", "user", getpass.getuser(), "set", "qos+=games"),
)


@pytest.fixture(scope="module")
def place(module_directory: Path) -> Iterator[Schedd]:
    """Two nodes of four GPUs, one licence, and limits of four GPUs."""
    spec = SandboxSpec(
        groups=(SandboxNodes(nodes=2),),
        slurm_conf_extra=("AccountingStorageEnforce=limits,qos", "Licenses=matlab:1"),
        accounting=True,
    )
    box = Sandbox.up(module_directory / "box", spec)
    try:
        for words in LIMITS:
            box.run(["sacctmgr", "-i", *words])
        with schedd_in(box, module_directory) as daemon:
            daemon.configure(
                policy={"parameters": {"thresholds_gpu_s": [8, 100_000]}},
                preemption={"min_quantum_s": 1},
            )
            daemon.start()
            yield daemon
    finally:
        box.down(remove=True)


def submit(place: Schedd, *options: str) -> str:
    """A job of one whole node that ignores its signal; the job id."""
    argv = ["sbatch", "--parsable", "--output=/dev/null", "--gres=gpu:4", "--requeue", "--time=10"]
    argv += ["--account=free", f"--comment={OPTED_IN}", *options]
    return place.box.run([*argv, "--wrap=trap '' USR1; exec sleep 900"]).stdout.strip()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        pytest.param(("--qos=games",), "MaxTRESPU", id="a user's GPUs in a QOS"),
        pytest.param(("--account=lab",), "GrpTRES", id="an account's GPUs"),
        pytest.param(("--licenses=matlab",), "icence", id="licences"),
    ],
)
def test_of_two_jobs_in_one_poll_the_one_that_fits_gets_gpus(
    place: Schedd, options: tuple[str, ...], named: str
) -> None:
    """The victim of the other one runs on."""
    before = len(place.audit(action="open_handover"))
    victims = [submit(place, f"--nodelist={node}") for node in ("n1", "n2")]
    waits = [submit(place, "--hold", *options) for _ in range(2)]
    try:
        for job in victims:
            place.until("the victim to sink", lambda job=job: sank(place, job))
        place.box.run(["scontrol", "release", ",".join(waits)])
        place.until("one to run", lambda: sorted(map(place.state, waits)) == ["PENDING", "RUNNING"])
        looks = place.cycles() + LOOKS
        place.until("more looks", lambda: place.cycles() >= looks)

        assert len(place.audit(action="open_handover")) == before + 1
        assert sorted(place.job(job, "Restarts")[0] for job in victims) == ["0", "1"]
        second = next(job for job in waits if place.state(job) == "PENDING")
        told = place.ask("dlqueue", "why", second).stdout
        # From when Slurm has looked at the job it names the limit itself.
        assert named in told or "limit" in told or "not available" in told
    finally:
        place.box.run(["scancel", *victims, *waits])
        place.until("all to end", lambda: not place.box.run(["squeue", "-h"]).stdout)
