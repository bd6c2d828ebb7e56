"""How a check says that a policy does not keep to the contract."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from slurm_dl.engine.intent import checked
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.base import Order, Policy

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
