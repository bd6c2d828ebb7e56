"""Processes of this machine that do one piece of work after the other.

Each gets what the work is about once, when it starts, and then one piece after the other; what
comes back is what became of it. Written on pipes and not on an executor, so that a process that
dies is told with the piece it was at, and that Ctrl-C ends all of them at once.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import connection, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TypeVar

from slurm_dl.model.errors import SlurmDlError

P_contra = TypeVar("P_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)
P = TypeVar("P")
R = TypeVar("R")

_ENDS_WITHIN_S: Final = 5.0


class WorkError(SlurmDlError):
    """A process could not do its piece of work, or died of it."""


class Work(Protocol[P_contra, R_co]):
    """What is done with each piece; it and the pieces go to other processes by pickle."""

    def __call__(self, piece: P_contra, /) -> R_co:
        """Do one."""


@dataclass(frozen=True, slots=True)
class WorkFault:
    """Why a piece could not be done.

    Attributes:
        why: On one line.
        details: Where the fault is; empty if the line says it all.
    """

    why: str
    details: str = ""

    @property
    def text(self) -> str:
        """All of it."""
        return f"{self.why}\n{self.details}".strip()


@dataclass(frozen=True, slots=True)
class WorkResult(Generic[R]):
    """What became of a piece."""

    result: R


def fault_of(err: Exception) -> WorkFault:
    """What went wrong; of a fault of the program with its place."""
    if isinstance(err, SlurmDlError):
        return WorkFault(str(err))
    frames = traceback.extract_tb(err.__traceback__)
    ours = [frame for frame in frames if "site-packages" not in frame.filename] or list(frames)
    where = f" ({Path(ours[-1].filename).name}:{ours[-1].lineno})" if ours else ""
    why = f"{' '.join(f'{type(err).__name__}: {err}'.split())}{where}"
    return WorkFault(why, "".join(traceback.format_exception(err)))


@dataclass(slots=True)
class _Worker(Generic[P]):
    """A process, and the piece it is at with its number."""

    process: SpawnProcess
    at: tuple[int, P] | None = None


class ProcessPool(Generic[P, R]):
    """So many processes that do the same work; none is left when the context ends.

    In one thread alone, and one `run` after the other.
    """

    def __init__(self, work: Work[P, R], processes: int) -> None:
        """Nothing starts before the context begins.

        Args:
            processes: How many pieces are done at a time.
        """
        self._work, self._processes = work, processes
        self._context = multiprocessing.get_context("spawn")
        self._crew: dict[Connection, _Worker[P]] = {}

    def __enter__(self) -> ProcessPool[P, R]:
        """Start them."""
        try:
            # All begin before the first is told: what they have to load takes longest.
            for pipe in [self._start() for _ in range(self._processes)]:
                self._tell(pipe)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End them, whatever they are at."""
        self._end()

    def run(
        self, pieces: Sequence[P], *, begin: Callable[[P], None] = lambda _: None
    ) -> Iterator[tuple[int, WorkResult[R] | WorkFault]]:
        """What became of each piece, with its number, as soon as it is known.

        Args:
            begin: Told each piece when it begins.
        """
        waiting = iter(enumerate(pieces))
        # One that died after its last piece has not died of the next.
        for pipe, worker in list(self._crew.items()):
            if not worker.process.is_alive():
                self._replace(pipe)
        for pipe in list(self._crew):
            self._give(pipe, next(waiting, None), begin)
        for _ in pieces:
            pipe = self._ready()
            worker = self._crew[pipe]
            number, said = self._answer(pipe, worker)
            following = next(waiting, None)
            # One that died is replaced at once: the next run may need it.
            if not worker.process.is_alive():
                pipe = self._replace(pipe)
            self._give(pipe, following, begin)
            yield number, said

    def _ready(self) -> Connection:
        busy = [pipe for pipe, worker in self._crew.items() if worker.at is not None]
        ready = connection.wait(busy)
        return next(pipe for pipe in busy if pipe in ready)

    def _give(
        self, pipe: Connection, piece: tuple[int, P] | None, begin: Callable[[P], None]
    ) -> None:
        self._crew[pipe].at = piece
        if piece is not None:
            begin(piece[1])
            # One that has just died is found out by the missing answer.
            with contextlib.suppress(OSError):
                pipe.send(piece[1])

    def _answer(
        self, pipe: Connection, worker: _Worker[P]
    ) -> tuple[int, WorkResult[R] | WorkFault]:
        if worker.at is None:
            msg = "a process answered that was not asked"
            raise RuntimeError(msg)
        number, _ = worker.at
        worker.at = None
        try:
            said = pipe.recv()
        except (EOFError, OSError):
            worker.process.join(_ENDS_WITHIN_S)
            said = WorkFault(
                f"its process died ({_why(worker.process.exitcode)}); try fewer with -j"
            )
        if not isinstance(said, (WorkResult, WorkFault)):
            msg = f"a process answered {type(said).__name__}"
            raise TypeError(msg)
        return number, said

    def _start(self) -> Connection:
        ours, theirs = self._context.Pipe()
        # It gets the work later: what `start` writes to one that has died it writes for ever.
        process = self._context.Process(target=_labour, args=(theirs,), daemon=True)
        self._crew[ours] = _Worker(process)
        with _interrupts_are_ours():
            process.start()
        theirs.close()
        return ours

    def _tell(self, pipe: Connection) -> None:
        """What the work is, before the first piece."""
        # One that has just died is found out by the missing answer.
        with contextlib.suppress(OSError):
            pipe.send(self._work)

    def _replace(self, pipe: Connection) -> Connection:
        pipe.close()
        del self._crew[pipe]
        other = self._start()
        self._tell(other)
        return other

    def _end(self) -> None:
        for pipe, worker in self._crew.items():
            pipe.close()
            if worker.process.pid is not None:
                worker.process.terminate()
        for worker in self._crew.values():
            if worker.process.pid is not None:
                worker.process.join(_ENDS_WITHIN_S)
        self._crew.clear()


def _why(status: int | None) -> str:
    if status is None:
        return "no exit status"
    if status >= 0:
        return f"exit status {status}"
    hint = ", as when memory runs out" if -status == signal.SIGKILL else ""
    return f"signal {-status}{hint}"


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


def _labour(pipe: Connection) -> None:
    """Do the pieces that come after the work, until there is nobody to ask for more."""
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        work: Work[Any, Any] = pipe.recv()
        while True:
            piece = pipe.recv()
            try:
                said: WorkResult[Any] | WorkFault = WorkResult(work(piece))
            except Exception as err:  # noqa: BLE001 - told where somebody reads it
                said = fault_of(err)
            pipe.send(said)
