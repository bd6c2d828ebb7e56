"""The daemon's last answer, as both displays of ``dlqueue --watch`` show it."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import monotonic

from slurm_dl.daemon.control.client import stale_note
from slurm_dl.daemon.control.wire_format import QueueRequest
from slurm_dl.json_types import JsonObject, number
from slurm_dl.text import ago, safe


@dataclass(slots=True)
class Shown:
    """What the daemon said last."""

    answer: JsonObject = field(default_factory=dict)  # To the last request that it answered
    away: str = ""  # Why it does not answer now; empty if it does
    heard_s: float = 0.0  # When it answered last, by `monotonic`

    def hear(self, answer: JsonObject) -> None:
        """Take *answer*."""
        self.answer, self.away, self.heard_s = answer, "", monotonic()

    @property
    def jobs(self) -> list[JsonObject]:
        """The jobs of the answer."""
        listed = self.answer.get("jobs")
        return [job for job in listed if isinstance(job, dict)] if isinstance(listed, list) else []

    def number(self, name: str) -> int:
        """A whole number of the answer; 0 if it has none."""
        return int(number(self.answer.get(name)))

    def head(self, request: QueueRequest, first: int, rows: int, *, mine: bool = False) -> str:
        """The line above the table: the part that is shown, its order, what the daemon does.

        Args:
            first: Place of the first job on the screen, from 0.
            rows: Jobs that the screen has room for.
        """
        total = self.number("total")
        words = [f"{first + 1}-{min(total, first + rows)} of {total}" if total else "no jobs"]
        words += [f"by {','.join(request.sort) or 'rank'}"]
        words += ["mine"] if mine else []
        words += [f"with '{safe(request.search)}'"] if request.search else []
        if self.away:
            age_s = number(self.answer.get("age_s")) + monotonic() - self.heard_s
            words += [f"AWAY, shown is {ago(age_s)} old: {safe(self.away, 300)}"]
        else:
            words += [safe(stale_note(self.answer) or str(self.answer.get("doing") or ""), 300)]
        return "  ".join(["dlqueue", *words])
