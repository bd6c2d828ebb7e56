"""Interface of a placement rule; see `slurm_dl.placement.scheme`."""

from __future__ import annotations

from typing import ClassVar, Protocol, runtime_checkable

from slurm_dl.model.jobs import Bool
from slurm_dl.placement.free_nodes import FreeNodes
from slurm_dl.placement.resource_request import Ask, PendingJob


@runtime_checkable  # Pydantic asks for it.
class Rule(Protocol):
    """Rule on nodes that a job must or should avoid. A frozen dataclass like a scheme."""

    name: ClassVar[str]
    source: ClassVar[str]
    """Paper and section the rule comes from."""
    interpretation: ClassVar[str]
    """Where it reads the source in its own way, in words; empty if nowhere."""
    strict: ClassVar[bool]
    """True: never there. False: there only if nothing else fits."""

    def allows(self, want: PendingJob, ask: Ask, stock: FreeNodes, /) -> Bool:
        """``(v,)`` bool by kind of node in *stock*: one share of *want* may be there.

        Args:
            ask: Which of the job's ways.
        """
