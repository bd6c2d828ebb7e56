"""Jobs with shares of GPUs on a sandbox: submit them, and see which device each has."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import yaml
from schedd import Schedd

HALF: Final = "--gres=shard:2"
"""Half a GPU of four shards."""
BEGIN_S: Final = 5
SETTLE_S: Final = 30
"""Slurm says BeginTime of a job until its next pass, some seconds longer than it is true."""
PLACEMENT: Final[Mapping[str, Any]] = {
    "scheme": "best_fit",
    "steer": True,
    "settle_s": SETTLE_S,
    "pack": True,
    "gpu_mem_mb": {"a100": 40_000},
}

_ON: Final = re.compile(r"\bNodes=(\S+) CPU_IDs=\S+ Mem=\d+ GRES=\S*\(IDX:([0-9,-]+)\)")


def write_profiles(daemon: Schedd, profiles: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the site's profiles of models to where `profile_dir` names them."""
    directory = daemon.home / "profiles"
    directory.mkdir(mode=0o755)
    for name, values in profiles.items():
        path = directory / f"{name}.yaml"
        path.write_text(
            yaml.safe_dump({"name": name, "source": "made up", **values}), encoding="utf-8"
        )
        path.chmod(0o644)


def submit(
    daemon: Schedd, gres: str, model: str = "", *, options: tuple[str, ...] = (), **claim: object
) -> str:
    """Submit a job that sleeps until the test ends; it is placed before Slurm looks at it."""
    comment = [f"--comment={comment_of(model, **claim)}"] if model else []
    nodes = () if any(o.startswith("--nodes") for o in options) else ("--nodes=1",)
    done = daemon.box.run(
        [
            *("sbatch", "--parsable", "--output=/dev/null", f"--begin=now+{BEGIN_S}"),
            *(*nodes, *options, gres, *comment, "--wrap=trap '' USR1; exec sleep 600"),
        ]
    )
    return str(done.stdout).strip()


def comment_of(model: str, **claim: object) -> str:
    """The comment of a job of *model*."""
    return json.dumps({"slurm_dl": {"v": 1, "model": model, **claim}})


def fall_short(daemon: Schedd, nodes: int, gres: str) -> str:
    """Submit a job for all GPUs, of which some are taken: more are waited for than are free.

    It comes last in the order of policies that go by size.
    """
    # Not on the nodes of other jobs, as 22.05 counts the device of a pair as free when one leaves.
    wants = (f"--nodes={nodes}", "--exclusive", gres)
    done = daemon.box.run(
        ["sbatch", "--parsable", "--output=/dev/null", *wants, "--wrap=exec sleep 600"]
    )
    job = str(done.stdout).strip()
    daemon.until("the daemon to rank it", lambda: job in daemon.ask("dlqueue").stdout)
    return job


def device(daemon: Schedd, job: str) -> tuple[str, str] | None:
    """Node and index of the job's device; None if it has none."""
    text = daemon.box.run(["scontrol", "-o", "show", "job", "-d", job]).stdout
    found = _ON.search(text)
    return None if found is None else (found[1], found[2])


def started(daemon: Schedd, *jobs: str, within_s: float = 60.0) -> list[tuple[str, str]]:
    """Wait until all *jobs* run; their devices."""
    for job in jobs:
        daemon.until_state(job, "RUNNING", within_s=within_s)
    found = [device(daemon, job) for job in jobs]
    assert None not in found
    return [at for at in found if at is not None]


def waits_for(daemon: Schedd, job: str, why: str) -> bool:
    """The daemon says *why* the job waits, and it does."""
    done = daemon.ask("dlqueue", "why", job, check=False)
    return why in done.stdout and daemon.state(job) == "PENDING"
