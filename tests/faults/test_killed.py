"""The daemon killed at each step of a real hand-over, and started again."""

from __future__ import annotations

import sys

import pytest
from schedd import ROOT, Schedd, toy_steps
from victims import STEPS, sank, victim

pytestmark = pytest.mark.slurm


@pytest.mark.parametrize(
    "point",
    [
        "begun:OpenHandover",
        "applied:Reserve",
        "settled:Attach",
        "begun:Signal",
        pytest.param("applied:Signal", marks=pytest.mark.always),
        "settled:Signal",
        "begun:Requeue",
        "applied:Requeue",
        "settled:MarkGone",
        "applied:Unseal",
        "begun:CloseHandover",
    ],
)
def test_killed_during_a_hand_over(place: Schedd, point: str) -> None:
    """No job lost, held, run twice or stopped without a signal; what was begun is ended."""
    normal = place.command
    place.command = [sys.executable, str(ROOT / "tests" / "faulty_schedd.py"), point]
    place.start()
    big = victim(place)
    place.until("the large job to sink", lambda: sank(place, big) or place.died())
    small = [place.toy(1, 6) for _ in range(2)]
    place.until(f"the daemon to be killed at {point}", place.died, 60)
    assert place.process.returncode == -9

    place.command = normal
    place.start()
    for job in (*small, big):
        place.until_state(job, "COMPLETED", within_s=120)

    restarts = int(place.job(big, "Restarts")[0])
    log = (place.home / f"slurm-{big}.out").read_text(encoding="utf-8")
    asked = log.count("checkpoint asked for by USR1")
    assert 1 <= restarts <= asked
    assert toy_steps(place.home, big) == list(range(1, STEPS + 1))
    for job in small:
        assert toy_steps(place.home, job) == list(range(1, 7))
        assert place.job(job, "Restarts") == ["0"]
    place.until("nothing to be left", lambda: not place.reservations(), 30)
    place.until("the hand-over to be closed", lambda: place.open_handovers() == 0, 30)
