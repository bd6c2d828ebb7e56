"""Jobs that are over, as Slurm last listed them: whose they were, and how they ended.

Slurm forgets a job minutes after its end. What people may want to know of it then is written down
in the look that first sees it over. `PastJob` is all that the ledger has of one job.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from slurm_dl.ledger.attained_service import AttainedService, EndedRun, remembered
from slurm_dl.model.handover import Purpose
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.jobs import COMPLETED, I64, JobState, Remembered, is_in
from slurm_dl.model.shape import Shape
from slurm_dl.model.snapshot import JobText, Observed

LONGEST_TEXT = 200  # Characters kept of a text; users write some of them, and may write a book

MOST_STRANGERS = 5_000
"""Jobs that were over when they were seen first, written down in one look; the rest in the next."""

_WORDS = ("name", "user", "account", "qos", "reason", "nodes", "ending")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnding:
    """One job that is over; texts are cut at `LONGEST_TEXT`.

    Attributes:
        label, name, user, account, qos, reason, nodes: See `JobText`.
    """

    job_id: JobId  # Id of its record
    label: str
    name: str = ""
    user: str = ""
    account: str = ""
    qos: str = ""
    reason: str = ""
    nodes: str = ""
    ending: str = ""  # Slurm's word for how it ended; empty if it was not told
    uid: int  # Its owner
    partition: str = ""  # Name of its partition; empty if it named several
    state: JobState  # How it ended, in ours
    tasks: int = 1  # Jobs in the record
    n_nodes: int = 1  # Nodes it held or asked for
    gpus: float = 0.0  # GPUs it held or asked for
    restarts: int = 0  # Slurm's restart count
    start_s: float = 0.0  # Start of its last run, epoch seconds; 0 if it never started
    end_s: float = 0.0  # Its end, epoch seconds; 0 if Slurm did not tell
    seen_s: float  # When it was first seen over, epoch seconds
    preemptible: bool = False  # It declared a preemption contract
    submit_s: float = 0.0  # First submission, epoch seconds; 0 if nobody wrote it down, as below
    first_run_s: float = 0.0  # First start, epoch seconds; 0 if it never started
    ran_s: float = 0.0  # Seconds over all its runs

    @property
    def how(self) -> str:
        """The job's end, in a word for people."""
        return (self.ending or self.state.name).lower()

    @property
    def last_run_gpu_s(self) -> float:
        """GPU-seconds of its last run, by what Slurm told when it was over."""
        return self.gpus * max(0.0, self.end_s - self.start_s) if self.start_s > 0 else 0.0


def endings_of(
    before: AttainedService, after: AttainedService, seen: Observed, strangers: I64
) -> tuple[tuple[JobEnding, ...], I64]:
    """The jobs that *seen* is the first look to show as over.

    Args:
        before: The ledger's columns before *seen* was folded in.
        after: The same after that.
        strangers: Ids of jobs that are over and not in the columns, as they came back last time;
            none at first.

    Returns:
        How they ended, and the ids for the next look: of jobs that are listed and written down.
    """
    jobs = seen.jobs
    listed = jobs.state >= COMPLETED
    # They came and ended between two looks, or before the first one.
    unknown = jobs.job_id[listed & ~is_in(jobs.job_id, after.job_id)]
    came = unknown[~is_in(unknown, strangers)][:MOST_STRANGERS]
    strangers = unknown[is_in(unknown, strangers) | is_in(unknown, came)]
    over = after.job_id[after.over != 0]
    new = np.concatenate([over[~is_in(over, before.job_id[before.over != 0])], came])
    if not len(new):
        return (), strangers
    these = dataclasses.replace(seen, jobs=jobs.take(listed & is_in(jobs.job_id, new)))
    memory = remembered(after, these.jobs)
    return tuple(endings_at(range(len(these.jobs)), these, memory)), strangers


