"""Sizes and types of all jobs at once: seconds of Sia's program, and how far from the optimum.

Jobs are drawn by lot in five sizes, half of them running. Up to 1,000 jobs the program is exact;
beyond, its linear relaxation is rounded, and the gap is to what no answer can exceed. Seconds; no
Slurm is needed.
"""

from __future__ import annotations

import time
from typing import Final

import numpy as np

from slurm_dl.policies.arithmetic.assignment import Options, assign

CASES: Final = ((50, 64, 1), (200, 512, 1), (200, 512, 3), (1000, 2048, 3), (2000, 10_000, 3))
"""Jobs, GPUs and types of GPUs."""
SIZES: Final = (1, 2, 4, 8, 16)
EXACT: Final = 1000
IDLE, FAIRNESS = 1.1, -0.5  # Sia's lambda and p
ROUNDS: Final = 5


def options(jobs: int, types: int, seed: int) -> Options:
    """Every size on every type for each job, with what it is worth under Sia."""
    draw = np.random.default_rng([jobs, types, seed])
    gpus = np.tile(np.repeat(np.array(SIZES, dtype=np.float64), types), jobs)
    job = np.repeat(np.arange(jobs), len(SIZES) * types)
    kind = np.tile(np.arange(types), jobs * len(SIZES))
    scales, fast = draw.uniform(0.4, 0.95, jobs), draw.uniform(1, 4, (jobs, types))
    rate = gpus ** scales[job] * fast[job, kind] / fast.min(axis=1)[job]
    restart = np.where(draw.random(jobs) < 0.5, draw.uniform(0.6, 1, jobs), 1.0)[job]
    return Options(job=job, gpus=gpus, kind=kind, worth=IDLE - (rate * restart) ** FAIRNESS)


def main() -> None:
    """Print the table."""
    assign(options(2, 1, 0), 2, np.array([4.0]))  # The first call imports the solver
    print("| jobs | GPUs | types | seconds, median | seconds, most | gap |")
    print("|---|---|---|---|---|---|")
    for jobs, gpus, types in CASES:
        seconds, gaps = [], []
        for seed in range(ROUNDS):
            what, capacity = options(jobs, types, seed), np.full(types, gpus // types, np.float64)
            begun_s = time.perf_counter()
            found = assign(what, jobs, capacity, relaxed=jobs > EXACT, limit_s=60.0)
            seconds.append(time.perf_counter() - begun_s)
            gaps.append(1 - found.worth / found.bound)
        row = [f"{np.median(seconds):.3f}", f"{max(seconds):.3f}", f"{max(gaps):.2e}"]
        print(f"| {jobs:,} | {gpus:,} | {types} | {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
