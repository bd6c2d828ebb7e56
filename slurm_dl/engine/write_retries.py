"""Limits on the actions that a cycle still tries after errors, refusals, or the end of its time.

It stands apart from the loop because these rules bound a cycle, whatever Slurm does: a slow or
silent slurmctld must not keep the daemon from its next look, one job must not keep another from
its turn.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.plan import (
    Action,
    ClearSteer,
    ClusterAction,
    Detach,
    MarkGone,
    Requeue,
    Reshape,
    Retry,
    SetSiteFactor,
    SetSteer,
    Shrink,
    Signal,
    Throttle,
    Trim,
    Unseal,
    handover_of,
)

ERRORS_IN_A_ROW = 2  # So many say that it is not about one job
LONGEST_REST_CYCLES = 64

_Subject = tuple[type[Action], JobId | str]


def is_standalone_write(action: Action) -> bool:
    """Whether *action* reaches the cluster and is no step of a hand-over."""
    return isinstance(action, ClusterAction) and handover_of(action) is None


class Refusals:
    """Standalone writes that failed when last tried; kept from cycle to cycle.

    After n failures in a row a write is left out for 2**n cycles, at most `LONGEST_REST_CYCLES`,
    and then tried behind all others: jobs that Slurm refuses for good must not use up the budget
    of those behind them. A write that is not planned any more is forgotten.
    """

    def __init__(self) -> None:
        self._cycle = 0
        self._failures: dict[_Subject, int] = {}
        self._due: dict[_Subject, int] = {}

    def sift(self, actions: Sequence[Action]) -> tuple[list[Action], list[Action]]:
        """Begin a cycle: the actions to try, in order, and those left out of it."""
        self._cycle += 1
        fresh: list[Action] = []
        again: list[Action] = []
        left: list[Action] = []
        failures: dict[_Subject, int] = {}
        for action in actions:
            subject = _subject(action)
            if subject is None or subject not in self._failures:
                fresh.append(action)
                continue
            failures[subject] = self._failures[subject]
            (again if self._cycle >= self._due[subject] else left).append(action)
        self._failures = failures
        self._due = {subject: self._due[subject] for subject in failures}
        return [*fresh, *again], left

    def note(self, action: Action, *, failed: bool) -> None:
        """Remember what became of *action*."""
        subject = _subject(action)
        if subject is None:
            return
        if not failed:
            self._failures.pop(subject, None)
            self._due.pop(subject, None)
            return
        self._failures[subject] = self._failures.get(subject, 0) + 1
        self._due[subject] = self._cycle + rest_cycles(self._failures[subject]) + 1


def rest_cycles(times: int) -> int:
    """Cycles to rest after *times* vain tries in a row: 1, 2, 4 ..., `LONGEST_REST_CYCLES` at most.

    From 0 tries on. 2**n of what is refused for weeks is long, so it is not worked out.
    """
    return min(1 << min(times, LONGEST_REST_CYCLES.bit_length()), LONGEST_REST_CYCLES)


class Effort:
    """The actions that one cycle still tries.

    - A step of a hand-over that failed ends that hand-over's steps. A failed `Signal`,
      `Shrink` or `Requeue` is about its victim alone: those of the other victims are still tried.
    - Standalone writes end when the time is over, or after `ERRORS_IN_A_ROW` of them failed.
    - Once the time is over, `ERRORS_IN_A_ROW` of any actions end the cycle. Before that a refusal
      came quickly, so Slurm answers, and what it refuses one hand-over it may grant another.
      (22.05.8: it refuses within 6 ms; a command to a slurmctld that is gone or hangs takes 9 s.)

    Args:
        timer: Seconds that only go forward.
        for_s: How long there is time, from now on, seconds.
    """

    def __init__(self, *, timer: Callable[[], float], for_s: float) -> None:
        self._timer = timer
        self._until_s = timer() + for_s
        self._over = False
        self._writes_over = False
        self._errors = 0
        self._write_errors = 0
        self._broken: set[HandoverId] = set()
        self._lost: defaultdict[HandoverId, set[JobId]] = defaultdict(set)

    def allows(self, action: Action) -> bool:
        """Whether *action* is still to be tried, after all that was noted."""
        if self._over:
            return False
        if is_standalone_write(action):
            return not self._writes_over and self._timer() < self._until_s
        handover_id = handover_of(action)
        if handover_id is None:
            return True
        if handover_id in self._broken:
            return False
        lost = self._lost.get(handover_id)
        if not lost:
            return True
        victim = _victim_of(action)
        return victim is not None and victim not in lost

    def note(self, action: Action, *, failed: bool) -> None:
        """Draw the consequences of what became of *action*."""
        if not isinstance(action, ClusterAction):
            return
        if not failed:
            self._errors = self._write_errors = 0
            return
        if is_standalone_write(action):
            self._write_errors += 1
            self._writes_over = self._writes_over or self._write_errors >= ERRORS_IN_A_ROW
        self._break(action)
        if self._timer() >= self._until_s:
            self._errors += 1
            self._over = self._errors >= ERRORS_IN_A_ROW

    def _break(self, action: ClusterAction) -> None:
        handover_id = handover_of(action)
        if handover_id is None:
            return
        victim = _victim_of(action)
        if victim is None:
            self._broken.add(handover_id)
        else:
            self._lost[handover_id].add(victim)


def _subject(action: Action) -> _Subject | None:
    """The subject of a standalone write; None for all other actions."""
    if not is_standalone_write(action):
        return None
    match action:
        case (
            SetSiteFactor() | Detach() | SetSteer() | ClearSteer() | Trim() | Reshape() | Throttle()
        ):
            return type(action), action.job_id
        case Retry(run=run):
            return type(action), run.job_id
        case Unseal(name=name):
            return type(action), name
        case _:
            return None


def _victim_of(action: Action) -> JobId | None:
    """The one victim a step is about; None if it is about the hand-over as a whole."""
    match action:
        case Signal(run=run) | Requeue(run=run) | Shrink(run=run):
            return run.job_id
        case MarkGone(job_id=job_id):
            return job_id
        case _:
            return None
