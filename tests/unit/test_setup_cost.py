"""What a stop and a new start cost a job: sums by hand of what was measured."""

from __future__ import annotations

from typing import Any

import build
import pytest

from slurm_dl.engine.preemption.setup_cost import setup_s
from slurm_dl.model.breaker import NOT_OURS, Restart, Taken
from slurm_dl.model.contract import Claim
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.profile import CheckpointCost, Profile
from slurm_dl.model.snapshot import DEFAULT_HOLD_S

COST_S = 60.0
"""Save and restore where nothing is known of them."""

PROFILES = {
    name: Profile(name=name, checkpoint=CheckpointCost(save_s=save_s, restore_s=restore_s))
    for name, save_s, restore_s in (("slow", 100.0, 100.0), ("half known", 5.0, None))
}


def taken(job_id: int, notice_s: float, at_s: float = 0.0) -> Taken:
    """GPUs of a job that was gone so long after the signal."""
    return Taken(
        at_s=build.NOW_S - 500 + at_s,
        job_id=JobId(job_id),
        gpus=1.0,
        notice_s=notice_s,
        handover_id=HandoverId(7),
    )


def restart(held_s: float | None, handover_id: int = 7) -> Restart:
    """A job that was put back, and started so long after; None: not yet."""
    at_s = build.NOW_S - 5000
    return Restart(
        job_id=JobId(99),
        restarts=0,
        gpus=1.0,
        requeued_s=at_s,
        handover_id=HandoverId(handover_id),
        restarted_s=at_s + held_s if held_s else 0.0,
    )


NEVER_TAKEN, TAKEN = 1, 2
UNKNOWN_S = COST_S + DEFAULT_HOLD_S


@pytest.mark.parametrize(
    ("measured", "models", "never_taken_s", "taken_s"),
    [
        pytest.param({}, {}, UNKNOWN_S, UNKNOWN_S, id="nothing"),
        pytest.param(
            {"taken": (taken(TAKEN, 40), taken(TAKEN, 8, 1), taken(7, 20), taken(8, 100))},
            {},
            60 / 2 + 30 + DEFAULT_HOLD_S,  # Of 8, 20, 40, 100 the median.
            60 / 2 + 8 + DEFAULT_HOLD_S,
            id="its own last notice, else the median of all",
        ),
        pytest.param(
            {"restarts": (restart(400), restart(130), restart(9, NOT_OURS), restart(None))},
            {},
            COST_S + 130,
            COST_S + 130,
            id="the shortest hold after a hand-over",
        ),
        pytest.param(
            {},
            {NEVER_TAKEN: "slow", TAKEN: "half known"},
            200 + DEFAULT_HOLD_S,
            UNKNOWN_S,
            id="a profile with both parts",
        ),
        pytest.param(
            {"taken": (taken(TAKEN, 10),), "restarts": (restart(50),)},
            {NEVER_TAKEN: "no such", TAKEN: "slow"},
            60 / 2 + 10 + 50,
            200 / 2 + 10 + 50,
            id="all of them",
        ),
    ],
)
def test_it_is_notice_hold_and_restore(
    measured: dict[str, Any], models: dict[int, str], never_taken_s: float, taken_s: float
) -> None:
    """Of a running job that was never preempted, and of a waiting one that was."""
    claims = {JobId(job_id): Claim(model=model) for job_id, model in models.items()}
    rows = [build.running(NEVER_TAKEN), build.pending(TAKEN)]
    snap = build.snapshot(build.observed(rows, claims=claims), **measured)

    assert setup_s(snap, PROFILES, COST_S).tolist() == [never_taken_s, taken_s]
