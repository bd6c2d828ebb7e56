"""Training with JAX and Optax: the whole state is one tree, saved as arrays.

    dlsubmit --gpus 1 -- python examples/frameworks/jax_train.py

Outside a job it is an ordinary training.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from steps import Steps

from slurm_dl import job

BATCH = 8
SIZE = 4
OPTIMISER = optax.adam(1e-2)


def loss_of(weights: dict[str, Any], inputs: jax.Array) -> jax.Array:
    """Mean squared error of a linear model."""
    return jnp.mean((inputs @ weights["w"] + weights["b"] - inputs.sum(1)) ** 2)


@jax.jit
def advance(state: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """Take one step; the new state and the loss."""
    key, draw = jax.random.split(state["key"])
    inputs = jax.random.normal(draw, (BATCH, SIZE))
    loss, slope = jax.value_and_grad(loss_of)(state["weights"], inputs)
    change, optimiser = OPTIMISER.update(slope, state["optimiser"])
    weights = optax.apply_updates(state["weights"], change)
    return {"key": key, "weights": weights, "optimiser": optimiser, "step": state["step"] + 1}, loss


def new_state() -> dict[str, Any]:
    """Everything that the next step depends on, at the beginning."""
    weights = {"w": jnp.zeros(SIZE), "b": jnp.zeros(())}
    optimiser = OPTIMISER.init(weights)
    return {"key": jax.random.PRNGKey(1), "weights": weights, "optimiser": optimiser, "step": 0}


def save(state: dict[str, Any], directory: Path) -> None:
    """Write under another name, then rename: a kill leaves no half checkpoint."""
    path = directory / f"step-{int(state['step'])}.npz"
    scratch = directory / "scratch.npz"
    np.savez(scratch, *jax.tree.leaves(state))
    scratch.replace(path)
    job.checkpoint_saved(path, step=int(state["step"]))


def load(path: Path) -> dict[str, Any]:
    """Read a state back into the shape of a new one."""
    with np.load(path) as arrays:
        leaves = [jnp.asarray(arrays[name]) for name in arrays.files]
    state: dict[str, Any] = jax.tree.unflatten(jax.tree.structure(new_state()), leaves)
    return state


def main() -> None:
    """Train, from the beginning or from the last checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100, help="optimiser steps in all")
    parser.add_argument("--step-s", type=float, default=0.0, help="pause per step, seconds")
    options = parser.parse_args()

    job.install()
    directory = job.run_dir() or Path.cwd()
    checkpoint = job.resume_from()
    state = new_state() if checkpoint is None else load(checkpoint)
    steps = Steps(directory, options.step_s)
    while int(state["step"]) < options.steps:
        state, loss = advance(state)
        step = int(state["step"])
        steps.done(step, float(loss))
        job.report(step, options.steps, loss=float(loss))
        if job.should_checkpoint() and step < options.steps:
            save(state, directory)
            job.exit_for_requeue()


if __name__ == "__main__":
    main()
