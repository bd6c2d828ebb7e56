"""Each input that a policy for Slurm needs comes from the daemon, if users say all that they can.

A need is a promise of the table of policies: one that nothing fills would make the policy another
one in silence, at the level that it claims.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from fake_cluster import FakeCluster
from pasts import Known, Over, past_of

from slurm_dl.daemon.enrich import Enricher
from slurm_dl.engine.cycle import run_cycle
from slurm_dl.engine.settings import Deadlines, Settings
from slurm_dl.estimates.training_speed import SitePriors
from slurm_dl.ledger.store_protocol import MemoryStore
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.contract import Contract
from slurm_dl.model.jobs import Origin
from slurm_dl.model.shape import Shape
from slurm_dl.model.snapshot import JobText, Observed, Snapshot
from slurm_dl.policies.policy_text import NEEDS
from slurm_dl.policies.registry import POLICIES, runs_on_slurm
from slurm_dl.profiles import shipped_profiles

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
