"""The order of every policy in four small situations; no two policies agree in all of them."""

from __future__ import annotations

import itertools

import pytest
from order_oracles import ORACLES
from situations import PARAMETERS, ROWS, SITUATIONS, made, order_of, overs

from slurm_dl.policies import registry
from slurm_dl.testing.snapshot_builder import NOW_S

ON_SLURM = sorted(n for n, p in registry.POLICIES.items() if registry.runs_on_slurm(p))

SAME_RULE = (
    # Without prices cost is the sum.
    {"gavel_cost", "gavel_sum"},
    # In proportion to nothing else than arrival, until a lease ends.
    {"gavel_fifo", "gavel_proportional"},
    # They differ in whom a running job gives way to; of waiting jobs both take the shortest.
    {"sjf", "srtf"},
    # They differ in the reservations of the second job and later ones.
    {"easy_backfill", "conservative_backfill"},
)
"""Policies with one order here, and why."""


@pytest.mark.parametrize("later_s", [0.0, 60.0, 120.0])
@pytest.mark.parametrize("policy", ON_SLURM)
def test_each_policy_has_its_row(policy: str, later_s: float) -> None:
    """Two minutes more or less make no difference: on a real Slurm they pass."""
    mine = made(policy, PARAMETERS.get(policy))
    past = overs(NOW_S)

    got = [order_of(queue, past, mine, later_s=later_s) for queue in SITUATIONS.values()]

    assert got == list(ROWS[policy])


def test_no_two_policies_have_one_row() -> None:
    """None is FIFO, least attained service or a fixed order by another name."""
    alike = {
        frozenset(pair)
        for pair in itertools.combinations(ON_SLURM, 2)
        if ROWS[pair[0]] == ROWS[pair[1]]
    }

    assert alike == {frozenset(pair) for pair in SAME_RULE}


@pytest.mark.parametrize("policy", sorted(ORACLES))
def test_an_oracle_gives_the_row_where_no_gpu_is_free(policy: str) -> None:
    """Worked out from the literal table alone."""
    full = {name: row for name, row in zip(SITUATIONS, ROWS[policy], strict=True) if name != "room"}

    assert {name: ORACLES[policy](SITUATIONS[name]) for name in full} == full
