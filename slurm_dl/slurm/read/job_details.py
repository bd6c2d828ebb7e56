"""Details of jobs (``scontrol show job -d``), and the GRES of each job that they tell by node.

Names and comments are printed raw into them; see `gpu_holdings` for what is believed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

from slurm_dl.model.errors import ClusterError
from slurm_dl.slurm.read.grammar import MOST_NODES, expand, names_in
from slurm_dl.slurm.read.job_table import JobTable
from slurm_dl.slurm.tool_runner import Slurm

_MOST_ASKED_SINGLY = 2

_JOB = re.compile(r"^JobId=([0-9]{1,18}) ", re.MULTILINE)
# No more than a node list can have: "Nodes=Nodes=Nodes=" must not be looked at again and again.
_ON_NODES = re.compile(r"\bNodes=([\w.,\[\]-]+) CPU_IDs=[0-9,-]* Mem=[0-9]+ GRES=(\S*)", re.ASCII)

_T = TypeVar("_T")

RunKey = tuple[int, float]  # Job id and start: one allocation


def job_details(
    slurm: Slurm, table: JobTable, rows: Sequence[int], doubled: Collection[RunKey]
) -> tuple[str, Sequence[int]] | None:
    """``scontrol show job -d`` of some of the jobs at *rows*, and of which; one call.

    The few that start between two polls are asked for one at a time, all of them (after our start)
    in one dump. None if Slurm does not answer: the job may just have ended.

    Args:
        doubled: Jobs that a dump told of twice, see `doubled_in`; they are asked for one at a time.
    """
    several = [row for row in rows if run_key(table, row) not in doubled]
    which: tuple[str, ...] = ()
    if len(several) > _MOST_ASKED_SINGLY:
        rows = several
    else:
        rows = (several or rows)[:1]
        which = (str(table.job_id[rows[0]]),)
    try:
        detail = slurm.run("scontrol", "show", "job", "--details", "--oneliner", *which)
    except ClusterError:
        return None
    return (_first_record(detail, which[0]) if which else detail), rows


def run_key(table: JobTable, row: int) -> RunKey:
    """The allocation at *row*."""
    return table.job_id[row], table.start_s[row]


def doubled_in(told: Mapping[int, object], table: JobTable, rows: Sequence[int]) -> set[RunKey]:
    """Those of *rows* that are to be asked for alone: of them nothing is known from a dump.

    Somebody has written a line of theirs into a name.
    """
    if len(rows) == 1:
        return set()
    return {run_key(table, row) for row in rows if told.get(table.job_id[row], 0) is None}


def _first_record(detail: str, job_id: str) -> str:
    """The part of *detail* on a job that was asked for alone, up to what looks like another record.

    Other records in it are of its own array or gang, or are written by its owner; nobody else's
    words are in it.
    """
    found = re.search(rf"^JobId={job_id} .*?(?=^JobId=[0-9]|\Z)", detail, re.MULTILINE | re.DOTALL)
    return found[0] if found else ""


def gres_by_node(
    detail: str,
    wanted: Collection[int],
    read: Callable[[str], _T],
    again: Callable[[_T, _T], _T],
) -> dict[int, Mapping[str, _T] | None]:
    """GRES of each job in ``scontrol show job -d -o``, by node.

    Whoever writes a line of another job into a name makes that job one of which nothing is known;
    it is then asked for alone. So does who writes lists of more than `MOST_NODES` nodes into his
    own.

    Args:
        read: Gives what is wanted of the GRES of one node, in Slurm's words.
        again: Gives what counts of a node that is told of twice, which only its owner can bring
            about, of the earlier and the later.
        wanted: Ids of the jobs that were asked about. Of others in the same dump it is only
            looked whether they are told twice: their lists are not spelled out.

    Returns:
        By job id and node name; empty for a job that is not wanted, None for one of which nothing
        is known.
    """
    starts = [(int(m[1]), m.start()) for m in _JOB.finditer(detail)]
    ends = [start for _, start in starts[1:]] + [len(detail)]
    found: dict[int, Mapping[str, _T] | None] = {}
    for (job_id, start), end in zip(starts, ends, strict=False):
        if job_id in found:
            found[job_id] = None
            continue
        found[job_id] = _on_nodes(detail, start, end, read, again) if job_id in wanted else {}
    return found


def _on_nodes(
    detail: str,
    start: int,
    end: int,
    read: Callable[[str], _T],
    again: Callable[[_T, _T], _T],
) -> Mapping[str, _T] | None:
    by_node: dict[str, _T] = {}
    left = MOST_NODES
    for nodes, gres in _ON_NODES.findall(detail, start, end):
        count = names_in(nodes)
        if not 0 < count <= MOST_NODES:
            continue
        left -= count
        if left < 0:
            return None
        told = read(gres)
        for name in expand(nodes):
            by_node[name] = again(by_node[name], told) if name in by_node else told
    return by_node
