"""From a configuration to the engine's settings and the profiles of models."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

from slurm_dl.config.tree import Config
from slurm_dl.engine.settings import (
    Breakers,
    Deadlines,
    Defragment,
    External,
    Native,
    Overdue,
    Placement,
    Preemption,
    Resizing,
    Settings,
)
from slurm_dl.model.failure import Retries
from slurm_dl.model.profile import Profile
from slurm_dl.profiles import load_profiles, shipped_profiles, site_over
from slurm_dl.yaml_places import Reader

DEFER_POLLS = 4
"""A job that is not to start anywhere is put off by so many polls at a time: two may fail."""

LEAST_DEFER_S = 20.0
"""However often it looks, a daemon may be late once."""

NO_PROFILES: Mapping[str, Profile] = MappingProxyType({})


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
    limits = Preemption(
        **section.model_dump(exclude={"mode", "qos", "exempt_accounts"}),
        # Slurm writes the names of accounts in small letters, too.
        exempt_accounts=tuple(name.lower() for name in section.exempt_accounts),
    )
    if native:
        # Whoever may displace nobody waits in the last tier there: a delay would cost its place.
        limits = dataclasses.replace(limits, beneficiary_delay_s=0.0)
    return Settings(
        partitions=frozenset(config.manage.partitions),
        band_width=config.ranking.band_width,
        window=config.ranking.window,
        equals=config.ranking.equals,
        overdue=Overdue(
            after_s=config.ranking.overdue_s,
            share=config.ranking.overdue_share,
            pass_s=config.ranking.pass_s,
            short_s=config.ranking.short_s,
            short_gpus=config.ranking.short_gpus,
            short_share=config.ranking.short_share,
        ),
        hold=config.ranking.hold,
        deadlines=deadlines_of(config),
        preemption=limits,
        mode=native or External(),
        placement=_placement_of(config, profiles),
        resizing=Resizing(**config.resizing.model_dump()),
        defragment=Defragment(**config.defragment.model_dump()),
        breakers=Breakers(**config.breakers.model_dump()),
        retries=Retries(
            infrastructure=config.failures.infrastructure_retries,
            window_s=config.failures.window_s,
        )
        if config.failures.retry
        else None,
    )


def deadlines_of(config: Config) -> Deadlines | None:
    """The bounds on deadlines; None in native mode, where Slurm itself would preempt for them."""
    if config.preemption.mode == "native":
        return None
    section, preemption = config.deadlines.model_dump(), config.preemption
    section["qos"] = tuple(name.lower() for name in section["qos"])
    section["lead_s"] = section["lead_s"] or (
        2 * config.daemon.poll_s + preemption.max_grace_s + preemption.start_margin_s
    )
    return Deadlines(**section)


def with_sure_saves(settings: Settings) -> Settings:
    """*settings* for a simulation, in which saves never fail."""
    limits = dataclasses.replace(settings.preemption, unsaved_share=0.0)
    return dataclasses.replace(settings, preemption=limits)


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
        sharing_mode=section.sharing_mode,
        least_pair_speed=section.least_pair_speed,
        profile_slots=section.profile_slots,
    )
