"""What an invariant found: what it looked at, what is wrong, and what it let pass."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One job to which happened what must not.

    Attributes:
        job: Slurm's label, or the name of a reservation.
        what: In words.
        at_s: When, epoch seconds; 0 if that is not known.
        by: Which record says so.
    """

    invariant: str
    job: str
    what: str
    at_s: float
    by: str


@dataclass(slots=True)
class Finding:
    """What came of one invariant.

    Attributes:
        invariant: Its name.
        rule: It in words.
        of: What was looked at, in the plural.
        checked: How many of these.
        due: The workload should have given it something to look at.
        violations: In the order of submission.
        let_pass: How often, by why.
    """

    invariant: str
    rule: str
    of: str
    checked: int = 0
    due: bool = True
    violations: list[Violation] = field(default_factory=list)
    let_pass: Counter[str] = field(default_factory=Counter)

    @property
    def ok(self) -> bool:
        """Nothing is wrong, and it looked at something where there should be something."""
        return not self.violations and (self.checked > 0 or not self.due)

    def say(self, job: str, what: str, at_s: float, by: str) -> None:
        """Note a violation."""
        violation = Violation(invariant=self.invariant, job=job, what=what, at_s=at_s, by=by)
        self.violations.append(violation)
