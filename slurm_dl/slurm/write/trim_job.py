"""Cutting a pending job's CPUs and memory to less.

Measured on 22.05.8: for a job of a fixed number of nodes and tasks, CPUsPerTask, MinCPUsNode and
NumCPUs together are honoured, each alone is not (the two others keep the job where it was), and so
is MinMemoryNode for one that asked for memory by the node.
"""

from __future__ import annotations

from slurm_dl.model.errors import ClusterError
from slurm_dl.model.jobs import JobState
from slurm_dl.model.plan import Trim
from slurm_dl.slurm.read.record_parser import job_records, new_nonce
from slurm_dl.slurm.read.squeue_fields import queue_arguments
from slurm_dl.slurm.read.vocabulary import job_state
from slurm_dl.slurm.tool_runner import Slurm
from slurm_dl.text import escaped

_FIELDS = ("JobID", "State", "NumNodes", "NumTasks", "NumCPUs")


def trim(slurm: Slurm, action: Trim) -> None:
    """Cut the job, if it still waits and still has more.

    Raises:
        ClusterError: Refused, silent, or the job is not of a shape that can be cut.
    """
    nonce = new_nonce()
    text = slurm.run("squeue", f"--jobs={int(action.job_id)}", *queue_arguments(_FIELDS, nonce))
    records, _ = job_records(text, nonce, len(_FIELDS))
    mine = [record for record in records if record[0] == str(action.job_id)]
    if len(mine) != 1:
        msg = f"job {action.job_id} is not listed once by itself; its CPUs are left as they are"
        raise ClusterError(msg)
    _, word, *counts = mine[0]
    try:
        state = job_state(word)
        nodes, tasks, cpus = (int(count) for count in counts)
    except ValueError as err:
        msg = f"job {action.job_id} cannot be read: {escaped(str(err))}"
        raise ClusterError(msg) from None
    if state is not JobState.PENDING:
        return
    if min(nodes, tasks) < 1:
        msg = f"job {action.job_id} cannot be read: it has {nodes} nodes and {tasks} tasks"
        raise ClusterError(msg)
    settings = []
    if action.cpus and action.cpus * nodes < cpus:
        per_task, left = divmod(action.cpus * nodes, tasks)
        if left or tasks % nodes:
            msg = f"job {action.job_id}: {action.cpus} CPUs a node do not go into {tasks} tasks"
            raise ClusterError(msg)
        settings += [
            f"CPUsPerTask={per_task}",
            f"MinCPUsNode={action.cpus}",
            f"NumCPUs={action.cpus * nodes}",
        ]
    if action.mem_mb:
        settings.append(f"MinMemoryNode={action.mem_mb}")
    if settings:
        slurm.run("scontrol", "update", f"JobId={action.job_id}", *settings)
