"""Rows rebuilt from accounting against those of a ledger that missed nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import build
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from slurm_dl.ledger.attained_service import AttainedService
from slurm_dl.ledger.rebuild_from_accounting import Rebuilt, ReportedRun, chain_of, rebuild
from slurm_dl.ledger.sqlite.store import SqliteStore
from slurm_dl.ledger.store_protocol import MemoryStore
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import Held, JobRow, JobState
from slurm_dl.model.snapshot import Observed

T0 = build.NOW_S
HOLD_S = 6
EXACT = (
    *("job_id", "first_submit_s", "restarts", "run_start_s", "counted_to_s", "run_gpus"),
    *(
        "first_run_s",
        "forgiven_gpu_s",
        "forgiven_ran_s",
        "fruitless",
        "last_fruitless_s",
    ),
    *("site_factor", "last_seen_s", "over", "incomplete"),
)
"""Columns that must come out as if nothing had been missed."""


@dataclass
class Part:
    """Seconds of a run with the same GPUs, suspended or not."""

    length_s: int
    gpus: int
    suspended: bool = False


@dataclass
class Life:
    """One job as it really was: waits and runs by turns, each run but the last requeued.

    Attributes:
        waits_s: Before each run, at least one more than the hold after a requeue.
        runs: One fewer than the waits, or as many.
        lag_s: From the end of a run to the submit time that its requeue is given; Slurm has 0 or 1.
    """

    job_id: int
    uid: int
    submit_s: float
    waits_s: list[int]
    runs: list[list[Part]]
    lag_s: int = 0
    spans: list[tuple[float, float, float, float]] = field(init=False)
    """Submit, eligible, start and end of each run; the end of the last one may be in the future."""

    def __post_init__(self) -> None:
        self.spans = []
        # At first it has a begin time.
        submit_s, eligible_s = self.submit_s, self.submit_s + 3
        free_s = self.submit_s
        for wait_s, run in zip(self.waits_s, self.runs, strict=False):
            start_s = free_s + wait_s
            end_s = start_s + sum(part.length_s for part in run)
            self.spans.append((submit_s, eligible_s, start_s, end_s))
            free_s, submit_s = end_s, end_s + self.lag_s
            eligible_s = submit_s + HOLD_S
        self.after = (submit_s, eligible_s)

    def at(self, now_s: float) -> tuple[int, tuple[float, float], float | None]:
        """Runs over by *now_s*, submit and eligible time of the present one, its start."""
        for n, (submit_s, eligible_s, start_s, end_s) in enumerate(self.spans):
            if now_s < end_s:
                begun = start_s if now_s >= start_s else None
                return n, (submit_s, eligible_s), begun
        return len(self.spans), self.after, None

    def part_at(self, n: int, now_s: float) -> Part:
        """The part of run *n* in which *now_s* is."""
        left_s = now_s - self.spans[n][2]
        for part in self.runs[n]:
            if left_s < part.length_s:
                return part
            left_s -= part.length_s
        return self.runs[n][-1]

    def row(self, now_s: float) -> JobRow | None:
        """What squeue says."""
        if now_s < self.submit_s:
            return None
        restarts, (submit_s, eligible_s), start_s = self.at(now_s)
        row = JobRow(
            job_id=JobId(self.job_id),
            state=JobState.PENDING,
            held=Held.BEGIN_TIME if eligible_s > now_s else Held.NO,
            uid=self.uid,
            gpus=self.runs[0][0].gpus,
            submit_s=submit_s,
            restarts=restarts,
        )
        if start_s is None:
            return row
        part = self.part_at(restarts, now_s)
        state = JobState.SUSPENDED if part.suspended else JobState.RUNNING
        return dataclasses.replace(row, state=state, held=Held.NO, gpus=part.gpus, start_s=start_s)

    def told(
        self, now_s: float, *, start_of_all: bool, gpus_known: bool = True
    ) -> list[ReportedRun]:
        """What sacct says; *start_of_all*: resized records start as on 22.05."""
        records = []
        for n, (submit_s, eligible_s, start_s, end_s) in enumerate(self.spans):
            if now_s < submit_s:
                break
            if now_s < start_s:
                records.append(self._record(submit_s, eligible_s))
                break
            records += self._pieces(
                n, min(end_s, now_s), is_open=now_s < end_s, start_of_all=start_of_all
            )
        else:
            if now_s >= self.after[0]:
                records.append(self._record(*self.after))
        if not gpus_known:
            records = [dataclasses.replace(r, gpus=None) for r in records]
        return records

    def _record(self, submit_s: float, eligible_s: float) -> ReportedRun:
        return ReportedRun(
            job_id=self.job_id,
            uid=self.uid,
            submit_s=submit_s,
            eligible_s=eligible_s,
            start_s=0,
            end_s=0,
            elapsed_s=0,
        )

    def _pieces(
        self, n: int, up_to_s: float, *, is_open: bool, start_of_all: bool
    ) -> list[ReportedRun]:
        submit_s, eligible_s, run_start_s, _ = self.spans[n]
        groups: list[list[Part]] = []
        for part in self.runs[n]:
            if groups and groups[-1][0].gpus == part.gpus:
                groups[-1].append(part)
            else:
                groups.append([part])
        pieces: list[ReportedRun] = []
        at_s = run_start_s
        for group in groups:
            if pieces and at_s >= up_to_s:
                break
            piece_start_s, suspended_s, is_suspended = at_s, 0.0, False
            for part in group:
                length_s = max(0.0, min(part.length_s, up_to_s - at_s))
                inside = at_s <= up_to_s < at_s + part.length_s
                suspended_s += length_s if part.suspended else 0.0
                is_suspended |= is_open and inside and part.suspended
                at_s += part.length_s
            told_start_s = run_start_s if start_of_all else piece_start_s
            end_s = min(at_s, up_to_s)
            last = at_s > up_to_s or group is groups[-1]
            pieces.append(
                ReportedRun(
                    job_id=self.job_id,
                    uid=self.uid,
                    submit_s=submit_s if not pieces else piece_start_s,
                    eligible_s=eligible_s,
                    start_s=told_start_s,
                    end_s=0 if last and is_open else end_s,
                    elapsed_s=end_s - told_start_s - suspended_s,
                    suspended_s=suspended_s,
                    gpus=group[0].gpus,
                    is_suspended=is_suspended,
                    is_part=not last,
                    is_requeued=last and not is_open,
                )
            )
        return pieces

    def served(self, now_s: float) -> tuple[float, float]:
        """Seconds and GPU-seconds up to *now_s*, second by second."""
        ran_s = gpu_s = 0
        for run, (_, _, start_s, _) in zip(self.runs, self.spans, strict=False):
            second = start_s
            for part in run:
                for _ in range(part.length_s):
                    if second < now_s and not part.suspended:
                        ran_s += 1
                        gpu_s += part.gpus
                    second += 1
        return ran_s, gpu_s


def look(lives: Sequence[Life], now_s: float) -> Observed:
    rows = [row for life in lives if (row := life.row(now_s)) is not None]
    return build.observed(rows, now_s=now_s)


def watched(
    lives: Sequence[Life], from_s: float, to_s: float, service: AttainedService
) -> AttainedService:
    """A ledger that looks every second from *from_s* to *to_s*, both included."""
    for now_s in np.arange(from_s, to_s + 1):
        service = build.folded(service, look(lives, float(now_s))).service
    return service


def told_of(
    lives: Sequence[Life], now_s: float, *, start_of_all: bool = False
) -> list[ReportedRun]:
    return [r for life in lives for r in life.told(now_s, start_of_all=start_of_all)]


def completed(service: AttainedService, seen: Observed, told: Sequence[ReportedRun]) -> Rebuilt:
    """As the daemon does it: ask about what is incomplete."""
    asked = service.job_id[service.incomplete].tolist()
    return rebuild(service, seen, told, asked)


def restored(service: AttainedService, rebuilt: Rebuilt) -> AttainedService:
    ledger = Ledger(MemoryStore())
    ledger._service = service
    ledger.restore(rebuilt.service, rebuilt.ended)
    return ledger.service


def _parts(draw: st.DrawFn) -> list[Part]:
    """A run; never suspended in its first or last second, of which polls see but one side."""
    parts = [Part(draw(st.integers(1, 9)), draw(st.sampled_from([1, 4])))]
    for _ in range(draw(st.integers(0, 1))):
        parts += [
            Part(draw(st.integers(1, 9)), parts[-1].gpus, suspended=draw(st.booleans())),
            Part(draw(st.integers(1, 9)), draw(st.sampled_from([1, 4]))),
        ]
    return parts


@st.composite
def lives(draw: st.DrawFn) -> list[Life]:
    """A few jobs, among them reused ids: the same id of another user, or of an earlier time."""
    made = []
    for number in range(draw(st.integers(1, 3))):
        runs = [_parts(draw) for _ in range(draw(st.integers(1, 4)))]
        waits_s = [draw(st.integers(HOLD_S + 2, HOLD_S + 12)) for _ in runs]
        made.append(
            Life(
                number + 1,
                1000 + number,
                T0 + draw(st.integers(0, 20)),
                waits_s,
                runs,
                draw(st.integers(0, 1)),
            )
        )
    return made


def assert_same(
    actual: AttainedService, expected: AttainedService, *, missed_s: float = 0.0
) -> None:
    assert actual.queued_s == pytest.approx(expected.queued_s, abs=missed_s)
    for name in EXACT:
        assert getattr(actual, name).tolist() == getattr(expected, name).tolist(), name
    # A poll counts the second in which a job is suspended as suspended, and adds it on resuming.
    for name in ("ran_s", "attained_gpu_s", "run_gpu_s"):
        assert getattr(actual, name) == pytest.approx(getattr(expected, name), abs=4.0), name
    # The last look while it was held is one second before it was eligible.
    assert actual.waiting_since_s == pytest.approx(expected.waiting_since_s, abs=1.0)
    assert (actual.preemptions >= expected.preemptions).all()
    assert (actual.last_preempted_s >= expected.last_preempted_s).all()


@settings(max_examples=15, deadline=None, phases=[Phase.generate])
@given(jobs=lives(), at=st.integers(20, 110), start_of_all=st.booleans())
def test_a_lost_ledger_comes_back(jobs: list[Life], at: int, *, start_of_all: bool) -> None:
    """Every column is what a daemon would have that looked every second from the beginning."""
    now_s = T0 + at
    seen = look(jobs, now_s)
    service = build.folded(AttainedService.empty(), seen).service
    there = watched(jobs, T0, now_s, AttainedService.empty())

    asked = service.job_id.tolist()
    rebuilt = rebuild(service, seen, told_of(jobs, now_s, start_of_all=start_of_all), asked)
    after = restored(service, rebuilt)

    assert rebuilt.short == frozenset()
    # Fewer runs than one: what is running is counted from its start, no accounting was needed.
    keep = after.restarts > 0
    assert_same(after.take(keep), there.take(keep))
    for life in jobs:
        if life.job_id in after.job_id[keep].tolist():
            k = int(after.rows_of(np.array([life.job_id]))[0])
            assert (after.ran_s[k], after.attained_gpu_s[k]) == life.served(now_s)


@settings(max_examples=15, deadline=None, phases=[Phase.generate])
@given(jobs=lives(), left=st.integers(0, 60), away_s=st.integers(5, 70))
def test_runs_missed_in_an_outage_come_back(jobs: list[Life], left: int, away_s: int) -> None:
    """A daemon that was down for a while knows afterwards what one knows that was not."""
    now_s = T0 + left + away_s
    there = watched(jobs, T0, now_s, AttainedService.empty())
    seen = look(jobs, now_s)
    service = build.folded(watched(jobs, T0, T0 + left, AttainedService.empty()), seen).service

    rebuilt = completed(service, seen, told_of(jobs, now_s))
    after = restored(service, rebuilt)

    assert rebuilt.short == frozenset()
    rows = after.rows_of(rebuilt.service.job_id)
    # Known fault: a begin time that ended in the outage, 3 s here, may be missed.
    assert_same(after.take(rows), there.take(rows), missed_s=3.0)
    # Nothing else was missed but suspensions and changes of size while nobody looked.
    for life in jobs:
        if any(p.suspended or p.gpus != run[0].gpus for run in life.runs for p in run):
            continue
        k = np.flatnonzero(after.job_id == life.job_id)
        assert after.ran_s[k] == pytest.approx(life.served(now_s)[0], abs=life.lag_s)


def run(n: int, **more: float) -> ReportedRun:
    """Run *n* of job 7, counted from 0: submitted at T0 + 100 n, started 10 s later, 50 s long."""
    at_s = T0 + 100 * n
    values: dict[str, float] = {
        "job_id": 7,
        "uid": 1000,
        "submit_s": at_s,
        "start_s": at_s + 10,
        "end_s": at_s + 60,
        "elapsed_s": 50,
        "gpus": 2,
        "is_requeued": True,
        **more,
    }
    return ReportedRun(**values)  # type: ignore[arg-type] # values of single fields


def submits(told: Sequence[ReportedRun], *, submit_s: float, restarts: int) -> list[float]:
    chain = chain_of(told, uid=1000, submit_s=submit_s, restarts=restarts)
    return [r.submit_s - T0 for r in chain.earlier]


def test_a_reused_id_brings_nothing_of_its_former_jobs() -> None:
    """Of all records under an id, those count that are so many runs back, and the same user's."""
    told = [
        *(run(n) for n in range(3)),
        run(3, is_requeued=False),
        run(4, uid=1001),
        run(5),
        run(6, uid=1001, submit_s=T0 + 550),
        run(6, end_s=0),
    ]

    assert submits(told, submit_s=T0 + 600, restarts=0) == []
    assert submits(told, submit_s=T0 + 600, restarts=1) == [500]
    assert submits(told[::-1], submit_s=T0 + 600, restarts=1) == [500]
    assert submits(told, submit_s=T0 + 200, restarts=2) == [0, 100]