def endings_at(rows: Iterable[int], seen: Observed, memory: Remembered) -> Iterator[JobEnding]:
    """The ends of the jobs at *rows*, which are over."""
    jobs = seen.jobs
    for i in rows:
        start_s, end_s = float(jobs.start_s[i]), float(jobs.end_s[i])
        first_s = float(memory.first_run_s[i])
        first_s = first_s if 0 < first_s <= start_s else start_s
        job_id, partition = JobId(int(jobs.job_id[i])), int(jobs.partition[i])
        text = seen.texts.get(job_id) or JobText(label=str(job_id))
        yield JobEnding(
            job_id=job_id,
            label=bounded_label(text.label),
            **{word: bounded(getattr(text, word)) for word in _WORDS},
            uid=int(jobs.uid[i]),
            partition=bounded(seen.partitions[partition]) if partition >= 0 else "",
            state=JobState(int(jobs.state[i])),
            tasks=int(jobs.tasks[i]),
            n_nodes=int(jobs.n_nodes[i]),
            gpus=float(jobs.gpus[i]),
            restarts=int(jobs.restarts[i]),
            start_s=start_s,
            end_s=end_s,
            seen_s=seen.now_s,
            preemptible=seen.claim(job_id).contract is not None,
            submit_s=float(memory.first_submit_s[i]),
            first_run_s=first_s,
            ran_s=max(float(memory.ran_s[i]), end_s - start_s, 0.0) if start_s > 0 else 0.0,
        )


def bounded(text: str) -> str:
    """*text* as it can be kept: not too long, and nothing in it that no file can hold."""
    # A lone surrogate is no character; what cannot be encoded could not be written down.
    return text[:LONGEST_TEXT].encode("utf-8", "replace").decode("utf-8")


def bounded_label(label: str) -> str:
    """Slurm's *label* as it can be kept: a long list of tasks is cut as squeue cuts it."""
    if len(label) > LONGEST_TEXT and label.endswith("]"):
        whole = label[: LONGEST_TEXT - len(_MORE)].rpartition(",")[0]
        return bounded(whole + _MORE)
    return bounded(label)


_MORE = ",...]"


@dataclass(frozen=True, slots=True, kw_only=True)
class GaveWay:
    """One time that a job gave its GPUs back.

    Attributes:
        purpose: What that was for; None if it is not known any more, and with it the rest.
    """

    at_s: float  # When its run was seen gone, epoch seconds
    notice_s: float  # From the signal until then, seconds; 0 if nobody knows
    gpus: float  # GPUs it gave
    handover_id: HandoverId  # The hand-over it was for
    purpose: Purpose | None = None
    beneficiaries: tuple[JobId, ...] = ()  # Jobs the GPUs went to
    signal: str = ""  # What was sent
    ended: int = 0  # See `Victim.ended`
    held: float = 0.0  # GPUs it held; 0 if it is not known any more
    then: Shape | None = None  # See `Victim.then`


@dataclass(frozen=True, slots=True, kw_only=True)
class PastJob:
    """The ledger's record of one job.

    Attributes:
        last_seen_s: When Slurm last listed it, epoch seconds; 0 if that is not known any more.
    """

    job_id: JobId  # The job
    attained_gpu_s: float  # GPU-seconds over all its runs
    ran_s: float  # Seconds over all its runs
    first_submit_s: float = 0.0  # First submit time, epoch seconds; 0 if it is not known any more
    last_seen_s: float = 0.0
    preemptions: int = 0  # How often it was preempted
    incomplete: bool = False  # It ran unseen: it has received at least that much
    runs: tuple[EndedRun, ...] = ()  # Runs that are over, oldest first
    gave_way: tuple[GaveWay, ...] = ()  # Each time it gave way, oldest first
    uids: frozenset[int] = frozenset()  # Whose it was, as far as anybody wrote that down
    ending: JobEnding | None = None  # How it ended; None if nobody saw that, or it is not over
