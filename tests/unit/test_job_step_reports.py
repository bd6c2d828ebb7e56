"""Time of a step and noise of its gradient: what dlrun tells of them, and how often."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from comment_keeper import RUN, CommentKeeper

from slurm_dl.job.comment_report import STEPS, CommentReport
from slurm_dl.job.run_files import PROGRESS_FILE
from slurm_dl.model.step_report import StepReport

PART = [4, 16, 1, 64, 64, 512, 8, 32]
LIMITS = PART[4:]


class Adapting:
    """A script that reports how its steps are divided, and dlrun's report beside it."""

    def __init__(self, run_dir: Path) -> None:
        self.path = run_dir / PROGRESS_FILE
        self.slurm = CommentKeeper()
        self.said: list[str] = []
        self.report = CommentReport(STEPS, run_dir, self.slurm, every_s=300.0, log=self.said.append)
        self.report.start(0.0, 1000.0)
        self.now_s = self.step = 0

    def at(self, now_s: float, step: int, more: dict[str, object]) -> None:
        """*now_s* seconds after the start, the script has done *step* steps."""
        content = {"v": 1, "step": step, "time_s": 1000.0 + now_s, "restart": 2, **more}
        self.path.write_text(json.dumps(content))
        self.report.look(RUN, now_s)

    def told(self) -> object:
        """The entry on steps in the comment."""
        return json.loads(self.slurm.comment)["slurm_dl"].get("steps")

    def goes(
        self, until_s: int, *, step_s: float, part: object, noise: object = 300.0, since: int = 0
    ) -> object:
        """Steps of *step_s* seconds until *until_s* on the clock; what is told of them then."""
        for now_s in range(self.now_s + 15, until_s + 1, 15):
            self.step += round(15 / step_s)
            numbers = {} if noise is None else {"noise": noise}
            told = {"part": part, "part_step": since, "numbers": numbers}
            self.at(now_s, self.step, told)
        self.now_s = until_s
        return self.told()


def test_the_time_of_a_step_is_told_once_a_stretch_and_only_if_it_is_news(tmp_path: Path) -> None:
    """A stretch of one division of steps; another division begins another stretch."""
    training = Adapting(tmp_path)
    slurm = training.slurm
    assert training.goes(285, step_s=0.5, part=PART) is None
    first = [2, 4, 16, 1, 0.5, 300.0, *LIMITS]
    assert training.goes(300, step_s=0.5, part=PART) == first

    # Neither the time nor the noise differs by more than a tenth.
    assert training.goes(900, step_s=0.46875, part=PART, noise=329.0) == first
    assert slurm.updates == 1
    noisier = [2, 4, 16, 1, 0.4688, 331.0, *LIMITS]
    assert training.goes(1200, step_s=0.46875, part=PART, noise=331.0) == noisier
    # It is not known for a while: the last one holds.
    assert training.goes(2100, step_s=0.46875, part=PART, noise=None) == noisier
    slower = [2, 4, 16, 1, 0.6, 331.0, *LIMITS]
    assert training.goes(2700, step_s=0.6, part=PART, noise=None) == slower

    # In one run: fewer GPUs, in the middle of a stretch, whose first steps count no more.
    fewer = [2, 16, 2, 64, *LIMITS]
    assert training.goes(2850, step_s=0.6, part=PART) == slower
    assert training.goes(2985, step_s=1.5, part=fewer) == slower
    assert training.goes(3000, step_s=1.5, part=fewer) == [2, 2, 16, 2, 1.5, 300.0, *LIMITS]
    again = [2, 32, 1, 64, *LIMITS]
    assert training.goes(3300, step_s=1.5, part=again) == [2, 2, 32, 1, 1.5, 300.0, *LIMITS]
    assert slurm.updates == 5
    assert (slurm.rate, training.said) == (None, [])


def test_another_division_between_two_looks_begins_a_stretch(tmp_path: Path) -> None:
    """Steps are divided again as before by the second look: what they took between is not known."""
    training = Adapting(tmp_path)
    training.goes(150, step_s=0.5, part=PART)
    told = training.goes(300, step_s=1.5, part=PART, since=training.step)

    assert told == [2, 4, 16, 1, 1.5, 300.0, *LIMITS]


def test_a_command_that_starts_again_begins_a_stretch(tmp_path: Path) -> None:
    """The reports of its last start are no part of it; the noise may be unknown."""
    training = Adapting(tmp_path)
    training.goes(150, step_s=0.5, part=PART)
    training.report.start(150.0, 1150.5)
    training.report.look(RUN, 165.0)
    assert training.goes(435, step_s=1.5, part=PART, noise=None) is None
    training.report.look(RUN, 449.9)
    assert training.told() is None
    expected = [2, 4, 16, 1, 1.5, 0.0, *LIMITS]
    assert training.goes(450, step_s=1.5, part=PART, noise=None) == expected


def test_a_script_that_counts_its_steps_anew_is_heard_again(tmp_path: Path) -> None:
    """And a noise that is larger than the scheduler believes is the largest that it does."""
    training = Adapting(tmp_path)
    training.goes(600, step_s=0.5, part=PART)
    training.step = 0
    words = training.goes(900, step_s=1.5, part=PART, noise=1e15)

    assert words == [2, 4, 16, 1, 1.5, 1e12, *LIMITS]
    assert StepReport.of(words).noise == 1e12


HUGE = 10**400
NO_PARTS = (None, {"gpus": 4}, [*PART, 1], PART[:-1], HUGE)
NO_NUMBERS = (0, -1, True, "8", 8.0, [8], HUGE)
NO_NOISE = (math.nan, math.inf, -1.0, 1.7976e308, HUGE, "300", [300.0])
HOSTILE: list[dict[str, object]] = [
    *({"part": part} for part in NO_PARTS),
    *({"part": [*PART[:-1], number]} for number in NO_NUMBERS),
    *({"numbers": {"noise": noise}} for noise in NO_NOISE),
    *({"part_step": step} for step in (-1, True, "3", 10**6, HUGE)),
    *({"restart": 1}, {"step": HUGE}, {"time_s": math.nan}, {"time_s": HUGE}),
]


@pytest.mark.parametrize("content", HOSTILE, ids=range(len(HOSTILE)))
def test_nothing_is_told_of_steps_that_cannot_be(
    content: dict[str, object], tmp_path: Path
) -> None:
    """The user's script writes the file; once it has sense, the same is told."""
    training = Adapting(tmp_path)
    for now_s in range(0, 600, 15):
        training.at(now_s, now_s, {"part": PART, "numbers": {}, **content})
    assert (training.told(), training.slurm.asked) == (None, 0)
    training.goes(1200, step_s=1.0, part=PART)
    assert training.told() == [2, 4, 16, 1, 1.0, 300.0, *LIMITS]
