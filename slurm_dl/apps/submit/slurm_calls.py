"""The two calls to Slurm: sinfo once for the partitions' GPUs, sbatch once for the job."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurm_dl.apps.submit.shape import GpuNode, Partition
from slurm_dl.apps.submit.values import shown
from slurm_dl.model.errors import ClusterError, ConfigError

_NOT_UP = frozenset(
    {
        "blocked",
        "down",
        "drain",
        "drained",
        "draining",
        "error",
        "fail",
        "failing",
        "future",
        "inval",
        "unknown",
    }
)
"""States of sinfo in which a node takes no job; powered-down nodes are woken, so they count."""

_STATE = re.compile(r"([a-z_]+)([*~#!%$@^+-]*)")
_JOB_ID = re.compile(r"(\d+)(?:;.*)?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Partitions:
    """The partitions and which one is the default."""

    by_name: Mapping[str, Partition]
    default: str | None

    def select(self, names: Sequence[str]) -> tuple[Partition, ...]:
        """The partitions *names*, or the default one.

        Raises:
            ConfigError: There is no such partition, or no default.
        """
        known = ", ".join(sorted(self.by_name)) or "none"
        if not names and self.default is None:
            msg = f"no partition is the default here; give --partition, one of: {known}"
            raise ConfigError(msg)
        chosen = names or (self.default or "",)
        unknown = [name for name in chosen if name not in self.by_name]
        if unknown:
            msg = f"--partition: no partition {unknown[0]}; there are: {known}"
            raise ConfigError(msg)
        return tuple(self.by_name[name] for name in chosen)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What sbatch said.

    Attributes:
        job_id: The job, or the array as a whole; None if sbatch refused.
        text: Its messages, as they came.
    """

    job_id: int | None
    text: bytes


def tool(name: str, environ: Mapping[str, str]) -> str:
    """Absolute path of one of Slurm's commands.

    Raises:
        ClusterError: It is not in PATH.
    """
    path = shutil.which(name, path=environ.get("PATH"))
    if path is None:
        msg = f"{name} is not in PATH; run dlsubmit where Slurm's commands are installed"
        raise ClusterError(msg)
    return path


def read_partitions(environ: Mapping[str, str]) -> Partitions:
    """Ask sinfo for all partitions, their nodes and GPUs.

    Raises:
        ClusterError: sinfo is missing or failed.
    """
    # Not the user's environment: SINFO_* would change what is printed.
    env = {name: environ[name] for name in ("PATH", "HOME", "SLURM_CONF") if name in environ}
    done = subprocess.run(
        [tool("sinfo", environ), "--all", "--noheader", "--Node", "--format=%P|%T|%G"],
        env=env | {"LC_ALL": "C"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        msg = f"sinfo failed: {shown(said[-1]) if said else f'exit {done.returncode}'}"
        raise ClusterError(msg)
    return parse_partitions(done.stdout.decode(errors="replace"))


def parse_partitions(text: str) -> Partitions:
    """Read ``PARTITION|STATE|GRES`` lines, one for each node of each partition."""
    nodes: dict[str, list[GpuNode]] = {}
    default = None
    for line in text.splitlines():
        name, _, rest = line.partition("|")
        state, _, gres = rest.partition("|")
        if name.endswith("*"):
            name = default = name[:-1]
        found = nodes.setdefault(name, [])
        up = _is_up(state)
        found.extend(GpuNode(gpu_type=t, gpus=n, up=up) for t, n in parse_gres(gres).items())
    return Partitions(
        by_name={n: Partition(name=n, nodes=tuple(found)) for n, found in nodes.items()},
        default=default,
    )


def parse_gres(gres: str) -> dict[str, int]:
    """GPUs by type in a node's GRES, such as ``gpu:a100:4(S:0,1),shard:8``; untyped is ''."""
    gpus: dict[str, int] = {}
    for item in re.sub(r"\([^()]*\)", "", gres).split(","):
        name, *rest = item.strip().split(":")
        if name != "gpu" or not rest or not re.fullmatch(r"\d+", rest[-1], re.ASCII):
            continue
        gpu_type = rest[0] if len(rest) > 1 else ""
        gpus[gpu_type] = gpus.get(gpu_type, 0) + int(rest[-1])
    return {gpu_type: n for gpu_type, n in gpus.items() if n}


def _is_up(state: str) -> bool:
    match = _STATE.fullmatch(state)
    return match is not None and match[1] not in _NOT_UP and "*" not in match[2]


def submit(argv: Sequence[str], script: bytes, environ: Mapping[str, str]) -> Answer:
    """Hand the script to sbatch on its standard input.

    There is no time limit: a killed sbatch may have submitted the job.

    Raises:
        ClusterError: sbatch took the job and answered something that is not a job id.
    """
    done = subprocess.run(argv, input=script, env=environ, capture_output=True, check=False)
    if done.returncode:
        return Answer(job_id=None, text=done.stderr + done.stdout)
    last = done.stdout.decode(errors="replace").strip().splitlines()[-1:]
    match = _JOB_ID.fullmatch(last[0]) if last else None
    if match is None:
        msg = f"sbatch answered {shown(''.join(last))} instead of a job id; look at squeue --me"
        raise ClusterError(msg)
    return Answer(job_id=int(match[1]), text=done.stderr)
