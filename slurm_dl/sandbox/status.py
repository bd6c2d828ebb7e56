"""What can be said about a sandbox at one instant, as data."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_NODE_STATE: Final = re.compile(r"^NodeName=(\S+) .*? State=(\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class DaemonStatus:
    """One daemon: its name, and its pid when it was ever started and not stopped since."""

    name: str
    pid: int | None
    alive: bool


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One node and its state in scontrol's words."""

    name: str
    state: str


@dataclass(frozen=True, slots=True)
class SandboxStatus:
    """What is alive."""

    directory: str  # The sandbox's directory
    cluster: str  # Slurm's name of the cluster
    first_port: int  # slurmctld's port
    answers: bool  # Whether slurmctld answers
    daemons: tuple[DaemonStatus, ...]  # Every daemon the sandbox should have
    nodes: tuple[NodeStatus, ...]  # Empty when slurmctld does not answer

    @property
    def is_up(self) -> bool:
        """Whether every daemon lives and slurmctld answers."""
        return self.answers and all(daemon.alive for daemon in self.daemons)


def node_states(text: str) -> dict[str, str]:
    """Every node's state from ``scontrol -o show nodes``."""
    return dict(_NODE_STATE.findall(text))


def is_in_service(state: str) -> bool:
    """Whether a node's slurmd has registered; a node that was drained by hand counts."""
    return not state.startswith(("UNKNOWN", "DOWN")) and not (
        "*" in state or "NOT_RESPONDING" in state
    )
