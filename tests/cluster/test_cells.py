"""Nodes guaranteed to an account, on a real Slurm: others use them until they are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from schedd import Schedd, schedd_in, toy_steps

from slurm_dl.sandbox import Sandbox

pytestmark = pytest.mark.slurm

STEPS = 120


@pytest.fixture
def place(sandbox: Sandbox, short_directory: Path) -> Iterator[Schedd]:
    """A daemon under which account vision owns two of four nodes."""
    with schedd_in(sandbox, short_directory) as daemon:
        daemon.configure(
            policy={"order": "fifo_skip", "parameters": {}},
            placement={
                "scheme": "cells",
                "parameters": {"cells": {"vision": {"node": 2}}},
                "steer": True,
            },
        )
        daemon.start()
        yield daemon


def test_opportunistic_jobs_give_way_to_who_owns_the_nodes(place: Schedd) -> None:
    """Two-GPU trainings of others lie on all nodes; vision asks for two whole ones and gets them.

    Plain counting would fail it: half of the GPUs are its own, and no node is whole.
    """
    others = [place.toy(2, STEPS, options=["-A", "nlp"]) for _ in range(8)]
    place.until("the others to run", lambda: all(place.state(j) == "RUNNING" for j in others), 60)
    gang = place.toy(8, 8, options=["-A", "vision", "--nodes", "2"])
    place.until_state(gang, "RUNNING", "COMPLETED", within_s=90)

    stopped = [j for j in others if int(place.job(j, "Restarts")[0]) > 0]
    assert len(stopped) == 4
    place.until_state(gang, "COMPLETED", within_s=60)
    for job in others:
        place.until_state(job, "COMPLETED", within_s=150)
        assert toy_steps(place.home, job) == list(range(1, STEPS + 1))
