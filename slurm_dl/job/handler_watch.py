"""Whether the checkpoint signal can reach the command, and what is said where it cannot.

dlrun sends the signal to the command's own process, and only once that has a handler. A shell
around the training has none and passes nothing on, so the training never hears of the request.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from slurm_dl.job.child import Child
from slurm_dl.job.controller import CallFailedError, JobController
from slurm_dl.job.options import DlrunOptions
from slurm_dl.job.run_files import LISTENING_FILE, RunId, is_marked
from slurm_dl.job.signals import signal_name

SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh", "busybox"})
"""Programs that run other programs and pass no signal on to them."""

LOOK_S = 5.0
"""How often to look in the first `START_S` after the start; later once a minute."""

START_S = 120.0
LATER_S = 60.0

OWED_S = 3.0
"""A request that could not be delivered for so long is reported: most handlers are there at once,
and a Python that is still importing gets its own shortly."""


class HandlerWatch:
    """Looks at the command's process, and reports once for each start that it takes no signal.

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
        self._needed = options.forward is None and options.launcher == "plain"
        self._started_s = 0.0
        self._next_s = math.inf

    def start(self, now_s: float) -> None:
        """The command starts now, by a clock that is never set."""
        self._started_s = now_s
        self._next_s = now_s + LOOK_S if self._needed else math.inf

    def due_in_s(self, now_s: float) -> float:
        """Seconds until it is to look again."""
        return max(0.0, self._next_s - now_s)

    def look(self, child: Child, run: RunId, asked_s: float | None, now_s: float) -> None:
        """Report if the command takes no signal, as far as that is certain.

        Args:
            asked_s: When a checkpoint was asked for, if the signal is still owed; else None.
            now_s: By the same clock.
        """
        owed = asked_s is not None and now_s - asked_s >= OWED_S
        if self._next_s == math.inf or not (owed or now_s >= self._next_s):
            return
        self._next_s = now_s + (LOOK_S if now_s - self._started_s < START_S else LATER_S)
        options = self._options
        if is_marked(options.run_dir / LISTENING_FILE, run) or child.listens_for(options.signum):
            return
        shell = child.program() in SHELLS
        behind = child.other_catching(options.signum) if shell else ""
        if not (owed or behind):
            return  # A program that is still starting, or one that reads the request file.
        self._next_s = math.inf
        self._log(self._sentence(child, behind, is_shell=shell))
        self._tell_slurm(run)

    def _sentence(self, child: Child, behind: str, *, is_shell: bool) -> str:
        name = self._signal
        if not is_shell:
            does = "ignores" if child.ignores(self._options.signum) else "has no handler for"
            return (
                f"the command ({child.program()}) {does} {name}, so {name} is not sent: call "
                f"job.should_checkpoint() at every step, or install a handler for {name}"
            )
        who = f" ({behind}, has one and never gets the signal)" if behind else ""
        return (
            f"the command is a shell ({child.program()}) that has no handler for {name}, and it "
            f"passes no signals on{who}: the training is not told to save. Start it by 'exec "
            f"python ...' in the shell's script, or trap {name} there and forward it, or call "
            "job.should_checkpoint() at every step"
        )

    def _tell_slurm(self, run: RunId) -> None:
        if self._controller is None:
            return
        try:
            self._controller.report("unhandled", run.restart)
        except CallFailedError as err:
            self._log(f"the scheduler is not told of that: {err}")
