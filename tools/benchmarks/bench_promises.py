"""Deadlines: how many are met, by count and by GPU time, and how many promises are kept.

A sixteenth of one of Chronus' traces (SoCC 2021, S-Lab-System-Group/ChronusArtifact on GitHub) on
56 GPUs of the papers' ideal cluster: ``python tools/benchmarks/bench_promises.py
trace_job_Philly_MIX1.csv``; or another part, on others. The trace does not come with the project.
Minutes; no Slurm is needed.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

import numpy as np

from slurm_dl.policies.base import Policy
from slurm_dl.policies.chronus import Chronus
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.policies.edf import Edf
from slurm_dl.policies.elasticflow import ElasticFlow
from slurm_dl.policies.karuna import Karuna
from slurm_dl.policies.shortest import Srsf
from slurm_dl.simulation.cluster_shape import parse_shape
from slurm_dl.simulation.ideal.simulator import simulate
from slurm_dl.simulation.job_knowledge import TraceKnowledge
from slurm_dl.traces.format_registry import read_trace

POLICIES: Final[dict[str, Policy]] = {
    "discrete_las": DiscreteLas(),
    "srsf": Srsf(),
    "edf, admits: false": Edf(admits=False),
    "karuna, margin_s: 0": Karuna(margin_s=0.0),
    "edf over discrete_las": Edf(margin=0.0),
    "edf over srsf": Edf(others="srsf", margin=0.0),
    "chronus, margin: 0": Chronus(margin=0.0),
    "chronus": Chronus(),
    "chronus, 5 min": Chronus(lease_length_s=300.0),
    "elasticflow over srsf, once: false": ElasticFlow(others="srsf", once=False, margin=0.0),
}


def measure(trace_file: Path, policy: Policy, part_of: int, shape: str) -> list[str]:
    """The cells of a row."""
    whole = read_trace(trace_file, "chronus")
    in_file = np.argsort([int(job) for job in whole.job_id])
    drawn = np.random.default_rng(0).random(len(whole)) < 1 / part_of
    part = whole.of_jobs(np.sort(in_file[drawn]))
    found = simulate(
        part,
        parse_shape(shape),
        policy,
        known=TraceKnowledge(due_s=part.due_s, curves=part.curves_by_row()),
    )
    records, due = found.records, found.deadlines
    if due is None:
        message = f"{trace_file}: no job has a deadline"
        raise SystemExit(message)
    asked = np.isfinite(np.full(len(part), np.inf) if part.due_s is None else part.due_s)
    others_h = (records.end_s - records.submit_s)[~asked] / 3600
    return [
        f"{due.met / due.jobs:.3f}",
        f"{due.met_gpu_frac:.3f}",
        *([f"{due.promised:,}", f"{due.kept:,}"] if due.promised else ["", ""]),
        f"{others_h.mean():.2f}" if len(others_h) else "",
        f"{records.preemptions.sum():,}",
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--part", type=int, default=16, help="one job of so many is drawn")
    parser.add_argument("--shape", default="7x8")
    parser.add_argument("--policies", default="", help="the rows that begin so")
    given = parser.parse_args()
    print("| policy | met | met, GPU time | promised | kept | others' JCT, h | stops |")
    print("|---|---|---|---|---|---|---|")
    for name, policy in POLICIES.items():
        if name.startswith(given.policies):
            cells = measure(given.trace, policy, given.part, given.shape)
            print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
