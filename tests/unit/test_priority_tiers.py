"""PriorityTier is the first key of the order; orders finer than tiers, as Slurm is told of them."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import numpy as np
import pytest
from build import NOW_S, observed, pending, running, snapshot

from slurm_dl.engine.decide import decide
from slurm_dl.engine.intent import intend
from slurm_dl.engine.settings import Native, Overdue, Preemption, Settings
from slurm_dl.engine.site_factors import LEVELS, in_levels, levels_of
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.jobs import Held, JobRow
from slurm_dl.model.limits import PartitionLimits
from slurm_dl.model.plan import CloseHandover, OpenHandover, Plan, SetSiteFactor
from slurm_dl.model.snapshot import JobText, Snapshot
from slurm_dl.policies.base import Order, Policy, one_tier
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.policies.fifo import Fifo, FifoSkip
from slurm_dl.policies.las import Las
from slurm_dl.policies.shortest import FewestGpus, Srtf

EXTERNAL = Settings(
    partitions=frozenset({"gpu", "other"}),
    preemption=Preemption(
        beneficiaries="all", commitment="ignored", min_quantum_s=1, limit_reserve_s=0
    ),
)
NATIVE = dataclasses.replace(EXTERNAL, mode=Native(qos="dl"))
TIERS = (PartitionLimits(), PartitionLimits(tier=2))
TIER, RANK, NEVER = DiscreteLas(thresholds_gpu_s=(1000.0,)), Las(), Fifo()
POLICIES = {"tier": TIER, "rank": RANK, "never": NEVER}
B = EXTERNAL.band_width
GPU, OTHER = 0, 1


def cluster(
    rows: list[JobRow],
    held: dict[int, list[int]],
    *,
    managed: tuple[bool, bool] = (True, True),
    memory: dict[str, dict[int, float]] | None = None,
    **seen: Any,  # noqa: ANN401 - fields of what is observed
) -> Snapshot:
    """Two nodes of four GPUs; who runs has had 50,000 GPU-seconds."""
    ids = [JobId(row.job_id) for row in rows]
    texts = {j: JobText(label=str(j), qos="dl") for j in ids}
    there = observed(
        rows,
        nodes=(4.0, 4.0),
        held={
            j: dict.fromkeys(held[j], r.gpus / len(held[j]))
            for r in rows
            if (j := r.job_id) in held
        },
        opted_in=ids,
        texts=texts,
        **{"limits": TIERS, **seen},
    )
    there = dataclasses.replace(there, node_in=np.array([[True, True], [True, False]]))
    had = {"attained_gpu_s": dict.fromkeys(held, 50_000.0)}
    snap = snapshot(there, memory={**had, **(memory or {})})
    return dataclasses.replace(snap, managed=np.array(managed))


def opened(plan: Plan) -> list[tuple[int, ...]]:
    """Beneficiaries of the hand-overs that begin."""
    return [a.handover.beneficiaries for a in plan.actions if isinstance(a, OpenHandover)]


@pytest.mark.parametrize("settings", [EXTERNAL, NATIVE], ids=["external", "native"])
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES.keys())
@pytest.mark.parametrize("late", [[], [1], [1, 3]], ids=["none late", "a low one", "one of each"])
def test_the_higher_tier_comes_first(policy: Policy, settings: Settings, late: list[int]) -> None:
    """By submission, and by how long it has waited, job 1 is first."""
    rows = [pending(1, 4), pending(2, 4, partition=OTHER), pending(3, 4), pending(4, 4)]
    rows += [pending(5, 4, partition=OTHER, submit_s=NOW_S - 100_000)]
    since = {"waiting_since_s": {r.job_id: NOW_S - 9 - 9000 * (r.job_id in late) for r in rows}}
    settings = dataclasses.replace(settings, overdue=Overdue(after_s=1000.0))
    snap = cluster(rows, {}, memory=since, also_in={JobId(3): (OTHER,)})
    wide = dataclasses.replace(snap.seen, node_in=np.ones((2, 2), dtype=np.bool_))
    snap = dataclasses.replace(snap, seen=wide)

    for equals in ("submission", "site"):
        plan = decide(snap, policy, dataclasses.replace(settings, equals=equals))
        ranked = [int(j) for j in snap.jobs.job_id[np.argsort(plan.rank)]]
        assert (sorted(ranked[:3]), ranked[3:]) == ([2, 3, 5], [1, 4])
        assert plan.target == ({3, 5} if 3 in late else {2, 5})
        # A quarter of the GPUs is for late jobs: the first one alone.
        told = {int(j) for j, note in plan.notes.items() if "waited longer" in note}
        assert told == set(late[-1:])


@pytest.mark.parametrize(
    ("limits", "nodes", "first"),
    [
        (PartitionLimits(tier=2), [True, True], 4),
        (PartitionLimits(tier=2), [True, False], 2),
        (PartitionLimits(tier=2, starts=False), [True, True], 2),
        (PartitionLimits(tier=2, is_open=False), [True, True], 2),
    ],
    ids=["all nodes", "one node", "down", "shuts others out"],
)
def test_naming_a_further_partition_is_no_way_to_the_front(
    limits: PartitionLimits, nodes: list[bool], first: int
) -> None:
    """Job 4 is in the worst queue of the policy; it names the higher partition beside its own."""
    rows = [running(1, 4), running(3, 4, requeueable=False), pending(2, 4), pending(4, 4)]
    had = {"attained_gpu_s": {1: 50_000.0, 3: 50_000.0, 4: 90_000.0}}
    tiers = (PartitionLimits(), limits)
    also = {JobId(4): (OTHER,)}
    snap = cluster(rows, {1: [1], 3: [0]}, memory=had, limits=tiers, also_in=also)
    there = dataclasses.replace(snap.seen, node_in=np.array([[True, True], nodes]))
    plan = decide(dataclasses.replace(snap, seen=there), TIER, EXTERNAL)

    assert opened(plan) == [(first,)]


@pytest.mark.parametrize("name", POLICIES)
def test_a_running_job_gives_way_to_no_lower_tier(name: str) -> None:
    """Upwards it gives way as the policy says; the policy would have it give way in both cases."""
    for runs_in, waits_in, gives in ((OTHER, GPU, []), (GPU, OTHER, [(2,)]), (GPU, GPU, [(2,)])):
        rows = [running(1, 4, partition=runs_in), running(3, 4, requeueable=False)]
        rows += [pending(2, 4, partition=waits_in)]
        snap = cluster(rows, {1: [0], 3: [1]})

        plan = decide(snap, POLICIES[name], EXTERNAL)
        assert opened(plan) == ([] if name == "never" else gives)

        native = decide(snap, POLICIES[name], NATIVE)
        factor = {a.job_id: a.value for a in native.actions if isinstance(a, SetSiteFactor)}
        exceeds = factor.get(JobId(2), 0) > factor.get(JobId(1), 0)
        assert exceeds == (bool(gives) and name != "never")


def urgent(gpus: float = 4, **more: Any) -> JobRow:  # noqa: ANN401 - columns of a job
    """A job that waits in partition other."""
    return pending(9, gpus, **{"partition": OTHER, **more})


NO_NODE = np.array([False, False])
N1, N2 = np.array([True, False]), np.array([False, True])
COMES_FIRST: dict[str, tuple[JobRow, dict[str, Any]]] = {
    "it waits for room": (urgent(), {}),
    "without GPUs": (urgent(0), {}),
    "in both partitions": (urgent(partition=GPU), {"also_in": {JobId(9): (OTHER,)}}),
    "in one that is down and one that is not": (urgent(), {"also_in": {JobId(9): (GPU,)}}),
    "with conditions that are not understood": (urgent(), {"choices": {JobId(9): NO_NODE}}),
    "on that node": (urgent(), {"choices": {JobId(9): N1}}),
}
COMES_NOT: dict[str, tuple[JobRow, dict[str, Any]]] = {
    "nobody": (urgent(partition=GPU), {}),
    "held": (urgent(held=Held.USER_OR_ADMIN), {}),
    "for another job": (urgent(held=Held.DEPENDENCY), {}),
    "of priority 0": (urgent(priority=0), {}),
    "of more nodes than there are": (urgent(8, n_nodes=2), {}),
    "of more nodes than its higher partition has": (
        urgent(8, n_nodes=2),
        {"also_in": {JobId(9): (GPU,)}},
    ),
    "larger than the node": (urgent(5), {}),
    "of CPUs that no node has": (urgent(cpus=1000), {}),
    "on another node": (
        urgent(partition=GPU),
        {"also_in": {JobId(9): (OTHER,)}, "choices": {JobId(9): N2}},
    ),
    "in a partition that is down": (
        urgent(),
        {"limits": (TIERS[0], PartitionLimits(tier=2, starts=False))},
    ),
    "longer than MaxTime": (
        urgent(limit_s=3600.0),
        {"limits": (TIERS[0], PartitionLimits(tier=2, max_time_s=60.0))},
    ),
    "and all tiers are equal": (urgent(), {"limits": (TIERS[1], TIERS[1])}),
    "and tiers are not known": (urgent(), {"limits": ()}),
}


@pytest.mark.parametrize("on", [[0], [0, 1]], ids=["one node", "a victim that spans both"])
@pytest.mark.parametrize("policy", [TIER, RANK], ids=["tier", "rank"])
@pytest.mark.parametrize("case", [*COMES_FIRST, *COMES_NOT])
def test_no_node_that_a_higher_tier_waits_for_is_freed_for_a_lower_one(
    case: str, policy: Policy, on: list[int]
) -> None:
    """Partition other is not managed."""
    row, seen = {**COMES_FIRST, **COMES_NOT}[case]
    victims = [running(1, 4 * len(on), n_nodes=len(on))]
    # Who keeps the other node gives way to nobody.
    more = [running(3, 4, requeueable=False)] if on == [0] else []
    waits = pending(2, 4, submit_s=NOW_S - 200_000)
    held = {1: on} | ({3: [1]} if more else {})
    snap = cluster([*victims, *more, waits, row], held, managed=(True, False), **seen)

    plan = decide(snap, policy, EXTERNAL)

    told = plan.notes.get(JobId(2), "")
    comes = "job 9 of partition other (PriorityTier 2) comes first"
    assert (2 in {b for jobs in opened(plan) for b in jobs}) == (case in COMES_NOT), told
    assert (comes in told) == (case in COMES_FIRST)


@pytest.mark.parametrize(("runs_in", "gives"), [(OTHER, []), (GPU, [(2,)])])
def test_nor_does_it_where_free_gpus_lie_in_pieces(runs_in: int, gives: list[Any]) -> None:
    """Both should hold GPUs, and there are GPUs enough for both, but no whole node."""
    rows = [running(1, 2, partition=runs_in), running(3, 2, requeueable=False), pending(2, 4)]

    plan = decide(cluster(rows, {1: [0], 3: [1]}), TIER, EXTERNAL)

    assert plan.target == {1, 2, 3}
    assert opened(plan) == gives


@pytest.mark.parametrize("on_n1", [2, 4])
def test_where_no_higher_tier_waits_room_is_made_as_ever(on_n1: float) -> None:
    """The second node is in the lower partition alone; on the first what is free is no room."""
    rows = [running(1, on_n1), running(3, 4), pending(2, 2), urgent()]
    snap = cluster(rows, {1: [0], 3: [1]}, managed=(True, False))
    plan = decide(snap, TIER, EXTERNAL)
    (begun,) = [a.handover for a in plan.actions if isinstance(a, OpenHandover)]
    assert (begun.beneficiaries, begun.nodes) == ((2,), ("n2",))


STEP = 1000
LIMITS = Preemption(
    beneficiaries="all", commitment="ignored", min_quantum_s=0, cooldown_s=0, limit_reserve_s=0
)
SETTINGS = Settings(partitions=frozenset({"gpu"}), band_width=STEP, preemption=LIMITS)


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
