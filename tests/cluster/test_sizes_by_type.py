"""Elastic jobs on two GPU types of a live Slurm: the one that scales gets the fast pair."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from conftest import MakeSandbox
from schedd import Schedd, schedd_in

from slurm_dl.sandbox.spec import SandboxNodes, SandboxSpec

pytestmark = pytest.mark.slurm

MIXED: Final = SandboxSpec(
    groups=tuple(SandboxNodes(nodes=1, gpus=2, gpu_type=kind) for kind in ("k80", "v100")),
    nodes_per_leaf=0,
)
STEPS_PER_S: Final = {
    "scales": {"v100": (20.0, 19.0), "k80": (1.0, 0.95)},
    "flat": {"v100": (1.1, 0.58), "k80": (1.0, 0.525)},
}
"""On one and on two GPUs, each GPU with one sample in a step: 38 against 1, 1.16 against 1.

The first restart is taken to cost two minutes, so it is made for a large gain or a long run."""

SETTINGS: Final = {
    "resizing": {"steadiness": 0.1, "cooldown_s": 3, "expand": False},
    "placement": {"scheme": "best_fit", "steer": True, "settle_s": 6},
    "preemption": {"checkpoint_cost_s": 1},
}
LAST_FIRST: Final = f"{Path(__file__).parents[1] / 'last_first.py'}:LastFirst"

_HOLDS: Final = re.compile(r" Nodes=\S+ CPU_IDs=\S+ Mem=\S+ GRES=gpu:(\w+):(\d+)")

Holds = tuple[str, int]
"""GPU type, and GPUs of it."""


@pytest.fixture
def place(make_sandbox: MakeSandbox, short_directory: Path) -> Iterator[Schedd]:
    """A place for daemons that know both models."""
    with schedd_in(make_sandbox(MIXED), short_directory) as daemon:
        profiles = daemon.home / "profiles"
        profiles.mkdir()
        profiles.chmod(0o755)
        for model, types in STEPS_PER_S.items():
            speeds = "".join(
                f"- {{shape: 1x{n}, steps_per_s: {v}, gpu_type: {kind}, batch: 1}}\n"
                for kind, both in types.items()
                for n, v in enumerate(both, start=1)
            )
            path = profiles / f"{model}.yaml"
            path.write_text(f"name: {model}\nspeeds:\n{speeds}", encoding="ascii")
            path.chmod(0o644)
        yield daemon


def configured(place: Schedd, policy: str, **parameters: float) -> None:
    profiles = {"profile_dir": str(place.home / "profiles")}
    place.configure(policy={"order": policy, "parameters": parameters}, paths=profiles, **SETTINGS)


def training(place: Schedd, model: str) -> str:
    options = ["--sizes", "1,2", "--model", model, "--time", "60"]
    return place.toy(1, 4000, options=options)


def held(place: Schedd, job: str) -> Holds:
    """GPUs that a running job holds, as its details tell."""
    text = place.box.run(["scontrol", "-o", "-d", "show", "job", job]).stdout
    found = _HOLDS.search(text) if " JobState=RUNNING" in text else None
    return (found[1], int(found[2])) if found else ("", 0)


def begun(place: Schedd, policy: str, **parameters: float) -> tuple[str, str]:
    """Jobs ``flat`` and ``scales`` under *policy*; the fast GPUs are back once the latter runs."""
    configured(place, policy, **parameters)
    node = ("scontrol", "update", "NodeName=n2")
    place.box.run([*node, "State=DRAIN", "Reason=test"])
    try:
        place.start()
        flat, scales = training(place, "flat"), training(place, "scales")
        place.until("a slow GPU", lambda: held(place, scales)[0] == "k80", 90)
    finally:
        place.box.run([*node, "State=RESUME"])
    return flat, scales


def looks_on(place: Schedd, looks: int) -> None:
    """Wait for some more looks of the daemon."""
    looked = place.cycles()
    place.until("some more looks", lambda: place.cycles() > looked + looks, 90)


@pytest.mark.parametrize("policy", ["sia", "pollux"])
@pytest.mark.full("two minutes")
def test_the_job_that_scales_moves_to_the_fast_pair(place: Schedd, policy: str) -> None:
    """It runs on slow GPUs while the fast ones are drained; the other is left with slow ones."""
    flat, scales = begun(place, policy, quantum_s=5.0)

    place.until("the fast pair", lambda: held(place, scales) == ("v100", 2), 240)
    place.until("a slow one", lambda: held(place, flat)[0] == "k80", 90)
    looks_on(place, 5)
    assert held(place, scales) == ("v100", 2)
    assert held(place, flat)[0] == "k80"


@pytest.mark.full("three daemons, one after the other")
def test_it_stays_under_every_mutant(place: Schedd) -> None:
    """Policies that choose no types leave it with the slow GPUs, while the fast pair is free."""
    for policy in ("fifo", "las", LAST_FIRST):
        _, scales = begun(place, policy)
        looks_on(place, 30)
        assert held(place, scales)[0] == "k80", policy
        place.kill()
        place.box.run(["scancel", "--user=root"])
        place.until("an empty queue", lambda: not place.box.run(["squeue", "-h"]).stdout, 60)


@pytest.mark.full("a minute")
def test_sia_starts_it_on_the_fast_pair(place: Schedd) -> None:
    """Both jobs are there before the daemon is; the one that scales is second."""
    configured(place, "sia")
    flat, scales = (training(place, model) for model in ("flat", "scales"))
    place.start()

    for job in (flat, scales):
        place.until_state(job, "RUNNING", within_s=90)
    assert held(place, scales) == ("v100", 2)
    assert held(place, flat)[0] == "k80"
