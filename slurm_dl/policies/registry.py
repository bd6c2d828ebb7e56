"""Every policy by its name: ours, those a site installs as entry points, and those in files."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import cast

from slurm_dl.model import plugins
from slurm_dl.policies import (
    allox,
    astraea_ltgf,
    backfill,
    carbyne,
    chronus,
    discrete_gittins,
    drf,
    edf,
    elas,
    elasticflow,
    fifo,
    gandiva_fair,
    gittins,
    grouper,
    hug,
    karuna,
    learned_gittins,
    list_gittins,
    list_las,
    lucid,
    mlfs,
    policy_file,
    qssf,
    tagged,
)
from slurm_dl.policies.base import Policy
from slurm_dl.policies.elastic import afs, optimus, pollux, sia, sidecar
from slurm_dl.policies.gavel import hierarchy, objectives, packed, queues, strategy_proof
from slurm_dl.policies.plain import PLAIN, named_in
from slurm_dl.policies.themis import finish_time_auction

ENTRY_POINT_GROUP = "slurm_dl.policies"

POLICIES: Mapping[str, type[Policy]] = MappingProxyType(
    dict(PLAIN)
    | named_in(
        *(allox, astraea_ltgf, backfill, carbyne, chronus, discrete_gittins, drf, edf, elas),
        *(gandiva_fair, gittins, grouper, hug, karuna, learned_gittins, list_gittins, list_las),
        *(elasticflow, lucid, mlfs, qssf, fifo, tagged, afs, optimus, pollux, sia, sidecar),
        *(hierarchy, objectives, packed, queues, strategy_proof, finish_time_auction),
    )
)
"""The policies that come with the project."""


def runs_on_slurm(policy: type[Policy]) -> bool:
    """Whether it has been shown to work on Slurm; others run in the simulator only."""
    return policy.about.level in {"W3", "W4"}


def names() -> tuple[str, ...]:
    """All names that can stand in the configuration, sorted."""
    return plugins.all_names(POLICIES, ENTRY_POINT_GROUP)


def find(name: str) -> type[Policy]:
    """The policy class called *name*, which may be ``FILE.py:CLASS``.

    Raises:
        ConfigError: There is none, or the plugin or file that provides it cannot be loaded.
    """
    if policy_file.is_file(name):
        return cast("type[Policy]", policy_file.find(name))
    return plugins.find(name, POLICIES, ENTRY_POINT_GROUP, "policy")
