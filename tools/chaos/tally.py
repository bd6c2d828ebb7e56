"""What happened in a campaign, in numbers, and whether it holds; for people and as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Protocol, cast

JsonObject = dict[str, object]


class Verdict(Protocol):
    """What the checker says."""

    @property
    def ok(self) -> bool:
        """Whether everything it proves holds."""

    def lines(self) -> list[str]:
        """For people."""

    def as_json(self) -> object:
        """The same as data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Counts of one campaign.

    Attributes:
        seed: All was drawn from it.
        took_s: From the first submission to the last end, seconds.
        jobs: By kind.
        ends: By Slurm's last state.
        faults: By name.
        nested: Faults that came while another one lasted.
        runs: Times that a job's program began.
        asked: Runs that were sent their checkpoint signal.
        asked_in_arrays: Of these, those of array tasks.
        asked_again: Of these, those that were sent it more than once.
        preemptions: Of these, those that began again later.
        resized: Runs in another size than the one before them of the same job.
        requeues: Ended runs that were followed by another one, for whatever reason.
        cancels: By users.
        attacks: Odd arrays that an attacker submitted and cancelled.
        starts: Processes of dlschedd.
        problems: What went wrong with the campaign itself, or with dlschedd as a process.
    """

    seed: int
    took_s: float
    jobs: Mapping[str, int]
    ends: Mapping[str, int]
    faults: Mapping[str, int]
    nested: int
    runs: int
    asked: int
    asked_in_arrays: int
    asked_again: int
    preemptions: int
    resized: int
    requeues: int
    cancels: int
    attacks: int
    starts: int
    problems: Sequence[str] = field(default_factory=tuple)

    def lines(self) -> list[str]:
        """For people, a few lines."""
        return [
            f"seed {self.seed}, {self.took_s:.0f} s",
            f"{sum(self.jobs.values())} jobs: {_counts(self.jobs)}",
            f"  ended: {_counts(self.ends)}",
            f"{sum(self.faults.values())} faults: {_counts(self.faults)}",
            f"  {self.nested} of them during another one",
            f"{self.runs} runs, {self.requeues} of them after a requeue",
            f"  {self.asked} asked to stop, {self.preemptions} preemptions",
            f"  {self.resized} in another size than the run before",
            f"  {self.asked_in_arrays} were tasks of arrays, {self.asked_again} were asked again",
            f"{self.cancels} cancellations by users, {self.attacks} odd arrays of an attacker",
            f"{self.starts} processes of dlschedd",
            *(f"PROBLEM: {problem}" for problem in self.problems),
        ]

    def as_json(self) -> JsonObject:
        """The same as data."""
        return asdict(self)


def read_lines(path: Path) -> list[JsonObject]:
    """The objects in a file of JSON lines; none if there is no file."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8", errors="replace")
    return [cast("JsonObject", json.loads(line)) for line in text.splitlines()]


def jobs_by_kind(submitted: Iterable[JsonObject]) -> dict[str, int]:
    """Jobs that Slurm made of the submissions, by kind."""
    counts: Counter[str] = Counter()
    for line in submitted:
        parts = cast("list[int]", line["tasks"] or line["het"] or [line["job"]])
        counts[str(line["kind"])] += len(parts)
    return dict(counts)


def faults_by_name(events: Iterable[JsonObject]) -> tuple[dict[str, int], int]:
    """Faults that were begun, by name, and how many came while another one lasted."""
    counts: Counter[str] = Counter()
    open_now = nested = 0
    for event in events:
        if event["event"] != "fault":
            continue
        if event["phase"] == "begin":
            counts[str(event["fault"])] += 1
            nested += open_now > 0
            open_now += 1
        else:
            open_now -= 1
    return dict(counts), nested


@dataclass(frozen=True, slots=True)
class Runs:
    """What the jobs' own diaries say, counted."""

    runs: int
    asked: int
    asked_in_arrays: int
    asked_again: int
    preemptions: int
    resized: int
    requeues: int


def runs_in(out: Path) -> Runs:
    """Count over all diaries in the directory *out*."""
    runs = asked = in_arrays = again = preemptions = resized = requeues = 0
    for path in out.glob("*.jsonl"):
        signals: list[int] = []
        sizes: list[object] = []
        for line in read_lines(path):
            if line["event"] == "begin":
                signals.append(0)
                sizes.append(line.get("size"))
            elif line["event"] == "signal" and line["signal"] != "TERM" and signals:
                signals[-1] += 1
        of_path = sum(n > 0 for n in signals)
        runs += len(signals)
        asked += of_path
        in_arrays += of_path if "_" in path.stem else 0
        again += sum(n > 1 for n in signals)
        preemptions += sum(n > 0 for n in signals[:-1])
        resized += sum(one != other for one, other in pairwise(sizes))
        requeues += max(0, len(signals) - 1)
    return Runs(runs, asked, in_arrays, again, preemptions, resized, requeues)


def _counts(counts: Mapping[str, int]) -> str:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count} {name}" for name, count in ordered) or "none"
