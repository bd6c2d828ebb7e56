"""What users say of their jobs can make them easier to preempt, never more important.

Every field that a user controls is named here; a new one fails the test until it is decided what
it may do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import build
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from slurm_dl.daemon.enrich import Enricher
from slurm_dl.engine.decide import decide
from slurm_dl.engine.preemption.stopping_cost import stopping_cost
from slurm_dl.engine.settings import Preemption, Settings
from slurm_dl.estimates.similar_jobs import as_submitted
from slurm_dl.estimates.training_speed import SitePriors
from slurm_dl.model.contract import LEAST_UNTIL, NO_CLAIM, SIGNALS, Claim, Contract
from slurm_dl.model.failure import Failure
from slurm_dl.model.handover import Handover, Run, Seal, Victim, VictimState
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.jobs import Held, JobRow, Jobs, JobState
from slurm_dl.model.plan import OpenHandover, Plan, Requeue
from slurm_dl.model.shape import Shape
from slurm_dl.model.snapshot import JobText, Observed, Snapshot
from slurm_dl.model.step_report import BatchLimits, StepReport
from slurm_dl.model.value_curve import ValueCurve
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.policies.registry import POLICIES
from slurm_dl.profiles import shipped_profiles
from slurm_dl.slurm.read.comment_claims import ClaimReader

MAX_GRACE_S = 300.0
PROFILES = shipped_profiles()
MODELS = ("a3c", "alexnet", "resnet18", "resnet50", "no-such-model")
KNOW = Enricher(profiles=PROFILES, site=SitePriors(gpu_speed={"a100": 2.0}))
DEFAULT = DiscreteLas(thresholds_gpu_s=(1000.0, 10_000.0, 100_000.0))
SETTINGS = Settings(
    partitions=frozenset({"gpu"}),
    preemption=Preemption(
        beneficiaries="all", max_grace_s=MAX_GRACE_S, min_quantum_s=60.0, limit_reserve_s=0.0,
        commitment="ignored",
    ),
)  # fmt: skip
COUNTED = dataclasses.replace(
    SETTINGS, preemption=dataclasses.replace(SETTINGS.preemption, commitment="counted")
)

# --- the fields -----------------------------------------------------------------------------

SIZES = st.none() | st.integers(1, 10**6)
SHAPES = st.builds(Shape, st.integers(1, 4), st.integers(1, 8))
STEPS = st.builds(
    StepReport,
    run=st.integers(0, 1),
    gpus=st.integers(1, 8),
    local_batch=st.integers(1, 64),
    passes=st.integers(1, 4),
    step_s=st.floats(1e-6, 1e6),
    noise=st.floats(0, 1e12),
    limits=st.just(BatchLimits(128, 4096, 8, 64)),
)
TAGS = ("0123456789ab", "ba9876543210")
CURVES = st.sets(st.integers(-9, 9000), min_size=1, max_size=8).map(
    lambda ahead: ValueCurve(
        tuple(build.NOW_S + s for s in sorted(ahead)), tuple(9.0 - i for i in range(len(ahead)))
    )
)
CLAIM: Mapping[str, st.SearchStrategy[Any]] = {
    "contract": st.none() | st.builds(Contract),
    "model": st.none() | st.sampled_from(MODELS),
    "most_nodes": st.none() | st.integers(1, 10_000),
    "cpus_per_gpu": SIZES,
    "mem_mb_per_gpu": SIZES,
    "least_cpus": SIZES,
    "least_mem_mb": SIZES,
    "rate": st.none() | st.floats(1e-9, 1e9),
    "progress": st.none() | st.floats(0, 1),
    "acked_run": st.none() | st.integers(0, 2**31 - 1),
    "unhandled_run": st.none() | st.integers(0, 1) | st.integers(0, 2**31 - 1),
    "unhandled_asked": st.booleans(),
    "final_run": st.none() | st.integers(0, 1) | st.integers(0, 2**31 - 1),
    "failed": st.none()
    | st.builds(
        Failure,
        kind=st.sampled_from(["user", "infrastructure"]),
        mark=st.just("m"),
        run=st.integers(0, 1),
    ),
    "preempted_run": st.none() | st.integers(0, 1) | st.integers(0, 2**31 - 1),
    "until": st.none() | st.floats(LEAST_UNTIL, 1),
    "saved_s": st.none() | st.integers(1, 10**12),
    "due_s": st.none() | st.integers(int(build.NOW_S) - 10, int(build.NOW_S) + 9000),
    "curve": st.none() | CURVES,
    "or_else": st.sampled_from([None, "run", "cancel"]),
    "bid": st.none() | st.integers(0, 10**12),
    "sizes": st.lists(SHAPES, max_size=4, unique=True).map(tuple),
    "asked": st.none() | SHAPES,
    "batch": st.sampled_from(["fixed", "gpu", "elan", "adapt"]),
    "steps": st.none() | STEPS,
    "in_place": st.booleans(),
    # They may only keep the job from a neighbour on its GPU, never find it one.
    "gpu_busy": st.none() | st.floats(0, 1),
    "gpu_mem_mb": st.none() | st.integers(0, 10**12),
    # It is read where the queue is: then the job counts as held, see `JOB_CHANGES`.
    "data_ready": st.booleans(),
    "hints": st.sampled_from(["", "?", "byteps=4096000"]),
    "tag": st.sampled_from(["", *TAGS]),
    "locked": st.booleans(),
    "sizes_unreadable": st.booleans(),
    "unreadable": st.booleans(),
}
"""Each field of a claim, with what it can be set to."""

CONTRACT: Mapping[str, st.SearchStrategy[Any]] = {
    "signal": st.sampled_from(SIGNALS),
    "target": st.sampled_from(["batch", "steps", "full"]),
    "grace_s": st.floats(1.0, 1e9),
    "requeued_by": st.sampled_from(["daemon", "job"]),
}

SHAPES_ROOM = {
    "contract": "its GPUs can be taken back, so a hand-over that needs them comes within reach",
    "most_nodes": "it fits where it would not have fitted whole",
    "cpus_per_gpu": "it needs more or fewer CPUs of a node",
    "mem_mb_per_gpu": "it needs more or less memory of a node",
    "least_cpus": "it can be cut to fewer CPUs",
    "least_mem_mb": "it can be cut to less memory",
    "sizes": "it can be given another size, by a policy that chooses sizes",
    "asked": "which of them it was submitted with, where nothing else tells",
    "batch": "how fast it is in them",
    "steps": "how fast it is in them, if its batch adapts, and never more than linear scaling",
    "in_place": "it gives nodes back without a requeue, which others gain by as well",
    "locked": "it waits for GPUs of the type on which it ran first, as if it had asked for them",
}
"""Claims that say what a job can do with: where it fits may change, its importance does not."""

WEIGHS = {
    "saved_s": "of jobs that may be stopped, who has just saved is stopped before others",
    "unhandled_run": "of equal cost, who would not save comes last",
    "unhandled_asked": "in the run that is unhandled it has no grace",
}
"""Claims that can change who of those that may be stopped is, and nothing else."""

SPARES = {"until": "after at least half of its time limit a run is not stopped"}
"""Claims that keep a job from being stopped for a part of its run."""

JOB: Mapping[str, str] = {
    "job_id": "Slurm",
    "state": "Slurm",
    "held": "hold, begin time, dependency: they keep it from starting",
    "partition": "of those that Slurm lets it use",
    "uid": "Slurm",
    "tasks": "size of an array; its pending tasks are one job here",
    "n_nodes": "request",
    "gpus": "request",
    "gpu_type": "request",
    "cpus": "request",
    "mem_mb": "request",
    "submit_s": "Slurm",
    "start_s": "Slurm",
    "end_s": "Slurm",
    "limit_s": "time limit",
    "restarts": "Slurm",
    "priority": "Slurm; users can lower it (Nice)",
    "requeueable": "--no-requeue: never preempted",
    "exclusive": "request",
}
"""Who decides on each column of a job; see also `JOB_CHANGES`."""

JOB_CHANGES: Mapping[str, st.SearchStrategy[Any]] = {
    "held": st.sampled_from(Held),
    "tasks": st.integers(1, 1000),
    "n_nodes": st.integers(1, 4),
    "gpus": st.sampled_from([0.0, 0.5, 1.0, 2.0, 8.0, 64.0]),
    "gpu_type": st.sampled_from([-1, 0, 1]),
    "cpus": st.integers(1, 1000),
    "mem_mb": st.integers(0, 10**6),
    "limit_s": st.floats(60, 1e6) | st.just(float("inf")),
    "priority": st.integers(0, 2**32 - 1),
    "requeueable": st.booleans(),
    "exclusive": st.booleans(),
}

TEXT = {
    "label": "Slurm",
    "name": "user",
    "user": "Slurm",
    "account": "Slurm: of those the user is a member of",
    "qos": "Slurm: of those the user is granted",
    "reason": "Slurm",
    "nodes": "Slurm",
    "ending": "Slurm",
}

SEEN = {
    "claims": "user: CLAIM",
    "jobs": "JOB",
    "texts": "TEXT",
    "also_in": "user, of the partitions Slurm lets it use",
    "choices": "user: --nodelist, --constraint, --tmp, --gres",
    "unmodelled": "user: --contiguous and others: nobody is preempted for it",
    "gres": "user: request",
    "quotas": "user: request, of the accounts and QOS that it may use",
    "deadlines": "user: --deadline; who is protected by it displaces nobody",
    "reserved_until": "user, of the reservations that it may use",
    "excluded": "user: --exclude",
    "failed_with": "user: how its job ends; who was asked to save is requeued as if it had run on",
    "begins": "user: --begin",
    "eligible": "user: --hold, --dependency and --begin, each of which only makes it later",
    "left_out": "user, by when it changes its own job",
    "throttles": "user: --array %N; ours is never above it",
}
"""Fields of what was observed that a user has a hand in; the others are the cluster's."""
CLUSTERS = {
    *("now_s", "nodes", "held", "partitions", "gpu_types", "node_in", "reserved", "shared"),
    *(
        "limits",
        "weights",
        "barred",
        "requeue_hold_s",
        "reservations",
        "blocked",
        "sharable",
        "spreads_shares",
        "cut_short",
        "unreadable",
        "planned",
    ),
}

