"""From a configuration to the parts a daemon runs with. The one place that picks the backends."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from slurm_dl.backends.slurm.cluster import SlurmCluster
from slurm_dl.backends.slurm.command import Slurm
from slurm_dl.backends.store import SqliteStore
from slurm_dl.config.tree import Config
from slurm_dl.engine.ledger import Ledger
from slurm_dl.engine.settings import Preemption, Settings
from slurm_dl.policies.base import Policy

LEDGER_FILE = "ledger.sqlite"

LONGEST_GRACE_S = 86400.0
"""A claimed grace is read up to this. One above the site's limit is not cut to it: the job would be
stopped with less time than it asked for, so it is not preempted at all."""


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """What one configuration stands for."""

    cluster: SlurmCluster
    ledger: Ledger
    policy: Policy
    settings: Settings


def slurm_of(config: Config) -> Slurm:
    """The Slurm commands of the configured cluster.

    Raises:
        ConfigError: A command is missing.
    """
    section = config.cluster
    return Slurm(
        slurm_conf=Path(section.slurm_conf) if section.slurm_conf else None,
        bin_dir=Path(section.bin_dir) if section.bin_dir else None,
        timeout_s=section.timeout_s,
    )


def settings_of(config: Config) -> Settings:
    """The limits of the engine as configured."""
    return Settings(
        partitions=frozenset(config.manage.partitions),
        band_width=config.ranking.band_width,
        window=config.ranking.window,
        preemption=Preemption(**config.preemption.model_dump()),
    )


def assemble(config: Config) -> Parts:
    """The cluster, the ledger, the policy and the limits.

    Raises:
        ConfigError: Slurm's commands are not where the configuration says.
        StoreError: The ledger cannot be opened.
    """
    return Parts(
        cluster=SlurmCluster(slurm_of(config), max_grace_s=LONGEST_GRACE_S),
        ledger=Ledger(SqliteStore(config.paths.state_dir / LEDGER_FILE)),
        policy=config.policy.make(),
        settings=settings_of(config),
    )
