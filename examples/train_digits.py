"""Train a small convolutional network on made-up digits, and lose nothing when preempted.

The acceptance case of slurm_dl: a checkpoint holds all that the next step depends on (model,
optimiser, random states, place in the data), so that a run that was stopped and resumed computes
the same losses, bit by bit, as one that was not. The digits are generated from the seed.

    dlrun -- python3 examples/train_digits.py --steps 300 --checkpoint-every 50
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path
from typing import TypedDict

import torch
from loss_log import LossLog, append_line
from torch import Tensor, nn

from slurm_dl import job

SIDE = 8
CLASSES = 10
SAMPLES = 512
BATCH = 32
KEPT_CHECKPOINTS = 2


class Place(TypedDict):
    """Where a run stands in its data."""

    order: Tensor
    next: int
    shuffle: Tensor


class Digits:
    """Noisy 8x8 pictures of ten random templates, in an order reshuffled for each epoch."""

    def __init__(self, seed: int) -> None:
        made = torch.Generator().manual_seed(seed)
        templates = torch.rand(CLASSES, 1, SIDE, SIDE, generator=made)
        self._labels = torch.randint(CLASSES, (SAMPLES,), generator=made)
        noise = torch.randn(SAMPLES, 1, SIDE, SIDE, generator=made)
        self._pictures = templates[self._labels] + 0.3 * noise
        self._shuffle = torch.Generator().manual_seed(seed + 1)
        self._order = torch.randperm(SAMPLES, generator=self._shuffle)
        self._next = 0

    def batch(self) -> tuple[Tensor, Tensor]:
        """Take the next pictures and their labels."""
        if self._next + BATCH > SAMPLES:
            self._order = torch.randperm(SAMPLES, generator=self._shuffle)
            self._next = 0
        rows = self._order[self._next : self._next + BATCH]
        self._next += BATCH
        return self._pictures[rows], self._labels[rows]

    def state(self) -> Place:
        """Give all that `batch` depends on."""
        return {
            "order": self._order,
            "next": self._next,
            "shuffle": self._shuffle.get_state(),
        }

    def restore(self, state: Place) -> None:
        """Go on as the one whose `state` it was."""
        self._order = state["order"]
        self._next = state["next"]
        self._shuffle.set_state(state["shuffle"])


class Training:
    """Everything that the next step depends on."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        random.seed(seed)
        self.seed = seed
        self.step = 0
        self.digits = Digits(seed)
        self.model = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(0.2),  # draws from the global generator: its state must be saved too
            nn.Linear(8 * (SIDE // 2) ** 2, CLASSES),
        )
        self.optimiser = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimiser, T_max=1000)

    def advance(self) -> float:
        """Take one step and return its loss."""
        pictures, labels = self.digits.batch()
        if random.getrandbits(1):  # augmentation draws from Python's own generator
            pictures = pictures.flip(-1)
        self.optimiser.zero_grad()
        loss = nn.functional.cross_entropy(self.model(pictures), labels)
        loss.backward()
        self.optimiser.step()
        self.schedule.step()
        self.step += 1
        return loss.item()

    def save(self, directory: Path) -> None:
        """Write under another name, then rename: a kill leaves no half checkpoint."""
        content = {
            "seed": self.seed,
            "step": self.step,
            "model": self.model.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "schedule": self.schedule.state_dict(),
            "digits": self.digits.state(),
            "torch_random": torch.get_rng_state(),
            "python_random": random.getstate(),
        }
        path = directory / f"step-{self.step:08d}.pt"
        scratch = path.with_suffix(".tmp")
        torch.save(content, scratch)
        scratch.replace(path)
        job.checkpoint_saved(path, step=self.step)
        # Only now: the record must never name files that are gone.
        for old in sorted(directory.glob("step-*.pt"))[:-KEPT_CHECKPOINTS]:
            old.unlink()

    def load(self, path: Path) -> None:
        """Be where the checkpoint was."""
        content = torch.load(path, weights_only=True)
        if content["seed"] != self.seed:
            sys.exit(f"{path} is of seed {content['seed']}, not {self.seed}")
        self.step = content["step"]
        self.model.load_state_dict(content["model"])
        self.optimiser.load_state_dict(content["optimiser"])
        self.schedule.load_state_dict(content["schedule"])
        self.digits.restore(content["digits"])
        torch.set_rng_state(content["torch_random"])
        random.setstate(content["python_random"])


def main() -> None:
    """Train, from the beginning or from the last checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300, help="optimiser steps in all")
    parser.add_argument("--step-s", type=float, default=0.0, help="pause per step, seconds")
    parser.add_argument("--checkpoint-every", type=int, default=50, metavar="N", help="steps")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    job.install()
    # One thread and fixed algorithms: the order of additions decides the last bits of a sum.
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(mode=True)

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

    while training.step < options.steps:
        time.sleep(options.step_s)
        loss = training.advance()
        log.add(training.step, loss)
        job.report(training.step, options.steps, loss=loss)
        asked = job.should_checkpoint()
        if asked or training.step % options.checkpoint_every == 0:
            training.save(directory)
        if asked and training.step < options.steps:
            job.exit_for_requeue()
    print(f"done: {training.step} steps, run {job.restart_count()}")


if __name__ == "__main__":
    main()
