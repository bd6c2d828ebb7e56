"""What is known of a campaign after its end, as data; what each record proves and what it does not.

Three witnesses are asked. Slurm's accounting tells when each run began and ended, in whole seconds.
The jobs themselves wrote down when they lived and what signals they got. The campaign wrote down
what it submitted, what its users did and what it broke. The daemon is no witness: of it only the
ledger is read, and that only to be compared.

Measured on Slurm 22.05.8:

* A job that is requeued after it completed has its record overwritten: it says REQUEUED, with the
  time of the requeue as end. That it had completed only the job's own output tells.
* The end of a requeued run is when it was told to end. A program that does not obey SIGTERM lives
  on for KillWait. Its nodes are given back at the Submit of the next record.
* Elapsed leaves out the seconds in which a job was suspended.
* A tool that ends a run sends SIGTERM to each process once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Final

NOT_OVER: Final = frozenset({"PENDING", "RUNNING", "SUSPENDED", "RESIZING", "COMPLETING"})
REQUEUED: Final = frozenset({"REQUEUED", "PREEMPTED", "REQUEUE_HOLD", "SPECIAL_EXIT"})
"""States of accounting in which a run ended because the job was put back, by whomever."""


def gpus_of(size: str) -> float:
    """GPUs in all of a size such as ``2x4``."""
    nodes, _, gpus = size.partition("x")
    return float(nodes) * float(gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The contract a job was submitted with.

    Attributes:
        signal: Name without ``SIG``.
        grace_s: Between signal and requeue, seconds.
        by: Who requeues: ``daemon`` or ``job``.
    """

    signal: str
    grace_s: float
    by: str = "daemon"


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """What was submitted at once: a job, an array or a het job.

    Attributes:
        job: The id that sbatch told.
        tasks: Numbers of an array's tasks.
        het: Ids of a het job's components, the first is *job*.
        gpus: GPUs of each job, task or component, as submitted.
        sizes: Nodes x GPUs on each, ``1x2``, in which it may run, the submitted one first; empty if
            that was not told.
        terms: None if it declared none.
        expects: ``completed``, ``failed``, ``cancelled`` or ``any``.
        at_s: Epoch seconds.
    """

    job: int
    tasks: tuple[int, ...] = ()
    het: tuple[int, ...] = ()
    kind: str = ""
    gpus: float = 0.0
    terms: Terms | None = None
    requeueable: bool = True
    expects: str = "completed"
    at_s: float = 0.0
    sizes: tuple[str, ...] = ()

    @property
    def least_gpus(self) -> float:
        """GPUs of its least size."""
        return min(map(gpus_of, self.sizes), default=self.gpus)

    @property
    def labels(self) -> tuple[str, ...]:
        """What Slurm calls each of its jobs: ``12``, ``12_3`` or ``12+1``."""
        if self.tasks:
            return tuple(f"{self.job}_{task}" for task in self.tasks)
        if self.het:
            return tuple(f"{self.job}+{offset}" for offset in range(len(self.het)))
        return (str(self.job),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One record of accounting.

    Attributes:
        job: The number squeue knows it by; each array task and component has its own.
        start_s: Epoch, whole seconds; 0 if it never started.
        end_s: Epoch, whole seconds; 0 if it is not over.
        state: The first word of Slurm's.
        elapsed_s: Without the time in which it was suspended.
        gpus: GPUs allocated.
        nodes: Nodes it ran on.
    """

    label: str
    job: int
    submit_s: float
    start_s: float
    end_s: float
    state: str
    elapsed_s: float = 0.0
    gpus: float = 0.0
    nodes: tuple[str, ...] = ()

    @property
    def size(self) -> str:
        """Nodes x GPUs on each; empty if accounting lacks the GPUs or the nodes."""
        nodes = len(self.nodes)
        return f"{nodes}x{self.gpus / nodes:g}" if nodes and self.gpus else ""

    @property
    def is_over(self) -> bool:
        """Accounting knows its end."""
        return self.state not in NOT_OVER and self.end_s > 0

    @property
    def is_requeued(self) -> bool:
        """It ended because the job was put back into the queue."""
        return self.state in REQUEUED


@dataclass(frozen=True, slots=True)
class Mark:
    """One line that a job wrote.

    Attributes:
        event: ``begin``, ``tick``, ``signal``, ``ack``, ``requeue`` or ``end``.
        at_s: Epoch seconds.
        signal: Name without ``SIG``.
        status: What it ends with.
        size: Nodes x GPUs on each that it begins with, by its environment.
    """

    event: str
    at_s: float
    signal: str = ""
    status: int | None = None
    size: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One process of a job, by its own words.

    Attributes:
        restart: Slurm's restart count, as the process was told.
        marks: At least one, by time; ticks between the first and the last are left out.
    """

    label: str
    restart: int
    node: str
    pid: int
    marks: tuple[Mark, ...]

    @property
    def first_s(self) -> float:
        """When it wrote first, epoch seconds."""
        return self.marks[0].at_s

    @property
    def last_s(self) -> float:
        """When it wrote last, epoch seconds."""
        return self.marks[-1].at_s

    @property
    def size(self) -> str:
        """Nodes x GPUs on each, by its environment; empty if it did not say."""
        return self.marks[0].size

    def signals(self, *names: str) -> tuple[Mark, ...]:
        """The signals of these names that it got."""
        return tuple(m for m in self.marks if m.event == "signal" and m.signal in names)

    def first(self, event: str) -> Mark | None:
        """The first line of that event."""
        return next((m for m in self.marks if m.event == event), None)


@dataclass(frozen=True, slots=True)
class Deed:
    """What a user did: ``cancel`` or ``user_requeue``, to a job or to all of an array."""

    event: str
    job: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Fault:
    """One injected fault.

    Attributes:
        begin_s: Epoch seconds.
        end_s: When it was over; the same where it is an instant.
        nodes: The nodes it is about; empty if it may be any.
    """

    name: str
    begin_s: float
    end_s: float
    nodes: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Release:
    """Jobs that ``dlctl release-all`` left.

    Attributes:
        sizes: Of each job that waited before and after it, by label.
        error: What it said as it failed; empty if it did not.
    """

    at_s: float
    sizes: Mapping[str, str]
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """A job that the queue still lists at the end.

    Attributes:
        held: Somebody has to release it before it can start.
    """

    label: str
    job: int
    state: str
    reason: str
    held: bool


@dataclass(frozen=True, slots=True)
class Booked:
    """What the ledger says of one job: GPU-seconds, and whether it calls that a lower bound."""

    attained_gpu_s: float
    incomplete: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything that is known at the end.

    Attributes:
        left: What the queue lists.
        reservations: Reservations of ours that Slurm lists, each with its end in epoch seconds.
        ledger: By job number; None if there is no ledger.
        handovers: Hand-overs that the ledger has ever opened.
        min_quantum_s: The site's.
        at_s: When the queue was asked, epoch seconds.
        unreadable: Lines and records that could not be read.
    """

    submissions: tuple[Submission, ...]
    runs: tuple[Run, ...]
    lives: tuple[Life, ...]
    deeds: tuple[Deed, ...] = ()
    faults: tuple[Fault, ...] = ()
    releases: tuple[Release, ...] = ()
    left: tuple[Left, ...] = ()
    reservations: Mapping[str, float] = field(default_factory=dict)
    ledger: Mapping[int, Booked] | None = None
    handovers: int = 0
    min_quantum_s: float = 0.0
    at_s: float = 0.0
    unreadable: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job, task or component with all that is known of it.

    Attributes:
        runs: By start; those that never started come last.
        lives: By their first words.
        speaks: It should have written something: it is no further component of a het job.
        left: The record in the queue, if there still is one.
    """

    label: str
    submission: Submission
    runs: tuple[Run, ...]
    lives: tuple[Life, ...]
    deeds: tuple[Deed, ...]
    left: Left | None
    speaks: bool

    @property
    def started(self) -> tuple[Run, ...]:
        """The runs that began."""
        return tuple(run for run in self.runs if run.start_s > 0)

    def lives_in(self, run: Run) -> tuple[Life, ...]:
        """The lives that began in *run*; there is one, or none if it was ended too early."""
        later = [r.start_s for r in self.started if r.start_s > run.start_s]
        # Slurm's seconds are cut off, and a node takes its time to begin.
        until_s = min(later, default=inf) - 1
        return tuple(x for x in self.lives if run.start_s - 1 <= x.first_s < until_s)

    @property
    def unrecorded(self) -> tuple[Life, ...]:
        """Lives that fall into no run: accounting lost its record when slurmctld was killed."""
        return tuple(
            life
            for life in self.lives
            if not any(
                run.start_s - 1 <= life.first_s <= (run.end_s + 1 if run.is_over else inf)
                for run in self.started
            )
        )

    def run_of(self, life: Life) -> Run | None:
        """The run in which *life* began, if accounting has it."""
        return next((run for run in reversed(self.started) if life in self.lives_in(run)), None)

    def did(self, event: str) -> tuple[float, ...]:
        """When its user did that to it."""
        return tuple(deed.at_s for deed in self.deeds if deed.event == event)


def jobs_of(evidence: Evidence) -> Iterator[Job]:
    """Each job that was submitted, in the order of submission."""
    runs: dict[str, list[Run]] = {}
    lives: dict[str, list[Life]] = {}
    for run in evidence.runs:
        runs.setdefault(run.label, []).append(run)
    for life in evidence.lives:
        lives.setdefault(life.label, []).append(life)
    left = {record.label: record for record in evidence.left}
    deeds: dict[str, list[Deed]] = {}
    for deed in evidence.deeds:
        deeds.setdefault(deed.job, []).append(deed)
    for submission in evidence.submissions:
        for offset, label in enumerate(submission.labels):
            own = sorted(runs.get(label, ()), key=lambda r: (r.submit_s, r.start_s or inf))
            # A deed may name the job, its number, or the array or het job as a whole.
            names = {label, str(submission.job), *(str(run.job) for run in own)}
            yield Job(
                label=label,
                submission=submission,
                runs=tuple(own),
                lives=tuple(sorted(lives.get(label, ()), key=lambda x: x.first_s)),
                deeds=tuple(d for name in sorted(names) for d in deeds.get(name, ())),
                left=left.get(label),
                speaks=not submission.het or offset == 0,
            )
