"""What every scheme of placement must keep to, under every rule, on random clusters."""

from __future__ import annotations

import itertools

import numpy as np
import place_cases as pc
import pytest
from hypothesis import given, settings

from slurm_dl.placement.rule import Rule
from slurm_dl.placement.scheme import Scheme
from slurm_dl.placement.scheme_registry import RULES, SCHEMES

PLAIN_SCHEMES = sorted(name for name in SCHEMES if name != "cells")
"""Those that need nothing but a cluster; the parameters of cells describe one."""

PLAIN_RULES = sorted(name for name in RULES if name != "pools")

EVERY_SCHEME_AND_RULE = pytest.mark.parametrize(
    ("scheme", "rules"),
    [
        pytest.param(SCHEMES[scheme](), tuple(RULES[rule]() for rule in rules), id=f"{scheme}-{n}")
        for scheme in PLAIN_SCHEMES
        for n, rules in enumerate(((), *itertools.combinations(PLAIN_RULES, 1), PLAIN_RULES))
    ],
)


@EVERY_SCHEME_AND_RULE
@given(case=pc.cases())
@settings(max_examples=10)
def test_a_job_is_put_on_nodes_that_hold_it(
    scheme: Scheme, rules: tuple[Rule, ...], case: pc.Case
) -> None:
    """As many nodes as one of its ways has, its own, up, with room after those before it."""
    snap = pc.snapshot(case)
    placed = pc.place(snap, scheme, *rules)

    ledger = pc.Ledger(case)
    for want in pc.wants(snap):
        spot = placed.spots.get(want.job_id)
        if spot is None:
            continue
        share = pc.shares(want)[len(spot.nodes)]
        assert list(spot.nodes) == sorted(set(spot.nodes))
        for node in spot.nodes:
            assert want.need.allowed[node]
            assert ledger.fits(node, share, exclusive=want.need.exclusive)
            ledger.give(node, share)


@EVERY_SCHEME_AND_RULE
@given(case=pc.cases())
@settings(max_examples=8)
def test_answers_do_not_depend_on_the_order_in_which_jobs_are_listed(
    scheme: Scheme, rules: tuple[Rule, ...], case: pc.Case
) -> None:
    """Nor do they change when asked again."""
    first = pc.place(pc.snapshot(case), scheme, *rules)
    for again in (
        pc.place(pc.snapshot(case), scheme, *rules),
        pc.place(pc.snapshot(case, backwards=True), scheme, *rules),
    ):
        assert again.spots == first.spots
        assert again.waits.keys() == first.waits.keys()
        for job_id, wait in again.waits.items():
            before = first.waits[job_id]
            assert (wait.for_s, wait.why) == (before.for_s, before.why)
            assert np.array_equal(wait.within, before.within)  # type: ignore[arg-type]


@EVERY_SCHEME_AND_RULE
@given(case=pc.cases())
@settings(max_examples=8)
def test_where_a_job_waits_it_could_be_held_if_nobody_else_were_there(
    scheme: Scheme, rules: tuple[Rule, ...], case: pc.Case
) -> None:
    """Slurm refuses for good a job that is kept from all nodes it could ever have."""
    snap = pc.snapshot(case)
    placed = pc.place(snap, scheme, *rules)

    for want in pc.wants(snap):
        wait = placed.waits.get(want.job_id)
        if wait is None or wait.within is None:
            continue
        assert wait.for_s > 0
        inside = np.flatnonzero(wait.within)
        assert want.need.allowed[inside].all()
        empty = pc.Ledger(pc.Case(case.nodes))
        assert any(
            sum(empty.fits(node, share) for node in inside) >= n
            for n, share in pc.shares(want).items()
        )


@pytest.mark.parametrize("name", PLAIN_SCHEMES)
@given(case=pc.cases())
@settings(max_examples=10)
def test_a_scheme_finds_room_for_what_fits_in_its_first_way(name: str, case: pc.Case) -> None:
    """A job alone in the queue that fits as it is starts, or is told where to wait."""
    scheme = SCHEMES[name]()
    for job in case.queue:
        alone = pc.Case(case.nodes, case.runs, (job,), case.other)
        snap = pc.snapshot(alone)
        want = pc.wants(snap)[0]
        ledger = pc.Ledger(alone)
        n, share = next(iter(pc.shares(want).items()))
        room = sum(
            bool(want.need.allowed[node]) and ledger.fits(node, share, exclusive=job.exclusive)
            for node in range(len(case.nodes))
        )
        placed = pc.place(snap, scheme)
        if room >= n:
            assert placed.spots or placed.waits
