"""Jobs change size on a live Slurm: by checkpoint and requeue, and before their first start."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from conftest import MakeSandbox
from resized import SETTINGS, TWO, held, resizing_schedd
from resized import until_holds as until
from schedd import Schedd, schedd_in

from slurm_dl.policies import registry
from slurm_dl.sandbox.spec import SandboxNodes, SandboxSpec

pytestmark = pytest.mark.slurm

IGNORES = """#!/bin/sh
case "$*" in *NumNodes=*) exit 0 ;; esac
exec {scontrol} "$@"
"""


@pytest.fixture
def place(make_sandbox: MakeSandbox, short_directory: Path) -> Iterator[Schedd]:
    with resizing_schedd(make_sandbox(TWO), short_directory) as daemon:
        yield daemon


def test_a_job_grows_and_shrinks_as_others_come_and_go(place: Schedd) -> None:
    """1, 2, 4, 2 and 1 GPUs under one job id, by what it holds; its service is that of its runs."""
    flags = [place.home / f"end{i}" for i in range(4)]
    two, one = (place.toy(g, 1, "--until", str(f)) for g, f in zip((2, 1), flags, strict=False))
    for other in (two, one):
        place.until_state(other, "RUNNING", within_s=60)
    options = ["--sizes", "1,2,2x2", "--time", "60"]
    job = place.toy(1, 4000, options=options)
    runs = [until(place, job, 1, 1)]
    flags[1].touch()
    runs += [until(place, job, 1, 2)]
    flags[0].touch()
    runs += [until(place, job, 2, 4)]

    rigid = place.toy(2, 1, "--until", str(flags[2]), options=["--no-preempt"])
    runs += [until(place, job, 1, 2)]
    until(place, rigid, 1, 2)
    place.toy(1, 1, "--until", str(flags[3]), options=["--no-preempt"])
    runs += [until(place, job, 1, 1)]

    holds = "It holds 1 GPU (1x1), and should."
    place.until("the look", lambda: holds in place.ask("dlqueue", "why", job).stdout)
    why = place.ask("dlqueue", "why", job).stdout
    ends = [e["epoch_s"] for e in place.audit(action="requeue", job=int(job))] + [time.time()]
    place.box.run(["scancel", job])
    place.until("its run is booked", lambda: not place.box.run(["squeue", "-h", "-j", job]).stdout)
    shown = place.box.run(["scontrol", "-o", "show", "job", job]).stdout
    assert " Restarts=4 " in shown
    assert "It can run in 1x1, 1x2 or 2x2 (nodes x GPUs); 1x1 was asked for." in why
    assert "to go on with 4 GPUs (2x2) in place of 2" in why
    assert f"gave 2 of its 4 GPUs back to job {rigid}, to go on with 2 GPUs (1x2)" in why
    opened = [e for e in place.audit(action="open_handover") if f"job {job} " in e["reason"]]
    assert len(opened) == 4, why
    assert len(place.audit(action="reshape")) == 4
    had_gpu_s = sum(g * (end_s - at_s) for (at_s, g), end_s in zip(runs, ends, strict=True))
    most_off = 2.0 * sum(gpus for _, gpus in runs)
    place.until("its service", lambda: abs(place.attained_gpu_s(job) - had_gpu_s) <= most_off, 20)


def test_it_starts_in_the_size_that_is_free(place: Schedd) -> None:
    """On an idle cluster a job that asked for one GPU starts on four, and was never requeued."""
    job = place.toy(1, 400, options=["--sizes", "1,2,2x2", "--time", "60"])
    until(place, job, 2, 4)
    assert " Restarts=0 " in place.box.run(["scontrol", "-o", "show", "job", job]).stdout
    assert not place.audit(action="open_handover")


def test_an_update_that_slurm_ignores_is_not_tried_again(place: Schedd, tmp_path: Path) -> None:
    """Scontrol says that all is well and changes nothing: the job runs on in the size it got."""
    scontrol = Path(shutil.which("scontrol") or "/usr/bin/scontrol")
    for tool in scontrol.parent.iterdir():
        if tool.name != "scontrol" and tool.name.startswith("s"):
            (tmp_path / tool.name).symlink_to(tool)
    (tmp_path / "scontrol").write_text(IGNORES.format(scontrol=scontrol), encoding="ascii")
    (tmp_path / "scontrol").chmod(0o755)
    place.stop()
    blocker = place.toy(2, 1, "--until", str(place.home / "end"))
    job = place.toy(1, 4000, options=["--sizes", "1,1x2", "--time", "60"])
    for one in (blocker, job):
        place.until_state(one, "RUNNING", within_s=60)
    place.configure(**SETTINGS, cluster={"bin_dir": str(tmp_path)})
    place.start()

    place.until("it is requeued", lambda: place.audit(action="close_handover"), 90)
    assert held(place, job) == (1, 1)
    looked = place.cycles()
    place.until("some more looks", lambda: place.cycles() > looked + 10, 60)
    (closed,) = place.audit(action="close_handover")
    assert "did not start in the size" in closed["reason"]
    assert held(place, job) == (1, 1)
    assert len(place.audit(action="requeue")) == 1
    assert "Slurm did not give it" in place.ask("dlqueue", "why", job).stdout


# --- policies that choose sizes ---------------------------------------------------------------

ONE = SandboxSpec(groups=(SandboxNodes(nodes=1, gpus=4, gpu_type="a100"),), nodes_per_leaf=0)
LAST_FIRST: Final = f"{Path(__file__).parents[1] / 'last_first.py'}:LastFirst"
ASKED: Final = (1, 1)
CHOSEN: Final = {"afs": (2, 2), "optimus": (1, 3), "sidecar": (1, 3)}
"""GPUs of a job of an hour and one of ten, of four. AFS's rule leaves those out that a job has; by
Optimus' gain the long job saves more with each; SideCar takes the same steps up."""


def started(place: Schedd, policy: str) -> tuple[int, int]:
    """GPUs of both jobs, which are there before the daemon is."""
    place.configure(
        policy={"order": policy, "parameters": {}},
        resizing={"expand": False},
        placement={"scheme": "best_fit", "steer": True, "settle_s": 25},
    )
    jobs = [
        place.toy(1, 4000, options=["--sizes", "1,2,3,4", "--time", str(minutes)])
        for minutes in (60, 600)
    ]
    place.start()
    for job in jobs:
        place.until_state(job, "RUNNING", within_s=90)
    place.kill()
    first, second = (held(place, job)[1] for job in jobs)
    place.box.run(["scancel", *jobs])
    place.until("an empty queue", lambda: not place.box.run(["squeue", "-h"]).stdout, 60)
    return first, second


@pytest.mark.full("six daemons, one after the other")
def test_jobs_start_in_the_sizes_of_the_policy_and_of_no_mutant(
    make_sandbox: MakeSandbox, short_directory: Path
) -> None:
    """One hour and ten; FIFO, LAS and the last one first leave them as they ask."""
    sizing = {n for n, p in registry.POLICIES.items() if "sizes" in p.about.needs}
    # Those that choose types as well are in test_sizes_by_type.py, elasticflow with its promises.
    assert sizing == {*CHOSEN, "sia", "pollux", "elasticflow"}
    with schedd_in(make_sandbox(ONE), short_directory) as place:
        got = {policy: started(place, policy) for policy in (*CHOSEN, "fifo", "las", LAST_FIRST)}

    assert got == {**CHOSEN, **dict.fromkeys(("fifo", "las", LAST_FIRST), ASKED)}
