"""Snapshots of a large cluster, from a seed: full of running jobs, with a long queue.

The mix is that of published deep-learning traces in outline: most jobs want one GPU or one node,
a few want many nodes; service is spread over four orders of magnitude.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slurm_dl.engine.decide import decide
from slurm_dl.engine.settings import Settings
from slurm_dl.model.contract import Claim, Contract
from slurm_dl.model.handover import Handover, Seal, VictimState
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.jobs import Jobs, JobState, Remembered
from slurm_dl.model.nodes import Allocations, Nodes
from slurm_dl.model.plan import SetSiteFactor
from slurm_dl.model.snapshot import Observed, Snapshot
from slurm_dl.policies.base import Policy

PARTITIONS = ("gpu", "long")
NOW_S = 1_700_000_000.0

_GPUS_PER_NODE = 4
_SIZES = np.array([1, 2, 4, 8, 16, 32, 64])
_SHARES = np.array([0.55, 0.12, 0.16, 0.10, 0.04, 0.02, 0.01])
CPUS_PER_GPU = 8
MB_PER_GPU = 60_000

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How large the cluster is, and how long its queue.

    Attributes:
        nodes: Nodes of 4 GPUs each.
        pending: Jobs that wait.
    """

    nodes: int
    pending: int
    seed: int = 1


