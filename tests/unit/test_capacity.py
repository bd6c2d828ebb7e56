"""What of the cluster's room is said to be of no use, and which promises cannot be kept."""

from __future__ import annotations

import dataclasses

import build
import numpy as np

from slurm_dl.cli.dlctl.status_text import status_lines
from slurm_dl.config.placement_section import PlacementSection
from slurm_dl.daemon.control.status_answer import misfit, stranded_gpus
from slurm_dl.model.nodes import Allocations
from slurm_dl.model.snapshot import Snapshot


def with_cpus_taken(cpus: int) -> Snapshot:
    """Two nodes of four GPUs and 64 CPUs; a job with one GPU and *cpus* CPUs on the first."""
    seen = build.observed([build.running(1, 1)], nodes=[4, 4])
    held = Allocations(
        job=np.zeros(1, dtype=np.int32),
        node=np.zeros(1, dtype=np.int32),
        gpus=np.ones(1),
        cpus=np.array([cpus], dtype=np.int32),
        mem_mb=np.zeros(1, dtype=np.int64),
    )
    return build.snapshot(dataclasses.replace(seen, held=held))


def test_free_gpus_without_cpus_are_stranded() -> None:
    assert stranded_gpus(with_cpus_taken(16)) == 0
    assert stranded_gpus(with_cpus_taken(60)) == 3


def test_cells_that_do_not_fit_are_named() -> None:
    few = PlacementSection(scheme="cells", parameters={"cells": {"vision": {"node": 2}}})
    many = PlacementSection(scheme="cells", parameters={"cells": {"vision": {"node": 3}}})
    snap = with_cpus_taken(1)
    assert misfit(few, snap) == ""
    assert "vision" in misfit(many, snap)
    assert misfit(PlacementSection(scheme="best_fit"), snap) == ""


def test_status_says_both() -> None:
    answer = {
        "now_s": 10.0,
        "started_s": 0.0,
        "seen_s": 9.0,
        "cycles": 1,
        "doing": "acting",
        "pid": 1,
        "version": "0",
        "config_file": "f",
        "policy": "p",
        "preemption": "x",
        "placement": "cells",
        "paused": None,
        "durations_ms": {},
        "age_s": 1.0,
        "gpus": {"all": 8.0, "up": 8.0, "held": 1.0, "stranded": 3.0},
        "misfit": "too many",
        "reader": None,
        "actions": None,
        "reloaded": None,
        "trouble": None,
        "audit": None,
    }
    text = "\n".join(f"{title}: {line}" for title, line in status_lines(answer))
    assert "3 free ones stranded" in text
    assert "CANNOT BE KEPT: too many" in text
