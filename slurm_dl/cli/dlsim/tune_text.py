"""What a search for thresholds found: for people, for programs, and for the configuration."""

from __future__ import annotations

import math
from collections.abc import Iterator

from slurm_dl.cli.dlsim.whatif_text import METHOD, days_json, finite, range_json, signed_ends
from slurm_dl.experiments.results import read_lines
from slurm_dl.experiments.tuning import CHOSEN_ON, HELD_OUT, Candidate, TuningResult
from slurm_dl.experiments.whatif_history import KINDS, DailyHistory
from slurm_dl.model.trace import Trace
from slurm_dl.report.number_format import duration, number, percent, plain_number


def yaml_lines(winner: Candidate, current: Candidate) -> str:
    """The lines of slurm_dl.yaml for *winner*; parameters that have their default are left out."""
    edges = ", ".join(plain_number(edge) for edge in winner.thresholds_gpu_s)
    lines = [
        "policy:",
        "  order: discrete_las",
        "  parameters:",
        f"    thresholds_gpu_s: [{edges}]",
    ]
    if winner.promote_knob or current.promote_knob:
        lines.append(f"    promote_knob: {plain_number(winner.promote_knob)}")
    if current.dimensions == 1:
        lines.append("    dimensions: 1")
    if winner.min_quantum_s is not None and winner.min_quantum_s != current.min_quantum_s:
        lines += ["preemption:", f"  min_quantum_s: {plain_number(winner.min_quantum_s)}"]
    return "\n".join(lines) + "\n"


def lines(trace: Trace, found: TuningResult) -> Iterator[str]:
    """All of it for people."""
    data = found.halves
    early, late = data.days[CHOSEN_ON], data.days[HELD_OUT]
    yield from read_lines(trace)
    if too_large := early.too_large + late.too_large:
        yield (
            f"left out {too_large:,} jobs that ask for more than the {data.shape.gpus} GPUs of "
            "the cluster"
        )
    yield f"on {data.shape}, costs {found.costs}; by {KINDS[data.by].title}"
    yield f"chosen on {_days(early)}; judged on {_days(late)}"
    yield ""
    for step in found.steps:
        place = next(n for n, (one, _) in enumerate(step, 1) if one == found.current)
        yield f"{len(step):3} candidates: best {step[0][0]}; what is in use is number {place}"
    yield ""
    unit = "s" if found.current.dimensions == 1 else "GPU-s"
    yield f"in use     {found.current} ({unit})"
    yield f"found      {found.winner} ({unit})"
    for name, (before, after), gain in (
        ("chosen on", found.chosen, found.gain),
        ("judged on", found.later, found.gain_left),
    ):
        told = f"{_value(found, before)} with what is in use, {_value(found, after)} as found"
        yield f"{name}  {told}: {_change(gain)}"
    yield ""
    yield from _advice(found)


def _advice(found: TuningResult) -> Iterator[str]:
    held = found.judged
    if found.winner == found.current:
        yield "Leave it as it is: on the days chosen on nothing was better than what is in use."
        return
    if not held.is_known or not found.is_whole:
        yield (
            "Leave it as it is: the days held out that have jobs are too few to judge, or jobs "
            "did not finish on them."
        )
        return
    span = f"{number(held.low)} to {number(held.high)}"
    if found.change is not None:
        span = signed_ends(found.change)
    if not found.is_recommended:
        why = "it is worse there" if held.low > 0 else "no difference that these days can show"
        yield f"Leave it as it is: on the days held out {why} ({span})."
        return
    left = found.gain_left / found.gain if found.gain > 0 else math.nan
    part = "all" if left >= 1 else percent(left)
    yield f"On the days held out it is better, {span}; {part} of the gain is left there."
    yield f"range: {METHOD},"
    blocks = found.halves.days[HELD_OUT].blocks
    yield f"{found.resamples:,} resamples of {blocks} days, paired by day"
    yield ""
    yield "Lines for slurm_dl.yaml:"
    yield ""
    yield from yaml_lines(found.winner, found.current).splitlines()


def as_json(trace: Trace, found: TuningResult) -> dict[str, object]:
    """All of it as plain values; the keys are those of `docs/evaluate/what-if.md`."""
    data = found.halves
    return {
        "trace": trace.name,
        "format": trace.format,
        "cluster": str(data.shape),
        "costs": found.costs,
        "by": data.by,
        "chosen_on": days_json(data.days[CHOSEN_ON]),
        "held_out": days_json(data.days[HELD_OUT]),
        "rungs": [
            {
                "days": data.days[CHOSEN_ON].days,
                "tried": [{**_candidate(one), "figure": finite(value)} for one, value in step],
            }
            for step in found.steps
        ],
        "in_use": {
            **_candidate(found.current),
            "chosen_on": finite(found.chosen[0]),
            "held_out": finite(found.later[0]),
        },
        "found": {
            **_candidate(found.winner),
            "chosen_on": finite(found.chosen[1]),
            "held_out": finite(found.later[1]),
        },
        "gain_frac": finite(found.gain),
        "gain_left_frac": finite(found.gain_left),
        "difference": range_json(found.difference),
        "change": range_json(found.change),
        "method": METHOD,
        "resamples": found.resamples,
        "seed": data.experiment.seed,
        "recommended": found.is_recommended,
        "yaml": yaml_lines(found.winner, found.current),
    }


def _candidate(one: Candidate) -> dict[str, object]:
    return {
        "thresholds_gpu_s": list(one.thresholds_gpu_s),
        "promote_knob": one.promote_knob,
        "min_quantum_s": one.min_quantum_s,
    }


def _days(history: DailyHistory) -> str:
    return (
        f"{history.counted_days} days from {history.date_of(0)} "
        f"({int(history.is_counted.sum()):,} jobs)"
    )


def _value(found: TuningResult, value: float) -> str:
    return duration(value) if KINDS[found.halves.by].is_time else number(value)


def _change(gain: float) -> str:
    if not gain:
        return "the same"
    return f"{percent(abs(gain))} {'less' if gain > 0 else 'more'}"
