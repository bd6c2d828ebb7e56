"""Whose CPUs and memory are cut while it waits, and how far."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import build
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_dl.engine.decide import decide
from slurm_dl.engine.placing.trim_requests import trims
from slurm_dl.engine.settings import Placement, Settings
from slurm_dl.model.contract import Claim
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobRow
from slurm_dl.model.nodes import Allocations
from slurm_dl.model.plan import Trim
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.fifo import FifoSkip

CPUS = 64
GPUS = 8
SETTINGS = Settings(partitions=frozenset({"gpu"}), placement=Placement(trim=True))


def site(
    used: Mapping[int, tuple[float, int]],
    waiting: list[JobRow],
    claims: Mapping[int, Claim],
    trimmed: frozenset[JobId] = frozenset(),
) -> Snapshot:
    """Nodes of 8 GPUs, 64 CPUs, 800 MB; *used*: node -> GPUs and CPUs of a job there."""
    running = [build.running(i + 1, gpus) for i, (gpus, _) in enumerate(used.values())]
    seen = build.observed(
        [*running, *waiting],
        nodes=[GPUS] * len(used),
        claims={JobId(j): claim for j, claim in claims.items()},
        columns={"mem_mb": [800] * len(used)},
    )
    held = Allocations(
        job=np.arange(len(used), dtype=np.int32),
        node=np.array(list(used), dtype=np.int32),
        gpus=np.array([gpus for gpus, _ in used.values()]),
        cpus=np.array([cpus for _, cpus in used.values()], dtype=np.int32),
        mem_mb=np.full(len(used), 100, dtype=np.int64),
    )
    snap = build.snapshot(dataclasses.replace(seen, held=held))
    return dataclasses.replace(snap, trimmed=trimmed)


def cut(snap: Snapshot) -> list[Trim]:
    return [a for a in decide(snap, FifoSkip(), SETTINGS).actions if isinstance(a, Trim)]


def test_a_job_is_cut_to_its_part_where_that_makes_it_fit() -> None:
    """Four GPUs and 40 CPUs are free; it asks for four GPUs and 48 CPUs, its part is 32."""
    job = build.pending(9, 4, cpus=48)
    (trim,) = cut(site({0: (4, 24)}, [job], {9: Claim(least_cpus=32)}))
    assert (trim.job_id, trim.cpus, trim.mem_mb) == (9, 32, 0)


@pytest.mark.parametrize(
    ("used", "claim", "why"),
    [
        ((4, 8), Claim(least_cpus=32), "it fits as it is"),
        ((4, 40), Claim(least_cpus=32), "it would not fit with its part either"),
        ((4, 24), Claim(), "its owner has not said so"),
        ((4, 24), Claim(least_cpus=32, most_nodes=4), "Slurm does not take it"),
        ((6, 24), Claim(least_cpus=32), "there are no GPUs"),
    ],
)
def test_nobody_is_cut_in_vain(used: tuple[float, int], claim: Claim, why: str) -> None:
    job = build.pending(9, 4, cpus=48)
    assert cut(site({0: used}, [job], {9: claim})) == [], why


def test_never_below_the_part_of_the_node() -> None:
    """A claim of one CPU does not make it less than proportional."""
    job = build.pending(9, 4, cpus=48)
    (trim,) = cut(site({0: (4, 24)}, [job], {9: Claim(least_cpus=1)}))
    assert trim.cpus == 32


def test_memory_likewise() -> None:
    job = build.pending(9, 4, cpus=8, mem_mb=750)
    (trim,) = cut(site({0: (4, 24)}, [job], {9: Claim(least_mem_mb=400)}))
    assert (trim.cpus, trim.mem_mb) == (0, 400)


def test_once_and_not_again() -> None:
    job = build.pending(9, 4, cpus=48)
    snap = site({0: (4, 24)}, [job], {9: Claim(least_cpus=32)}, trimmed=frozenset({JobId(9)}))
    assert cut(snap) == []


def test_only_the_first_of_the_window_are_looked_at() -> None:
    """A queue of any length costs no more than its window."""
    waiting = [build.pending(9 + i, 4, cpus=48) for i in range(3)]
    claims = {job.job_id: Claim(least_cpus=32) for job in waiting}
    snap = site(dict.fromkeys(range(3), (4, 24)), waiting, claims)
    ranked = np.arange(len(snap.jobs), dtype=np.int64)
    assert [t.job_id for t in trims(snap, ranked, frozenset(), 2)] == [9, 10]


def test_only_where_it_is_switched_on() -> None:
    job = build.pending(9, 4, cpus=48)
    snap = site({0: (4, 24)}, [job], {9: Claim(least_cpus=32)})
    off = Settings(partitions=frozenset({"gpu"}))
    assert not [a for a in decide(snap, FifoSkip(), off).actions if isinstance(a, Trim)]


@given(
    used=st.lists(st.tuples(st.integers(0, GPUS), st.integers(0, CPUS)), min_size=1, max_size=4),
    asks=st.lists(
        st.tuples(st.integers(1, GPUS), st.integers(1, CPUS), st.integers(1, CPUS)), max_size=4
    ),
)
def test_nobody_gets_less_than_the_lesser_of_wish_and_part(
    used: list[tuple[int, int]], asks: list[tuple[int, int, int]]
) -> None:
    waiting = [build.pending(50 + i, g, cpus=c) for i, (g, c, _) in enumerate(asks)]
    claims = {50 + i: Claim(least_cpus=least) for i, (_, _, least) in enumerate(asks)}
    snap = site({i: (float(g), c) for i, (g, c) in enumerate(used)}, waiting, claims)
    ranked = np.arange(len(snap.jobs), dtype=np.int64)
    for trim in trims(snap, ranked, frozenset(), 200):
        gpus, cpus, least = asks[trim.job_id - 50]
        assert trim.cpus >= min(cpus, CPUS * gpus // GPUS)
        assert trim.cpus >= min(cpus, least)
        assert trim.cpus < cpus
