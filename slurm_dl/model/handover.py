"""A hand-over: GPUs on their way from victims to the jobs that deserve them.

It is data: the ledger keeps it over a crash, `engine.preemption.handover_protocol` says what comes
next, and no code path holds any of it in local variables only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from slurm_dl.model.contract import Contract
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.shape import Shape


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a job: what must be unchanged for an action on it to be right."""

    job_id: JobId
    start_s: float
    restarts: int


class VictimState(StrEnum):
    """How far a victim's preemption has got. Each state is written down before the act."""

    CHOSEN = "chosen"
    SIGNALLING = "signalling"
    """The signal is about to be sent, or was sent by a daemon that died before it could say so."""
    SIGNALLED = "signalled"
    SHRINKING = "shrinking"
    """It is to give nodes back while it runs; is that not seen by the next look, it is requeued."""
    REQUEUING = "requeuing"
    GONE = "gone"
    """The run has ended: requeued, finished or cancelled; its GPUs are free or on their way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Victim:
    """One job that gives its GPUs back.

    Attributes:
        outcome: Why it is gone, in one word (``requeued``, ``shrunk``, ``finished``, ``left``,
            ``refused``); empty before.
        ended: Exit status of its run, as a shell has it, if that failed after the signal and was
            requeued for it; else 0.
        then: Its size afterwards, which room is kept for; None: it leaves, or keeps its size.
        stays: Names of the nodes on which it goes on in the size *then* without a requeue, that of
            its batch script among them; empty: it is requeued.
        gives: GPUs that it has fewer afterwards, weighted as *gpus*; None: all of them.
    """

    run: Run  # The run that was chosen; any other run of the same job is not touched
    gpus: float  # GPUs it held then
    contract: Contract  # Its contract as it was when chosen
    state: VictimState = VictimState.CHOSEN  # See `VictimState`
    signalled_s: float = 0.0  # When the signal was sent, epoch seconds; 0 before
    gone_s: float = 0.0  # When it was seen gone, epoch seconds; 0 before
    outcome: str = ""
    ended: int = 0
    tries: int = 0  # How often that requeue was tried since it last succeeded as a whole
    then: Shape | None = None
    gives: float | None = None
    stays: tuple[str, ...] = ()

    @property
    def has_shrunk(self) -> bool:
        """True once it may have given nodes back while it runs."""
        return self.state is VictimState.SHRINKING or self.outcome == "shrunk"

    @property
    def gives_gpus(self) -> float:
        """GPUs that it has fewer afterwards."""
        return self.gpus if self.gives is None else self.gives


Purpose = Literal["preempt", "defragment", "split", "reshape", "trim"]
"""Why GPUs change hands: for jobs of a better tier; to move jobs together so that a gang fits or
nodes are free as a whole; to part two jobs that slow each other down on one GPU; to move a job to
GPUs of a faster type, or to more of them; to start jobs again on their nodes without the CPUs and
memory that they hold beyond their part, so that another job fits beside them."""


class Seal(StrEnum):
    """Where the reservation that keeps the freed GPUs for the beneficiaries stands."""

    WANTED = "wanted"  # Not there, or created by a daemon that died before it could say so
    STANDING = "standing"
    RELEASED = "released"


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """One set of victims, taken as a whole or not at all, and the jobs they make startable.

    Attributes:
        beneficiaries: Pending jobs the freed GPUs are for, best first; there are some where it is
            to preempt.
        victims: The jobs that give way; not empty. Where it is not to preempt they are to run on
            elsewhere, and no worse than before.
        nodes: Names of the nodes the beneficiaries are to start on, and of those that moved jobs
            go to: they are sealed. None if whole nodes are freed or two jobs are parted.
        seats: Names of the nodes that moved jobs are to go to; none where nobody is moved.
        apart: Names of the models that are not to share a GPU again, sorted; one name if they are
            the same. Empty where nobody is parted.
    """

    handover_id: HandoverId  # Its number, also in the reservation's name
    opened_s: float  # When it was decided, epoch seconds
    beneficiaries: tuple[JobId, ...]
    victims: tuple[Victim, ...]
    nodes: tuple[str, ...]
    attached: tuple[JobId, ...] = ()  # Jobs whose ReservationName has been set
    seal: Seal = Seal.WANTED  # State of the reservation
    purpose: Purpose = "preempt"  # What it is for
    seats: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.victims:
            msg = f"hand-over {self.handover_id} needs victims"
            raise ValueError(msg)
        if not self.beneficiaries and self.purpose == "preempt":
            msg = f"hand-over {self.handover_id} needs beneficiaries"
            raise ValueError(msg)

    @property
    def moved(self) -> tuple[JobId, ...]:
        """The jobs that are to run on elsewhere."""
        # Whose size is not told leaves, to start again elsewhere in its turn.
        moves = self.purpose in ("defragment", "trim") or (
            self.purpose == "reshape" and not self.resizes
        )
        return tuple(v.run.job_id for v in self.victims if moves or v.then is not None)

    @property
    def resizes(self) -> bool:
        """True if a job is to go on in another size."""
        return any(victim.then is not None for victim in self.victims)

    @property
    def signalled(self) -> bool:
        """True once any victim may have been told: from then on there is no way back."""
        return any(v.state is not VictimState.CHOSEN for v in self.victims)


def jobs_of(handovers: Iterable[Handover]) -> frozenset[JobId]:
    """The jobs that *handovers* make room for: their beneficiaries, and the jobs they move."""
    return frozenset(job for h in handovers for job in (*h.beneficiaries, *h.moved))


RESERVATION_PREFIX = "slurm_dl_"
"""All reservations of ours begin with this; nothing else is ever deleted or shortened."""


def reservation_name(handover_id: HandoverId) -> str:
    """Name of the reservation that seals a hand-over."""
    return f"{RESERVATION_PREFIX}{handover_id}"
