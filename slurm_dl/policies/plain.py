"""Policies that say no more than an order, from what Slurm says of each job: bases of others."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType, ModuleType
from typing import Final

from slurm_dl.policies import arrival_las, discrete_las, fifo, las, shortest
from slurm_dl.policies.base import Policy, PolicyDefaults


def named_in(*modules: ModuleType) -> dict[str, type[Policy]]:
    """The policies that *modules* define, sorted by name; what others are made from has none."""
    found = {
        kind.name: kind
        for module in modules
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, PolicyDefaults)
        if kind.__module__ == module.__name__ and "name" in vars(kind)
    }
    return dict(sorted(found.items()))


PLAIN: Final[Mapping[str, type[Policy]]] = MappingProxyType(
    {
        name: policy
        for name, policy in named_in(arrival_las, discrete_las, fifo, las, shortest).items()
        if policy is not fifo.StaticPriority
    }
)
