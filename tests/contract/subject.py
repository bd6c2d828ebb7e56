"""What the contract is held against: any cluster that the engine could be given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal, Protocol

from slurm_dl.model.ids import JobId
from slurm_dl.model.plan import ClusterAction
from slurm_dl.model.snapshot import Observed
from slurm_dl.sandbox import SandboxSpec
from slurm_dl.sandbox.spec import SandboxNodes

Does = Literal[
    "sleeps", "ends", "finishes when told", "saves when told", "counts", "leaves a step behind"
]
"""What a job does: it sleeps, ends with success at once, does so when it is sent USR1, or then says
in its comment that its work is saved, and goes on. Or it acknowledges run 1 at the first signal,
run 2 at the second, and so on. Or it finishes when told, but a step of it ignores SIGTERM: it stays
COMPLETING for KillWait, also when it is cancelled. It acknowledges when that step is there."""

CLAIM: Final = '--comment={"slurm_dl":{"v":1,"sig":"USR1"}}'
"""The option that agrees to preemption."""

SMALL: Final = SandboxSpec(groups=(SandboxNodes(nodes=2, gpus=4),), nodes_per_leaf=0)
"""The cluster that actions are tried on: empty before each."""


class Subject(Protocol):
    """A small cluster of two nodes, n1 and n2, of four GPUs each."""

    def submit(self, *options: str, does: Does = "sleeps") -> JobId:
        """Queue a job with these options of sbatch."""

    def cancel(self, job_id: JobId) -> None:
        """End a job as its owner would."""

    def exclude(self, job_id: JobId, *nodes: str) -> None:
        """Have the owner of a waiting job exclude these nodes and no others."""

    def scontrol_requeue(self, job_id: JobId, *only: str) -> None:
        """Put a job back as its owner would; *only*: a word that says in which states."""

    def observe(self) -> Observed:
        """The cluster now, reservations included."""

    def apply(self, action: ClusterAction) -> None:
        """Do one thing; ClusterError if it is refused."""

    def apply_together(self, actions: Sequence[ClusterAction]) -> None:
        """Do several things at the same time."""

    def until(self, is_so: Callable[[Observed], bool], what: str) -> Observed:
        """Let time pass until *is_so*, and give back that observation; an error after a while."""
