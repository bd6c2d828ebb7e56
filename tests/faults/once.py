"""Tests that fail the first time they are run; test_gate.py runs them by name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture
def _fails_once() -> None:
    begun = Path(os.environ["SLURM_DL_TEST_ONCE"])
    if not begun.exists():
        begun.touch()
        pytest.fail("the first time")


@pytest.mark.docker
@pytest.mark.usefixtures("_fails_once")
def test_on_daemons() -> None:
    pass


@pytest.mark.usefixtures("_fails_once")
def test_that_computes() -> None:
    pass


@pytest.mark.docker
def test_that_always_fails() -> None:
    pytest.fail("each time")
