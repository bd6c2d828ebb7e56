"""Arrays on one node of four GPUs, whose daemon may bound how many of their tasks run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from schedd import Schedd, schedd_in

from slurm_dl.sandbox import Sandbox, SandboxNodes, SandboxSpec

ORDERS: Final = {"static": f"{Path(__file__).parent / 'last_first.py'}:LastFirst"}
SLOW: Final = pytest.mark.full("seconds each; they show that the case can fail")
MUTANTS: Final = tuple(
    pytest.param(name, marks=SLOW) for name in ("fifo", "discrete_las", "static")
)


def node_of_four() -> object:
    """A fixture for the tests of a module: the node, and a daemon for it."""

    @pytest.fixture(scope="module")
    def place(module_directory: Path) -> Iterator[Schedd]:
        spec = SandboxSpec(groups=(SandboxNodes(nodes=1, gpus=4),))
        box = Sandbox.up(module_directory / "box", spec)
        try:
            with schedd_in(box, module_directory) as schedd:
                yield schedd
        finally:
            box.down(remove=True)

    return place


def put_in_force(place: Schedd, policy: str, **sections: Any) -> None:  # noqa: ANN401
    """Go on with this policy and these sections, without any job."""
    place.box.run(["scancel", "--quiet", "--user=root"], check=False)
    place.until("an empty queue", lambda: not place.box.run(["squeue", "-ho", "%A"]).stdout)
    parameters = {"thresholds_gpu_s": [3600, 5000]} if policy == "discrete_las" else {}
    place.configure(
        daemon={"poll_s": 0.5, "fast_poll_s": 0.25},
        policy={"order": ORDERS.get(policy, policy), "parameters": parameters},
        ranking={"pass_s": 0, "overdue_share": 0},
        **sections,
    )
    if place.process is None:
        place.start()
    else:
        place.ask("dlctl", "reload")


def submit(place: Schedd, *options: str, runs: str = "exec sleep 3600") -> str:
    """One sbatch; the job id."""
    argv = ["sbatch", "--parsable", "-o", "/dev/null", "--mem=100", *options, "--wrap", runs]
    return place.box.run(argv).stdout.strip()


def tasks(place: Schedd, array: str) -> int:
    """Tasks of *array* that run."""
    return len(place.box.run(["squeue", "-hrtR", "-o%F", f"-j{array}"]).stdout.split())


def throttle(place: Schedd, array: str) -> str:
    """ArrayTaskThrottle of *array*, as Slurm shows it."""
    return place.job(array, "ArrayTaskThrottle")[0]


def settle(place: Schedd, seconds: float) -> None:
    """Wait for more looks."""
    at_s = time.monotonic() + seconds
    place.until("looks", lambda: time.monotonic() > at_s)
