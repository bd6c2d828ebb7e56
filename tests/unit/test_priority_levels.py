"""Orders finer than tiers, as Slurm is told of them."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np
import pytest
from build import NOW_S, observed, pending, running, snapshot

from slurm_dl.engine.decide import decide
from slurm_dl.engine.intent import intend
from slurm_dl.engine.preemption.priority_levels import LEVELS, in_levels, levels_of
from slurm_dl.engine.settings import Preemption, Settings
from slurm_dl.model.ids import HandoverId
from slurm_dl.model.jobs import Held
from slurm_dl.model.plan import CloseHandover, OpenHandover, SetSiteFactor
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.base import Order, Policy, one_tier
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.policies.fifo import Fifo, FifoSkip
from slurm_dl.policies.shortest import FewestGpus, Srtf

B = 1000
LIMITS = Preemption(
    beneficiaries="all", commitment="ignored", min_quantum_s=0, cooldown_s=0, limit_reserve_s=0
)
SETTINGS = Settings(partitions=frozenset({"gpu"}), band_width=B, preemption=LIMITS)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Barring(Fifo):
    """Bars one job."""

    name: ClassVar[str] = "barring"

    def order(self, snap: Snapshot, /) -> Order:
        """First submission first."""
        barred = snap.jobs.job_id == 3
        return dataclasses.replace(one_tier(snap.memory.first_submit_s), barred=barred)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Leased(Srtf):
    """Shortest first, with leases."""

    name: ClassVar[str] = "leased"

    lease_s: float = 1_500_000.0


def level(snap: Snapshot, policy: Policy) -> dict[int, int]:
    """The level of each job."""
    order = in_levels(snap, policy.preempts, intend(snap, policy)).order
    return dict(zip(snap.jobs.job_id.tolist(), order.tier.tolist(), strict=True))


def short_and_long(**memory: dict[int, float]) -> Snapshot:
    """A long job on all four GPUs, and shorter ones that wait."""
    rows = [running(1, 4, limit_s=90_000)]
    rows += [pending(i, 4, limit_s=1000 + i) for i in range(2, 12)]
    seen = observed(rows, nodes=[4], held={1: {0: 4}}, opted_in=range(1, 12))
    return snapshot(seen, memory=memory)


def test_who_should_run_comes_first_then_who_runs_then_the_queue() -> None:
    """Exact where it matters now, coarse where it does not."""
    assert level(short_and_long(), Srtf()) == {
        2: 0,
        1: 1,
        3: 2,
        **{i: i - 1 for i in range(4, 11)},
        11: 10,
    }


def test_behind_the_first_ones_groups_double() -> None:
    """Eight places one by one, then eight, sixteen, thirty-two together."""
    rows = [pending(i, limit_s=float(i)) for i in range(1, 101)]
    found = level(snapshot(observed(rows, nodes=[1])), Srtf())

    waiting = [found[i] for i in range(2, 101)]
    assert waiting[:8] == list(range(2, 10))
    assert waiting[8:16] == [10] * 8
    assert waiting[16:32] == [11] * 16
    assert waiting[32:64] == [12] * 32
    assert waiting[64:] == [13] * 35


def test_a_job_that_should_run_displaces_one_that_should_not() -> None:
    """And no other does."""
    plan = decide(short_and_long(), Srtf(), SETTINGS)

    (opened,) = [a for a in plan.actions if isinstance(a, OpenHandover)]
    assert opened.handover.beneficiaries == (2,)
    assert [v.run.job_id for v in opened.handover.victims] == [1]
    written = {a.job_id: a.value for a in plan.actions if isinstance(a, SetSiteFactor)}
    assert written[2] > written[3] > written[4] > 0


def test_inside_its_lease_nobody_is_displaced() -> None:
    """And the reason is said."""
    plan = decide(short_and_long(), Leased(), SETTINGS)

    assert not [a for a in plan.actions if isinstance(a, OpenHandover)]
    assert plan.target == {1}
    assert "its lease is not over" in plan.notes[2]
    assert plan.wake_at_s == 3_000_000


def test_who_may_not_be_stopped_stands_where_it_would_wait() -> None:
    """So that what keeps those before it waiting can be said."""
    snap = short_and_long()
    intent = intend(snap, Srtf(), np.array([0]))

    order = in_levels(snap, Srtf.preempts, intent, np.array([0])).order

    assert dict(zip(snap.jobs.job_id.tolist(), order.tier.tolist(), strict=True)) == {
        **{i: i for i in range(2, 10)},
        **dict.fromkeys((10, 11, 1), 10),
    }


def test_held_jobs_do_not_take_the_places_of_those_who_wait() -> None:
    """They could not start whatever is free."""
    rows = [pending(i, limit_s=float(i), held=Held.USER_OR_ADMIN) for i in range(1, 101)]
    rows += [pending(i, limit_s=float(i)) for i in range(101, 111)]
    found = level(snapshot(observed(rows, nodes=[1])), Srtf())

    assert [found[i] for i in range(101, 111)] == [0, *range(2, 10), 10]
    assert {found[i] for i in range(1, 101)} == {LEVELS - 1}


def test_a_hand_over_under_way_is_not_turned_round() -> None:
    """Its victim does not deserve its GPUs for being its victim."""
    snap = short_and_long()
    (opened,) = [
        a.handover for a in decide(snap, Srtf(), SETTINGS).actions if isinstance(a, OpenHandover)
    ]
    again = dataclasses.replace(snap, handovers=(opened,), next_handover_id=HandoverId(99))

    plan = decide(again, Srtf(), SETTINGS)

    assert plan.target == {2}
    assert not [a for a in plan.actions if isinstance(a, CloseHandover | OpenHandover)]


@pytest.mark.parametrize(("most", "opens"), [(5, True), (0, False)])
def test_leases_bound_what_a_job_loses_not_how_often_it_gave_way(most: int, *, opens: bool) -> None:
    """Else sharing would end after five turns; a site that allows no preemption has none."""
    limits = dataclasses.replace(LIMITS, max_preemptions=most)
    settings = dataclasses.replace(SETTINGS, preemption=limits)
    often = short_and_long(preemptions={1: 7})

    plan = decide(often, Leased(lease_s=NOW_S / 4), settings)
    without = decide(often, Srtf(), settings)

    assert bool([a for a in plan.actions if isinstance(a, OpenHandover)]) == opens
    assert not [a for a in without.actions if isinstance(a, OpenHandover)]


def test_a_barred_job_is_last() -> None:
    """Slurm may start it all the same, where nobody else can use the GPUs."""
    snap = snapshot(observed([pending(i) for i in range(1, 5)], nodes=[1]))

    assert level(snap, Barring()) == {1: 0, 2: 2, 3: LEVELS - 1, 4: 3}


@pytest.mark.parametrize("policy", [Fifo(), FifoSkip(), DiscreteLas()])
def test_tiers_and_first_come_first_served_stay_as_they_are(policy: Policy) -> None:
    """Slurm does that by itself: no write for every place."""
    snap = snapshot(observed([pending(i) for i in range(1, 9)], nodes=[1]))
    intent = intend(snap, policy)

    assert in_levels(snap, policy.preempts, intent) is intent


def test_what_the_configuration_counts_with() -> None:
    """As many tiers as there can be."""
    assert levels_of(DiscreteLas()) == 4
    assert levels_of(Srtf()) == levels_of(FewestGpus()) == LEVELS


def test_a_hundred_thousand_jobs_have_levels_too() -> None:
    """The last ones share one."""
    n = 100_000
    rows = [pending(i, limit_s=float(i)) for i in range(1, n + 1)]
    found = level(snapshot(observed(rows, nodes=[1])), Srtf())

    assert found[1] == 0
    assert found[2] == 2
    assert max(found.values()) == LEVELS - 2
    assert np.all(np.diff([found[i] for i in range(1, n + 1)]) >= 0)
