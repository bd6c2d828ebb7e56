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
from slurm_dl.job.progress import report


class CheckpointOnRequest(TrainerCallback):  # type: ignore[misc]
    """Lets a training be preempted at any step. Outside dlrun it does nothing.

    Each checkpoint that the Trainer saves is recorded, not only those that were asked for.
    """

    def __init__(self) -> None:
        install()
        self._asked = False

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **_kwargs: object,
    ) -> None:
        """Report the step; if a checkpoint is wanted, let the Trainer save and stop."""
        report(state.global_step, state.max_steps)
        if _any_rank(should_checkpoint(), args.device) and state.global_step < state.max_steps:
            self._asked = True
            control.should_save = True
            control.should_training_stop = True

    def on_save(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **_kwargs: object,
    ) -> None:
        """Record the checkpoint that has just been written; control is left as it is."""
        del control
        path = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if path.is_dir():  # on a file system that is not shared, other nodes have none
            checkpoint_saved(path, step=state.global_step)

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **_kwargs: object,
    ) -> None:
        """End the process so that the job is run again, if it was asked to stop."""
        del args, state, control
        if self._asked:
            exit_for_requeue()


def _any_rank(asked: bool, device: torch.device) -> bool:  # noqa: FBT001 -- the value, not a mode
    """True on all ranks if it is true on any: they see the request some steps apart."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return asked
    flag = torch.tensor([int(asked)], device=device)
    torch.distributed.all_reduce(flag, torch.distributed.ReduceOp.MAX)
    return bool(flag.item())
