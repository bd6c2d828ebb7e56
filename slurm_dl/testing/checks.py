"""What is asked of a policy about single snapshots and its documentation; see the package.

Each check says in its name what must be true, and in `ContractFailure` where it is not.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
import random
import re
import typing
from collections.abc import Callable
from typing import Any, Final, NoReturn

import numpy as np
import numpy.typing as npt
import yaml

from slurm_dl.config import parameters
from slurm_dl.engine.intent import Intent, checked, intend
from slurm_dl.error_text import written
from slurm_dl.model.jobs import COMPLETING, F64, PENDING, Bool, Jobs
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.arithmetic.supply_and_demand import contenders, gpus_by_type, rates_of
from slurm_dl.policies.base import About, Level, Order, Policy
from slurm_dl.testing.situations import Situation, situations
from slurm_dl.testing.snapshot_builder import deprived, shuffles

Check = Callable[[Policy], None]
"""Takes a policy that is ready to order jobs, and raises `ContractFailure` where it is not."""


class ContractFailure(AssertionError):  # noqa: N818 - it reads as what it says
    """A policy does not keep to what every policy must."""


def fail(policy: Policy, where: str, what: str) -> NoReturn:
    """Say that *policy* did *what* on a situation.

    Raises:
        Broken: Always.
    """
    at = f", {where}" if where else ""
    msg = f"policy {policy.name}{at}: {what}"
    raise ContractFailure(msg)


def ordered(policy: Policy, snap: Snapshot, where: str) -> Order:
    """What it says about *snap*, if the engine would take it.

    Raises:
        Broken: It raises, or what it says is refused.
    """
    try:
        return checked(policy.order(snap), policy, len(snap.jobs))
    except Exception as err:
        msg = f"policy {policy.name}, {where}: {type(err).__name__}: {err}"
        raise ContractFailure(msg) from err


_KNOWN_NEEDS: Final = frozenset(
    {
        *(f.name for f in dataclasses.fields(Snapshot)),
        *("profile", "history", "accounts", "texts", "claims"),
    }
)
"""What `About.needs` may name."""


def its_parameters_are_documented(policy: Policy) -> None:
    """It can be configured: each field has a meaning, a default and a type that YAML can give.

    Raises:
        Broken: It cannot.
    """
    kind = type(policy)
    if lacking := parameters.POLICY.lacks(kind):
        fail(policy, "", f"lacks {', '.join(lacking)}")
    try:
        found = parameters.parameters_of(kind)
    except (TypeError, NameError) as err:
        fail(policy, "", f"cannot be configured: {err}")
    for p in found:
        if not p.meaning:
            fail(policy, "", f"parameter {p.name} is not in the docstring's Attributes")
        if p.default is dataclasses.MISSING:
            fail(policy, "", f"parameter {p.name} has no default")
    if not getattr(kind, "__dataclass_params__").frozen:  # noqa: B009 - mypy does not know it
        fail(policy, "", "it is not frozen")
    given = {p.name: yaml.safe_load(written(getattr(policy, p.name))) for p in found}
    family = dataclasses.replace(parameters.POLICY, find=lambda _: kind)
    whole, mistakes = family.complete(policy.name, given)
    if mistakes:
        fail(policy, "", f"parameter {mistakes[0].loc}: {mistakes[0].text}, as YAML gives it")
    if family.make(policy.name, whole) != policy:
        fail(policy, "", "is another one after its parameters were written down and read")


def it_says_what_people_should_know(policy: Policy) -> None:
    """`about`, `source` and `interpretation` are complete.

    Raises:
        Broken: Something is missing, or is nothing that anybody knows.
    """
    about = policy.about
    if not isinstance(about, About):
        fail(policy, "", "about is no About")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", policy.name):
        fail(policy, "", "its name is not small letters, digits and _")
    texts = {"source": policy.source, "about.row": about.row, "about.formula": about.formula}
    for name, text in texts.items():
        if not text.strip():
            fail(policy, "", f"{name} is empty")
    if about.level not in typing.get_args(Level):
        fail(policy, "", f"about.level {about.level!r} is none of {typing.get_args(Level)}")
    if unknown := [need for need in about.needs if need not in _KNOWN_NEEDS]:
        fail(policy, "", f"about.needs: nobody knows {', '.join(unknown)}")
    if about.needs and not about.fallback:
        fail(policy, "", "about.needs something; about.fallback must say what it does without")


ABOUT: tuple[Check, ...] = (its_parameters_are_documented, it_says_what_people_should_know)  # Both


_SAME: Final = 1e-9
"""Shares this close are one: a linear program's answer may depend that much on the listing."""

