"""Every policy by its name: ours, and those a site installs as entry points."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from slurm_dl.model import plugins
from slurm_dl.policies.arrival_las import ArrivalLas
from slurm_dl.policies.base import Policy
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.policies.fifo import Fifo, FifoSkip
from slurm_dl.policies.gittins import Gittins
from slurm_dl.policies.las import Las
from slurm_dl.policies.list_gittins import ListGittins
from slurm_dl.policies.list_las import ListLas
from slurm_dl.policies.shortest import FewestGpus, Srsf, Srtf

ENTRY_POINT_GROUP = "slurm_dl.policies"

POLICIES: Mapping[str, type[Policy]] = MappingProxyType(
    {
        policy.name: policy
        for policy in (
            ArrivalLas,
            DiscreteLas,
            FewestGpus,
            Fifo,
            FifoSkip,
            Gittins,
            Las,
            ListGittins,
            ListLas,
            Srsf,
            Srtf,
        )
    }
)
"""The policies that come with the project."""


def runs_on_slurm(policy: type[Policy]) -> bool:
    """Whether a daemon can carry its orders out: Slurm is told tiers, not every job's place."""
    return policy.preempts != "rank"


def names() -> tuple[str, ...]:
    """All names that can stand in the configuration, sorted."""
    return plugins.all_names(POLICIES, ENTRY_POINT_GROUP)


def find(name: str) -> type[Policy]:
    """The policy class called *name*.

    Raises:
        ConfigError: There is none, or the plugin that provides it cannot be loaded.
    """
    return plugins.find(name, POLICIES, ENTRY_POINT_GROUP, "policy")
