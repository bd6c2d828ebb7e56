"""The type of GPUs that a job holds does not depend on how Slurm lists jobs and nodes."""

from __future__ import annotations

import build
import pytest

from slurm_dl.policies.arithmetic.supply_and_demand import type_held
from slurm_dl.testing.snapshot_builder import shuffles


@pytest.mark.parametrize(
    ("holds", "kind"),
    [({0: 1, 1: 4}, 1), ({0: 4, 1: 1}, 0), ({0: 2, 1: 2}, 0), ({2: 4, 1: 1}, 1), ({2: 4}, -1)],
    ids=["more of the second", "more of the first", "equal", "some without a type", "no type"],
)
def test_it_is_the_one_of_which_it_holds_most(holds: dict[int, float], kind: int) -> None:
    """Of equals the first type; GPUs without a type only if there is nothing else."""
    rows, columns = [build.pending(1), build.running(2, 5)], {"gpu_type": [0, 1, -1]}
    seen = build.observed(rows, nodes=(4, 4, 4), held={2: holds}, columns=columns)

    assert type_held(seen).tolist() == [-1, kind]
    for snap in shuffles(build.snapshot(seen)):
        told = dict(zip(snap.jobs.job_id.tolist(), type_held(snap.seen).tolist(), strict=True))
        assert told == {1: -1, 2: kind}