TRUSTING = {
    "carbyne": {"progress"},
    "elas": {"progress"},
    "gavel_finish_time": {"progress"},
    "mlfs": {"progress", "due_s", "curve"},
    "karuna": {"due_s", "curve"},
    "chronus": {"due_s", "curve"},
    "edf": {"due_s", "curve"},
    "elasticflow": {"due_s", "curve", "progress", "steps"},
    "gavel_cost_slo": {"due_s", "curve"},
    "themis": {"progress"},
    "themis_convex": {"progress"},
    "qssf": {"name"},
    "tagged": {"name", "tag"},
    "grouper": {"name"},
    "learned_gittins": {"name", "progress"},
    **{name: {"progress", "steps"} for name in ("afs", "optimus", "sidecar", "sia", "pollux")},
}
"""Policies whose published rule goes by what jobs say of themselves, and by what of it.

Each says so in `About.trusts`, which ``dlctl policies`` and docs/evaluate/policies.md show.
"""

IN_WORDS = {"due_s": "deadline", "curve": "deadline"}

BY_SPEED = {
    name
    for name, policy in POLICIES.items()
    if {"rates", "profile", "left_s", "credit_s"} & set(policy.about.needs)
}
"""Policies that go by how fast a model is on each type of GPU, or by how long jobs will run.

A model's name chooses among profiles that the admin has written; there is no number of the user's
in it.
"""

