"""Every policy keeps the contract, and each of its checks can fail."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any, ClassVar

import numpy as np
import pytest

from slurm_dl.model import plugins
from slurm_dl.model.jobs import Bool
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies import registry
from slurm_dl.policies.arithmetic.supply_and_demand import contenders, gpus_by_type, rates_of
from slurm_dl.policies.base import About, Order, Policy, by_share, one_tier
from slurm_dl.testing import (
    CHECKS,
    Check,
    ContractFailure,
    checks,
    situations,
)
from slurm_dl.testing.snapshot_builder import deprived, reordered

EVERY_CHECK = pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)


SOLVING = ("allox", "carbyne", "gavel", "mlfs", "themis_convex")
"""What these names begin with solves linear programs or matchings at each decision."""

EVERY_POLICY = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.long) if name.startswith(SOLVING) else name
        for name in registry.POLICIES
    ],
)


@EVERY_CHECK
@EVERY_POLICY
def test_every_policy_keeps_the_contract(name: str, check: Check) -> None:
    """Whoever adds a policy need not think of all this."""
    check(registry.find(name)())


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A policy of a site's own: whoever came first, less some seconds for each GPU.

    Attributes:
        per_gpu_s: How much earlier a job counts as submitted for each of its GPUs.
    """

    name: ClassVar[str] = "site"
    source: ClassVar[str] = "our own"
    interpretation: ClassVar[str] = ""
    about: ClassVar[About] = About(row="X1", level="W1", formula="submission - per_gpu_s x GPUs")
    preempts: ClassVar[str] = "tier"
    skips: ClassVar[bool] = True

    per_gpu_s: float = 60.0

    @property
    def tiers(self) -> int:
        """One."""
        return 1

    def order(self, snap: Snapshot, /) -> Order:
        """See `Policy`."""
        return one_tier(snap.memory.first_submit_s - self.per_gpu_s * snap.jobs.gpus)

    def next_change_s(self, snap: Snapshot, order: Order, running: Bool, /) -> float:  # noqa: ARG002
        """See `Policy`."""
        return math.inf


@EVERY_CHECK
def test_a_good_policy_of_a_site_passes(check: Check) -> None:
    """The checks ask for nothing beyond the interface."""
    check(Site())


@EVERY_CHECK
def test_good_shares_pass(check: Check) -> None:
    """Equal shares of each type among those that can run there."""
    check(variant(order=lambda _, snap: by_share(equal_shares(snap)))())


def variant(kind: type[Any] = Site, **members: object) -> type[Policy]:
    """*kind* with some of its members replaced."""
    made: type[Policy] = type(kind.__name__, (kind,), {"__slots__": (), **members})
    return made


def about(**values: object) -> About:
    """The good policy's words with some replaced."""
    return dataclasses.replace(Site.about, **values)  # type: ignore[arg-type]


def equal_shares(snap: Snapshot) -> Any:  # noqa: ANN401 - a column
    may = contenders(snap)[:, None] & (rates_of(snap) > 0)
    supply, gpus = gpus_by_type(snap), snap.jobs.gpus
    asked = (may * gpus[:, None]).sum(axis=0)
    each = np.divide(supply, asked, out=np.zeros_like(supply), where=asked > 0)
    return np.where(may, np.minimum(each, 1.0) / may.sum(axis=1, keepdims=True).clip(min=1), 0.0)


def keyed(make: Callable[[Snapshot], Any]) -> type[Policy]:
    """A policy whose key is what *make* says."""
    return variant(order=lambda _, snap: one_tier(np.asarray(make(snap), dtype=np.float64)))


def ordered_by(**columns: Callable[[Snapshot], Any]) -> Callable[[Any, Snapshot], Order]:
    """An `order` by first submission with further columns."""
    return lambda _, snap: dataclasses.replace(
        one_tier(snap.memory.first_submit_s), **{n: make(snap) for n, make in columns.items()}
    )


def sharing(make: Callable[[Snapshot], Any]) -> type[Policy]:
    """A policy that orders by the shares that *make* gives."""
    return variant(order=lambda _, snap: by_share(make(snap)))


