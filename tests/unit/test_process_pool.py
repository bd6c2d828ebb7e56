"""Processes that do pieces of work: those that die while they start, or while nobody asks."""

from __future__ import annotations

import functools
import multiprocessing
import operator
import os
import signal
import threading
from collections.abc import Callable, Iterable

import pytest

from slurm_dl.experiments import process_pool
from slurm_dl.experiments.process_pool import ProcessPool, WorkFault, WorkResult

MANY = 8_000_000
"""Bytes; no pipe holds as many."""

DEADLINE_S = 60.0

Masks = Callable[[Iterable[int]], set[signal.Signals]]


class Deadly:
    """Who unpickles it ends with status 3."""

    def __reduce__(self) -> tuple[Callable[[int], None], tuple[int]]:
        return os._exit, (3,)

    def __call__(self, piece: int, /) -> int:
        """Nobody comes so far."""
        return piece


class Watched:
    """Tells which signals are blocked where it is called, and notes that where it is pickled."""

    def __init__(self) -> None:
        self.blocked: list[set[int]] = []

    def __reduce__(self) -> tuple[Callable[..., Masks], tuple[object, int]]:
        self.blocked.append({*signal.pthread_sigmask(signal.SIG_BLOCK, [])})
        return functools.partial, (signal.pthread_sigmask, signal.SIG_BLOCK)

    def __call__(self, _piece: list[int], /) -> set[int]:
        """As in the process where it was pickled."""
        return {*self.blocked[-1]}


@pytest.mark.parametrize("early", [True, False], ids=["before it reads", "as it reads"])
def test_a_process_that_dies_while_it_starts_is_told(
    monkeypatch: pytest.MonkeyPatch, *, early: bool
) -> None:
    """Each piece is told, and nobody writes for ever to a process that is gone."""
    work: Callable[[int], int] = Deadly()
    if early:
        monkeypatch.setattr(process_pool, "_labour", Deadly())
        work = functools.partial(operator.countOf, bytes(MANY))
    told: list[tuple[int, WorkResult[int] | WorkFault]] = []

    def run() -> None:
        with ProcessPool(work, 2) as made:
            told.extend(made.run([1, 2]))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(DEADLINE_S)

    assert not thread.is_alive()
    assert sorted(number for number, _ in told) == [0, 1]
    for _, said in told:
        assert isinstance(said, WorkFault)
        assert "its process died (exit status 3)" in said.why
    assert not multiprocessing.active_children()


def test_an_interrupt_is_heard_while_the_work_is_told() -> None:
    """It may be long. The processes themselves never hear one."""
    work = Watched()
    with ProcessPool(work, 1) as made:
        (_, said) = next(made.run([[]]))

    assert isinstance(said, WorkResult)
    assert signal.SIGINT in said.result
    assert len(work.blocked) == 1
    assert signal.SIGINT not in work.blocked[0]


def test_a_process_that_died_while_idle_is_replaced() -> None:
    """The next piece is not what it died of."""
    before = set(multiprocessing.active_children())
    with ProcessPool(functools.partial(operator.add, 1), 1) as made:
        assert list(made.run([1])) == [(0, WorkResult(2))]
        (child,) = set(multiprocessing.active_children()) - before
        child.kill()
        child.join(DEADLINE_S)

        assert list(made.run([5, 6])) == [(0, WorkResult(6)), (1, WorkResult(7))]
