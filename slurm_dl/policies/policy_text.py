"""Words that describe a policy: the same on every page and in every command.

Plain data, without NumPy, so that commands can have it at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

LEVELS: Final[Mapping[str, str]] = {
    "W1": "its formula equals an independent computation",
    "W2": "it also runs traces in the simulator, with the effect its paper claims",
    "W3": "it also drives a Slurm cluster",
    "W4": "it also drives one with real training jobs",
}
"""What tests show, by `About.level`."""

_ORDERS: Final = "tests/cluster/test_policy_orders.py"
_OWN: Final = f"{_ORDERS}; tests/cluster/test_policies_own.py"
_SIZES: Final = "tests/sim/test_elastic.py; tests/cluster/test_elastic.py"

SHOWN_BY: Final[Mapping[str, str]] = {
    "afs": _SIZES,
    "allox": _OWN,
    "arrival_las": "tests/unit/test_policy_orders.py",
    "carbyne": _OWN,
    "chronus": "tests/unit/test_policies_chronus.py; tests/cluster/test_chronus.py",
    "conservative_backfill": f"{_ORDERS}; tests/cluster/test_hold.py",
    "discrete_las": f"{_ORDERS}; tests/docker/test_jobs.py",
    "easy_backfill": f"{_ORDERS}; tests/cluster/test_hold.py",
    "fifo_skip": f"{_ORDERS}; tests/cluster/test_hold.py",
    "edf": f"{_ORDERS}; tests/cluster/test_promises.py; tests/unit/test_promises.py",
    "elasticflow": "tests/cluster/test_promised_policies.py; tests/sim/test_elasticflow.py",
    "gandiva_fair": _OWN,
    "gavel_fifo": f"{_ORDERS}; tests/cluster/test_gpu_types.py",
    "gavel_max_min": f"{_ORDERS}; tests/cluster/test_policies.py",
    "gavel_proportional": f"{_ORDERS}; tests/cluster/test_policies.py",
    "grouper": f"{_ORDERS}; tests/cluster/test_throttle.py",
    "hug": _OWN,
    "karuna": f"{_ORDERS}; tests/cluster/test_deadline.py",
    "list_gittins": "tests/sim/test_gates.py",
    "list_las": "tests/sim/test_gates.py",
    "lucid": f"{_ORDERS}; tests/cluster/test_lucid.py",
    "optimus": _SIZES,
    "pollux": _SIZES,
    "sia": _SIZES,
    "sidecar": _SIZES,
}
"""Tests that show the level of a policy of ours; of others that run on Slurm `_ORDERS` does."""


def shown_by(policy: str, level: str) -> str:
    """The tests that show that *policy*, one of ours, has its level."""
    return SHOWN_BY.get(policy, _ORDERS if level in {"W3", "W4"} else "")


NEEDS: Final[Mapping[str, str]] = {
    "left_s": "how long each job will still run",
    "progress": "the share of its work that each job has done",
    "due_s": "deadlines of jobs",
    "rates": "the speed of each job on each GPU type",
    "credit_s": "GPU time that jobs are owed of their shares",
    "sizes": "the sizes that each job may have, and its speed in them",
    "setup_s": "the cost of a stop and a new start of each job",
    "past": "finished jobs",
    "history": "finished jobs",
    "profile": "profiles of models",
    "accounts": "Slurm's accounts",
    "texts": "names, users, accounts and QOS of jobs",
    "claims": "declarations of jobs about themselves",
}
"""Inputs of a policy beyond those that Slurm has of every job, by name in `About.needs`."""

PREEMPTS: Final[Mapping[str, str]] = {
    "never": "no job",
    "tier": "jobs of a worse tier",
    "rank": "any job ranking below",
}
"""Jobs that a waiting job may take GPUs from, by `Policy.preempts`."""


def preempts_in_words(preempts: str, tiers: int | None) -> str:
    """Jobs that a waiting job may take GPUs from; see `policies.base.displaces`.

    Args:
        tiers: How many tiers the policy has; None if that is not known.
    """
    alone = preempts == "tier" and tiers == 1
    return f"{PREEMPTS['never']}, as there is one tier" if alone else PREEMPTS[preempts]


_UNITS: Final = (("_gpu_s", "GPU-seconds"), ("_s", "seconds"), ("_frac", "share"))
"""Endings of parameters' names and what they are counted in; the first that fits."""


def unit_of(parameter: str) -> str | None:
    """What a parameter is counted in, from its name; None for a plain number or a choice."""
    return next((unit for ending, unit in _UNITS if parameter.endswith(ending)), None)


def need_in_words(need: str) -> str:
    """A need by its name and what that is."""
    return f"{need} ({NEEDS[need]})" if need in NEEDS else need