def test_a_purged_run_is_not_made_up_for_by_a_former_job() -> None:
    """The same user had the id before, a day ago and more: the job has one run, of two restarts."""
    day_s = 86_400
    former = run(0, is_requeued=False)
    late_s = T0 + day_s + 500
    own = run(0, submit_s=late_s, start_s=late_s + 10, end_s=late_s + 60)
    chain = chain_of([former, own], uid=1000, submit_s=late_s + 60, restarts=2)
    soon = chain_of([former, run(1)], uid=1000, submit_s=T0 + 160, restarts=2)

    assert [r.submit_s for r in chain.earlier] == [late_s]
    assert not chain.complete
    # Finished, and requeued by hand soon after: the same job.
    assert soon.complete


def test_a_run_that_accounting_does_not_know_yet_is_not_replaced_by_another() -> None:
    """Without a record of the present run, the earlier ones are still those before it."""
    told = [run(0), run(1)]
    chain = chain_of(told, uid=1000, submit_s=T0 + 160, restarts=2)

    assert chain.present is None
    assert chain.complete
    assert [r.submit_s - T0 for r in chain.earlier] == [0, 100]


def test_a_present_run_that_ended_meanwhile_is_still_the_present_one() -> None:
    """Between the look and the question a job may end; it is not one of its own earlier runs."""
    chain = chain_of([run(0), run(1)], uid=1000, submit_s=T0 + 100, restarts=1)

    assert [r.submit_s - T0 for r in chain.earlier] == [0]
    assert chain.present is not None


