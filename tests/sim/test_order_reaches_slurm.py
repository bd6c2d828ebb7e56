"""On a simulated Slurm the turns that a policy of shares gives are taken."""

from __future__ import annotations

import numpy as np
import pytest

from slurm_dl.experiments import cluster_presets, simulation_run
from slurm_dl.experiments.simulation_run import PolicySpec
from slurm_dl.model.completed_jobs import Records
from slurm_dl.model.trace import Ending, Trace
from slurm_dl.simulation.cluster_shape import parse_shape

ALICES, BOBS = 40, 8
"""Jobs of two hours on one of four GPUs, one every 14 s: bob begins 560 s after alice."""


def alice_and_bob() -> Trace:
    """Many jobs of one user and account, and later some of another."""
    n = ALICES + BOBS
    whose = np.repeat([0, 1], [ALICES, BOBS]).astype(np.int32)
    return Trace(
        name="alice_and_bob",
        format="generated",
        job_id=tuple(f"j{i}" for i in range(n)),
        submit_s=14.0 * np.arange(n),
        duration_s=np.full(n, 7200.0),
        gpus=np.ones(n),
        user=whose,
        model=np.full(n, -1, dtype=np.int32),
        ending=np.full(n, Ending.COMPLETED, dtype=np.int8),
        account=whose,
        users=("alice", "bob"),
        accounts=("alice", "bob"),
    )


def simulated(policy: str) -> Records:
    """What becomes of them with ``dlsim run --cluster 1x4 --costs slurm --seed 0``."""
    trace = alice_and_bob()
    chosen = simulation_run.choose(PolicySpec(policy=policy), trace, on_slurm=True)
    cluster = cluster_presets.find("slurm", chosen.preset, trace)
    result = simulation_run.run(chosen, trace, cluster, parse_shape("1x4"), seed=0)
    return result.outcome.records


@pytest.mark.parametrize(
    ("policy", "least_s", "most_s"),
    [
        # Bob waits for all of alice's jobs.
        ("fifo", 0.99 * 82_634, 1.01 * 82_634),
        # He has half of the GPUs, in turns. On the ideal cluster it is 25,196 s.
        pytest.param("gandiva_fair", 18_000, 30_000, marks=pytest.mark.full("takes a minute")),
        pytest.param("hug", 18_000, 30_000, marks=pytest.mark.full("takes a minute")),
    ],
)
def test_who_came_later_has_his_share(policy: str, least_s: float, most_s: float) -> None:
    """Mean time from submission to end of bob's jobs."""
    records = simulated(policy)

    assert records.success.all()
    assert least_s <= records.jct_s[ALICES:].mean() <= most_s
