"""What a job has agreed to: the preemption contract, declared by the user at submission.

A job without a contract is never signalled and never requeued. A contract can only make a job
easier to preempt; nothing in it raises the job's own standing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self, get_args

from slurm_dl.model.failure import Failure
from slurm_dl.model.shape import Shape
from slurm_dl.model.step_report import StepReport
from slurm_dl.model.value_curve import ValueCurve

SIGNALS = ("USR1", "USR2", "TERM", "INT", "HUP", "CONT")
"""Signals a contract may name. KILL and STOP would defeat the checkpoint."""

SignalTarget = Literal["batch", "steps", "full"]
"""Who gets the signal: the batch script's process, all steps, or both (scancel -b, none, -f)."""

Requeuer = Literal["daemon", "job"]
"""Who puts the job back: the daemon, or the job itself as submitit and Lightning do."""


OrElse = Literal["run", "cancel"]  # Fate of a job whose deadline cannot be promised

Batch = Literal["fixed", "gpu", "elan", "adapt"]
"""The global batch of a job in another size: it stays, or it grows with the GPUs, as soon as each
has few samples of it, or as the noise of the gradient allows."""


DEFAULT_GRACE_S = 120.0  # Grace of a job that does not say another, seconds; dlsubmit's default too


FINAL_STATUS = 93
"""A job that ends with this exit status is not to be run again, whatever was asked of it."""

MOST_SIZES = 32  # Sizes that one job may name

LEAST_UNTIL = 0.5
"""The smallest `Claim.until` that counts: no job is protected for most of its time limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """How to take GPUs back from one job."""

    signal: str = "USR1"  # One of `SIGNALS`, without ``SIG``
    target: SignalTarget = "batch"  # Who gets it
    grace_s: float = DEFAULT_GRACE_S  # Longest wait between signal and requeue, seconds; above 0
    requeued_by: Requeuer = "daemon"  # Who requeues after the checkpoint

    def __post_init__(self) -> None:
        if self.signal not in SIGNALS:
            msg = f"signal {self.signal!r} is not one of {', '.join(SIGNALS)}"
            raise ValueError(msg)
        if not self.grace_s > 0:
            msg = f"grace_s must be above 0 (got {self.grace_s})"
            raise ValueError(msg)

    @property
    def terms(self) -> int:
        """Signal, target and requeuer as one number above 0, which the ledger keeps."""
        return _TERMS[self.signal, self.target, self.requeued_by]

    @classmethod
    def of_terms(cls, terms: int, grace_s: float) -> Self:
        """The contract with these `terms`; an unknown number gives the plain one."""
        named = (words for words, number in _TERMS.items() if number == terms)
        signal, target, requeued_by = next(named, ("USR1", "batch", "daemon"))
        return cls(signal=signal, target=target, grace_s=grace_s, requeued_by=requeued_by)


_TERMS: dict[tuple[str, SignalTarget, Requeuer], int] = {
    (signal, target, requeuer): 1 + s + 16 * t + 64 * r
    for s, signal in enumerate(SIGNALS)
    for t, target in enumerate(get_args(SignalTarget))
    for r, requeuer in enumerate(get_args(Requeuer))
}
"""Numbers that stand in ledgers: what is added to the words comes last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Everything slurm_dl knows of a job from its metadata, validated and clamped.

    Attributes:
        most_nodes: It may lie on any number of nodes up to this, its GPUs split evenly; None if on
            as many as it asks for.
        cpus_per_gpu: CPUs for each of its GPUs, where Slurm does not tell while it waits.
        least_cpus: CPUs on each of its nodes that it can be cut to while it waits; None if to none.
        progress: Share of its work it last reported as done, 0 to 1; None if it reported none.
        acked_run: Restart count of the run that reported "checkpoint saved, ready to be
            requeued"; None if none did. Only an ack for the present run counts.
        unhandled_run: Restart count of the run in which dlrun found that nothing takes the
            checkpoint signal, and that no handler is to be expected; None if it found no such
            run. Only for the present run does it count: of jobs that cost the same to stop it
            comes last.
        unhandled_asked: dlrun found so after it was asked to save, so the grace is cut short.
        final_run: Restart count of the run whose command ended with a status that is final by
            --never-requeue; None if none did.
        preempted_run: Restart count of the run that we asked to stop last; None if we asked none.
        until: Share of its time limit after which a run may not be preempted any more, from
            `LEAST_UNTIL` to 1; None if it says nothing of that.
        saved_s: When its last checkpoint was complete, epoch seconds, as dlrun reported it; None if
            none was reported. It may lie anywhere: whoever reads it puts it into the present run.
        due_s: Its deadline, epoch seconds; None if it has none. It may lie anywhere, and counts as
            far as `engine.promise_terms` lets it.
        curve: Its value by each of several deadlines, of which *due_s* is the first; None if it has
            one deadline. It may only change which of them policies go by.
        or_else: Its fate if the deadline cannot be promised; None if it says none. No effect yet.
        bid: Credits that it offers, 0 or more; None if it offers none. No effect yet.
        sizes: Nodes and GPUs on each in which it can run, fewest GPUs first; empty: as it asks.
        asked: That of *sizes* which it was submitted with; None: the first of them.
        gpu_busy: Share of the time in which its kernels ran while it was alone on a GPU, 0 to 1, as
            dlrun reported it; None if it did not. It never lets the job join another.
        gpu_mem_mb: Most GPU memory that it had on one GPU, MB; likewise.
        in_place: Its command can be stopped and started again by dlrun in the same allocation, on
            fewer of its nodes.
        data_ready: The data that it trains on is there; until then it is not to hold GPUs, and has
            no place in the queue.
        hints: Those by which its speed is told apart, as ``byteps=4096000``; empty: none. One that
            cannot be read is ``?``, which no other run has.
        tag: Stands for its script and arguments, 12 hexadecimal digits; empty if it has none. It
            only changes how long this job is thought to run.
        locked: It keeps its size and, once it has run, its GPU type; see `engine.shape_lock`.
        unreadable: The comment has metadata of ours that is not understood, so that the job has
            no contract though somebody meant it to have one.
    """

    contract: Contract | None = None  # The preemption contract; None if the job did not opt in
    model: str | None = None  # Name of a model profile the admin owns; None if not given or unknown
    most_nodes: int | None = None
    cpus_per_gpu: int | None = None
    mem_mb_per_gpu: int | None = None  # Memory likewise, MB
    least_cpus: int | None = None
    least_mem_mb: int | None = None  # Memory likewise, MB
    rate: float | None = None  # Steps a second it last reported; None if it reported none
    progress: float | None = None
    acked_run: int | None = None
    unhandled_run: int | None = None
    unhandled_asked: bool = False
    final_run: int | None = None
    failed: Failure | None = None  # Its last failure, as dlrun classified it
    preempted_run: int | None = None
    until: float | None = None
    saved_s: int | None = None
    due_s: int | None = None
    curve: ValueCurve | None = None
    or_else: OrElse | None = None
    bid: int | None = None
    sizes: tuple[Shape, ...] = ()
    asked: Shape | None = None
    batch: Batch = "fixed"  # Its global batch in another size
    steps: StepReport | None = None  # Steps that it last reported
    gpu_busy: float | None = None
    gpu_mem_mb: int | None = None
    in_place: bool = False
    data_ready: bool = True
    hints: str = ""
    tag: str = ""
    locked: bool = False
    sizes_unreadable: bool = False  # It names sizes that are not understood, so that it has none
    unreadable: bool = False


NO_CLAIM = Claim()  # A job about which nothing is declared