BY_SIZE = {name for name, policy in POLICIES.items() if "sizes" in policy.about.needs}
"""Policies that choose the sizes of jobs; who accepts fewer GPUs may go before who does not."""


def test_every_field_of_a_claim_is_known_here() -> None:
    """A new one must be given its range, and with it what it may do."""
    assert {f.name for f in dataclasses.fields(Claim)} == set(CLAIM)
    assert {f.name for f in dataclasses.fields(Contract)} == set(CONTRACT)
    assert set(SHAPES_ROOM) < set(CLAIM)


def test_every_field_of_a_job_is_known_here() -> None:
    """Columns, words and what else is observed of a job: the user's, or Slurm's."""
    assert {f.name for f in dataclasses.fields(Jobs)} == set(JOB)
    assert {f.name for f in dataclasses.fields(JobRow)} == set(JOB)
    assert {f.name for f in dataclasses.fields(JobText)} == set(TEXT)
    assert {f.name for f in dataclasses.fields(Observed)} == set(SEEN) | CLUSTERS
    decided = {name for name, who in JOB.items() if who != "Slurm"}
    assert decided - {"partition"} == set(JOB_CHANGES)


def test_policies_that_trust_jobs_say_so() -> None:
    """The list above is that of the policies themselves."""
    told = {name for name, policy in POLICIES.items() if policy.about.trusts}

    assert told == set(TRUSTING)
    for name, fields in TRUSTING.items():
        said = " ".join(POLICIES[name].about.trusts)
        assert all(IN_WORDS.get(field, field) in said for field in fields), name


