"""Trainings of one weight by the callbacks that measure the noise; run by a test in a directory.

Each step has two passes of one sample. The weight stays: the learning rate is 0. Printed is what
each training has reported, or why it was refused.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch import Trainer as LightningTrainer
from trainings import Line
from transformers import Trainer, TrainingArguments

from slurm_dl.job import elastic, huggingface, lightning
from slurm_dl.job.run_files import PROGRESS_FILE

DATA = [{"x": torch.tensor([x]), "labels": torch.tensor([2 * x])} for x in (1.0, 2.0)]
STEPS = 3
PART = elastic.split(2, 1, most_local=1, most=16, mode="adapt")


class Module(LightningModule):  # type: ignore[misc]
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


def by_transformers(place: Path, clip_at: float) -> None:
    """Train with the Trainer of Hugging Face."""
    line = Line()
    arguments = TrainingArguments(
        output_dir=str(place / "checkpoints"),
        max_steps=STEPS,
        per_device_train_batch_size=PART.local_batch,
        gradient_accumulation_steps=PART.passes,
        max_grad_norm=clip_at,
        learning_rate=0.0,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    noise = elastic.GradientNoise(line.parameters())
    callback = huggingface.CheckpointOnRequest(PART, noise)
    Trainer(model=line, args=arguments, train_dataset=DATA, callbacks=[callback]).train()


def by_lightning(place: Path, clip_at: float) -> None:
    """Train with the Trainer of Lightning."""
    module = Module()
    noise = elastic.GradientNoise(module.parameters())
    trainer = LightningTrainer(
        max_steps=STEPS,
        max_epochs=-1,
        accelerator="cpu",
        devices=1,
        accumulate_grad_batches=PART.passes,
        gradient_clip_val=clip_at,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[lightning.CheckpointOnRequest(place, PART, noise)],
    )
    trainer.fit(module, torch.utils.data.DataLoader(DATA, batch_size=PART.local_batch))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for train in (by_transformers, by_lightning):
        for clip_at in (0.0, 1.0):
            place = Path(sys.argv[1]) / f"{train.__name__}-{clip_at}"
            place.mkdir()
            os.environ["SLURM_DL_RUN_DIR"] = str(place)
            told: object
            try:
                train(place, clip_at)
                told = json.loads((place / PROGRESS_FILE).read_text())
            except ValueError as err:
                told = str(err)
            sys.stdout.write("\n" + json.dumps({place.name: told}) + "\n")
