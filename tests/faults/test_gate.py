"""What a run of tests repeats, and that an interrupted one leaves no daemon and no directory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from patience import PATIENCE, eventually
from selection import ROOT

pytestmark = pytest.mark.slurm

ENDLESS = "tests/faults/endless.py"


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A run whose only test has a Slurm and a job and does not end; its directory."""
    said = tmp_path / "said"
    with said.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "gate.py"), "some", ENDLESS],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:

        def directory() -> Path | None:
            assert process.poll() is None, said.read_text()
            told = said.read_text().partition("directory of the run: ")[2].split()
            run = Path(told[0]) if told else None
            return run if run and list(run.glob("*/c/begun")) else None

        yield process, eventually(directory, 90, what="the endless test to begin")
    finally:
        process.terminate()
        process.wait(120 * PATIENCE)


def naming(word: str) -> dict[int, str]:
    """Command lines of the processes that have *word* in it or in their environment."""
    found = {}
    for directory in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            line = (directory / "cmdline").read_bytes()
            if word.encode() in line + (directory / "environ").read_bytes():
                found[int(directory.name)] = line.decode().replace("\0", " ")
    return found


@pytest.mark.parametrize("target", ["gate", "lane"])
def test_sigterm_leaves_nothing(gate: tuple[subprocess.Popen[bytes], Path], target: str) -> None:
    """Neither when the whole run is ended nor when one lane of it is."""
    process, run = gate
    daemons = " ".join(naming(str(run)).values())
    assert "slurmctld" in daemons
    assert "slurmd" in daemons
    if target == "gate":
        process.send_signal(signal.SIGTERM)
    else:
        [lane] = [p for p, line in naming(str(run)).items() if " -m pytest " in line[:80]]
        os.kill(lane, signal.SIGTERM)
    status = process.wait(120 * PATIENCE)

    assert status != 0
    assert not naming(str(run))
    assert not run.exists()


@pytest.mark.parametrize(
    ("test", "status", "said"),
    [
        (
            "test_on_daemons",
            0,
            "PASSED ONLY WHEN REPEATED:\n  tests/faults/once.py::test_on_daemons",
        ),
        ("test_that_computes", 1, "not repeated: tests/faults/once.py::test_that_computes"),
        ("test_that_always_fails", 1, "gate: FAILED"),
        ("test_that_is_not_there", 1, "not repeated: "),
    ],
)
def test_only_tests_on_daemons_are_repeated(
    tmp_path: Path, test: str, status: int, said: str
) -> None:
    """Once; the run tells it."""
    done = subprocess.run(
        [sys.executable, "tests/gate.py", "some", f"tests/faults/once.py::{test}"],
        cwd=ROOT,
        env={**os.environ, "SLURM_DL_TEST_ONCE": str(tmp_path / "begun")},
        capture_output=True,
        text=True,
        timeout=120 * PATIENCE,
        check=False,
    )

    assert done.returncode == status, done.stdout
    assert said in done.stdout
