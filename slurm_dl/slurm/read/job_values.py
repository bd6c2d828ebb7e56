"""Single values of a job record: what they are to us, beyond how Slurm spells them."""

from __future__ import annotations

from collections.abc import Mapping

from slurm_dl.model.jobs import JobState
from slurm_dl.slurm.read.hostlists import MOST_NODES, NO_WORDS, names_in
from slurm_dl.slurm.read.node_reader import ClusterReading
from slurm_dl.slurm.read.tres import TresRequest
from slurm_dl.slurm.read.vocabulary import is_number

NOTHING = frozenset({"", "(null)", "N/A", "0"})
"""Slurm's words for a value that is not set."""

FINISHED = frozenset({JobState.COMPLETED, JobState.FAILED})
"""States that a job leaves no more, but for a requeue."""

_HOLDS_NODES = frozenset(JobState) - FINISHED - {JobState.PENDING}
INT32_MAX = 2**31 - 1
"""The largest number in the columns of jobs that are 32 bits wide."""
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
