"""Resets of circuit breakers, from whoever asks to the ledger; and what the log says of trips."""

from __future__ import annotations

import dataclasses
import io
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import build
import pytest
from superseding import supersede

from slurm_dl import logging_setup
from slurm_dl.daemon.audit_log import AuditLog
from slurm_dl.daemon.breaker_resets import NotResetError, Resets, breakers_of
from slurm_dl.daemon.observers import CycleLog
from slurm_dl.daemon.published_state import Durations
from slurm_dl.engine.cycle import Cycle
from slurm_dl.engine.decide import decide
from slurm_dl.engine.settings import Breakers, Settings
from slurm_dl.ledger.sqlite.store import SqliteStore, SupersededError
from slurm_dl.ledger.store_protocol import MemoryStore
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.breaker import Breaker
from slurm_dl.model.plan import TripBreaker
from slurm_dl.policies.discrete_las import DiscreteLas

PARTITIONS = frozenset({"gpu"})
TRIP = TripBreaker(breaker="cluster_share", at_s=5.0, why="9 of 16")


class Loop:
    """The loop's side: settles what was asked for as soon as it is poked."""

    def __init__(self, ledger: Ledger, audit: AuditLog) -> None:
        self.resets = Resets()
        self.ledger = ledger
        self.audit = audit
        self.errors: list[Exception] = []
        self.shown: list[Breaker] = []

    def poke(self) -> None:
        """Wake the loop, which has a thread of its own."""
        thread = threading.Thread(target=self._settle)
        thread.start()
        thread.join()

    def _settle(self) -> None:
        try:
            self.resets.settle(self.ledger, self.audit, 9.0, self.shown.append)
        except Exception as err:  # noqa: BLE001 - what ends the loop is looked at by the test
            self.errors.append(err)


def lines(audit: AuditLog) -> list[tuple[str, str, str, str]]:
    """What the audit log holds."""
    return [
        (e["actor"], e["action"], e["reason"], e["result"])
        for e in map(json.loads, audit.path.read_text("utf-8").splitlines())
    ]


def share_row(cycle: Cycle, resets: Sequence[Breaker]) -> dict[str, Any]:
    """The status of the breaker ``cluster_share``."""
    rows: list[dict[str, Any]] = json.loads(json.dumps(breakers_of(cycle, Breakers(), resets)))
    return next(row for row in rows if row["breaker"] == "cluster_share")


def test_a_reset_is_done_by_the_loop_and_written_down(tmp_path: Path) -> None:
    """With who asked for it, and what the breaker had tripped for."""
    loop = Loop(Ledger(MemoryStore()), AuditLog(tmp_path / "audit.jsonl"))
    loop.ledger.begin(TRIP)

    was = loop.resets.wait("cluster_share", "user ann (7)", loop.poke)
    again = loop.resets.wait("cluster_share", "user bob (8)", loop.poke)

    assert (was.tripped_s, was.why) == (5.0, "9 of 16")
    assert (again.tripped_s, again.reset_by) == (0.0, "user ann (7)")
    snap = loop.ledger.snapshot(build.observed([]), PARTITIONS)
    assert [(b.tripped_s, b.reset_s, b.reset_by) for b in snap.breakers] == [
        (0.0, 9.0, "user bob (8)")
    ]
    assert lines(loop.audit) == [
        ("user ann (7)", "reset_breaker", "cluster_share: it had tripped: 9 of 16", "ok"),
        ("user bob (8)", "reset_breaker", "cluster_share: it had not tripped", "ok"),
    ]


def test_a_reset_that_cannot_be_written_down_is_none(tmp_path: Path) -> None:
    """Another daemon has the ledger: whoever asked hears of it, and so does the loop."""
    path = tmp_path / "ledger.sqlite"
    ledger = Ledger(SqliteStore(path, generation=supersede(path)))
    ledger.begin(TRIP)
    loop = Loop(ledger, AuditLog(tmp_path / "audit.jsonl"))
    supersede(path)

    with pytest.raises(NotResetError, match="taken over by another dlschedd"):
        loop.resets.wait("cluster_share", "user ann (7)", loop.poke)

    assert [type(err) for err in loop.errors] == [SupersededError]
    snap = ledger.snapshot(build.observed([]), PARTITIONS)
    assert [b.tripped_s for b in snap.breakers] == [5.0]
    (line,) = lines(loop.audit)
    assert "taken over by another dlschedd" in line[3]


def test_the_status_shows_a_reset_before_the_next_cycle(tmp_path: Path) -> None:
    """Whoever resets a breaker and looks at once does not see it tripped."""
    loop = Loop(Ledger(MemoryStore()), AuditLog(tmp_path / "audit.jsonl"))
    loop.ledger.begin(TRIP)
    snap = loop.ledger.snapshot(build.observed([]), PARTITIONS)
    plan = decide(snap, DiscreteLas(), Settings(partitions=PARTITIONS))
    tripping = dataclasses.replace(plan, actions=(dataclasses.replace(TRIP, at_s=6.0),))

    loop.resets.wait("cluster_share", "user ann (7)", loop.poke)

    for last, was_s in ((plan, 5.0), (tripping, 6.0)):
        cycle = Cycle(snap, last, acting=True)
        assert share_row(cycle, ())["tripped_s"] == was_s
        now = share_row(cycle, loop.shown)
        assert (now["tripped_s"], now["reset_by"]) == (None, "user ann (7)")


def test_the_log_warns_once_of_each_trip() -> None:
    """Also of one that stood when the daemon started, and of one that is not written down yet."""
    out = io.StringIO()
    logging_setup.configure(level="info", form="json", stream=out)
    log = CycleLog(logging_setup.logger())
    snap = build.snapshot(build.observed([]))
    plan = decide(snap, DiscreteLas(), Settings(partitions=PARTITIONS))
    stands = Breaker(name="failed_restarts", tripped_s=5.0, why="4 of 6")
    both = Cycle(
        dataclasses.replace(snap, breakers=(stands,)),
        dataclasses.replace(plan, actions=(TRIP,)),
        acting=False,
    )
    for cycle in (both, both, Cycle(snap, plan, acting=False), both):
        log.say(cycle, Durations(), paused=False)

    said = [json.loads(line) for line in out.getvalue().splitlines()]
    warned = [(e["breaker"], e["because"]) for e in said if e.get("level") == "warning"]
    assert sorted(warned) == sorted(
        2 * [("cluster_share", "9 of 16"), ("failed_restarts", "4 of 6")]
    )
    calm = [e["breaker"] for e in said if "any more" in str(e.get("event"))]
    assert sorted(calm) == ["cluster_share", "failed_restarts"]
