"""Signals to many jobs of an array that has pending tasks, on a real Slurm.

Such a signal is delivered, and slurmctld answers "try again later": scancel would go on for minutes
and send it again and again.
"""

from __future__ import annotations

from collections import Counter

import pytest
from schedd import TOY, Schedd, running_schedd

pytestmark = pytest.mark.slurm

NODES, GPUS, TASKS = 4, 4, 20
GRACE_S = 10
"""Longer than scancel's first pause, 5 s, after which it sends a signal again."""

COUNTS = """#!/bin/bash
trap 'echo "$SLURM_ARRAY_TASK_ID ${SLURM_RESTART_COUNT:-0}" >>signals' USR1
while :; do sleep 0.2; done
"""


place = running_schedd(policy={"parameters": {"thresholds_gpu_s": [4, 5000]}})
"""A job of one GPU sinks after 4 s."""


def test_sixteen_tasks_of_an_array_are_signalled_once_and_at_the_same_time(place: Schedd) -> None:
    """The daemon goes on looking meanwhile, and the job that they make room for starts in time."""
    claim = f'{{"slurm_dl":{{"v":1,"sig":"USR1","to":"batch","grace_s":{GRACE_S}}}}}'
    argv = [
        "sbatch",
        "--parsable",
        f"--array=1-{TASKS}%{NODES * GPUS}",
        "--gpus-per-node=1",
        "-N1",
        "--requeue",
    ]
    argv += [f"--comment={claim}", "--output=/dev/null", f"--chdir={place.home}"]
    array = place.box.run(argv, stdin=COUNTS).stdout.strip()

    def running() -> list[str]:
        return place.box.run(["squeue", "-hr", f"-j{array}", "-tR", "-o%i"]).stdout.split()

    place.until("the array to fill the cluster", lambda: len(running()) == NODES * GPUS)
    big = place.submit(16, *TOY, "--steps=4", "--step-s=0.25")
    place.until("a signal", lambda: place.audit(action="signal"))
    looked = place.cycles()

    place.until_state(big, "RUNNING", "COMPLETED", within_s=GRACE_S + 15)

    sent, requeued = place.audit(action="signal"), place.audit(action="requeue")
    assert len(sent) == len(requeued) == NODES * GPUS
    assert {entry["result"] for entry in sent + requeued} == {"ok"}
    lines = (place.home / "signals").read_text(encoding="utf-8").splitlines()
    told = Counter(line for line in lines if line.endswith(" 0"))
    assert sorted(told.values()) == [1] * NODES * GPUS, told
    # The signals went out in one cycle, and there were looks all through the grace.
    assert sent[-1]["epoch_s"] - sent[0]["epoch_s"] < GRACE_S / 2
    assert place.cycles() - looked > GRACE_S / 2
