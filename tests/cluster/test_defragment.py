"""A gang that fits nowhere in one piece, on a real Slurm: jobs are moved together for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from schedd import Schedd, schedd_in, toy_steps

from slurm_dl.sandbox import Sandbox, SandboxNodes, SandboxSpec

pytestmark = [pytest.mark.slurm, pytest.mark.full("moves of jobs; the main job has cheaper tests")]


@pytest.fixture
def place(
    make_sandbox: Callable[[SandboxSpec], Sandbox], short_directory: Path
) -> Iterator[Schedd]:
    """A place for a daemon on four nodes of eight GPUs."""
    box = make_sandbox(SandboxSpec(groups=(SandboxNodes(nodes=4, gpus=8, cpus=64),)))
    with schedd_in(box, short_directory) as daemon:
        yield daemon


def fragment(place: Schedd) -> list[str]:
    """A training of four GPUs on each node until "end" exists; half of each node is free."""
    walls = []
    for n in range(1, 5):
        wrap = ["--gpus-per-node=4", "--mem=100", "--wrap=exec sleep 600"]
        argv = ["sbatch", "--parsable", "--output=/dev/null", f"--nodelist=n{n}", "--nodes=1"]
        walls.append(place.box.run([*argv, *wrap]).stdout.strip())
    place.until("the walls to stand", lambda: all(place.state(w) == "RUNNING" for w in walls))
    until = ["--until", str(place.home / "end")]
    trainings = [place.toy(4, 1, *until, options=["--mem=100"]) for _ in range(4)]
    place.until(
        "four trainings to run", lambda: all(place.state(t) == "RUNNING" for t in trainings)
    )
    place.box.run(["scancel", *walls])
    nodes = {place.job(t, "NodeList")[0] for t in trainings}
    assert nodes == {"n1", "n2", "n3", "n4"}
    return trainings


def end(place: Schedd, trainings: Sequence[str]) -> None:
    """Let the trainings end; each took every step once."""
    (place.home / "end").touch()
    for training in trainings:
        place.until_state(training, "COMPLETED", within_s=120)
        steps = toy_steps(place.home, training)
        assert steps == list(range(1, steps[-1] + 1))


def configure(place: Schedd, **defragment: object) -> None:
    place.configure(
        policy={"order": "fifo_skip", "parameters": {}},
        preemption={"cooldown_s": 300},
        defragment={"after_s": 3, **defragment},
    )


def test_a_gang_starts_after_the_smallest_set_of_moves(place: Schedd) -> None:
    """Sixteen GPUs: two of four trainings move onto the others' nodes and resume there.

    A second gang in the cool-down moves nobody twice.
    """
    configure(place, enabled=True)
    place.start()
    trainings = fragment(place)
    held = ["--until", str(place.home / "moved")]
    gang = place.toy(16, 1, *held, options=["--nodes", "2", "--mem=100"])
    place.until_state(gang, "RUNNING", "COMPLETED", within_s=90)

    moved = [t for t in trainings if place.job(t, "Restarts") == ["1"]]
    assert len(moved) == 2
    stayed = {place.job(t, "NodeList")[0] for t in trainings if t not in moved}
    place.until(
        "those who moved to run again",
        lambda: all(place.state(t) == "RUNNING" for t in moved),
        60,
    )
    assert {place.job(t, "NodeList")[0] for t in moved} <= stayed
    (place.home / "moved").touch()
    second = place.toy(24, 4, options=["--nodes", "3", "--mem=100"])
    place.until_state(gang, "COMPLETED")
    looked = place.cycles()
    place.until(
        "the second gang to be looked at after after_s", lambda: place.cycles() > looked + 8
    )
    end(place, trainings)
    place.until_state(second, "COMPLETED")

    assert sorted(place.job(t, "Restarts")[0] for t in trainings) == ["0", "0", "1", "1"]
    opened = place.audit(action="open_handover", result="ok")
    assert len(opened) == 1
    assert "moved elsewhere" in opened[0]["reason"]
    place.until("the reservations to go", lambda: not place.reservations(), 30)
    assert place.open_handovers() == 0


def test_in_shadow_mode_it_only_says_so(place: Schedd) -> None:
    """The daemon tells whom it would move, and touches nobody."""
    configure(place, enabled=True)
    trainings = fragment(place)
    gang = place.toy(16, 4, options=["--nodes", "2", "--mem=100"])
    place.start(mode="--shadow")
    place.until(
        "the moves to be told",
        lambda: "moved elsewhere" in place.ask("dlqueue", "why", gang, check=False).stdout,
        30,
    )
    assert place.state(gang) == "PENDING"
    assert {place.job(t, "Restarts")[0] for t in trainings} == {"0"}
    assert not place.reservations()


def test_nodes_are_freed_as_a_whole(place: Schedd) -> None:
    """Half of each node is used: two nodes come free, one after the other."""
    configure(place, free_nodes=2)
    place.start()
    trainings = fragment(place)

    def used() -> set[str]:
        return {place.job(t, "NodeList")[0] for t in trainings if place.state(t) == "RUNNING"}

    place.until(
        "two nodes to be free",
        lambda: len(used()) == 2 and all(place.state(t) == "RUNNING" for t in trainings),
        90,
    )
    assert sum(int(place.job(t, "Restarts")[0]) for t in trainings) == 2
    end(place, trainings)
