"""Training with Lightning: its Trainer, a loader that can be resumed, and the callback.

    dlsubmit --gpus 1 -- python examples/frameworks/lightning_train.py
    dlsubmit --gpus 2 --launcher srun -- python examples/frameworks/lightning_train.py --devices 2
    dlsubmit --gpus 1 --sizes 2 --launcher srun -- python .../lightning_train.py --devices 0

Outside a job it is an ordinary training.
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.plugins.environments import LightningEnvironment
from steps import Steps
from torch import nn

from slurm_dl import job
from slurm_dl.job.lightning import CheckpointOnRequest

BATCH = 8
"""Samples of a step, of all ranks together."""
SIZE = 4


class Batches:
    """An epoch of random batches, of which each rank takes its share.

    Lightning saves the state of a loader that has one, but only rank 0's: so it must be the same
    on all ranks. Then it holds for another number of ranks as well.
    """

    def __init__(self, batches: int, rank: int, ranks: int) -> None:
        self._batches = batches
        self._rank = rank
        self._ranks = ranks
        self._random = torch.Generator().manual_seed(2)
        self._next = 0

    def __len__(self) -> int:
        return self._batches

    def __iter__(self) -> Iterator[torch.Tensor]:
        while self._next < self._batches:
            self._next += 1
            yield torch.randn(BATCH, SIZE, generator=self._random)[self._rank :: self._ranks]
        self._next = 0

    def state_dict(self) -> dict[str, Any]:
        """Give all that the next batch depends on."""
        return {"next": self._next, "random": self._random.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on as the one whose state it was."""
        self._next = state["next"]
        self._random.set_state(state["random"])


class Noted(Callback):
    """Notes the loss of each step."""

    def __init__(self, directory: Path, pause_s: float) -> None:
        self._directory = directory
        self._pause_s = pause_s

    def on_train_start(self, trainer: Trainer, _model: object) -> None:
        """Only now each process has its rank."""
        self._steps = Steps(self._directory, self._pause_s, trainer.global_rank)

    def on_train_batch_end(
        self, trainer: Trainer, _model: object, outputs: dict[str, torch.Tensor], *_rest: object
    ) -> None:
        """Note the step."""
        self._steps.done(trainer.global_step, outputs["loss"].item())


class Model(LightningModule):
    """A linear model with dropout, which draws from the global generator."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Dropout(0.2), nn.Linear(SIZE, 1))
        self._random = torch.empty(0, dtype=torch.uint8)

    def training_step(self, inputs: torch.Tensor, _index: int) -> torch.Tensor:
        """Mean squared error of one batch."""
        return (self.layers(inputs) - inputs.sum(1, keepdim=True)).square().mean()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Lightning does not save random states; all ranks come here, rank 0's is written."""
        checkpoint["random"] = self.all_gather(torch.get_rng_state())

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Set them where the checkpoint was."""
        self._random = checkpoint["random"]

    def on_train_start(self) -> None:
        """Only now: setting up draws, too."""
        states = self._random.reshape(-1, torch.get_rng_state().numel())
        if len(states) == self.trainer.world_size:
            # A copy: torch 2.13 crashes where it is given part of another tensor.
            torch.set_rng_state(states[self.global_rank].clone())
        else:  # at the beginning, and after a run on more or fewer ranks
            torch.manual_seed(1 + self.global_rank + 1000 * self.trainer.global_step)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam, whose state a checkpoint must hold."""
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def main() -> None:
    """Train, from the beginning or from the last checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100, help="optimiser steps in all")
    parser.add_argument("--step-s", type=float, default=0.0, help="pause per step, seconds")
    parser.add_argument("--epoch", type=int, default=30, metavar="N", help="steps in an epoch")
    parser.add_argument("--devices", type=int, default=1, metavar="N", help="0: by GPUs")
    options = parser.parse_args()
    options.devices = options.devices or int(os.environ["SLURM_GPUS_ON_NODE"])

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(1)
    directory = job.run_dir() or Path.cwd()
    trainer = Trainer(
        max_steps=options.steps,
        max_epochs=-1,
        accelerator="cpu",
        devices=options.devices,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        # The one that may end the process comes last.
        callbacks=[Noted(directory, options.step_s), CheckpointOnRequest()],
        # One process needs nothing that Slurm's variables say; several find each other by them.
        plugins=[LightningEnvironment()] if options.devices == 1 else [],
    )
    batches = Batches(options.epoch, trainer.global_rank, trainer.world_size)
    trainer.fit(Model(), batches, ckpt_path=job.resume_from(), weights_only=False)


if __name__ == "__main__":
    main()
