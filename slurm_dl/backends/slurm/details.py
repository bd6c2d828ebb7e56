"""The details of running jobs, asked for as seldom as may be.

They are not safe from forgery: names, comments and work directories are printed raw into them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from slurm_dl.backends.slurm.command import Slurm
from slurm_dl.backends.slurm.job_table import JobTable
from slurm_dl.backends.slurm.read_nodes import expand
from slurm_dl.model.errors import ClusterError

_MOST_ASKED_SINGLY = 2

_JOB = re.compile(r"^JobId=([0-9]{1,18}) ", re.MULTILINE)
# No more than a node list can have: "Nodes=Nodes=Nodes=" must not be looked at again and again.
_ON_NODES = re.compile(r"\bNodes=([\w.,\[\]-]+) CPU_IDs=[0-9,-]* Mem=[0-9]+ GRES=(\S*)", re.ASCII)

OnNodes = Mapping[str, str]
"""GRES in Slurm's words by node name."""


def job_details(
    slurm: Slurm, table: JobTable, rows: Sequence[int]
) -> tuple[str, Sequence[int]] | None:
    """``scontrol show job -d`` of some of the jobs at *rows*, and of which; one call.

    The few that start between two polls are asked for one at a time, all of them (after our start)
    in one dump. None if Slurm does not answer: the job may just have ended.
    """
    which: tuple[str, ...] = ()
    if len(rows) <= _MOST_ASKED_SINGLY:
        rows = rows[:1]
        which = (str(table.job_id[rows[0]]),)
    try:
        return slurm.run("scontrol", "show", "job", "--details", "--oneliner", *which), rows
    except ClusterError:
        return None


def gres_by_node(detail: str) -> dict[int, OnNodes | None]:
    """What each job in ``scontrol show job -d -o`` holds where; None for an id told twice.

    Whoever writes a line of another job into a name makes that job one of which nothing is known.
    """
    starts = [(int(m[1]), m.start()) for m in _JOB.finditer(detail)]
    ends = [start for _, start in starts[1:]] + [len(detail)]
    found: dict[int, OnNodes | None] = {}
    for (job_id, start), end in zip(starts, ends, strict=False):
        if job_id in found:
            found[job_id] = None
            continue
        by_node: dict[str, str] = {}
        for nodes, gres in _ON_NODES.findall(detail, start, end):
            try:
                names = expand(nodes)
            except ClusterError:
                continue
            by_node.update(dict.fromkeys(names, gres))
        found[job_id] = by_node
    return found
