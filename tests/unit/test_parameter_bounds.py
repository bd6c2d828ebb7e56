"""Parameters out of their bounds are refused when the policy, scheme or rule is made."""

from __future__ import annotations

import math

import pytest

from slurm_dl.config.parameters import POLICY, RULE, SCHEME
from slurm_dl.placement.scheme_registry import RULES, SCHEMES
from slurm_dl.policies.registry import POLICIES

NAN, INF = math.nan, math.inf
NOT_ABOVE_0 = (0.0, -1.0, INF, NAN)
BELOW_0 = (-1.0, INF, NAN)
NO_PART = (-0.1, 1.1, NAN)
TABLE = ((("a", 0.0),), (("a", -1.0),), (("a", INF),), (("a", 1.0), ("a", 1.0)))
EDGES = ((), (0.0,), (-1.0,), (INF,), (5.0, 5.0), (5.0, 4.0))
SHARING = {"lease_s": NOT_ABOVE_0, "window": (0,)}
SOLVING = {**SHARING, "split_above": (0,), "limit_s": NOT_ABOVE_0}
LAS = {"thresholds_gpu_s": EDGES, "promote_knob": BELOW_0}

WRONG: dict[str, dict[str, tuple[object, ...]]] = {
    "afs": {"quantum_s": NOT_ABOVE_0},
    "allox": {"alpha": (0.0, 1.1, NAN), "window": (0, 1001)},
    "astraea_ltgf": {
        **dict.fromkeys(("lease_s", "bucket_s", "starves_after_s"), NOT_ABOVE_0),
        **dict.fromkeys(("buckets", "levels", "least_samples"), (0,)),
        "least_quota": NO_PART,
        "weights": TABLE,
    },
    "carbyne": {"weights": TABLE, "lease_s": NOT_ABOVE_0, "left_tiers_s": EDGES[1:]},
    "chronus": {
        "lease_length_s": NOT_ABOVE_0,
        **dict.fromkeys(("margin", "restart_s"), BELOW_0),
        "node_limit": (0,),
    },
    "conservative_backfill": {"window": (0,)},
    "discrete_gittins": {**LAS, "sizes_gpu_s": ((0.0,), (INF,), (NAN,))},
    "discrete_las": LAS,
    "drf": {"weights": TABLE},
    "edf": {"others": ("edf", ""), "margin": BELOW_0},
    "elas": {**LAS, "quantum_s": NOT_ABOVE_0},
    "elasticflow": {"others": ("edf", ""), "margin": BELOW_0, "slot_s": NOT_ABOVE_0},
    "gandiva_fair": {"tickets": TABLE, "lease_s": NOT_ABOVE_0},
    "gavel_cost": {**SOLVING, "costs": TABLE},
    "gavel_fifo": SHARING,
    "gavel_hierarchical": {**SOLVING, "weights": TABLE, "inside": ("lottery",), "levels": (0,)},
    "gavel_max_min": {**SOLVING, "weights": TABLE},
    "gavel_strategy_proof": {**SHARING, "weights": TABLE, "discounts_up_to": (0,)},
    "gittins": {"sizes_gpu_s": ((0.0,), (INF,)), "quantum_s": NOT_ABOVE_0},
    "grouper": {"quantum_s": NOT_ABOVE_0},
    "hug": {"lease_s": NOT_ABOVE_0},
    "karuna": {"due_after_s": TABLE, "margin_s": BELOW_0, "thresholds_gpu_s": EDGES},
    "las": {"quantum_s": NOT_ABOVE_0},
    "learned_gittins": {
        **dict.fromkeys(("setup_s", "min_quantum_s", "progress_margin"), BELOW_0),
        "early_s": NOT_ABOVE_0,
        "quantum_s": NOT_ABOVE_0,
        "hysteresis": (0.9, INF, NAN),
    },
    "list_gittins": {
        "sizes_gpu_s": ((), (0.5,), (INF,)),
        "quantum_gpu_s": (0.5, INF, NAN),
        "promote_knob": (-1.0, 1.0),
        "thresholds_gpu_s": EDGES,
    },
    "list_las": {**LAS, "demotion_step_s": BELOW_0},
    "lucid": {"most_ratio": NOT_ABOVE_0},
    "mlfs": {
        "alpha": NO_PART,
        "iterations": (0,),
        "urgency": TABLE[1:],
        **dict.fromkeys(("other_urgency", "deadline_weight", "remaining_weight"), BELOW_0),
        "waiting_weight": BELOW_0,
        "iteration_s": NOT_ABOVE_0,
        "shortest_s": NOT_ABOVE_0,
    },
    "optimus": {"quantum_s": NOT_ABOVE_0},
    "pollux": {**dict.fromkeys(("quantum_s", "limit_s", "idle"), NOT_ABOVE_0), "exact_jobs": (0,)},
    "qssf": {"rolling_weight": NO_PART, "least_jobs": (0,), "retrain_s": NOT_ABOVE_0},
    "sia": {
        **dict.fromkeys(("quantum_s", "limit_s", "idle"), NOT_ABOVE_0),
        "exact_jobs": (0,),
        "fairness": (0.0, 11.0, NAN),
    },
    "sidecar": {"quantum_s": NOT_ABOVE_0},
    "static_priority": {"priority_by_qos": TABLE[2:], "default_priority": (INF, NAN)},
    "tagged": {"average": ("mode",)},
    "themis": {**SHARING, "fairness": (-0.1, 1.0, NAN)},
    "themis_convex": SOLVING,
    "cells": {"cells": ({"a": {"zap": 1}}, {"a": {"node": -1}})},
    "consolidate": {
        "skew_threshold": NO_PART,
        "locality_wait_s": BELOW_0,
        "locality_wait_per_run": BELOW_0,
        "longest_locality_wait_s": BELOW_0,
    },
    "pools": {
        "margin": (-0.1, 1.0, NAN),
        "cooldown_s": BELOW_0,
        "startup_s": ({"a": -1.0}, {"a": INF}),
        "success": ({"a": 0.0}, {"a": 1.1}),
    },
    "reserve_and_pack": {"high_end": (("a", "a"), ("",)), "keep": NOT_ABOVE_0},
    "topology": {"locality_wait_s": BELOW_0},
    "contention": {"network_mb_s": BELOW_0, "pcie_mb_s": BELOW_0},
    "small_apart": {"small_gpus": NOT_ABOVE_0},
}
"""Values that must not be taken, by name and field."""


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        (name, field, v)
        for name, fields in WRONG.items()
        for field, bad in fields.items()
        for v in bad
    ],
)
def test_a_wrong_parameter_is_named(name: str, field: str, value: object) -> None:
    """Whatever is made by hand, too; configuration files are told the same."""
    family = next(f for f in (POLICY, SCHEME, RULE) if name in f.names())

    with pytest.raises(ValueError, match=rf"^{field}\W.*\b(must|no level|below 0)\b"):
        family.make(name, {field: value})


