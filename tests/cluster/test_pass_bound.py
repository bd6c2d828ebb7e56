"""Jobs pass the first waiting job on a real Slurm only where they do not delay it."""

from __future__ import annotations

from pathlib import Path

import pytest
from schedd import schedd_in

from slurm_dl.sandbox import Sandbox

pytestmark = pytest.mark.slurm


@pytest.mark.parametrize(
    ("pass_s", "long_one"),
    [
        (2, "PENDING"),
        pytest.param(0, "RUNNING", marks=pytest.mark.full("the same without the bound")),
    ],
)
def test_who_starts_beside_a_gang_that_waits(
    sandbox: Sandbox, short_directory: Path, pass_s: int, long_one: str
) -> None:
    """All GPUs for one job, twelve in use for ten minutes at most; jobs of 60 and 5 minutes."""
    with schedd_in(sandbox, short_directory) as place:
        place.configure(ranking={"pass_s": pass_s})
        place.start()

        def sleeps(gpus: int, minutes: int) -> str:
            limit = [f"--time={minutes}", "--no-preempt"]
            return place.submit(gpus, "sleep", "600", options=limit)

        place.until_state(sleeps(12, 10), "RUNNING")
        gang = sleeps(16, 30)
        cycles = place.cycles()
        place.until("it to have waited", lambda: place.cycles() > cycles + 4)
        long, short = sleeps(1, 60), sleeps(1, 5)
        place.until_state(short, "RUNNING")
        # Slurm's own backfill has had its turns meanwhile.
        cycles = place.cycles()
        place.until("more cycles", lambda: place.cycles() > cycles + 4)

        assert place.state(long) == long_one
        assert place.state(gang) == "PENDING"
        why = place.ask("dlqueue", "why", long).stdout
        assert (f"job {gang} has waited longer" in why) == (long_one == "PENDING")