# --- snapshots of several users -------------------------------------------------------------

USERS = 3


@st.composite
def snapshots(draw: st.DrawFn) -> tuple[Snapshot, JobId]:
    """Jobs of three users on 16 GPUs of two types, and the id of one of them."""
    n = draw(st.integers(2, 9))
    rows, held, memory = [], {}, {}
    free = [4.0] * 4
    for job_id in range(1, n + 1):
        gpus = draw(st.sampled_from([1.0, 2.0, 4.0]))
        node = next((i for i, room in enumerate(free) if room >= gpus), None)
        more: dict[str, Any] = {"uid": 1000 + job_id % USERS, "cpus": 4, "requeueable": True}
        if node is not None and draw(st.integers(0, 3)):
            free[node] -= gpus
            held[job_id] = {node: gpus}
            rows.append(build.running(job_id, gpus, **more))
        else:
            rows.append(build.pending(job_id, gpus, **more))
        memory[job_id] = draw(st.sampled_from([0.0, 500.0, 5000.0, 50_000.0, 5e6]))
    opted_in = draw(st.sets(st.integers(1, n)))
    texts = {
        JobId(j): JobText(label=str(j), name=f"job{j % 2}", user=f"user{j % USERS}", account="lab")
        for j in range(1, n + 1)
    }
    seen = build.observed(rows, held=held, opted_in=sorted(opted_in), texts=texts)
    snap = build.snapshot(seen, memory={"attained_gpu_s": memory, "ran_s": memory})
    return snap, JobId(draw(st.integers(1, n)))


def claiming(snap: Snapshot, job_id: JobId, **fields: Any) -> Snapshot:  # noqa: ANN401
    """*snap* with these fields of one job's claim changed."""
    claim = dataclasses.replace(snap.seen.claim(job_id), **fields)
    claims = {**snap.seen.claims, job_id: claim}
    return dataclasses.replace(snap, seen=dataclasses.replace(snap.seen, claims=claims))


def with_column(snap: Snapshot, job_id: JobId, column: str, value: object) -> Snapshot:
    """*snap* with one value of one job changed."""
    values = getattr(snap.jobs, column).copy()
    values[snap.jobs.row_of()[job_id]] = value
    jobs = dataclasses.replace(snap.jobs, **{column: values})
    return dataclasses.replace(snap, seen=dataclasses.replace(snap.seen, jobs=jobs))


