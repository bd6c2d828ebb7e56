"""Whether the checkpoint signal can reach the command, and what is said where it cannot.

dlrun sends the signal to processes that have a handler, see `forwarding`; to none behind torchrun.

The scheduler ends its wait for a job of which this is known. So it is said only of programs that
are past their start, and taken back as soon as a handler is there after all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from slurm_dl.job.child import Child, Process, signal_name
from slurm_dl.job.controller import CallFailedError, JobController
from slurm_dl.job.options import DlrunOptions
from slurm_dl.job.run_files import (
    IMPORTED_FILE,
    LISTENING_FILE,
    RunId,
    is_marked,
)

SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh", "busybox"})
"""Programs that run other programs."""

NO_TRAINING = SHELLS | {"sleep"}  # Programs that have nothing to save
LOOK_S = 5.0  # How often to look in the first `EARLY_S` after the start; later once a minute
EARLY_S = 120.0
LATER_S = 60.0

OWED_S, SO_FAR_S = 3.0, 20.0
"""The job's log has a line so long after a request, or once the programs have been the same for so
long. That is a hint; the scheduler is told only when it is certain."""

START_S, LONG_START_S = 60.0, 600.0
"""So long only shells and `sleep` must be there, and so long other programs must be the same. The
second leaves room for data that is loaded for minutes before the handler is there."""

ASKED_S = 1.0  # How often to look once a checkpoint is asked for: the scheduler may be waiting


class _Found(NamedTuple):
    """The command's processes and marks at one look."""

    launcher: str
    command: str  # The program of its own process.
    family: Sequence[Process]
    is_sent: bool  # The signal, to one of them.
    is_listening: bool  # The script looks for requests.
    may_listen: bool  # It may do so yet.

    @property
    def programs(self) -> list[Process]:
        return [p for p in self.family if p.program not in NO_TRAINING]

    @property
    def starter(self) -> str:
        return self.command if self.launcher == "plain" else self.launcher

    @property
    def catching(self) -> list[Process]:
        # srun passes on what its tasks may not take.
        return [p for p in self.family if p.takes and p.program != "srun"]

    @property
    def is_taken(self) -> bool:
        # Nothing acts on the request any more where only shells without a handler are left.
        return bool(self.catching or ((self.is_listening or self.is_sent) and self.programs))

    def verdict(self, same_s: float, asked_s: float, start_s: float | None) -> tuple[bool, bool]:
        """The signal seems to reach nobody; no handler is to be expected."""
        is_sure = self.command == "sleep"
        if start_s is None:
            start_s = LONG_START_S if self.programs else START_S
        hint_s = min(LOOK_S if is_sure else SO_FAR_S, start_s)
        is_certain = same_s >= (LOOK_S if is_sure else start_s)
        may_listen = bool(self.programs) and self.may_listen
        return same_s >= hint_s or asked_s >= OWED_S, is_certain and not may_listen


