"""``--place`` and what goes with it: on which nodes the ideal cluster puts jobs, told from words.

A scheme belongs to a wish, as a policy does, so that schemes can be compared. The rest is the same
for a whole experiment: rules, profiles, how users ask, and what jobs on a node share.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from slurm_dl.config.parameters import RULE, SCHEME, Family
from slurm_dl.engine.settings import Placement
from slurm_dl.experiments.oracle import Oracle
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.profile import Profile
from slurm_dl.model.trace import Trace
from slurm_dl.profiles import load_profiles, shipped_profiles, site_over
from slurm_dl.simulation.cluster_shape import ClusterShape
from slurm_dl.simulation.ideal.jobs_on_nodes import OnNodes, Widths
from slurm_dl.simulation.ideal.placement_speed import ContentionSpeed
from slurm_dl.simulation.node_journal import NodeJournal
from slurm_dl.simulation.outcome import Lay
from slurm_dl.text import shown

T = TypeVar("T")

NOWHERE: Final = "none"
"""In place of a scheme: GPUs are counted, and jobs are on no nodes."""

_TOLD: Final[Mapping[str, str]] = {
    "measured": "measured",
    "interpolated": "interpolated",
    "skew": "by skew",
    "unknown": "unknown",
}
_PARAMETER: Final = re.compile(r",(?=\s*[A-Za-z_]\w*\s*=)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A scheme or a rule as somebody asked for it.

    Attributes:
        name: Its name in the registry.
        parameters: What was set of it.
    """

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        given = ",".join(f"{key}={value}" for key, value in self.parameters.items())
        return f"{self.name}:{given}" if given else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementSetup:
    """What is the same for all schemes of an experiment.

    Attributes:
        rules: Where jobs may not, or had better not be.
        profiles: A directory of profiles that stand before those that come with the project.
        widths: On how many nodes users let their jobs lie.
        network_mb_s: Capacity of a node's network link, MB a second; None: it slows nobody down.
        pcie_mb_s: The same of its PCIe.
        foresight: What is known of the jobs beforehand.
    """

    rules: tuple[Named, ...] = ()
    profiles: str | None = None
    widths: Widths = "any"
    network_mb_s: float | None = None
    pcie_mb_s: float | None = None
    foresight: Oracle = field(default_factory=Oracle)


