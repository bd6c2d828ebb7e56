"""What the trainings themselves wrote down: their runs, their steps, their checkpoints."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStart:
    """The beginning of one run, as the training logged it after it had loaded its checkpoint.

    Attributes:
        restart: Slurm's restart count.
        from_step: The step its checkpoint was at; 0 for a fresh start.
        at_s: When, epoch seconds.
    """

    restart: int
    from_step: int
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Between:
    """How a training stood between two runs, when nothing of it was running.

    Attributes:
        reached_step: The last step it had taken.
        saved_step: The step of its newest checkpoint; 0 if there is none.
    """

    reached_step: int
    saved_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingLog:
    """One job's run directory at the end.

    Attributes:
        losses: ``(step, loss)`` in the order they were logged.
        runs: Beginnings of its runs, in the order they were logged.
    """

    losses: tuple[tuple[int, float], ...]
    runs: tuple[RunStart, ...]


def read_log(directory: Path) -> TrainingLog:
    """What lies in a job's run directory.

    Raises:
        ValueError: A line is not what the training writes.
    """
    return TrainingLog(
        losses=tuple(
            (int(line["step"]), float(line["loss"])) for line in _lines(directory / "loss.jsonl")
        ),
        runs=tuple(
            RunStart(
                restart=int(line["restart"]),
                from_step=int(line["from_step"]),
                at_s=float(line["time_s"]),
            )
            for line in _lines(directory / "runs.jsonl")
        ),
    )


def read_between(directory: Path) -> Between:
    """How the training stands; right only while no run of it is under way."""
    steps = [int(line["step"]) for line in _lines(directory / "loss.jsonl")]
    try:
        state = json.loads((directory / "slurm_dl.state.json").read_text())
        saved = int(state["checkpoints"][0]["step"])
    except FileNotFoundError:
        saved = 0
    return Between(reached_step=max(steps, default=0), saved_step=saved)


def steps_done(directory: Path) -> int:
    """Steps so far, for a progress bar; 0 before the first second is over."""
    try:
        return int(json.loads((directory / "slurm_dl.progress.json").read_text())["step"])
    except (FileNotFoundError, ValueError, KeyError):
        return 0


def _lines(path: Path) -> list[dict[str, float]]:
    if not path.exists():
        return []
    try:
        # Without the last piece: it is empty, or a line that is being written.
        lines = [json.loads(line) for line in path.read_text().split("\n")[:-1]]
    except ValueError as err:
        msg = f"{path}: {err}"
        raise ValueError(msg) from None
    return lines
