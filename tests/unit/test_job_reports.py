"""Progress, rate and last save of a run: what is told of them, and how often."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from comment_keeper import COMMENT, RUN, CommentKeeper

from slurm_dl import job
from slurm_dl.job import progress
from slurm_dl.job.comment_report import (
    LOOK_S,
    PROGRESS,
    RATE,
    SAVED,
    CommentReport,
    Progress,
    last_memory_mb,
    rate_between,
    share_done,
)
from slurm_dl.job.controller import MOST_BYTES, with_key
from slurm_dl.job.elastic import split
from slurm_dl.job.run_files import PROGRESS_FILE, STATE_FILE, RunId


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run directory, and a throttle that has written nothing yet."""
    for name in ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLURM_DL_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("SLURM_DL_RESTART_COUNT", "1")
    monkeypatch.setattr(progress, "_throttle", progress._Throttle())
    return tmp_path


def written(place: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((place / "slurm_dl.progress.json").read_text())
    return found


def test_a_report_says_how_far_the_run_is(place: Path) -> None:
    """Step, total, numbers and the run are in the file."""
    job.report(3, 10, loss=0.5, tokens=7)

    found = written(place)
    assert isinstance(found.pop("time_s"), float)
    assert found == {
        "v": 1,
        "step": 3,
        "total": 10,
        "restart": 1,
        "numbers": {"loss": 0.5, "tokens": 7.0},
    }


def test_a_report_says_how_a_step_is_divided(place: Path) -> None:
    """The sizes and limits of the split; what is not known yet is left out."""
    part = split(256, 8, most_local=16, least_local=4, most=4096, mode="adapt")
    job.report(3, part=part, noise=None, loss=0.5)

    assert written(place)["part"] == [8, 16, 2, 256, 256, 4096, 4, 16]
    assert written(place)["part_step"] == 3
    assert written(place)["numbers"] == {"loss": 0.5}


def test_a_report_tells_gpu_memory_in_bytes_and_dlrun_reads_megabytes(place: Path) -> None:
    """In use between steps, and the most inside one; not finite is an error as of any number."""
    job.report(3, memory=(100 * 2**20, 900.5 * 2**20), loss=0.5)

    assert last_memory_mb(place, RunId(1, 0)) == (100.0, 900.5)
    assert last_memory_mb(place, RunId(2, 0)) is None
    assert written(place)["numbers"] == {"loss": 0.5}
    with pytest.raises(ValueError, match="memory must be finite"):
        job.report(4, memory=(math.nan, 1.0))


def test_most_reports_write_nothing_but_the_last_one_does(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a second is enough for people; the end must not be missing."""
    clock = 50.0
    monkeypatch.setattr("slurm_dl.job.progress.time.monotonic", lambda: clock)
    job.report(1, 10)
    clock = 50.9
    job.report(2, 10)
    assert written(place)["step"] == 1
    job.report(10, 10)
    assert written(place)["step"] == 10
    clock = 51.0
    job.report(11)
    assert written(place)["step"] == 11


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_refused_at_every_call(place: Path, value: float) -> None:
    """Whether it is an error does not depend on when the file is written."""
    job.report(1)
    with pytest.raises(ValueError, match="loss must be finite"):
        job.report(2, loss=value)
    with pytest.raises(ValueError, match="step must be 0 or more"):
        job.report(-1)
    assert written(place)["step"] == 1


def test_a_directory_that_is_gone_does_not_stop_the_training(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Progress is not worth a failed job."""
    monkeypatch.setenv("SLURM_DL_RUN_DIR", str(place / "gone"))
    job.report(1)

    assert list(place.iterdir()) == []


class Training:
    """A script that reports, and dlrun's report beside it."""

    def __init__(self, run_dir: Path, slurm: CommentKeeper) -> None:
        self.path = run_dir / PROGRESS_FILE
        self.said: list[str] = []
        self.report = CommentReport(RATE, run_dir, slurm, every_s=300.0, log=self.said.append)
        self.report.start(0.0, 1000.0)

    def at(self, now_s: float, step: int | None, **more: object) -> None:
        """*now_s* seconds after the start, the script has done *step* steps."""
        if step is not None:
            content = {"v": 1, "step": step, "time_s": 1000.0 + now_s, "restart": 2, **more}
            self.path.write_text(json.dumps(content))
        self.report.look(RUN, now_s)


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


LEAST_S = 60.0


class SavingScript:
    """A script that saves, and dlrun's report beside it, by a clock that begins at 1000 s."""

    def __init__(self, run_dir: Path, slurm: CommentKeeper) -> None:
        self.path = run_dir / STATE_FILE
        self.slurm = slurm
        self.log: list[str] = []
        self.report = CommentReport(SAVED, run_dir, slurm, every_s=LEAST_S, log=self.log.append)

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
    training = SavingScript(tmp_path, CommentKeeper())
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
    training = SavingScript(tmp_path, CommentKeeper())
    training.save(time_s, restart)
    training.look_until(0, 200)

    assert training.slurm.updates == 0
    assert not training.log


def test_a_silent_slurm_is_asked_again_and_a_comment_of_others_is_left(tmp_path: Path) -> None:
    """The report that failed is made up for; no comment of ours, no report."""
    training = SavingScript(tmp_path, CommentKeeper())
    training.save(1100.0)
    training.slurm.silent = True
    training.look_until(0, 3 * LEAST_S - 1)
    assert len(training.log) == 3
    training.slurm.silent = False
    training.look_until(3 * LEAST_S, 4 * LEAST_S)
    assert training.slurm.saved_s == 1100

    other = SavingScript(tmp_path, CommentKeeper("theirs"))  # Its record is the same.
    other.look_until(0, 1000)
    assert other.slurm.comment == "theirs"
    assert len(other.log) == 1
    spared = SavingScript(tmp_path, CommentKeeper('{"slurm_dl":{"v":1,"model":"a"}}'))
    spared.look_until(0, 1000)
    assert (spared.slurm.updates, spared.slurm.asked, spared.log) == (0, 1, [])
    full = SavingScript(tmp_path, CommentKeeper(COMMENT.replace("é", "e" * 450)))
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
    report = CommentReport(PROGRESS, tmp_path, slurm, every_s=LEAST_S, log=said.append)

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