def victims(plan: Plan) -> set[int]:
    """Whom new hand-overs of *plan* take GPUs from."""
    opened = [a.handover for a in plan.actions if isinstance(a, OpenHandover)]
    return {int(v.run.job_id) for h in opened for v in h.victims}


def owner_of(snap: Snapshot) -> dict[int, int]:
    return dict(zip(snap.jobs.job_id.tolist(), snap.jobs.uid.tolist(), strict=True))


def same_order(snap: Snapshot, one: Plan, other: Plan) -> bool:
    """Every job has the same tier and key; those that fit in neither have the same order.

    Which jobs fit beside each other may change, and those that fit come first.
    """
    columns = all(np.array_equal(getattr(one, n), getattr(other, n)) for n in ("tier", "key"))
    ids = snap.jobs.job_id
    outside = ~np.isin(ids, list(one.target | other.target)) & (snap.jobs.state == JobState.PENDING)
    return columns and all(
        np.array_equal(np.argsort(one.rank[mask]), np.argsort(other.rank[mask]))
        for mask in [outside & (one.rank >= 0)]
    )


# --- the default policy ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "field"),
    [
        (name, field)
        for name in ("discrete_las", "las", "learned_gittins")
        for field in CLAIM
        if field not in TRUSTING.get(name, ())
    ],
)
@settings(max_examples=12, deadline=None)
@given(case=snapshots(), data=st.data())
def test_where_commitment_counts_nobody_is_better_off_than_who_keeps_nothing(
    name: str, field: str, case: tuple[Snapshot, JobId], data: st.DataObject
) -> None:
    """A claim may only raise what its own job keeps; `due_s` and the like still change nothing."""
    snap, job_id = case
    policy, opted_in = POLICIES[name](), {"contract": Contract(), "until": None}
    told = KNOW(claiming(snap, job_id, **(opted_in | {field: data.draw(CLAIM[field])})))
    honest = KNOW(claiming(snap, job_id, **opted_in))
    one, other = decide(told, policy, COUNTED), decide(honest, policy, COUNTED)
    own = snap.jobs.job_id == job_id

    assert (one.tier[~own] == other.tier[~own]).all()
    assert (one.key[~own] == other.key[~own]).all()
    assert (one.tier[own].item(), one.key[own].item()) >= (
        other.tier[own].item(),
        other.key[own].item(),
    )


@pytest.mark.parametrize("field", CLAIM)
@settings(max_examples=12, deadline=None)
@given(case=snapshots(), data=st.data())
def test_no_claim_changes_anybodys_place(
    field: str, case: tuple[Snapshot, JobId], data: st.DataObject
) -> None:
    """The policy's order of all jobs is the same whatever one of them claims."""
    snap, job_id = case
    told = KNOW(claiming(snap, job_id, **{field: data.draw(CLAIM[field])}))
    honest = KNOW(claiming(snap, job_id, **{field: getattr(NO_CLAIM, field)}))

    one, other = decide(told, DEFAULT, SETTINGS), decide(honest, DEFAULT, SETTINGS)

    assert same_order(snap, one, other)
    if field not in {*SHAPES_ROOM, *WEIGHS, *SPARES}:
        assert victims(one) == victims(other)


@settings(max_examples=50, deadline=None)
@given(case=snapshots(), data=st.data())
def test_no_claim_makes_a_job_dearer_to_stop(
    case: tuple[Snapshot, JobId], data: st.DataObject
) -> None:
    """Nor cheaper than a save and a restore. A model's name chooses among the admin's figures."""
    snap, job_id = case
    limits = dataclasses.replace(SETTINGS.preemption, unsaved_share=data.draw(st.floats(0, 1)))
    share = dataclasses.replace(SETTINGS, preemption=limits)
    row = snap.jobs.row_of()[job_id]
    fields = {f: data.draw(values) for f, values in CLAIM.items() if f not in ("contract", "model")}
    told = claiming(snap, job_id, **fields)
    silent = claiming(snap, job_id, **{f: getattr(NO_CLAIM, f) for f in fields})

    cost, unsaved = (
        float(stopping_cost(each, np.array([row]), share).gpu_s[0]) for each in (told, silent)
    )

    gpus, start_s = float(snap.jobs.gpus[row]), float(snap.jobs.start_s[row])
    least = gpus * limits.checkpoint_cost_s
    assert least <= cost <= unsaved <= least + gpus * (snap.now_s - start_s) + 1


