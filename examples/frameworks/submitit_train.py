"""Training with submitit: it takes the signal, saves what it is asked for, and requeues itself.

The job must find this directory, because what is pickled names its modules:

    export PYTHONPATH=$PWD:$PWD/examples/frameworks
    python examples/frameworks/submitit_train.py --folder runs
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import NamedTuple

import submitit
from steps import Steps

RATE = 0.05


class State(NamedTuple):
    """Everything that the next step depends on."""

    step: int
    weight: float
    noise: object


class Training:
    """What submitit calls in the job, and pickles when the job is preempted."""

    def __init__(self, directory: Path, steps: int, pause_s: float) -> None:
        self.directory, self.steps, self.pause_s = directory, steps, pause_s
        self.state = State(0, 1.0, random.Random(1).getstate())  # noqa: S311 -- a training

    def __call__(self) -> float:
        """Train from where the state is."""
        steps = Steps(self.directory, self.pause_s)
        state = self.state
        while state.step < self.steps:
            noise = random.Random()  # noqa: S311 -- a training, not a secret
            noise.setstate(state.noise)  # type: ignore[arg-type]
            weight = state.weight - RATE * (state.weight + noise.gauss(0, 0.1))
            state = State(state.step + 1, weight, noise.getstate())
            steps.done(state.step, weight * weight)
            # One assignment: the signal may come between any two lines, and `checkpoint` then
            # sees the step before or this one, never a half.
            self.state = state
        return state.weight

    def checkpoint(self) -> submitit.helpers.DelayedSubmission:
        """Submitit calls this on the signal, writes the answer to disk, and requeues the job."""
        return submitit.helpers.DelayedSubmission(self)


def main() -> None:
    """Submit the training; print the job id."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("runs"), help="logs, pickles, losses")
    parser.add_argument("--steps", type=int, default=100, help="steps in all")
    parser.add_argument("--step-s", type=float, default=0.1, help="pause per step, seconds")
    options = parser.parse_args()

    folder = options.folder.absolute()
    executor = submitit.SlurmExecutor(folder=folder, max_num_timeout=10)
    # After 80 % of the time limit submitit takes a signal for a time-out, and allows few of these.
    contract = {"v": 1, "sig": "USR2", "to": "steps", "grace_s": 60, "by": "job", "until": 0.8}
    executor.update_parameters(
        job_name="submitit_train",
        gpus_per_node=1,
        time=60,
        comment=json.dumps({"slurm_dl": contract}, separators=(",", ":")),
    )
    job = executor.submit(Training(folder, options.steps, options.step_s))
    print(job.job_id)


if __name__ == "__main__":
    main()
