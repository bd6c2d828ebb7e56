"""From a configuration to the parts a daemon runs with. The one place that picks the backends."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from slurm_dl import logging_setup
from slurm_dl.config.engine_settings import NO_PROFILES, deadlines_of, profiles_of, settings_of
from slurm_dl.config.tree import Config
from slurm_dl.daemon.components import Components
from slurm_dl.daemon.enrich import Enricher, HistoryCache, learn_on_one_core
from slurm_dl.daemon.metrics import counters
from slurm_dl.daemon.replica_counts import ReplicaCount
from slurm_dl.engine.settings import (
    External,
    Native,
)
from slurm_dl.estimates.training_speed import SitePriors
from slurm_dl.ledger.sqlite.store import SqliteStore
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.profile import Profile
from slurm_dl.slurm.accounting.past_jobs import PastReader
from slurm_dl.slurm.cluster import SlurmCluster
from slurm_dl.slurm.controller import config_values, settings_in
from slurm_dl.slurm.preflight import check_external, check_native
from slurm_dl.slurm.pyslurm.reader import make_queue
from slurm_dl.slurm.tool_runner import Slurm

LEDGER_FILE = "ledger.sqlite"

LONGEST_GRACE_S = 86400.0
"""A claimed grace is read up to this. One above the site's limit is not cut to it: the job would be
stopped with less time than it asked for, so it is not preempted at all."""


def slurm_of(config: Config) -> Slurm:
    """The Slurm commands of the configured cluster.

    Raises:
        ConfigError: A command is missing.
    """
    section = config.cluster
    slurm = Slurm(
        slurm_conf=Path(section.slurm_conf) if section.slurm_conf else None,
        bin_dir=Path(section.bin_dir) if section.bin_dir else None,
        timeout_s=section.timeout_s,
    )
    slurm.calls = counters.COMMANDS_RUN
    return slurm


def knowledge_of(config: Config, profiles: Mapping[str, Profile] = NO_PROFILES) -> Enricher:
    """Make the enricher of snapshots from *config*; nothing is read yet.

    Raises:
        ConfigError: A command is missing.
    """
    section = config.estimates
    history = None
    if section.history_days:
        learn_on_one_core()
        reader = PastReader(slurm_of(config), days=section.history_days)
        history = HistoryCache(reader, logging_setup.logger(), every_s=section.refresh_s)
    site = SitePriors(gpu_speed=dict(section.gpu_speed), serial_share=section.serial_share)
    return Enricher(
        history=history,
        policy=config.policy.make(),
        profiles=profiles,
        site=site,
        checkpoint_cost_s=config.preemption.checkpoint_cost_s,
        deadlines=deadlines_of(config),
        services=[
            ReplicaCount(name, service, logging_setup.logger())
            for name, service in config.replicas.services.items()
        ],
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
        logging_setup.logger().warning(remark)


def name_of_cluster(config: Config) -> str:
    """The name the ledger goes by: as configured, else what slurm.conf says, in small letters.

    Slurm is asked only where no slurm.conf is named, or it cannot be read.

    Raises:
        ConfigError: A command is missing.
        ClusterError: Slurm has to be asked, and is silent.
    """
    section = config.cluster
    if section.name:
        return section.name.lower()
    site_settings = settings_in(Path(section.slurm_conf)) if section.slurm_conf else {}
    if name := site_settings.get("clustername"):
        return name.lower()
    shown = slurm_of(config).run("scontrol", "show", "config")
    return config_values(shown).get("ClusterName", "").lower()


def cluster_of(config: Config, profiles: Mapping[str, Profile] = NO_PROFILES) -> SlurmCluster:
    """The cluster with the configured reader of its queue; nothing is read yet.

    A job that names a model nobody has a profile of counts as one that names none. Where there are
    no profiles at all there is nothing to believe or not, and what jobs say is passed on.

    Raises:
        ConfigError: A command is missing.
    """
    slurm = slurm_of(config)
    queue = make_queue(slurm, config.cluster.reader)
    return SlurmCluster(
        slurm,
        max_grace_s=LONGEST_GRACE_S,
        models=profiles.keys() or None,
        queue=queue,
        weights=dict(config.service.weights),
    )


def assemble(config: Config, *, generation: int | None = None) -> Components:
    """The cluster, the ledger, the policy and the limits.

    Args:
        generation: What the ledger is written with; see `SqliteStore`.

    Raises:
        ConfigError: Slurm's commands are not where the configuration says, Slurm is not set up for
            the configured way of preempting, or a profile of a model is bad.
        ClusterError: Slurm has to be asked how it is set up or what it is called, and is silent.
        StoreError: The ledger cannot be opened, or is another cluster's.
    """
    profiles = profiles_of(config)
    check_mode(config)
    path, name = config.paths.state_dir / LEDGER_FILE, name_of_cluster(config)
    return Components(
        cluster=cluster_of(config, profiles),
        ledger=Ledger(SqliteStore(path, cluster=name, generation=generation)),
        policy=config.policy.make(),
        settings=settings_of(config, profiles),
        enrich=knowledge_of(config, profiles),
    )
