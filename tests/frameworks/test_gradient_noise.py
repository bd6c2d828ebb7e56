"""Noise of the gradient of real trainings, by callbacks too, and the learning rate from it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytestmark = [
    pytest.mark.torch,
    pytest.mark.full("trains with real frameworks"),
    pytest.mark.timeout(300),
]

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "noisy_training.py"
BATCH, RATE, KEPT = 8, 0.05, 0.5
"""As in the script: the first batch, the first learning rate, the weight of earlier steps."""


def test_callbacks_report_the_noise_of_two_passes(
    tmp_path: Path, framework_python: str, framework_needs: Callable[..., None]
) -> None:
    """Gradients are -2 and -8: the mean is -5, its square 25, the mean of the squares 34."""
    framework_needs("transformers", "accelerate", "lightning")
    done = subprocess.run(
        [framework_python, str(SCRIPT.with_name("elastic_callbacks.py")), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"told"')]
    first, refused, *others = (json.loads(line)["told"] for line in lines)
    # Hugging Face's Trainer clips gradients before a callback sees them, Lightning's after it.
    assert "max_grad_norm" in refused
    assert len(others) == 2
    square, variance = 2 * 25 - 34, (34 - 25) * 2
    for told in (first, *others):
        assert (told["step"], told["part"]) == (3, [1, 1, 2, 2, 2, 16, 1, 1])
        assert told["numbers"] == pytest.approx({"noise": variance / square})


def test_four_ranks_measure_what_one_process_computes(
    tmp_path: Path, framework_python: str, framework_needs: Callable[..., None]
) -> None:
    """Two passes each, the first without synchronisation; the oracle has all eight gradients."""
    framework_needs("torch")
    told = tmp_path / "told.json"
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4"]
    done = subprocess.run(
        [framework_python, *torchrun, str(SCRIPT), str(told)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]

    steps = json.loads(told.read_text())
    assert len(steps) == 6
    sums, gains = np.zeros(3), []
    for step in steps:
        gpus, local, passes, batch = step["part"][:4]
        assert (gpus, local, passes, batch) == (4, 4, 2, 32)
        gradients = np.array(step["gradients"])
        mean = gradients.mean(axis=0)
        # By the covariance itself: n passes of b samples each.
        of_pass = float(((gradients - mean) ** 2).sum() / (len(gradients) - 1))
        sqr, var = float((mean**2).sum()) - of_pass / len(gradients), of_pass * local
        sums = KEPT * sums + (1 - KEPT) * np.array([sqr, var, 1.0])
        sqr, var = (np.maximum(sums[:2], 0) / sums[2]).tolist()
        assert step["sqr"] == pytest.approx(sqr, rel=1e-5)
        assert step["var"] == pytest.approx(var, rel=1e-5)
        gain = (var / BATCH + sqr) / (var / batch + sqr)
        gains.append(gain)
        assert step["rate"] == pytest.approx(RATE * gain, rel=1e-5)
        # The step was made along the mean of all gradients, at that rate.
        assert np.array(step["moved"]) == pytest.approx(mean, abs=1e-5)
    assert any(1.1 < gain < 0.9 * batch / BATCH for gain in gains)
