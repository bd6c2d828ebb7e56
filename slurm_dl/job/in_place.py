"""A job that gives nodes back while it runs: dlrun notices, and says the environment anew.

Slurm takes nodes from a running job at once, and leaves the environment of the batch script as it
was. srun refuses that: "SLURM_JOB_NUM_NODES environment variable conflicts with allocated node
count" (measured on 22.05.8).
"""

from __future__ import annotations

import time
import typing
from collections.abc import Callable, Mapping
from itertools import groupby

from slurm_dl.job.controller import CallFailedError, JobController, JobStatus, comment_of_ours
from slurm_dl.job.rank_order import (
    NODE_FILE_VARIABLE,
    RANK_FILE_VARIABLE,
    as_allotted,
    counts_on,
    hosts,
)

LOOK_S = 0.5  # How often a job that has acknowledged looks at its nodes

_LISTS = ("SLURM_JOB_NODELIST", "SLURM_NODELIST")
_COUNTS = ("SLURM_JOB_NUM_NODES", "SLURM_NNODES")
_OF_EACH = ("SLURM_TASKS_PER_NODE", "SLURM_JOB_CPUS_PER_NODE")
_OF_RANKS = ("SLURM_HOSTFILE", RANK_FILE_VARIABLE, NODE_FILE_VARIABLE)
"""Variables of an order of ranks that name nodes which the job may not have any more."""

# Jobs run on Python 3.8, where nothing of collections.abc can be subscripted.
Ranks = typing.Callable[[typing.Mapping[str, str]], "dict[str, str] | None"]
"""By the environment the variables on the order of the ranks; None if it is needed and not known"""


def may_shrink(standing: JobStatus, environ: Mapping[str, str]) -> bool:
    """True if the job may be given fewer nodes in this run."""
    content = comment_of_ours(standing.comment) or {}
    says_so = content.get("slurm_dl", {}).get("in_place") == 1
    return says_so and len(hosts(environ.get("SLURM_JOB_NODELIST", ""))) > 1


def wait_for_fewer(
    controller: JobController,
    environ: Mapping[str, str],
    ranks: Ranks,
    *,
    until_s: float,
    pause: Callable[[float], bool],
    log: Callable[[str], None],
) -> dict[str, str]:
    """The environment on fewer nodes, once the job has fewer; empty if that does not come.

    Without the order of the ranks, where it is needed, a requeue has to make it good.

    Args:
        until_s: How long to wait, monotonic seconds.
        pause: Waits so many seconds; true if dlrun is told to end.
    """
    while time.monotonic() < until_s:
        try:
            told = on_fewer(environ, controller.nodes())
        except CallFailedError as err:
            log(f"the job's nodes are not known: {err}")
            told = {}
        if told:
            kept = {name: text for name, text in environ.items() if name not in _OF_RANKS}
            after = {**kept, **told}
            added = ranks(after)
            if added is not None:
                log(f"the job goes on, without a requeue, on {told['SLURM_JOB_NODELIST']}")
                return {**after, **added}
        if pause(LOOK_S):
            break
    return {}


def on_fewer(environ: Mapping[str, str], nodes: str) -> dict[str, str]:
    """Variables that are new where the job has only *nodes*, a list in Slurm's words, left.

    Empty if it has as many as before, or if the list is not one of some of its nodes.
    """
    before, now = hosts(environ.get("SLURM_JOB_NODELIST", "")), hosts(nodes)
    if not now or len(now) >= len(before) or not set(now) <= set(before):
        return {}
    told = {
        **dict.fromkeys(_LISTS, nodes),
        **dict.fromkeys(_COUNTS, f"{len(now)}"),
    }
    for name in _OF_EACH:
        counts = counts_on(environ.get(name, ""), before)
        if counts:
            told[name] = _folded([counts[node] for node in now])
    return {**told, **as_allotted({**environ, **told})}


def _folded(counts: list[int]) -> str:
    """``2(x3),1`` for 2, 2, 2 and 1."""
    runs = [(count, len(list(same))) for count, same in groupby(counts)]
    return ",".join(f"{count}(x{times})" if times > 1 else f"{count}" for count, times in runs)
