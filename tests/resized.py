"""A small cluster on which a daemon changes the sizes of jobs within seconds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from schedd import Schedd, schedd_in

from slurm_dl.sandbox import Sandbox
from slurm_dl.sandbox.spec import SandboxNodes, SandboxSpec
from slurm_dl.slurm.read.grammar import expand

TWO = SandboxSpec(groups=(SandboxNodes(nodes=2, gpus=2, gpu_type="a100"),), nodes_per_leaf=0)
"""Two nodes of two GPUs each."""

_ON_NODES = re.compile(r" Nodes=(\S+) CPU_IDs=\S+ Mem=\S+ GRES=gpu:a100:(\d+)")

SETTINGS: dict[str, dict[str, Any]] = {
    "resizing": {"steadiness": 0.1, "cooldown_s": 3},
    "placement": {"scheme": "best_fit", "steer": True, "settle_s": 4},
    "preemption": {"checkpoint_cost_s": 1, "max_preemptions": 1},
}


@contextmanager
def resizing_schedd(box: Sandbox, home: Path) -> Iterator[Schedd]:
    """A running daemon that changes sizes as soon as that helps."""
    with schedd_in(box, home) as daemon:
        daemon.configure(**SETTINGS)
        daemon.start()
        yield daemon


def held(place: Schedd, job: str) -> tuple[int, int]:
    """Nodes and GPUs that a running job holds, as its details tell; zeros if it does not run."""
    text = place.box.run(["scontrol", "-o", "-d", "show", "job", job]).stdout
    if " JobState=RUNNING" not in text:
        return 0, 0
    parts = [(len(expand(nodes)), int(gpus)) for nodes, gpus in _ON_NODES.findall(text)]
    return sum(n for n, _ in parts), sum(n * gpus for n, gpus in parts)


def until_holds(place: Schedd, job: str, nodes: int, gpus: int) -> tuple[float, int]:
    """Wait until the job holds just that; the start of its run, epoch seconds, and its GPUs."""
    place.until(f"job {job} on {gpus} GPUs", lambda: held(place, job) == (nodes, gpus), 90)
    text = place.box.run(["squeue", "-h", "-j", job, "-o", "%S"], env={"SLURM_TIME_FORMAT": "%s"})
    return float(text.stdout), gpus
