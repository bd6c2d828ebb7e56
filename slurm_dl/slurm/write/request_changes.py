"""Changing what a pending job asks for: fewer CPUs and less memory, another size, other nodes.

Measured on 22.05.8, 24.11.5 and 26.05.5 (tests/contract holds all three to it):

- ``Gres=gpu:N`` is the one word for GPUs on each node that all three honour, for jobs submitted
  with --gpus-per-node or --gres. Where the job named a type it is named again.
- A number of nodes must be a range, ``2-2``, to grow.
- 24.11.5 and 26.05.5 show --cpus-per-task as TRES of a task, too. CPUsPerTask is honoured, but
  24.11.5 goes on showing the old TRES.
- More GPUs or nodes than there are are taken with exit status 0, and then the job never starts. The
  old size, written back whole, starts.

Measured on 22.05.8 alone:

- The GPUs of who asked by --gpus, --gpus-per-task or --gpus-per-socket cannot be changed so
  ("Invalid generic resource"). Such jobs are refused here, on every release.
- CPUs and tasks stay when nodes and GPUs alone are changed: all of it is written.
- CPUsPerTask, MinCPUsNode and NumCPUs together are honoured, each alone is not (the two others keep
  the job where it was); so is MinMemoryNode, for a job that asked for memory by the node.
- Without TasksPerNode, squeue shows one node too many of a pending job whose tasks have several
  CPUs; a pending job's own number of nodes stands in its TRES.
- A type of GPUs is added only to a request from which ``TresPerNode=`` has taken all GRES.
- A size that no node has gets BadConstraints and priority 0, one of too many nodes
  PartitionNodeLimit.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from slurm_dl.model.errors import ClusterError
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobState
from slurm_dl.model.plan import Reshape, Trim
from slurm_dl.slurm.read.grammar import NO_WORDS, expand, fold
from slurm_dl.slurm.read.job_table import NOTHING
from slurm_dl.slurm.read.record_parser import job_records, new_nonce, queue_arguments
from slurm_dl.slurm.read.tres import nodes_in, parse_gres
from slurm_dl.slurm.read.vocabulary import job_state
from slurm_dl.slurm.tool_runner import Slurm
from slurm_dl.text import escaped

_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_PART = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")


@dataclass(frozen=True, slots=True)
class ExcNodeList:
    """The nodes of an ExcNodeList: ours, and the owner's; both sorted."""

    avoid: tuple[str, ...]
    own: tuple[str, ...]


def exc_node_list(avoid: Sequence[str], own: Sequence[str]) -> str:
    """The list that keeps a job from *avoid* for us and from *own* for its owner.

    The first of *avoid* stands twice, and behind them, if there are any, so does the first of
    *own*: ``n1,n[1-3],n7,n7`` keeps it from n1, n2 and n3 for us and from n7 for its owner. Slurm
    takes a name twice for once; squeue folds the list, and ``scontrol show job`` prints it as it
    was written, also after a requeue (measured on 22.05.8).

    Raises:
        ClusterError: One of them is no node name.
    """
    if not avoid:
        return node_list(own)
    halves = (sorted(avoid), sorted(own))
    return ",".join(f"{names[0]},{node_list(names)}" for names in halves if names)


def node_list(names: Sequence[str]) -> str:
    """*names* as one word of Slurm.

    Raises:
        ClusterError: One of them is no node name.
    """
    for name in names:
        if _NODE_NAME.fullmatch(name) is None:
            msg = f"{escaped(name)[:80]!r} is no node name"
            raise ClusterError(msg)
    return fold(names)


def parts_of(nodes: str) -> ExcNodeList:
    """Our nodes and the owner's in an ExcNodeList as ``scontrol show job`` prints it.

    Raises:
        ClusterError: It is no node list.
    """
    if nodes in NO_WORDS:
        return ExcNodeList((), ())
    names = [name for part in _PART.findall(nodes) for name in expand(part)]
    if not names:
        msg = f"node list {escaped(nodes[:80])} cannot be read: it names none"
        raise ClusterError(msg)
    often = Counter(names)
    twice = {name for name, times in often.items() if times > 1}
    if names[0] not in twice:
        return ExcNodeList((), tuple(sorted(often)))
    begins = next((i for i, n in enumerate(names) if n in twice and n != names[0]), len(names))
    own = set(names[begins:])
    return ExcNodeList(tuple(sorted(often.keys() - own)), tuple(sorted(own)))


_BY_OTHERS = {
    "tres-per-job": "--gpus",
    "tres-per-task": "--gpus-per-task",
    "tres-per-socket": "--gpus-per-socket",
}  # Options of sbatch that do not ask for GPUs by the node, by squeue's field
REQUEST_FIELDS = (
    *("JobID", "JobArrayID", "State", "NumNodes", "NumTasks", "NumCPUs", "tres-alloc"),
    *("tres-per-node", *_BY_OTHERS),
)
"""What squeue has to tell of a job whose request is changed, in this order."""


def change_request(slurm: Slurm, action: Trim | Reshape) -> None:
    """Change what the job asks for, if it still waits.

    Raises:
        ClusterError: Refused, silent, or the job is not of a kind that can be changed so.
    """
    now = _asked_now(slurm, action.job_id)
    if now is None:
        return
    settings = _trimmed(now, action) if isinstance(action, Trim) else _reshaped(now, action)
    updates = [settings] if settings else []
    if isinstance(action, Reshape) and action.gpu_type and not parse_gres(now.per_node).gpu_type:
        # A job without GPUs in between has them with the next of these writes at the latest.
        updates.insert(0, ["TresPerNode="])
    for update in updates:
        slurm.run("scontrol", "update", f"JobId={action.job_id}", *update)


