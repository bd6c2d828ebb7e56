"""What a sandbox shall be: node groups, partitions and the few settings that tests turn.

A spec is data. It is written into the sandbox's directory, so that a later ``up`` resumes the same
cluster or says what differs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Final, Literal

from slurm_dl.model.errors import ConfigError

LIVELY_SCHEDULER: Final = (
    "bf_interval=2,sched_interval=3,batch_sched_delay=1,sched_min_interval=500000"
)
"""Decides every few seconds, so that a small cluster can be watched."""

PRODUCTION_SCHEDULER: Final = ""
"""Slurm's own defaults, as most sites run it (bf_interval 30 s, sched_interval 60 s)."""

MAX_NODES: Final = 5_000
_MAX_GPUS: Final = 64
_MAX_SHARDS: Final = 1_000

# What may stand in slurm.conf without quoting; everything else is refused.
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}")
_GPU_TYPE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_HOSTLIST: Final = re.compile(r"ALL|[A-Za-z0-9_,\[\]-]+")
_SETTING: Final = re.compile(r"([A-Za-z][A-Za-z0-9_]*)=([\x20-\x22\x24-\x7e]*)")
_GROUP: Final = re.compile(r"([0-9]{1,5})x([0-9]{1,3})(?::(.+))?")

# The sandbox's own life hangs on these: two sandboxes would clash or `down` would miss a process.
_RESERVED: Final = frozenset(
    {
        "accountingstoragehost",
        "accountingstoragepass",
        "accountingstorageport",
        "authinfo",
        "authtype",
        "clustername",
        "include",
        "nodename",
        "partitionname",
        "slurmctldaddr",
        "slurmctldhost",
        "slurmctldlogfile",
        "slurmctldpidfile",
        "slurmctldport",
        "slurmctldportrange",
        "slurmdlogfile",
        "slurmdpidfile",
        "slurmdport",
        "slurmdspooldir",
        "slurmduser",
        "slurmuser",
        "statesavelocation",
    }
)


def split_setting(line: str, *, where: str) -> tuple[str, str]:
    """Key and value of one ``Key=Value``; *where* opens the message when it is none."""
    match = _SETTING.fullmatch(line)
    if not match:
        message = f"{where}: {line!r} is not one line Key=Value of printable ASCII without '#'"
        raise ConfigError(message)
    return match[1], match[2]


