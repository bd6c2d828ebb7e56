"""The pause switch: kept over a restart, and on when in doubt."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_dl.daemon.pause import FILE_NAME, PauseSwitch


def test_a_pause_survives_a_restart(tmp_path: Path) -> None:
    """Who, when and why are there again in the next daemon."""
    assert PauseSwitch(tmp_path).on(by="user ann (7)", reason='"x"\n', now_s=12.0) == ""

    pause = PauseSwitch(tmp_path).pause

    assert (pause.by, pause.since_s, pause.reason) == ("user ann (7)", 12.0, '"x"\n')


def test_resuming_leaves_nothing_behind(tmp_path: Path) -> None:
    """After a resume neither this daemon nor the next is paused; twice is no error."""
    switch = PauseSwitch(tmp_path)
    switch.on(by="a", reason="", now_s=1.0)

    assert switch.off() == ""
    assert switch.off() == ""

    assert switch.pause is None
    assert PauseSwitch(tmp_path).pause is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", ["", "{}", "[1]", "null", '{"by": 1, "since_s": "x"}', "\xff"])
def test_a_file_that_cannot_be_read_is_a_pause(content: str, tmp_path: Path) -> None:
    """Somebody meant to stop the daemon: when in doubt it does not act."""
    (tmp_path / FILE_NAME).write_text(content, "latin-1")

    pause = PauseSwitch(tmp_path).pause

    assert FILE_NAME in pause.reason


def test_a_pause_that_cannot_be_stored_holds_and_says_so(tmp_path: Path) -> None:
    """A full or missing disk does not keep an admin from stopping the daemon now."""
    switch = PauseSwitch(tmp_path / "gone")

    warning = switch.on(by="a", reason="", now_s=1.0)

    assert switch.pause is not None
    assert "restart" in warning