def test_a_run_of_no_length_is_not_taken_for_the_present_one() -> None:
    """Requeued in the second of its start (24.11.5: submit times one second apart)."""
    short = run(0, start_s=T0, end_s=T0, elapsed_s=0)
    chain = chain_of([short], uid=1000, submit_s=T0 + 1, restarts=1)

    assert (chain.present, chain.complete) == (None, True)


def one_look(
    row: JobRow, told: Sequence[ReportedRun], before: AttainedService | None = None
) -> Rebuilt:
    seen = build.observed([row], now_s=T0 + 1000)
    service = build.folded(before or AttainedService.empty(), seen).service
    return rebuild(service, seen, told, service.job_id.tolist())


def again(restarts: int, **more: float) -> JobRow:
    """Job 7 waiting after its last requeue."""
    at_s = T0 + 100 * restarts
    return JobRow(
        job_id=JobId(7),
        state=JobState.PENDING,
        uid=1000,
        gpus=more.pop("gpus", 2),
        submit_s=at_s,
        restarts=restarts,
    )


def test_too_few_runs_count_and_the_rest_stays_missing() -> None:
    """Purged records: the job has had at least what is there, and that is not the end of it."""
    rebuilt = one_look(again(3), [run(1), run(2)])

    assert rebuilt.service.attained_gpu_s.tolist() == [200.0]
    assert rebuilt.service.incomplete.tolist() == [True]
    assert rebuilt.short == {7}