def _check_range(what: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        message = f"{what}: {value} is not between {low} and {high}"
        raise ConfigError(message)


@dataclass(frozen=True, slots=True)
class SandboxNodes:
    """Nodes of one kind.

    Attributes:
        gres: Other GRES of each node, counted, such as ``nvme:2`` or ``fpga:a:1``, and GPUs of
            further types, such as ``gpu:h100:2``.
        options: Further ``Key=Value`` of slurm.conf's node line, such as ``TmpDisk=4000``; they
            replace the sandbox's own.
    """

    nodes: int = 4  # How many nodes
    gpus: int = 4  # Fake GPUs of each node; 0 for nodes without
    gpu_type: str = "a100"  # Slurm's type of these GPUs
    cpus: int = 16  # CPUs Slurm believes each node has
    mem_mb: int = 64_000  # Memory Slurm believes each node has, MiB
    shards: int = 0  # ``gres/shard`` of each node, the same number for each of its GPUs; 0 for none
    gres: tuple[str, ...] = ()
    options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_range("nodes of a group", self.nodes, 1, MAX_NODES)
        _check_range("GPUs of a node", self.gpus, 0, _MAX_GPUS)
        _check_range("CPUs of a node", self.cpus, 1, 4_096)
        _check_range("memory of a node in MiB", self.mem_mb, 1, 100_000_000)
        if self.gpus and not _GPU_TYPE.fullmatch(self.gpu_type):
            message = f"GPU type {self.gpu_type!r}: letters, digits, '_', '.' and '-' only"
            raise ConfigError(message)
        _check_range("shards of a node", self.shards, 0, self.gpus * _MAX_SHARDS)
        if self.gpus and self.shards % self.gpus:
            message = f"shards of a node: {self.shards} is no multiple of its {self.gpus} GPUs"
            raise ConfigError(message)

    def all_gpus(self) -> int:
        """GPUs of each node, of all types."""
        named = (gres.split(":") for gres in self.gres)
        return self.gpus + sum(int(count) for name, *_, count in named if name == "gpu")

    def all_gres(self) -> tuple[str, ...]:
        """The GPUs and other GRES of each node, but shards, as slurm.conf has them."""
        return (*([f"gpu:{self.gpu_type}:{self.gpus}"] if self.gpus else ()), *self.gres)

    def __str__(self) -> str:
        gpus = f"{self.gpus} {self.gpu_type}" if self.gpus else "0 GPUs"
        gpus += f", {self.shards} shards" if self.shards else ""
        more = "".join(f", {word}" for word in (*self.gres, *self.options))
        return f"{self.nodes} x ({gpus}, {self.cpus} CPUs, {self.mem_mb} MiB{more})"


@dataclass(frozen=True, slots=True)
class PartitionSpec:
    """One partition.

    Attributes:
        options: Further ``Key=Value`` of slurm.conf's partition line, such as ``MaxTime=60``.
    """

    name: str  # Its name
    nodes: str = "ALL"  # ``ALL`` or a host list such as ``n[1-2]``
    options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or self.name.upper() == "DEFAULT":
            message = f"partition name {self.name!r}: letters, digits, '_' and '-' only"
            raise ConfigError(message)
        if not _HOSTLIST.fullmatch(self.nodes):
            message = f"partition {self.name}: nodes {self.nodes!r} is no host list like n[1-2]"
            raise ConfigError(message)
        for option in self.options:
            key, value = split_setting(option, where=f"partition {self.name}")
            if " " in value or key.lower() in {"partitionname", "nodes", "default"}:
                message = f"partition {self.name}: option {option!r} cannot be set here"
                raise ConfigError(message)


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """A whole sandbox.

    Attributes:
        groups: Node groups; nodes are numbered n1, n2, ... through all groups.
        nodes_per_leaf: Nodes of one leaf switch, all of one group; 0 for no topology. With blocks:
            nodes of one block.
        topology: What the nodes stand in; ``block`` from Slurm 23.11 on.
        start_slurmd: False for a controller alone: nodes stay in state UNKNOWN, no job ever starts.
        scheduler_parameters: Value of SchedulerParameters; empty for Slurm's defaults.
        slurm_conf_extra: Further ``Key=Value`` lines; they replace the sandbox's own settings.
        accounting: A MariaDB and a slurmdbd of the sandbox's own, so that sacct and sacctmgr work.
    """

    groups: tuple[SandboxNodes, ...] = (SandboxNodes(),)
    nodes_per_leaf: int = 2
    topology: Literal["tree", "block"] = "tree"
    cred_expire_s: int = 5  # Life of a credential; a requeued job is held this long + 1 s
    kill_wait_s: int = 5  # Seconds between SIGTERM and SIGKILL for a cancelled or timed-out job
    partitions: tuple[PartitionSpec, ...] = (PartitionSpec("gpu"),)  # The first one is the default
    start_slurmd: bool = True
    scheduler_parameters: str = LIVELY_SCHEDULER
    slurm_conf_extra: tuple[str, ...] = ()
    accounting: bool = False

    def __post_init__(self) -> None:
        if not self.groups or not self.partitions:
            message = "a sandbox needs at least one node group and one partition"
            raise ConfigError(message)
        _check_range("nodes of a sandbox", self.node_count, 1, MAX_NODES)
        _check_range("nodes of a leaf switch", self.nodes_per_leaf, 0, MAX_NODES)
        _check_range("cred_expire_s", self.cred_expire_s, 1, 3_600)
        _check_range("kill_wait_s", self.kill_wait_s, 1, 65_533)
        names = [partition.name for partition in self.partitions]
        if len(set(names)) != len(names):
            message = f"partition names must differ, got {', '.join(names)}"
            raise ConfigError(message)
        if not re.fullmatch(r"[A-Za-z0-9_,=:+.-]*", self.scheduler_parameters):
            message = (
                f"scheduler_parameters {self.scheduler_parameters!r}: want key=value,key=value"
            )
            raise ConfigError(message)
        for line in self.slurm_conf_extra:
            key, _ = split_setting(line, where="slurm.conf setting")
            if key.lower() in _RESERVED:
                message = f"slurm.conf setting {key}: the sandbox sets it itself, leave it out"
                raise ConfigError(message)

    @property
    def node_count(self) -> int:
        """Nodes of all groups together."""
        return sum(group.nodes for group in self.groups)

    @property
    def node_names(self) -> tuple[str, ...]:
        """Every node's name, in Slurm's order."""
        return tuple(f"n{index}" for index in range(1, self.node_count + 1))

    def ranges(self) -> Iterator[tuple[SandboxNodes, int, int]]:
        """Each group with the numbers of its first and last node."""
        first = 1
        for group in self.groups:
            yield group, first, first + group.nodes - 1
            first += group.nodes


def parse_group(text: str, *, cpus: int, mem_mb: int) -> SandboxNodes:
    """A group from ``NODESxGPUS:TYPE``, such as ``4x4:a100``; ``2x0`` has no GPUs."""
    match = _GROUP.fullmatch(text)
    if not match or (int(match[2]) > 0) != (match[3] is not None):
        message = f"group {text!r}: want NODESxGPUS:TYPE such as 4x4:a100, or 2x0 without GPUs"
        raise ConfigError(message)
    return SandboxNodes(
        nodes=int(match[1]),
        gpus=int(match[2]),
        gpu_type=match[3] or "",
        cpus=cpus,
        mem_mb=mem_mb,
    )


def parse_partition(text: str) -> PartitionSpec:
    """A partition from ``NAME`` or ``NAME=NODES``, such as ``debug=n[1-2]``."""
    name, _, nodes = text.partition("=")
    return PartitionSpec(name, nodes or "ALL")


def differences(there: SandboxSpec, asked: SandboxSpec) -> str:
    """What *asked* has otherwise, in one line; empty when they are equal."""
    return "; ".join(
        f"{field.name} is {_words(getattr(there, field.name))},"
        f" asked for {_words(getattr(asked, field.name))}"
        for field in fields(SandboxSpec)
        if getattr(there, field.name) != getattr(asked, field.name)
    )


def _words(value: object) -> str:
    if isinstance(value, tuple):
        return " + ".join(str(item) for item in value) or "none"
    return str(value) or "none"
