"""The cells of a sweep on this machine: one after the other, or in processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from slurm_dl.experiments.process_pool import ProcessPool, WorkFault, fault_of
from slurm_dl.experiments.sweep import CellError, CellResult, Failure, Sweep, SweepCell, run_cell
from slurm_dl.model.trace import Trace


def run_here(
    sweep: Sweep,
    trace: Trace,
    progress: Callable[[int], None],
    *,
    begin: Callable[[SweepCell], None] = lambda _: None,
    failed: Callable[[Failure], None] | None = None,
) -> list[CellResult]:
    """Run all cells, one after the other; the results of those that could be run, in their order.

    Args:
        progress: Told how many are done.
        begin: Told each cell when it begins.
        failed: Told which could not be run, and then the others are run all the same; None: the
            first that cannot be run is the end.

    Raises:
        CellError: One of them could not be run.
    """
    results = []
    for done, cell in enumerate(sweep.cells, 1):
        begin(cell)
        try:
            results.append(run_cell(sweep, trace, cell))
        except Exception as err:
            if failed is None:
                raise
            failed(Failure(cell, _named(cell, fault_of(err).why)))
        progress(done)
    return results


@dataclass(frozen=True, slots=True, eq=False)
class _Cells:
    sweep: Sweep
    trace: Trace

    def __call__(self, cell: SweepCell, /) -> CellResult:
        return run_cell(self.sweep, self.trace, cell)


def run_in_processes(
    sweep: Sweep,
    trace: Trace,
    *,
    processes: int,
    progress: Callable[[int], None],
    begin: Callable[[SweepCell], None] = lambda _: None,
    failed: Callable[[Failure], None] | None = None,
) -> list[CellResult]:
    """Run all cells, *processes* at a time; the results are in the order of the cells.

    Args:
        progress: Told how many are done.
        begin: Told each cell when it begins.
        failed: Told which could not be run, and then the others are run all the same; None: the
            first that cannot be run is the end.

    Raises:
        CellError: One of them could not be run, or its process died. The others are ended.
    """
    cells = sweep.cells
    results: dict[int, CellResult] = {}
    with ProcessPool(_Cells(sweep, trace), min(processes, len(cells))) as crew:
        for done, (number, said) in enumerate(crew.run(cells, begin=begin), 1):
            if not isinstance(said, WorkFault):
                results[number] = said.result
            elif failed is None:
                raise CellError(_named(cells[number], said.text))
            else:
                failed(Failure(cells[number], _named(cells[number], said.why)))
            progress(done)
    return [results[number] for number in sorted(results)]


def _named(cell: SweepCell, why: str) -> str:
    """*why* with its cell; an error of a cell begins with it."""
    return why if why.startswith(f"{cell}: ") else f"{cell}: {why}"
