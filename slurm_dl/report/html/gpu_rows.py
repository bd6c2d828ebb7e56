"""Which rows, one for each GPU, a run is drawn on where its nodes are known.

Simulators count the GPUs of a node and do not number them. So they are numbered here: a run gets
the lowest numbers that are free on each of its nodes, who ends before who starts. It depends on
nothing but the runs and their nodes.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence

import numpy as np

from slurm_dl.model.job_record import RunNodes
from slurm_dl.model.jobs import F64, I32, I64
from slurm_dl.report.html.row_packing import Blocks, rectangles


def number(start: F64 | I64, end: F64 | I64, nodes: RunNodes, node_gpus: Sequence[int]) -> Blocks:
    """Put runs on the rows of their nodes so that no two are on one row at the same time.

    A part of a GPU is a row, too. Where jobs share GPUs more may be on a node than it has rows;
    they are on extra ones.

    Args:
        start: ``(k,)`` when each run starts, in any unit.
        end: ``(k,)`` when it ends; a run that ends when it starts is on no row.
        nodes: On which nodes the runs are, by row of *start*.
        node_gpus: Rows of each node, from the top.

    Raises:
        ValueError: A run or a node is none of those.
    """
    if _reaches_out(nodes.run, len(start)):
        msg = f"nodes of run {nodes.run.max()}, and there are {len(start)} runs"
        raise ValueError(msg)
    if _reaches_out(nodes.node, len(node_gpus)):
        msg = f"a run on node {nodes.node.max()}, and there are {len(node_gpus)} nodes"
        raise ValueError(msg)
    edges = np.concatenate([[0], np.cumsum(np.asarray(node_gpus, dtype=np.int64))]).tolist()
    node_of = np.repeat(np.arange(len(node_gpus)), node_gpus).tolist()
    rows = len(node_of)
    # A range that goes up is a heap.
    free = [list(range(first, last)) for first, last in itertools.pairwise(edges)]
    spare: list[int] = []
    extra = 0
    held: dict[int, list[int]] = {}
    at = np.searchsorted(nodes.run, np.arange(len(start) + 1)).tolist()
    on, wanted = nodes.node.tolist(), np.ceil(nodes.gpus).astype(np.int64).tolist()
    lasting = (end > start).nonzero()[0]
    starts = lasting[np.lexsort((lasting, start[lasting]))]
    ends = lasting[np.lexsort((lasting, end[lasting]))].tolist()
    end_of = end.tolist()
    over = 0
    for run, start_at in zip(starts.tolist(), start[starts].tolist(), strict=True):
        while end_of[ends[over]] <= start_at:
            for row in held[ends[over]]:
                heapq.heappush(free[node_of[row]] if row < rows else spare, row)
            over += 1
        mine = []
        for part in range(at[run], at[run + 1]):
            numbers = free[on[part]]
            for _ in range(wanted[part]):
                if numbers:
                    mine.append(heapq.heappop(numbers))
                elif spare:
                    mine.append(heapq.heappop(spare))
                else:
                    mine.append(rows + extra)
                    extra += 1
        held[run] = sorted(mine)
    return rectangles(held, lambda row: node_of[row] if row < rows else -1, extra=extra)


def _reaches_out(index: I32, count: int) -> bool:
    return len(index) > 0 and bool(index.min() < 0 or index.max() >= count)


def in_order(nodes: RunNodes, order: I64) -> RunNodes:
    """The same where the runs stand in another order.

    Args:
        order: ``(k,)`` which run stands at each place now.
    """
    place = np.empty(len(order), dtype=np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    run = place[nodes.run]
    by_run = np.argsort(run, kind="stable")
    return RunNodes(run=run[by_run], node=nodes.node[by_run], gpus=nodes.gpus[by_run])
