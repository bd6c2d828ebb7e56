"""Reports of steps and ledger entries that are as wrong as they may be: decisions go on."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Final

import build
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_dl.engine.decide import decide
from slurm_dl.engine.settings import Placement, Preemption, Resizing, Settings
from slurm_dl.estimates.goodput import with_step
from slurm_dl.estimates.size_speeds import sizes_of
from slurm_dl.estimates.training_speed import SitePriors
from slurm_dl.model.booking import Entry, entry
from slurm_dl.model.contract import Claim, Contract
from slurm_dl.model.ids import JobId
from slurm_dl.model.shape import Shape
from slurm_dl.model.sizes import SIZE, SizeHistory
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.model.step_report import BatchLimits, StepReport, StepTime
from slurm_dl.placement.best_fit import BestFit
from slurm_dl.policies.base import Policy
from slurm_dl.policies.elastic.afs import Afs
from slurm_dl.policies.elastic.optimus import Optimus
from slurm_dl.policies.elastic.pollux import Pollux
from slurm_dl.policies.elastic.sia import Sia

LADDER: Final = (Shape(1, 1), Shape(1, 2), Shape(1, 4), Shape(2, 4))
COUNTS: Final = st.sampled_from([1, 2, 1000, 10**9]) | st.integers(1, 10**9)
SECONDS: Final = st.sampled_from([1e-6, 1.0, 1e6]) | st.floats(1e-6, 1e6)
NOISES: Final = st.sampled_from([0.0, 1e12]) | st.floats(0, 1e12)
PASSES: Final = st.sampled_from([1, 2, 1024]) | st.integers(1, 1024)
SETTINGS: Final = Settings(
    partitions=frozenset({"gpu"}),
    preemption=Preemption(min_quantum_s=0, cooldown_s=0),
    placement=Placement(scheme=BestFit(), steer=True),
    resizing=Resizing(steadiness=1.0),
)


@st.composite
def reports(draw: st.DrawFn, gpus: st.SearchStrategy[int]) -> StepReport:
    """Anything that a comment may say."""
    first, most = sorted(draw(st.tuples(COUNTS, COUNTS)))
    least, most_local = sorted(draw(st.tuples(COUNTS, COUNTS)))
    return StepReport(
        *(0, draw(gpus), draw(COUNTS), draw(PASSES), draw(SECONDS), draw(NOISES)),
        BatchLimits(first, most, least, most_local),
    )


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    """Jobs on nodes of two types whose batch adapts, after some reports, and one that waits."""
    rows, claims, booked = [], {}, list[Entry]()
    for job in (1, 2, 3):
        claim = Claim(contract=Contract(), sizes=LADDER, batch="adapt", steps=draw(reports(COUNTS)))
        history = SizeHistory(asked=LADDER[0], now=LADDER[1])
        for at in draw(st.lists(st.sampled_from(LADDER), max_size=3)):
            said = draw(reports(st.just(at.gpus)))
            step = StepTime(at.nodes, at.gpus, said.local_batch, said.passes - 1, said.step_s)
            history = with_step(history, step)
        rows.append(build.running(job, 2) if job < 3 else build.pending(job, 2))
        claims[JobId(job)] = claim
        booked.append(entry(SIZE, job, json.loads(json.dumps(history.body()))))
    seen = build.observed(
        rows, claims=claims, nodes=(4, 4, 4), held={1: {0: 2.0}, 2: {1: 2.0}},
        columns={"gpu_type": (0, 1, 1)},
    )  # fmt: skip
    snap = build.snapshot(seen, booked=tuple(booked))
    return replace(snap, sizes=sizes_of(snap, {}, SitePriors()))


@given(
    snap=snapshots(),
    policy=st.sampled_from(
        [Pollux(), Pollux(search=True), Sia(), Sia(fairness=10.0), Sia(fairness=-10.0), Afs()]
        + [Optimus()]
    ),
)
@settings(max_examples=60, deadline=None)
def test_no_report_of_steps_stops_the_decisions(snap: Snapshot, policy: Policy) -> None:
    assert snap.sizes is not None
    assert snap.sizes.fits(n=3, types=2)
    order = policy.order(snap)
    assert order.size is not None
    gpus = snap.sizes.gpus[order.size[order.size >= 0]]
    assert gpus.sum() <= 12
    decide(snap, policy, SETTINGS)
