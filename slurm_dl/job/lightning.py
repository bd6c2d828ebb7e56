"""A callback for Lightning: save at the end of the step, say so, and stop.

    trainer = Trainer(..., callbacks=[CheckpointOnRequest()])
    trainer.fit(model, loader, ckpt_path=job.resume_from())

Lightning's own handler saves wherever the signal meets it, in the middle of a step too, and
requeues the job itself; it stays away where this callback is made before `fit`. Needs lightning,
which nothing else here does: import this module by its own name.
"""

from __future__ import annotations

from pathlib import Path

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback

from slurm_dl.job.checkpoint import (
    checkpoint_saved,
    exit_for_requeue,
    install,
    should_checkpoint,
)
from slurm_dl.job.elastic import GradientNoise, Split
from slurm_dl.job.progress import report
from slurm_dl.job.run_files import run_dir
from slurm_dl.job.step_loop import distributed


class CheckpointOnRequest(Callback):  # type: ignore[misc]
    """Lets a training be preempted at any step. Outside dlrun it does nothing.

    Args:
        directory: Where checkpoints go; None is the run directory.
        part: How a step is divided in this run; it is reported with each step.
        noise: Of the model's parameters; measured at each step, if there is a *part*.
    """

    def __init__(
        self,
        directory: Path | None = None,
        part: Split | None = None,
        noise: GradientNoise | None = None,
    ) -> None:
        install()
        self._directory = directory
        self._part = part
        self._noise = noise

    def on_train_start(self, trainer: Trainer, *_args: object) -> None:
        """Refuse a Trainer that scales losses.

        Raises:
            ValueError: The noise is to be measured, and losses are scaled.
        """
        if self._noise is not None and getattr(trainer.precision_plugin, "scaler", None):
            msg = f"the noise cannot be measured with precision {trainer.precision}"
            raise ValueError(msg)

    def on_before_optimizer_step(self, *_args: object) -> None:
        """Measure the noise of the gradient, which is clipped only later."""
        if self._noise is not None and self._part is not None:
            group = distributed()
            self._noise.measure(self._part, group and group.all_reduce)

    def on_train_batch_end(self, trainer: Trainer, *_args: object, **_kwargs: object) -> None:
        """Report the step; if a checkpoint is wanted, save it on all ranks and end."""
        directory = self._directory or run_dir()
        if directory is None:
            return
        step = trainer.global_step
        noise = None if self._noise is None else self._noise.scale
        total = trainer.max_steps if trainer.max_steps > 0 else None
        report(step, total, part=self._part, noise=noise)
        # All ranks must save together, and they see the request some steps apart.
        if not trainer.strategy.reduce_boolean_decision(should_checkpoint(), all=False):
            return
        path = directory / f"step-{step}.ckpt"
        trainer.save_checkpoint(path)
        checkpoint_saved(path, step=step)
        trainer.strategy.barrier("slurm_dl")
        exit_for_requeue()
