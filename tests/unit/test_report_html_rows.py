"""Rows of a schedule's picture: nobody is drawn over others, and all fit where there is room."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from slurm_dl.report.html.row_packing import Blocks, pack

Run = tuple[int, int, int, int]
"""Start, end, job, GPUs."""

RUNS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 12), st.integers(0, 5), st.integers(0, 9)).map(
        lambda r: (r[0], r[0] + r[1], r[2], r[3])
    ),
    max_size=40,
)
NODES = st.lists(st.integers(1, 8), min_size=1, max_size=6)


def packed(runs: list[Run], nodes: list[int]) -> Blocks:
    columns = [np.array([run[i] for run in runs], dtype=np.int64) for i in range(4)]
    return pack(columns[0], columns[1], job=columns[2], gpus=columns[3], node_gpus=nodes)


def rows_of(blocks: Blocks) -> dict[int, list[int]]:
    """The rows of each run."""
    rows: dict[int, list[int]] = {}
    for run, first, count in zip(blocks.run, blocks.first, blocks.count, strict=True):
        rows.setdefault(int(run), []).extend(range(int(first), int(first + count)))
    return rows


@given(RUNS, NODES)
def test_each_run_has_its_gpus_and_nobody_shares_a_row(runs: list[Run], nodes: list[int]) -> None:
    """At every instant each row has one run at most; a run that lasts has all it asks for."""
    blocks = packed(runs, nodes)
    rows = rows_of(blocks)

    for i, (start, end, _, gpus) in enumerate(runs):
        assert len(set(rows.get(i, []))) == (gpus if end > start else 0)
    for now in range(45):
        there = [row for i, r in enumerate(runs) if r[0] <= now < r[1] for row in rows.get(i, [])]
        assert len(there) == len(set(there))
    assert max((row for one in rows.values() for row in one), default=0) < sum(nodes) + blocks.extra


@given(RUNS, NODES)
def test_extra_rows_are_for_what_does_not_fit_alone(runs: list[Run], nodes: list[int]) -> None:
    """There are just as many as the GPUs held at once go beyond those there are."""
    most = max((sum(r[3] for r in runs if r[0] <= now < r[1]) for now in range(45)), default=0)

    assert packed(runs, nodes).extra == max(0, most - sum(nodes))


@given(RUNS, NODES)
def test_blocks_stay_within_a_node(runs: list[Run], nodes: list[int]) -> None:
    """A rectangle over the border of two nodes would say that they are one."""
    blocks = packed(runs, nodes)
    node_of = np.append(np.repeat(np.arange(len(nodes)), nodes), np.full(blocks.extra, -1))

    for first, count in zip(blocks.first, blocks.count, strict=True):
        assert len(set(node_of[first : first + count].tolist())) == 1
    assert (np.diff(blocks.run) >= 0).all()


def test_a_job_lies_on_one_node_and_fills_the_fullest() -> None:
    """Two GPUs go where two are free, not to the empty node; four go there."""
    rows = rows_of(packed([(0, 9, 0, 2), (1, 9, 1, 2), (2, 9, 2, 4)], [4, 4]))

    assert rows == {0: [0, 1], 1: [2, 3], 2: [4, 5, 6, 7]}


def test_a_job_comes_back_to_its_rows_if_they_are_free() -> None:
    """After a preemption by somebody who takes others it is where it was."""
    runs = [(0, 2, 0, 1), (0, 9, 1, 1), (0, 3, 2, 1), (4, 6, 2, 1), (5, 6, 0, 1)]

    rows = rows_of(packed(runs, [4]))

    assert rows[2] == rows[3]
    assert rows[0] == rows[4]


def test_one_larger_than_any_node_takes_the_emptiest_whole() -> None:
    """Six GPUs go to the node of four and two of another, and leave the one in use alone."""
    rows = rows_of(packed([(0, 9, 0, 1), (1, 9, 1, 6)], [4, 4, 4]))

    assert rows == {0: [0], 1: [4, 5, 6, 7, 8, 9]}


def test_who_ends_makes_room_for_who_starts_then() -> None:
    """One GPU after the other is one row."""
    blocks = packed([(t, t + 1, t, 1) for t in range(50)], [1])

    assert blocks.extra == 0
    assert blocks.first.tolist() == [0] * 50
