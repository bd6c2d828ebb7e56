"""A Hydra sweep on Slurm: each value is a task of an array, and each can be preempted.

The jobs must find this directory, because what is pickled names its modules:

    export PYTHONPATH=$PWD:$PWD/examples/frameworks
    python examples/frameworks/hydra_train.py --multirun rate=0.05,0.1
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import hydra
from omegaconf import DictConfig
from steps import Steps

EVERY = 5
"""Steps between two checkpoints: the launcher runs the function again from its start."""


@hydra.main(version_base=None, config_path=".", config_name="hydra_train")
def main(config: DictConfig) -> float:
    """Train one point of the sweep, from its last checkpoint if there is one."""
    # The same directory in each run of a task: named by the point, never by the time.
    directory = Path(config.folder) / f"rate-{config.rate}"
    steps = Steps(directory, config.step_s)
    saved = directory / "checkpoint.json"
    noise = random.Random(1)  # noqa: S311 -- a training, not a secret
    step, weight = 0, 1.0
    if saved.exists():
        step, weight, (version, internal, gauss) = json.loads(saved.read_text())
        noise.setstate((version, tuple(internal), gauss))
    while step < config.steps:
        weight -= config.rate * (weight + noise.gauss(0, 0.1))
        step += 1
        steps.done(step, weight * weight)
        if step % EVERY == 0:
            scratch = saved.with_suffix(".tmp")
            scratch.write_text(json.dumps([step, weight, noise.getstate()]))
            scratch.replace(saved)
    return weight * weight


if __name__ == "__main__":
    main()
