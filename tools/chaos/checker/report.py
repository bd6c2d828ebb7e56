"""The checker's answer: what was broken, what was checked, and what is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Final

from tools.chaos.checker.findings import Finding, Violation
from tools.chaos.checker.invariants import INVARIANTS
from tools.chaos.checker.records import Evidence, jobs_of

_MOST_TOLD: Final = 20
"""Violations of one invariant that are printed; all of them are in the JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What came of a campaign.

    Attributes:
        faults: Injected faults by name.
        deeds: What users did, by kind.
        kinds: Jobs by kind; each task and component is one.
        ends: Records of accounting by state.
        findings: One for each invariant.
        unreadable: Lines and records that could not be read.
    """

    faults: Mapping[str, int]
    deeds: Mapping[str, int]
    kinds: Mapping[str, int]
    ends: Mapping[str, int]
    findings: tuple[Finding, ...]
    unreadable: int = 0

    @property
    def ok(self) -> bool:
        """Every invariant holds, and none had nothing to look at where it should have had."""
        return all(finding.ok for finding in self.findings)

    @property
    def violated(self) -> frozenset[str]:
        """Names of the invariants that do not hold."""
        return frozenset(f.invariant for f in self.findings if f.violations)

    @property
    def violations(self) -> tuple[Violation, ...]:
        """All of them."""
        return tuple(v for finding in self.findings for v in finding.violations)

    def lines(self) -> list[str]:
        """The report for people."""
        told = [
            f"faults injected: {_counts(self.faults)}",
            f"users: {_counts(self.deeds)}",
            f"jobs checked: {_counts(self.kinds)}",
            f"runs by accounting: {_counts(self.ends)}",
        ]
        if self.unreadable:
            told.append(f"lines that could not be read: {self.unreadable}")
        for finding in self.findings:
            told += _told(finding)
        wrong = [f.rule for f in self.findings if not f.ok]
        told.append(f"FAILED: {'; '.join(wrong)}" if wrong else "all invariants hold")
        return told

    def as_json(self) -> dict[str, object]:
        """The report for programs; plain objects."""
        return {
            "ok": self.ok,
            "faults": dict(self.faults),
            "deeds": dict(self.deeds),
            "jobs": dict(self.kinds),
            "runs": dict(self.ends),
            "unreadable": self.unreadable,
            "invariants": {
                f.invariant: {
                    "ok": f.ok,
                    "checked": f.checked,
                    "of": f.of,
                    "violations": [asdict(v) for v in f.violations],
                    "let_pass": dict(f.let_pass),
                }
                for f in self.findings
            },
        }


def judge(evidence: Evidence) -> Report:
    """Hold *evidence* against every invariant."""
    return Report(
        faults=Counter(fault.name for fault in evidence.faults),
        deeds=Counter(deed.event for deed in evidence.deeds),
        kinds=Counter(job.submission.kind or "job" for job in jobs_of(evidence)),
        ends=Counter(run.state for run in evidence.runs),
        findings=tuple(look(evidence) for look in INVARIANTS),
        unreadable=evidence.unreadable,
    )


def _counts(counts: Mapping[str, int]) -> str:
    each = ", ".join(f"{name} {n}" for name, n in sorted(counts.items()))
    return f"{sum(counts.values())} ({each})" if counts else "0"


def _told(finding: Finding) -> list[str]:
    bad = len(finding.violations)
    verdict = "ok" if finding.ok else f"{bad} WRONG" if bad else "NOTHING TO LOOK AT"
    told = [f"{finding.rule}: {verdict}, {finding.checked} {finding.of} checked"]
    told += [
        f"    let pass {n}: {why}"
        for why, n in sorted(finding.let_pass.items(), key=lambda item: -item[1])
        if n
    ]
    for violation in finding.violations[:_MOST_TOLD]:
        at = datetime.fromtimestamp(violation.at_s, UTC).strftime("%H:%M:%S")
        told.append(f"    {violation.job} at {at}: {violation.what} [{violation.by}]")
    if bad > _MOST_TOLD:
        told.append(f"    and {bad - _MOST_TOLD} more")
    return told