@pytest.mark.parametrize("field", CONTRACT)
@settings(max_examples=12, deadline=None)
@given(case=snapshots(), data=st.data())
def test_no_contract_changes_anybodys_place_or_others_victims(
    field: str, case: tuple[Snapshot, JobId], data: st.DataObject
) -> None:
    """How a job is to be told may at most spare the job itself: grace above the site's limit."""
    snap, job_id = case
    plain = Contract()
    given_ = dataclasses.replace(plain, **{field: data.draw(CONTRACT[field])})
    told = claiming(snap, job_id, contract=given_)
    honest = claiming(snap, job_id, contract=plain)

    one, other = decide(told, DEFAULT, SETTINGS), decide(honest, DEFAULT, SETTINGS)

    assert same_order(snap, one, other)
    if given_.grace_s <= MAX_GRACE_S:
        assert victims(one) == victims(other)


@settings(max_examples=40, deadline=None)
@given(case=snapshots(), data=st.data())
def test_whoever_is_preempted_has_opted_in_and_ranks_below(
    case: tuple[Snapshot, JobId], data: st.DataObject
) -> None:
    """Whatever one job claims, victims of others are those that the rules allow."""
    snap, job_id = case
    fields = {name: data.draw(values) for name, values in CLAIM.items()}
    told = KNOW(claiming(snap, job_id, **fields))

    plan = decide(told, DEFAULT, SETTINGS)

    tier = dict(zip(told.jobs.job_id.tolist(), plan.tier.tolist(), strict=True))
    for action in plan.actions:
        if isinstance(action, OpenHandover):
            first = min(tier[int(b)] for b in action.handover.beneficiaries)
            for victim in action.handover.victims:
                assert told.seen.claim(victim.run.job_id).contract is not None
                assert victim.contract.grace_s <= MAX_GRACE_S
                assert tier[int(victim.run.job_id)] > first


@pytest.mark.parametrize("column", JOB_CHANGES)
@settings(max_examples=12, deadline=None)
@given(case=snapshots(), data=st.data())
def test_no_request_brings_a_job_forward(
    column: str, case: tuple[Snapshot, JobId], data: st.DataObject
) -> None:
    """Sizes, limits, holds, Nice: no tier goes by them, nor the order of those that do not fit."""
    snap, job_id = case
    changed = with_column(snap, job_id, column, data.draw(JOB_CHANGES[column]))

    one, other = decide(changed, DEFAULT, SETTINGS), decide(snap, DEFAULT, SETTINGS)

    row = snap.jobs.row_of()[job_id]
    others = np.arange(len(snap.jobs)) != row
    assert np.array_equal(one.tier[others], other.tier[others])
    assert one.tier[row] >= other.tier[row]
    ids = snap.jobs.job_id
    outside = others & ~np.isin(ids, list(one.target | other.target))
    outside &= snap.jobs.state == JobState.PENDING
    assert np.array_equal(np.argsort(one.rank[outside]), np.argsort(other.rank[outside]))


