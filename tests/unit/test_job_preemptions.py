"""How often a run is told that its job was preempted, from what the daemon left in the comment."""

from __future__ import annotations

import pytest

from slurm_dl.job.controller import preemptions_in, with_preemption

OURS = '{"slurm_dl":{"v":1,"sig":"USR1"}}'


@pytest.mark.parametrize(
    ("comment", "restarts", "expected"),
    [
        (OURS, 5, 0),
        ('{"slurm_dl":{"preempted":[3,2]}}', 3, 3),
        # It was asked, let go again, and is still that run.
        ('{"slurm_dl":{"preempted":[3,2]}}', 2, 2),
        ('{"slurm_dl":{"preempted":[3,2]}}', 7, 3),
        # A copy of another job's comment.
        ('{"slurm_dl":{"preempted":[3,2]}}', 0, 0),
        ('{"slurm_dl":{"preempted":[900,0]}}', 4, 4),
        ('{"slurm_dl":{"preempted":[-4,0]}}', 4, 0),
        ('{"slurm_dl":{"preempted":[true,0]}}', 4, 0),
        ('{"slurm_dl":{"preempted":[1]}}', 4, 0),
        ('{"slurm_dl":{"preempted":1}}', 4, 0),
        ('{"slurm_dl":1}', 4, 0),
        ("[1]", 4, 0),
        ("(null)", 4, 0),
        ("[" * 5000, 4, 0),
    ],
)
def test_preemptions_before_a_run(comment: str, restarts: int, expected: int) -> None:
    """Never below 0, never more than the restarts, whatever the comment says."""
    assert preemptions_in(comment, restarts) == expected


def test_what_is_written_is_what_is_read() -> None:
    """The daemon writes before it asks run 4; run 5 reads it."""
    written = with_preemption(OURS, 2, 4)

    assert written is not None
    assert (preemptions_in(written, 4), preemptions_in(written, 5)) == (1, 2)
