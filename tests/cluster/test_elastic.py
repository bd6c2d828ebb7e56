"""Jobs change size on a live Slurm: by checkpoint and requeue, and before their first start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import MakeSandbox
from resized import TWO, resizing_schedd
from resized import until_holds as until
from schedd import Schedd

pytestmark = pytest.mark.slurm


@pytest.fixture
def place(make_sandbox: MakeSandbox, short_directory: Path) -> Iterator[Schedd]:
    with resizing_schedd(make_sandbox(TWO), short_directory) as daemon:
        yield daemon


def test_a_job_grows_and_shrinks_as_others_come_and_go(place: Schedd) -> None:
    """1, 2, 4, 2 and 1 GPUs under one job id; no step is lost, and its script sees what it has."""
    flags = [place.home / f"end{i}" for i in range(4)]
    two, one = (place.toy(g, 1, "--until", str(f)) for g, f in zip((2, 1), flags, strict=False))
    for other in (two, one):
        place.until_state(other, "RUNNING", within_s=60)
    options = ["--sizes", "1,2,2x2", "--time", "60"]
    job = place.toy(1, 4000, options=options)
    until(place, job, 1, 1)
    flags[1].touch()
    until(place, job, 1, 2)
    flags[0].touch()
    until(place, job, 2, 4)

    rigid = place.toy(2, 1, "--until", str(flags[2]), options=["--no-preempt"])
    until(place, job, 1, 2)
    until(place, rigid, 1, 2)
    place.toy(1, 1, "--until", str(flags[3]), options=["--no-preempt"])
    until(place, job, 1, 1)

    why = place.ask("dlqueue", "why", job).stdout
    place.box.run(["scancel", job])
    place.until("its run is booked", lambda: not place.box.run(["squeue", "-h", "-j", job]).stdout)
    shown = place.box.run(["scontrol", "-o", "show", "job", job]).stdout
    assert " Restarts=4 " in shown
    opened = [e for e in place.audit(action="open_handover") if f"job {job} " in e["reason"]]
    assert len(opened) == 4, why
    assert len(place.audit(action="reshape")) == 4
    runs = place.ask("dlctl", "history", job, check=False).stdout
    assert place.attained_gpu_s(job) > 0, runs


def test_it_starts_in_the_size_that_is_free(place: Schedd) -> None:
    """On an idle cluster a job that asked for one GPU starts on four, and was never requeued."""
    job = place.toy(1, 400, options=["--sizes", "1,2,2x2", "--time", "60"])
    until(place, job, 2, 4)
    assert " Restarts=0 " in place.box.run(["scontrol", "-o", "show", "job", job]).stdout
    assert not place.audit(action="open_handover")
