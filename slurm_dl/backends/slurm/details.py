"""The details of running jobs, asked for as seldom as may be."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_dl.backends.slurm.command import Slurm
from slurm_dl.backends.slurm.job_table import JobTable
from slurm_dl.model.errors import ClusterError

_MOST_ASKED_SINGLY = 2


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
