"""GPUs that several jobs may share: who is on which device of a node.

Slurm hands a device out whole or in shares (``gres/shard``), never both at a time. The queue says
how much of GPUs a job holds, not on which device; that is read apart from it.
"""

from __future__ import annotations

from dataclasses import dataclass

from slurm_dl.model.ids import JobId

SLACK = 1e-6
"""Three thirds of a GPU are one, whatever the rounding of their sum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedGpu:
    """One device that is handed out in shares at the moment.

    Attributes:
        first: All devices before it on the node are known to be taken: of those with room Slurm
            takes this one (22.05.8; see docs/use/sharing.md).
    """

    node: int  # Row in `Nodes`
    index: int  # Slurm's index of the device on its node
    jobs: tuple[JobId, ...]  # The jobs with shares of it, ascending; at least one
    shares: tuple[float, ...]  # What part of the device each of them has, above 0
    first: bool = False

    def __post_init__(self) -> None:
        if not self.jobs or len(self.jobs) != len(self.shares):
            msg = f"a shared GPU has one or more jobs with one share each (got {self})"
            raise ValueError(msg)

    @property
    def free(self) -> float:
        """The part of it that nobody holds."""
        return max(0.0, 1.0 - sum(self.shares))
