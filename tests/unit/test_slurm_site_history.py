"""The command that writes a site's own history, out of sacct."""

from __future__ import annotations

import gzip
import stat
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import Result
from in_process import in_process

from slurm_dl.cli.dlsim.command import main
from slurm_dl.slurm import tool_runner
from slurm_dl.traces import read_trace

BEGIN_S = int(datetime(2026, 3, 1, tzinfo=UTC).timestamp())
SINCE = ("--since", "2026-03-01", "--until", "2026-03-02")
GPUS = "cpu=1,gres/gpu=2"

Dlsim = Callable[..., Result]


@pytest.fixture
def dlsim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Dlsim]:
    """``dlsim history`` in a directory of its own, with tools that print what a file holds."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in (*tool_runner.TOOLS, "sacct"):
        script = f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\ncat {tmp_path}/answer\n'
        (tools / tool).write_text(script, "utf-8")
        (tools / tool).chmod(0o755)
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.chdir(tmp_path)

    def run(*args: str) -> Result:
        return in_process(main, "history", *args)

    return run


def answer(*runs: tuple[int, str, str]) -> None:
    """Runs of two hours that sacct tells: hours after `BEGIN_S`, users and resources."""
    lines = []
    for job, (start_h, user, tres) in enumerate(runs, start=1):
        start_s = BEGIN_S + 3600 * start_h
        times = f"{start_s - 60}|{start_s}|{start_s + 7200}"
        lines.append(f"{job}|{user}|vision|{times}|COMPLETED|7200|{tres}|{tres}\n")
    Path("answer").write_text("".join(lines), "utf-8")


def test_the_command_writes_a_trace(dlsim: Dlsim) -> None:
    """Whole, readable by its owner alone, and taken by the simulator as it is."""
    answer((1, "ann", GPUS), (2, "bob", GPUS))
    result = dlsim(*SINCE, "--cluster", "big", "out.txt")

    assert result.exit_code == 0, result.output
    assert "2 runs in out.txt, 2 of them with GPUs" in result.stdout
    assert stat.S_IMODE(Path("out.txt").stat().st_mode) == 0o600
    asked = Path("asked").read_text("utf-8")
    assert "--starttime=2026-03-01T00:00:00 --endtime=2026-03-02T00:00:00" in asked
    assert "--clusters=big" in asked
    trace = read_trace(Path("out.txt"))
    assert (trace.format, trace.duration_s.tolist(), trace.gpus.tolist()) == (
        *("sacct", [7200, 7200], [2, 2]),
    )
    assert trace.submit_s.tolist() == [BEGIN_S + 3540, BEGIN_S + 7140]

    assert dlsim(*SINCE, "--anonymous", "out.txt.gz").exit_code == 0
    assert b"ann" not in gzip.decompress(Path("out.txt.gz").read_bytes())
    assert len(read_trace(Path("out.txt.gz"))) == 2
    assert not list(Path().glob(".out*"))


@pytest.mark.parametrize(
    ("runs", "status", "said"),
    [
        # The most likely reason is a line that slurm.conf lacks, so it is named.
        ([(1, "ann", "cpu=1")], 1, "AccountingStorageTRES=gres/gpu"),
        ([(-50, "ann", "cpu=1"), (2, "ann", GPUS)], 0, "no run with GPUs before 2026-03-01"),
    ],
)
def test_missing_gpus_are_told(
    dlsim: Dlsim, runs: list[tuple[int, str, str]], status: int, said: str
) -> None:
    answer(*runs)
    # Where a run ended before the beginning it is left out, but not where it still ran.
    text = Path("answer").read_text("utf-8")
    Path("answer").write_text(text.replace(str(BEGIN_S - 48 * 3600), str(BEGIN_S + 9)), "utf-8")
    result = dlsim(*SINCE, "out.txt")

    assert result.exit_code == status
    assert said in result.stderr
    assert Path("out.txt").exists()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("out.txt",), "--since"),
        (("--since", "yesterday", "out.txt"), "yesterday"),
        ((*SINCE, "nowhere/out.txt"), "there is no directory"),
        (("--since", "2026-03-02", "--until", "2026-03-01", "out.txt"), "no time between"),
        ((*SINCE, "--cluster", "a b", "out.txt"), "no name of a cluster"),
        ((*SINCE, "--cluster", "--delimiter=x", "out.txt"), "no name of a cluster"),
        ((*SINCE, "there.txt"), "--force overwrites it"),
    ],
)
def test_mistakes_are_named(dlsim: Dlsim, args: tuple[str, ...], said: str) -> None:
    answer((1, "ann", GPUS))
    Path("there.txt").write_text("mine", "utf-8")
    result = dlsim(*args)

    assert result.exit_code == 2
    assert said in result.stderr
    assert Path("there.txt").read_text("utf-8") == "mine"
    assert not Path("out.txt").exists()


def test_nothing_is_left_behind_by_a_failure(dlsim: Dlsim) -> None:
    """A sacct that fails, has nothing to tell or is not there leaves what was there."""
    Path("out.txt").write_text("mine", "utf-8")
    answer()
    empty = dlsim(*SINCE, "--force", "out.txt")
    Path("answer").unlink()
    failed = dlsim(*SINCE, "--force", "out.txt")
    Path("tools/sacct").unlink()
    missing = dlsim(*SINCE, "--force", "out.txt")

    assert (empty.exit_code, failed.exit_code, missing.exit_code) == (1, 1, 1)
    assert "no run of that time" in empty.stderr
    assert "sacct" in failed.stderr
    assert "sacct is not installed" in missing.stderr
    assert Path("out.txt").read_text("utf-8") == "mine"
    assert not list(Path().glob(".out*"))
