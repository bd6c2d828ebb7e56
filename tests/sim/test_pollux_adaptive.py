"""The best batch of a measured model, by trying every local batch and every number of passes.

How a batch is divided is as in Pollux' artifact (petuum/adaptdl@c793c70
``simulator/applications.py``); the gain is that of Johnson et al., "AdaScale SGD", ICML 2020,
section 3: (var + sqr) / (var / scale + sqr).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slurm_dl.simulation.ideal.measured_models import NotMeasuredError, read_model

MODELS = Path(__file__).parents[2] / "traces/pollux/models"
PLACEMENTS = ((1,), (2,), (3,), (4,), (2, 2), (1, 3), (4, 4), (4, 4, 4, 4))
MOST_LOCAL = {"yolov3": 8}  # The others have the largest that was measured


def table(path: Path) -> dict[str, Any]:
    lines = np.genfromtxt(path, delimiter=",", names=True)
    return {name: lines[name] for name in lines.dtype.names}


def tried(model: str, placement: tuple[int, ...]) -> list[Any]:
    """``(epochs,)`` progress a second with each of 20 batches, as far as they were measured."""
    measured = table(MODELS / model / "placements.csv")
    here = measured["placement"] == int("".join(map(str, placement)))
    order = np.argsort(measured["local_bsz"][here])
    local_, step_s, sync_s = (
        measured[name][here][order] for name in ("local_bsz", "step_time", "sync_time")
    )
    least_local = int(measured["local_bsz"].min())
    most_local = MOST_LOCAL.get(model, int(measured["local_bsz"].max()))
    trained = {int(p.stem[11:]): table(p) for p in (MODELS / model).glob("validation-*.csv")}
    batches, gpus = sorted(trained), sum(placement)
    epochs, least, most = min(len(t["progress"]) for t in trained.values()), batches[0], batches[-1]
    found = []
    for batch in np.geomspace(max(least, least_local * gpus), most, 20).round():
        # The noise of one gradient alone cannot be measured.
        first = 2 if gpus == 1 and batch > least else 1
        local, passes = next(
            (local, passes)
            for passes in range(first, most + 1)
            for local in range(1, most_local + 1)
            if gpus * local * passes >= batch
        )
        local = min(local, most // (gpus * passes))
        whole = gpus * local * passes
        if not (local_[0] <= local <= local_[-1] and local >= least_local and whole >= least):
            continue
        step, sync = np.interp(local, local_, step_s), np.interp(local, local_, sync_s)
        rates = []
        for epoch in range(epochs):
            sqr, var = (
                np.interp(whole, batches, [trained[b][name][epoch] for b in batches])
                for name in ("grad_sqr", "grad_var")
            )
            gain = (var + sqr) / (var / (whole / least) + sqr)
            rates.append(gain / (step + (passes - 1) * (step - sync)))
        found.append(rates)
    return found


@pytest.mark.parametrize("model", ["bert", "cifar10", "deepspeech2", "imagenet", "yolov3"])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_the_best_batch_is_the_best_of_all(model: str, placement: tuple[int, ...]) -> None:
    found = tried(model, placement)

    if not found:
        with pytest.raises(NotMeasuredError):
            read_model(MODELS / model).best_rates(placement)
        return
    best = read_model(MODELS / model).best_rates(placement)
    np.testing.assert_allclose(best, np.max(found, axis=0), rtol=1e-9)