PLAIN: Final = PlacementSetup()
"""No rule, the profiles that come with the project, and nothing that jobs would share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placing:
    """A scheme with all that goes with it, ready to place jobs.

    Attributes:
        label: Scheme and rules as they were asked for.
    """

    label: str
    how: Placement
    widths: Widths
    contention: ContentionSpeed

    def begin(
        self,
        trace: Trace,
        shape: ClusterShape,
        *,
        skips: bool,
        journal: NodeJournal | None = None,
    ) -> OnNodes:
        """The nodes of one simulation.

        Args:
            skips: Whether the policy serves those behind one that gets no place.
            journal: Is told which nodes each run held; None: nobody wants to know.
        """
        return OnNodes(
            trace,
            shape,
            self.how,
            skips=skips,
            widths=self.widths,
            contention=self.contention,
            journal=journal,
        )


def place(scheme: Named | None, ground: PlacementSetup) -> Placing | None:
    """What *scheme* places jobs by; None if there is no scheme.

    Raises:
        ConfigError: A scheme, a rule, a parameter or a profile is unknown or wrong; says all of it.
    """
    if scheme is None:
        return None
    how = Placement(
        scheme=_make(SCHEME, "--place", scheme),
        rules=tuple(_make(RULE, "--rule", rule) for rule in ground.rules),
        profiles=profiles_of(ground),
    )
    rules = "".join(f", rule {rule}" for rule in ground.rules)
    return Placing(
        label=f"{scheme}{rules}",
        how=how,
        widths=ground.widths,
        contention=ContentionSpeed(**_known(ground.network_mb_s, ground.pcie_mb_s)),
    )


def profiles_of(ground: PlacementSetup) -> Mapping[str, Profile]:
    """The profiles that an experiment goes by.

    Raises:
        ConfigError: One is wrong.
    """
    return _profiles(ground.profiles)


@functools.lru_cache(maxsize=4)
def _profiles(directory: str | None) -> Mapping[str, Profile]:
    """Those that come with the project, and before them those in *directory*.

    Kept, because each of a thousand simulations would read them again.
    """
    shipped = shipped_profiles()
    if directory is None:
        return shipped
    return site_over(shipped, load_profiles(Path(directory), reader="user"))


def _make(family: Family[T], option: str, asked: Named) -> T:
    where = f"{option} {asked.name}"
    try:
        family.check(asked.name)
        whole, mistakes = family.complete(asked.name, asked.parameters)
        wrong = [f"{'.'.join(map(str, m.loc)) or asked.name}: {m.text}" for m in mistakes]
        if not wrong:
            return family.make(asked.name, whole)
    except ValueError as err:
        wrong = [str(err)]
    msg = f"{where}: {'; '.join(wrong)}"
    raise ConfigError(msg)


def parse_named(option: str, word: str, read: Callable[[str], object]) -> Named:
    """A scheme or a rule from ``NAME`` or ``NAME:KEY=VALUE,...``.

    Args:
        option: The option it was given with.
        read: A value from its text.

    Raises:
        ConfigError: It is no such thing.
    """
    name, colon, given = word.partition(":")
    parameters: dict[str, object] = {}
    for part in _PARAMETER.split(given) if colon else ():
        key, equals, text = part.partition("=")
        key = key.strip()
        if not equals or not key or key in parameters:
            msg = (
                f"{option} {shown(word)}: must be NAME or NAME:KEY=VALUE,... with no key twice, "
                "for example consolidate:skew_threshold=0.5"
            )
            raise ConfigError(msg)
        parameters[key] = read(text)
    return Named(name=name.strip(), parameters=parameters)


def parse_scheme(word: str, read: Callable[[str], object]) -> Named | None:
    """A scheme from the word of ``--place``; None for ``none``.

    Raises:
        ConfigError: It is no such thing.
    """
    return None if word.strip() == NOWHERE else parse_named("--place", word, read)


def parse_ground(
    rules: Sequence[str],
    profiles: Path | None,
    widths: Widths,
    contention: str | None,
    read: Callable[[str], object],
) -> PlacementSetup:
    """What goes with a scheme, from the words of its options.

    Args:
        read: A value from its text.

    Raises:
        ConfigError: One of them is no such thing.
    """
    network_mb_s, pcie_mb_s = _parse_capacities(contention)
    return PlacementSetup(
        rules=tuple(parse_named("--rule", word, read) for word in rules),
        profiles=None if profiles is None else str(profiles),
        widths=widths,
        network_mb_s=network_mb_s,
        pcie_mb_s=pcie_mb_s,
    )


def _parse_capacities(words: str | None) -> tuple[float | None, float | None]:
    """Network and PCIe from ``NETWORK`` or ``NETWORK:PCIE``, MB a second."""
    if words is None:
        return None, None
    network, colon, pcie = words.partition(":")
    try:
        values = (float(network), float(pcie) if colon else None)
        known = _known(*values)
        ContentionSpeed(**known)
        is_finite = all(map(math.isfinite, known.values()))
    except ValueError:
        is_finite = False
    if not is_finite:
        msg = f"--contention {shown(words)}: must be NETWORK or NETWORK:PCIE, MB/s, as 1250:12000"
        raise ConfigError(msg)
    return values


def _known(network_mb_s: float | None, pcie_mb_s: float | None) -> dict[str, float]:
    given = {"network_mb_s": network_mb_s, "pcie_mb_s": pcie_mb_s}
    return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class LayFigures:
    """How the jobs of a simulation lay, in a few figures; see `slurm_dl.simulation.outcome.Lay`.

    Attributes:
        mean_nodes: Nodes of a job.
        skewed_spread_frac: Of the skewed jobs, how many ever lay on more than the fewest nodes.
        mean_speed: Speed of a job relative to its best place.
        rungs: Jobs that lay on more than the fewest nodes, by where their speed there is from.
    """

    mean_nodes: float
    skewed_spread_frac: float
    mean_speed: float
    rungs: dict[str, int]

    @property
    def about_speeds(self) -> str:
        """Where the speeds of spread jobs are from, in words; empty if none was spread."""
        counts = ", ".join(f"{n:,} {_TOLD[rung]}" for rung, n in self.rungs.items())
        return f"speeds of jobs that were spread: {counts}" if counts else ""


def as_json(figures: LayFigures | None) -> dict[str, object]:
    """The figures as plain values, under ``placement``; null where jobs were on no nodes."""
    if figures is None:
        return {"placement": None}
    values = {f.name: getattr(figures, f.name) for f in dataclasses.fields(figures)}
    told = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
    }
    return {"placement": told}


def figures_of(lay: Lay | None) -> LayFigures | None:
    """The figures of *lay*; None where jobs were on no nodes."""
    if lay is None:
        return None
    return LayFigures(
        mean_nodes=lay.mean_nodes,
        skewed_spread_frac=lay.skewed_spread_frac,
        mean_speed=lay.mean_speed,
        rungs=dict(lay.rungs),
    )
