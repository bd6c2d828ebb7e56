"""Jobs whose priority an operator sets on a real Slurm are left alone until they are released."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from schedd import TOY, Schedd, schedd_in

from slurm_dl.sandbox import Sandbox, SandboxNodes, SandboxSpec

pytestmark = pytest.mark.slurm

LOOKS = 3
PRIORITY = "Priority=5"


@pytest.fixture
def place(make_sandbox: Callable[..., Sandbox], short_directory: Path) -> Iterator[Schedd]:
    """A daemon on one GPU, where a running job gives way to nobody yet."""
    spec = SandboxSpec(groups=(SandboxNodes(nodes=1, gpus=1),), nodes_per_leaf=0)
    with schedd_in(make_sandbox(spec), short_directory) as daemon:
        daemon.configure(policy={"parameters": {"thresholds_gpu_s": [100_000]}})
        daemon.start()
        yield daemon


def test_only_a_release_gives_the_job_back(place: Schedd) -> None:
    """One had its place before, one came so; nobody is preempted for them, and none is written."""
    victim = place.toy(1, 10_000)
    place.until_state(victim, "RUNNING")
    placed = place.submit(1, *TOY, "--steps=20")
    place.until("its place", lambda: place.audit(action="set_site_factor", job=int(placed)))
    place.box.run(["scontrol", "update", f"JobId={placed}", PRIORITY])
    came_so = place.submit(1, *TOY, "--steps=20", options=[f"--{PRIORITY.lower()}"])
    # From now on the running job gives way.
    place.configure(policy={"parameters": {"thresholds_gpu_s": [1, 100_000]}})
    place.ask("dlctl", "reload")
    for forgets in (False, True):
        if forgets:
            place.stop()
            place.start()
        looks = place.cycles() + LOOKS
        place.until("more looks", lambda looks=looks: place.cycles() >= looks)
        assert place.audit(action="open_handover") == []
    for job in (placed, came_so):
        told = " ".join(place.ask("dlqueue", "why", job).stdout.split())
        assert f"its priority was set by hand ({PRIORITY}): slurm_dl leaves it alone" in told
    place.box.run(["scontrol", "release", placed])
    place.until_state(placed, "RUNNING", "COMPLETED")

    written = [line["job"] for line in place.audit(action="set_site_factor")]
    assert (written.count(int(placed)), written.count(int(came_so))) == (1, 0)
    assert int(place.job(victim, "Restarts")[0]) == 1
