"""The order of every policy in four small situations; no two policies agree in all of them."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Final

import pytest
from fair_order_oracles import FAIR
from order_oracles import ORACLES
from share_order_oracles import PAIRS
from situations import PARAMETERS, ROWS, SITUATIONS, made, order_of, overs

from slurm_dl.policies import registry
from slurm_dl.policies.policy_text import shown_by
from slurm_dl.testing.snapshot_builder import NOW_S

ROOT = Path(__file__).parents[2]
ON_SLURM = sorted(
    n
    for n, p in registry.POLICIES.items()
    if registry.runs_on_slurm(p) and "sizes" not in p.about.needs
)

SAME_RULE = (
    # Without prices cost is the sum.
    {"gavel_cost", "gavel_sum"},
    # In proportion to nothing else than arrival, until a lease ends.
    {"gavel_fifo", "gavel_proportional"},
    # Equal parts of all GPUs; they differ where a job cannot use the whole of its part.
    {"gavel_isolated", "gavel_max_min_agnostic"},
    # On Slurm it forms no pairs, so each job is a group.
    {"gavel_gandiva", "gavel_isolated"},
    {"gavel_gandiva", "gavel_max_min_agnostic"},
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


def test_every_level_has_tests_that_show_it() -> None:
    """They exist, and name the policy or run all that are on Slurm."""
    for name, policy in registry.POLICIES.items():
        paths = re.findall(r"tests/\S+\.py", shown_by(name, policy.about.level))
        assert paths, name
        texts = [(ROOT / path).read_text("utf-8") for path in paths]
        # The simulator's gates name the preset that has list_las and list_gittins.
        named = (name, "ON_SLURM", "tiresias-artifact")
        assert any(word in text for word in named for text in texts), name


WHOLE: Final = {**ORACLES, **FAIR}


@pytest.mark.parametrize("policy", sorted(WHOLE))
def test_an_oracle_gives_the_row_where_no_gpu_is_free(policy: str) -> None:
    """Worked out from the literal table alone."""
    full = {name: row for name, row in zip(SITUATIONS, ROWS[policy], strict=True) if name != "room"}

    assert {name: WHOLE[policy](SITUATIONS[name]) for name in full} == full


FEW: Final = {("gavel_hierarchical", "full_1"): 5, ("gavel_strategy_proof", "full_1"): 7}
"""Pairs where jobs of the model "even" can have a throughput of v100 or of more time on k80, with
which share the program decides."""


@pytest.mark.parametrize("policy", sorted(PAIRS))
def test_no_optimum_turns_a_pair_of_the_row_round(policy: str) -> None:
    """Shares of time, by programs of their own."""
    for (name, queue), row in zip(SITUATIONS.items(), ROWS[policy], strict=True):
        if name == "room":
            continue
        pairs = PAIRS[policy](queue)

        assert not {(a, b) for a, b in pairs if row.index(str(a)) > row.index(str(b))}
        assert len(pairs) >= FEW.get((policy, name), 10), "most pairs are the same in every optimum"


NO_ORACLE: Final = {"qssf"}
"""Boosted trees: what they predict has no closed form."""


def test_every_policy_has_an_oracle_or_says_where() -> None:
    """Each policy stands in one table."""
    assert sorted([*WHOLE, *PAIRS, *NO_ORACLE]) == sorted(ROWS)
    assert set(ON_SLURM) <= set(ROWS)


def test_arrival_las_keeps_the_order_of_arrival_in_each_queue() -> None:
    """A policy of the simulator alone: two queues, by GPU-seconds."""
    limit_gpu_s = 8_000.0
    mine = made("arrival_las", {"thresholds_gpu_s": [limit_gpu_s]})
    for queue in list(SITUATIONS.values())[:3]:
        waits = [one for one in queue if one.job > 2]
        waits.sort(key=lambda one: (one.had_s * one.gpus >= limit_gpu_s, one.job))

        assert order_of(queue, overs(NOW_S), mine) == "".join(str(one.job) for one in waits)
