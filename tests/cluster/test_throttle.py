"""On a real Slurm Grouper bounds the tasks of a late array; FIFO, LAS and a static order do not.

One node of four GPUs. A blocker holds two of them. The small stage has two tasks of three GPUs
each, so it cannot start; the late array has tasks of one GPU, of which two would fit.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from schedd import Schedd, schedd_in

from slurm_dl.sandbox import Sandbox, SandboxNodes, SandboxSpec

pytestmark = pytest.mark.slurm

SETTLE_S: Final = 4
OWN: Final = 3  # The owner's throttle of the late array
ORDERS: Final = {"static": f"{Path(__file__).parents[1] / 'last_first.py'}:LastFirst"}
SLOW: Final = pytest.mark.full("seconds each; they show that the case can fail")
MUTANTS: Final = tuple(
    pytest.param(name, marks=SLOW) for name in ("fifo", "discrete_las", "static")
)


@pytest.fixture(scope="module")
def place(module_directory: Path) -> Iterator[Schedd]:
    """The node, and a daemon for it."""
    box = Sandbox.up(module_directory / "box", SandboxSpec(groups=(SandboxNodes(nodes=1, gpus=4),)))
    try:
        with schedd_in(box, module_directory) as schedd:
            yield schedd
    finally:
        box.down(remove=True)


def put_in_force(place: Schedd, policy: str) -> None:
    """Go on with this policy, without any job."""
    place.box.run(["scancel", "--quiet", "--user=root"], check=False)
    place.until("an empty queue", lambda: not place.box.run(["squeue", "-ho", "%A"]).stdout)
    parameters: dict[str, Any] = {}
    if policy == "discrete_las":
        parameters = {"thresholds_gpu_s": [60, 5000]}
    place.configure(
        daemon={"poll_s": 0.5, "fast_poll_s": 0.25},
        policy={"order": ORDERS.get(policy, policy), "parameters": parameters},
        preemption={"enabled": False},
        ranking={"pass_s": 0, "overdue_share": 0},
    )
    if place.process is None:
        place.start()
    else:
        place.ask("dlctl", "reload")


def submit(place: Schedd, *options: str, runs: str = "exec sleep 3600") -> str:
    """One sbatch; the job id."""
    argv = ["sbatch", "--parsable", "-o", "/dev/null", "--mem=100", *options, "--wrap", runs]
    return place.box.run(argv).stdout.strip()


def search(place: Schedd) -> tuple[str, str, str]:
    """The blocker, the late array and the small stage, which waits."""
    blocker = submit(place, "--gres=gpu:2", "--time=60")
    place.until_state(blocker, "RUNNING")
    begin = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(int(time.time()) + SETTLE_S))
    late = submit(
        place, "--gres=gpu:1", "--time=20", f"--array=0-5%{OWN}", f"--begin={begin}", "-Jlate"
    )
    small = submit(
        place,
        *("--gres=gpu:3", "--time=5", "--array=0-1", f"--begin={begin}", "-Jsmall"),
        runs="sleep 2",
    )
    return blocker, late, small


def tasks(place: Schedd, array: str) -> int:
    """Tasks of *array* that run."""
    return len(place.box.run(["squeue", "-hrtR", "-o%F", f"-j{array}"]).stdout.split())


def throttle(place: Schedd, array: str) -> str:
    """ArrayTaskThrottle of *array*, as Slurm shows it."""
    return place.job(array, "ArrayTaskThrottle")[0]


def is_over(place: Schedd, array: str) -> bool:
    """No task of *array* waits or runs."""
    return not place.box.run(["squeue", "-h", "-o%F", f"-j{array}"], check=False).stdout.split()


@pytest.mark.parametrize("policy", MUTANTS)
def test_other_orders_let_the_late_array_fill_the_node(place: Schedd, policy: str) -> None:
    """Two of its tasks run, so the small stage waits for their end."""
    put_in_force(place, policy)
    blocker, late, small = search(place)
    place.until("the late array", lambda: tasks(place, late) >= 2)
    place.box.run(["scancel", blocker])
    at_s = time.monotonic() + 3 * SETTLE_S
    place.until("looks", lambda: time.monotonic() > at_s)
    assert throttle(place, late) == str(OWN)
    assert tasks(place, late) >= 2
    assert not tasks(place, small)
    assert not is_over(place, small)


def test_grouper_ends_the_small_stage_first(place: Schedd) -> None:
    """One task of the late array runs until the stage is over; then as many as its owner lets."""
    put_in_force(place, "grouper")
    blocker, late, small = search(place)
    place.until("the first task", lambda: tasks(place, late) == 1)
    at_s = time.monotonic() + 3 * SETTLE_S
    place.until("looks", lambda: time.monotonic() > at_s)
    assert (tasks(place, late), throttle(place, late)) == (1, "1")
    why = place.ask("dlqueue", "why", late).stdout
    assert "grouper lets 1 of its tasks run at once" in " ".join(why.split())
    place.box.run(["scancel", blocker])
    most = 0

    def stage() -> bool:
        nonlocal most
        most = max(most, tasks(place, late))
        return is_over(place, small)

    place.until("the stage to be over", stage)
    assert most == 1
    place.until("the owner's throttle", lambda: throttle(place, late) == str(OWN))
    place.until("its tasks", lambda: tasks(place, late) == OWN)


@pytest.mark.parametrize(
    "way", ["policy", pytest.param("release-all", marks=pytest.mark.full("another way back"))]
)
def test_the_owners_throttle_is_written_back(place: Schedd, way: str) -> None:
    """After a change of the policy, and by `dlctl release-all`; the owner's last word counts."""
    put_in_force(place, "grouper")
    _, late, _ = search(place)
    place.until("ours", lambda: throttle(place, late) == "1")
    place.box.run(["scontrol", "update", f"JobId={late}", "ArrayTaskThrottle=2"])
    place.until("ours again", lambda: throttle(place, late) == "1")
    if way == "policy":
        place.configure(policy={"order": "fifo", "parameters": {}})
        place.ask("dlctl", "reload")
    else:
        place.stop()
        place.ask("dlctl", "release-all", "--yes")
    place.until("the owner's", lambda: throttle(place, late) == "2")