def test_time_that_a_run_was_suspended_is_no_service_of_it() -> None:
    """A run under way counts up to the look, not to when accounting was asked, less its pauses."""
    running = dataclasses.replace(
        again(1, gpus=4), state=JobState.RUNNING, start_s=T0 + 110, submit_s=T0 + 100
    )
    present = run(1, end_s=0, elapsed_s=99_999, suspended_s=90, gpus=4, is_requeued=False)
    rebuilt = one_look(running, [run(0), present])

    assert rebuilt.service.ran_s.tolist() == [50 + 800.0]
    assert rebuilt.service.run_gpu_s.tolist() == [4 * 800.0]
    assert rebuilt.service.attained_gpu_s.tolist() == [2 * 50 + 4 * 800.0]


def test_an_accounting_that_knows_nothing_takes_nothing_away() -> None:
    """What the ledger counted itself stands, and the job stays incomplete."""
    running = dataclasses.replace(
        again(1), state=JobState.RUNNING, start_s=T0 + 400, submit_s=T0 + 300
    )
    rebuilt = one_look(running, [])

    assert rebuilt.service.attained_gpu_s.tolist() == [1200.0]
    assert rebuilt.service.incomplete.tolist() == [True]


def test_a_run_whose_end_was_never_told_ends_with_the_next_submission() -> None:
    """A record that stayed open, as where slurmdbd lost a message, does not grow for ever."""
    rebuilt = one_look(again(2), [run(0, end_s=0, elapsed_s=99_999), run(1)])

    # From T0 + 10 to T0 + 100, and 50 s.
    assert rebuilt.service.ran_s.tolist() == [140.0]


