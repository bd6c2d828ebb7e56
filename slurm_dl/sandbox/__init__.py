"""A private Slurm cluster on one host, in one directory, for trying things and for tests."""

from slurm_dl.sandbox.private_cluster import DaemonStatus, NodeStatus, Sandbox, SandboxStatus
from slurm_dl.sandbox.spec import (
    LIVELY_SCHEDULER,
    PRODUCTION_SCHEDULER,
    PartitionSpec,
    SandboxNodes,
    SandboxSpec,
)

__all__ = [
    "LIVELY_SCHEDULER",
    "PRODUCTION_SCHEDULER",
    "DaemonStatus",
    "NodeStatus",
    "PartitionSpec",
    "Sandbox",
    "SandboxNodes",
    "SandboxSpec",
    "SandboxStatus",
]
