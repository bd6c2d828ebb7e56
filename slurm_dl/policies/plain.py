"""Policies that say no more than an order, from what Slurm says of each job.

Others can build on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType, ModuleType
from typing import Final

from slurm_dl.policies import arrival_las, discrete_las, fifo, las, shortest
from slurm_dl.policies.base import OneTier, Policy


def named_in(*modules: ModuleType) -> dict[str, type[Policy]]:
    """The policies that *modules* define, by name; what is made for others has none."""
    return {
        kind.name: kind
        for module in modules
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, OneTier)
        if kind.__module__ == module.__name__ and "name" in vars(kind)
    }


PLAIN: Final[Mapping[str, type[Policy]]] = MappingProxyType(
    named_in(arrival_las, discrete_las, las, shortest)
    | {policy.name: policy for policy in (fifo.Fifo, fifo.FifoSkip)}
)
"""By name."""
