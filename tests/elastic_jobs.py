"""Sizes of elastic jobs for tests: said one by one, or drawn by lot for a snapshot's jobs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from slurm_dl.model.jobs import Origin
from slurm_dl.model.sizes import Sizes
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.testing.situations import drawn

SEEDS: Final = range(40)
"""Of snapshots by lot."""


def sizes_of(jobs: Mapping[int, Sequence[tuple[float, float]]]) -> Sizes:
    """By row (GPUs, rate) of each size; all are on one node, and the first is the one asked for."""
    rows = sorted(jobs)
    flat = [size for row in rows for size in jobs[row]]
    first = np.cumsum([0, *(len(jobs[row]) for row in rows)])
    return Sizes(
        row=np.array(rows, dtype=np.int64),
        first=first,
        gpus=np.array([gpus for gpus, _ in flat], dtype=np.float64),
        nodes=np.ones(len(flat), dtype=np.int32),
        rate=np.array([rate for _, rate in flat], dtype=np.float64),
        origin=np.full(len(flat), int(Origin.KNOWN), dtype=np.int8),
        asked=first[:-1].copy(),
    )


def some_elastic(seed: int) -> Snapshot:
    """A snapshot by lot in which about half the jobs are elastic; one of them at least."""
    snap, draw = drawn(seed), np.random.default_rng([seed, 54])
    jobs = {}
    for row in range(len(snap.jobs)):
        if row and draw.random() < 0.5:
            continue
        more = draw.choice([1.0, 2.0, 4.0, 8.0], int(draw.integers(0, 5)), replace=False)
        # Some hold, or ask for, what is none of their sizes.
        gpus = np.sort(more if len(more) > 2 else np.append(more, snap.jobs.gpus[row]))
        jobs[row] = [(float(g), float(draw.uniform(0.5, 1.1) * g)) for g in gpus]
    found = sizes_of(jobs)
    assert found.fits(n=len(snap.jobs), types=len(snap.seen.gpu_types))
    return dataclasses.replace(snap, sizes=found)
