"""A waiting job, as a scheme of placement sees it."""

from __future__ import annotations

from dataclasses import dataclass

from slurm_dl.model.ids import JobId
from slurm_dl.model.profile import Profile
from slurm_dl.placement.resource_request import Ask, ResourceRequest


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PendingJob:
    """A waiting job, as a scheme sees it.

    Attributes:
        row: Its row in `Jobs`.
        need: What it asks of its nodes, and in which ways it may lie on them.
        profile: Its model's profile; None if it names none that there is.
        account: Its account; empty if it has none.
        waited_s: Seconds it has waited for room since it last ran or was submitted.
        left_s: Seconds it is expected to run; inf if unknown.
        limit_s: Its time limit, seconds; inf if none.
    """

    row: int
    job_id: JobId
    need: ResourceRequest
    profile: Profile | None = None
    account: str = ""
    waited_s: float = 0.0
    left_s: float = float("inf")
    limit_s: float = float("inf")

    def network_mb_s(self, ask: Ask) -> float | None:
        """MB a second that each of its nodes sends to others; None if unknown."""
        if ask.n_nodes == 1:
            return 0.0
        each = None if self.profile is None else self.profile.load.network_mb_s
        return None if each is None else each * ask.gpus

    def pcie_mb_s(self, ask: Ask) -> float | None:
        """MB a second over PCIe on each of its nodes; None if unknown."""
        each = None if self.profile is None else self.profile.load.pcie_mb_s
        return None if each is None else each * ask.gpus

    @property
    def gpus(self) -> float:
        """GPUs in all, as asked for."""
        return self.need.gpus * self.need.n_nodes
