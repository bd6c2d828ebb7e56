"""Entries of the book about elastic jobs, decision by decision."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import build
import pytest

from slurm_dl.engine.waiting_sizes import note_sizes
from slurm_dl.estimates.goodput import fit, with_step
from slurm_dl.model.booking import Entry, entry, updated
from slurm_dl.model.contract import Batch, Claim
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.jobs import Held, JobRow, JobState
from slurm_dl.model.plan import Reshape
from slurm_dl.model.shape import Shape
from slurm_dl.model.sizes import SIZE, SizeHistory, Spent, size_histories
from slurm_dl.model.snapshot import LeftOut, Snapshot
from slurm_dl.model.step_report import BatchLimits, StepReport, StepTime

NOW_S = build.NOW_S
S1, S2, S4, S2x2 = Shape(1, 1), Shape(1, 2), Shape(1, 4), Shape(2, 2)
SIZES = (S1, S2, S4, S2x2)
OLD = SizeHistory(asked=S1, now=S1, since=Spent(10.0, 0.0))


def reshape(shape: Shape, job_id: int = 1) -> Reshape:
    return Reshape(job_id=JobId(job_id), shape=shape, cpus=0, mem_mb=0, why="")


def snap_of(
    row: JobRow,
    before: SizeHistory | None,
    *,
    ran_s: float = 0.0,
    p: float | None = None,
) -> Snapshot:
    """Job 1, elastic, with what is written down of it and what it ran in all."""
    claims = {JobId(1): Claim(sizes=SIZES, asked=S1, progress=p)}
    seen = build.observed([row], claims=claims)
    booked = () if before is None else (entry(SIZE, 1, before.body()),)
    return build.snapshot(seen, memory={"ran_s": {1: ran_s}}, booked=booked)


def noted(snap: Snapshot, *shapes: Shape) -> SizeHistory | None:
    """The entry of job 1 afterwards; whatever is written again is no change."""
    booked = snap.booked
    for book in note_sizes(snap, [reshape(s) for s in shapes]):
        booked = updated(booked, book.entries)
    again = replace(snap, booked=booked)
    assert note_sizes(again, [reshape(s) for s in shapes]) == []
    return size_histories(booked).get(JobId(1))


@pytest.mark.parametrize(
    ("gpus", "nodes", "run_s", "ran_s", "p", "before", "after"),
    [
        # The first run: nothing was spent in any size. What it ran before counts in none.
        (1, 1, 40, 40, None, None, SizeHistory(asked=S1, now=S1)),
        (1, 1, 40, 90, 0.1, None, SizeHistory(asked=S1, now=S1, since=Spent(50, 0.1))),
        # In the same size: whether it was requeued or not, what it spends there goes on.
        (1, 1, 40, 500, 0.6, OLD, OLD),
        # Another size: 90 - 10 s and 0.3 in the one before, and the new one begins.
        (
            4, 2, 40, 130, 0.3, OLD,
            SizeHistory(
                asked=S1, now=S2x2, since=Spent(90, 0.3), spent={S1: Spent(80, 0.3)},
                resized_s=(NOW_S,),
            ),
        ),
        # Back in a size that it had: both stretches count. It does not say how far it is.
        (
            1, 1, 0, 130, None,
            SizeHistory(
                now=S2, since=Spent(100, 0.5), spent={S1: Spent(50, 0.3), S2: Spent(50, 0.2)},
                resized_s=(NOW_S - 86_400, NOW_S - 86_399),
            ),
            SizeHistory(
                now=S1, since=Spent(130, 0.5), spent={S1: Spent(50, 0.3), S2: Spent(80, 0.2)},
                resized_s=(NOW_S - 86_399, NOW_S),
            ),
        ),
        # A size that is none of its own is held all the same; a restart lost progress.
        (
            3, 1, 0, 20, 0.1, replace(OLD, since=Spent(10, 0.2)),
            SizeHistory(
                asked=S1, now=Shape(1, 3), since=Spent(20, 0.1), spent={S1: Spent(10, 0)},
                resized_s=(NOW_S,),
            ),
        ),
        # Written and obtained, for the first time; written and not obtained; no even size at all.
        (2, 1, 0, 0, None, SizeHistory(asked=S1, written=S2), SizeHistory(asked=S1, now=S2)),
        (
            1, 1, 0, 0, None, SizeHistory(asked=S1, written=S2, refused=frozenset({S4})),
            SizeHistory(asked=S1, now=S1, refused=frozenset({S2, S4})),
        ),
        # It began about when another size was written: maybe before. Twice is no accident.
        (
            1, 1, 5, 5, None, SizeHistory(asked=S1, written=S2, written_s=NOW_S - 6),
            SizeHistory(asked=S1, now=S1, written_s=NOW_S - 6, doubtful=True),
        ),
        (
            1, 1, 5, 5, None, SizeHistory(asked=S1, written=S2, written_s=NOW_S - 6, doubtful=True),
            SizeHistory(
                asked=S1, now=S1, written_s=NOW_S - 6, doubtful=True, refused=frozenset({S2})
            ),
        ),
        (3, 2, 0, 0, None, OLD, OLD),
    ],
)  # fmt: skip
def test_a_run_goes_to_the_size_it_has(
    *, gpus: float, nodes: int, run_s: float, ran_s: float, p: float | None,
    before: SizeHistory | None, after: SizeHistory,
) -> None:  # fmt: skip
    """Spent, since, resizes and refusals of a job that runs."""
    row = build.running(1, gpus, n_nodes=nodes, ran_s=run_s)
    assert noted(snap_of(row, before, ran_s=ran_s, p=p)) == after


LIMITS = BatchLimits(128, 4096, 8, 64)
REPORT = StepReport(0, 2, 32, 1, 0.3, 900.0, LIMITS)
SEEN = StepTime(1, 2, 32, 0, 0.3, gpu_type="a100")
KNOWS = with_step(SizeHistory(asked=S1, now=S2), SEEN)


@pytest.mark.parametrize(
    ("report", "batch", "before", "steps"),
    [
        (REPORT, "adapt", None, (SEEN,)),
        (REPORT, "adapt", KNOWS, (SEEN,)),
        # The same configuration again, another one.
        (replace(REPORT, step_s=0.4), "adapt", KNOWS, (replace(SEEN, step_s=0.4),)),
        (replace(REPORT, passes=2), "adapt", KNOWS, (SEEN, replace(SEEN, more=1))),
        # Of another run, of as many GPUs as it does not hold, of a batch that does not adapt.
        (replace(REPORT, run=1), "adapt", KNOWS, (SEEN,)),
        (replace(REPORT, run=1), "adapt", None, ()),
        (replace(REPORT, gpus=4), "adapt", None, ()),
        (REPORT, "fixed", None, ()),
        (None, "adapt", KNOWS, (SEEN,)),
    ],
)
def test_steps_that_a_run_reports_of_its_size_are_kept(
    report: StepReport | None,
    batch: Batch,
    before: SizeHistory | None,
    steps: tuple[StepTime, ...],
) -> None:
    """With what is fitted to them."""
    claims = {JobId(1): Claim(sizes=SIZES, asked=S1, batch=batch, steps=report)}
    seen = build.observed([build.running(1, 2)], claims=claims, held={1: {0: 2.0}})
    booked = () if before is None else (entry(SIZE, 1, before.body()),)
    after = noted(build.snapshot(seen, booked=booked))

    assert after is not None
    assert after.steps == steps
    assert after.throughput == (fit(steps) if steps else ())


def test_so_many_reports_count_at_once_and_the_others_next() -> None:
    """Those who change theirs all the time hold back nobody of whom less is known."""
    rows = [build.running(j, 1) for j in range(1, 16)]
    report = replace(REPORT, gpus=1)
    booked, known = (entry(SIZE, 1, KNOWS.body()),), []
    for turn in range(3):
        loud = replace(report, step_s=0.1 + turn)
        claims = {
            JobId(j): Claim(sizes=SIZES, batch="adapt", steps=loud if j == 1 else report)
            for j in range(1, 16)
        }
        snap = build.snapshot(
            build.observed(rows, claims=claims, nodes=(4, 4, 4, 4)), booked=booked
        )
        for book in note_sizes(snap, []):
            booked = updated(booked, book.entries)
        histories = size_histories(booked)
        known.append(sum(bool(h.steps) for h in histories.values()))

    assert known == [11, 15, 15]
    assert histories[JobId(1)].steps[-1].step_s == 2.1


def test_a_new_configuration_comes_before_new_times_of_old_ones() -> None:
    """Twelve jobs of which less is known tell another time at each look."""
    loud, known = with_step(OLD, SEEN), with_step(KNOWS, replace(SEEN, more=1))
    claims = {
        JobId(j): Claim(sizes=SIZES, batch="adapt", steps=replace(REPORT, step_s=j))
        for j in range(1, 14)
    }
    claims[JobId(13)] = replace(claims[JobId(13)], steps=replace(REPORT, passes=3))
    rows, held = [build.running(j, 2) for j in claims], {j: {j // 4: 2.0} for j in claims}
    seen = build.observed(rows, claims=claims, nodes=(8,) * 4, held=held)
    booked = tuple(entry(SIZE, j, (known if j == 13 else loud).body()) for j in claims)
    (book,) = note_sizes(build.snapshot(seen, booked=booked), [])
    after = size_histories(updated(booked, book.entries))[JobId(13)]

    assert len(after.steps) == 3


@pytest.mark.parametrize(
    "change",
    [
        *({"throughput": []}, {"throughput": [1.0]}, {"steps": [[1]]}, {"since": [10**400, 0]}),
        *({"throughput": [0.1, 0.1, 0, 0, 0, wrong, 1]} for wrong in (-1, math.nan, math.inf)),
        *({"throughput": [0.1, 0.1, 0, 0, 0, 0, 0]}, {"throughput": [0.1, 0, 0, 0, 0, 0, 1]}),
        *({"steps": [[1, 10**400, 32, 0, 0.3]]}, {"steps": [[1, 2, 10**400, 0, 0.3]]}),
        *({"steps": [[1, 2, 32, 0, 5e-324]]}, {"steps": [[1, 2, 32, 0, 10**400]]}),
    ],
)
def test_damaged_steps_are_a_damaged_entry(change: dict[str, object]) -> None:
    """They are worth as little as the rest."""
    assert list(size_histories([entry(SIZE, 1, KNOWS.body())])) == [1]
    assert size_histories([entry(SIZE, 1, {**KNOWS.body(), **change})]) == {}


def written(ago_s: float, *, doubtful: bool = False) -> SizeHistory:
    return SizeHistory(written=S4, written_s=NOW_S - ago_s, doubtful=doubtful)


@pytest.mark.parametrize(
    ("held", "before", "shapes", "after"),
    [
        (Held.NO, None, [], None),
        (Held.NO, None, [S4], SizeHistory(asked=S1, written=S4, written_s=NOW_S)),
        (Held.NO, OLD, [S4], replace(OLD, written=S4, written_s=NOW_S)),
        (Held.LIMIT, SizeHistory(written=S4), [], SizeHistory(refused=frozenset({S4}))),
        (Held.LIMIT, SizeHistory(asked=S4, written=S4), [], SizeHistory(asked=S4, written=S4)),
        (Held.NO, SizeHistory(written=S4), [], SizeHistory(written=S4)),
        (Held.BEGIN_TIME, SizeHistory(written=S4), [], SizeHistory(written=S4)),
        (Held.UNAVAILABLE, SizeHistory(written=S4), [], SizeHistory(refused=frozenset({S4}))),
        (Held.UNAVAILABLE, OLD, [], OLD),
        # Slurm shows the old one after a minute; then after another.
        (Held.NO, written(59), [S4], written(59)),
        (Held.NO, written(61), [S4], written(0, doubtful=True)),
        (
            Held.NO,
            written(61, doubtful=True),
            [S4],
            SizeHistory(refused=frozenset({S4}), written_s=NOW_S - 61, doubtful=True),
        ),
    ],
)
def test_what_is_written_of_a_waiting_job_stands_until_it_runs(
    held: Held, before: SizeHistory | None, shapes: Sequence[Shape], after: SizeHistory | None
) -> None:
    """Unless Slurm says that no nodes would ever do."""
    assert noted(snap_of(build.pending(1, held=held), before), *shapes) == after


def test_the_old_size_that_is_written_back_is_not_the_refused_one() -> None:
    """In one decision the refusal is noted and the asked size written."""
    snap = snap_of(build.pending(1, held=Held.UNAVAILABLE), SizeHistory(asked=S1, written=S4))
    (book,) = note_sizes(snap, [reshape(S1)])
    found = size_histories(book.entries)[JobId(1)]

    assert (found.written, found.refused) == (S1, frozenset({S4}))


@pytest.mark.parametrize(
    "row", [build.running(1), JobRow(job_id=1, state=JobState.COMPLETING, gpus=1)]
)
def test_a_size_for_a_job_that_does_not_wait_is_not_written(row: JobRow) -> None:
    """Slurm would take it of a waiting job alone, so that no refusal follows."""
    assert noted(snap_of(row, OLD), S4) == OLD


@pytest.mark.parametrize(
    ("row", "more", "stays"),
    [
        (JobRow(job_id=1, state=JobState.COMPLETING), {}, True),
        (JobRow(job_id=1, state=JobState.COMPLETED), {}, False),
        (JobRow(job_id=1, state=JobState.FAILED), {}, False),
        (build.pending(2), {}, False),
        (build.pending(2), {"unreadable": 1}, True),
        (build.pending(2), {"left_out": {JobId(1): LeftOut(uid=1, label="1")}}, True),
        (build.running(1, partition=1), {}, True),
        (build.running(1), {"claims": {}}, True),
    ],
)
def test_entries_go_with_their_jobs(row: JobRow, more: dict[str, Any], *, stays: bool) -> None:
    """Those of jobs that are over, or surely not there any more, are struck out."""
    before = SizeHistory(asked=S1, now=S4, since=Spent(1.0, 0.0))
    seen = build.observed([row], **{"claims": {JobId(1): Claim(sizes=SIZES)}, **more})
    snap = build.snapshot(seen, booked=(entry(SIZE, 1, before.body()),))

    assert noted(snap) == (before if stays else None)


def test_only_elastic_managed_jobs_are_noted_and_damage_is_struck_out() -> None:
    """Other kinds of entries are nobody's business here."""
    rows = [build.running(1), build.running(2), build.running(3, partition=1), build.pending(4)]
    claims = {JobId(j): Claim(sizes=SIZES) for j in (1, 3, 4)}
    damaged = (Entry(kind=SIZE, key="x", body="{}"), Entry(kind=SIZE, key="1", body='{"now":1}'))
    other = Entry(kind="promise", key="77", body="{}")
    seen = build.observed(rows, claims=claims)
    snap = build.snapshot(seen, booked=(other, *damaged))

    (book,) = note_sizes(snap, [])

    assert [(e.key, bool(e.body)) for e in book.entries] == [("1", True), ("x", False)]


def test_a_requeue_for_another_size_is_counted_once() -> None:
    """It is a step of a hand-over, which is written again until Slurm has taken it."""
    step = replace(reshape(S4), handover_id=HandoverId(7))
    snap = snap_of(build.pending(1), OLD)
    for _ in range(3):
        for book in note_sizes(snap, [step]):
            snap = replace(snap, booked=updated(snap.booked, book.entries))
    assert size_histories(snap.booked)[JobId(1)].requeues == 1