def snapshot(
    shape: Shape, *, ran_s: tuple[float, float] = (10.0, 100_000.0), gang: int = 0
) -> Snapshot:
    """A full cluster and its queue, nothing written to Slurm yet.

    Args:
        ran_s: The running jobs' runs have lasted between these, seconds.
        gang: GPUs every waiting job asks for; 0 for the usual mix.
    """
    rng = np.random.default_rng(shape.seed)
    running, held = _filled(rng, shape.nodes)
    n, r = len(running) + shape.pending, len(running)
    sizes = np.full(shape.pending, gang) if gang else _sizes(rng, shape.pending)
    gpus = np.concatenate([running, sizes])
    runs = np.arange(n) < r
    submit_s = NOW_S - 1_000_000 + np.sort(rng.uniform(0, 900_000, n))
    started_s = NOW_S - rng.uniform(*ran_s, n)
    jobs = Jobs(
        job_id=np.arange(1, n + 1, dtype=np.int64),
        state=np.where(runs, JobState.RUNNING, JobState.PENDING).astype(np.int8),
        held=np.zeros(n, np.int8),
        partition=rng.integers(0, len(PARTITIONS), n).astype(np.int16),
        uid=rng.integers(1000, 1400, n).astype(np.int64),
        tasks=np.ones(n, np.int32),
        n_nodes=np.maximum(1, gpus // _GPUS_PER_NODE).astype(np.int32),
        gpus=gpus.astype(np.float64),
        gpu_type=np.where(runs, 0, rng.choice([-1, -1, 0], n)).astype(np.int16),
        cpus=(gpus * CPUS_PER_GPU).astype(np.int32),
        mem_mb=(gpus * MB_PER_GPU).astype(np.int64),
        submit_s=submit_s,
        start_s=np.where(runs, started_s, 0.0),
        end_s=np.zeros(n),
        limit_s=np.full(n, 7 * 86_400.0),
        restarts=np.zeros(n, np.int32),
        priority=np.full(n, 10**8, np.int64),
        requeueable=np.ones(n, np.bool_),
        exclusive=np.zeros(n, np.bool_),
    )
    seen = Observed(
        now_s=NOW_S,
        jobs=jobs,
        nodes=nodes(shape.nodes),
        held=held,
        partitions=PARTITIONS,
        gpu_types=("a100",),
        node_in=np.ones((len(PARTITIONS), shape.nodes), np.bool_),
        claims={
            JobId(int(job_id)): Claim(contract=Contract())
            for job_id in jobs.job_id[rng.random(n) < 0.8]
        },
    )
    return Snapshot(
        seen=seen,
        memory=_memory(rng, jobs),
        left_s=jobs.limit_s.copy(),
        managed=np.ones(len(PARTITIONS), np.bool_),
    )


def written(snap: Snapshot, policy: Policy, settings: Settings) -> Snapshot:
    """*snap* with every SiteFactor as *policy* wants it: nothing is left to write."""
    wanted, rows = snap.memory.site_factor.copy(), snap.jobs.row_of()
    for action in decide(snap, policy, settings).actions:
        if isinstance(action, SetSiteFactor):
            wanted[rows[action.job_id]] = action.value
    return dataclasses.replace(snap, memory=dataclasses.replace(snap.memory, site_factor=wanted))


def waited_for(snap: Snapshot, handovers: tuple[Handover, ...]) -> Snapshot:
    """*snap* with *handovers* under way, all victims signalled just now and saving their work."""
    under_way = tuple(
        dataclasses.replace(
            h,
            seal=Seal.STANDING,
            attached=h.beneficiaries,
            victims=tuple(
                dataclasses.replace(v, state=VictimState.SIGNALLED, signalled_s=snap.now_s)
                for v in h.victims
            ),
        )
        for h in handovers
    )
    return dataclasses.replace(
        snap, handovers=under_way, next_handover_id=HandoverId(len(handovers) + 1)
    )


def _sizes(rng: np.random.Generator, count: int) -> Rows:
    return rng.choice(_SIZES, count, p=_SHARES)


def _filled(rng: np.random.Generator, n_nodes: int) -> tuple[Rows, Allocations]:
    """GPUs of running jobs that fill *n_nodes* nodes to the last GPU, and where they run."""
    sizes: list[int] = []
    job: list[int] = []
    node: list[int] = []
    gpus: list[int] = []
    at = free = 0
    while at < n_nodes:
        free = free or _GPUS_PER_NODE
        size = int(_sizes(rng, 1)[0])
        if size <= _GPUS_PER_NODE:
            size = min(size, free)
            used = [(at, size)]
            free -= size
            at += free == 0
        else:
            # A gang takes whole nodes: what is left of the one under way goes to a small job.
            size = free if free < _GPUS_PER_NODE else min(size, (n_nodes - at) * _GPUS_PER_NODE)
            used = [(at + i, min(size, _GPUS_PER_NODE)) for i in range(-(-size // _GPUS_PER_NODE))]
            at += len(used)
            free = 0
        job += [len(sizes)] * len(used)
        node += [n for n, _ in used]
        gpus += [g for _, g in used]
        sizes.append(size)
    held = np.array(gpus)
    allocations = Allocations(
        job=np.array(job, np.int32),
        node=np.array(node, np.int32),
        gpus=held.astype(np.float64),
        cpus=(held * CPUS_PER_GPU).astype(np.int32),
        mem_mb=(held * MB_PER_GPU).astype(np.int64),
    )
    return np.array(sizes), allocations


def nodes(count: int, gpus: int = _GPUS_PER_NODE) -> Nodes:
    """So many nodes of one kind, up, 25 to a leaf switch.

    Args:
        gpus: GPUs of each; CPUs and memory go with them.
    """
    return Nodes(
        name=tuple(f"n{i + 1}" for i in range(count)),
        up=np.ones(count, np.bool_),
        gpus=np.full(count, float(gpus)),
        gpu_type=np.zeros(count, np.int16),
        cpus=np.full(count, gpus * CPUS_PER_GPU, np.int32),
        mem_mb=np.full(count, gpus * MB_PER_GPU, np.int64),
        leaf=(np.arange(count) // 25).astype(np.int16),
    )


def _memory(rng: np.random.Generator, jobs: Jobs) -> Remembered:
    """Service of four orders of magnitude; of the waiting jobs one in five has run before."""
    n = len(jobs)
    runs = jobs.state == JobState.RUNNING
    has_run = runs | (rng.random(n) < 0.2)
    service = np.where(has_run, rng.lognormal(np.log(8_000), 2.0, n), 0.0)
    return Remembered(
        attained_gpu_s=service,
        ran_s=service / jobs.gpus,
        forgiven_gpu_s=np.zeros(n),
        forgiven_ran_s=np.zeros(n),
        first_run_s=np.zeros(n),
        first_submit_s=jobs.submit_s.copy(),
        waiting_since_s=jobs.submit_s.copy(),
        preemptions=np.zeros(n, np.int32),
        last_preempted_s=np.zeros(n),
        fruitless=np.zeros(n, np.int32),
        last_fruitless_s=np.zeros(n),
        site_factor=np.zeros(n, np.int64),
        tier=np.full(n, -1, np.int16),
        place=np.zeros(n),
    )