@settings(max_examples=25, deadline=None)
@given(case=snapshots(), name=st.text(max_size=20), mask=st.lists(st.booleans(), min_size=4))
def test_names_and_restrictions_change_nobodys_place(
    case: tuple[Snapshot, JobId], name: str, mask: list[bool]
) -> None:
    """The name, the nodes it wants or excludes, and when it may begin."""
    snap, job_id = case
    nodes = np.array(mask[:4])
    texts = {**snap.seen.texts, job_id: dataclasses.replace(snap.seen.texts[job_id], name=name)}
    changes: Sequence[dict[str, Any]] = (
        {"texts": texts},
        {"choices": {job_id: nodes}},
        {"excluded": {job_id: nodes}},
        {"begins": {job_id: snap.now_s + 100}},
        {"eligible": {job_id: snap.now_s - 100}},
        {"unmodelled": {job_id: "--contiguous"}},
        {"deadlines": {job_id: snap.now_s + 100_000}},
    )
    plain = decide(snap, DEFAULT, SETTINGS)
    for change in changes:
        other = dataclasses.replace(snap, seen=dataclasses.replace(snap.seen, **change))
        assert same_order(snap, decide(other, DEFAULT, SETTINGS), plain), change


# --- all policies ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(POLICIES))
@settings(max_examples=4, deadline=None)
@given(case=snapshots(), data=st.data())
def test_no_policy_goes_by_claims_that_it_does_not_name(
    name: str, case: tuple[Snapshot, JobId], data: st.DataObject
) -> None:
    """The order of every policy is the same, but by what `TRUSTING` and `BY_SPEED` list."""
    snap, job_id = case
    policy = POLICIES[name]()
    free = TRUSTING.get(name, set()) | ({"model", "progress"} if name in BY_SPEED else set())
    free = free | ({"sizes", "asked", "batch"} if name in BY_SIZE else set())
    fields = {f: data.draw(values) for f, values in CLAIM.items() if f not in free}
    told = KNOW(claiming(snap, job_id, **fields))
    honest = KNOW(claiming(snap, job_id, **{f: getattr(NO_CLAIM, f) for f in fields}))

    one, other = policy.order(told), policy.order(honest)

    for column in ("tier", "key", "tie", "promote", "barred", "gpu_type"):
        a, b = getattr(one, column), getattr(other, column)
        assert (a is None) == (b is None), column
        assert a is None or np.array_equal(a, b), column


@pytest.mark.parametrize(
    "name", sorted(name for name, fields in TRUSTING.items() if "due_s" in fields)
)
@settings(max_examples=10, deadline=None)
@given(case=snapshots(), curve=CURVES, more=st.floats(1e-6, 1e6))
def test_only_the_order_of_its_own_values_counts(
    name: str, case: tuple[Snapshot, JobId], curve: ValueCurve, more: float
) -> None:
    """Values of any size change nothing, and one deadline with a value is as one without."""
    snap, job_id = case
    policy, due_s = POLICIES[name](), int(curve.due_s[0])
    other = ValueCurve(curve.due_s, tuple(value * more for value in curve.value))
    first = ValueCurve(curve.due_s[:1], curve.value[:1])

    def order(said: ValueCurve | None) -> list[list[float]]:
        found = policy.order(KNOW(claiming(snap, job_id, due_s=due_s, curve=said)))
        return [found.tier.tolist(), found.key.tolist()]

    assert order(curve) == order(other)
    assert order(first) == order(None)


@pytest.mark.parametrize("name", sorted(set(POLICIES) - BY_SIZE))
@settings(max_examples=8, deadline=None)
@given(case=snapshots(), data=st.data())
def test_sizes_never_improve_tier_and_key(
    name: str, case: tuple[Snapshot, JobId], data: st.DataObject
) -> None:
    """Whatever sizes a job can have, and which of them it says it asked for: of any model."""
    snap, job_id = case
    snap = with_column(snap, job_id, "limit_s", 1e6)
    policy, said = POLICIES[name](), {f: data.draw(CLAIM[f]) for f in ("model", "progress")}
    elastic = {
        "sizes": (*data.draw(CLAIM["sizes"]), Shape(1, 1), Shape(1, 2), Shape(1, 4)),
        **{f: data.draw(CLAIM[f]) for f in ("asked", "batch", "steps")},
    }
    told, rigid = (KNOW(claiming(snap, job_id, **said, **more)) for more in (elastic, {}))

    one, other = policy.order(told), policy.order(rigid)

    assert told.sizes is not None
    assert rigid.sizes is None
    assert np.array_equal(as_submitted(told).gpus, snap.jobs.gpus)
    assert np.array_equal(told.left_s, rigid.left_s)
    assert np.array_equal(one.tier, other.tier)
    assert np.array_equal(one.key, other.key)


