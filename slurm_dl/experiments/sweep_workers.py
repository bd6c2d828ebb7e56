"""The cells of a sweep on this machine: one after the other, or in processes."""

from __future__ import annotations

import functools
from collections.abc import Callable

from slurm_dl.experiments.process_pool import WorkFault, process_pool
from slurm_dl.experiments.sweep import CellError, CellResult, Failure, Sweep, SweepCell, run_cell
from slurm_dl.model.trace import Trace


def run_cells(
    sweep: Sweep,
    trace: Trace,
    progress: Callable[[int], None],
    *,
    processes: int = 1,
    begin: Callable[[SweepCell], None] = lambda _: None,
    failed: Callable[[Failure], None] | None = None,
) -> list[CellResult]:
    """Run all cells, *processes* at a time; the results are in the order of the cells.

    Args:
        progress: Told how many are done.
        processes: 1: all in this process.
        begin: Told each cell when it begins.
        failed: Told which could not be run, and then the others are run all the same; None: the
            first that cannot be run is the end.

    Raises:
        CellError: One of them could not be run, or a process was killed. The others are ended.
    """
    cells = sweep.cells
    results: dict[int, CellResult] = {}
    work = functools.partial(run_cell, sweep, trace)
    with process_pool(work, min(processes, len(cells))) as run:
        for done, (number, said) in enumerate(run(cells, begin=begin), 1):
            if not isinstance(said, WorkFault):
                results[number] = said
            elif failed is None:
                raise CellError(_named(cells[number], said.text))
            else:
                failed(Failure(cells[number], _named(cells[number], said.why)))
            progress(done)
    return [results[number] for number in sorted(results)]


def _named(cell: SweepCell, why: str) -> str:
    """*why* with its cell; an error of a cell begins with it."""
    return why if why.startswith(f"{cell}: ") else f"{cell}: {why}"
