"""The tutorial, typed: each of its blocks in order, on a real Slurm, and it ends as it says."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import shown
from docs.typed import Shell, environment
from patience import eventually

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.full("types the whole tutorial"),
    pytest.mark.timeout(900),
]

PAGE = shown.ROOT / "docs" / "start" / "tutorial.md"
THERE = "/var/tmp/try"  # noqa: S108 - as the page says


Type = Callable[[str], str]


@pytest.fixture
def type_(short_directory: Path) -> Iterator[Type]:
    """A shell whose sandbox lies elsewhere than the page's, where other users may go."""
    home = short_directory / "try"
    shell = Shell(cwd=shown.ROOT, printed=short_directory / "typed.out", env=environment({}))

    def typed(block: str) -> str:
        return shell.type(block.replace(THERE, str(home)))

    try:
        yield typed
        typed(f"[ ! -e {THERE} ] || dlctl sandbox down {THERE} --remove")
    finally:
        shell.close()


def test_the_tutorial(type_: Type) -> None:
    """The short job passes the long one, which resumes and trains each step once."""
    demo, source, up, start, status, long, short, queue, why, log, tidy = shown.blocks(PAGE)
    assert demo == "make demo\n"
    assert source == "source .venv/bin/activate\n"

    assert "n1" in type_(up)
    assert "slurm_dl.yaml: ok" in type_(start)
    eventually(lambda: "acting" in type_(f"{status.strip()} || true"), 60, 1, what="dlschedd")
    type_(long)
    eventually(lambda: re.search(r"long .* R +4 +1 ", type_(queue)), 90, 1, what="it to sink")
    type_(short)
    # The short one runs, the long one has been put back: what the page shows.
    eventually(
        lambda: re.search(r"(?s)short .* R .*long .* PD +4 +1 ", type_(queue)),
        60,
        0.5,
        what="the short job to run",
    )
    # The look that sees it wait is not yet the one that has counted.
    eventually(lambda: "preempted 1 time." in type_(why), 30, 1, what="the count")
    said = type_(why)
    assert "it acknowledged its checkpoint within" in said
    eventually(lambda: "done: 600 steps, run 1" in type_(log), 120, 1, what="the long job")
    steps = type_("wc -l < slurm_dl_runs/1/loss.jsonl")
    assert int(steps) == 600
    assert "directory removed" in type_(tidy)
