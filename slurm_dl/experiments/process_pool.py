"""Processes of this machine that do one piece of work after the other."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import resource_tracker, spawn, util
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

from slurm_dl.model.errors import SlurmDlError
from slurm_dl.own_python import ISOLATED

P = TypeVar("P")
R = TypeVar("R")

_OPTIONS: Final = "_args_from_interpreter_flags"
_PREPARE: Final = "get_preparation_data"
_KILLED: Final = "a worker process was killed (out of memory?); use a smaller -j"


class WorkError(SlurmDlError):
    """A piece of work could not be done, or a process was killed."""


@dataclass(frozen=True, slots=True)
class WorkFault:
    """Why a piece could not be done."""

    why: str  # On one line
    details: str = ""  # Where the fault is; empty if the line says it all

    @property
    def text(self) -> str:
        """All of it."""
        return f"{self.why}\n{self.details}".strip()


Run: TypeAlias = Callable[..., Iterator[tuple[int, R | WorkFault]]]
"""Gives the result of each of the pieces, with its number, as soon as it is known.

It takes the pieces, and ``begin``, which is called with each piece when it begins.
"""


@contextlib.contextmanager
def process_pool(work: Callable[[P], R], processes: int) -> Iterator[Run[R]]:
    """What does *work*, so many pieces at a time; no process is left when the context ends.

    If a process is killed, the pieces that are not done by then end with a fault.

    Args:
        work: It and the pieces go to other processes by pickle.
        processes: 1: all is done in this process.
    """
    if processes == 1:
        yield functools.partial(_run_here, work)
        return
    before = set(multiprocessing.active_children())
    with _starting():  # of the process that looks after its locks
        executor = ProcessPoolExecutor(
            processes, multiprocessing.get_context("spawn"), initializer=_end_with_parent
        )
    try:
        yield functools.partial(_run_there, work, executor, processes)
    except BaseException:
        for process in set(multiprocessing.active_children()) - before:
            process.terminate()
        raise
    finally:
        executor.shutdown(cancel_futures=True)


def _run_here(
    work: Callable[[P], R], pieces: Sequence[P], *, begin: Callable[[P], None] = lambda _: None
) -> Iterator[tuple[int, R | WorkFault]]:
    for number, piece in enumerate(pieces):
        begin(piece)
        yield number, _done(work, piece)


def _run_there(
    work: Callable[[P], R],
    executor: ProcessPoolExecutor,
    processes: int,
    pieces: Sequence[P],
    *,
    begin: Callable[[P], None] = lambda _: None,
) -> Iterator[tuple[int, R | WorkFault]]:
    waiting = deque(enumerate(pieces))
    running: dict[Future[R | WorkFault], int] = {}
    try:
        while waiting or running:
            while waiting and len(running) < processes:
                number, piece = waiting[0]
                begin(piece)
                with _starting():  # it may start a process
                    running[executor.submit(_done, work, piece)] = number
                waiting.popleft()
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                said = future.result()
                yield running.pop(future), said
    except BrokenProcessPool:
        for future, number in running.items():
            yield number, WorkFault(_KILLED) if future.exception() else future.result()
        for number, _ in waiting:
            yield number, WorkFault(_KILLED)


def _done(work: Callable[[P], R], piece: P) -> R | WorkFault:
    try:
        return work(piece)
    except SlurmDlError as err:
        return WorkFault(str(err))
    except Exception as err:  # noqa: BLE001 - told with its piece
        frames = traceback.extract_tb(err.__traceback__)
        ours = [frame for frame in frames if "site-packages" not in frame.filename]
        where = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}"
        why = f"{' '.join(f'{type(err).__name__}: {err}'.split())} ({where})"
        return WorkFault(why, "".join(traceback.format_exception(err)))


@contextlib.contextmanager
def _starting() -> Iterator[None]:
    """Processes started within it are isolated, run no script, and have SIGINT blocked.

    Ctrl-C reaches all, and one is to act.
    """
    # They would get the options of this process; there is no setting for it.
    spawns = vars(util)
    options = spawns[_OPTIONS]
    spawns[_OPTIONS] = lambda: [ISOLATED]
    starts = vars(spawn)
    prepare = starts[_PREPARE]
    # No piece of work is of the main script, and one without a guard would begin again there.
    starts[_PREPARE] = lambda name: {
        key: value for key, value in prepare(name).items() if not key.startswith("init_main_from")
    }
    # Its first start unblocks SIGINT behind our back.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        spawns[_OPTIONS] = options
        starts[_PREPARE] = prepare


def _end_with_parent() -> None:
    """Workers of an executor would wait for ever for a parent that was killed."""
    parent = multiprocessing.parent_process()

    def end() -> None:
        if parent is not None:
            parent.join()
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()
