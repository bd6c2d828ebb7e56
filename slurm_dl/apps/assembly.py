"""From a configuration to the parts a daemon runs with. The one place that picks the backends."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from slurm_dl.apps import logs
from slurm_dl.backends.slurm.cluster import SlurmCluster
from slurm_dl.backends.slurm.command import Slurm
from slurm_dl.backends.slurm.preflight import check_external, check_native
from slurm_dl.backends.slurm.queue import Choice
from slurm_dl.backends.slurm.readers import make_queue
from slurm_dl.backends.store import SqliteStore
from slurm_dl.config.tree import Config
from slurm_dl.engine.ledger import Ledger
from slurm_dl.engine.settings import External, Native, Preemption, Settings
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
    section = config.preemption
    # Slurm writes the names of QOS in small letters.
    native = Native(section.qos.lower()) if section.mode == "native" else None
    return Settings(
        partitions=frozenset(config.manage.partitions),
        band_width=config.ranking.band_width,
        window=config.ranking.window,
        preemption=Preemption(**section.model_dump(exclude={"mode", "qos"})),
        mode=native or External(),
    )


def check_mode(config: Config) -> None:
    """Refuse a Slurm that cannot take GPUs back in the configured way.

    Raises:
        ConfigError: It is to do that by itself and is not set up for it, or the daemon is to do
            it and Slurm would as well.
        ClusterError: It is silent, and has to be asked: a QOS is named.
    """
    settings = settings_of(config)
    match settings.mode:
        case External():
            # Without a QOS of ours Slurm was never to preempt, and need not be asked.
            former = config.preemption.qos.lower()
            remark = check_external(slurm_of(config), former) if former else ""
        case Native(qos=qos):
            remark = check_native(
                slurm_of(config), qos=qos, settings=settings, poll_s=config.daemon.poll_s
            )
    if remark:
        logs.logger().warning(remark)


def cluster_of(config: Config) -> SlurmCluster:
    """The cluster with the configured reader of its queue; nothing is read yet.

    Raises:
        ConfigError: A command is missing.
    """
    slurm = slurm_of(config)

    def say(choice: Choice) -> None:
        logs.logger().info("reader", reader=choice.reader, because=choice.reason)

    queue = make_queue(slurm, config.cluster.reader, say)
    return SlurmCluster(slurm, max_grace_s=LONGEST_GRACE_S, queue=queue)


def assemble(config: Config) -> Parts:
    """The cluster, the ledger, the policy and the limits.

    Raises:
        ConfigError: Slurm's commands are not where the configuration says, or Slurm is not set up
            for the configured way of preempting.
        ClusterError: Slurm has to be asked how it is set up, and is silent.
        StoreError: The ledger cannot be opened.
    """
    check_mode(config)
    return Parts(
        cluster=cluster_of(config),
        ledger=Ledger(SqliteStore(config.paths.state_dir / LEDGER_FILE)),
        policy=config.policy.make(),
        settings=settings_of(config),
    )
