"""Replicas and retries while the daemon may not write: in shadow mode, and paused."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from conftest import MakeSandbox
from schedd import schedd_in

from slurm_dl.sandbox import SandboxNodes, SandboxSpec

pytestmark = [pytest.mark.slurm, pytest.mark.full("half a minute each; two modes of the daemon")]

SERVICE = {"user": "root", "service_s": 1, "sla_s": 30, "setup_s": 0, "most_replicas": 4}


@pytest.mark.parametrize("mode", ["shadow", "paused"])
def test_neither_throttles_nor_retries_until_the_daemon_may_write(
    mode: str, make_sandbox: MakeSandbox, short_directory: Path
) -> None:
    """An array of replicas keeps its bound and a failed job its end; both change afterwards."""
    rate = short_directory / "rate.csv"
    rate.write_text(f"{time.time():.0f},3\n", encoding="utf-8")
    box = make_sandbox(SandboxSpec(groups=(SandboxNodes(nodes=1, gpus=4),)))
    with schedd_in(box, short_directory) as place:
        place.configure(
            replicas={"services": {"chat": {**SERVICE, "rate": str(rate)}}},
            failures={"retry": True},
            ranking={"pass_s": 0, "overdue_share": 0},
            preemption={"min_quantum_s": 0, "cooldown_s": 0},
        )
        if mode == "shadow":
            place.start(mode="--shadow")
        else:
            place.start()
            place.ask("dlctl", "pause")
        batch = [place.submit(1, "sleep", "600", options=["--time=60"]) for _ in range(3)]
        fails = place.submit(1, "bash", "-c", "exec 1>&2; echo NCCL error; sleep 2; exit 1")
        argv = ["sbatch", "--parsable", "-o/dev/null", "--mem=100", "--gres=gpu:1", "-t60"]
        array = box.run([*argv, "--array=0-9", "-Jchat", "--wrap=sleep 600"]).stdout.strip()
        place.until_state(fails, "FAILED")
        seen = place.cycles()
        place.until("more looks", lambda: place.cycles() > seen + 8)
        assert place.job(array, "ArrayTaskThrottle")[0] in ("", "0")
        assert place.job(fails, "JobState", "Restarts") == ["FAILED", "0"]
        assert all(place.state(job) == "RUNNING" for job in batch)

        rate.write_text(f"{time.time():.0f},3\n", encoding="utf-8")
        if mode == "shadow":
            place.stop()
            place.start()
        else:
            place.ask("dlctl", "resume")
        place.until("the throttle", lambda: place.job(array, "ArrayTaskThrottle") == ["4"])
        place.until("a retry", lambda: place.job(fails, "Restarts") != ["0"])
        place.until("GPUs of batch jobs", lambda: "PENDING" in {place.state(j) for j in batch})
