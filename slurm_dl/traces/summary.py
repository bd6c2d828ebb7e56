"""What is in a trace, as data for the command line to print."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from slurm_dl.model.trace import Ending, Trace
from slurm_dl.traces.builder import LeftOutLine

EXAMPLES: Final = 3  # Lines shown of each kind that was left out

QUANTILES: Final = (0.0, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)

_S_PER_HOUR: Final = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOutSummary:
    """Lines left out for one reason."""

    reason: str
    lines: int
    examples: tuple[str, ...]  # The first of them, ``file:line: why``


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSummary:
    """The printed summary of a trace.

    Attributes:
        jobs_by_gpus: Pairs of a number of GPUs and the jobs that ask for it.
    """

    name: str
    format: str
    jobs: int  # Jobs read
    gpu_hours: float  # GPUs times hours, over all jobs
    span_s: float  # Seconds from the first submission to the last
    mean_gpus: float  # GPUs that are busy on average if the jobs take `span_s` together: the demand
    users: int  # Different users; 0 if the trace knows none
    models: int  # Different models
    duration_s: tuple[float, ...]  # At `QUANTILES`, seconds
    jobs_by_gpus: tuple[tuple[float, int], ...]
    endings: tuple[tuple[str, int], ...]  # Jobs by how they ended, in words
    left_out: tuple[LeftOutSummary, ...]  # By reason, the most lines first

    @property
    def lines_left_out(self) -> int:
        """Lines left out, for whatever reason."""
        return sum(kind.lines for kind in self.left_out)


def summarize(trace: Trace) -> TraceSummary:
    """What is in *trace*; it has jobs, as one that was read always does."""
    span_s = float(trace.submit_s[-1] - trace.submit_s[0])
    sizes, counts = np.unique(trace.gpus, return_counts=True)
    return TraceSummary(
        name=trace.name,
        format=trace.format,
        jobs=len(trace),
        gpu_hours=trace.gpu_s / _S_PER_HOUR,
        span_s=span_s,
        mean_gpus=trace.gpu_s / span_s if span_s else float("inf"),
        users=sum(bool(user) for user in trace.users),
        models=len(trace.models),
        duration_s=tuple(np.quantile(trace.duration_s, QUANTILES).tolist()),
        jobs_by_gpus=tuple(zip(sizes.tolist(), counts.tolist(), strict=True)),
        endings=tuple(
            (ending.name.lower(), count)
            for ending in Ending
            if (count := int((trace.ending == ending).sum()))
        ),
        left_out=_left_out(trace),
    )


def left_out_json(trace: Trace) -> dict[str, object]:
    """The lines left out as plain values: ``lines``, ``by_reason`` (lines) and ``examples``."""
    kinds = _left_out(trace)
    return {
        "lines": sum(kind.lines for kind in kinds),
        "by_reason": {kind.reason: kind.lines for kind in kinds},
        "examples": [example for kind in kinds for example in kind.examples],
    }


def _left_out(trace: Trace) -> tuple[LeftOutSummary, ...]:
    lines: dict[str, int] = {}
    examples: dict[str, list[str]] = {}
    for bad in trace.bad:
        reason = str(bad.reason) if isinstance(bad, LeftOutLine) else bad.why
        lines[reason] = lines.get(reason, 0) + (bad.lines if isinstance(bad, LeftOutLine) else 1)
        shown = examples.setdefault(reason, [])
        if len(shown) < EXAMPLES:
            shown.append(str(bad))
    kinds = (
        LeftOutSummary(reason=reason, lines=count, examples=tuple(examples[reason]))
        for reason, count in lines.items()
    )
    return tuple(sorted(kinds, key=lambda kind: -kind.lines))
