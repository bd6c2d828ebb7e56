"""The workload of the fidelity experiment on a real Slurm, alone and under dlschedd."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

import fidelity_site as fs
import numpy as np
from fidelity_workload import RESTORE_S, SAVE_S, THRESHOLDS_GPU_S, Workload

from slurm_dl.model.errors import ClusterError

LOOK_EVERY_S = 2.0
LONGEST_S = 1200.0

DAEMON: Mapping[str, Mapping[str, object]] = {
    "daemon": {"poll_s": 1, "fast_poll_s": 1},
    "policy": {
        "order": "discrete_las",
        "parameters": {"thresholds_gpu_s": [*THRESHOLDS_GPU_S]},
    },
    "preemption": {
        "min_quantum_s": 5,
        "cooldown_s": 5,
        "max_preemptions": 5,
        "max_grace_s": 60,
        "handover_timeout_s": 90,
        "limit_reserve_s": 5,
        "start_margin_s": 20,
        "checkpoint_cost_s": 2,
    },
    # The simulator has none.
    "breakers": {"cluster_share": 0, "failed_share": 0},
    "writes": {"rate_per_s": 20, "burst": 100},
}
"""A daemon in a hurry, as the jobs are: seconds where a site has minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One workload played to its end.

    Attributes:
        jct_s: Of each job, submission to the end of its last run, seconds.
        wait_s: Of each job, submission to its first start, seconds.
        restarts: Of each job, how often it was requeued.
        began_s: When the first job was submitted, epoch seconds; 0 in a simulation.
        phases_s: slurmctld's clocks: when after the first submission the main scheduler first came
            because it was asked to or not, and because it was not, and when backfill did.
        late_s: Most that a job was submitted after its time, seconds.
        loads: Load average before, in the middle of and after it; empty for a simulation.
        took_s: First submission to the last end, seconds.
    """

    jct_s: list[float]
    wait_s: list[float]
    restarts: list[int]
    began_s: float
    phases_s: list[float]
    late_s: float
    loads: list[float]
    took_s: float

    def as_json(self) -> dict[str, object]:
        """For a results file."""
        return asdict(self)

    @classmethod
    def of(cls, tree: Mapping[str, Any]) -> Self:
        """What `as_json` made; what else is in *tree* is left out."""
        return cls(**{field.name: tree[field.name] for field in fields(cls)})


def play_plain(work: Workload, say: Callable[[str], None]) -> Played:
    """Slurm alone: FIFO and backfill."""
    with fs.site() as site:
        return _play(site, work, say)


def play_scheduled(work: Workload, say: Callable[[str], None]) -> Played:
    """The same with dlschedd beside it."""
    with fs.site() as site:
        daemon = fs.Schedd(site, DAEMON)
        try:
            return _play(site, work, say)
        finally:
            daemon.stop()


def _play(site: fs.Site, work: Workload, say: Callable[[str], None]) -> Played:
    trace, loads = work.trace, [fs.load_average()]
    ids: list[int] = []
    began_s, late_s, told_s = time.time() + 0.5, 0.0, 0.0
    for row in range(len(trace)):
        due_s = began_s + float(trace.submit_s[row])
        fs.pace(due_s)
        late_s = max(late_s, time.time() - due_s)
        gpus = int(trace.gpus[row])
        nodes = -(-gpus // fs.GPUS_PER_NODE)
        ids.append(
            site.train(
                nodes=nodes,
                gpus_per_node=gpus // nodes,
                work_s=float(trace.duration_s[row]),
                limit_min=int(work.limit_s[row] // 60),
                save_s=SAVE_S,
                restore_s=RESTORE_S,
            )
        )
        if time.time() - told_s > 20:
            say(f"{row + 1} of {len(trace)} jobs submitted")
            told_s = time.time()
    loads.append(fs.load_average())
    while True:
        seen = site.jobs()
        left = [j for j in ids if seen[j].state in {"PENDING", "RUNNING", "COMPLETING"}]
        if not left:
            break
        if time.time() - began_s > LONGEST_S:
            msg = f"{len(left)} jobs have not ended after {LONGEST_S:.0f} s"
            raise ClusterError(msg)
        if time.time() - told_s > 20:
            say(f"{len(left)} jobs left")
            told_s = time.time()
        time.sleep(LOOK_EVERY_S)
    loads.append(fs.load_average())
    return _read(site, ids, loads, late_s)


def _read(site: fs.Site, ids: list[int], loads: list[float], late_s: float) -> Played:
    """What slurmctld wrote down, to the millisecond."""
    seen = site.jobs()
    bad = [f"{j} {seen[j].state}" for j in ids if seen[j].state != "COMPLETED"]
    if bad:
        msg = f"jobs did not complete: {', '.join(bad)}"
        raise ClusterError(msg)
    submit: dict[int, float] = {}
    start: dict[int, float] = {}
    end: dict[int, float] = {}
    for at_s, text in site.log():
        if match := re.match(r"_slurm_rpc_submit_batch_job: JobId=(\d+) ", text):
            submit[int(match[1])] = at_s
        elif match := re.search(r"(?:Started|sched: Allocate) JobId=(\d+) ", text):
            start.setdefault(int(match[1]), at_s)
        elif match := re.match(r"_job_complete: JobId=(\d+) done", text):
            end[int(match[1])] = at_s
    began_s = submit[ids[0]]
    jct_s = np.array([end[j] - submit[j] for j in ids])
    return Played(
        jct_s=[round(float(t), 3) for t in jct_s],
        wait_s=[round(start[j] - submit[j], 3) for j in ids],
        restarts=[seen[j].restarts for j in ids],
        began_s=began_s,
        phases_s=phases(site.log(), began_s),
        late_s=round(late_s, 3),
        loads=[round(load, 2) for load in loads],
        took_s=round(max(end.values()) - began_s, 3),
    )


def phases(log: Iterable[tuple[float, str]], began_s: float) -> list[float]:
    """See `Played.phases_s`; *log* as `Site.log` gives it."""
    wanted = ("Running job scheduler", "scheduler for full queue", "_attempt_backfill: beginning")
    found: dict[str, float] = {}
    for at_s, text in log:
        for words in wanted:
            if at_s >= began_s and words in text:
                found.setdefault(words, round(at_s - began_s, 3))
    return [found[words] for words in wanted]