_OVER: Final = 1e-6  # By how much the sums of a linear program's answer may exceed their bounds
_SLACK_GPUS: Final = 1e-9


def ranking(snap: Snapshot, order: Order) -> list[int]:
    """Ids of the managed live jobs, best first: by tier, key, tie, place in the queue, job id."""
    rows = ((snap.jobs.state < COMPLETING) & snap.managed_jobs).nonzero()[0]
    ids, first_s = snap.jobs.job_id[rows], snap.memory.queued_s[rows]
    tie = np.zeros(len(rows)) if order.tie is None else order.tie[rows]
    placed = rows[np.lexsort((ids, first_s, tie, order.key[rows], order.tier[rows]))]
    return [int(job_id) for job_id in snap.jobs.job_id[placed].tolist()]


def the_engine_takes_its_orders(policy: Policy) -> None:
    """Columns of the right shape and type, no key that is not a number, as many tiers as it says.

    Raises:
        Broken: On some snapshot it raises, or the engine refuses its order.
    """
    for case in situations():
        order = _first(policy, case)
        if order.tiers != policy.tiers:
            fail(policy, case.name, f"an order of {order.tiers} tiers, it says {policy.tiers}")


def it_copes_with_what_is_missing(policy: Policy) -> None:
    """Whatever is optional may be missing, one thing at a time or all of it.

    Raises:
        Broken: It raises then, or says what the engine refuses.
    """
    for case in _some():
        for way, snap in deprived(case.snap).items():
            where = f"{case.name}, {way}"
            intent = _intended(policy, snap, where)
            _check_shares(policy, snap, intent.order, where)
            _check_next_change(policy, snap, intent, where)


def equal_snapshots_get_equal_orders(policy: Policy) -> None:
    """Asked twice, or about a copy, it says the same, whatever has been drawn by lot meanwhile.

    Raises:
        Broken: It does not.
    """
    for case in situations():
        first = _first(policy, case)
        np.random.seed(7)  # noqa: NPY002 - the very state that it must not use
        random.seed(7)
        copied = copy.deepcopy(case.snap)
        # Some policies take long to answer: the very same is asked about in a few situations.
        for again in (case.snap, copied) if case in _some() else (copied,):
            second = ordered(policy, again, case.name)
            for field in dataclasses.fields(Order):
                one, other = getattr(first, field.name), getattr(second, field.name)
                if not np.array_equal(one, other):
                    fail(policy, case.name, f"asked again it gives another {field.name}")


def the_listing_does_not_matter(policy: Policy) -> None:
    """Slurm may list jobs and nodes in any order: each job keeps its place, share and type.

    Raises:
        Broken: It does not.
    """
    for number, case in enumerate(situations()):
        first = _first(policy, case)
        jobs = case.snap.jobs
        for snap in shuffles(case.snap)[number % 2 :][:1]:
            order = ordered(policy, snap, case.name)
            if ranking(snap, order) != ranking(case.snap, first):
                fail(policy, case.name, "jobs listed in another order are ranked otherwise")
            by_id, at = _rows_by_id(case.snap), _rows_by_id(snap)
            live = jobs.state[by_id] < COMPLETING
            for name in ("promote", "barred", "gpu_type", "share"):
                one, other = getattr(first, name), getattr(order, name)
                if (one is None) != (other is None):
                    fail(policy, case.name, f"{name} is given for one listing and not for another")
                if one is None:
                    continue
                apart = np.abs(one[by_id].astype(np.float64) - other[at].astype(np.float64))
                if (apart[live] > _SAME).any():
                    job = int(
                        jobs.job_id[by_id][apart.reshape(len(by_id), -1).max(axis=1).argmax()]
                    )
                    fail(policy, case.name, f"job {job}: {name} depends on the listing")


