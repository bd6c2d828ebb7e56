"""What a search for thresholds found: for people, for programs, and for the configuration."""

from __future__ import annotations

import math
from collections.abc import Iterator

from slurm_dl.cli.dlsim.whatif_text import METHOD, days_json, ends, read_lines_of, signed
from slurm_dl.experiments.tuning import CHOSEN_ON, HELD_OUT, Candidate, TuningResult
from slurm_dl.experiments.whatif_history import KINDS, DailyHistory
from slurm_dl.model.trace import Trace
from slurm_dl.report import export
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
    yield from read_lines_of(trace, data.shape, early.too_large + late.too_large)
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
    write = duration if KINDS[data.by].is_time else number
    for name, (before, after), gain in (
        ("chosen on", found.chosen, found.gain),
        ("judged on", found.later, found.gain_left),
    ):
        by = f"{percent(abs(gain))} {'less' if gain > 0 else 'more'}" if gain else "the same"
        yield f"{name}  {write(before)} with what is in use, {write(after)} as found: {by}"
    yield ""
    yield from _advice(found)


def _advice(found: TuningResult) -> Iterator[str]:
    held = found.held.judged
    span = ends(held, number if found.held.change is None else signed)
    if found.is_recommended and found.winner != found.current:
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
        return
    if found.winner == found.current:
        why = "on the days chosen on nothing was better than what is in use"
    elif not held.is_known or math.isnan(sum(found.later)):
        why = (
            "the days held out that have jobs are too few to judge, or jobs did not finish on them"
        )
    elif held.low > 0:
        why = f"on the days held out it is worse there ({span})"
    else:
        why = f"on the days held out no difference that these days can show ({span})"
    yield f"Leave it as it is: {why}."


def as_json(trace: Trace, found: TuningResult) -> dict[str, object]:
    """All of it as plain values; the keys are those of `docs/evaluate/what-if.md`."""
    data = found.halves
    in_use, winner = (
        {**_candidate(one), "chosen_on": found.chosen[n], "held_out": found.later[n]}
        for n, one in enumerate((found.current, found.winner))
    )
    told: dict[str, object] = export.plain({
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
                "tried": [{**_candidate(one), "figure": value} for one, value in step],
            }
            for step in found.steps
        ],
        "in_use": in_use,
        "found": winner,
        "gain_frac": found.gain,
        "gain_left_frac": found.gain_left,
        "difference": found.held.difference,
        "change": found.held.change,
        "method": METHOD,
        "resamples": found.resamples,
        "seed": data.experiment.seed,
        "recommended": found.is_recommended,
        "yaml": yaml_lines(found.winner, found.current),
    })  # fmt: skip
    return told


def _candidate(one: Candidate) -> dict[str, object]:
    told: dict[str, object] = export.plain(one)
    return {name: value for name, value in told.items() if name != "dimensions"}


def _days(history: DailyHistory) -> str:
    return f"{history.counted_days} days from {history.date_of(0)} ({history.jobs_counted:,} jobs)"
