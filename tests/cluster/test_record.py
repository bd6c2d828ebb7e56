"""A recording of a daemon that orders a real Slurm."""

from __future__ import annotations

import json

import pytest
from schedd import Schedd, running_schedd

pytestmark = pytest.mark.slurm

place = running_schedd(daemon={"poll_s": 0.5, "fast_poll_s": 0.25})


def test_what_was_planned_on_a_real_slurm_is_planned_again(place: Schedd) -> None:
    """To the byte, while jobs wait and run; of an anonymous recording too."""
    for _ in range(3):
        place.submit(4, "sleep", "600")

    for options in (["--cycles", "6"], ["--for", "3s", "--anonymous", "--force"]):
        place.ask("dlctl", "record", "r.jsonl.gz", *options)
        answer = json.loads(place.ask("dlsim", "replay", "r.jsonl.gz", "--diff", "--json").stdout)
        summary = answer["summary"]
        assert summary["cycles"] == 6 or options[0] == "--for"
        assert summary["different"] == 0
        assert sum(cycle["jobs"] for cycle in answer["cycles"]) >= 3
