"""What the cluster in memory knows of one job: what was asked for, and how far it has got."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from slurm_dl.model.contract import Contract
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobState

OnSignal = Literal["save", "ignore", "finish", "requeue_itself"]


@dataclass(slots=True, kw_only=True)
class FakeJob:
    """One job and what it does when it is signalled.

    Attributes:
        work_s: Seconds of running it needs in all.
        on_signal: ``save``: checkpoint within *save_s*, acknowledge and wait; ``ignore``;
            ``finish``: end with success; ``requeue_itself``: checkpoint and go back into the queue.
        done_s: Seconds of its work done in this run and those before it that survived.
        saved_s: Of those, what a checkpoint holds.
        hold: Its owner holds it.
        by_hand: The priority that an operator has set; None: there is none.
        after: The job that must have succeeded before it may start.
        exclusive: It shares its nodes with nobody.
        wanted: The only nodes it may use, as rows; empty for any.
        excluded: Nodes it may not use, as rows, whoever excluded them.
        most_nodes: It may lie on any number of nodes up to this; None: on *n_nodes*.
        typed: It asks for GPUs of the cluster's type, not of any type.
        deadline_s: Its run is over by then, epoch seconds. It ends while it waits, unless it is
            held, once its limit would pass that.
        unmodelled: An option of sbatch of which nobody can tell which nodes it allows.
    """

    job_id: JobId
    gpus: float
    n_nodes: int
    work_s: float
    contract: Contract | None
    on_signal: OnSignal
    save_s: float
    limit_s: float
    uid: int
    submit_s: float
    state: JobState = JobState.PENDING
    site_factor: int = 0
    start_s: float = 0.0
    end_s: float = 0.0
    eligible_s: float = 0.0
    restarts: int = 0
    done_s: float = 0.0
    saved_s: float = 0.0
    asked_s: float | None = None
    acked_run: int | None = None
    reservation: str = ""
    qos: str = ""
    hold: bool = False
    by_hand: int | None = None
    after: JobId | None = None
    requeueable: bool = True
    exclusive: bool = False
    wanted: tuple[int, ...] = ()
    excluded: frozenset[int] = frozenset()
    most_nodes: int | None = None
    typed: bool = False
    deadline_s: float = math.inf
    unmodelled: str = ""
    nodes: tuple[int, ...] = ()
    runs: list[tuple[float, float]] = field(default_factory=list)
    signals: list[float] = field(default_factory=list)

    def ways(self) -> list[int]:
        """On how many nodes it may lie, fewest first: those that split its GPUs evenly."""
        more = range(self.n_nodes + 1, (self.most_nodes or self.n_nodes) + 1)
        return [self.n_nodes, *(n for n in more if self.gpus % n == 0)]

    @property
    def gpu_s(self) -> float:
        """GPU-seconds over the runs that are over."""
        return self.gpus * sum(end - start for start, end in self.runs)


@dataclass(slots=True, kw_only=True)
class FakeReservation:
    """Nodes kept for attached jobs until *end_s*."""

    nodes: frozenset[int]
    end_s: float
