"""Snapshots that a policy must cope with: the plain, the odd, and some drawn by lot.

All are the same in each run. Whatever is optional in a snapshot is given in some and missing in
others.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from slurm_dl.model.completed_jobs import NO_PAST
from slurm_dl.model.contract import Claim, Contract
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import Held, JobRow, JobState, Origin
from slurm_dl.model.snapshot import JobText, Snapshot
from slurm_dl.testing.snapshot_builder import (
    NOW_S,
    TYPES,
    a_past,
    running,
    snapshot,
    texts_of,
    waiting,
)

_DRAWN: Final = 8


@dataclass(frozen=True, slots=True, eq=False)
class Situation:
    """A snapshot, and what is special about it."""

    name: str
    snap: Snapshot

    def __str__(self) -> str:
        return self.name


@functools.cache
def situations() -> tuple[Situation, ...]:
    """All of them, the plain ones first; do not change what is in them."""
    made = [Situation(name, build()) for name, build in _PLAIN.items()]
    made += [Situation(f"drawn by lot, number {seed}", drawn(seed)) for seed in range(_DRAWN)]
    return tuple(made)


def drawn(seed: int) -> Snapshot:
    """A snapshot drawn by lot: jobs of every state on a cluster of one to three types."""
    draw = np.random.default_rng([seed, 2019])
    kinds = int(draw.integers(1, 4))
    m = int(draw.integers(2, 7))
    nodes = [(float(draw.choice([2, 4, 8])), int(i % kinds)) for i in range(m)]
    free = {kind: sum(gpus for gpus, k in nodes if k == kind) for kind in range(kinds)}
    rows = []
    for i in range(int(draw.integers(3, 24))):
        gpus = float(draw.choice([0.5, 1, 1, 2, 4, 8, 16]))
        kind = int(draw.integers(-1, kinds)) if draw.random() < 0.3 else -1
        more: dict[str, Any] = {
            "gpu_type": kind,
            "uid": 1000 + int(draw.integers(0, 4)),
            "submit_s": NOW_S - 40_000 + 500 * float(draw.integers(0, 60)),
            "limit_s": float(draw.choice([math.inf, 600.0, 36_000.0, 180_000.0])),
            "partition": int(draw.random() < 0.1),
        }
        on = max(free, key=lambda k: free[k]) if kind < 0 else kind
        lot = draw.random()
        if lot < 0.4 and free[on] >= gpus:
            free[on] -= gpus
            rows.append(running(i + 1, gpus, ran_s=float(draw.integers(0, 9000)), **more))
        elif lot < 0.5:
            ended: dict[str, Any] = {"start_s": NOW_S - 900, "end_s": NOW_S - 60}
            state = JobState(int(draw.integers(int(JobState.COMPLETING), 7)))
            rows.append(waiting(i + 1, gpus, state=state, **ended, **more))
        else:
            held = Held(int(draw.integers(0, 7))) if draw.random() < 0.15 else Held.NO
            rows.append(waiting(i + 1, gpus, held=held, **more))
    n = len(rows)
    had_s = draw.choice([0.0, 0.0, 900.0, 20_000.0], n)
    rates = draw.choice([0.0, 0.25, 0.5, 1.0, 1.0, 2.0], (n, kinds))
    rates[np.arange(n), draw.integers(0, kinds, n)] = 1.0
    return snapshot(
        rows,
        nodes=nodes,
        types=TYPES[:kinds],
        memory={
            "ran_s": {r.job_id: h + _ran_s(r) for r, h in zip(rows, had_s.tolist(), strict=True)},
            "attained_gpu_s": {
                r.job_id: (h + _ran_s(r)) * r.gpus
                for r, h in zip(rows, had_s.tolist(), strict=True)
            },
            "first_run_s": {
                r.job_id: NOW_S - h - _ran_s(r)
                for r, h in zip(rows, had_s.tolist(), strict=True)
                if h or _ran_s(r)
            },
        },
        seen={"texts": texts_of(rows, int(draw.integers(1, 5)))},
        left_s=draw.choice([0.0, 1.0, 3600.0, 3600.0, 86_400.0, math.inf], n),
        left_from=draw.integers(0, 7, n).astype(np.int8) if seed % 2 else None,
        progress=draw.choice([math.nan, 0.0, 0.3, 0.999, 1.0], n) if seed % 3 else None,
        due_s=draw.choice([NOW_S - 60, NOW_S + 600, NOW_S + 90_000, math.inf], n)
        if seed % 2
        else None,
        rates=rates if seed % 3 != 1 else None,
        rates_from=np.full(n, int(Origin.MEASURED), dtype=np.int8) if seed % 3 == 0 else None,
        credit_s=draw.uniform(-2000, 2000, (n, kinds)) if seed % 2 else None,
        setup_s=draw.uniform(0, 600, n) if seed % 2 else None,
        past=a_past(int(draw.integers(1, 80)), seed) if seed % 4 else NO_PAST,
    )


def _ran_s(row: JobRow) -> float:
    return NOW_S - row.start_s if row.state == JobState.RUNNING else 0.0


def _busy(**more: Any) -> Snapshot:  # noqa: ANN401 - fields of a snapshot
    """A full cluster, and as much again that waits."""
    rows = [running(i, 2, ran_s=900.0 * i, limit_s=90_000.0) for i in range(1, 9)]
    rows += [waiting(10 + i, 2.0 ** (i % 4), limit_s=7200.0 * i) for i in range(1, 9)]
    return snapshot(rows, **{"seen": {"texts": texts_of(rows, 3)}, **more})


def _everything() -> Snapshot:
    """All that can be known is."""
    n = 16
    known = np.full(n, int(Origin.KNOWN), dtype=np.int8)
    return _busy(
        nodes=((4, 0), (4, 0), (4, 1), (4, 1)),
        types=TYPES[:2],
        left_s=1000.0 * np.arange(1, n + 1),
        left_from=known,
        progress=np.linspace(0, 1, n),
        due_s=NOW_S + 5000.0 * np.arange(1, n + 1),
        rates=np.stack([np.ones(n), np.linspace(0.2, 0.9, n)], axis=1),
        rates_from=known,
        credit_s=np.zeros((n, 2)),
        setup_s=np.full(n, 180.0),
        past=a_past(60),
    )


def _odd_estimates() -> Snapshot:
    n = 16
    return _busy(
        left_s=np.where(np.arange(n) % 2, np.inf, 0.0),
        progress=np.where(np.arange(n) % 3, np.nan, 1.0),
        due_s=np.where(np.arange(n) % 2, np.inf, 0.0),
    )


def _several_types() -> Snapshot:
    """Some jobs ask for a type, one may use two nodes only, one can run nowhere."""
    rows = [running(1, 4, gpu_type=0), running(2, 4, gpu_type=1), running(3, 2)]
    rows += [waiting(10 + i, 1 + i % 4, gpu_type=i % 3 - 1) for i in range(9)]
    rates = np.ones((len(rows), 2))
    rates[:, 1] = 0.4
    rates[-1] = 0.0
    nodes = ((4, 0), (4, 0), (4, 1), (4, 1))
    choices = {JobId(16): np.array([False, False, True, True])}
    seen = {"choices": choices, "texts": texts_of(rows, 2)}
    return snapshot(rows, nodes=nodes, types=TYPES[:2], rates=rates, seen=seen)


def _types_alike() -> Snapshot:
    """Two types of which nobody has measured anything."""
    rows = [waiting(i, 2) for i in range(1, 7)]
    return snapshot(rows, nodes=((4, 0), (4, 1)), types=TYPES[:2])


def _nodes_down() -> Snapshot:
    busy = _busy()
    down = dataclasses.replace(busy.seen.nodes, up=np.zeros(4, dtype=np.bool_))
    return dataclasses.replace(busy, seen=dataclasses.replace(busy.seen, nodes=down))


def _others() -> Snapshot:
    """Held jobs, jobs of a partition that is not ours or unknown, jobs that are over, of no GPU."""
    rows = [waiting(i, held=Held(i)) for i in range(1, 7)]
    rows += [running(7, partition=1), waiting(8, partition=1), waiting(9, partition=-1)]
    rows += [waiting(10 + s, state=JobState(s), start_s=NOW_S - 500) for s in range(3, 7)]
    rows += [waiting(20, 0.0), running(21, 0.0), waiting(22, tasks=50), running(23, 2)]
    seen = {"also_in": {JobId(22): (1,)}, "texts": texts_of(rows, 2)}
    return snapshot(rows, seen=seen)


def _claimed() -> Snapshot:
    rows = [running(1, 4), waiting(2, 4), waiting(3, 4), waiting(4, 8)]
    claims = {
        JobId(1): Claim(contract=Contract(), model="resnet50", rate=3.5),
        JobId(2): Claim(model="bert"),
        JobId(4): Claim(contract=Contract(), most_nodes=4),
    }
    return snapshot(rows, seen={"claims": claims})


def _array() -> Snapshot:
    rows = [waiting(100, 2, tasks=40), *(running(100 + i, 2) for i in range(1, 5))]
    texts = {JobId(100): JobText(label="100_[5-44]", account="a", user="u", name="sweep")}
    texts |= {
        JobId(100 + i): JobText(label=f"100_{i}", account="a", user="u", name="sweep")
        for i in range(1, 5)
    }
    return snapshot(rows, seen={"texts": texts})


def _many_accounts() -> Snapshot:
    rows = [
        (running if i % 5 == 0 and i <= 40 else waiting)(i, 1 + i % 3, uid=1000 + i)
        for i in range(1, 61)
    ]
    return snapshot(rows, nodes=((8, 0),) * 4, seen={"texts": texts_of(rows, 30)}, past=a_past(30))


def _same_instant() -> Snapshot:
    """Jobs between which nothing but their ids decides."""
    return snapshot([waiting(i, 2, submit_s=NOW_S - 100, uid=1000) for i in (7, 3, 9, 1, 5, 11)])


_PLAIN: Mapping[str, Callable[[], Snapshot]] = {
    "no jobs": lambda: snapshot([]),
    "no nodes": lambda: snapshot([waiting(1)], nodes=()),
    "one job that waits": lambda: snapshot([waiting(1)]),
    "one job that runs": lambda: snapshot([running(1, 4)]),
    "an empty cluster and a queue": lambda: snapshot([waiting(i, i % 5 + 1) for i in range(1, 9)]),
    "a full cluster and a queue": _busy,
    "everything known": _everything,
    "estimates of nothing and of for ever": _odd_estimates,
    "several GPU types": _several_types,
    "GPU types of which nothing is known": _types_alike,
    "all nodes down": _nodes_down,
    "jobs larger than the cluster": lambda: snapshot([waiting(1, 64), waiting(2, 17), waiting(3)]),
    "parts of GPUs": lambda: snapshot([running(1, 0.5), waiting(2, 0.25), waiting(3, 1.5)]),
    "jobs that take no part": _others,
    "jobs with metadata": _claimed,
    "an array": _array,
    "many accounts": _many_accounts,
    "equals": _same_instant,
    "a past": lambda: _busy(past=a_past(200)),
}
