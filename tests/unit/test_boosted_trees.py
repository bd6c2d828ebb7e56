"""Run times learned from all jobs before."""

from __future__ import annotations

import numpy as np
import pytest
from pasts import Over, past_of

from slurm_dl.estimates import boosted_trees
from slurm_dl.estimates.boosted_trees import LEAST_JOBS, learned_s
from slurm_dl.estimates.similar_jobs import JobFeatures
from slurm_dl.model.completed_jobs import Past

DAY_S = 86_400.0
MODELS = {"resnet": 3600.0, "bert": 36_000.0, "debug": 60.0, "gan": 7200.0}


def site(days: int = 10, seed: int = 0) -> list[Over]:
    """Three users who train four models, each about as long every time, under ever new names."""
    rng = np.random.default_rng(seed)
    over = []
    for i in range(40 * days):
        model = list(MODELS)[i % len(MODELS)]
        over.append(
            Over(
                user=f"u{i % 3}",
                name=f"{model}_run{i}",
                gpus=float(2 ** (i % 3)),
                ran_s=MODELS[model] * float(rng.lognormal(0, 0.2)),
                end_s=10_000 * DAY_S + i * DAY_S / 40,
            )
        )
    return over


def new_jobs(past: Past, names: list[str]) -> JobFeatures:
    """Jobs of a known user submitted after all that is known."""
    return JobFeatures(
        user=("u0",) * len(names),
        name=tuple(names),
        gpus=np.ones(len(names)),
        submit_s=np.full(len(names), past.end_s[-1] + 1.0),
    )


def test_what_recurs_is_learned() -> None:
    """Under numbers never seen the durations are right within a third."""
    past = past_of(site())
    found = learned_s(past, new_jobs(past, [f"{model}_run{10**9}" for model in MODELS]))

    assert found is not None
    ratio = found / np.array(list(MODELS.values()))
    assert (ratio > 2 / 3).all(), ratio
    assert (ratio < 3 / 2).all(), ratio


def test_equal_pasts_teach_the_same() -> None:
    """To the last bit; also where equal ends are listed otherwise."""
    over = [job._replace(end_s=job.end_s // DAY_S * DAY_S) for job in site()]
    asked = new_jobs(past_of(over), ["resnet_x", "what", ""])
    first = learned_s(past_of(over), asked)
    boosted_trees._trained.cache_clear()
    boosted_trees._model_of.cache_clear()
    again = learned_s(past_of(over), asked)
    turned = learned_s(past_of(over[::-1]), asked)

    assert first.tobytes() == again.tobytes()
    assert turned.tolist() == pytest.approx(first.tolist(), rel=1e-9)


def test_few_jobs_teach_nothing() -> None:
    """One less than the least number."""
    over = site()[:LEAST_JOBS]
    asked = new_jobs(past_of(over), ["resnet_x"])

    assert learned_s(past_of(over), asked) is not None
    assert learned_s(past_of(over[1:]), asked) is None


def test_without_the_library_nothing_is_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is optional."""
    past = past_of(site())
    monkeypatch.setattr(boosted_trees, "is_available", lambda: False)

    assert learned_s(past, new_jobs(past, ["resnet_x"])) is None


def test_a_model_serves_until_the_next_whole_day() -> None:
    """Each job that ends makes a new past; what is learned changes once a day."""
    over = site()
    before = boosted_trees._trained.cache_info().misses
    for count in (len(over) - 3, len(over) - 2, len(over) - 1):
        past = past_of(over[:count])
        assert learned_s(past, new_jobs(past, ["resnet_x"])) is not None

    assert boosted_trees._trained.cache_info().misses == before + 1


def test_nothing_is_learned_from_what_was_not_over_yet() -> None:
    """What was known of a user at a submission are jobs that had ended by then."""
    end_s = np.array([10.0, 20.0, 30.0, 40.0])
    value = np.array([1.0, 2.0, 4.0, 8.0])
    known = boosted_trees._known([("a",), ("b",), ("a",), ("a",)], end_s, value)
    count, mean = known.at(
        [("a",), ("a",), ("a",), ("b",), ("c",), ("a",)],
        np.array([9.0, 30.0, 29.0, 100.0, 100.0, 1e9]),
    )

    assert count.tolist() == [0, 2, 1, 1, 0, 3]
    assert mean.tolist() == pytest.approx([3.75, 2.5, 1.0, 2.0, 3.75, 13 / 3])


def test_more_users_and_names_than_the_trees_take_are_no_error() -> None:
    """A thousand users, each with a name of its own letters."""
    letters = "abcdefghij"
    over = [
        Over(f"u{i}", "".join(letters[int(d)] for d in f"{i:03}"), 1, 10.0 + i, 1e9 + i)
        for i in range(1000)
    ]
    past = past_of(over)

    found = learned_s(past, new_jobs(past, ["abc", "zzz"]))
    assert found is not None
    assert np.isfinite(found).all()
    assert (found > 0).all()
