"""Run times out of earlier jobs of the same user, and how long jobs are still to run."""

from __future__ import annotations

import dataclasses
import difflib
import math
import statistics

import build
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pasts import Over, past_of

from slurm_dl.estimates import similar_jobs
from slurm_dl.estimates.remaining_time import LEAST_PROGRESS, LEAST_RUN_S, left_of
from slurm_dl.estimates.similar_jobs import JobFeatures, rolling_s, tagged_s
from slurm_dl.model.completed_jobs import NO_PAST, Past
from slurm_dl.model.jobs import JobRow, Origin
from slurm_dl.model.snapshot import Snapshot


def jobs(*which: tuple[str, str, float]) -> JobFeatures:
    """Jobs of (user, name, GPUs)."""
    return JobFeatures(
        user=tuple(w[0] for w in which),
        name=tuple(w[1] for w in which),
        gpus=np.array([w[2] for w in which], dtype=np.float64),
        submit_s=np.full(len(which), 2e9),
    )


def by_definition(past: Past, user: str, name: str, gpus: float) -> float:
    """The rolling mean, as its description reads, with the library's own search of names."""
    rows = [
        (past.users[u], past.names[n], g, r)
        for u, n, g, r in zip(past.user, past.name, past.gpus, past.ran_s, strict=True)
    ]
    own = [row for row in rows if row[0] == user]
    if not own:
        return statistics.fmean(row[3] for row in rows)
    close = [name] if any(row[1] == name for row in own) else []
    close = close or difflib.get_close_matches(name, {row[1] for row in own}, n=2, cutoff=0.6)
    like = [row for row in own if row[1] in close]
    if not like:
        return statistics.fmean(row[3] for row in own)
    as_many = [row for row in like if row[2] == gpus]
    return statistics.fmean(row[3] for row in as_many or like)


WORDS = st.text("abt_1", max_size=6)


@settings(max_examples=200)
@given(
    over=st.lists(
        st.builds(Over, st.sampled_from("uv"), WORDS, st.sampled_from([1, 2]), st.floats(1.0, 1e5)),
        min_size=1,
        max_size=8,
    ),
    user=st.sampled_from("uvw"),
    name=WORDS,
    gpus=st.sampled_from([1, 2, 4]),
)
def test_the_rolling_mean_is_that_of_its_definition(
    over: list[Over], user: str, name: str, gpus: float
) -> None:
    """The search by bounds finds the names that `difflib.get_close_matches` finds."""
    past = past_of(over)

    found = rolling_s(past, jobs((user, name, gpus)))[0]
    assert found == pytest.approx(by_definition(past, user, name, gpus), rel=1e-12)


def test_whose_jobs_count_and_with_how_many_gpus() -> None:
    """The same name alone; as many GPUs if there are any; close names; the user; everybody."""
    past = past_of(
        [
            Over("ann", "train_a", 1, 100),
            Over("ann", "train_a", 1, 300),
            Over("ann", "train_a", 8, 1000),
            Over("ann", "train_b", 1, 7),
            Over("ann", "xxxx", 1, 5000),
            Over("bob", "train_a", 1, 1e6),
        ]
    )

    asked = jobs(
        ("ann", "train_a", 1),
        ("ann", "train_a", 4),
        ("ann", "train_c", 1),
        ("ann", "q", 1),
        ("eve", "train_a", 1),
    )
    everybody = (100 + 300 + 1000 + 7 + 5000 + 1e6) / 6
    expected = [200, 1400 / 3, (100 + 300 + 7) / 3, 6407 / 5, everybody]
    assert rolling_s(past, asked).tolist() == pytest.approx(expected)


def test_a_tag_is_user_name_and_gpus() -> None:
    """The median of the tag, or its mean; the user's mean, then everybody's, without a hit."""
    past = past_of(
        [
            Over("ann", "a", 1, 10),
            Over("ann", "a", 1, 20),
            Over("ann", "a", 1, 60),
            Over("ann", "a", 2, 910),
            Over("bob", "a", 1, 3000),
        ]
    )
    asked = jobs(
        ("ann", "a", 1), ("ann", "a", 2), ("ann", "a", 4), ("bob", "b", 1), ("eve", "a", 1)
    )

    by_median, by_mean = tagged_s(past, asked), tagged_s(past, asked, "mean")
    assert by_median.seconds.tolist() == [20, 910, 250, 3000, 800]
    assert by_mean.seconds.tolist() == [30, 910, 250, 3000, 800]
    assert by_median.hit.tolist() == [True, True, False, False, False]


def test_without_a_past_nothing_is_known() -> None:
    """NaN, which is not zero."""
    asked = jobs(("ann", "a", 1))

    assert np.isnan(rolling_s(NO_PAST, asked)).all()
    assert np.isnan(tagged_s(NO_PAST, asked).seconds).all()
    assert not tagged_s(NO_PAST, asked).hit.any()
    assert len(rolling_s(NO_PAST, jobs())) == 0