def test_unknown_gpus_are_those_asked_for_and_told_of() -> None:
    """Where AccountingStorageTRES lacks gres/gpu a run counts with what the job asks for now."""
    rebuilt = one_look(again(2, gpus=8), [run(0, gpus=None), run(1, gpus=4)])  # type: ignore[arg-type]

    assert rebuilt.service.attained_gpu_s.tolist() == [8 * 50.0 + 4 * 50.0]
    assert rebuilt.gpus_unknown == {7}


def test_requeues_nobody_saw_count_as_ours() -> None:
    """Who requeued a job is not told; it is rather spared. A failed node was not us."""
    told = [run(0), run(1, is_requeued=False), run(2), run(3, end_s=0, start_s=0)]
    rebuilt = one_look(again(3), told)

    assert rebuilt.service.preemptions.tolist() == [2]
    assert rebuilt.service.last_preempted_s.tolist() == [T0 + 260]


def test_requeues_while_the_ledger_knew_the_job_were_not_ours() -> None:
    """The daemon was down then, so it did not preempt; and what it did before stays."""
    before = build.folded(AttainedService.empty(), build.observed([again(0)], now_s=T0 + 5)).service
    before = dataclasses.replace(before, preemptions=np.array([3], dtype=np.int32))
    rebuilt = one_look(again(2), [run(0), run(1)], before)

    assert rebuilt.service.preemptions.tolist() == [3]
    assert rebuilt.service.attained_gpu_s.tolist() == [200.0]


