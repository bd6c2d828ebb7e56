"""What is remembered moves with a clock that was set, or is at least not in the future."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import build
import pytest

from slurm_dl.ledger.clock_adjustment import ClockAdjustment, Cut, Shift
from slurm_dl.ledger.sqlite.store import SqliteStore
from slurm_dl.ledger.store_protocol import HOUR_S, MemoryStore, StoreChange
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.breaker import Taken
from slurm_dl.model.contract import Contract
from slurm_dl.model.handover import Handover, Run, Victim, VictimState
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.plan import OpenHandover, SetSteer
from slurm_dl.model.steer import Steer

NOW_S = 1_000_000.0

HANDOVER = Handover(
    handover_id=HandoverId(1),
    opened_s=NOW_S + 100,
    beneficiaries=(JobId(2),),
    victims=(
        Victim(
            run=Run(JobId(1), NOW_S + 50, 0),
            gpus=4,
            contract=Contract(grace_s=60),
            state=VictimState.SIGNALLED,
            signalled_s=NOW_S + 110,
        ),
    ),
    nodes=("n1",),
)

STEER = Steer(
    job_id=JobId(3), kind="spot", avoid=("n1",), since_s=NOW_S + 100, until_s=NOW_S + 700, why="x"
)


@pytest.mark.parametrize(
    ("how", "opened_s", "signalled_s", "until_s"),
    [
        (Shift(3600.0), NOW_S + 3700, NOW_S + 3710, NOW_S + 4300),
        (Shift(-50.0), NOW_S + 50, NOW_S + 60, NOW_S + 650),
        (Cut(NOW_S), NOW_S, NOW_S, NOW_S + 600),
        (Cut(NOW_S + 120), NOW_S + 100, NOW_S + 110, NOW_S + 700),
    ],
)
def test_instants_of_ours_move_and_slurms_do_not(
    tmp_path: Path, how: ClockAdjustment, opened_s: float, signalled_s: float, until_s: float
) -> None:
    """Grace and the life of a steer go on where they were; which run is meant stays."""
    path = tmp_path / "ledger.sqlite"
    ledger = Ledger(SqliteStore(path))
    ledger.begin(OpenHandover(handover=HANDOVER, why="x"))
    ledger.begin(SetSteer(steer=STEER, why="x"))

    ledger.retime(how)

    stored = Ledger(SqliteStore(path))
    for found in (ledger, stored):
        (handover,) = found.handovers
        (victim,) = handover.victims
        assert (handover.opened_s, victim.signalled_s) == (opened_s, signalled_s)
        assert victim.gone_s == 0
        assert victim.run == HANDOVER.victims[0].run
        steer = found.snapshot(build.observed([]), frozenset()).steers[JobId(3)]
        assert (steer.since_s, steer.until_s) == (STEER.since_s, until_s)
    ledger.close()
    stored.close()


def gpus_taken(ledger: Ledger, now_s: float) -> float:
    """How many GPUs the ledger knows to have been taken back within the hour before *now_s*."""
    seen = build.observed([], now_s=now_s)
    return ledger.snapshot(seen, frozenset()).preempted_gpus_last_hour


@pytest.mark.parametrize("by_s", [7200.0, -7200.0])
def test_gpus_taken_are_remembered_over_a_jump_and_a_restart(tmp_path: Path, by_s: float) -> None:
    """Until an hour has passed, by the clock as it stands then."""
    path = tmp_path / "ledger.sqlite"
    store = SqliteStore(path)
    store.save(
        StoreChange(
            taken=[
                Taken(
                    at_s=NOW_S - 600, job_id=JobId(1), gpus=8, notice_s=1, handover_id=HandoverId(1)
                )
            ]
        )
    )
    ledger = Ledger(store)

    ledger.retime(Shift(by_s))

    stored = Ledger(SqliteStore(path))
    for found in (ledger, stored):
        assert gpus_taken(found, NOW_S + by_s) == 8
        assert gpus_taken(found, NOW_S + by_s + HOUR_S - 601) == 8
        assert gpus_taken(found, NOW_S + by_s + HOUR_S - 599) == 0
    ledger.close()
    stored.close()


def test_a_steer_without_an_end_keeps_none() -> None:
    """One that was let go for good stays so."""
    ledger = Ledger(MemoryStore())
    endless = dataclasses.replace(STEER, until_s=math.inf)
    ledger.begin(SetSteer(steer=endless, why="x"))

    for how in (Cut(NOW_S), Shift(-3600.0)):
        ledger.retime(how)
        assert ledger.snapshot(build.observed([]), frozenset()).steers[JobId(3)] == endless
