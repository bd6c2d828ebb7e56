"""``--place`` and what goes with it: on which nodes the ideal cluster puts jobs, told from words.

A scheme belongs to a wish, as a policy does, so that schemes can be compared. The rest is the same
for a whole experiment: rules, profiles, how users ask, and what jobs on a node share.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from slurm_dl.config.parameters import RULE, SCHEME, Family
from slurm_dl.engine.settings import Placement
from slurm_dl.experiments.option_words import made, numbers, pairs, parse_value
from slurm_dl.experiments.oracle import Oracle
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.profile import Profile
from slurm_dl.profiles import load_profiles, shipped_profiles, site_over
from slurm_dl.simulation.ideal.jobs_on_nodes import Widths
from slurm_dl.simulation.ideal.placement_speed import ContentionSpeed
from slurm_dl.text import safe

T = TypeVar("T")

NOWHERE: Final = "none"  # In place of a scheme: GPUs are counted, and jobs are on no nodes

_PARAMETER: Final = re.compile(r",(?=\s*[A-Za-z_]\w*\s*=)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A scheme or a rule as somebody asked for it, with what was set of it."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        given = ",".join(f"{key}={value}" for key, value in self.parameters.items())
        return f"{self.name}:{given}" if given else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementSetup:
    """Values that all schemes of an experiment share."""

    rules: tuple[Named, ...] = ()  # Where jobs may not, or had better not be
    profiles: str | None = None  # A directory of profiles that stand before those of the project
    widths: Widths = "any"  # On how many nodes users let their jobs lie
    contention: ContentionSpeed = field(default_factory=ContentionSpeed)  # Shared on a node
    foresight: Oracle = field(default_factory=Oracle)  # What is known beforehand

    def placement(self, scheme: Named | None) -> Placement:
        """What *scheme* places jobs by; with profiles alone where only speeds need them.

        Raises:
            ConfigError: A scheme, a rule, a parameter or a profile is unknown or wrong.
        """
        if scheme is None:
            known = self.foresight
            uses = known.gpu_speed or known.rates
            return Placement(profiles=_profiles(self.profiles) if uses else {})
        first = _made(SCHEME, "--place", scheme)
        rules = tuple(_made(RULE, "--rule", rule) for rule in self.rules)
        return Placement(scheme=first, rules=rules, profiles=_profiles(self.profiles))

    def label(self, scheme: Named | None) -> str:
        """Scheme and rules as they were asked for; empty if there is no scheme."""
        return "" if scheme is None else ", rule ".join(map(str, (scheme, *self.rules)))


PLAIN: Final = PlacementSetup()
"""No rule, the profiles that come with the project, and nothing that jobs would share."""


@functools.lru_cache(maxsize=4)
def _profiles(directory: str | None) -> Mapping[str, Profile]:
    """Those that come with the project, and before them those in *directory*.

    Kept, because each of a thousand simulations would read them again.
    """
    own = {} if directory is None else load_profiles(Path(directory), reader="user")
    return site_over(shipped_profiles(), own)


def _made(family: Family[T], option: str, asked: Named) -> T:
    option = f"{option} {asked.name}:"
    try:
        family.check(asked.name)
    except ValueError as err:
        msg = f"{option} {err}"
        raise ConfigError(msg) from err
    return made(family, option, asked.name, asked.parameters)


def parse_named(option: str, word: str) -> Named:
    """A scheme or a rule from ``NAME`` or ``NAME:KEY=VALUE,...``.

    Raises:
        ConfigError: It is no such thing.
    """
    name, colon, given = (part.strip() for part in word.partition(":"))
    form = "NAME or NAME:KEY=VALUE,... with no key twice, as consolidate:skew_threshold=0.5"
    words = _PARAMETER.split(given) if colon else ()
    parameters = pairs(f"{option} {safe(name, 60)}:", words, form, parse_value)
    return Named(name=name, parameters=parameters)


def parse_contention(words: str | None) -> ContentionSpeed:
    """What jobs share, from ``NETWORK`` or ``NETWORK:PCIE``, MB a second.

    Raises:
        ConfigError: It is no such thing.
    """
    if words is None:
        return ContentionSpeed()
    form = "NETWORK or NETWORK:PCIE, MB/s, as 1250:12000"
    return numbers(
        "--contention", words, form, at=":",
        make=lambda mb_s, pcie=math.inf: ContentionSpeed(network_mb_s=mb_s, pcie_mb_s=pcie),
    )  # fmt: skip