def test_rebuilding_twice_is_rebuilding_once() -> None:
    """What was asked and stored, and asked again, counts once."""
    told = [run(0), run(1), run(2)]
    first = one_look(again(3), told)
    second = rebuild(first.service, build.observed([again(3)], now_s=T0 + 1000), told, [7])

    for name in AttainedService.empty().columns():
        assert getattr(first.service, name).tolist() == getattr(second.service, name).tolist(), name


def test_forgiven_service_stays_forgiven() -> None:
    """What a promotion took out of the ranking is the ledger's own, and is kept."""
    before = build.folded(AttainedService.empty(), build.observed([again(0)], now_s=T0 + 5)).service
    before = dataclasses.replace(
        before, forgiven_ran_s=np.array([9.0]), forgiven_gpu_s=np.array([18.0])
    )
    rebuilt = one_look(again(2), [run(0), run(1)], before)

    assert rebuilt.service.forgiven_gpu_s.tolist() == [18.0]
    assert rebuilt.service.first_run_s.tolist() == before.first_run_s.tolist()


def test_no_more_is_forgiven_than_there_was() -> None:
    """A promotion may have forgiven a suspension that the ledger took for service."""
    before = build.folded(
        AttainedService.empty(), build.observed([again(1)], now_s=T0 + 105)
    ).service
    before = dataclasses.replace(
        before,
        ran_s=np.array([90.0]),
        attained_gpu_s=np.array([180.0]),
        forgiven_ran_s=np.array([90.0]),
        forgiven_gpu_s=np.array([180.0]),
    )
    rebuilt = one_look(again(1), [run(0)], before)

    assert rebuilt.service.forgiven_ran_s.tolist() == rebuilt.service.ran_s.tolist() == [50.0]
    assert rebuilt.service.forgiven_gpu_s.tolist() == [100.0]


def test_a_completing_job_is_left_for_later() -> None:
    """While it completes Slurm tells a requeue by halves."""
    row = dataclasses.replace(again(1), state=JobState.COMPLETING)
    rebuilt = one_look(row, [run(0)])

    assert len(rebuilt.service) == 0


def test_only_what_nobody_saw_is_missing() -> None:
    """A requeue of a run that was watched, and of a job that was seen to finish, hide nothing."""
    looks = [
        again(0),
        dataclasses.replace(again(0), state=JobState.RUNNING, start_s=T0 + 10),
        again(1),
        dataclasses.replace(again(1), state=JobState.RUNNING, start_s=T0 + 110),
        dataclasses.replace(again(1), state=JobState.COMPLETED, start_s=T0 + 110, end_s=T0 + 150),
        again(2),
        again(3),
    ]
    service, marks = AttainedService.empty(), []
    for n, row in enumerate(looks):
        service = build.folded(service, build.observed([row], now_s=T0 + 200 + n)).service
        marks += service.incomplete.tolist()

    assert marks == [False] * 6 + [True]


def test_what_is_restored_is_there_after_a_restart(tmp_path: Path) -> None:
    """Rows and runs are on the disk in one go, and the marks with them."""
    path = tmp_path / "ledger.sqlite"
    store = SqliteStore(path)
    ledger = Ledger(store)
    seen = build.observed([again(2)], now_s=T0 + 1000)
    ledger.book(seen)
    assert ledger.service.incomplete.tolist() == [True]

    rebuilt = rebuild(ledger.service, seen, [run(0), run(1)], [7])
    ledger.restore(rebuilt.service, rebuilt.ended)
    ledger.close()

    store = SqliteStore(path)
    after = store.load().service
    assert after.attained_gpu_s.tolist() == [200.0]
    assert after.incomplete.tolist() == [False]
    assert [(r.start_s - T0, r.gpu_s) for r in store.runs_of(JobId(7))] == [(10, 100), (110, 100)]
    store.close()


def test_a_job_the_ledger_does_not_know_cannot_be_restored() -> None:
    """A row is replaced, never made."""
    rebuilt = one_look(again(1), [run(0)])

    with pytest.raises(ValueError, match="only jobs that the ledger knows"):
        Ledger(MemoryStore()).restore(rebuilt.service, ())
