"""On a real Slurm: short jobs have a lane; a job whose data is not there yet holds no GPUs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from schedd import schedd_in

from slurm_dl.sandbox import Sandbox

pytestmark = pytest.mark.slurm

MOST_FIRST = Path(__file__).parents[1] / "most_first_policy.py"


@pytest.mark.full("waits out the first minute; units show the rest")
def test_a_job_waits_for_its_data_and_holds_nothing(
    sandbox: Sandbox, short_directory: Path
) -> None:
    """Sixteen GPUs are free. A later job is not behind it. Its user says that the data is there."""
    with schedd_in(sandbox, short_directory) as place:
        place.configure(policy={"order": "fifo", "parameters": {}})
        place.start()
        job = place.toy(16, 4, options=["--wait-for-data"])
        place.until("it to be put off by us", lambda: place.audit(action="set_steer"), within_s=90)
        later = place.toy(16, 4)
        place.until_state(later, "COMPLETED")
        assert place.job(job, "JobState", "Reason", "StartTime")[:2] == ["PENDING", "BeginTime"]
        assert "data" in place.ask("dlqueue", "why", job).stdout

        said_s = time.monotonic()
        place.ask("dlsubmit", "--data-ready", job)
        place.until_state(job, "RUNNING", "COMPLETED", within_s=30)
        assert time.monotonic() - said_s < 30
        place.until_state(job, "COMPLETED")
        late = place.ask("dlsubmit", "--data-ready", job, check=False)
        assert (late.returncode, job in late.stderr) == (2, True)


@pytest.mark.parametrize(
    ("lane", "starts"),
    [
        pytest.param(60.0, True, marks=pytest.mark.full("half a minute; units bound the wait")),
        pytest.param(0.0, False, marks=pytest.mark.full("shows that the other can fail")),
    ],
)
def test_a_short_job_gets_gpus_back_that_the_policy_would_leave(
    sandbox: Sandbox, short_directory: Path, *, lane: float, starts: bool
) -> None:
    """The policy serves first who had most: without a lane a short job waits for the end of all."""
    with schedd_in(sandbox, short_directory) as place:
        place.configure(
            policy={"order": f"{MOST_FIRST}:MostFirst", "parameters": {}},
            ranking={"short_s": lane, "short_share": 0.25, "short_gpus": 4},
        )
        place.start()
        long = [place.toy(8, 4000, options=["--time=60"]) for _ in range(3)]
        place.until("two to run", lambda: [place.state(job) for job in long[:2]] == ["RUNNING"] * 2)
        place.until("their quantum", lambda: place.attained_gpu_s(long[1]) > 40)
        short = place.toy(4, 4, options=["--time=1", "--signal=USR1@20"])
        if starts:
            place.until_state(short, "RUNNING", "COMPLETED", within_s=60)
            assert place.audit(action="requeue")
            return
        cycles = place.cycles()
        place.until("many looks", lambda: place.cycles() > cycles + 20)
        assert place.state(short) == "PENDING"
