"""The rate of a job that shares its GPU: over the last stretch of time, now and then."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from comment_keeper import RUN, CommentKeeper

from slurm_dl.job.comment_report import Progress, RateReport, rate_between
from slurm_dl.job.controller import MOST_BYTES, with_key
from slurm_dl.job.run_files import PROGRESS_FILE


class Training:
    """A script that reports, and dlrun's report beside it."""

    def __init__(self, run_dir: Path, slurm: CommentKeeper) -> None:
        self.path = run_dir / PROGRESS_FILE
        self.said: list[str] = []
        self.rate = RateReport(run_dir, slurm, every_s=300.0, log=self.said.append)
        self.rate.start(0.0, 1000.0)

    def at(self, now_s: float, step: int | None, **more: object) -> None:
        """*now_s* seconds after the start, the script has done *step* steps."""
        if step is not None:
            content = {"v": 1, "step": step, "time_s": 1000.0 + now_s, "restart": 2, **more}
            self.path.write_text(json.dumps(content))
        self.rate.look(RUN, now_s)


def test_the_rate_of_the_last_stretch(tmp_path: Path) -> None:
    """Start-up does not count, each report has its own stretch, the other keys stay."""
    slurm = CommentKeeper()
    training = Training(tmp_path, slurm)

    training.at(60, 0)
    training.at(160, 100)
    training.at(299, 239)
    assert slurm.updates == 0
    training.at(310, 500)
    assert slurm.rate == 2.0
    training.at(400, 9000)
    training.at(620, 655)
    assert slurm.rate == 0.5
    assert slurm.updates == 2
    assert json.loads(slurm.comment)["slurm_dl"]["ack"] == 2
    assert json.loads(slurm.comment)["mine"] == "é"


def test_nothing_to_report(tmp_path: Path) -> None:
    """No report, one of another run, one from before the start, a step that is none, no steps."""
    slurm = CommentKeeper()
    training = Training(tmp_path, slurm)

    training.at(310, None)
    training.at(320, 5, restart=1)
    training.at(620, 50, time_s=999.0)
    training.at(930, 10, restart=1)
    training.at(1240, None)
    training.path.write_text('{"restart": 2, "step": true, "time_s": "x"}')
    training.at(1550, None)
    training.path.write_text("[")
    training.at(1860, None)
    training.at(1861, 10**400)
    training.at(1862, 1, time_s=10**400)
    training.at(1863, 1, time_s=float("nan"))
    training.at(1870, 70)
    training.at(2170, 70)

    assert slurm.updates == 0


def test_a_silent_slurm_is_asked_again_next_time(tmp_path: Path) -> None:
    slurm = CommentKeeper()
    training = Training(tmp_path, slurm)
    slurm.silent = True
    training.at(10, 10)
    training.at(310, 310)
    slurm.silent = False
    training.at(320, 400)
    assert slurm.updates == 0

    training.at(610, 910)

    assert slurm.rate == 2.0
    assert training.said == ["the rate could not be reported: silent"]


@pytest.mark.parametrize(
    "comment",
    ["", "mine", '{"other":1}', json.dumps({"slurm_dl": {"v": 1}, "x": "y" * (MOST_BYTES - 30)})],
)
def test_comments_that_take_no_rate(tmp_path: Path, comment: str) -> None:
    """None of ours, or too long with it: it stays as it is."""
    slurm = CommentKeeper(comment)
    training = Training(tmp_path, slurm)

    training.at(10, 10)
    training.at(310, 310)

    assert (slurm.updates, slurm.comment) == (0, comment)
    assert "not reported" in training.said[0]


@pytest.mark.parametrize(
    ("first", "last", "rate"),
    [
        ((2, 0, 0.0), (2, 10, 4.0), 2.5),
        ((2, 0, 0.0), (2, 1, 3.0), 0.3333),
        ((2, 0, 0.0), (2, 1_000_000, 7.0), 142_900.0),
        ((2, 5, 0.0), (2, 5, 4.0), None),
        ((2, 9, 0.0), (2, 5, 4.0), None),
        ((2, 0, 4.0), (2, 5, 4.0), None),
        ((2, 0, 5.0), (2, 5, 4.0), None),
        ((1, 0, 0.0), (2, 5, 4.0), None),
    ],
)
def test_rates(
    first: tuple[int, int, float], last: tuple[int, int, float], rate: float | None
) -> None:
    assert rate_between(Progress(*first), Progress(*last)) == rate


def test_a_rate_replaces_the_one_before() -> None:
    assert (
        with_key('{"slurm_dl":{"v":1,"rate":3}}', "rate", 2.5) == '{"slurm_dl":{"v":1,"rate":2.5}}'
    )
    assert with_key("not ours", "rate", 2.5) is None


def test_half_a_character_in_the_comment_keeps_its_spelling() -> None:
    """JSON may have one, an argument may not: dlrun would end, and the job with it."""
    theirs = '"mine":"\\ud83d, \\udcff"'

    comment = with_key(f'{{"slurm_dl":{{"v":1}},{theirs}}}', "rate", 2.5)

    assert b'"mine":"\\ud83d, \xff"' in comment.encode(errors="surrogateescape")
