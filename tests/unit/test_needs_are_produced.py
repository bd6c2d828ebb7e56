"""Each input that a policy for Slurm needs comes from the daemon, if users say all that they can.

A need is a promise of the table of policies: one that nothing fills would make the policy another
one in silence, at the level that it claims.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import ClassVar

import numpy as np
import pytest
from fake_cluster import FakeCluster
from pasts import Known, Over, past_of
from small_traces import make_trace

from slurm_dl.daemon.enrich import Enricher
from slurm_dl.engine.cycle import run_cycle
from slurm_dl.engine.settings import Deadlines, Settings
from slurm_dl.estimates.training_speed import SitePriors
from slurm_dl.ledger.store_protocol import MemoryStore
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.contract import Contract
from slurm_dl.model.estimate_origin import Origin
from slurm_dl.model.policy_inputs import COLUMNS, columns_and
from slurm_dl.model.shape import Shape
from slurm_dl.model.snapshot import JobText, Observed, Snapshot
from slurm_dl.policies.base import Order
from slurm_dl.policies.fifo import Fifo
from slurm_dl.policies.policy_text import NEEDS
from slurm_dl.policies.registry import POLICIES, runs_on_slurm
from slurm_dl.profiles import shipped_profiles
from slurm_dl.simulation.cluster_shape import parse_shape
from slurm_dl.simulation.ideal.simulator import simulate
from slurm_dl.simulation.job_knowledge import JobSizes, TraceKnowledge
from slurm_dl.simulation.slurm.scenario import Scenario, simulate_slurm

ALL = Deadlines(share=1.0, account_share=1.0)
SETTINGS = Settings(partitions=frozenset({"gpu"}), deadlines=ALL)


def some(column: np.ndarray | None) -> bool:
    """Something is known of a job."""
    return column is not None and bool(np.isfinite(column).any())


def measured(origin: np.ndarray | None) -> bool:
    """Something is known of a job better than by its time limit or a guess."""
    return origin is not None and not np.isin(origin, [Origin.DECLARED, Origin.PRIOR]).all()


FILLED: Mapping[str, Callable[[Snapshot], bool]] = {
    "left_s": lambda snap: some(snap.left_s) and measured(snap.left_from),
    "progress": lambda snap: some(snap.progress),
    "due_s": lambda snap: some(snap.due_s),
    "rates": lambda snap: snap.rates is not None and len(np.unique(snap.rates)) > 1,
    "setup_s": lambda snap: some(snap.setup_s),
    "sizes": lambda snap: snap.sizes is not None and len(np.unique(snap.sizes.rate)) > 1,
    "past": lambda snap: len(snap.past) > 0,
    "history": lambda snap: len(snap.past) > 0,
    "accounts": lambda snap: any(text.account for text in snap.seen.texts.values()),
    "texts": lambda snap: any(text.qos and text.user for text in snap.seen.texts.values()),
}
"""By need, whether the field of the snapshot that it stands for is filled."""


class Talkative(FakeCluster):
    """Slurm in memory, whose jobs say all that users can say."""

    def observe(self) -> Observed:
        """See `FakeCluster`."""
        seen = super().observe()
        claims = {
            job_id: dataclasses.replace(
                claim,
                model="resnet50",
                progress=0.25,
                due_s=int(self.now_s) + 3600,
                sizes=(Shape(1, 2), Shape(1, 4)),
            )
            for job_id, claim in seen.claims.items()
        }
        texts = {
            job_id: JobText(
                label=str(job_id), name="train", user="ann", account="lab", qos="normal"
            )
            for job_id in seen.texts
        }
        return dataclasses.replace(seen, claims=claims, texts=texts)


@pytest.mark.parametrize("name", sorted(n for n, p in POLICIES.items() if runs_on_slurm(p)))
def test_the_daemon_fills_what_a_policy_for_slurm_needs(name: str) -> None:
    """One job runs and two wait, on GPUs of two types."""
    policy = POLICIES[name]()
    cluster = Talkative(nodes=2, gpus=4, gpu_types=("a100", "v100"))
    for gpus in (4, 4, 8):
        cluster.submit(gpus, work_s=1000, contract=Contract(), limit_s=3000)
    know = Enricher(
        history=Known(past_of([Over("ann", "train", 4, 2000.0, account="lab")])),
        policy=policy,
        profiles=shipped_profiles(),
        site=SitePriors(gpu_speed={"a100": 2.0}),
        deadlines=ALL,
    )
    ledger = Ledger(MemoryStore())
    for _ in range(2):  # What a job has run is known from the second look on.
        cluster.advance(200)
        clock, acting = cluster.clock, True
        cycle = run_cycle(
            cluster, ledger, policy, SETTINGS, clock=clock, acting=acting, enrich=know
        )

    for need in policy.about.needs:
        assert need in NEEDS
        assert FILLED[need](cycle.snapshot), need


class Watching(Fifo):
    """A policy that needs everything and keeps what it is shown once a job is over."""

    about = dataclasses.replace(Fifo.about, needs=tuple(NEEDS))
    shown: ClassVar[list[Snapshot]] = []

    def order(self, snap: Snapshot) -> Order:
        """See `Policy`."""
        if len(snap.past):
            self.shown[:] = [dataclasses.replace(snap)]
        return super().order(snap)


@pytest.mark.parametrize("on_slurm", [False, True], ids=["ideal cluster", "simulated Slurm"])
def test_simulations_tell_what_a_trace_knows(on_slurm: bool) -> None:  # noqa: FBT001
    """Each input that the daemon can fill, and forward runs go on from it."""
    trace = make_trace([0.0, 10.0, 20.0, 30.0], [500.0, 501.0, 502.0, 503.0], [4.0] * 4)
    names = {"users": ("ann",), "models": ("resnet",), "model": np.zeros(4, dtype=np.int32)}
    trace = dataclasses.replace(trace, **names)
    shape = parse_shape("1x4:a100,1x4:v100")
    sizes = JobSizes(
        gpus=np.array([2.0, 4.0]), nodes=np.ones(2), rate=np.array([0.6, 1.0]), asked=1
    )
    known = TraceKnowledge(
        rates=np.tile([1.0, 0.5], (4, 1)), due_s=np.full(4, 9000.0),
        foreseen_s=np.full(4, 600.0), sizes=(sizes,) * 4, texts=True,
    )  # fmt: skip
    policy = Watching()
    policy.shown.clear()
    if on_slurm:
        scenario = Scenario(trace=trace, shape=shape, known=known)
        simulate_slurm(scenario, policy=policy, settings=SETTINGS)
    else:
        simulate(trace, shape, policy, known=known)
    (shown,) = policy.shown

    for need in FILLED.keys() - {"texts"}:
        assert FILLED[need](shown), need
    forward = columns_and(shown, 1)
    for name in COLUMNS:
        column = getattr(shown, name)
        assert (forward[name] is None) == (column is None), name
        assert column is None or len(forward[name]) == len(column) + 1, name
