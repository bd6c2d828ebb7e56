"""A callback for the Trainer of Hugging Face: save at the end of the step, say so, and stop.

    trainer = Trainer(..., callbacks=[CheckpointOnRequest()])
    checkpoint = job.resume_from()
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)

Needs transformers and torch, which nothing else here does: import this module by its own name.
"""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from slurm_dl.job.checkpoint import (
    checkpoint_saved,
    exit_for_requeue,
    install,
    should_checkpoint,
)
from slurm_dl.job.elastic import GradientNoise, Split
from slurm_dl.job.progress import report
from slurm_dl.job.step_loop import distributed


class CheckpointOnRequest(TrainerCallback):  # type: ignore[misc]
    """Lets a training be preempted at any step. Outside dlrun it does nothing.

    Each checkpoint that the Trainer saves is recorded, not only those that were asked for. An
    evaluation that is due at the step of the request is made first, so that none is left out.

    Args:
        part: How a step is divided in this run; it is reported with each step.
        noise: Of the model's parameters; measured at each step, if there is a *part*.
    """

    def __init__(self, part: Split | None = None, noise: GradientNoise | None = None) -> None:
        install()
        self._part = part
        self._noise = noise
        self._asked = False
        self._stops = False
        """What was asked for is saved, and the Trainer is on its way out."""

    def on_train_begin(self, args: TrainingArguments, *_args: object, **_kwargs: object) -> None:
        """Refuse a Trainer that changes gradients before anyone can measure them.

        Raises:
            ValueError: The noise is to be measured, and gradients are clipped or losses scaled.
        """
        if self._noise is not None and (args.fp16 or args.max_grad_norm > 0):
            msg = "the noise can be measured only with max_grad_norm=0 and without fp16"
            raise ValueError(msg)

    def on_pre_optimizer_step(self, *_args: object, **_kwargs: object) -> None:
        """Measure the noise of the gradient."""
        if self._noise is not None and self._part is not None:
            group = distributed()
            self._noise.measure(self._part, group and group.all_reduce)

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **_kwargs: object,
    ) -> None:
        """Report the step; if a checkpoint is wanted, let the Trainer save."""
        noise = None if self._noise is None else self._noise.scale
        report(state.global_step, state.max_steps, part=self._part, noise=noise)
        if self._asked and state.global_step < state.max_steps:
            # save_strategy="best" overruled the last request, after an evaluation.
            control.should_evaluate = False
        self._asked = self._asked or _any_rank(should_checkpoint(), args.device)
        if self._asked and not _ends_epoch(state):
            self._ask(state, control)

    def on_epoch_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **_kwargs: object,
    ) -> None:
        """Save behind the evaluation of an epoch that is over; make none where it is not."""
        del args
        if self._stops:
            control.should_evaluate = control.should_evaluate and _ends_epoch(state)
            # To write it once more could tear it: only if there is something new to save.
            control.should_save = control.should_evaluate
        elif self._asked:
            self._ask(state, control)

    def on_save(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **_kwargs: object,
    ) -> None:
        """Record the checkpoint that has just been written; stop if it was asked for."""
        _all_ranks()  # each writes a part: its random states, its shard
        path = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if path.is_dir():  # on a file system that is not shared, other nodes have none
            checkpoint_saved(path, step=state.global_step)
        if self._asked and state.global_step < state.max_steps:
            self._stops = control.should_training_stop = True
            # At its end the Trainer would load the best model, and delete this for it.
            args.load_best_model_at_end = False
            args.save_total_limit = None

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **_kwargs: object,
    ) -> None:
        """End the process so that the job is run again, if it was asked to stop."""
        del args, state, control
        if self._stops:
            _all_ranks()  # torchrun ends all of them at the first that leaves
            exit_for_requeue()

    def _ask(self, state: TrainerState, control: TrainerControl) -> None:
        if state.global_step < state.max_steps:
            control.should_save = True


def _ends_epoch(state: TrainerState) -> bool:
    return bool(state.epoch) and float(state.epoch).is_integer()


def _all_ranks() -> None:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.barrier()


def _any_rank(asked: bool, device: torch.device) -> bool:  # noqa: FBT001 -- the value, not a mode
    """True on all ranks if it is true on any: they see the request some steps apart."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return asked
    flag = torch.tensor([int(asked)], device=device)
    torch.distributed.all_reduce(flag, torch.distributed.ReduceOp.MAX)
    return bool(flag.item())
