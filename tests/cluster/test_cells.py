"""Nodes guaranteed to an account, on a real Slurm: others use them until they are asked for."""

from __future__ import annotations

import pytest
from schedd import Schedd, running_schedd, toy_steps

pytestmark = [pytest.mark.slurm, pytest.mark.full("ten jobs; the main job has cheaper tests")]


place = running_schedd(
    policy={"order": "fifo_skip", "parameters": {}},
    placement={
        "scheme": "cells",
        "parameters": {"cells": {"vision": {"node": 2}}},
        "steer": True,
    },
)
"""Account vision owns two of four nodes."""


def test_opportunistic_jobs_give_way_to_who_owns_the_nodes(place: Schedd) -> None:
    """Two-GPU trainings of others lie on all nodes; vision asks for two whole ones and gets them.

    Plain counting would fail it: half of the GPUs are its own, and no node is whole.
    """
    end = place.home / "end"
    others = [place.toy(2, 1, "--until", str(end), options=["-A", "nlp"]) for _ in range(8)]

    def run() -> bool:
        return all(place.state(j) == "RUNNING" for j in others)

    place.until("the others to run", run)
    gang = place.toy(8, 8, options=["-A", "vision", "--nodes", "2"])
    place.until_state(gang, "RUNNING", "COMPLETED", within_s=90)

    stopped = [j for j in others if int(place.job(j, "Restarts")[0]) > 0]
    assert len(stopped) == 4
    place.until_state(gang, "COMPLETED", within_s=60)
    place.until("the others to run again", run, 120)
    end.touch()
    for job in others:
        place.until_state(job, "COMPLETED", within_s=120)
        steps = toy_steps(place.home, job)
        assert steps == list(range(1, steps[-1] + 1))
