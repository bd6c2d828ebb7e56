"""On a real Slurm karuna starts a job with a deadline just in time, and later jobs before it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from schedd import Schedd, schedd_in

from slurm_dl.sandbox import Sandbox

pytestmark = [pytest.mark.slurm, pytest.mark.full("waits for a latest start, two minutes")]

LIMIT_S = 60
MARGIN_S = 40
AHEAD_S = 180
"""So its latest start is 80 s after the submission."""


def epoch_s(place: Schedd, job: str, field: str) -> float:
    """A time of the job, which scontrol shows as local time."""
    return time.mktime(time.strptime(place.job(job, field)[0], "%Y-%m-%dT%H:%M:%S"))


def rows(place: Schedd) -> dict[str, dict[str, Any]]:
    """The rows of ``dlqueue`` by job."""
    return {row["job"]: row for row in json.loads(place.ask("dlqueue", "--json").stdout)["jobs"]}


def test_a_job_with_a_deadline_starts_just_in_time(sandbox: Sandbox, short_directory: Path) -> None:
    """There is room for it when all GPUs come free, but two later jobs want them, and get them.

    At its latest start one of them gives way to it, so it is over in time.
    """
    with schedd_in(sandbox, short_directory) as place:
        place.configure(
            policy={"order": "karuna", "parameters": {"margin_s": MARGIN_S}},
            deadlines={"account_share": 0.5},
        )
        place.start()
        blocker = place.submit(16, "sleep", "600")
        place.until_state(blocker, "RUNNING")
        options = ["--by", f"+{AHEAD_S}", f"--time={LIMIT_S // 60}", "--signal=USR1@10"]
        due = place.submit(8, "sleep", "40", options=options)
        later = [place.toy(8, 2000) for _ in range(2)]
        place.until("all to be ordered", lambda: rows(place).get(later[1], {}).get("rank"))
        queue = rows(place)
        due_s = queue[due]["due_s"]
        assert due_s == pytest.approx(epoch_s(place, due, "SubmitTime") + AHEAD_S, abs=10)
        assert queue[due]["rank"] > max(queue[job]["rank"] for job in later)
        told = place.ask("dlqueue", "why", due).stdout
        assert "Due " in told
        assert "to spare" in told

        place.box.run(["scancel", blocker])
        for job in later:
            place.until_state(job, "RUNNING")
        assert place.state(due) == "PENDING"

        place.until_state(due, "RUNNING", "COMPLETED", within_s=AHEAD_S)
        latest_s = due_s - LIMIT_S - MARGIN_S
        assert epoch_s(place, due, "StartTime") >= latest_s - 1
        place.until_state(due, "COMPLETED", within_s=AHEAD_S)
        assert epoch_s(place, due, "EndTime") <= due_s
        (opened,) = place.audit(action="open_handover")
        assert str(due) in str(opened)


@pytest.mark.parametrize(
    ("policy", "early"),
    [
        ({"order": "karuna", "parameters": {"margin_s": MARGIN_S, "early": False}}, False),
        ({"order": "fifo", "parameters": {}}, True),
        ({"order": "discrete_las", "parameters": {}}, True),
        ({"order": "srsf", "parameters": {}}, True),
    ],
    ids=["karuna", "fifo", "discrete_las", "srsf"],
)
def test_it_waits_although_there_is_room(
    sandbox: Sandbox,
    short_directory: Path,
    policy: dict[str, Any],
    early: bool,  # noqa: FBT001
) -> None:
    """Eight GPUs are free, and a job on all sixteen waits: other policies start it at once."""
    with schedd_in(sandbox, short_directory) as place:
        place.configure(policy=policy, placement={"settle_s": 5}, ranking={"pass_s": 0})
        place.start()
        blocker = place.submit(8, "sleep", "600", options=["--time=30", "--no-preempt"])
        place.until_state(blocker, "RUNNING")
        place.submit(16, "sleep", "600", options=["--time=30"])
        options = ["--by", f"+{AHEAD_S}", f"--time={LIMIT_S // 60}", "--signal=USR1@10"]
        due = place.submit(4, "sleep", "40", options=options)
        place.until("it to be listed", lambda: due in rows(place))
        due_s = rows(place)[due]["due_s"]
        place.until_state(due, "RUNNING", "COMPLETED", within_s=AHEAD_S)
        begun_s = epoch_s(place, due, "StartTime")
        assert (begun_s < due_s - LIMIT_S - MARGIN_S - 10) == early
        place.until_state(due, "COMPLETED", within_s=AHEAD_S)
        assert epoch_s(place, due, "EndTime") <= due_s
