"""Leases for jobs with deadlines: what the greedy rule and the exact program find."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import pytest

from slurm_dl.model.jobs import F64, I64
from slurm_dl.policies.arithmetic.calendar import Calendar, Need
from slurm_dl.policies.arithmetic.lease_packing import LeaseNeed, latest, pack, pack_exactly
from slurm_dl.policies.arithmetic.slots import SlotTable

NODES = 1000  # Branches of a program: more than any case here has
FIRST = 7  # Number of the lease under way
KINDS = (("nodes", 0), ("quota", 1))


def units(need: Need) -> F64:
    """``(2,)`` of each of `KINDS`."""
    return np.array([need.units.get(kind, 0.0) for kind in KINDS])


def table_of(free: F64) -> SlotTable:
    """A table of leases of 10 s, with ``(2, t)`` free units of `KINDS`."""
    calendar = Calendar(FIRST * 10)
    for kind, row in zip(KINDS, free, strict=True):
        calendar.open(kind, float(row.max()))
        for lease, there in enumerate(row.tolist()):
            begin_s = (FIRST + lease) * 10
            calendar.take(Need({kind: float(row.max()) - there}), begin_s, begin_s + 10)
    return SlotTable(calendar, 10.0, (FIRST + free.shape[1]) * 10)


def exists(needs: Sequence[LeaseNeed], free: F64) -> bool:
    """Whether there is a packing, by trying all sets of leases of each job in turn."""
    if not needs:
        return True
    need, room = needs[0], range(needs[0].first - FIRST, needs[0].before - FIRST)
    for mine in itertools.combinations(room, need.leases):
        left = free.copy()
        left[:, list(mine)] -= units(need.need)[:, None]
        if (left >= 0).all() and exists(needs[1:], left):
            return True
    return False


def holds(needs: Sequence[LeaseNeed], free: F64, found: Sequence[I64]) -> bool:
    """Whether *found* gives every job its leases within what is free."""
    left = free.copy()
    for need, mine in zip(needs, found, strict=True):
        assert len(set(mine.tolist())) == len(mine) == need.leases
        assert all(need.first <= lease < need.before for lease in mine.tolist())
        left[:, mine - FIRST] -= units(need.need)[:, None]
    return bool((left >= 0).all())


def drawn(rng: np.random.Generator) -> tuple[list[LeaseNeed], F64]:
    """Up to 6 jobs of 8 GPUs, and of a limit that some of them count in."""
    leases, gpus = int(rng.integers(3, 6)), int(rng.choice([4, 8]))
    free = np.array([np.full(leases, float(gpus)), rng.integers(2, 6, leases)])
    needs: list[LeaseNeed] = []
    wanted, most = 0.0, rng.uniform(0.5, 0.95) * gpus * leases
    while wanted < most and len(needs) < 6:
        size = min(gpus, int(rng.choice([1, 2, 2, 4, 8])))
        first = int(rng.integers(0, 2))
        before = int(rng.integers(first + 1, leases + 1))
        count = int(rng.integers(1, max(2, (before - first) * 3 // 4 + 1)))
        need = Need(dict(zip(KINDS, (float(size), float(rng.integers(0, 2))), strict=True)))
        needs.append(
            LeaseNeed(
                gpus=size, need=need, leases=count, first=FIRST + first, before=FIRST + before
            )
        )
        wanted += size * count
    return needs, free


def test_the_exact_packing_is_that_of_trying_all_and_the_greedy_one_finds_most() -> None:
    rng, feasible, greedy = np.random.default_rng(3), 0, 0
    for _ in range(500):
        needs, free = drawn(rng)
        table = table_of(free)
        quick, exact = pack(needs, table), pack_exactly(needs, table, NODES)
        assert (exact is not None) == exists(needs, free), needs
        for found in (quick, exact):
            assert found is None or holds(needs, free, found)
        feasible += exact is not None
        greedy += quick is not None
        assert exact is not None or quick is None
    assert 150 < feasible < 450
    assert 0.7 < greedy / feasible < 0.97


def case(*jobs: tuple[int, int, int]) -> list[LeaseNeed]:
    """Jobs of (GPUs, leases, end)."""
    return [
        LeaseNeed(
            gpus=g, need=Need({KINDS[0]: float(g)}), leases=b, first=FIRST, before=FIRST + before
        )
        for g, b, before in jobs
    ]


@pytest.mark.parametrize(
    ("jobs", "expected"),
    [
        # Largest first, from its deadline backwards; the small one gets what is left.
        ([(1, 2, 4), (4, 2, 4)], [[0, 1], [2, 3]]),
        # Of equal GPUs the least slack, and of equal slack the last due.
        ([(4, 1, 4), (4, 3, 4)], [[0], [1, 2, 3]]),
        ([(4, 1, 2), (4, 3, 4)], [[0], [1, 2, 3]]),
        ([(4, 1, 1), (4, 2, 2)], None),
        ([(4, 0, 2), (4, 2, 2)], [[], [0, 1]]),
        ([(8, 1, 4)], None),
    ],
)
def test_the_greedy_order(jobs: list[tuple[int, int, int]], expected: list[list[int]]) -> None:
    found = pack(case(*jobs), table_of(np.full((2, 4), 4.0)))
    assert (None if found is None else [(m - FIRST).tolist() for m in found]) == expected


def test_leases_that_must_follow_one_another() -> None:
    """Of leases 0 to 7 the jobs of others leave 0, 1, 2, 4, 6 and 7."""
    free = np.full((2, 8), 4.0)
    free[0, [3, 5]] = 1.0
    for count, expected in ((1, [7]), (2, [6, 7]), (3, [0, 1, 2]), (4, None)):
        one = LeaseNeed(
            gpus=2, need=Need({KINDS[0]: 2.0}), leases=count, first=FIRST, before=FIRST + 9,
            together=True,
        )  # fmt: skip
        found = latest(one, table_of(free))
        assert (None if found is None else (found - FIRST).tolist()) == expected


@pytest.mark.parametrize(
    ("jobs", "leases"), [([(1, 3, 2)], 5), ([(1, 2, -1)], 5), ([(1, 200, 1000)] * 51, 1000)]
)
def test_programs_that_are_not_tried(jobs: list[tuple[int, int, int]], leases: int) -> None:
    assert pack_exactly(case(*jobs), table_of(np.full((2, leases), 4.0)), NODES) is None


def test_the_solver_prints_nothing_on_stdout() -> None:
    """HiGHS does so at times, by C's stdio; here it always does."""
    program = """
import ctypes
from scipy import optimize
from slurm_dl.policies.arithmetic.calendar import Calendar, Need
from slurm_dl.policies.arithmetic.lease_packing import LeaseNeed, pack_exactly
from slurm_dl.policies.arithmetic.slots import SlotTable
real = optimize.milp
def loud(*args, **more):
    ctypes.CDLL(None).puts(b"HighsMipSolverData")
    return real(*args, **more)
optimize.milp = loud
calendar = Calendar(0)
calendar.open(("nodes", 0), 1.0)
one = LeaseNeed(gpus=1, need=Need({("nodes", 0): 1.0}), leases=1, first=0, before=2)
assert pack_exactly([one], SlotTable(calendar, 10.0, 20.0), 10) is not None
print("done")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    )
    assert (done.stdout, "HighsMip" in done.stderr) == ("done\n", True)
