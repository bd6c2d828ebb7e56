"""Lucid on a real Slurm: its order, and its conditions on two jobs that share a GPU under MPS.

Each of six nodes has one GPU of four shards. Under another order, or without one of the conditions,
one of these tests fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from schedd import Schedd, schedd_in
from shared_gpus import (
    HALF,
    PLACEMENT,
    comment_of,
    device,
    fall_short,
    started,
    submit,
    waits_for,
    write_profiles,
)

from slurm_dl.sandbox import Sandbox, SandboxNodes, SandboxSpec

pytestmark = [pytest.mark.slurm, pytest.mark.full("pairs of jobs that share GPUs take minutes")]

NODES = 6
WHOLE = "--gres=gpu:1"
SHORT, LONG = ("--time=30",), ("--time=90",)  # Minutes; the ratio of both is above 2
SLOTS = 1


def model(busy: float, mem_mb: int = 10_000, **beside: float) -> dict[str, Any]:
    """A model, and what was measured of it beside others under MPS."""
    measured = [
        {"other": other, "rate": rate, "mode": "mps", "origin": "measured"}
        for other, rate in beside.items()
    ]
    return {"load": {"gpu_util": busy, "memory_util": 0.1, "gpu_mem_mb": mem_mb}} | (
        {"beside": measured} if measured else {}
    )


PROFILES = {
    "light": model(0.3),
    "big": model(0.3, 35_000),
    "medium": model(0.55, sly=0.5, tame=0.97),
    "heavy": model(0.9),
    # The tree says 0 and 2; beside them a medium one was measured.
    "sly": model(0.3),
    "tame": model(0.9),
}


@pytest.fixture
def place(
    make_sandbox: Callable[[SandboxSpec], Sandbox], short_directory: Path
) -> Iterator[Schedd]:
    """Six nodes, and a daemon with policy lucid."""
    box = make_sandbox(
        SandboxSpec(
            groups=(SandboxNodes(nodes=NODES, gpus=1, shards=4, cpus=16),), nodes_per_leaf=0
        )
    )
    with schedd_in(box, short_directory) as daemon:
        write_profiles(daemon, PROFILES)
        daemon.configure(
            policy={"order": "lucid", "parameters": {}},
            placement={**PLACEMENT, "sharing_mode": "mps", "profile_slots": SLOTS},
            paths={"profile_dir": str(daemon.home / "profiles")},
            preemption={"enabled": False},
        )
        daemon.start()
        yield daemon


def test_each_condition_keeps_two_apart_and_the_first_host_is_taken(place: Schedd) -> None:
    """Memory, labels by the tree, a label that was measured, and the length; never three.

    Those who say that they use next to nothing gain nothing by it.
    """
    host = submit(place, HALF, "medium", options=SHORT)
    (there,) = started(place, host)
    fall_short(place, NODES, WHOLE)
    little = {"use": [1, 1]}

    apart = [
        submit(place, HALF, "big", options=SHORT, **little),
        submit(place, HALF, "heavy", options=SHORT, **little),
        submit(place, HALF, "sly", options=SHORT),
        submit(place, HALF, "light", options=LONG),
    ]
    at = started(place, *apart)

    assert len({there, *at}) == 5, "big, heavy, sly and the long one are alone"
    tame = submit(place, HALF, "tame", options=SHORT)
    assert started(place, tame) == [there], "by what was measured its label is 0"
    third = submit(place, HALF, "light", options=SHORT)
    (other,) = started(place, third)
    assert other != there
    assert [*at, there, there, other].count(other) <= 2


def test_a_job_on_several_gpus_is_no_host_of_one_on_a_single_gpu(place: Schedd) -> None:
    """Halves on three nodes, and five nodes of six with another host's neighbour."""
    wide = submit(place, HALF, "light", options=("--nodes=3", *SHORT))
    place.until_state(wide, "RUNNING")
    fall_short(place, NODES, WHOLE)
    (nodes,) = place.job(wide, "NodeList")

    one = submit(place, HALF, "light", options=SHORT)
    ((node, _),) = started(place, one)

    assert node not in place.box.run(["scontrol", "show", "hostnames", nodes]).stdout.split()
    other = submit(place, HALF, "light", options=SHORT)
    ((beside, _),) = started(place, other)
    assert beside == node


def test_an_unknown_model_starts_alone_and_hosts_once_it_has_measured_itself(
    place: Schedd,
) -> None:
    """One such job at a time; what one says before it runs does not count."""
    first = submit(place, HALF, "novel", options=SHORT)
    (there,) = started(place, first)
    fall_short(place, NODES, WHOLE)

    light = submit(place, HALF, "light", options=SHORT)
    second = submit(place, HALF, "novel", options=SHORT, use=[1, 1])
    (alone,) = started(place, light)
    assert alone != there
    place.until("the slot", lambda: waits_for(place, second, "not measured yet"))

    told = comment_of("novel", use=[58, 10_000])
    place.box.run(["scontrol", "update", f"JobId={first}", f"Comment={told}"])
    (apart,) = started(place, second)
    assert apart not in (there, alone)
    guest = submit(place, HALF, "light", options=SHORT)
    assert started(place, guest) == [there], (
        "the host that started first, not the light one with the best sum"
    )


def test_nobody_shares_while_there_are_gpus_for_all(place: Schedd) -> None:
    """Two that get on; once a job waits for more than is free the third joins the first."""
    first = submit(place, HALF, "light", options=SHORT)
    (one,) = started(place, first)
    second = submit(place, HALF, "light", options=SHORT)
    (other,) = started(place, second)

    assert other != one
    fall_short(place, NODES, WHOLE)
    third = submit(place, HALF, "light", options=SHORT)
    assert started(place, third) == [one]


def test_the_fewest_gpu_seconds_are_first_and_half_a_gpu_is_shared_meanwhile(
    place: Schedd,
) -> None:
    """The order of arrival, of service had, and any fixed one start the other job."""
    full = submit(place, WHOLE, options=("--nodes=4",))
    ends = submit(place, WHOLE)
    host = submit(place, HALF, "medium", options=SHORT)
    (there,) = started(place, host)
    for job in (full, ends):
        place.until_state(job, "RUNNING")

    large = submit(place, WHOLE, options=LONG)
    small = submit(place, WHOLE, options=SHORT)
    heavy = submit(place, HALF, "heavy", options=("--time=5",))
    light = submit(place, HALF, "light", options=("--time=10",))

    assert started(place, light) == [there], "not the shorter one, whose label is 2"
    assert device(place, heavy) is None
    place.until_state(large, "PENDING")
    place.until("an order", lambda: waits_for(place, small, ""))
    place.box.run(["scancel", ends, light])
    place.until_state(small, "RUNNING")
    assert place.state(large) == "PENDING"
