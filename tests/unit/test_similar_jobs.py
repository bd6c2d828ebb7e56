"""Run times out of earlier jobs of the same user: by close names, and by tags."""

from __future__ import annotations

import difflib
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pasts import Over, past_of

from slurm_dl.estimates import similar_jobs
from slurm_dl.estimates.similar_jobs import JobFeatures, rolling_s, tagged_s
from slurm_dl.model.completed_jobs import NO_PAST, Past


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
