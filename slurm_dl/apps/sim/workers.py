"""The cells of a sweep in processes of this machine.

Each process gets sweep and trace once, when it starts, and then one cell number after the other;
what comes back is a cell's figures. Written on pipes and not on an executor, so that a process
that dies is told with the cell it was at, and that Ctrl-C ends all of them at once.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import connection, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess

from slurm_dl.apps.sim.sweep import (
    Cell,
    CellError,
    CellResult,
    Failure,
    Sweep,
    fault,
    run_cell,
)
from slurm_dl.model.trace import Trace

_ENDS_WITHIN_S = 5.0


@dataclass(frozen=True, slots=True)
class _Failure:
    """What a process says in place of a result.

    Attributes:
        why: On one line.
        details: Where the fault is; empty if the line says it all.
    """

    why: str
    details: str = ""


@dataclass(slots=True)
class _Worker:
    process: SpawnProcess
    cell: Cell | None = None


def run_in_processes(
    sweep: Sweep,
    trace: Trace,
    *,
    processes: int,
    progress: Callable[[int], None],
    begin: Callable[[Cell], None] = lambda _: None,
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
    done = 0
    waiting = iter(cells)
    with _crew(sweep, trace, min(processes, len(cells))) as (crew, hire):
        for pipe, worker in crew.items():
            _give(pipe, worker, next(waiting, None), begin)
        while done < len(cells):
            busy = [pipe for pipe, worker in crew.items() if worker.cell is not None]
            for ready in connection.wait(busy):
                pipe = next(p for p in busy if p is ready)
                cell, said = _answer(pipe, crew[pipe])
                if isinstance(said, CellResult):
                    results[cell.index] = said
                elif failed is None:
                    raise CellError(f"{said.why}\n{said.details}".strip())
                else:
                    failed(Failure(cell, said.why))
                done += 1
                progress(done)
                following = next(waiting, None)
                if not crew[pipe].process.is_alive():
                    pipe.close()
                    del crew[pipe]
                    if following is None:
                        continue
                    pipe = hire()
                _give(pipe, crew[pipe], following, begin)
    return [results[cell.index] for cell in cells if cell.index in results]


def _give(
    pipe: Connection, worker: _Worker, cell: Cell | None, begin: Callable[[Cell], None]
) -> None:
    worker.cell = cell
    if cell is not None:
        begin(cell)
        # One that has just died is found out by the missing answer.
        with contextlib.suppress(OSError):
            pipe.send(cell.index)


def _answer(pipe: Connection, worker: _Worker) -> tuple[Cell, CellResult | _Failure]:
    cell = worker.cell
    if cell is None:
        msg = "a process answered that was not asked"
        raise RuntimeError(msg)
    try:
        said = pipe.recv()
    except (EOFError, OSError):
        worker.process.join(_ENDS_WITHIN_S)
        said = _Failure(
            f"{cell}: its process died ({_why(worker.process.exitcode)}); try fewer with -j"
        )
    if not isinstance(said, (CellResult, _Failure)):
        msg = f"{cell}: a process answered {type(said).__name__}"
        raise TypeError(msg)
    return cell, said


def _why(status: int | None) -> str:
    if status is None:
        return "no exit status"
    if status >= 0:
        return f"exit status {status}"
    hint = ", as when memory runs out" if -status == signal.SIGKILL else ""
    return f"signal {-status}{hint}"


@contextlib.contextmanager
def _crew(
    sweep: Sweep, trace: Trace, processes: int
) -> Iterator[tuple[dict[Connection, _Worker], Callable[[], Connection]]]:
    """So many processes, by the pipe to each, and what starts one more.

    None is left afterwards, however it ends.
    """
    context = multiprocessing.get_context("spawn")
    crew: dict[Connection, _Worker] = {}

    def hire() -> Connection:
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, sweep, trace), daemon=True)
        crew[ours] = _Worker(process)
        with _interrupts_are_ours():
            process.start()
        theirs.close()
        return ours

    try:
        for _ in range(processes):
            hire()
        yield crew, hire
    finally:
        for pipe, worker in crew.items():
            pipe.close()
            if worker.process.pid is not None:
                worker.process.terminate()
        for worker in crew.values():
            if worker.process.pid is not None:
                worker.process.join(_ENDS_WITHIN_S)


@contextlib.contextmanager
def _interrupts_are_ours() -> Iterator[None]:
    """Processes started within it have SIGINT blocked: Ctrl-C reaches all, and one is to act."""
    # Its first start unblocks SIGINT behind our back.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(pipe: Connection, sweep: Sweep, trace: Trace) -> None:
    """Run the cells whose numbers come, until there is nobody to ask for more."""
    cells = sweep.cells
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            cell = cells[pipe.recv()]
            try:
                said: CellResult | _Failure = run_cell(sweep, trace, cell)
            except CellError as err:
                said = _Failure(str(err))
            except Exception as err:  # noqa: BLE001 - told where somebody reads it
                said = _Failure(fault(cell, err), traceback.format_exc())
            pipe.send(said)
