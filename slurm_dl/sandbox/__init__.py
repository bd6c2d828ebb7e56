"""A private Slurm cluster on one host, in one directory, for trying things and for tests."""

from slurm_dl.sandbox.cluster import DaemonStatus, NodeStatus, Sandbox, SandboxStatus
from slurm_dl.sandbox.spec import (
    LIVELY_SCHEDULER,
    PRODUCTION_SCHEDULER,
    NodeGroup,
    PartitionSpec,
    SandboxSpec,
)

__all__ = [
    "LIVELY_SCHEDULER",
    "PRODUCTION_SCHEDULER",
    "DaemonStatus",
    "NodeGroup",
    "NodeStatus",
    "PartitionSpec",
    "Sandbox",
    "SandboxSpec",
    "SandboxStatus",
]
