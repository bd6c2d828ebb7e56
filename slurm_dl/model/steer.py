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
        kind: ``spot`` where it could start at once on what is left to it, ``wait`` where it is to
            wait, ``over`` where it is let go until it has started: its time ran out, or Slurm would
            not have it so; ``started`` where it runs: Slurm changes no list of a running job, and
            keeps it over a requeue.
        left: Names of the nodes we kept it from before, sorted. They may still stand there, if this
            could not be written, and with the tasks of an array that started before.
        not_before_s: Slurm is not to start it anywhere before, epoch seconds; 0 if it may. It is
            put off only from one look to the next, so that it starts by itself if nobody looks.
        expected_start_s: When it was expected to start then, epoch seconds; None if nobody said.
    """

    job_id: JobId
    kind: Literal["spot", "wait", "over", "started"]
    avoid: tuple[str, ...]  # Names of the nodes we keep it from, sorted
    own: tuple[str, ...] = ()  # Names of the nodes its owner excluded before we came, sorted
    left: tuple[str, ...] = ()
    since_s: float  # When it was first steered in this wait, epoch seconds
    until_s: float  # When it is to be let go, epoch seconds
    not_before_s: float = 0.0
    why: str  # Where it should rather go
    expected_start_s: float | None = None

    @property
    def excluded(self) -> frozenset[str]:
        """All that stands in ExcNodeList then."""
        return frozenset(self.avoid) | frozenset(self.own)

    def puts_off(self, now_s: float, begin_s: float | None) -> bool:
        """Whether it is this that keeps its job from starting at *now_s*.

        Args:
            begin_s: The job's begin time as it stands, epoch seconds; None if that is not known. A
                later one than was written is its owner's.
        """
        # Slurm has whole seconds.
        ours = begin_s is None or begin_s < self.not_before_s + 2
        return self.not_before_s > now_s and ours

    def owned(self, there: frozenset[str]) -> frozenset[str]:
        """What of the nodes that stand *there* now is the owner's.

        Where it is not what we wrote somebody has changed it. One who added to our list has our
        nodes in it; one who wrote another list means all of it.
        """
        if there == self.excluded:
            return frozenset(self.own)
        own, avoid, left = frozenset(self.own), frozenset(self.avoid), frozenset(self.left)
        if there == own | left:
            return own
        for ours in (avoid, left):
            if ours and ours <= there:
                return there - ours
        return there

    def inherited(self, there: frozenset[str]) -> frozenset[str]:
        """What of the nodes that stand *there* is the owner's, of an array or a task of it.

        A task has what stood there when it was split off, whenever that was; so *left* is all that
        ever did.
        """
        return there - frozenset(self.avoid) - frozenset(self.left)
