"""Which jobs are in the line, and what each place of it gets."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
from build import NOW_S, observed, pending, running, snapshot

from slurm_dl.engine.decide import decide
from slurm_dl.engine.settings import Preemption, Settings
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import Held
from slurm_dl.model.plan import Plan, SetSiteFactor
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.base import Policy
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.policies.fifo import Fifo
from slurm_dl.policies.shortest import Srtf

SETTINGS = Settings(
    partitions=frozenset({"gpu"}), preemption=Preemption(beneficiaries="all", commitment="ignored")
)
BY_SITE = dataclasses.replace(SETTINGS, equals="site")
LAS = DiscreteLas(thresholds_gpu_s=(1000.0,))
B = SETTINGS.band_width


def written(plan: Plan) -> dict[int, int]:
    """The SiteFactors that *plan* writes."""
    return {int(a.job_id): a.value for a in plan.actions if isinstance(a, SetSiteFactor)}


def waiting(n: int = 6, **memory: dict[int, float]) -> Snapshot:
    """A full node, and jobs that wait for it; Slurm's own priority grows with the id."""
    rows = [running(1, 4)]
    rows += [pending(i, 4, priority=100 + i, limit_s=1000.0 * i) for i in range(2, n + 2)]
    return snapshot(observed(rows, nodes=(4.0,), held={1: {0: 4.0}}), memory=memory)


@pytest.mark.parametrize(
    ("policy", "equal"),
    [
        (LAS, [{2, 3, 4, 5}, {6, 7}]),  # Its two tiers; inside them only the submission counts.
        (Fifo(), [{2, 3, 4, 5, 6, 7}]),
        (Srtf(), [{2}, {3}, {4}, {5}, {6}, {7}]),
    ],
)
def test_the_sites_weights_decide_between_equals_where_it_wants(
    policy: Policy, equal: list[set[int]]
) -> None:
    """Equals have one SiteFactor, better ones a higher one, and RANK goes by Slurm's priority."""
    snap = waiting(attained_gpu_s={6: 5000.0, 7: 5000.0})
    plan = decide(snap, policy, BY_SITE)

    found = written(plan)
    groups: dict[int, set[int]] = {}
    for job_id, value in found.items():
        groups.setdefault(value, set()).add(job_id)
    assert [groups[value] for value in sorted(groups, reverse=True)] == equal
    served = [int(j) for j in snap.jobs.job_id[np.argsort(plan.rank)] if j > 1]
    assert served == [j for group in equal for j in sorted(group, reverse=True)]


def test_a_job_that_joins_its_equals_gets_their_site_factor() -> None:
    """And nothing else is written."""
    first = written(decide(waiting(), LAS, BY_SITE))
    again = decide(waiting(7, site_factor=first), LAS, BY_SITE)

    assert written(again) == {8: first[2]}


@pytest.mark.parametrize(
    ("begins_in_s", "more", "has_place"),
    [
        (10.0, {"held": Held.BEGIN_TIME}, True),
        (86_400.0, {"held": Held.BEGIN_TIME}, False),
        (0.0, {"held": Held.USER_OR_ADMIN}, False),
        (0.0, {"held": Held.DEPENDENCY}, False),
        (0.0, {}, True),
    ],
)
def test_jobs_that_cannot_start_soon_take_no_place(
    begins_in_s: float, more: dict[str, Any], *, has_place: bool
) -> None:
    """Fifty jobs that begin next week would take all there are."""
    seen = observed([running(1, 4), pending(2, 4, **more)], nodes=(4.0,), held={1: {0: 4.0}})
    begins = {JobId(2): NOW_S + begins_in_s} if begins_in_s else {}
    plan = decide(snapshot(dataclasses.replace(seen, begins=begins)), LAS, SETTINGS)

    assert (2 in written(plan)) == has_place


def test_what_an_older_version_wrote_is_replaced_at_once() -> None:
    """One band for each tier: the first fifty get places of their own, the others 0."""
    rows = [running(1, 4), *(pending(i, 4) for i in range(2, 82))]
    old = {i: float(2 * B) for i in range(1, 82)}
    snap = snapshot(observed(rows, nodes=(4.0,), held={1: {0: 4.0}}), memory={"site_factor": old})
    found = written(decide(snap, LAS, SETTINGS))
    after = snapshot(
        observed(rows, nodes=(4.0,), held={1: {0: 4.0}}), memory={"site_factor": {**old, **found}}
    )

    places = [found.get(i, 2 * B) for i in range(2, 52)]
    assert all(a > b > 0 for a, b in itertools.pairwise(places))
    assert [found[i] for i in range(52, 82)] == [0] * 30
    assert not written(decide(after, LAS, SETTINGS))
