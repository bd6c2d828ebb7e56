"""On a real Slurm Grouper bounds the tasks of a late array; FIFO, LAS and a static order do not.

One node of four GPUs. A blocker holds two of them. The small stage has two tasks of three GPUs
each, so it cannot start; the late array has tasks of one GPU, of which two would fit.
"""

from __future__ import annotations

import time
from typing import Final

import pytest
from bounded_arrays import MUTANTS, node_of_four, put_in_force, settle, submit, tasks, throttle
from schedd import Schedd

pytestmark = pytest.mark.slurm

SETTLE_S: Final = 4
OWN: Final = 3  # The owner's throttle of the late array
OFF: Final = {"enabled": False}
place = node_of_four()


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


def is_over(place: Schedd, array: str) -> bool:
    """No task of *array* waits or runs."""
    return not place.box.run(["squeue", "-h", "-o%F", f"-j{array}"], check=False).stdout.split()


@pytest.mark.parametrize("policy", MUTANTS)
def test_other_orders_let_the_late_array_fill_the_node(place: Schedd, policy: str) -> None:
    """Two of its tasks run, so the small stage waits for their end."""
    put_in_force(place, policy, preemption=OFF)
    blocker, late, small = search(place)
    place.until("the late array", lambda: tasks(place, late) >= 2)
    place.box.run(["scancel", blocker])
    settle(place, 3 * SETTLE_S)
    assert throttle(place, late) == str(OWN)
    assert tasks(place, late) >= 2
    assert not tasks(place, small)
    assert not is_over(place, small)


def test_grouper_ends_the_small_stage_first(place: Schedd) -> None:
    """One task of the late array runs until the stage is over; then as many as its owner lets."""
    put_in_force(place, "grouper", preemption=OFF)
    blocker, late, small = search(place)
    place.until("the first task", lambda: tasks(place, late) == 1)
    settle(place, 3 * SETTLE_S)
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
    put_in_force(place, "grouper", preemption=OFF)
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
