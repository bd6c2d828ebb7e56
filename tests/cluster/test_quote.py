"""dlsubmit's verdict on a deadline on a real Slurm: before the submission and after it."""

from __future__ import annotations

import json

import pytest
from schedd import Schedd, running_schedd

pytestmark = [pytest.mark.slurm, pytest.mark.full("half a minute")]

place = running_schedd(policy={"order": "edf", "parameters": {}})
"""It promises deadlines, on the shared cluster of 4 x 4 GPUs."""


def test_a_quote_is_what_the_submitted_job_is_told(place: Schedd) -> None:
    """A deadline that can be kept is promised; of one that cannot nothing is submitted."""
    place.until(
        "the first look",
        lambda: place.ask("dlqueue", check=False).returncode == 0,
    )

    def typed(by: str, *args: str) -> tuple[int, str, str]:
        line = ("dlsubmit", "--gpus=4", "--time=10", f"--by={by}", *args, "--no-check")
        done = place.ask(*line, "--", "sleep", "120", check=False)
        return done.returncode, done.stdout, done.stderr

    status, out, err = typed("+2h", "--quote")
    assert (status, out.startswith("promised: done by")) == (0, True), (out, err)
    status, out, err = typed("+3min", "--quote", "--json")
    shape = json.loads(out)["shapes"][0]
    assert (status, shape["says"]) == (3, "no"), err
    assert shape["nearest_s"] > json.loads(out)["now_s"] + 600
    assert shape["odds"]["runs"] >= 3
    status, out, err = typed("+3min", "--or-else=cancel")
    assert (status, out) == (3, ""), err
    assert "not submitted" in err
    assert json.loads(place.ask("dlqueue", "--json").stdout)["jobs"] == []

    status, out, err = typed("+2h", "--or-else=cancel", "--parsable")
    assert (status, "no verdict" in err) == (0, False), err
    place.until_state(out.strip(), "RUNNING", "PENDING")
