"""Before when the ledger drops what is over: a week of looks, whatever the clock does."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from build import NOW_S, observed, pending

from slurm_dl.ledger.apply_observation import FORGET_AFTER_S
from slurm_dl.ledger.attained_service import AttainedService
from slurm_dl.ledger.clock_adjustment import Cut, Shift
from slurm_dl.ledger.retention import FASTEST, FIRST_S, RetentionCutoff
from slurm_dl.ledger.sqlite.store import SqliteStore
from slurm_dl.ledger.write_ahead import Ledger

DAY_S = 86_400.0
YEAR_S = 365 * DAY_S
START_S = NOW_S - FORGET_AFTER_S


def looked(horizon: RetentionCutoff, first_s: float, for_s: float, every_s: float = 600.0) -> float:
    """How far it is behind the week, seconds, after looks from *first_s* on for *for_s*."""
    at_s = before_s = first_s
    while at_s <= first_s + for_s:
        before_s = horizon.look(at_s)
        at_s += every_s
    return at_s - every_s - FORGET_AFTER_S - before_s


@pytest.mark.parametrize("ahead_s", [YEAR_S, 50 * YEAR_S])
def test_a_clock_that_was_ahead_and_was_set_right_costs_a_week_of_looks(ahead_s: float) -> None:
    """Nothing is dropped while it is ahead, and the file does not grow without end after it."""
    horizon = RetentionCutoff(START_S, AttainedService.empty())
    assert looked(horizon, NOW_S + ahead_s, DAY_S) > ahead_s - 3 * DAY_S
    horizon.retime(Shift(-ahead_s))

    behind_s = looked(horizon, NOW_S + DAY_S, 3 * DAY_S)
    assert behind_s > ahead_s - 9 * DAY_S
    assert looked(horizon, NOW_S + 4 * DAY_S, 4 * DAY_S) == 0.0


def test_a_clock_that_began_in_1970_is_as_any_other() -> None:
    """A week before it is an instant below 0, which goes with the clock like others."""
    horizon = RetentionCutoff(START_S, AttainedService.empty())
    horizon.retime(Cut(1000.0))
    assert looked(horizon, 1000.0, 600.0) == 0.0
    horizon.retime(Shift(NOW_S))

    assert looked(horizon, NOW_S + 1600.0, 0.0) == 0.0


def test_looks_of_daemons_that_look_once_add_up() -> None:
    """As by cron every two minutes, after a month in which nobody looked."""
    before_s = START_S
    at_s = NOW_S + 30 * DAY_S
    for _ in range(720):
        last_s, before_s = before_s, RetentionCutoff(before_s, AttainedService.empty()).look(at_s)
        assert before_s - last_s == FASTEST * FIRST_S
        at_s += 120.0

    assert before_s == START_S + 720 * FASTEST * FIRST_S


@pytest.mark.parametrize(("back_s", "then_s"), [(YEAR_S, YEAR_S), (DAY_S, 9 * DAY_S)])
def test_the_file_tells_the_next_daemon_what_this_one_knew(
    tmp_path: Path, back_s: float, then_s: float
) -> None:
    """Also of a clock that was cut, and was set forward before anything was dropped."""
    path = tmp_path / "ledger.sqlite"
    with closing(Ledger(SqliteStore(path))) as ledger:
        ledger.book(observed([pending(1)], now_s=NOW_S))
        ledger.book(observed([pending(1)], now_s=NOW_S + 1200.0))
        ledger.retime(Cut(NOW_S - back_s))
        ledger.retime(Shift(then_s))
    with closing(sqlite3.connect(path)) as db:
        ((text,),) = db.execute("SELECT value FROM meta WHERE key = 'swept_before_s'").fetchall()

    cut_s = min(NOW_S + 1200.0 - FORGET_AFTER_S, NOW_S - back_s)
    assert float(text) == pytest.approx(cut_s + then_s, abs=1.0)