@dataclass(frozen=True, slots=True)
class _Asked:
    """Request of a pending job."""

    nodes: int
    tasks: int
    cpus: int
    per_node: str  # GRES on each node, in Slurm's words
    others: str  # Of the options that ask for GPUs otherwise, the one it used; empty: none

    @property
    def tasks_per_node(self) -> int:
        """Tasks on each node; 0 where they are not the same number on each."""
        return 0 if self.tasks % self.nodes else self.tasks // self.nodes


def _asked_now(slurm: Slurm, job_id: JobId) -> _Asked | None:
    """Its request; None if it does not wait any more."""
    nonce = new_nonce()
    text = slurm.run("squeue", f"--jobs={int(job_id)}", *queue_arguments(REQUEST_FIELDS, nonce))
    records, _ = job_records(text, nonce, len(REQUEST_FIELDS))
    mine = [record for record in records if record[0] == str(job_id)]
    if len(mine) != 1 or mine[0][1] != str(job_id):
        msg = f"job {job_id} is not listed once by itself; what it asks for is left as it is"
        raise ClusterError(msg)
    _, _, word, *counts, alloc, per_node = mine[0][: -len(_BY_OTHERS)]
    try:
        state = job_state(word)
        nodes, tasks, cpus = (int(count.partition("-")[0]) for count in counts)
    except ValueError as err:
        msg = f"job {job_id} cannot be read: {escaped(str(err))}"
        raise ClusterError(msg) from None
    if state is not JobState.PENDING:
        return None
    nodes = nodes_in(alloc) or nodes
    if min(nodes, tasks) < 1:
        msg = f"job {job_id} cannot be read: it has {nodes} nodes and {tasks} tasks"
        raise ClusterError(msg)
    by_others = zip(_BY_OTHERS.values(), mine[0][-len(_BY_OTHERS) :], strict=True)
    others = next((option for option, value in by_others if _is_asked(value)), "")
    return _Asked(nodes, tasks, cpus, "" if per_node in NOTHING else per_node, others)


def _is_asked(value: str) -> bool:
    """It asks for more than CPUs, which is how newer releases show --cpus-per-task: ``cpu=4``."""
    items = [] if value in NOTHING else value.split(",")
    return any(not item.startswith(("cpu=", "cpu:")) for item in items)


def _trimmed(now: _Asked, action: Trim) -> list[str]:
    """Settings that leave it less; none where it has no more."""
    settings = []
    if action.cpus and action.cpus * now.nodes < now.cpus:
        settings = _cpu_settings(now, f"job {action.job_id}", action.cpus, now.nodes)
    if action.mem_mb:
        settings.append(f"MinMemoryNode={action.mem_mb}")
    return settings


def _reshaped(now: _Asked, action: Reshape) -> list[str]:
    """All settings of the size, also those that are shown already: what is shown may not be so."""
    each, shape, job = now.tasks_per_node, action.shape, f"job {action.job_id}"
    if not each:
        msg = f"{job} has {now.tasks} tasks on {now.nodes} nodes; its size is left as it is"
        raise ClusterError(msg)
    settings = [
        f"NumNodes={shape.nodes}-{shape.nodes}",
        f"Gres={_gres(now, job, shape.gpus_per_node, action.gpu_type)}",
        f"NumTasks={shape.nodes * each}",
        f"TasksPerNode={each}",
    ]
    if cpus := action.cpus or now.cpus // now.nodes:
        settings += _cpu_settings(now, job, cpus, shape.nodes)
    if action.mem_mb:
        settings.append(f"MinMemoryNode={action.mem_mb}")
    return settings


def _gres(now: _Asked, job: str, gpus: int, gpu_type: str) -> str:
    """Its GRES on each node with *gpus* GPUs of the type it named, and whatever else it named.

    Args:
        gpu_type: The type, if it named none; empty: any.
    """
    if now.others:
        msg = f"{job} asks for GPUs by {now.others}, not by the node; its size is left as it is"
        raise ClusterError(msg)
    items = [item.removeprefix("gres").lstrip("/:") for item in now.per_node.split(",")]
    of_gpus = [item for item in items if item.partition(":")[0] == "gpu"]
    asked = parse_gres(now.per_node)
    if (len(of_gpus) != 1 and (now.per_node or not gpu_type)) or asked.shards or asked.mps:
        msg = f"{job} asks for {now.per_node or 'no GPUs'}, not for GPUs of one kind by the node"
        raise ClusterError(msg)
    gpu_type = asked.gpu_type or gpu_type
    kind = f"gpu:{gpu_type}" if gpu_type else "gpu"
    return ",".join([f"{kind}:{gpus}", *(i for i in items if i and i not in of_gpus)])


def _cpu_settings(now: _Asked, job: str, cpus: int, nodes: int) -> list[str]:
    each = now.tasks_per_node
    if not each or cpus % each:
        msg = f"{job}: {cpus} CPUs a node do not go into {now.tasks} tasks"
        raise ClusterError(msg)
    return [f"NumCPUs={nodes * cpus}", f"CPUsPerTask={cpus // each}", f"MinCPUsNode={cpus}"]
