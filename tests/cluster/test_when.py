"""What dlqueue when says of a job on a real Slurm, and when the job then really starts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from schedd import Schedd, running_schedd, schedd_in

from slurm_dl.sandbox import Sandbox

pytestmark = [pytest.mark.slurm, pytest.mark.full("three quarters of a minute")]

_CONTRACT = {"slurm_dl": {"v": 1, "sig": "USR1", "grace_s": 10, "by": "daemon"}}
OPTED_IN = ("--requeue", f"--comment={json.dumps(_CONTRACT)}")


place = running_schedd(policy={"order": "fifo", "parameters": {}})
"""It serves first what came first, on the shared cluster of 4 x 4 GPUs."""


def submit(place: Schedd, script: str, nodes: int, *options: str) -> str:
    """A job with all GPUs of some nodes and a limit of ten minutes."""
    argv = ["sbatch", "--parsable", "--output=/dev/null", f"--nodes={nodes}", "--gres=gpu:4"]
    argv += ["--time=10", *options]
    return str(place.box.run([*argv, f"--wrap={script}"]).stdout).strip()


def told(place: Schedd, *argv: str) -> dict[str, Any]:
    """What a command prints as JSON."""
    done = place.ask(*argv, "--json", check=False)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_a_job_starts_inside_the_range_that_was_told(place: Schedd) -> None:
    """One job holds the cluster; the next is told when it starts, and it does; so it is scored.

    Nothing is submitted by asking, and the daemon goes on looking meanwhile.
    """
    go_on = place.home / "go_on"
    until_then = f"until [ -e {go_on} ]; do sleep 0.2; done"
    first = submit(place, until_then, 4)
    waiting = submit(place, until_then, 1)

    def seen() -> bool:
        rows = {row["job"]: row["state"] for row in told(place, "dlqueue")["jobs"]}
        return rows == {first: "R", waiting: "PD"}

    place.until("the daemon to see the queue", seen)
    cycles = told(place, "dlctl", "status")["cycles"]
    answer = told(place, "dlqueue", "when", waiting)
    shapes = told(place, "dlsubmit", "--when", "--gpus", "16,16x4", "--time", "10")
    after = told(place, "dlctl", "status")
    go_on.touch()

    assert answer["why_not"] is None
    assert answer["runs"] >= 10, "too few to be scored"
    start = answer["start"]
    assert answer["now_s"] <= start["low_s"] <= start["median_s"] <= start["high_s"]
    # The job before it ends at its limit at the latest.
    assert start["high_s"] <= answer["now_s"] + 600 + 60
    sixteen, too_many = shapes["shapes"]
    assert sixteen["start"]["median_s"] >= start["median_s"], "it comes behind the one that waits"
    assert "never" in too_many["why_not"]
    assert after["jobs"]["PD"] + after["jobs"]["R"] == 2
    assert after["cycles"] > cycles

    place.until_state(waiting, "RUNNING", "COMPLETED")
    place.until(
        "the score", lambda: told(place, "dlctl", "status")["forecasts"]["ranges"] == 1, 60.0
    )
    assert told(place, "dlctl", "status")["forecasts"]["held"] == 1


def test_a_preemption_that_is_to_come_is_foretold(sandbox: Sandbox, short_directory: Path) -> None:
    """Least attained service: a new job gets the GPUs when the quantum of the old one is over.

    By itself the old one would hold them for six minutes at least: a hundredth of its limit.
    """
    quantum_s = 20.0
    with schedd_in(sandbox, short_directory) as place:
        place.configure(
            policy={"order": "las", "parameters": {}}, preemption={"min_quantum_s": quantum_s}
        )
        place.start()
        saves = "trap 'exit 0' USR1; for i in $(seq 600); do sleep 0.2; done"
        old = submit(place, saves, 4, "--time=600", *OPTED_IN)
        place.until_state(old, "RUNNING")
        new = submit(place, saves, 4, *OPTED_IN)

        def seen() -> bool:
            rows = {row["job"]: row["state"] for row in told(place, "dlqueue")["jobs"]}
            return rows == {old: "R", new: "PD"}

        place.until("the daemon to see the queue", seen)
        answer = told(place, "dlqueue", "when", new)
        assert answer["why_not"] is None
        assert answer["runs"] >= 10, "too few to be scored"
        start = answer["start"]
        assert start["high_s"] < answer["now_s"] + 300, "nobody is preempted"

        place.until_state(new, "RUNNING", within_s=120.0)
        place.until(
            "the score", lambda: told(place, "dlctl", "status")["forecasts"]["ranges"] == 1, 60.0
        )
        assert told(place, "dlctl", "status")["forecasts"]["held"] == 1


def test_a_submission_says_what_opting_in_is_worth(sandbox: Sandbox, short_directory: Path) -> None:
    """Jobs that may be preempted hold all GPUs: who gives up that right too goes before them."""
    with schedd_in(sandbox, short_directory) as place:
        # Of one cycle an answer is kept: where the machine is too busy for the time that a
        # submission waits, the next one has it.
        place.configure(daemon={"poll_s": 20})
        place.start()
        old = submit(place, "sleep 600", 4, "--time=600", *OPTED_IN)
        place.until_state(old, "RUNNING")

        def seen() -> bool:
            return [row["state"] for row in told(place, "dlqueue")["jobs"]] == ["R"]

        place.until("the daemon to see the job", seen)
        job = ["--gpus", "4", "--time", "600"]
        (shape,) = told(place, "dlsubmit", "--when", *job)["shapes"]
        early, late = (one["start"]["median_s"] for one in (shape, shape["no_preempt"]))
        # The old one's run time is drawn from a hundredth of its limit on: six minutes.
        assert early + 120 < late

        def noted(*options: str) -> str:
            """The note; none where the machine is too busy to answer in time."""
            argv = ["dlsubmit", "--preview", "--dry-run", *job, *options, "--", "true"]
            return place.ask(*argv).stderr

        for options, words in (
            ((), r"would start (now|in about .+); with --no-preempt in about .+"),
            (("--no-preempt",), r"would start in about .+; without --no-preempt (now|in about .+)"),
        ):
            place.until(words, lambda o=options, w=words: re.search(w, noted(*o)))  # type: ignore[misc]
