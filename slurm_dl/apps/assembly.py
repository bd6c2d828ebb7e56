"""From a configuration to the parts a daemon runs with. The one place that picks the backends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from slurm_dl.apps import logs
from slurm_dl.apps.history import History
from slurm_dl.apps.knowledge import Knowledge, learn_on_one_core
from slurm_dl.apps.metrics import commands
from slurm_dl.apps.shadow.recorder import Watch
from slurm_dl.apps.watchers import Watcher
from slurm_dl.apps.when.service import forecasts_of
from slurm_dl.backends.profiles import load_profiles, shipped_profiles, site_over
from slurm_dl.backends.profiles.document import Reader
from slurm_dl.backends.slurm.cluster import SlurmCluster
from slurm_dl.backends.slurm.command import Slurm
from slurm_dl.backends.slurm.past import PastReader
from slurm_dl.backends.slurm.preflight import check_external, check_native
from slurm_dl.backends.slurm.queue import Choice
from slurm_dl.backends.slurm.readers import make_queue
from slurm_dl.backends.slurm.site_config import config_values
from slurm_dl.backends.slurm.slurm_conf import settings_in
from slurm_dl.backends.store import SqliteStore
from slurm_dl.config.tree import Config
from slurm_dl.engine.ledger import Ledger
from slurm_dl.engine.settings import (
    Breakers,
    Defragment,
    External,
    Native,
    Placement,
    Preemption,
    Settings,
)
from slurm_dl.estimates.speed import SitePriors
from slurm_dl.model.profile import Profile
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.base import Policy

LEDGER_FILE = "ledger.sqlite"

LONGEST_GRACE_S = 86400.0
"""A claimed grace is read up to this. One above the site's limit is not cut to it: the job would be
stopped with less time than it asked for, so it is not preempted at all."""

DEFER_POLLS = 3
"""A job that is not to start anywhere is put off by so many polls at a time: two may fail."""

LEAST_DEFER_S = 20.0
"""However often it looks, a daemon may be late once."""

NO_PROFILES: Mapping[str, Profile] = MappingProxyType({})


def _as_it_is(snap: Snapshot) -> Snapshot:
    return snap


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """What one configuration stands for."""

    cluster: SlurmCluster
    ledger: Ledger
    policy: Policy
    settings: Settings
    know: Callable[[Snapshot], Snapshot] = _as_it_is


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
    slurm.calls = commands.RUN
    return slurm


def profiles_of(config: Config, *, reader: Reader = "daemon") -> Mapping[str, Profile]:
    """The profiles of models, by name: the site's, and those that come with us.

    Args:
        reader: Who has to trust the site's; see `load_profiles`.

    Raises:
        ConfigError: One of them is bad; one line for each mistake.
    """
    directory = config.paths.profile_dir
    try:
        directory.stat()
    except FileNotFoundError:
        return shipped_profiles()
    except OSError:
        pass  # Why it cannot be read is said where it is.
    return site_over(shipped_profiles(), load_profiles(directory, reader=reader))


def settings_of(config: Config, profiles: Mapping[str, Profile] = NO_PROFILES) -> Settings:
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
        placement=_placement_of(config, profiles),
        defragment=Defragment(**config.defragment.model_dump()),
        breakers=Breakers(**config.breakers.model_dump()),
    )


def _placement_of(config: Config, profiles: Mapping[str, Profile]) -> Placement:
    section = config.placement
    scheme, rules = section.make()
    return Placement(
        scheme=scheme,
        rules=rules,
        steer=section.steer,
        trim=section.trim,
        steer_for_s=section.steer_for_s,
        defer_s=max(DEFER_POLLS * config.daemon.poll_s, LEAST_DEFER_S),
        settle_s=section.settle_s,
        window=section.window,
        profiles=profiles,
        pack=section.pack,
        gpu_mem_mb=dict(section.gpu_mem_mb),
        max_host_slowdown=section.max_host_slowdown if section.max_host_slowdown < 1 else None,
    )


def knowledge_of(config: Config, profiles: Mapping[str, Profile] = NO_PROFILES) -> Knowledge:
    """What adds to each snapshot what is known of its jobs; nothing is read yet.

    Raises:
        ConfigError: A command is missing.
    """
    section = config.estimates
    history = None
    if section.history_days:
        learn_on_one_core()
        reader = PastReader(slurm_of(config), days=section.history_days)
        history = History(reader, logs.logger(), every_s=section.refresh_s)
    site = SitePriors(gpu_speed=dict(section.gpu_speed), serial_share=section.serial_share)
    return Knowledge(history=history, policy=config.policy.make(), profiles=profiles, site=site)


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
    told = settings_in(Path(section.slurm_conf)) if section.slurm_conf else {}
    if name := told.get("clustername"):
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

    def say(choice: Choice) -> None:
        logs.logger().info("reader", reader=choice.reader, because=choice.reason)

    queue = make_queue(slurm, config.cluster.reader, say)
    return SlurmCluster(
        slurm, max_grace_s=LONGEST_GRACE_S, models=profiles.keys() or None, queue=queue
    )


def watchers_of(config: Config) -> tuple[Watcher, ...]:
    """Who is told of each cycle of one turn, beside the log; made anew for each turn.

    Whoever asks for this turn's forecasts gets those that are made here.
    """
    # Those of an earlier turn have a score that another host has gone on with since.
    forecasts_of.cache_clear()
    return (Watch(config.paths.state_dir), forecasts_of(config.paths.state_dir))


def assemble(config: Config, *, generation: int | None = None) -> Parts:
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
    return Parts(
        cluster=cluster_of(config, profiles),
        ledger=Ledger(SqliteStore(path, cluster=name, generation=generation)),
        policy=config.policy.make(),
        settings=settings_of(config, profiles),
        know=knowledge_of(config, profiles),
    )
