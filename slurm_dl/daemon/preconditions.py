"""Conditions under which the daemon may act, any of which can forbid it, and the pause switch."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from slurm_dl.files import replace_file
from slurm_dl.json_types import JsonObject
from slurm_dl.model.errors import SlurmDlError


class WithdrawnError(SlurmDlError):
    """A permit will not come back: the loop is to end, and to touch nothing more."""


class Precondition(Protocol):
    """One condition. It is asked before each cycle and again before each action."""

    def why_not(self) -> str:
        """The reason to apply nothing, as the end of "only looking: ..."; empty if there is none.

        Raises:
            WithdrawnError: Nothing may be done any more.
        """


def first_refusal(preconditions: Iterable[Precondition]) -> str:
    """Reason of the first of *preconditions* that forbids actions; empty if none does.

    Raises:
        WithdrawnError: One of them is gone for good.
    """
    return next((why for precondition in preconditions if (why := precondition.why_not())), "")


FILE_NAME = "paused.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """A pause that is on."""

    by: str  # Who, as in the audit log
    since_s: float  # Since when, epoch seconds
    reason: str  # Why, in their words; may be empty

    def as_json(self) -> JsonObject:
        """The pause as it stands in the file and in the status."""
        return {"by": self.by, "since_s": self.since_s, "reason": self.reason}


class PauseSwitch:
    """Whether the daemon may act. May be used from any thread.

    It is a file of its own rather than a row in the ledger, so that an admin can see it, and remove
    it, when nothing else works.

    A file that cannot be read counts as a pause: somebody meant to stop the daemon.
    """

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / FILE_NAME
        self._lock = threading.Lock()
        self._pause = self._read()

    @property
    def pause(self) -> Pause | None:
        """The pause that is on; None if the daemon may act."""
        return self._pause

    def why_not(self) -> str:
        """See `Precondition`."""
        return f"paused by {pause.by}" if (pause := self._pause) else ""

    def on(self, *, by: str, reason: str, now_s: float) -> str:
        """Pause; a pause that is already on is replaced.

        Returns:
            Empty, or why the pause will not survive a restart.
        """
        with self._lock:
            self._pause = Pause(by=by, since_s=now_s, reason=reason)
            try:
                self._write(self._pause)
            except OSError as err:
                return f"{self._path}: {err.strerror}: the pause ends if the daemon restarts"
        return ""

    def off(self) -> str:
        """End the pause.

        Returns:
            Empty, or why it will be back after a restart.
        """
        with self._lock:
            self._pause = None
            try:
                self._path.unlink(missing_ok=True)
            except OSError as err:
                return f"{self._path}: {err.strerror}: the daemon will be paused after a restart"
        return ""

    def _read(self) -> Pause | None:
        try:
            content = json.loads(self._path.read_bytes())
            return Pause(
                by=str(content["by"]),
                since_s=float(content["since_s"]),
                reason=str(content["reason"]),
            )
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as err:
            reason = f"{self._path} cannot be read ({err}); 'dlctl resume' removes it"
            return Pause(by="unknown", since_s=0.0, reason=reason)

    def _write(self, pause: Pause) -> None:
        with replace_file(self._path, mode=0o640) as file:
            file.write(json.dumps(pause.as_json()).encode("ascii") + b"\n")