def it_changes_nothing(policy: Policy) -> None:
    """Neither the snapshot nor the state that everybody draws random numbers from.

    Raises:
        Broken: It does.
    """
    for case in situations():
        snap = copy.deepcopy(case.snap)  # All its columns can be written to.
        before = _lots()
        order = ordered(policy, snap, case.name)
        policy.next_change_s(snap, order, _runs(snap))
        if _first_difference(before, _lots(), "lots"):
            fail(policy, case.name, "it draws from the random state that all share")
        if changed := _first_difference(case.snap, snap, "snapshot"):
            fail(policy, case.name, f"it changes {changed}")


def its_shares_can_be_had(policy: Policy) -> None:
    """Shares are 0 to 1, at most 1 over all types, at most the GPUs there are, where a job can run.

    Raises:
        Broken: They are not.
    """
    for case in situations():
        _check_shares(policy, case.snap, _first(policy, case), case.name)


def its_types_are_possible(policy: Policy) -> None:
    """A job is told to run on a type only where it can run.

    Raises:
        Broken: It is told to run where it cannot, or on a type that does not exist.
    """
    for case in situations():
        snap = case.snap
        order = ordered(policy, snap, case.name)
        if order.gpu_type is None:
            continue
        rates = rates_of(snap)
        rows = (contenders(snap) & (order.gpu_type != -1)).nonzero()[0]
        for row in rows.tolist():
            kind, job = int(order.gpu_type[row]), int(snap.jobs.job_id[row])
            if not 0 <= kind < rates.shape[1]:
                fail(policy, case.name, f"job {job}: there is no GPU type {kind}")
            if rates[row, kind] <= 0 and (rates[row] > 0).any():
                fail(policy, case.name, f"job {job} cannot run on GPU type {kind}")


def it_never_asks_for_the_past(policy: Policy) -> None:
    """`next_change_s` is a time not before now, or inf.

    Raises:
        Broken: It is not.
    """
    for case in situations():
        _check_next_change(policy, case.snap, _first_intent(policy, case), case.name)


def it_leaves_no_gpu_idle_unless_it_says_so(policy: Policy) -> None:
    """No job waits that fits into the free GPUs, by their number, if `About.idles` is empty.

    Raises:
        Broken: One does.
    """
    if policy.about.idles:
        return
    for case in situations():
        snap = case.snap
        job = _left_out(snap, _first_intent(policy, case))
        if job is not None:
            fail(policy, case.name, f"job {job} waits and fits; about.idles does not say why")


CHECKS: tuple[Check, ...] = (
    the_engine_takes_its_orders,
    it_copes_with_what_is_missing,
    equal_snapshots_get_equal_orders,
    the_listing_does_not_matter,
    it_changes_nothing,
    its_shares_can_be_had,
    its_types_are_possible,
    it_never_asks_for_the_past,
    it_leaves_no_gpu_idle_unless_it_says_so,
    *ABOUT,
)
"""Everything that is asked about single snapshots."""


def _first(policy: Policy, case: Situation) -> Order:
    """What it said when it was first asked: checks that only read it need not ask again."""
    frozen: Any = policy
    order: Order = _first_order(frozen, case)
    return order


def _first_intent(policy: Policy, case: Situation) -> Intent:
    frozen: Any = policy
    intent: Intent = _first_decision(frozen, case)
    return intent


@functools.lru_cache(maxsize=256)
def _first_order(policy: Policy, case: Situation) -> Order:
    return ordered(policy, case.snap, case.name)


@functools.lru_cache(maxsize=256)
def _first_decision(policy: Policy, case: Situation) -> Intent:
    return _intended(policy, case.snap, case.name)


def _some() -> tuple[Situation, ...]:
    names = {"everything known", "several GPU types", "drawn by lot, number 3"}
    return tuple(case for case in situations() if case.name in names)


def _rows_by_id(snap: Snapshot) -> npt.NDArray[np.int64]:
    return np.argsort(snap.jobs.job_id, kind="stable")


