"""Progress of a job: one small file, rarely written, always whole."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from slurm_dl import job
from slurm_dl.job import progress


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
