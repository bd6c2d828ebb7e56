"""A slurmctld of a large site, without slurmd, and shells that fill its queue."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slurm_dl.sandbox import Sandbox, SandboxNodes, SandboxSpec

# Sizes and limits differ from job to job as in a real queue; every fourth job did not opt in.
_ONE = r"""
one() {
  local i=$1 size=$((($1 * 7919) % 20)) shape=(--nodes=1 --gpus-per-node=1) claim=()
  ((size > 10)) && shape=(--nodes=1 --gpus-per-node=$((size % 4 + 1)))
  ((size > 17)) && shape=(--nodes=$((size - 15)) --gpus-per-node=4)
  ((i % 4)) && claim=("--comment={\"slurm_dl\":{\"v\":1,\"sig\":\"USR1\",\"grace_s\":120}}")
  sbatch "${@:2}" "${shape[@]}" "${claim[@]}" --ntasks-per-node=1 --cpus-per-task=4 --requeue \
    --time=$((60 + i % 1000)) --job-name="train-$i" --output=/dev/null \
    <<<$'#!/bin/sh\nexec sleep 60'
}
"""


@contextmanager
def large_site(nodes: int, *slurm_conf: str) -> Iterator[Sandbox]:
    """A slurmctld with so many nodes of 4 GPUs each, none of which is there.

    Args:
        slurm_conf: Lines to add.
    """
    spec = SandboxSpec(
        groups=(SandboxNodes(nodes=nodes, gpus=4, cpus=64, mem_mb=512_000),),
        nodes_per_leaf=25,
        start_slurmd=False,
        # As large sites have it: no scheduling attempt at each submission.
        scheduler_parameters="defer",
        slurm_conf_extra=slurm_conf,
    )
    with tempfile.TemporaryDirectory(prefix="sdl-", dir="/tmp") as parent:
        Path(parent).chmod(0o755)
        directory = Path(parent) / "c"
        try:
            yield Sandbox.up(directory, spec)
        finally:
            if (directory / "sandbox.json").exists():
                Sandbox.open(directory).down(remove=True)


def shell(box: Sandbox, script: str, *args: object) -> subprocess.Popen[bytes]:
    """Begin *script*: one shell for many jobs, where Python for each would cost more than sbatch.

    In it ``one N OPTION...`` submits the job of that number, with these options of sbatch too.
    """
    return subprocess.Popen(
        ["/bin/bash", "-c", f"{_ONE}\n{script}", "bench", *map(str, args)],
        env={"PATH": os.environ["PATH"], **box.env},
        cwd=box.jobs_directory,
        stdin=subprocess.DEVNULL,
        process_group=0,
    )