@pytest.mark.parametrize("name", sorted(set(POLICIES) - set(TRUSTING)))
@settings(max_examples=4, deadline=None)
@given(case=snapshots(), word=st.text(max_size=10))
def test_no_policy_goes_by_names_that_it_does_not_trust(
    name: str, case: tuple[Snapshot, JobId], word: str
) -> None:
    """The name of a job is its owner's to choose."""
    snap, job_id = case
    policy = POLICIES[name]()
    texts = {**snap.seen.texts, job_id: dataclasses.replace(snap.seen.texts[job_id], name=word)}
    renamed = dataclasses.replace(snap, seen=dataclasses.replace(snap.seen, texts=texts))

    one, other = policy.order(renamed), policy.order(snap)

    assert np.array_equal(one.tier, other.tier)
    assert np.array_equal(one.key, other.key)


# --- grace and acknowledgement --------------------------------------------------------------


@given(st.floats(allow_nan=True) | st.integers(-(10**30), 10**30))
def test_grace_is_capped_by_the_site(seconds: float) -> None:
    """A comment with any number in it gives the site's maximum at most, or no contract."""
    text = f'{{"slurm_dl":{{"sig":"USR1","grace_s":{seconds}}}}}'
    contract = ClaimReader(max_grace_s=MAX_GRACE_S).read(text).contract

    assert contract is None or 1 <= contract.grace_s <= MAX_GRACE_S


def _signalled(snap: Snapshot, victim: JobId) -> Snapshot:
    row = snap.jobs.row_of()[victim]
    run = Run(victim, float(snap.jobs.start_s[row]), int(snap.jobs.restarts[row]))
    handover = Handover(
        handover_id=HandoverId(1),
        opened_s=snap.now_s - 10,
        beneficiaries=(JobId(999),),
        victims=(
            Victim(
                run=run,
                gpus=float(snap.jobs.gpus[row]),
                contract=Contract(),
                state=VictimState.SIGNALLED,
                signalled_s=snap.now_s - 5,
            ),
        ),
        nodes=("n1",),
        attached=(),
        seal=Seal.STANDING,
    )
    return dataclasses.replace(snap, handovers=(handover,), next_handover_id=HandoverId(2))


@settings(max_examples=40, deadline=None)
@given(case=snapshots(), run=st.integers(0, 3), data=st.data())
@pytest.mark.parametrize("field", ["acked_run", "unhandled_run"])
def test_an_acknowledgement_stops_nobody_but_the_job_itself(
    field: str, case: tuple[Snapshot, JobId], run: int, data: st.DataObject
) -> None:
    """While a job saves, whatever another one says of itself leaves it its grace."""
    snap, liar = case
    running = snap.jobs.job_id[snap.jobs.state == JobState.RUNNING].tolist()
    assume(running)
    victim = JobId(data.draw(st.sampled_from(running)))
    word = {field: run, "unhandled_asked": True}
    told = _signalled(claiming(snap, liar, contract=Contract(), **word), victim)
    honest = _signalled(claiming(snap, liar, contract=Contract(), **{field: None}), victim)

    def requeued(plan: Plan) -> set[int]:
        return {int(a.run.job_id) for a in plan.actions if isinstance(a, Requeue)}

    one, other = (decide(s, DEFAULT, SETTINGS) for s in (told, honest))

    assert requeued(one) - requeued(other) <= {int(liar)} & {int(victim)}
