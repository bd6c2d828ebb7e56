"""Trainings with Hugging Face's Trainer, each stopped and gone on with; run by a test.

    python trainings.py '[{"save_total_limit": 1}, ...]' DIR

Each object has arguments of the Trainer and "asked", the step that is under way when the checkpoint
is asked for. Printed is one JSON object for each: the exit status of each run, the steps that
were trained, evaluated and saved, those at which a run ended, and the checkpoints that are left.
Processes are forked, so that the import is paid for once.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path

import torch
from transformers import (
    PretrainedConfig,
    PreTrainedModel,
    Trainer,
    TrainerCallback,
    TrainerState,
    TrainingArguments,
)

from slurm_dl import job
from slurm_dl.job.huggingface import CheckpointOnRequest
from slurm_dl.job.run_files import REQUEST_FILE, this_run, write_mark

STEPS = 8
STEPS_OF_AN_EPOCH = 4
STATUSES = 4
"""More runs than any of these trainings needs."""


class Line(PreTrainedModel):  # type: ignore[misc]
    """The smallest model that the Trainer takes."""

    config_class = PretrainedConfig

    def __init__(self) -> None:
        super().__init__(PretrainedConfig())
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Loss and output."""
        return {"loss": ((self.weight * x - labels) ** 2).mean(), "logits": self.weight * x}


class Diary(TrainerCallback):  # type: ignore[misc]
    """Notes steps and evaluations, and asks for the checkpoint as dlrun does."""

    def __init__(self, place: Path, asked: int) -> None:
        self._place = place
        self._asked = asked

    def _note(self, name: str, state: TrainerState) -> None:
        with (self._place / name).open("a") as out:
            out.write(f"{state.global_step}\n")

    def on_step_begin(
        self, _args: object, state: TrainerState, _control: object, **_: object
    ) -> None:
        """Ask once."""
        if state.global_step + 1 == self._asked and job.restart_count() == 0:
            write_mark(self._place / REQUEST_FILE, this_run())

    def on_step_end(
        self, _args: object, state: TrainerState, _control: object, **_: object
    ) -> None:
        """Note it."""
        self._note("steps", state)

    def on_evaluate(
        self, _args: object, state: TrainerState, _control: object, **_: object
    ) -> None:
        """Note it."""
        self._note("evaluated", state)

    def on_save(self, _args: object, state: TrainerState, _control: object, **_: object) -> None:
        """Note it."""
        self._note("saved", state)

    def on_train_end(
        self, _args: object, state: TrainerState, _control: object, **_: object
    ) -> None:
        """What reporters do here must be done at a preemption too."""
        self._note("ends", state)


def train(place: Path, asked: int, arguments: dict[str, object]) -> None:
    """One run."""
    job.checkpoint.LOOK_EVERY_S = 0.0
    torch.manual_seed(1)
    # Evaluated is how near it still is to where it began: the first step stays the best.
    data, first = (
        [
            {"x": torch.tensor([i]), "labels": torch.tensor([slope * i])}
            for i in (1.0, 2.0, 3.0, 4.0)
        ]
        for slope in (2.0, 1.0)
    )
    trainer = Trainer(
        model=Line(),
        args=TrainingArguments(
            output_dir=str(place / "checkpoints"),
            max_steps=STEPS,
            per_device_train_batch_size=len(data) // STEPS_OF_AN_EPOCH,
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            learning_rate=0.01,
            **arguments,
        ),
        train_dataset=data,
        eval_dataset=first,
        callbacks=[Diary(place, asked), CheckpointOnRequest()],
    )
    checkpoint = job.resume_from()
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)


def status_of(place: Path, run: int, asked: int, arguments: dict[str, object]) -> int:
    """Exit status of a run in a process of its own."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.environ["SLURM_DL_RUN_DIR"] = str(place)
            os.environ["SLURM_RESTART_COUNT"] = str(run)
            train(place, asked, arguments)
            status = 0
        except SystemExit as end:
            status = int(end.code or 0)
        except BaseException:  # noqa: BLE001 -- it must not go on as its parent
            traceback.print_exc()
        os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def lines(path: Path) -> list[int]:
    """The numbers in a file; none if there is no such file."""
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def main() -> None:
    """Each training, until it is done."""
    torch.set_num_threads(1)
    for number, case in enumerate(json.loads(sys.argv[1])):
        place = Path(sys.argv[2]) / str(number)
        place.mkdir()
        asked = case.pop("asked")
        statuses: list[int] = []
        while len(statuses) < STATUSES and statuses[-1:] in ([], [75]):
            statuses.append(status_of(place, len(statuses), asked, case))
        told = {name: lines(place / name) for name in ("steps", "evaluated", "saved", "ends")}
        left = sorted(path.name for path in (place / "checkpoints").glob("checkpoint-*"))
        sys.stdout.write(json.dumps({"statuses": statuses, "left": left, **told}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
