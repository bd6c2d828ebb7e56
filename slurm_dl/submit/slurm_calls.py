"""What is asked of Slurm before a job is submitted: sinfo once for the partitions' nodes.

More only for what sinfo does not say: CPUs and memory that nodes keep for themselves, how much
memory a job may have, and, for jobs that ask for few switches, which nodes lie under which.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurm_dl.model.errors import ConfigError
from slurm_dl.placement.synergy import Host
from slurm_dl.slurm.controller import config_values, number_of, partition_values
from slurm_dl.slurm.read.grammar import gres_items
from slurm_dl.slurm.tool_runner import Slurm
from slurm_dl.submit.host_resources import UNLIMITED, MemoryLimit
from slurm_dl.submit.job_shape import GpuNode, GpuPartition
from slurm_dl.text import shown

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

DEFAULT_LONGEST_SWITCH_WAIT_S = 300.0  # Slurm's own ``max_switch_wait``

_STATE = re.compile(r"([a-z_]+)([*~#!%$@^+-]*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Partitions:
    """The partitions and which one is the default."""

    by_name: Mapping[str, GpuPartition]
    default: str | None

    def select(self, names: Sequence[str]) -> tuple[GpuPartition, ...]:
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
            msg = f"--partition: no partition {shown(unknown[0])}; there are: {known}"
            raise ConfigError(msg)
        return tuple(self.by_name[name] for name in chosen)


def read_partitions(slurm: Slurm) -> Partitions:
    """Ask sinfo for all partitions, their nodes and GPUs.

    Raises:
        ClusterError: sinfo is missing or failed.
    """
    fields = "%P|%T|%G|%N|%c|%m|%B|%Z"
    return parse_partitions(
        slurm.run("sinfo", "--all", "--noheader", "--Node", f"--format={fields}")
    )


def parse_partitions(text: str) -> Partitions:
    """Read ``PARTITION|STATE|GRES|NODE|CPUS|MEM_MB|MAX_CPUS|THREADS``, a line for each node.

    A node of several partitions has a line for each. What is left out or not understood from NODE
    on is not known.
    """
    nodes: dict[str, list[GpuNode]] = {}
    default = None
    for line in text.splitlines():
        name, state, gres, node, cpus, mem_mb, most_cpus, threads, *_ = (
            *line.split("|"), "", "", "", "", "", "", "", "",
        )  # fmt: skip
        if name.endswith("*"):
            name = default = name[:-1]
        found = nodes.setdefault(name, [])
        gpus, shards = Counter[str](), 0
        for kind, gpu_type, count in gres_items(gres):
            if kind == "gpu" and count:
                gpus[gpu_type] += int(count)
            elif kind == "shard":
                shards += int(count)
        host = None
        if gpus and _number(cpus) and _number(mem_mb):
            limit = _number(most_cpus) or _number(cpus)
            host = Host(
                gpus=gpus.total(),
                cpus=min(_number(cpus), limit),
                mem_mb=_number(mem_mb),
            )
        found.extend(
            GpuNode(
                gpu_type=gpu_type,
                gpus=n,
                up=_is_up(state),
                name=node,
                shards=shards,
                host=host,
                threads=max(1, _number(threads)),
            )
            for gpu_type, n in gpus.items()
        )
    return Partitions(
        by_name={n: GpuPartition(name=n, nodes=tuple(found)) for n, found in nodes.items()},
        default=default,
    )


def read_memory_limit(partitions: Sequence[str], slurm: Slurm) -> MemoryLimit:
    """The least that any of *partitions* allows; one that says nothing has the cluster's own.

    Raises:
        ClusterError: scontrol is missing or failed.
    """
    cluster = _memory_limit(config_values(slurm.run("scontrol", "show", "config")))
    there = partition_values(slurm.run("scontrol", "--oneliner", "show", "partition"))
    least = UNLIMITED
    for name, words in there.items():
        if name in partitions:
            own = _memory_limit(words)
            least = least.no_more_than(cluster if own == UNLIMITED else own)
    return least


def _memory_limit(words: Mapping[str, str]) -> MemoryLimit:
    keys = ("MaxMemPerNode", "MaxMemPerCPU")
    node_mb, cpu_mb = (float(_number(words.get(key, ""))) or math.inf for key in keys)
    return MemoryLimit(node_mb=node_mb, cpu_mb=cpu_mb)


def read_most_tasks(slurm: Slurm) -> int:
    """Tasks that an array may have: its indexes stay below ``MaxArraySize``.

    Raises:
        ClusterError: scontrol is missing or failed.
    """
    values = config_values(slurm.run("scontrol", "show", "config"))
    return _number(values.get("MaxArraySize", "")) or 1001  # Slurm's own


def read_longest_switch_wait_s(slurm: Slurm) -> float:
    """Longest time a job may wait for few switches; Slurm cuts what asks for more, silently.

    Raises:
        ClusterError: scontrol is missing or failed.
    """
    values = config_values(slurm.run("scontrol", "show", "config"))
    wait_s = number_of(values.get("SchedulerParameters", ""), "max_switch_wait")
    return DEFAULT_LONGEST_SWITCH_WAIT_S if wait_s is None else float(wait_s)


def _number(text: str) -> int:
    """A whole number; 0 for anything else."""
    return int(text) if re.fullmatch(r"\d{1,9}", text, re.ASCII) else 0


def _is_up(state: str) -> bool:
    match = _STATE.fullmatch(state)
    return match is not None and match[1] not in _NOT_UP and "*" not in match[2]
