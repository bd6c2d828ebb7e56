"""Whether the checkpoint signal can reach the command, and what is said where it cannot.

dlrun sends the signal to the command's own process, and only once that has a handler. A shell or
torchrun around the training passes nothing on, so the training never hears of the request.

The scheduler ends its wait for a job of which this is known. So it is said only of programs that
are past their start, and taken back as soon as a handler is there after all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from slurm_dl.job.child import Child, Process
from slurm_dl.job.controller import CallFailedError, JobController
from slurm_dl.job.options import DlrunOptions
from slurm_dl.job.run_files import (
    ATTEMPT_VARIABLE,
    IMPORTED_FILE,
    LISTENING_FILE,
    RUN_DIR_VARIABLE,
    RunId,
    is_marked,
)
from slurm_dl.job.signals import signal_name

SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh", "busybox"})
"""Programs that run other programs and pass no signal on to them."""

_NO_TRAINING = SHELLS | {"sleep"}
"""Programs that have nothing to save."""

LOOK_S = 5.0
"""How often to look in the first `EARLY_S` after the start; later once a minute."""

EARLY_S = 120.0
LATER_S = 60.0

OWED_S, SO_FAR_S = 3.0, 20.0
"""The job's log has a line so long after a request, or once the programs have been the same for so
long. That is a hint; the scheduler is told only when it is certain."""

START_S, LONG_START_S = 60.0, 600.0
"""So long the programs must be the same where a shell keeps the signal from them, and where they
can have a handler yet. The first is longer than an import takes between two libraries: of the 14 s
of torch's (2.x, two slow cores) the last 8 s load none, and a shared file system makes that several
times as long. The second leaves room for data that is loaded for minutes before the handler is
there."""

ASKED_S = 1.0
"""How often to look once a checkpoint is asked for: the scheduler may be waiting."""


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
        self._seen: dict[int, tuple[str, float]] = {}
        """The code of each program of the command, and since when it has been the same."""
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

    def look(self, child: Child, run: RunId, *, owed: bool, now_s: float) -> None:
        """Report if the command takes no signal, as far as that is certain; or take that back.

        Args:
            owed: The signal could not be delivered so far.
            now_s: By the same clock.
        """
        asked = self._asked_s < math.inf
        if self._next_s == math.inf or not (asked or now_s >= self._next_s):
            return
        early = now_s - self._started_s < EARLY_S
        self._next_s = now_s + (ASKED_S if asked else LOOK_S if early else LATER_S)
        options, launcher = self._options, self._options.launcher
        family = self._family(child, run)
        programs = [p for p in family if p.program not in _NO_TRAINING]
        # srun passes on what its tasks may not take.
        catching = [p for p in family if p.takes and p.program != "srun"]
        is_shell = launcher == "plain" and child.program() in SHELLS
        listening = is_marked(options.run_dir / LISTENING_FILE, run)
        if launcher == "plain":
            takes = child.listens_for(options.signum) or (asked and not owed and not listening)
        else:
            takes = launcher == "srun" and asked  # Sent, with whatever came of it.
        # Nothing reads the request any more where only shells are left.
        takes = takes or (bool(catching) and not is_shell) or (listening and bool(programs))
        # Also where it is the first: a word of the user's or of an earlier run may stand there.
        self._owes_word |= takes and not self._has_taken
        self._has_taken |= takes
        told = None
        if takes:
            if self._has_said:
                self._log(f"{self._signal} is taken after all")
            self._has_said = False
        elif family and not (programs and self._has_taken):
            # A handler behind a shell is there, and a sleep gets none.
            own = [p for p in programs if not p.is_fork and p.program != "srun"]
            is_sure = (bool(own) and all(p.takes for p in own)) or child.program() == "sleep"
            start_s = options.start_s
            if start_s is None:
                start_s = START_S if is_shell or not programs else LONG_START_S
            same_s = self._same_s(programs, now_s)
            hint_s = min(LOOK_S if is_sure else SO_FAR_S, start_s)
            if same_s >= hint_s or now_s - self._asked_s >= OWED_S:
                self._say(self._sentence(child, programs or family, catching, is_shell=is_shell))
            may_listen = programs and is_marked(options.run_dir / IMPORTED_FILE, run)
            if same_s >= (LOOK_S if is_sure else start_s) and not may_listen:
                told = run
        self._owes_word |= told != self._told
        self._told = told
        self._owes_word = self._owes_word and not self._tell_slurm()

    def _family(self, child: Child, run: RunId) -> list[Process]:
        variables = [
            f"{RUN_DIR_VARIABLE}={self._options.run_dir}",
            f"{ATTEMPT_VARIABLE}={run.attempt}",
        ]
        return child.processes(self._options.signum, variables)

    def _same_s(self, programs: Sequence[Process], now_s: float) -> float:
        """How long the programs have been the same; below 0 where they cannot be seen."""
        if programs and all(p.program == "srun" for p in programs):
            return -math.inf  # Its tasks are on other nodes, or not there yet.
        # What is there at the first look is as old as the command.
        since_s = self._started_s if now_s - self._started_s < 2 * LOOK_S else now_s
        codes = {p.pid: p.code for p in programs if not p.is_fork}
        before, self._seen = self._seen, {}
        # 0: a shell alone, whose training has ended or is about to start.
        for pid, code in (codes or {0: ""}).items():
            then = before.get(pid)
            self._seen[pid] = then if then and then[0] == code else (code, since_s)
        return now_s - max(then_s for _, then_s in self._seen.values())

    def _say(self, sentence: str) -> None:
        if not self._has_said:
            self._has_said = True
            self._log(sentence)

    def _sentence(
        self,
        child: Child,
        programs: Sequence[Process],
        catching: Sequence[Process],
        *,
        is_shell: bool,
    ) -> str:
        name, launcher = self._signal, self._options.launcher
        if launcher != "plain":
            last = programs[-1]
            handler = f", or install a handler for {name}" if launcher == "srun" else ""
            return (
                f"so far nothing that {launcher} has started here takes {name} (the last is "
                f"{last.program}, process {last.pid}), and the script does not look for requests: "
                f"the training is not told to save. Call job.should_checkpoint() at every step"
                f"{handler}"
            )
        if not is_shell:
            does = "ignores" if child.ignores(self._options.signum) else "has no handler for"
            return (
                f"so far the command ({child.program()}) {does} {name}, so {name} is not sent: "
                f"call job.should_checkpoint() at every step, or install a handler for {name}"
            )
        who = ""
        if catching:
            who = f" ({catching[0].program}, process {catching[0].pid}, has one and never gets the"
            who += " signal)"
        return (
            f"so far the command is a shell ({child.program()}) that has no handler for {name}, "
            f"and it passes no signals on{who}: the training is not told to save. Start it by "
            f"'exec python ...' in the shell's script, or trap {name} there and forward it, or "
            "call job.should_checkpoint() at every step"
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
