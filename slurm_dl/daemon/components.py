"""The parts that a configuration is assembled into, and the configuration as it was read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from slurm_dl.config import Config, ConfigValue
from slurm_dl.engine.settings import Settings
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.base import Policy
from slurm_dl.slurm.cluster import SlurmCluster


@dataclass(frozen=True, slots=True, eq=False)
class Components:
    """The parts of one configuration.

    Attributes:
        enrich: Adds to a snapshot what is known of its jobs beforehand.
    """

    cluster: SlurmCluster
    ledger: Ledger
    policy: Policy
    settings: Settings
    enrich: Callable[[Snapshot], Snapshot] = lambda snap: snap


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration as it was read, where each value comes from, and what was asked for."""

    config: Config
    rows: tuple[ConfigValue, ...]
    path: Path | None = None
    settings: tuple[str, ...] = ()

    @property
    def fixed(self) -> dict[str, str]:
        """The values that cannot change while the daemon runs."""
        return {
            row.key: row.text
            for row in self.rows
            if row.key.startswith(("paths.", "cluster.", "takeover."))
            or (row.key.startswith("control.") and row.key != "control.admins")
        }
