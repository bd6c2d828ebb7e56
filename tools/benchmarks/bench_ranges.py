"""Coverage of the ranges of `dlsim compare --resamples`: how many hold the true value.

    python tools/benchmarks/bench_ranges.py [-j N]

Histories come from one process: the days differ in how many jobs arrive and in how long they run,
long jobs come on days that follow each other, and queues last over days. The true mean JCT is that
of many further histories. Status 1 if fewer than 90 % of the ranges hold it; beside them is what
resamples of single jobs give, with mean +- t s.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from multiprocessing import Pool

import numpy as np

from slurm_dl.experiments import bootstrap_interval
from slurm_dl.experiments.bootstrap_interval import TimeBlocks, resampled, t_quantile
from slurm_dl.experiments.grid import Cell, Experiment, Workload
from slurm_dl.experiments.simulation_run import PolicySpec
from slurm_dl.model.jobs import F64
from slurm_dl.model.trace import Trace

DAY_S = 86_400.0
DAYS, JOBS_A_DAY, MEAN_S, CLUSTER = 120, 3.0, 22 * 3600.0, "2x4"
POLICIES = ("fifo_skip", "srtf")
HISTORIES, RESAMPLES, FURTHER, LEAST = 40, 9, 400, 0.9


def history(number: int) -> Trace:
    """One history of the process."""
    rng = np.random.default_rng((52, number))
    level = np.empty(DAYS)
    level[0] = rng.normal()
    for i in range(1, DAYS):
        level[i] = 0.6 * level[i - 1] + 0.8 * rng.normal()
    jobs = rng.poisson(JOBS_A_DAY * rng.lognormal(-0.045, 0.3, DAYS))
    day = np.repeat(np.arange(DAYS), jobs)
    n = len(day)
    longer = np.exp(0.3 * level - 0.045)[day]
    nobody = np.zeros(n, np.int32)
    return Trace(
        name=f"made {number}",
        format="generated",
        job_id=tuple(map(str, range(n))),
        submit_s=np.sort(day * DAY_S + rng.uniform(0, DAY_S, n)),
        duration_s=rng.lognormal(-0.32, 0.8, n) * MEAN_S * longer,
        gpus=rng.choice([1.0, 2.0, 4.0], n, p=[0.5, 0.3, 0.2]),
        user=nobody,
        model=nobody - 1,
        ending=nobody.astype(np.int8),
    )


def mean_jct_s(trace: Trace) -> list[float]:
    """Of each of the policies."""
    whole = Experiment(workloads={"": Workload(cluster=CLUSTER, trace=trace)})
    ran = (whole.simulate(Cell(policy=PolicySpec(policy=name))) for name in POLICIES)
    return [float(np.nanmean(one.result.outcome.records.jct_s)) for one in ran]


def of_jobs(trace: Trace, seed: int) -> Trace:
    """Other jobs at the same times, each drawn by itself."""
    drawn = np.random.default_rng(seed).integers(len(trace), size=len(trace))
    return trace.of_jobs(drawn, job_id=trace.job_id, submit_s=trace.submit_s)


def measured(way: Callable[[Trace, int], Trace], number: int) -> F64:
    """``(1 + RESAMPLES, policies)`` of a history and its resamples."""
    own = history(number)
    return np.array([mean_jct_s(way(own, s) if s else own) for s in range(1 + RESAMPLES)])


def plain(values: F64) -> tuple[float, float]:
    """Mean +- t s."""
    half = t_quantile(len(values) - 1) * values.std(ddof=1)
    return float(values.mean() - half), float(values.mean() + half)


def main() -> int:
    """Measure and print; 1 if too few ranges hold the true value."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-j", dest="processes", type=int, default=2, metavar="N")
    with Pool(parser.parse_args().processes) as pool:
        further = pool.map(history, range(HISTORIES, HISTORIES + FURTHER))
        true = np.array(pool.map(mean_jct_s, further)).mean(axis=0)
        blocks = pool.map(partial(measured, resampled), range(HISTORIES), chunksize=1)
        single = pool.map(partial(measured, of_jobs), range(HISTORIES), chunksize=1)
    ratio = true[1] / true[0]
    held = np.zeros((2, 2))
    for number, (found, old) in enumerate(zip(blocks, single, strict=True)):
        b = TimeBlocks.of(history(number)).independent
        new = [
            bootstrap_interval.figure(found[:, 0], b),
            bootstrap_interval.ratio(found[:, 1], found[:, 0], b),
        ]
        ends = [[(r.low, r.high) for r in new], [plain(old[:, 0]), plain(old[:, 1] / old[:, 0])]]
        held += [
            [low <= t <= high for (low, high), t in zip(e, (true[0], ratio), strict=True)]
            for e in ends
        ]
    print(f"true: mean JCT of {POLICIES[0]} {true[0] / 3600:.1f} h, {POLICIES[1]} x{ratio:.3f}\n")
    print(f"| of {HISTORIES} ranges hold it | mean JCT | ratio |\n|---|---|---|")
    for name, (mean, pair) in zip(("blocks of time", "single jobs, mean ± t s"), held, strict=True):
        print(f"| {name} | {mean:.0f} | {pair:.0f} |")
    return int((held[0] < LEAST * HISTORIES).any())


if __name__ == "__main__":
    sys.exit(main())
