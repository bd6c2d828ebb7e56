"""Small clusters in use, drawn at random: who could be stopped, or moved, for one pending job."""

from __future__ import annotations

import build
from hypothesis import strategies as st

from slurm_dl.model.jobs import JobRow
from slurm_dl.model.snapshot import Snapshot


@st.composite
def used_clusters(
    draw: st.DrawFn,
    *,
    gpus: int,
    least_nodes: int,
    most_jobs: int,
    most_share: int,
    most_nodes: int = 4,
) -> tuple[Snapshot, int]:
    """Up to four nodes of *gpus* GPUs with opted-in jobs, and the row of one pending job.

    Args:
        most_share: Most GPUs of a running job on each of its nodes.
        most_nodes: Most nodes of a running job.
    """
    m = draw(st.integers(least_nodes, 4))
    free = [gpus] * m
    rows: list[JobRow] = []
    held: dict[int, dict[int, float]] = {}
    for job_id in range(1, draw(st.integers(1, most_jobs)) + 1):
        share = draw(st.integers(1, most_share))
        room = [n for n in range(m) if free[n] >= share]
        if not room:
            break
        most = min(most_nodes, len(room))
        on = draw(st.lists(st.sampled_from(room), min_size=1, max_size=most, unique=True))
        for node in on:
            free[node] -= share
        held[job_id] = dict.fromkeys(on, float(share))
        rows.append(build.running(job_id, share * len(on), n_nodes=len(on)))
    n_nodes = draw(st.integers(1, m))
    rows.append(build.pending(99, n_nodes * draw(st.integers(1, gpus)), n_nodes=n_nodes))
    seen = build.observed(rows, nodes=[gpus] * m, held=held, opted_in=list(held))
    return build.snapshot(seen), len(rows) - 1
