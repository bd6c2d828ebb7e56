"""A running job gives whole nodes back on a live Slurm, and is not requeued for it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from conftest import MakeSandbox
from resized import held, resizing_schedd
from resized import until_holds as until
from schedd import toy_steps

from slurm_dl.sandbox.spec import SandboxNodes, SandboxSpec

pytestmark = pytest.mark.slurm

THREE = SandboxSpec(groups=(SandboxNodes(nodes=3, gpus=2, gpu_type="a100"),), nodes_per_leaf=0)


@pytest.mark.full("three nodes, a shrink and a requeue")
def test_nodes_come_free_while_the_job_runs_on(
    make_sandbox: MakeSandbox, short_directory: Path
) -> None:
    """From 3 nodes to 1 in the same run; requeued by hand later, it starts on 1 and not on 3."""
    with resizing_schedd(make_sandbox(THREE), short_directory) as place:
        options = ["--sizes", "1x2,3x2", "--in-place", "--time", "60"]
        job = place.toy(2, 4000, options=options)
        until(place, job, 3, 6)
        log = place.home / "slurm_dl_runs" / job / "loss.jsonl"
        place.until("some steps", lambda: log.exists() and len(toy_steps(place.home, job)) > 8)
        run = place.job(job, "StartTime", "Restarts")
        flag = place.home / "end"
        other = place.submit(
            4, "sh", "-c", f"while [ ! -e {flag} ]; do sleep 0.2; done", options=["--no-preempt"]
        )
        place.until("the shrink", lambda: place.audit(action="shrink"))
        asked_s = place.audit(action="shrink")[0]["epoch_s"]
        before = len(toy_steps(place.home, job))
        place.until("steps again", lambda: len(toy_steps(place.home, job)) > before)
        again_s = time.time() - asked_s
        until(place, other, 2, 4)

        assert (held(place, job), place.job(job, "StartTime", "Restarts")) == ((1, 2), run)
        assert again_s < 5
        steps = toy_steps(place.home, job)
        assert steps == sorted(set(steps)), "no step is lost or done again"
        (opened,) = place.audit(action="open_handover")
        assert f"job {job} gives 2 of its 3 nodes back" in opened["reason"]
        assert not place.audit(action="requeue")
        place.until("closed", lambda: place.audit(action="close_handover"))

        place.box.run(["scontrol", "requeue", job])
        place.until("requeued", lambda: place.job(job, "Restarts") == ["1"])
        until(place, job, 1, 2)
        assert place.audit(action="reshape")
        flag.touch()
