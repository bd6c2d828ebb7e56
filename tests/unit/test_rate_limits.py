"""How the daemon slows down by itself while slurmctld is slow, and comes back."""

from __future__ import annotations

import pytest

from slurm_dl.daemon.rate_limits import CALM_POLLS, LONGEST_HELD_S, SlowDown
from slurm_dl.slurm.controller_status import ControllerStatus


def polled(pace: SlowDown, *asked_s: float) -> list[float]:
    """The interval after polls for which Slurm took so long; 30 s configured, 120 s at most."""
    intervals = []
    for spent_s in asked_s:
        pace.polled(spent_s)
        intervals.append(pace.slowed(30.0, 120.0))
    return intervals


def test_slow_answers_double_the_interval_up_to_the_slowest() -> None:
    """One doubling for each slow poll, and none beyond the bound."""
    pace = SlowDown()

    assert polled(pace, 1.9, 2.1, 9.0, 9.0, 9.0) == [30, 60, 120, 120, 120]
    assert pace.slow == "it took 9.0 s to list its jobs"


def test_it_comes_back_step_by_step() -> None:
    """Some quick polls in a row for each step; a slow one between them begins anew."""
    pace = SlowDown()
    polled(pace, 9.0, 9.0, 9.0)

    back = polled(pace, *[0.1] * (2 * CALM_POLLS))

    assert back == [120.0] * (CALM_POLLS - 1) + [60.0] * CALM_POLLS + [30.0]
    assert not pace.slow
    assert not pace.is_slow
    polled(pace, 9.0)
    assert polled(pace, *[0.1] * (CALM_POLLS - 1), 9.0, *[0.1] * (CALM_POLLS - 1)) == [
        *[60.0] * (CALM_POLLS - 1),
        *[120.0] * CALM_POLLS,
    ]


def test_an_interval_beyond_the_slowest_is_kept() -> None:
    """A site that looks every five minutes is not made to look more often."""
    pace = SlowDown()
    pace.polled(9.0)

    assert pace.slowed(300.0, 120.0) == 300.0


@pytest.mark.parametrize(
    ("sick", "because"),
    [
        ({"threads": 101}, "101 of its threads are busy"),
        ({"agent_queue": 201}, "201 messages to nodes wait"),
        ({"dumps": 10, "dump_total_s": 25.0}, "it takes 2.5 s to list its jobs for anybody"),
    ],
)
def test_its_own_figures_count_as_well(sick: dict[str, float], because: str) -> None:
    """Busy threads, a queue of messages, listings that are slow for others."""
    pace = SlowDown()
    pace.note_health(ControllerStatus(now_s=0.0, **sick))  # type: ignore[arg-type]

    assert polled(pace, 0.1, 0.1) == [60.0, 120.0]
    assert pace.slow == because
    pace.note_health(ControllerStatus(now_s=9.0, threads=100, agent_queue=200))
    assert polled(pace, *[0.1] * (2 * CALM_POLLS))[-1] == 30.0


def test_what_is_not_told_is_not_slow() -> None:
    """Unknown is no reason to slow down."""
    pace = SlowDown()
    pace.note_health(ControllerStatus(now_s=0.0))

    assert polled(pace, 0.1) == [30.0]


def test_the_order_waits_while_the_queue_to_slurmdbd_grows() -> None:
    """Between two looks, and above what is usual; it goes on as soon as it grows no more."""
    pace = SlowDown(lambda: 0.0)
    held = []
    for waiting in (5000, 5001, 5001, 5002, 4000, 150, 190, 210):
        pace.note_health(ControllerStatus(now_s=0.0, dbd_queue=waiting))
        held.append(bool(pace.writes_held))

    assert held == [False, True, False, True, False, False, False, True]
    assert polled(pace, 0.1) == [30.0]


def test_the_order_does_not_wait_for_ever() -> None:
    """Even if slurmdbd is away for a day: jobs are ordered all the same."""
    now = [0.0]
    pace = SlowDown(lambda: now[0])
    held = []
    for waiting in range(1000, 1000 + 8):
        pace.note_health(ControllerStatus(now_s=0.0, dbd_queue=waiting))
        held.append(bool(pace.writes_held))
        now[0] += LONGEST_HELD_S / 4

    assert held == [False, True, True, True, True, True, False, False]
