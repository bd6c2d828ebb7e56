"""Giving a pending job another size.

Measured on 22.05.8, 24.11.5 and 26.05.5: ``Gres=gpu:N`` is the one word for GPUs on each node that
all three honour; a number of nodes must be a range, ``2-2``, to grow; tasks and CPUs go with it.
"""

from __future__ import annotations

from slurm_dl.model.errors import ClusterError
from slurm_dl.model.jobs import JobState
from slurm_dl.model.plan import Reshape
from slurm_dl.slurm.read.record_parser import job_records, new_nonce, queue_arguments
from slurm_dl.slurm.read.vocabulary import job_state
from slurm_dl.slurm.tool_runner import Slurm
from slurm_dl.text import escaped

_FIELDS = ("JobID", "State", "NumNodes", "NumTasks", "NumCPUs", "tres-per-node")


def reshape(slurm: Slurm, action: Reshape) -> None:
    """Change the job, if it still waits.

    Raises:
        ClusterError: Refused, silent, or the job is not of a shape that can be changed.
    """
    nonce = new_nonce()
    text = slurm.run("squeue", f"--jobs={int(action.job_id)}", *queue_arguments(_FIELDS, nonce))
    records, _ = job_records(text, nonce, len(_FIELDS))
    mine = [record for record in records if record[0] == str(action.job_id)]
    if len(mine) != 1:
        msg = f"job {action.job_id} is not listed once by itself; its size is left as it is"
        raise ClusterError(msg)
    _, word, *counts, per_node = mine[0]
    try:
        state = job_state(word)
        nodes, tasks, _cpus = (int(count.partition("-")[0]) for count in counts)
    except ValueError as err:
        msg = f"job {action.job_id} cannot be read: {escaped(str(err))}"
        raise ClusterError(msg) from None
    if state is not JobState.PENDING:
        return
    if min(nodes, tasks) < 1 or tasks % nodes:
        msg = f"job {action.job_id} has {tasks} tasks on {nodes} nodes; its size is left as it is"
        raise ClusterError(msg)
    each, shape = tasks // nodes, action.shape
    kind = per_node.removeprefix("gres").lstrip("/:").split(":")
    gres = f"gpu:{kind[1]}" if len(kind) > 2 else "gpu"  # noqa: PLR2004 - gpu, type, number
    settings = [
        f"NumNodes={shape.nodes}-{shape.nodes}",
        f"Gres={gres}:{shape.gpus_per_node}",
        f"NumTasks={shape.nodes * each}",
    ]
    if action.cpus:
        settings += [
            f"NumCPUs={shape.nodes * action.cpus}",
            f"CPUsPerTask={max(1, action.cpus // each)}",
            f"MinCPUsNode={action.cpus}",
        ]
    if action.mem_mb:
        settings.append(f"MinMemoryNode={action.mem_mb}")
    slurm.run("scontrol", "update", f"JobId={action.job_id}", *settings)
