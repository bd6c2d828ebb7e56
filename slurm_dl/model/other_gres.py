"""GRES beside GPUs, such as ``nvme``: counted, given out with a job and back with its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import F64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OtherGres:
    """What jobs ask of GRES that are no GPUs.

    Attributes:
        asked: ``(g,)`` units that a pending or running job takes of each of its nodes, by job id.
    """

    names: tuple[str, ...]  # ``nvme``, or ``nvme:fast`` for one type; those that some job asks for
    total: F64  # ``(g, m)`` units of each on each node
    asked: Mapping[JobId, tuple[float, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.total.setflags(write=False)
