"""What dlrun takes the end of its command for."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from slurm_dl.job.command_end import judge
from slurm_dl.job.options import parse_options
from slurm_dl.job.run_files import RunId

RUN = RunId(2, 0)


class Case(NamedTuple):
    """How a command ends, and what is to come of it."""

    code: int
    asked: bool
    options: tuple[str, ...]
    environ: dict[str, str]
    stopped: bool
    said: str
    heard: bool = True


@pytest.mark.parametrize(
    "case",
    [
        Case(0, True, (), {}, False, "--stops-with 0"),
        Case(0, True, ("--stops-with", "0"), {}, True, "stopped for requeue"),
        Case(0, True, ("--stops-with", "0"), {}, False, "COMPLETED", heard=False),
        Case(0, True, (), {"SLURM_DL_STOPS_WITH": "3,0"}, True, "stopped for requeue"),
        Case(0, True, ("--stops-with", "3"), {"SLURM_DL_STOPS_WITH": "0"}, False, "COMPLETED"),
        Case(0, False, ("--stops-with", "0"), {}, False, ""),
        Case(3, True, ("--stops-with", "0,3"), {}, True, "stopped for requeue"),
        Case(3, True, (), {}, False, "job.should_checkpoint()"),
        Case(3, False, (), {}, False, ""),
        Case(75, True, (), {}, True, "stopped for requeue"),
        Case(93, True, (), {}, False, "final"),
        Case(93, False, (), {}, False, "final"),
        Case(93, True, ("--stops-with", "93"), {}, False, "final"),
        Case(93, True, ("--stops-with", "93", "--never-requeue", ""), {}, True, "stopped"),
        Case(75, True, ("--never-requeue", "75,93"), {}, False, "final"),
        Case(4, True, ("--stops-with", "4"), {"SLURM_DL_NEVER_REQUEUE": "4"}, False, "final"),
        Case(93, True, ("--stops-with", "93"), {"SLURM_DL_NEVER_REQUEUE": ""}, True, "stopped"),
    ],
    ids=str,
)
def test_what_a_status_means(case: Case, tmp_path: Path) -> None:
    """A run is requeued for a status that says so, and never for one that is final."""
    told: list[str] = []
    environ = {**case.environ, "SLURM_DL_RUN_DIR": str(tmp_path)}
    known = parse_options([*case.options, "--", "train"], environ)

    end = judge(case.code, known, RUN, asked=case.asked, heard=case.heard, log=told.append)

    assert (end.stopped, end.may_requeue, end.code) == (case.stopped, case.stopped, case.code)
    assert case.said in " ".join(told)


def test_a_final_status_wins_over_exit_for_requeue(tmp_path: Path) -> None:
    """A launcher ends with 93 although the script had said that it stops to be run again."""
    (tmp_path / "slurm_dl.stopped").write_text('{"v": 1, "restart": 2, "attempt": 0}')
    (tmp_path / "slurm_dl.stopped").chmod(0o600)
    known = parse_options(["--", "train"], {"SLURM_DL_RUN_DIR": str(tmp_path)})

    ends = [judge(code, known, RUN, asked=True, heard=True, log=lambda _: None) for code in (1, 93)]

    assert [end.stopped for end in ends] == [True, False]


@pytest.mark.parametrize("text", ["-1", "256", "0,,3", "a", "0;3", "\u0663"])
def test_a_list_of_statuses_is_checked(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A misspelt list is an error of use, not a list without that entry."""
    with pytest.raises(SystemExit, match="2"):
        parse_options([f"--stops-with={text}", "--", "train"], {})
    assert "--stops-with" in capsys.readouterr().err
