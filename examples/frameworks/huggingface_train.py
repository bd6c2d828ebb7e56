"""Training with Hugging Face's Trainer: a small GPT-2, made-up text, and the callback.

    dlsubmit --gpus 1 -- python examples/frameworks/huggingface_train.py
    dlsubmit --gpus 2 --launcher torchrun -- examples/frameworks/huggingface_train.py

Outside a job it is an ordinary training.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
from steps import Steps, let_gloo_finish
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from slurm_dl import job
from slurm_dl.job.huggingface import CheckpointOnRequest

WORDS = 32
LENGTH = 8
SAMPLES = 64


class Noted(Trainer):
    """A Trainer that notes the loss of each step."""

    def __init__(self, steps: Steps, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self._steps = steps

    def training_step(self, *args: object, **kwargs: object) -> torch.Tensor:
        """Take one step, and note it."""
        loss = super().training_step(*args, **kwargs)
        self._steps.done(self.state.global_step + 1, loss.item())
        return loss


def _share(batch: int) -> int:
    """Part of each batch that a rank takes, so that a step is the same on any number of ranks."""
    return batch // int(os.environ.get("WORLD_SIZE", "1"))


def main() -> None:
    """Train, from the beginning or from the last checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100, help="optimiser steps in all")
    parser.add_argument("--step-s", type=float, default=0.0, help="pause per step, seconds")
    parser.add_argument("--batch", type=int, metavar="N", help="of all ranks; default: 4 of each")
    options = parser.parse_args()

    torch.set_num_threads(1)
    directory = job.run_dir() or Path.cwd()
    made = torch.Generator().manual_seed(1)
    text = torch.randint(WORDS, (SAMPLES, LENGTH), generator=made)
    torch.manual_seed(1)
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=WORDS, n_positions=LENGTH, n_embd=8, n_layer=1, n_head=1)
    )
    arguments = TrainingArguments(
        output_dir=str(directory / "checkpoints"),
        max_steps=options.steps,
        per_device_train_batch_size=_share(options.batch) if options.batch else 4,
        save_strategy="no",  # or "steps": each is recorded, to fall back to
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        # nccl on GPUs; one process alone has no group to be of.
        ddp_backend="gloo" if "LOCAL_RANK" in os.environ else None,
        seed=1,
    )
    trainer = Noted(
        Steps(directory, options.step_s, arguments.process_index),
        model=model,
        args=arguments,
        train_dataset=[{"input_ids": row, "labels": row} for row in text],
        callbacks=[CheckpointOnRequest()],
    )
    checkpoint = job.resume_from()
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    let_gloo_finish()


if __name__ == "__main__":
    main()
