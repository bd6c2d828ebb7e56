"""Policies that say no more than an order, from what Slurm says of each job.

Others can build on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from slurm_dl.policies.arrival_las import ArrivalLas
from slurm_dl.policies.base import Policy
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.policies.fifo import Fifo, FifoSkip
from slurm_dl.policies.las import Las
from slurm_dl.policies.shortest import FewestGpus, LongestPending, Sjf, Srsf, Srtf

PLAIN: Final[Mapping[str, type[Policy]]] = MappingProxyType(
    {
        policy.name: policy
        for policy in (
            ArrivalLas,
            DiscreteLas,
            FewestGpus,
            Fifo,
            FifoSkip,
            Las,
            LongestPending,
            Sjf,
            Srsf,
            Srtf,
        )
    }
)
"""By name."""
