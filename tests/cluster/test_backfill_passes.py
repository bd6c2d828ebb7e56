"""SiteFactors that are written while backfill passes follow each other closely on a real Slurm."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from patience import PATIENCE
from schedd import Schedd, schedd_in

from slurm_dl.sandbox import Sandbox, SandboxNodes, SandboxSpec

pytestmark = [pytest.mark.slurm, pytest.mark.full("three quarters of a minute")]

LONG_PASSES = (
    # Backfill sleeps 80 ms after each job that it has tested.
    "bf_continue,bf_interval=1,bf_yield_interval=1,bf_yield_sleep=80000,bf_max_time=600,"
    "bf_max_job_test=100,sched_interval=600,sched_min_interval=600000000"
)
WAITING = 60
BAND = 10_000_000
POLL_S = 2.0
LOOK_S = 0.5
WATCHED_S = 40.0
ENOUGH = 5
"""Spells in which a write was undone."""


class Look(NamedTuple):
    """What Slurm said at one instant.

    Attributes:
        at_s: Monotonic seconds.
        in_pass: A backfill pass was under way.
        undone: Jobs whose priority was not what their SiteFactor makes it.
    """

    at_s: float
    in_pass: bool
    undone: frozenset[str]


@pytest.fixture
def place(make_sandbox: Callable[..., Sandbox], short_directory: Path) -> Iterator[Schedd]:
    """A cluster of one GPU, with long passes of backfill, and where a daemon can live."""
    spec = SandboxSpec(
        groups=(SandboxNodes(nodes=1, gpus=1),), nodes_per_leaf=0, scheduler_parameters=LONG_PASSES
    )
    with schedd_in(make_sandbox(spec), short_directory) as daemon:
        daemon.configure(
            daemon={"poll_s": POLL_S, "fast_poll_s": 1},
            # The shortest time limit first: a new job comes before the others.
            policy={"order": "srtf", "parameters": {}},
        )
        yield daemon


def submit(place: Schedd, minutes: int) -> str:
    """A job with one GPU."""
    argv = ["sbatch", "--parsable", "--output=/dev/null", "--gres=gpu:1", f"--time={minutes}"]
    return place.box.run([*argv, "--wrap=exec sleep 3600"]).stdout.strip()


def look(place: Schedd) -> Look:
    """One look at all waiting jobs.

    squeue shows the priority that counts, sprio what the SiteFactor would make of it.
    """
    in_pass = "in the middle of backfilling" in place.box.run(["sdiag"]).stdout
    told = place.box.run(["squeue", "-ht", "PD", "-o", "%A %Q"]).stdout.splitlines()
    counts = {job: int(value) for job, value in (line.split() for line in told)}
    told = place.box.run(["sprio", "-h", "-o", "%i %S"]).stdout.splitlines()
    written = {job: int(value) for job, value in (line.split()[:2] for line in told)}
    undone = {j for j, p in counts.items() if j in written and abs(p - written[j]) > BAND / 2}
    return Look(time.monotonic(), in_pass, frozenset(undone))


def spells(looks: list[Look]) -> Iterator[tuple[float, float]]:
    """Of each spell in which a job's write was undone how long it was, and how much after a pass.

    Seconds; the second from the end of the first pass that ended in it, 0 if none did.
    """
    for job in sorted(frozenset[str]().union(*(one.undone for one in looks))):
        for undone, run in itertools.groupby(looks, key=lambda one: job in one.undone):
            spell = list(run)
            if undone:
                ends = [b.at_s for a, b in itertools.pairwise(spell) if a.in_pass and not b.in_pass]
                last_s = spell[-1].at_s
                yield last_s - spell[0].at_s, last_s - min([*ends, last_s])


def test_no_write_stays_undone(place: Schedd) -> None:
    """Whatever a pass undoes counts within two polls of its end; many writes fall into passes."""
    for number in range(WAITING):
        submit(place, 1000 + number)
    place.start()
    began_s, looks, minutes = time.monotonic(), list[Look](), itertools.count(999, -1)
    submit_s = began_s
    while (now_s := time.monotonic()) - began_s < WATCHED_S or (
        now_s - began_s < WATCHED_S * PATIENCE and len(list(spells(looks))) < ENOUGH
    ):
        looks.append(look(place))
        if now_s >= submit_s:
            submit_s = now_s + POLL_S
            submit(place, next(minutes))
        time.sleep(LOOK_S)
    place.stop()

    busy = sum(one.in_pass for one in looks) / len(looks)
    found = list(spells(looks))
    told = f"passes {busy:.0%} of the time, {len(found)} spells: {sorted(found)[-5:]}"
    assert busy > 0.5, told
    assert len(found) >= ENOUGH, told
    assert max(after_s for _, after_s in found) <= 2 * POLL_S + 2 * LOOK_S * PATIENCE, told
