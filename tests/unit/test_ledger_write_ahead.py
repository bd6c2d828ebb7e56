"""The ledger: what it counts, and that what it holds is what is stored."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import build
import pytest

from slurm_dl.engine.intent import rank_jobs
from slurm_dl.ledger.sqlite.store import SqliteStore, StoreError
from slurm_dl.ledger.store_protocol import MemoryStore, StoreChange
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.contract import Claim, Contract, Requeuer
from slurm_dl.model.handover import Handover, Run, Victim
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.jobs import Held
from slurm_dl.model.plan import MarkGone, OpenHandover, Requeue, SetSteer, Signal
from slurm_dl.model.shape import Shape
from slurm_dl.model.steer import Steer
from slurm_dl.policies.fifo import Fifo

NOW_S = build.NOW_S
RUN = Run(job_id=JobId(1), restarts=0, start_s=NOW_S - 5000)


@pytest.mark.parametrize(
    ("told", "outcome", "then", "gpus"),
    [
        (True, "requeued", None, 8),
        (True, "requeued", Shape(1, 2), 6),
        (True, "finished", None, 8),
        (True, "left", None, 8),
        (True, "refused", None, 0),
        (False, "left", None, 0),
    ],
)
def test_gpus_count_as_taken_however_a_victim_that_was_told_went(
    told: bool,  # noqa: FBT001
    outcome: str,
    then: Shape | None,
    gpus: float,
) -> None:
    """Also when Slurm does not list it any more, as where MinJobAge is shorter than a poll."""
    ledger = Ledger(MemoryStore())
    number = ledger.snapshot(build.observed([]), frozenset()).next_handover_id
    gives = None if then is None else max(0.0, 8.0 - then.gpus)
    victim = Victim(run=RUN, gpus=8, contract=Contract(), then=then, gives=gives)
    handover = Handover(
        handover_id=number,
        opened_s=NOW_S,
        beneficiaries=(JobId(2),),
        victims=(victim,),
        nodes=("n1",),
    )
    ledger.begin(OpenHandover(handover=handover, why=""))
    opened = ledger.snapshot(build.observed([], now_s=NOW_S), frozenset())
    assert opened.preempted_gpus_last_hour == victim.gives_gpus
    if told:
        signal = Signal(handover_id=number, run=RUN, signal="USR1", target="batch", why="")
        ledger.begin(signal)
        ledger.settle(signal, NOW_S)

    ledger.settle(
        MarkGone(handover_id=number, job_id=RUN.job_id, outcome=outcome, why=""), NOW_S + 1
    )

    snap = ledger.snapshot(build.observed([], now_s=NOW_S + 2), frozenset())
    assert snap.preempted_gpus_last_hour == gpus
    assert sum(t.gpus for t in snap.taken) == gpus


@pytest.mark.parametrize(
    ("acked_run", "requeues", "by", "outcome", "acked"),
    [
        (3, True, "daemon", "requeued", True),
        (3, False, "daemon", "requeued", True),
        (None, True, "daemon", "requeued", False),
        (2, True, "daemon", "requeued", False),
        # Whoever puts itself back has saved; a node that failed puts nobody back by itself.
        (None, False, "job", "requeued", True),
        (None, True, "job", "requeued", False),
        (None, False, "daemon", "requeued", False),
        (3, True, "daemon", "finished", None),
    ],
)
def test_whether_a_victim_acknowledged_is_remembered(
    tmp_path: Path,
    *,
    acked_run: int | None,
    requeues: bool,
    by: Requeuer,
    outcome: str,
    acked: bool | None,
) -> None:
    """By the last look before it was gone, until it is preempted again; also on disk."""
    ledger = Ledger(SqliteStore(tmp_path / "ledger"))
    run, contract = Run(JobId(1), NOW_S - 5000, restarts=3), Contract(requeued_by=by)
    claims = {run.job_id: Claim(contract=contract, acked_run=acked_run)}
    ledger.book(build.observed([build.running(1, 8, restarts=3)], claims=claims))
    victim = Victim(run=run, gpus=8, contract=contract)
    handover = Handover(
        handover_id=HandoverId(1),
        opened_s=NOW_S,
        beneficiaries=(JobId(2),),
        victims=(victim,),
        nodes=("n1",),
    )
    ledger.begin(OpenHandover(handover=handover, why=""))
    signal = Signal(handover_id=HandoverId(1), run=run, signal="USR1", target="batch", why="")
    ledger.begin(signal)
    ledger.settle(signal, NOW_S)
    if requeues:
        ledger.begin(Requeue(handover_id=HandoverId(1), run=run, why=""))
    seen = build.observed([build.pending(1, 8, restarts=4)], claims=claims, now_s=NOW_S + 1)
    ledger.book(seen)
    gone = MarkGone(handover_id=HandoverId(1), job_id=run.job_id, outcome=outcome, why="")
    ledger.settle(gone, NOW_S + 1)

    stored = Ledger(SqliteStore(tmp_path / "ledger"))
    for each in (ledger, stored):
        answers = each.snapshot(seen, frozenset()).answers
        assert answers == ({} if acked is None else {run.job_id: acked})
    ledger.close()
    stored.close()


class Stumbling(SqliteStore):
    """Fails when it is told to."""

    fails = False

    def save(self, change: StoreChange, /) -> None:
        """Store *change*, or nothing of it."""
        if self.fails:
            msg = "disk full"
            raise StoreError(msg)
        super().save(change)


def test_what_a_store_could_not_write_is_written_by_the_next_look(tmp_path: Path) -> None:
    """A row that changes no more after that must not be missing on disk for ever."""
    store = Stumbling(tmp_path / "ledger")
    ledger = Ledger(store)
    ledger.book(build.observed([build.running(1, 4, ran_s=100)]))
    requeued = build.pending(1, 4, restarts=1, submit_s=NOW_S + 10)
    store.fails = True
    with pytest.raises(StoreError, match="disk full"):
        ledger.book(build.observed([requeued], now_s=NOW_S + 20))
    store.fails = False

    ledger.book(build.observed([requeued], now_s=NOW_S + 40))

    stored = Ledger(SqliteStore(tmp_path / "ledger"))
    for found in (ledger, stored):
        assert found.service.attained_gpu_s.tolist() == [4 * 110.0]
        assert found.service.restarts.tolist() == [1]
        assert found.service.run_start_s.tolist() == [0]
    assert [run.gpu_s for run in store.runs_of(JobId(1))] == [4 * 110.0]
    ledger.close()
    stored.close()


def test_a_job_that_was_held_is_ranked_by_its_release_also_after_a_restart(tmp_path: Path) -> None:
    """By Slurm's time of it, as nobody looked then. Whom we put off ourselves keeps its place."""
    since_s = {1: NOW_S - 1000, 2: NOW_S - 500, 3: NOW_S + 50, 4: NOW_S + 90}
    times = {"since_s": NOW_S, "until_s": NOW_S + 9000, "not_before_s": NOW_S + 200}
    ours = Steer(job_id=JobId(2), kind="wait", avoid=(), why="", **times)

    def ranked(ledger: Ledger, at_s: float, held: Mapping[int, Held], **told: Any) -> list[int]:  # noqa: ANN401
        rows = [
            build.pending(i, submit_s=submit_s, held=held.get(i, Held.NO))
            for i, submit_s in since_s.items()
            if submit_s <= NOW_S + at_s
        ]
        seen = build.observed(rows, now_s=NOW_S + at_s, **told)
        ledger.book(seen)
        snap = ledger.snapshot(seen, frozenset({"gpu"}))
        return [int(i) for i in snap.jobs.job_id[rank_jobs(snap, Fifo().order(snap), "never")]]

    with closing(SqliteStore(tmp_path / "ledger.sqlite")) as store:
        ledger = Ledger(store)
        assert ranked(ledger, 0, {1: Held.USER_OR_ADMIN}) == [2, 1]
        ledger.begin(SetSteer(steer=ours, why=""))
        put_off = {1: Held.USER_OR_ADMIN, 2: Held.BEGIN_TIME}
        begins = {JobId(2): NOW_S + 200}
        assert ranked(ledger, 60, put_off, begins=begins, eligible=begins) == [2, 3, 1]
    with closing(SqliteStore(tmp_path / "ledger.sqlite")) as store:
        ledger = Ledger(store)
        released = {**begins, JobId(1): NOW_S + 70}
        held = {2: Held.BEGIN_TIME}
        assert ranked(ledger, 100, held, begins=begins, eligible=released) == [2, 3, 1, 4]
        assert ranked(ledger, 110, {1: Held.DEPENDENCY}) == [2, 3, 4, 1]
