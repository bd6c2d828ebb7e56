"""Recorded instants after the clock was set: none stays in the future, graces may count anew."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import build
import pytest

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
TAKEN = Taken(at_s=NOW_S + 600, job_id=JobId(1), gpus=8, notice_s=1, handover_id=HandoverId(1))


@pytest.mark.parametrize(
    ("set_to_s", "grace_anew", "opened_s", "signalled_s", "until_s", "taken_s"),
    [
        # Set back: before all, and between what was recorded. Set forward.
        (NOW_S, False, NOW_S, NOW_S, NOW_S + 600, NOW_S),
        (NOW_S + 103, True, NOW_S + 103, NOW_S + 103, NOW_S + 700, NOW_S + 103),
        (NOW_S + 9000, False, NOW_S + 100, NOW_S + 110, NOW_S + 700, NOW_S + 600),
        (NOW_S + 9000, True, NOW_S + 9000, NOW_S + 9000, NOW_S + 700, NOW_S + 600),
    ],
)
def test_no_instant_of_ours_stays_in_the_future(
    tmp_path: Path,
    *,
    set_to_s: float,
    grace_anew: bool,
    opened_s: float,
    signalled_s: float,
    until_s: float,
    taken_s: float,
) -> None:
    """In memory and in the file. What Slurm reported stays: it says which run is meant."""
    path = tmp_path / "ledger.sqlite"
    store = SqliteStore(path)
    store.save(StoreChange(taken=[TAKEN]))
    ledger = Ledger(store)
    ledger.begin(OpenHandover(handover=HANDOVER, why="x"))
    ledger.begin(SetSteer(steer=STEER, why="x"))

    ledger.clock_was_set(set_to_s, grace_anew=grace_anew)

    stored = Ledger(SqliteStore(path))
    for found in (ledger, stored):
        (handover,) = found.handovers
        (victim,) = handover.victims
        assert (handover.opened_s, victim.signalled_s) == (opened_s, signalled_s)
        assert victim.gone_s == 0
        assert victim.run == HANDOVER.victims[0].run
        snap = found.snapshot(build.observed([], now_s=set_to_s), frozenset())
        assert (snap.steers[JobId(3)].since_s, snap.steers[JobId(3)].until_s) == (
            STEER.since_s,
            until_s,
        )
        (taken,) = snap.taken
        assert taken.at_s == taken_s
        # The bound on preemptions counts each hour from then on.
        for after_s, gpus in ((HOUR_S - 1, 8), (HOUR_S + 1, 0)):
            seen = build.observed([], now_s=taken_s + after_s)
            going = sum(v.gpus for v in handover.victims)
            known = found.snapshot(seen, frozenset()).preempted_gpus_last_hour
            assert known == gpus + going
    ledger.close()
    stored.close()


def test_a_steer_without_an_end_keeps_none() -> None:
    """One that was released for good stays so."""
    ledger = Ledger(MemoryStore())
    endless = dataclasses.replace(STEER, until_s=math.inf)
    ledger.begin(SetSteer(steer=endless, why="x"))
    ledger.clock_was_set(NOW_S)

    assert ledger.snapshot(build.observed([]), frozenset()).steers[JobId(3)] == endless
