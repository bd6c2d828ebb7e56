"""Ways to serve gangs under `learned_gittins`, on the ideal cluster with 180 s a restart.

greedy: jobs in the order of their levels, each that fits. server_filling: of the shortest prefix of
that order that asks for all GPUs, the largest jobs first (Grosof, Harchol-Balter and Scheller-Wolf,
"WCFS", Queueing Systems 102, 2022, and "ServerFilling-SRPT", SIGMETRICS 2023). reserve: the first
job that does not fit is given a start by the quantiles of the running jobs' posterior, and jobs
that are expected to be longer than that may not start before it (as EASY backfill does).
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from slurm_dl.experiments.bootstrap_interval import resampled
from slurm_dl.model.jobs import F64, PENDING
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.arithmetic.supply_and_demand import contenders
from slurm_dl.policies.base import Order
from slurm_dl.policies.learned_gittins import LEAST_PAST, LearnedGittins
from slurm_dl.simulation.cluster_shape import parse_shape
from slurm_dl.simulation.ideal.simulator import simulate
from slurm_dl.simulation.ideal.start_costs import FlatCosts
from slurm_dl.traces.format_registry import read_trace

CLUSTERS = {"itp10": "2x8", "itp01": "8x8", "itp05": "2x8", "itp06": "12x8", "itp03": "20x8"}
RESTART_S = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFilling(LearnedGittins):
    """The largest jobs first among the first that fill the cluster."""

    name: ClassVar[str] = "server_filling"

    def order(self, snap: Snapshot, /) -> Order:
        """See `Policy`."""
        order = LearnedGittins.order(self, snap)
        ranked, gpus = ranked_rows(snap, order), snap.jobs.gpus
        before = gpus[ranked].cumsum() - gpus[ranked]
        first = ranked[before < snap.seen.nodes.gpus.sum()]
        tier, key = order.tier.copy(), order.key.copy()
        tier[first], key[first] = 0, -gpus[first]
        return dataclasses.replace(order, tier=tier, key=key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserving(LearnedGittins):
    """The first job that does not fit has a reservation."""

    name: ClassVar[str] = "reserve"
    quantile: float = 0.5

    def order(self, snap: Snapshot, /) -> Order:
        """See `Policy`."""
        order = LearnedGittins.order(self, snap)
        if len(snap.past) < LEAST_PAST:
            return order
        ranked, gpus = ranked_rows(snap, order), snap.jobs.gpus
        all_gpus = float(snap.seen.nodes.gpus.sum())
        used, serve, head = 0.0, [], -1
        for row in ranked.tolist():
            if used + gpus[row] <= all_gpus:
                used += gpus[row]
                serve.append(row)
            elif snap.jobs.state[row] == PENDING:
                head = row
                break
        if head < 0:
            return order
        left_s = quantiles_left_s(snap, self.quantile)
        held = np.array(serve)
        held = held[np.argsort(left_s[held])]
        room = all_gpus - used + gpus[held].cumsum()
        at = int(np.searchsorted(room, gpus[head]))
        shadow_s, spare = left_s[held[min(at, len(held) - 1)]], room[min(at, len(held) - 1)]
        later = ranked[np.flatnonzero(ranked == head)[0] + 1 :]
        late = later[(left_s[later] > shadow_s) & (gpus[later] > spare - gpus[head])]
        barred = np.zeros(len(gpus), dtype=np.bool_)
        barred[late[snap.jobs.state[late] == PENDING]] = True
        return dataclasses.replace(order, barred=barred)


def ranked_rows(snap: Snapshot, order: Order) -> np.ndarray:
    """Rows of the jobs that take part, best first."""
    rows = contenders(snap).nonzero()[0]
    memory, jobs = snap.memory, snap.jobs
    keys = (jobs.job_id, memory.first_submit_s, order.key, order.tier)
    return rows[np.lexsort([key[rows] for key in keys])]


def quantiles_left_s(snap: Snapshot, quantile: float) -> F64:
    """``(n,)`` time left by the run times of finished jobs that lasted as long, seconds."""
    ran_s, age_s = np.sort(snap.past.ran_s), snap.memory.ran_s
    first = ran_s.searchsorted(age_s, side="right")
    at = first + ((len(ran_s) - first) * quantile).astype(np.int64)
    known = at < len(ran_s)
    return np.where(known, ran_s[np.minimum(at, len(ran_s) - 1)] - age_s, age_s)


WAYS = {
    "greedy": LearnedGittins(),
    "server_filling": ServerFilling(),
    "reserve 0.5": Reserving(quantile=0.5),
    "reserve 0.9": Reserving(quantile=0.9),
}


def main(args: Sequence[str] | None = None) -> None:
    """Print mean JCT over that of greedy on the same workload, and preemptions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=Path, default=Path("traces/tiresias-derived"))
    parser.add_argument("--trace", nargs="*", default=list(CLUSTERS), choices=CLUSTERS)
    parser.add_argument("--seeds", type=int, default=3)
    chosen = parser.parse_args(args)
    for name in chosen.trace:
        whole = read_trace(chosen.traces / f"{name}.csv")
        ratios: dict[str, list[float]] = {way: [] for way in WAYS}
        preempted: dict[str, int] = dict.fromkeys(WAYS, 0)
        for seed in range(chosen.seeds):
            trace = resampled(whole, seed) if seed else whole
            costs = FlatCosts(restart_s=RESTART_S, large_restart_s=RESTART_S, gpus=trace.gpus)
            base_s = 0.0
            for way, policy in WAYS.items():
                shape = parse_shape(CLUSTERS[name])
                records = simulate(trace, shape, policy, costs=costs).records
                mean_s = float(np.mean(records.end_s - records.submit_s))
                base_s = base_s or mean_s
                ratios[way].append(mean_s / base_s)
                preempted[way] += int(records.preemptions.sum())
        for way, values in ratios.items():
            low, high = min(values), max(values)
            print(
                f"{name:6} {way:15} x{np.mean(values):.3f} ({low:.3f} to {high:.3f}), "
                f"{preempted[way] / chosen.seeds:,.0f} preemptions"
            )


if __name__ == "__main__":
    main()