class Asked:
    """Gives another key each time it is asked."""

    def __init__(self) -> None:
        self.times = 0.0

    def __call__(self, snap: Snapshot) -> Any:  # noqa: ANN401
        """Alternately forwards and backwards."""
        self.times += 1
        return snap.jobs.job_id * (-1.0) ** self.times


def spoil(snap: Snapshot) -> Any:  # noqa: ANN401
    """A key, and a column that is not what it was; locked ones are unlocked as a C library does."""
    snap.left_s.setflags(write=True)
    snap.left_s[:1] += 1.0
    return snap.memory.first_submit_s


def drawn_from_all(_: Snapshot) -> float:
    np.random.random()  # noqa: NPY002 - the point of it
    return math.inf


def drawn_from_python(_: Snapshot) -> float:
    random.random()  # noqa: S311 - the point of it
    return math.inf


def impossible_types(snap: Snapshot) -> Any:  # noqa: ANN401
    return rates_of(snap).argmin(axis=1).astype(np.int16)


def a_little_everywhere(snap: Snapshot) -> Any:  # noqa: ANN401
    return np.where(gpus_by_type(snap) > 0, 1e-4, 0.0) + 0.0 * rates_of(snap)


def seen_first(snap: Snapshot) -> Any:  # noqa: ANN401
    return np.arange(len(snap.jobs))


def first_node_first(snap: Snapshot) -> Any:  # noqa: ANN401
    """The sign of the key depends on which node is listed first."""
    return snap.jobs.job_id * (1.0 if snap.seen.nodes.name[:1] == ("n1",) else -1.0)


def barred_but_one(snap: Snapshot) -> Any:  # noqa: ANN401
    return snap.jobs.job_id % 2 == 0


