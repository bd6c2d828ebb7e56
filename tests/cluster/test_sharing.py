"""Jobs that share GPUs on a real Slurm: who comes beside whom, and who stays alone.

Each node has two GPUs of four shards. Which device a job has is what Slurm says of the job itself.
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
    device,
    fall_short,
    started,
    submit,
    waits_for,
    write_profiles,
)

from slurm_dl.sandbox import Sandbox, SandboxNodes, SandboxSpec

pytestmark = [pytest.mark.slurm, pytest.mark.full("pairs of jobs that share GPUs take minutes")]

WHOLE = "--gres=gpu:1"
BOTH = "--gres=gpu:2"
ALONE = "nobody shares"

PROFILES: dict[str, dict[str, Any]] = {
    "tiny": {
        "label": 0,
        "load": {"gpu_mem_mb": 10_000},
        "speeds": [{"shape": "1x1", "steps_per_s": 10}],
    },
    "jumbo": {"label": 2, "load": {"gpu_mem_mb": 10_000}},
    "huge": {"label": 0, "load": {"gpu_mem_mb": 35_000}},
    "lean": {"label": 0, "load": {"gpu_mem_mb": 35_000, "gpu_mem_kept_mb": 4_000}},
    "unlabelled": {"load": {"gpu_mem_mb": 10_000}},
}


@pytest.fixture
def place(
    make_sandbox: Callable[[SandboxSpec], Sandbox], short_directory: Path
) -> Iterator[Schedd]:
    """Four nodes, and a daemon that packs."""
    box = make_sandbox(
        SandboxSpec(groups=(SandboxNodes(nodes=4, gpus=2, shards=8, cpus=32),), nodes_per_leaf=0)
    )
    with schedd_in(box, short_directory) as daemon:
        write_profiles(daemon, PROFILES)
        start(daemon)
        yield daemon


def start(daemon: Schedd, **preemption: object) -> None:
    """Start a daemon, or another one in its place, that packs."""
    daemon.stop()
    daemon.configure(
        policy={"order": "fewest_gpus", "parameters": {}},
        placement=dict(PLACEMENT),
        paths={"profile_dir": str(daemon.home / "profiles")},
        preemption={"enabled": False, **preemption},
    )
    daemon.start()


def test_two_packed_jobs_share_a_gpu_and_a_third_never_joins(place: Schedd) -> None:
    """Of five that all get on with each other two and two come together."""
    first = submit(place, HALF, "tiny")
    (one,) = started(place, first)
    fall_short(place, 4, BOTH)
    second = submit(place, HALF, "tiny")

    assert started(place, second) == [one]

    more = [submit(place, HALF, "tiny") for _ in range(3)]
    at = started(place, *more)
    assert one not in at
    assert sorted(at.count(device) for device in set(at)) == [1, 2]
    quarter = submit(place, "--gres=shard:1", "tiny")
    (alone,) = started(place, quarter)
    assert alone not in [one, *at]


def test_memory_sums_are_respected(place: Schedd) -> None:
    """35 and 10 GB are kept apart on a GPU of 40, although Slurm has room; kept memory adds up."""
    huge = submit(place, HALF, "huge")
    (one,) = started(place, huge)
    fall_short(place, 4, BOTH)
    tiny, lean = submit(place, HALF, "tiny"), submit(place, HALF, "lean")
    at = started(place, tiny, lean)

    assert len({one, *at}) == 3
    another = submit(place, HALF, "huge")
    (there,) = started(place, another)
    assert there not in [one, *at]


def test_jobs_that_do_not_get_on_stay_alone(place: Schedd) -> None:
    """By label, without a label, and without a model: on a device each, on a node each at first."""
    models = ("jumbo", "jumbo", "unlabelled", "huge")
    jobs = [submit(place, HALF, model) for model in models]
    at = started(place, *jobs)

    assert len({node for node, _ in at}) == 4
    nobody = submit(place, HALF)
    place.until("the daemon to say where it waits", lambda: waits_for(place, nobody, ALONE))
    place.box.run(["scancel", jobs[0]])
    (there,) = started(place, nobody)
    assert there == at[0]
    tiny = submit(place, HALF, "tiny")
    (beside,) = started(place, tiny)
    assert beside == at[1], "the other jumbo, which 0 + 2 allows"


def test_unpacked_jobs_are_untouched(place: Schedd) -> None:
    """Whole-GPU jobs start at once where they fit and run on, whatever comes beside them."""
    before = [submit(place, WHOLE) for _ in range(2)]
    whole = started(place, *before)
    fall_short(place, 4, BOTH)
    shares = [submit(place, HALF, "tiny") for _ in range(2)]
    one, other = started(place, *shares)
    after = submit(place, BOTH)
    (both,) = started(place, after)

    assert one == other
    assert one not in whole
    assert both[0] not in {node for node, _ in [*whole, one]}
    assert [device(place, job) for job in before] == whole
    assert [place.job(job, "Restarts") for job in [*before, after]] == [["0"]] * 3
    assert {place.state(job) for job in [*before, *shares, after]} == {"RUNNING"}


def test_a_pair_that_loses_is_split_and_not_formed_again(place: Schedd) -> None:
    """Both say that they reach a tenth of their speed alone: the later one goes elsewhere."""
    start(place, enabled=True, min_quantum_s=5, cooldown_s=1)
    says = {"sig": "USR1", "grace_s": 1, "rate": 1.0}
    first = submit(place, HALF, "tiny", **says)
    (one,) = started(place, first)
    fall_short(place, 4, BOTH)
    second = submit(place, HALF, "tiny", **says)
    place.until("the pair", lambda: device(place, second) == one)
    place.until("the split", lambda: place.job(second, "Restarts") == ["1"])
    (there,) = started(place, second)

    assert there != one
    assert place.job(first, "Restarts") == ["0"]
    assert device(place, first) == one
    start(place)
    third = submit(place, HALF, "tiny")
    (alone,) = started(place, third)
    assert alone not in (one, there), "another daemon knows it from the ledger"
