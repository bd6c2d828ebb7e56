"""A steer: nodes that we keep a pending job from, for a while, because it had better go elsewhere.

It is written into the job's ``ExcNodeList`` beside what its owner has put there, and taken out
again when its time is over. Slurm starts the job, or not, on whatever is left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from slurm_dl.model.ids import JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class Steer:
    """What one job is kept from.

    Attributes:
        avoid: Names of the nodes we keep it from, sorted.
        kind: ``spot`` where it could start at once on what is left to it, ``wait`` where it is to
            wait, ``over`` where its time ran out and it is let go until it has started.
        own: Names of the nodes its owner excluded before we came, sorted.
        since_s: When it was first steered in this wait, epoch seconds.
        until_s: When it is to be let go, epoch seconds.
        not_before_s: Slurm is not to start it anywhere before, epoch seconds; 0 if it may. It is
            put off only from one look to the next, so that it starts by itself if nobody looks.
        why: Where it should rather go.
    """

    job_id: JobId
    kind: Literal["spot", "wait", "over"]
    avoid: tuple[str, ...]
    own: tuple[str, ...] = ()
    since_s: float
    until_s: float
    not_before_s: float = 0.0
    why: str

    @property
    def excluded(self) -> frozenset[str]:
        """All that stands in ExcNodeList then."""
        return frozenset(self.avoid) | frozenset(self.own)
