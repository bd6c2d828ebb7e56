"""The last save and the progress, told to the scheduler: once an interval, and only what is new."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from comment_keeper import COMMENT, RUN, CommentKeeper

from slurm_dl.job.comment_report import LOOK_S, ProgressReport, SaveReport, share_done
from slurm_dl.job.run_files import PROGRESS_FILE, STATE_FILE

LEAST_S = 60.0


class Training:
    """A script that saves, and dlrun's report beside it, by a clock that begins at 1000 s."""

    def __init__(self, run_dir: Path, slurm: CommentKeeper) -> None:
        self.path = run_dir / STATE_FILE
        self.slurm = slurm
        self.log: list[str] = []
        self.report = SaveReport(run_dir, slurm, every_s=LEAST_S, log=self.log.append)

    def save(self, time_s: object, restart: object = RUN.restart) -> None:
        """Record a checkpoint."""
        entry = {"path": "/x", "time_s": time_s, "restart": restart}
        self.path.write_text(json.dumps({"v": 1, "checkpoints": [entry]}))

    def look_until(self, now_s: float, end_s: float) -> None:
        """Look whenever it is time to, as dlrun does."""
        while now_s < end_s:
            self.report.look(RUN, now_s)
            now_s += max(self.report.due_in_s(now_s), 0.5)


def test_each_newer_checkpoint_is_reported_but_no_more_than_once_an_interval(
    tmp_path: Path,
) -> None:
    """A job that saves each second makes one update a minute; one that saves no more, none."""
    training = Training(tmp_path, CommentKeeper())
    training.look_until(0, 100)
    assert training.slurm.updates == 0
    training.save(1100.7)
    training.look_until(100, 100 + LOOK_S + 1)
    assert training.slurm.saved_s == 1100

    for second in range(200, 500):
        training.save(1000.0 + second)
        training.look_until(second, second + 1)
    updates = training.slurm.updates - 1
    assert 300 / LEAST_S - 1 <= updates <= 300 / LEAST_S + 1
    training.look_until(500, 600)
    assert training.slurm.saved_s == 1499
    asked = training.slurm.asked
    training.look_until(600, 1200)

    assert training.slurm.asked == asked
    assert json.loads(training.slurm.comment)["slurm_dl"]["ack"] == 2
    assert json.loads(training.slurm.comment)["mine"] == "é"


@pytest.mark.parametrize(
    ("time_s", "restart"),
    [
        (1100.0, RUN.restart - 1),
        (1100.0, None),
        ("1100", RUN.restart),
        (None, RUN.restart),
        (-1.0, RUN.restart),
        (1e300, RUN.restart),
    ],
)
def test_what_is_no_save_of_this_run_is_not_reported(
    time_s: object, restart: object, tmp_path: Path
) -> None:
    """The user's script writes the record: an earlier run's, or nonsense."""
    training = Training(tmp_path, CommentKeeper())
    training.save(time_s, restart)
    training.look_until(0, 200)

    assert training.slurm.updates == 0
    assert not training.log


def test_a_silent_slurm_is_asked_again_and_a_comment_of_others_is_left(tmp_path: Path) -> None:
    """The report that failed is made up for; no comment of ours, no report."""
    training = Training(tmp_path, CommentKeeper())
    training.save(1100.0)
    training.slurm.silent = True
    training.look_until(0, 3 * LEAST_S - 1)
    assert len(training.log) == 3
    training.slurm.silent = False
    training.look_until(3 * LEAST_S, 4 * LEAST_S)
    assert training.slurm.saved_s == 1100

    other = Training(tmp_path, CommentKeeper("theirs"))  # Its record is the same.
    other.look_until(0, 1000)
    assert other.slurm.comment == "theirs"
    assert len(other.log) == 1
    spared = Training(tmp_path, CommentKeeper('{"slurm_dl":{"v":1,"model":"a"}}'))
    spared.look_until(0, 1000)
    assert (spared.slurm.updates, spared.slurm.asked, spared.log) == (0, 1, [])
    full = Training(tmp_path, CommentKeeper(COMMENT.replace("é", "e" * 450)))
    full.look_until(0, 1000)
    assert full.slurm.updates == 0


@pytest.mark.parametrize(
    ("content", "share"),
    [
        ({"step": 1, "total": 4}, 0.25),
        ({"step": 0, "total": 4}, 0.0),
        ({"step": 9_999, "total": 10_000}, 0.999),
        ({"step": 4, "total": 4}, 1.0),
        ({"step": 5, "total": 4}, 1.0),
        ({"step": 10**400, "total": 10**401}, 0.1),
        ({"step": 1, "total": None}, None),
        ({"step": 1, "total": 0}, None),
        ({"step": -1, "total": 4}, None),
        ({"step": 1, "total": -4}, None),
        ({"step": True, "total": 4}, None),
        ({"step": float("nan"), "total": 4}, None),
        ({"step": 1, "total": "4"}, None),
        ({"step": 1, "total": 4, "restart": RUN.restart - 1}, None),
        (["step", 1], None),
        ("[", None),
    ],
)
def test_the_share_done_is_what_the_script_says_within_its_bounds(
    content: object, share: float | None, tmp_path: Path
) -> None:
    """100 % is only said of the last step; another run's progress, and nonsense, is none."""
    if isinstance(content, dict):
        content = {"restart": RUN.restart, **content}
    text = content if isinstance(content, str) else json.dumps(content)
    (tmp_path / PROGRESS_FILE).write_text(text)

    assert share_done(tmp_path, RUN) == share


def test_progress_is_told_at_the_interval_and_only_when_it_has_changed(tmp_path: Path) -> None:
    """Soon after the start, then once an interval; a silent Slurm is told later."""
    slurm, said = CommentKeeper(), list[str]()
    report = ProgressReport(tmp_path, slurm, every_s=LEAST_S, log=said.append)

    def told_after(step: int, now_s: float, end_s: float) -> object:
        content = {"step": step, "total": 1000, "restart": RUN.restart}
        (tmp_path / PROGRESS_FILE).write_text(json.dumps(content))
        while now_s < end_s:
            report.look(RUN, now_s)
            now_s += max(report.due_in_s(now_s), 0.5)
        return json.loads(slurm.comment)["slurm_dl"].get("progress"), slurm.updates

    assert told_after(10, 0, 1) == (0.01, 1)
    assert told_after(20, 1, LEAST_S - 1) == (0.01, 1)
    assert told_after(20, LEAST_S, 10 * LEAST_S) == (0.02, 2)
    assert slurm.asked == 2
    slurm.silent = True
    assert told_after(30, 10 * LEAST_S, 12 * LEAST_S - 1) == (0.02, 2)
    slurm.silent = False
    assert told_after(30, 12 * LEAST_S, 13 * LEAST_S) == (0.03, 3)
    assert said == ["the progress could not be reported: silent"] * 2
