"""Training with JAX whose checkpoints Orbax writes; the training is that of ``jax_train.py``.

    dlsubmit --gpus 1 -- python examples/frameworks/orbax_train.py

Outside a job it is an ordinary training, which goes on from what lies in this directory.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import orbax.checkpoint as ocp
from jax_train import advance, new_state
from steps import Steps

from slurm_dl import job


def main() -> None:
    """Train, from the beginning or from the last checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100, help="optimiser steps in all")
    parser.add_argument("--step-s", type=float, default=0.0, help="pause per step, seconds")
    parser.add_argument("--every", type=int, default=25, metavar="N", help="steps between saves")
    options = parser.parse_args()

    job.install()
    directory = (job.run_dir() or Path.cwd()).absolute()
    kept = ocp.CheckpointManagerOptions(max_to_keep=2, save_interval_steps=options.every)
    steps = Steps(directory, options.step_s)
    with ocp.CheckpointManager(directory / "checkpoints", options=kept) as manager:
        state = new_state()
        newest = manager.latest_step()
        if newest is not None:
            state = manager.restore(newest, args=ocp.args.StandardRestore(state))
        while int(state["step"]) < options.steps:
            state, loss = advance(state)
            step = int(state["step"])
            steps.done(step, float(loss))
            job.report(step, options.steps, loss=float(loss))

            asked = job.should_checkpoint() and step < options.steps
            manager.save(step, args=ocp.args.StandardSave(state), force=asked)
            if asked:
                manager.wait_until_finished()  # only then it has its final name
                job.checkpoint_saved(directory / "checkpoints" / str(step), step=step)
                job.exit_for_requeue()


if __name__ == "__main__":
    main()
