"""Callbacks that report how a step is divided, and the noise of its gradient."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.torch,
    pytest.mark.full("trains with real frameworks"),
    pytest.mark.timeout(300),
]

SCRIPT = Path(__file__).parent / "elastic_callbacks.py"


def test_callbacks_report_the_noise_of_two_passes(
    tmp_path: Path, framework_python: str, framework_needs: Callable[..., None]
) -> None:
    """Gradients are -2 and -8: the mean is -5, its square 25, the mean of the squares 34."""
    framework_needs("transformers", "accelerate", "lightning")
    done = subprocess.run(
        [framework_python, str(SCRIPT), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(SCRIPT.parents[2]), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told: dict[str, Any] = {}
    for line in done.stdout.splitlines():
        told |= json.loads(line) if line.startswith('{"by_') else {}
    # Its Trainer clips gradients before a callback sees them, that of Lightning after it.
    assert "max_grad_norm" in told.pop("by_transformers-1.0")
    assert len(told) == 3
    square, variance = 2 * 25 - 34, (34 - 25) * 2
    for report in told.values():
        assert (report["step"], report["part"]) == (3, [1, 1, 2, 2, 2, 16, 1, 1])
        assert report["numbers"] == pytest.approx({"noise": variance / square})