def test_defaults_are_within_their_bounds_and_bounds_are_inclusive() -> None:
    """Each of ours can be made as it is; the ends of a range that are in it are taken."""
    for kind in (*POLICIES.values(), *SCHEMES.values(), *RULES.values()):
        kind()
    POLICY.make("allox", {"alpha": 1.0, "window": 1000})
    POLICY.make("qssf", {"rolling_weight": 0.0, "least_jobs": 1})
    POLICY.make("mlfs", {"alpha": 1.0, "urgency": (("a", 0.0),), "deadline_weight": 0.0})
    SCHEME.make("pools", {"margin": 0.0, "success": {"a": 1.0}})


def test_the_value_and_the_key_are_said() -> None:
    """What is wrong can be found in a long file."""
    with pytest.raises(ValueError, match=r"window must be 1000 or less \(got 1001\)"):
        POLICY.make("allox", {"window": 1001})
    with pytest.raises(ValueError, match=r"weights must be .* above 0 \(got -2.0 for b\)"):
        POLICY.make("drf", {"weights": (("a", 1.0), ("b", -2.0))})
    with pytest.raises(ValueError, match=r"priority_by_qos .* once \(got 'a' twice\)"):
        POLICY.make("static_priority", {"priority_by_qos": (("b", 1.0), ("a", 1.0), ("a", 2.0))})
