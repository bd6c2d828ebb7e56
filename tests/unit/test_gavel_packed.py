"""Gavel's policies that put two jobs on the same GPUs, without their rounds."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Sequence
from pathlib import Path

import build
import numpy as np
import pytest
from small_traces import make_trace

from slurm_dl.experiments.gavel_pairs import pair_rates
from slurm_dl.model.jobs import F64
from slurm_dl.model.pair_rates import PairRates
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.arithmetic.linear_programs import Solved
from slurm_dl.policies.gavel.objectives import (
    GavelFinishTime,
    GavelMakespan,
    GavelMaxMin,
    GavelSum,
)
from slurm_dl.policies.gavel.packed import Couples, GavelGandiva
from slurm_dl.policies.gavel.pool import Sharing
from slurm_dl.policies.gavel.queues import GavelFifo
from slurm_dl.simulation.cluster_shape import ANY_TYPE
from slurm_dl.traces.formats.gavel_shockwave import TABLE

GROUPS = json.loads((Path(__file__).parents[1] / "data/oracles/gavel_pairs.json").read_text())[
    "groups"
]


def snapshot(
    gpus: dict[int, float], kind: Sequence[int], rate: F64, capacity: Sequence[float]
) -> Snapshot:
    """Jobs by id with their GPUs, as fast on every type, first id first in the queue."""
    rows = [build.pending(job, n, submit_s=build.NOW_S - 1000 + job) for job, n in gpus.items()]
    seen = build.observed(rows, **build.node_of_each_type(capacity))
    return dataclasses.replace(
        build.snapshot(seen),
        rates=np.ones((len(rows), len(capacity))),
        pair_rates=PairRates(kind=np.array(kind, dtype=np.int32), rate=rate),
    )


def pairs(snap: Snapshot, found: Solved) -> dict[tuple[int, int], dict[int, float]]:
    """Share by pair of job ids, the lower first, and type."""
    told: dict[tuple[int, int], dict[int, float]] = {}
    one, other = (snap.jobs.job_id[rows] for rows in (found.paired.first, found.paired.second))
    each = zip(one, other, found.paired.kind, found.paired.share, strict=True)
    for a, b, j, share in each:
        told.setdefault((min(a, b), max(a, b)), {})[int(j)] = float(share)
    return told


def test_groups_are_those_of_gavels_code() -> None:
    """Jobs come and go between the calls, all fit in one of them, and a pair fits badly."""
    kinds, rate = GROUPS["kind"], np.array(GROUPS["rate"]).transpose(1, 2, 0)
    draw, couples = random.Random(0).sample, Couples()  # noqa: S311 - as Gavel
    policy = GavelGandiva()
    for call in GROUPS["calls"]:
        # Ids are 1 higher here.
        gpus = {job + 1: float(GROUPS["gpus"][job]) for job in call["here"]}
        snap = snapshot(gpus, [kinds[job] for job in call["here"]], rate, GROUPS["capacity"])

        found, couples = policy.regrouped(snap, couples, draw)

        in_groups = call["pairs"] if len(call["shares"]) < len(call["here"]) else []
        told = pairs(snap, found)
        assert sorted(couples) == [(a + 1, b + 1) for a, b in call["pairs"]]
        assert sorted(told) == [(a + 1, b + 1) for a, b in in_groups]
        for group, share in call["shares"]:
            for job in group:
                row = call["here"].index(job)
                may = np.array(GROUPS["capacity"]) >= GROUPS["gpus"][job]
                assert found.share[row][may] == pytest.approx(np.array(share)[may])


def test_of_a_queue_the_next_jobs_join_the_best_ones_above_one_and_a_half() -> None:
    """Kinds 0 to 3; jobs 1 to 3 have the three GPUs, and jobs 4 to 7 come next."""
    rate = np.full((4, 4, 1), 0.5)
    rate[0, 1] = rate[1, 0] = 0.8  # Together 1.6
    rate[0, 2] = rate[2, 0] = 0.9  # Together 1.8
    kind = [1, 2, 3, 0, 0, 0, 0]
    snap = snapshot(dict.fromkeys(range(1, 8), 1.0), kind, rate, [3.0])

    found = GavelFifo(packed=True).solved(snap)

    # Job 4 takes the best, job 5 the other, and job 6 finds nobody but 3: 1.0.
    assert pairs(snap, found) == {(2, 4): {0: 1.0}, (1, 5): {0: 1.0}}
    assert found.share[:, 0].tolist() == [1, 1, 1, 1, 1, 0, 0]


@pytest.mark.parametrize(
    ("third", "joined"), [(2.0, {}), (1.0, {(1, 3): {0: 1.0}, (2, 4): {0: 1.0}})]
)
def test_the_first_that_finds_nobody_ends_it(
    third: float, joined: dict[tuple[int, int], dict[int, float]]
) -> None:
    """Jobs 1 and 2 run on a GPU each, and nobody on two, which job 3 may ask for."""
    rate = np.full((1, 1, 1), 0.9)
    snap = snapshot({1: 1.0, 2: 1.0, 3: third, 4: 1.0}, [0] * 4, rate, [2.0])

    assert pairs(snap, GavelFifo(packed=True).solved(snap)) == joined


PACKED: tuple[type[Sharing], ...] = (GavelMaxMin, GavelMakespan, GavelFinishTime, GavelSum)


@pytest.mark.parametrize("policy", PACKED, ids=lambda kind: kind.name)
def test_shares_of_all_jobs_grow_by_pairs_and_are_whole_at_most(policy: type[Sharing]) -> None:
    """Eight alike on two GPUs have a quarter of the time alone, and half of it in pairs."""
    snap = snapshot(dict.fromkeys(range(1, 9), 1.0), [0] * 8, np.full((1, 1, 1), 0.9), [2.0])
    snap = dataclasses.replace(snap, left_s=np.full(8, 5000.0))

    alone, packed = policy().order(snap).share, policy(packed=True).order(snap).share
    unknown = policy(packed=True).order(dataclasses.replace(snap, pair_rates=None)).share

    assert alone is not None
    assert unknown == pytest.approx(alone)
    assert alone.sum() == pytest.approx(2)
    assert packed is not None
    assert packed.sum() == pytest.approx(4)
    assert packed.max() <= 1


def test_measured_speeds_of_pairs_go_to_the_jobs_of_a_trace() -> None:
    """Kinds are models on so many GPUs; on types that were not measured nobody shares."""
    table = TABLE.with_name("gavel_pairs.json")
    told = json.loads(table.read_text())
    model = np.array([0, 0, 1, 1], dtype=np.int32)
    models = ("A3C", "LM (batch size 10)")
    trace = make_trace([0] * 4, [10] * 4, [1, 2, 1, 3], model=model, models=models)

    found = pair_rates(trace, table, ("k80", "a100", "v100"))
    anywhere = pair_rates(trace, table, (ANY_TYPE,))

    number = {tuple(job): at for at, job in enumerate(told["jobs"])}
    a3c, lm = number["A3C", 1], number["LM (batch size 10)", 1]
    for j, kind in ((0, "k80"), (2, "v100")):
        row = next(row for row in told["pairs"] if row[:2] == [kind, a3c])
        at = row.index(lm, 2)
        first, second = np.array([0]), np.array([2])
        both = found.beside(first, second)[:, 0]
        assert both[:, j].tolist() == row[at + 1 : at + 3]
        assert both[:, 1].tolist() == [0, 0]
    # Nobody measured A3C on 2 GPUs, nor this LM on 3.
    assert found.kind[[1, 3]].tolist() == [-1, -1]
    assert anywhere.beside(first, second)[0, 0, 0] == both[0, 2]