BAD: dict[Check, dict[str, tuple[type[Policy], str]]] = {
    checks.the_engine_takes_its_orders: {
        "an exception": (
            keyed(lambda s: 1 / s.jobs.gpus[:1].astype(object)),
            "one job|no jobs|policy site",
        ),
        "a key that is no number": (
            keyed(lambda s: np.full(len(s.jobs), math.nan)),
            "not a number",
        ),
        "a key that is too short": (keyed(lambda s: s.left_s[:1]), "columns of shapes"),
        "other tiers than it says": (variant(tiers=3), "an order of 1 tiers, it says 3"),
    },
    checks.it_copes_with_what_is_missing: {
        "a need it cannot do without": (
            keyed(lambda s: s.left_s if s.rates is None else s.progress * 0 + s.due_s),
            "everything known, without (progress|due_s): TypeError",
        ),
        "a need of texts": (
            keyed(lambda s: [len(s.seen.texts[j].qos) for j in s.jobs.job_id.tolist()]),
            "without texts: KeyError",
        ),
    },
    checks.equal_snapshots_get_equal_orders: {
        "another answer each time": (keyed(Asked()), "asked again it gives another key"),
        "an answer by identity": (
            keyed(lambda s: s.jobs.job_id * float(id(s) % 1009)),
            "asked again",
        ),
        "an answer by lot": (
            keyed(lambda s: np.random.random(len(s.jobs))),  # noqa: NPY002
            "asked again",
        ),
    },
    checks.the_listing_does_not_matter: {
        "ranks by the listing of jobs": (keyed(seen_first), "ranked otherwise"),
        "ranks by the listing of nodes": (keyed(first_node_first), "ranked otherwise"),
        "shares by the listing": (
            sharing(lambda s: equal_shares(s) * np.linspace(0.9, 1, len(s.jobs))[:, None]),
            "share depends on the listing",
        ),
        "types by the listing": (
            variant(order=ordered_by(gpu_type=lambda s: (seen_first(s) % 2 - 1).astype(np.int16))),
            "gpu_type depends on the listing",
        ),
    },
    checks.it_changes_nothing: {
        "a changed snapshot": (keyed(spoil), r"it changes snapshot\.left_s"),
        "NumPy's lots": (
            variant(next_change_s=lambda _, snap, *__: drawn_from_all(snap)),
            "random state",
        ),
        "Python's lots": (
            variant(next_change_s=lambda _, snap, *__: drawn_from_python(snap)),
            "random state",
        ),
    },
    checks.its_shares_can_be_had: {
        "shares of more GPUs than there are": (
            sharing(lambda s: (rates_of(s) > 0) / max(1, len(s.seen.gpu_types))),
            "GPUs of type",
        ),
        "shares where a job cannot run": (
            sharing(a_little_everywhere),
            "a share where it cannot run",
        ),
        "shares of one type too few": (
            sharing(lambda s: np.zeros((len(s.jobs), 1))),
            "shares of shape",
        ),
        "shares a little below 0": (sharing(lambda s: equal_shares(s) - 1e-8), "a share below 0"),
    },
    checks.its_types_are_possible: {
        "a type on which it cannot run": (
            variant(order=ordered_by(gpu_type=impossible_types)),
            "cannot run on GPU type",
        ),
        "a type that is not there": (
            variant(order=ordered_by(gpu_type=lambda s: np.full(len(s.jobs), 9, dtype=np.int16))),
            "there is no GPU type 9",
        ),
    },
    checks.it_never_asks_for_the_past: {
        "a change in the past": (
            variant(next_change_s=lambda _, snap, *__: snap.now_s - 1),
            "next_change_s is",
        ),
        "a change at no time": (variant(next_change_s=lambda *_: math.nan), "next_change_s is nan"),
    },
    checks.it_leaves_no_gpu_idle_unless_it_says_so: {
        "a GPU left idle behind a large job": (variant(skips=False), "waits and fits"),
        "a GPU left idle by a bar": (
            variant(order=ordered_by(barred=barred_but_one)),
            "waits and fits",
        ),
    },
    checks.it_says_what_people_should_know: {
        "a row that is empty": (variant(about=about(row=" ")), "about.row is empty"),
        "a source that is empty": (variant(source=""), "source is empty"),
        "a level that is none": (variant(about=about(level="W9")), "about.level 'W9'"),
        "a need without a fallback": (
            variant(about=about(needs=("left_s",))),
            "about.fallback must say",
        ),
        "a need that nobody knows": (
            variant(about=about(needs=("moon",), fallback="none")),
            "nobody knows moon",
        ),
        "a name with a blank": (variant(name="our site"), "its name"),
    },
}
"""By the check that must fail: a policy that breaks it, and what is said of it."""


@pytest.mark.parametrize(
    ("check", "bad", "said"),
    [pytest.param(check, *bad, id=n) for check, of in BAD.items() for n, bad in of.items()],
)
def test_each_check_catches_a_bad_policy(check: Check, bad: type[Policy], said: str) -> None:
    """A check that cannot fail would be worth nothing."""
    with pytest.raises(ContractFailure, match=said):
        check(bad())


def test_every_check_is_shown_to_fail() -> None:
    """No check is without a policy that breaks it."""
    elsewhere = {checks.its_parameters_are_documented}
    assert set(BAD) | elsewhere == set(CHECKS)


@dataclass(frozen=True, kw_only=True)
class Needy(Site):
    """A policy that must be given a parameter.

    Attributes:
        must_s: It.
    """

    must_s: float = dataclasses.field()


@dataclass(frozen=True, kw_only=True)
class Silent(Site):
    """A policy that does not say what it can be given."""

    more: float = 1.0


def test_a_parameter_without_a_word_is_found() -> None:
    """The reference would have an empty line."""
    with pytest.raises(ContractFailure, match="parameter more is not in the docstring"):
        checks.its_parameters_are_documented(Silent())


def test_a_parameter_without_a_default_is_found() -> None:
    """Each policy can be chosen by its name alone."""
    with pytest.raises(ContractFailure, match="parameter must_s has no default"):
        checks.its_parameters_are_documented(Needy(must_s=1.0))


@dataclass(frozen=True, kw_only=True)
class Rounded(Site):
    """A policy whose parameter does not come back as it was.

    Attributes:
        table: A pair.
    """

    table: tuple[int, ...] = (1, 2)

    def __post_init__(self) -> None:
        object.__setattr__(self, "table", (*self.table, len(self.table)))