def _runs(snap: Snapshot) -> Bool:
    jobs: Jobs = snap.jobs
    running: Bool = (jobs.state > PENDING) & contenders(snap)
    return running


def _lots() -> dict[str, Any]:
    return {"numpy": np.random.get_state(legacy=False), "python": random.getstate()}  # noqa: NPY002


def _first_difference(one: object, other: object, where: str) -> str:
    """Where two values differ; empty if nowhere."""
    if isinstance(one, np.ndarray):
        same = isinstance(other, np.ndarray) and np.array_equal(
            one, other, equal_nan=one.dtype.kind == "f"
        )
        return "" if same else where
    if dataclasses.is_dataclass(one) and not isinstance(one, type):
        names: list[Any] = [f.name for f in dataclasses.fields(one)]
        pairs = [(f"{where}.{n}", getattr(one, n), getattr(other, n)) for n in names]
    elif isinstance(one, dict) and isinstance(other, dict):
        if one.keys() != other.keys():
            return where
        pairs = [(f"{where}[{key}]", one[key], other[key]) for key in one]
    else:
        return "" if one == other or one is other else where
    return next((found for name, a, b in pairs if (found := _first_difference(a, b, name))), "")


def _check_shares(policy: Policy, snap: Snapshot, order: Order, where: str) -> None:
    share = order.share
    if share is None:
        return
    supply = gpus_by_type(snap)
    if share.shape != (len(snap.jobs), len(supply)):
        fail(policy, where, f"shares of shape {share.shape}")
    rows = contenders(snap).nonzero()[0]
    given, ids = share[rows], snap.jobs.job_id[rows]
    whole = given.sum(axis=1)
    for wrong, what in (
        ((given < 0).any(axis=1), "a share below 0"),
        (whole > 1 + _OVER, "more than all of the time"),
        (
            ((given > _OVER) & (rates_of(snap)[rows] <= 0)).any(axis=1),
            "a share where it cannot run",
        ),
    ):
        if wrong.any():
            fail(policy, where, f"job {int(ids[wrong.argmax()])} has {what}")
    used: F64 = given.T @ snap.jobs.gpus[rows]
    if (used > supply * (1 + _OVER) + _OVER).any():
        kind = int((used - supply).argmax())
        fail(
            policy,
            where,
            f"shares of {used[kind]:g} GPUs of type {kind}; there are {supply[kind]:g}",
        )


def _check_next_change(policy: Policy, snap: Snapshot, intent: Intent, where: str) -> None:
    running = np.zeros(len(snap.jobs), dtype=np.bool_)
    running[intent.target] = True
    for runs in (running, np.zeros_like(running)):
        next_s = policy.next_change_s(snap, intent.order, runs)
        if math.isnan(next_s) or next_s < snap.now_s:
            fail(policy, where, f"next_change_s is {next_s}, and it is {snap.now_s:g} now")


def _intended(policy: Policy, snap: Snapshot, where: str) -> Intent:
    try:
        return intend(snap, policy)
    except Exception as err:
        msg = f"policy {policy.name}, {where}: {type(err).__name__}: {err}"
        raise ContractFailure(msg) from err


def _left_out(snap: Snapshot, intent: Intent) -> int | None:
    """A job that waits although it surely fits into what is left; None if there is none."""
    jobs, supply, rates = snap.jobs, gpus_by_type(snap), rates_of(snap)
    kind = jobs.gpu_type if intent.kind is None else intent.kind
    took = np.zeros_like(supply)
    anywhere = 0.0
    for row in intent.target.tolist():
        if kind[row] >= 0:
            took[kind[row]] += jobs.gpus[row]
        else:
            anywhere += float(jobs.gpus[row])
    # Of which type the others are is not told: at worst each type has to give all of them.
    left = supply - took - anywhere
    served = np.zeros(len(jobs), dtype=np.bool_)
    served[intent.target] = True
    for row in (contenders(snap) & ~served & (jobs.state == PENDING)).nonzero()[0].tolist():
        fits = (rates[row] > 0) & (jobs.gpus[row] <= left + _SLACK_GPUS)
        if fits.any():
            return int(jobs.job_id[row])
    return None
