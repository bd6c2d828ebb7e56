"""All checks, in the order of output, and the thread that makes them in a running daemon."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from structlog.typing import FilteringBoundLogger

from slurm_dl.config import Config
from slurm_dl.daemon.published_state import WATCHED, PublishedState, Reloaded, StandingProblem
from slurm_dl.doctor import (
    installation_checks,
    order_checks,
    placement_checks,
    preemption_checks,
    record_checks,
    slurm_checks,
)
from slurm_dl.doctor.site import REGISTERED, CheckResult, Severity, Site, error, skipped
from slurm_dl.model.errors import SlurmDlError

_MODULES = (
    *(slurm_checks, order_checks, preemption_checks, placement_checks),
    *(record_checks, installation_checks),
)
CHECKS = {name: run for m in _MODULES for name, run in REGISTERED[m.__name__].items()}
"""Every check by its name."""


def examine(
    site: Site, names: Iterable[str] | None = None, faults: tuple[type[Exception], ...] = ()
) -> dict[str, CheckResult]:
    """Results of the checks *names*, by default all; one that cannot be made has the reason.

    One that raises one of *faults* is told as an error; other exceptions are passed on.
    """
    told = {}
    for name in CHECKS if names is None else names:
        try:
            told[name] = CHECKS[name](site)
        except SlurmDlError as err:
            told[name] = skipped(str(err))
        except OSError as err:
            told[name] = skipped(f"{err.filename}: {err.strerror}")
        except faults as err:
            told[name] = error(f"the check failed: {err!r}", "report it: a fault of slurm_dl")
    return told


EVERY_S: Final = 600.0


class ProblemWatch:
    """Makes the checks after the first cycle, every ten minutes and after each reload.

    An `Observer`. The checks are made in a thread: no cycle waits for them, however slow Slurm is.

    Args:
        log: Told once that a problem has appeared, and once that it is gone.
        config_path: The file of the configuration; None: the usual one.
        settings: What wins over that file.
    """

    def __init__(
        self, log: FilteringBoundLogger, config_path: Path | None, settings: Sequence[str]
    ) -> None:
        self._standing: tuple[StandingProblem, ...] = ()
        self._checked_s = 0.0
        self._log = log
        self._config_path = config_path
        self._settings = settings
        self._due_s = -math.inf
        self._reloaded: Reloaded | None = None
        self._thread: threading.Thread | None = None

    def standing(self) -> tuple[StandingProblem, ...]:
        """The problems that stand; from any thread."""
        return self._standing

    def checked_s(self) -> float:
        """When the checks were last made to their end, epoch seconds; 0: never."""
        return self._checked_s

    def on_cycle(self, now: PublishedState) -> None:
        """Begin to check, if it is time to; see `Observer`."""
        due = time.monotonic() >= self._due_s or now.reloaded is not self._reloaded
        if not due or (self._thread is not None and self._thread.is_alive()):
            return
        self._due_s, self._reloaded = time.monotonic() + EVERY_S, now.reloaded
        # It only reads: the process need not wait for it to end.
        self._thread = threading.Thread(
            target=self.look, args=(now.config,), name="problems", daemon=True
        )
        self._thread.start()

    def look(self, config: Config) -> None:
        """Make the checks for *config*, the configuration in force.

        A problem whose check cannot be made stands: nothing says that it is gone. A fault of one
        check keeps none of the others from being made.
        """
        # As users are told to set it.
        environ = {**os.environ, "SLURM_DL_TEMPLATES": str(config.paths.template_dir)}
        path, settings = self._config_path, self._settings
        site = Site(config=path, settings=settings, in_force=config, environ=environ)
        before = {problem.check: problem for problem in self._standing}
        standing = []
        for check, result in examine(site, WATCHED, faults=(Exception,)).items():
            known, words = before.get(check), {"found": result.found, "advice": result.advice}
            if result.level is Severity.ERROR:
                since_s = known.since_s if known else time.time()
                standing.append(StandingProblem(check=check, since_s=since_s, **words))
                if not known:
                    self._log.error("problem", check=check, **words)
            elif known and result.level is Severity.SKIPPED:
                standing.append(known)
            elif known:
                self._log.info("problem is gone", check=check, found=result.found)
        self._standing, self._checked_s = tuple(standing), time.time()
