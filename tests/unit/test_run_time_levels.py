"""Run times learned from jobs before: levels of groups, trees, life tables."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from index_oracle import APART, Times, product_limit
from pasts import Over, past_of

from slurm_dl.estimates import boosted_trees
from slurm_dl.estimates.boosted_trees import LEAST_JOBS, learned_s
from slurm_dl.estimates.similar_jobs import JobFeatures
from slurm_dl.model.completed_jobs import Past
from slurm_dl.policies.arithmetic.run_time_levels import Level
from slurm_dl.policies.arithmetic.run_time_model import Counts, life_tables


def level(keys: list[int], log_s: list[float], parents: list[int] | None = None) -> Level:
    """Groups of *keys*, of one parent if nothing is said."""
    return Level.of(
        np.array(keys, dtype=np.int64),
        np.array(parents or [0] * len(keys), dtype=np.int64),
        np.array(log_s),
    )


def test_posterior_means_by_hand() -> None:
    """Four jobs of 1 and 3, four of 11 and 13; squares 8 within, with 6 degrees of freedom.

    Without the groups 208 with 7. The variance within counts with four jobs of the parent's:
    (8 + 4 x 208 / 7) / (6 + 4); k is that over what it is less than the parent's.
    """
    found = level([7, 9] * 4, [1, 11, 3, 13, 1, 11, 3, 13])
    parent = 208 / 7
    within = (8 + 4 * parent) / 10
    k = within / (parent - within)

    assert (found.key.tolist(), found.jobs.tolist()) == ([7, 9], [4, 4])
    assert found.mean.tolist() == [2, 12]
    assert found.weight == pytest.approx(k)
    jobs, mean = found.find(np.array([9, 8, 7, 10, 0]))
    assert (jobs.tolist(), mean.tolist()) == ([4, 0, 4, 0, 0], [12, 0, 2, 0, 0])
    told = found.posterior(np.array([4.0, 0, 1]), np.array([12.0, 0, 2]), np.array([7.0, 6, 5]))
    assert told == pytest.approx([(48 + 7 * k) / (4 + k), 6, (2 + 5 * k) / (1 + k)])


def test_a_level_that_is_not_used_says_what_its_parent_says() -> None:
    """Equal groups explain nothing."""
    found = level([1, 2, 1, 2], [1.0, 1.0, 5.0, 5.0])

    assert not found.used
    assert found.posterior(np.array([9.0]), np.array([5.0]), np.array([3.0])).tolist() == [3]


@given(
    jobs=st.lists(st.tuples(st.integers(0, 4), st.floats(0, 20)), min_size=1, max_size=30),
)
def test_before_each_job_its_group_had_so_many_jobs_of_such_a_mean(
    jobs: list[tuple[int, float]],
) -> None:
    """Against a loop over the jobs in the order in which they ended."""
    found = level([key for key, _ in jobs], [value for _, value in jobs])

    for i, (key, _) in enumerate(jobs):
        before = [value for other, value in jobs[:i] if other == key]
        assert found.before_jobs[i] == len(before)
        assert found.before_mean[i] == pytest.approx(np.mean(before) if before else 0, abs=1e-9)


def normal(
    groups: int, jobs: int, between: float, within: float, seed: int = 0
) -> tuple[list[int], list[float]]:
    """Groups of so many jobs, with these standard deviations, in any order."""
    random = np.random.default_rng([seed, groups, jobs])
    key = random.permutation(np.repeat(np.arange(groups), jobs))
    log_s = random.normal(8, between, groups)[key] + random.normal(0, within, len(key))
    return key.tolist(), log_s.tolist()


@pytest.mark.parametrize(("between", "within"), [(2.0, 1.0), (1.0, 1.0), (1.0, 1.5), (1.0, 0.3)])
def test_k_is_the_ratio_of_the_variances(between: float, within: float) -> None:
    """Of normal data with many groups."""
    found = level(*normal(400, 10, between, within))

    assert found.weight == pytest.approx((within / between) ** 2, rel=0.2, abs=0.02)


@pytest.mark.parametrize(
    ("between", "jobs", "used"),
    [(0.0, 1, 0), (0.0, 20, 0), (1.5, 1, 0), (1.5, 2, 20), (1.5, 20, 20)],
)
def test_labels_are_used_if_they_differ(between: float, jobs: int, used: int) -> None:
    """In each of twenty draws or in none; with one job each nobody knows whether they do."""
    found = [level(*normal(60, jobs, between, 1.0, seed)).used for seed in range(20)]

    assert sum(found) == used


def test_what_the_parents_explain_is_no_merit_of_their_groups() -> None:
    """Labels that are drawn by lot within users who differ."""
    random = np.random.default_rng(3)
    user = random.integers(0, 10, 2000)
    log_s = 3.0 * user + random.normal(0, 1, 2000)
    label = user * 100 + random.integers(0, 20, 2000)

    assert level(user.tolist(), log_s.tolist()).used
    assert level(label.tolist(), log_s.tolist()).used
    assert not level(label.tolist(), log_s.tolist(), user.tolist()).used


@pytest.mark.parametrize("log_s", [[5.0], [5.0, 5.0, 5.0], [1.0, 9.0]])
def test_of_too_little_nothing_is_told(log_s: list[float]) -> None:
    """One job, equal jobs, or a group for each."""
    found = level(list(range(len(log_s))), log_s)

    assert math.isinf(found.weight)


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


def table(*groups: Times) -> tuple[list[float], list[list[float]]]:
    """Support and probabilities of each group."""
    counts = []
    for ended in (True, False):
        pairs = [(g, t) for g, times in enumerate(groups) for t, e in times if e == ended]
        group = np.array([g for g, _ in pairs], dtype=np.int64)
        counts.append(Counts.of(group, np.array([t for _, t in pairs], dtype=float), len(groups)))
    found = life_tables(*counts)
    return found.at.tolist(), found.mass.tolist()


@st.composite
def drawn(draw: st.DrawFn) -> Times:
    """Ends, some equal, and censored times at which nobody ends."""
    ends = draw(st.lists(st.sampled_from(APART[::2]), min_size=1, max_size=15))
    more = draw(st.lists(st.sampled_from(APART[1::2]), max_size=15))
    return [*((t, True) for t in ends), *((t, False) for t in more)]


@given(times=drawn())
def test_it_is_the_product_limit(times: Times) -> None:
    """Where ends and censored times share no bin the bins lose nothing."""
    at, [mass] = table(times)

    expected = product_limit(times)
    assert at == pytest.approx(list(expected))
    assert mass == pytest.approx(list(expected.values()), abs=1e-12)


@given(groups=st.lists(drawn(), min_size=2, max_size=4))
def test_groups_share_the_support_and_nothing_else(groups: list[Times]) -> None:
    """Each has its own probabilities; the time beyond all is that of the largest of all groups."""
    at, masses = table(*groups)

    for times, mass in zip(groups, masses, strict=True):
        *_, left = expected = product_limit(times)
        there = {**dict.fromkeys(range(len(at)), 0.0)}
        there |= {
            int(np.argmin(np.abs(np.array(at) - t))): p for t, p in expected.items() if t != left
        }
        there[len(at) - 1] += expected[left]
        assert mass == pytest.approx([there[i] for i in range(len(at))], abs=1e-12)


def test_without_censored_times_it_is_the_empirical_distribution() -> None:
    """A bin has the mean of its times; nothing is beyond."""
    times = np.random.default_rng(1).lognormal(5, 2, 3000)
    at, [mass] = table([(t, True) for t in times.tolist()])

    assert sum(mass) == pytest.approx(1)
    assert mass[-1] == pytest.approx(0)
    assert np.dot(at[:-1], mass[:-1]) == pytest.approx(times.mean())
    upto = np.cumsum(mass)[:-1]
    between = np.sqrt(np.array(at[:-2]) * np.array(at[1:-1]))
    shares = [(times <= t).mean() for t in between.tolist()]
    assert upto[:-1] == pytest.approx(shares, abs=0.03)


@pytest.mark.parametrize(
    ("times", "at", "mass"),
    [
        # One end, three jobs far beyond it: they end at twice the largest time.
        ([(10.0, True), *[(500.0, False)] * 3], [10, 1000], [1 / 4, 3 / 4]),
        # A job censored in the bin of an end is at risk for half of it.
        ([(10.0, True), (10.0, False)], [10, 20], [2 / 3, 1 / 3]),
        # The last end was at risk alone: nothing is left.
        ([(10.0, True), (5.0, False)], [10, 20], [1, 0]),
        # Ends of one bin are at their mean.
        ([(10.0, True), (10.2, True), (90.0, True)], [10.1, 90, 180], [2 / 3, 1 / 3, 0]),
        # Beyond the bins.
        ([(1e-9, True), (1e12, True)], [1e-9, 1e12, 2e12], [1 / 2, 1 / 2, 0]),
    ],
)
def test_tables_by_hand(times: Times, at: list[float], mass: list[float]) -> None:
    found_at, [found] = table(times)

    assert found_at == pytest.approx(at)
    assert found == pytest.approx(mass, abs=1e-12)


def test_a_group_without_an_end_lies_beyond_and_no_group_is_not_counted() -> None:
    """It ends at twice the largest time; jobs of group -1 are nowhere."""
    at, masses = table([(10.0, True)], [(70.0, False)])
    assert at == pytest.approx([10, 140])
    assert masses == [pytest.approx([1, 0]), pytest.approx([0, 1])]

    counts = Counts.of(np.array([-1, 0]), np.array([10.0, 20.0]), 1)
    assert counts.number.sum() == 1
    assert counts.total.sum() == 20


def test_pooled_groups_are_one() -> None:
    """The same as if all were of one group."""
    group, times = np.array([0, 1, 1, 2]), np.array([3.0, 9.0, 3.0, 81.0])
    pooled = Counts.of(group, times, 3).pooled()
    one = Counts.of(np.zeros(4, dtype=np.int64), times, 1)

    assert np.array_equal(pooled.number, one.number)
    assert pooled.total == pytest.approx(one.total)
