"""A training run in pure Python that can be stopped and resumed at any step.

Stochastic gradient descent on a quadratic with seeded noise. It stands for a real training
script: it checkpoints every few steps and when asked to, resumes, and logs the loss of each step.

    dlrun -- python3 examples/train_toy.py --steps 200 --step-s 0.1 --checkpoint-every 20
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path

from loss_log import LossLog, append_line

from slurm_dl import job

SIZE = 8
RATE = 0.05
NOISE = 0.1


class Training:
    """Everything that the next step depends on."""

    def __init__(self, seed: int) -> None:
        self.step = 0
        self.noise = random.Random(seed)  # noqa: S311 -- a training, not a secret
        self.weights = [self.noise.uniform(-1, 1) for _ in range(SIZE)]

    def advance(self) -> float:
        """Take one step and return its loss."""
        self.step += 1
        self.weights = [w - RATE * (w + self.noise.gauss(0, NOISE)) for w in self.weights]
        return sum(w * w for w in self.weights) / 2

    def save(self, path: Path) -> None:
        """Write under another name, then rename: a kill leaves no half checkpoint."""
        version, internal, gauss_next = self.noise.getstate()
        content = {
            "step": self.step,
            "weights": self.weights,
            "noise": [version, list(internal), gauss_next],
        }
        scratch = path.with_suffix(".tmp")
        scratch.write_text(json.dumps(content))
        scratch.replace(path)
        job.checkpoint_saved(path, step=self.step)

    def load(self, path: Path) -> None:
        """Be where the checkpoint was."""
        content = json.loads(path.read_text())
        self.step = content["step"]
        self.weights = content["weights"]
        version, internal, gauss_next = content["noise"]
        self.noise.setstate((version, tuple(internal), gauss_next))


def main() -> None:
    """Train, from the beginning or from the last checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100, help="steps in all, or at least")
    parser.add_argument("--step-s", type=float, default=0.05, help="seconds per step")
    parser.add_argument("--checkpoint-every", type=int, default=20, metavar="K", help="steps")
    parser.add_argument("--until", type=Path, metavar="FILE", help="then go on until it exists")
    parser.add_argument("--save-s", type=float, default=0, help="seconds a checkpoint takes")
    parser.add_argument(
        "--save-until",
        type=Path,
        metavar="FILE",
        help="a stop waits for it",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ignore-signal", action="store_true", help="never stop when asked to")
    options = parser.parse_args()

    directory = job.run_dir() or Path.cwd()
    training = Training(options.seed)
    checkpoint = job.resume_from()
    if checkpoint is not None:
        training.load(checkpoint)
    log = LossLog(directory / "loss.jsonl")
    append_line(
        directory / "runs.jsonl",
        {"restart": job.restart_count(), "from_step": training.step, "time_s": time.time()},
    )

    total = options.steps if options.until is None else None

    def ended() -> bool:
        return training.step >= options.steps and (options.until is None or options.until.exists())

    while not ended():
        time.sleep(options.step_s)
        loss = training.advance()
        log.add(training.step, loss)
        job.report(training.step, total, loss=loss)
        asked = job.should_checkpoint() and not options.ignore_signal
        if asked or training.step % options.checkpoint_every == 0:
            # Two names in turn: the one before it is whole while this one is being written.
            time.sleep(options.save_s)
            while asked and options.save_until is not None and not options.save_until.exists():
                time.sleep(0.1)
            number = (training.step // options.checkpoint_every) % 2
            training.save(directory / ("asked.json" if asked else f"periodic-{number}.json"))
        if asked and not ended():
            job.exit_for_requeue()
    print(f"done: {training.step} steps, run {job.restart_count()}")


if __name__ == "__main__":
    main()
