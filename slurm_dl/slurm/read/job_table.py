"""The queue on its way from text to columns: the values of a record, and lists of all.

They are lists because their length is not known before.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

from slurm_dl.model.contract import Claim
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import Held, Jobs, JobState
from slurm_dl.model.snapshot import JobText, LeftOut
from slurm_dl.slurm.read.grammar import MOST_NODES, NO_WORDS, is_number, names_in
from slurm_dl.slurm.read.node_reader import ClusterReading
from slurm_dl.slurm.read.tres import TresRequest


@dataclass(slots=True, kw_only=True)
class JobTable:
    """The readable records of one squeue call, as lists of one length; see `Jobs`.

    Attributes:
        also_in: Further partitions of the pending jobs that name several, as indices.
        inside: Names of the reservations, not ours, of jobs that are not over.
        begins: Begin times of the pending jobs that wait for theirs, epoch seconds.
        planned, eligible: See `Observed`.
        restricted: Required nodes, features and node count of the pending and running jobs that
            name any.
        deadlines: When jobs that are not over have to be over, epoch seconds; see `Observed`.
        gres: What pending and running jobs take of nodes beside GPUs; see `TresRequest.others`.
        unmodelled: Options of pending jobs whose nodes are not known here.
        left_out: Jobs whose records are left out; see `Observed.left_out`.
    """

    job_id: list[int]
    state: list[JobState]
    held: list[Held]
    partition: list[int]
    uid: list[int]
    tasks: list[int]
    n_nodes: list[int]
    gpus: list[float]
    gpu_type: list[str]  # Name of the type; empty for any
    cpus: list[int]
    mem_mb: list[int]
    submit_s: list[float]
    start_s: list[float]
    end_s: list[float]
    limit_s: list[float]
    restarts: list[int]
    priority: list[int]
    requeueable: list[bool]
    exclusive: list[bool]
    nodes: list[str]  # Node list of each job that holds nodes; empty for the others
    even: list[bool]  # The GPUs are known to be spread evenly over the nodes
    counted: list[bool]  # See `TresRequest.counted`
    claims: dict[JobId, Claim]
    texts: dict[JobId, JobText]
    reserved: dict[JobId, str]
    inside: dict[JobId, tuple[str, ...]]
    also_in: dict[JobId, tuple[int, ...]]
    begins: dict[JobId, float]
    restricted: dict[JobId, tuple[str, str, int]]
    gang_parts: set[JobId]  # Pending components of heterogeneous jobs
    planned: dict[JobId, float] = field(default_factory=dict)
    eligible: dict[JobId, float] = field(default_factory=dict)
    deadlines: dict[JobId, float] = field(default_factory=dict)
    gres: dict[JobId, tuple[tuple[str, float], ...]] = field(default_factory=dict)
    unmodelled: dict[JobId, str] = field(default_factory=dict)
    cut_short: set[JobId] = field(default_factory=set)  # Jobs that somebody or a limit has ended
    left_out: dict[JobId, LeftOut] = field(default_factory=dict)
    unreadable: int = 0  # Records left out, of those jobs and without a readable id

    def extend(self, more: JobTable) -> None:
        """Add the records of *more* behind these."""
        for name in _TABLE_LISTS:
            getattr(self, name).extend(getattr(more, name))
        for name in _TABLE_BY_ID:
            getattr(self, name).update(getattr(more, name))

    def leave_out(self, jobs: Mapping[JobId, LeftOut]) -> None:
        """Take the records of *jobs* out again."""
        if not jobs:
            return
        self.left_out |= jobs
        self.unreadable += len(jobs)
        keep = [job_id not in jobs for job_id in self.job_id]
        for name in _TABLE_LISTS:
            setattr(self, name, list(itertools.compress(getattr(self, name), keep)))
        for name in _TABLE_BY_ID:
            of_job = getattr(self, name)
            for job_id in jobs.keys() & of_job:
                of_job.discard(job_id) if isinstance(of_job, set) else of_job.pop(job_id)

    def columns(self, type_row: dict[str, int]) -> Jobs:
        """The jobs as the engine wants them.

        Args:
            type_row: Index of each GPU type; new ones are added to it.
        """
        for gpu_type in dict.fromkeys(self.gpu_type):
            if gpu_type:
                type_row.setdefault(gpu_type, len(type_row))
        types = [type_row.get(t, -1) for t in self.gpu_type]
        names = (f.name for f in dataclasses.fields(Jobs) if f.name != "gpu_type")
        return Jobs.of_columns({**{n: getattr(self, n) for n in names}, "gpu_type": types})


_TABLE_BY_ID = (
    "claims",
    "texts",
    "reserved",
    "inside",
    "also_in",
    "begins",
    "planned",
    "eligible",
    "restricted",
    "gang_parts",
    "deadlines",
    "gres",
    "unmodelled",
    "cut_short",
)
_TABLE_LISTS = tuple(
    f.name
    for f in dataclasses.fields(JobTable)
    if f.name not in {*_TABLE_BY_ID, "left_out", "unreadable"}
)


NOTHING = frozenset({"", "(null)", "N/A", "0"})  # Slurm's words for a value that is not set

FINISHED = frozenset({JobState.COMPLETED, JobState.FAILED})
"""States that a job leaves no more, but for a requeue."""

_HOLDS_NODES = frozenset(JobState) - FINISHED - {JobState.PENDING}
INT32_MAX = 2**31 - 1  # The largest number in the columns of jobs that are 32 bits wide
_UINT32_MAX = 2**32 - 1


def whole_of(text: str) -> int:
    """The whole number of 32 bits, not below 0, in *text*.

    Raises:
        ValueError: It is none.
    """
    if is_number(text) and (number := int(text)) <= _UINT32_MAX:
        return number
    msg = f"{text[:40]!r} is no whole number"
    raise ValueError(msg)


def count_of(text: str) -> int:
    """A number of nodes, tasks or CPUs, at least 1.

    Slurm writes "not set" as 2**32 - 2 here, for instance for a job that ended before it started.

    Raises:
        ValueError: It is no number.
    """
    number = whole_of(text)
    return number if 0 < number <= INT32_MAX else 1


def start_s_of(state: JobState, start_s: float, end_s: float, nodes: str) -> float:
    """Start of the run, epoch seconds; 0 if there is none."""
    # A pending job's start is a prediction. Measured on 22.05.8: a requeued job is COMPLETING
    # until its processes are gone, with the requeue as its start and no end; an ending run has
    # its end written before it completes. A job cancelled while it waited has a start, no nodes.
    if state is JobState.PENDING or (state is JobState.COMPLETING and not end_s):
        return 0.0
    if state is JobState.FAILED and nodes in NOTHING:
        return 0.0
    return start_s


def node_list(text: str) -> str:
    """*text*, a list of nodes or nothing.

    Raises:
        ValueError: It is none, or one of too many nodes.
    """
    if text not in NOTHING | NO_WORDS and not 0 < names_in(text) <= MOST_NODES:
        msg = f"{text[:40]!r} is no list of nodes"
        raise ValueError(msg)
    return text


def nodes_of(state: JobState, nodes: str) -> str:
    """The nodes that a job holds; empty if it holds none."""
    return nodes if state in _HOLDS_NODES and nodes not in NOTHING else ""


def gpus_of(request: TresRequest, site: ClusterReading) -> float:
    """GPUs that *request* holds or asks for, shares of them included."""
    gres = request.gres
    if not gres.shards and not gres.mps:
        return gres.gpus
    # Shares of unknown size are no GPUs we could account for.
    shards = gres.shards / site.shards_per_gpu if site.shards_per_gpu else 0.0
    mps = gres.mps / site.mps_per_gpu if site.mps_per_gpu else 0.0
    return gres.gpus + shards + mps


def rows_of(partitions: str, rows: Mapping[str, int]) -> tuple[int, ...]:
    """Index of each partition in a list of several; empty if one of them is unknown."""
    found = tuple(dict.fromkeys(rows.get(name, -1) for name in partitions.split(",")))
    return () if -1 in found else found
