"""Every policy by its name: ours, those a site installs as entry points, and those in files."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import cast

from slurm_dl.model import plugins
from slurm_dl.policies import policy_file
from slurm_dl.policies.allox import Allox
from slurm_dl.policies.astraea_ltgf import AstraeaLtgf
from slurm_dl.policies.backfill import Conservative, Easy
from slurm_dl.policies.base import Policy
from slurm_dl.policies.carbyne import Carbyne
from slurm_dl.policies.discrete_gittins import DiscreteGittins
from slurm_dl.policies.drf import Drf
from slurm_dl.policies.edf import Edf
from slurm_dl.policies.elas import Elas
from slurm_dl.policies.elastic.afs import Afs
from slurm_dl.policies.elastic.optimus import Optimus
from slurm_dl.policies.elastic.sidecar import SideCar
from slurm_dl.policies.fifo import StaticPriority
from slurm_dl.policies.gandiva_fair import GandivaFair
from slurm_dl.policies.gavel.hierarchy import GavelHierarchical
from slurm_dl.policies.gavel.objectives import (
    GavelCost,
    GavelCostSlo,
    GavelFinishTime,
    GavelMakespan,
    GavelMaxMin,
    GavelMaxMinAgnostic,
    GavelSum,
)
from slurm_dl.policies.gavel.queues import GavelFifo, GavelIsolated, GavelProportional, GavelSjf
from slurm_dl.policies.gavel.strategy_proof import GavelStrategyProof
from slurm_dl.policies.gittins import Gittins
from slurm_dl.policies.grouper import Grouper
from slurm_dl.policies.hug import Hug
from slurm_dl.policies.karuna import Karuna
from slurm_dl.policies.learned_gittins import LearnedGittins
from slurm_dl.policies.list_gittins import ListGittins
from slurm_dl.policies.list_las import ListLas
from slurm_dl.policies.mlfs import Mlfs
from slurm_dl.policies.plain import PLAIN
from slurm_dl.policies.qssf import Qssf
from slurm_dl.policies.tagged import Tagged
from slurm_dl.policies.themis.finish_time_auction import Themis, ThemisConvex

ENTRY_POINT_GROUP = "slurm_dl.policies"

POLICIES: Mapping[str, type[Policy]] = MappingProxyType(
    dict(PLAIN)
    | {
        policy.name: policy
        for policy in (
            Afs,
            Allox,
            AstraeaLtgf,
            Carbyne,
            Conservative,
            DiscreteGittins,
            Drf,
            Easy,
            Edf,
            Elas,
            GandivaFair,
            GavelCost,
            GavelCostSlo,
            GavelFifo,
            GavelFinishTime,
            GavelHierarchical,
            GavelIsolated,
            GavelMakespan,
            GavelMaxMin,
            GavelMaxMinAgnostic,
            GavelProportional,
            GavelSjf,
            GavelStrategyProof,
            GavelSum,
            Gittins,
            Grouper,
            Hug,
            Karuna,
            LearnedGittins,
            ListGittins,
            ListLas,
            Mlfs,
            Optimus,
            Qssf,
            SideCar,
            StaticPriority,
            Tagged,
            Themis,
            ThemisConvex,
        )
    }
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