def test_a_user_of_the_tables_without_jobs_is_an_unknown_one() -> None:
    """`Past.since` keeps names of which no job is left."""
    past = past_of([Over("ann", "a", 1, 10, 1e9), Over("bob", "b", 1, 30, 2e9)]).since(1.5e9)

    assert rolling_s(past, jobs(("ann", "a", 1))).tolist() == [30]
    assert tagged_s(past, jobs(("ann", "a", 1))).seconds.tolist() == [30]


def test_only_the_names_used_last_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user with very many names costs no more than one with many."""
    monkeypatch.setattr(similar_jobs, "MOST_NAMES", 1)
    past = past_of([Over("ann", "zz_1", 1, 10, 1e9), Over("ann", "yy_1", 1, 30, 2e9)])

    assert rolling_s(past, jobs(("ann", "zz_2", 1), ("ann", "yy_2", 1))).tolist() == [20, 30]


def test_hostile_names_are_names_like_others() -> None:
    """Very long ones, control characters, halves of surrogate pairs, none at all."""
    names = ["", "x" * 100_000, "\x1b[2J\n|", "\udcff", "ß" * 300]
    past = past_of([Over("ann", name, 1, 10.0 + i) for i, name in enumerate(names)])

    found = rolling_s(past, jobs(*(("ann", name, 1) for name in names)))
    assert found.tolist() == [10, 11, 12, 13, 14]
    assert np.isfinite(rolling_s(past, jobs(*(("ann", f"{n}x", 1) for n in names)))).all()


def test_jobs_that_are_alike_are_predicted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand tasks of one array are one question, and asked again it is none."""
    past = past_of([Over("ann", f"train_{i}", 1, 10) for i in range(50)])
    compared = 0

    class Counting(difflib.SequenceMatcher[str]):
        def ratio(self) -> float:
            nonlocal compared
            compared += 1
            return super().ratio()

    monkeypatch.setattr(similar_jobs, "SequenceMatcher", Counting)
    asked = jobs(*[("ann", "train_x", 1)] * 10_000)
    rolling_s(past, asked)
    rolling_s(past, asked)

    assert 0 < compared <= similar_jobs.MOST_COMPARED


def test_of_names_that_are_as_close_the_last_by_letters_are_taken() -> None:
    """As `difflib.get_close_matches` does: none of them is passed over unseen."""
    past = past_of([Over("ann", f"aa{c}", 1, 10.0**i) for i, c in enumerate("bcd")])

    assert rolling_s(past, jobs(("ann", "aaz", 1))).tolist() == [(10 + 100) / 2]


NAN, INF = math.nan, math.inf


def snap_of(ran_s: list[float], limit_s: list[float], **more: object) -> Snapshot:
    """Jobs that ran for so long under these limits."""
    rows = [build.pending(i + 1, limit_s=limit) for i, limit in enumerate(limit_s)]
    snap = build.snapshot(
        build.observed(rows), memory={"ran_s": {i + 1: ran for i, ran in enumerate(ran_s)}}
    )
    return dataclasses.replace(snap, **more)  # type: ignore[arg-type] # names are fields


def test_each_rung_is_taken_where_those_above_say_nothing() -> None:
    """Known, reported, history, time limit, nothing."""
    snap = snap_of(
        [1000.0] * 5,
        [9000.0, 9000.0, 9000.0, 9000.0, INF],
        progress=np.array([0.5, 0.25, NAN, NAN, NAN]),
        left_from=np.array([Origin.KNOWN, 5, 5, 5, 5], dtype=np.int8),
        left_s=np.array([7.0, 0, 0, 0, 0]),
    )
    left = left_of(snap, np.array([4000.0, 4000.0, 4000.0, NAN, NAN]))

    assert left.seconds.tolist() == [7.0, 3000.0, 3000.0, 8000.0, INF]
    assert left.origin.tolist() == [
        Origin.KNOWN,
        Origin.REPORTED,
        Origin.HISTORY,
        Origin.DECLARED,
        Origin.PRIOR,
    ]