def test_a_parameter_that_changes_on_its_way_through_a_file_is_found() -> None:
    """What stands in the file is what the policy is made with."""
    with pytest.raises(ContractFailure, match="another one after its parameters were written down"):
        checks.its_parameters_are_documented(Rounded())


@dataclass(kw_only=True)
class Thawed:
    """A policy that can be changed."""

    name: ClassVar[str] = "thawed"
    source: ClassVar[str] = "here"
    interpretation: ClassVar[str] = ""
    about: ClassVar[About] = Site.about
    preempts: ClassVar[str] = "tier"
    skips: ClassVar[bool] = True
    tiers: ClassVar[int] = 1
    order: ClassVar[object] = None
    next_change_s: ClassVar[object] = None


def test_a_policy_that_can_be_changed_or_lacks_something_is_found() -> None:
    """Both would fail in the daemon, later."""
    with pytest.raises(ContractFailure, match="it is not frozen"):
        checks.its_parameters_are_documented(Thawed())  # type: ignore[arg-type]
    with pytest.raises(ContractFailure, match="lacks preempts"):
        checks.its_parameters_are_documented(variant(preempts="all")())


def test_the_situations_hold_what_they_must() -> None:
    """What the checks rely on is there: states, types, what is missing, what is odd."""
    snaps = {case.name: case.snap for case in situations()}
    states = {int(state) for snap in snaps.values() for state in snap.jobs.state}

    assert len(snaps) == len(situations())
    assert states >= {0, 2, 4, 5, 6}
    assert {len(snap.seen.gpu_types) for snap in snaps.values()} >= {1, 2, 3}
    assert any((snap.jobs.gpus % 1 > 0).any() for snap in snaps.values())
    assert any((snap.jobs.held > 0).any() for snap in snaps.values())
    assert any(not snap.is_managed().all() for snap in snaps.values())
    for name in ("progress", "due_s", "rates", "credit_s", "left_from", "rates_from"):
        given = {getattr(snap, name) is None for snap in snaps.values()}
        assert given == {True, False}, name
    assert any(np.isnan(s.progress).any() for s in snaps.values() if s.progress is not None)
    assert any(np.isinf(s.left_s).any() for s in snaps.values())
    assert {len(snap.past) == 0 for snap in snaps.values()} == {True, False}
    bare = deprived(snaps["everything known"])["without anything optional"]
    assert (bare.rates, bare.progress, bare.due_s, len(bare.past)) == (None, None, None, 0)
    assert not bare.seen.texts
    assert np.isinf(bare.left_s).all()


def test_another_listing_is_the_same_cluster() -> None:
    """Job by job and node by node; back in the old order it is the old snapshot."""
    for case in situations():
        snap = case.snap
        n, m = len(snap.jobs), len(snap.seen.nodes)
        jobs, nodes = np.arange(n)[::-1], np.roll(np.arange(m), 1)
        there = reordered(snap, jobs, nodes)
        back = reordered(there, np.argsort(jobs), np.argsort(nodes))

        def holds(of: Snapshot) -> set[tuple[int, str, float]]:
            held = of.seen.held
            rows = zip(held.job.tolist(), held.node.tolist(), held.gpus.tolist(), strict=True)
            return {(int(of.jobs.job_id[j]), of.seen.nodes.name[k], g) for j, k, g in rows}

        assert holds(there) == holds(snap)
        assert (np.diff(there.seen.held.job) >= 0).all()
        assert not checks._first_difference(back, snap, "snapshot"), case.name


def test_a_policy_of_a_site_is_found_by_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    """What another distribution installs goes through the same checks as ours."""
    entry = EntryPoint("site", f"{__name__}:Site", registry.ENTRY_POINT_GROUP)

    def entry_points(*, group: str) -> EntryPoints:
        return EntryPoints([entry] if group == registry.ENTRY_POINT_GROUP else [])

    monkeypatch.setattr(plugins, "entry_points", entry_points)

    assert "site" in registry.names()
    for check in CHECKS:
        check(registry.find("site")())
