"""Every scheme and every rule by its name: ours, and those a site installs as entry points."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from slurm_dl.model import plugins
from slurm_dl.placement.best_fit import BestFit, LoadBalance, Tetris
from slurm_dl.placement.candidate_nodes import Rule
from slurm_dl.placement.cells.hived import Cells
from slurm_dl.placement.consolidate import Consolidate
from slurm_dl.placement.node_rules import Contention, SmallApart
from slurm_dl.placement.pools import Pools
from slurm_dl.placement.reserve_and_pack import ReserveAndPack
from slurm_dl.placement.scheme import Scheme
from slurm_dl.placement.topology import Topology

SCHEME_GROUP: Final = "slurm_dl.placement"
RULE_GROUP: Final = "slurm_dl.placement_rules"

SCHEMES: Mapping[str, type[Scheme]] = MappingProxyType(
    {
        scheme.name: scheme
        for scheme in (
            *(BestFit, Cells, Consolidate, LoadBalance, Pools, ReserveAndPack),
            *(Tetris, Topology),
        )
    }
)
"""The schemes that come with the project."""

RULES: Mapping[str, type[Rule]] = MappingProxyType(
    {rule.name: rule for rule in (Contention, SmallApart)}
)
"""The rules that come with the project."""


def scheme_names() -> tuple[str, ...]:
    """All schemes that can stand in the configuration, sorted."""
    return plugins.all_names(SCHEMES, SCHEME_GROUP)


def rule_names() -> tuple[str, ...]:
    """All rules that can stand in the configuration, sorted."""
    return plugins.all_names(RULES, RULE_GROUP)


def find_scheme(name: str) -> type[Scheme]:
    """The scheme called *name*.

    Raises:
        ConfigError: There is none, or the plugin that provides it cannot be loaded.
    """
    return plugins.find(name, SCHEMES, SCHEME_GROUP, "scheme of placement")


def find_rule(name: str) -> type[Rule]:
    """The rule called *name*.

    Raises:
        ConfigError: There is none, or the plugin that provides it cannot be loaded.
    """
    return plugins.find(name, RULES, RULE_GROUP, "rule of placement")