class HandlerWatch:
    """Looks at the command's processes, and reports once for each start that none takes the signal.

    Args:
        options: What runs. Nothing is looked at where dlrun does not choose by handlers.
        controller: Gets the report too; None if Slurm cannot be reached.
        log: Where the report goes.
    """

    def __init__(
        self, options: DlrunOptions, controller: JobController | None, log: Callable[[str], None]
    ) -> None:
        self._options = options
        self._controller = controller
        self._log = log
        self._signal = signal_name(options.signum)
        self._started_s = 0.0
        self._next_s = math.inf
        self._seen: dict[tuple[int, str], float] = {}
        """Since when each program of the command has had its code."""
        self._told: RunId | None = None
        """The start of which it is certain now."""
        self._owes_word = False
        """The comment need not agree with that."""
        self._has_said = False
        self._asked_s = math.inf
        self._has_taken = False
        """A handler was there in this start: a Python that is ending has none any more."""

    def start(self, now_s: float) -> None:
        """The command starts now, by a clock that is never set."""
        self._started_s = now_s
        self._next_s = now_s + LOOK_S if self._options.forward is None else math.inf
        self._seen = {}
        self._asked_s = math.inf
        self._has_said = self._has_taken = False

    def ask(self, now_s: float) -> None:
        """A checkpoint is asked for. The scheduler believes only what is written after that."""
        self._asked_s = min(self._asked_s, now_s)
        self._owes_word = True

    def due_in_s(self, now_s: float) -> float:
        """Seconds until it is to look again."""
        return max(0.0, self._next_s - now_s)

    def look(self, child: Child, run: RunId, *, is_sent: bool, now_s: float) -> None:
        """Report if the command takes no signal, as far as that is certain; or take that back.

        Args:
            is_sent: The signal has been sent to a process of this start.
            now_s: By the same clock.
        """
        asked = self._asked_s < math.inf
        if self._next_s == math.inf or not (asked or now_s >= self._next_s):
            return
        early = now_s - self._started_s < EARLY_S
        self._next_s = now_s + (ASKED_S if asked else LOOK_S if early else LATER_S)
        found = self._find(child, run, is_sent=is_sent)
        is_taken, is_hint, is_certain = found.is_taken, False, False
        # Also where it is the first: a word of the user's or of an earlier run may stand there.
        self._owes_word |= is_taken and not self._has_taken
        self._has_taken |= is_taken
        if not is_taken and found.family and not (found.programs and self._has_taken):
            same_s, asked_s = self._same_s(found.programs, now_s), now_s - self._asked_s
            is_hint, is_certain = found.verdict(same_s, asked_s, self._options.start_s)
        if is_hint and not self._has_said:
            self._log(self._sentence(child, found))
        elif is_taken and self._has_said:
            self._log(f"{self._signal} is taken after all")
        self._has_said = is_hint or (self._has_said and not is_taken)
        told = run if is_certain else None
        self._owes_word |= told != self._told
        self._told = told
        self._owes_word = self._owes_word and not self._tell_slurm()

    def _find(self, child: Child, run: RunId, *, is_sent: bool) -> _Found:
        options = self._options
        family, command = child.processes(options.signum), child.program()
        marks = [is_marked(options.run_dir / name, run) for name in (LISTENING_FILE, IMPORTED_FILE)]
        return _Found(options.launcher, command, family, is_sent, *marks)

    def _same_s(self, programs: Sequence[Process], now_s: float) -> float:
        """How long the programs have been the same; below 0 where they cannot be seen."""
        if programs and all(p.program == "srun" for p in programs):
            return -math.inf  # Its tasks are on other nodes, or not there yet.
        # What is there at the first look is as old as the command; what a training leaves is not.
        is_first = now_s - self._started_s < 2 * LOOK_S and not self._has_taken
        since_s = self._started_s if is_first else now_s
        # 0: a shell alone, whose training has ended or is about to start.
        codes = {(p.pid, p.code) for p in programs if not p.is_fork} or {(0, "")}
        self._seen = {code: self._seen.get(code, since_s) for code in codes}
        return now_s - max(self._seen.values())

    def _sentence(self, child: Child, found: _Found) -> str:
        name, launcher = self._signal, found.launcher
        last = (found.programs or found.family)[-1]
        handler = "" if launcher == "torchrun" else f", or install a handler for {name}"
        what, does = f"nothing that {found.starter} has started here", "has a handler for"
        if last.pid == child.pid:
            what = f"the command ({found.command})"
            does = "ignores" if child.ignores(self._options.signum) else "has no handler for"
        others = ""
        if found.programs and all(p.program == "srun" for p in found.programs):
            others = ". Tasks on other nodes hear of the request by that call alone"
        return (
            f"so far {what} {does} {name} (last: {last.program}, process {last.pid}), and the "
            "script does not look for requests: the training is not told to save. Call "
            f"job.should_checkpoint() at every step{handler}{others}"
        )

    def _tell_slurm(self) -> bool:
        """Let the comment say what is known; False if Slurm does not answer."""
        if self._controller is None:
            return True
        try:
            run, asked = self._told and self._told.restart, self._asked_s < math.inf
            self._controller.report("unhandled", run, asked=asked)
        except CallFailedError as err:
            self._log(f"the scheduler is not told whether the signal is taken: {err}")
            return False
        return True