@pytest.mark.parametrize(
    ("row", "ran_s", "preemptions", "expected_s", "left_s", "origin"),
    [
        # Preempted by us: the limit less all that it ran, as long as that is something.
        (build.pending(1, restarts=1, limit_s=3600), 3000, 1, NAN, 600, Origin.DECLARED),
        (build.pending(1, restarts=1, limit_s=3600), 3600, 1, NAN, 3600, Origin.DECLARED),
        (build.running(1, restarts=1, limit_s=3600, ran_s=9), 3700, 1, NAN, 3591, Origin.DECLARED),
        # It never was, and Slurm ends it now.
        (build.running(1, limit_s=3600, ran_s=3601), 3601, 0, NAN, 0, Origin.DECLARED),
        # It has begun anew by itself.
        (build.pending(1, restarts=1, limit_s=3600), 3000, 0, NAN, INF, Origin.PRIOR),
        (build.pending(1, restarts=2, limit_s=3600), 3000, 1, NAN, INF, Origin.PRIOR),
        (build.pending(1, restarts=1, limit_s=3600), 3000, 0, 9000, 6000, Origin.HISTORY),
        (build.pending(1, restarts=1, limit_s=3600), 3000, 0, 2000, INF, Origin.PRIOR),
    ],
)
def test_a_time_limit_counts_until_a_job_begins_anew_by_itself(  # noqa: PLR0917
    row: JobRow, ran_s: float, preemptions: int, expected_s: float, left_s: float, origin: Origin
) -> None:
    """It is the limit of one run, and nothing is never left of a job that waits."""
    memory = {"ran_s": {1: ran_s}, "preemptions": {1: preemptions}}
    snap = build.snapshot(build.observed([row]), memory=memory)
    left = left_of(snap, np.array([float(expected_s)]))

    assert (left.seconds.tolist(), left.origin.tolist()) == ([left_s], [origin])


@pytest.mark.parametrize(
    ("progress", "ran_s", "left_s", "origin"),
    [
        (LEAST_PROGRESS, 1000.0, 1000.0 * (1 - LEAST_PROGRESS) / LEAST_PROGRESS, Origin.REPORTED),
        (LEAST_PROGRESS * 0.99, 1000.0, 9000.0, Origin.DECLARED),
        (0.5, LEAST_RUN_S, LEAST_RUN_S, Origin.REPORTED),
        (0.5, LEAST_RUN_S - 1, 10_000.0 - LEAST_RUN_S + 1, Origin.DECLARED),
        (1.0, 1000.0, 0.0, Origin.REPORTED),
        (7.0, 1000.0, 0.0, Origin.REPORTED),
        (-3.0, 1000.0, 9000.0, Origin.DECLARED),
        (INF, 1000.0, 0.0, Origin.REPORTED),
        (0.0, 1000.0, 9000.0, Origin.DECLARED),
    ],
)
def test_reports_count_once_they_can_tell(
    progress: float, ran_s: float, left_s: float, origin: Origin
) -> None:
    """Not before so much is done in so long a time; beyond all of the work nothing is left."""
    left = left_of(snap_of([ran_s], [10_000.0], progress=np.array([progress])))

    assert left.seconds[0] == pytest.approx(left_s)
    assert left.origin[0] == origin


@pytest.mark.parametrize(
    ("expected_s", "limit_s", "left_s", "origin"),
    [
        (1500.0, INF, 500.0, Origin.HISTORY),
        (1000.0, 9000.0, 8000.0, Origin.DECLARED),
        (900.0, INF, INF, Origin.PRIOR),
        (5000.0, 2000.0, 1000.0, Origin.DECLARED),
        (INF, INF, INF, Origin.PRIOR),
        (INF, 2000.0, 1000.0, Origin.DECLARED),
        (1500.0, 500.0, 0.0, Origin.DECLARED),
    ],
)
def test_history_counts_until_a_job_outlives_it(
    expected_s: float, limit_s: float, left_s: float, origin: Origin
) -> None:
    """And never beyond the time limit, at which Slurm ends the job."""
    left = left_of(snap_of([1000.0], [limit_s]), np.array([expected_s]))

    assert left.seconds.tolist() == [left_s]
    assert left.origin.tolist() == [origin]


ANY = st.floats(allow_nan=True, allow_infinity=True)


@given(
    st.lists(
        st.tuples(st.floats(0, 1e7), st.one_of(st.just(INF), st.floats(0, 1e7)), ANY, ANY),
        max_size=8,
    )
)
def test_whatever_is_said_what_is_left_is_no_less_than_nothing(
    jobs: list[tuple[float, float, float, float]],
) -> None:
    """Nor is it NaN; each job's answer depends on the job alone."""
    ran_s, limit_s, progress, expected_s = (
        np.array([job[i] for job in jobs], dtype=np.float64) for i in range(4)
    )
    snap = snap_of(ran_s.tolist(), limit_s.tolist(), progress=progress)
    left = left_of(snap, expected_s)

    assert (left.seconds >= 0).all()
    for i in range(len(jobs)):
        one = snap_of([ran_s[i]], [limit_s[i]], progress=progress[i : i + 1])
        alone = left_of(one, expected_s[i : i + 1])
        assert alone.seconds[0] == left.seconds[i]
        assert alone.origin[0] == left.origin[i]
