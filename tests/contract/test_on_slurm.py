"""The contract, held against a Slurm on this host through the command-line reader.

tests/docker holds other releases, and the other reader, to the same.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from contract.actions import ACTIONS
from contract.filling import cases_of, fill, own_cluster, release_of
from contract.on_slurm import OnSlurm, backend, wrong_action, wrong_jobs
from contract.subject import SMALL

pytestmark = pytest.mark.slurm


@pytest.fixture(scope="module")
def subject() -> Iterator[OnSlurm]:
    """A small cluster that each action finds empty."""
    with own_cluster(SMALL) as box, backend(box, "cli") as cluster:
        yield OnSlurm(box, cluster)


def test_jobs_are_reported_as_they_were_submitted() -> None:
    """All cases stand in one cluster and are right, field by field, in one observation."""
    with own_cluster() as box, backend(box, "cli") as cluster:
        cases = cases_of(release_of(box))
        problems, _ = wrong_jobs(cluster, cases, fill(box, cases))

    assert {name: wrong for name, wrong in problems.items() if wrong} == {}


@pytest.mark.parametrize("name", ACTIONS)
def test_action(subject: OnSlurm, name: str) -> None:
    """Each action does what it must, and is refused when it must be."""
    assert wrong_action(subject, name) == []
