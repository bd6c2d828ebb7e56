"""Trainings of one weight by the callbacks that measure the noise; run by a test in a directory.

Each step has two passes of one sample. The weight stays: the learning rate is 0. Printed is what
each training has reported, or why it was refused.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import lightning.pytorch as pl
import torch
from trainings import Line
from transformers import Trainer, TrainingArguments

from slurm_dl.job import elastic, huggingface, lightning
from slurm_dl.job.run_files import PROGRESS_FILE

DATA = [{"x": torch.tensor([x]), "labels": torch.tensor([2 * x])} for x in (1.0, 2.0)]
PART = elastic.split(2, 1, most_local=1, most=16, mode="adapt")
QUIET = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")


class Module(pl.LightningModule):  # type: ignore[misc]
    """The same model for Lightning."""

    def __init__(self) -> None:
        super().__init__()
        self.line = Line()

    def training_step(self, batch: dict[str, torch.Tensor], _index: int) -> torch.Tensor:
        """Loss of one pass."""
        return self.line(**batch)["loss"]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """One that moves nothing."""
        return torch.optim.SGD(self.parameters(), lr=0.0)


def by_transformers(place: Path, **more: float) -> None:
    """Three steps with the Trainer of Hugging Face."""
    size = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 2, "max_steps": 3}
    quiet = {"output_dir": str(place), "save_strategy": "no", "report_to": "none"}
    args = TrainingArguments(**size, **quiet, use_cpu=True, learning_rate=0.0, **more)
    line = Line()
    callback = huggingface.CheckpointOnRequest(PART, elastic.GradientNoise(line.parameters()))
    Trainer(line, args, train_dataset=DATA, callbacks=[callback]).train()


def by_lightning(place: Path, **more: float) -> None:
    """Three steps with the Trainer of Lightning."""
    module = Module()
    noise = elastic.GradientNoise(module.parameters())
    callback = lightning.CheckpointOnRequest(place, PART, noise)
    size = {"devices": 1, "accumulate_grad_batches": 2, "max_steps": 3, "max_epochs": -1}
    quiet = dict.fromkeys(QUIET, False)
    trainer = pl.Trainer(**size, **quiet, **more, accelerator="cpu", callbacks=[callback])
    trainer.fit(module, torch.utils.data.DataLoader(DATA))


if __name__ == "__main__":
    for train, clip in (by_transformers, "max_grad_norm"), (by_lightning, "gradient_clip_val"):
        for clip_at in (0.0, 1.0):
            os.environ["SLURM_DL_RUN_DIR"] = str(place := Path(sys.argv[1]) / f"{clip} {clip_at}")
            place.mkdir()
            try:
                train(place, **{clip: clip_at})
                told = json.loads((place / PROGRESS_FILE).read_text())
            except ValueError as err:
                told = str(err)
            sys.stdout.write("\n" + json.dumps({"told": told}) + "\n")
