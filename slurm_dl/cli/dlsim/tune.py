"""``dlsim tune``: thresholds of discrete_las for a site's own history, and their worth."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Unpack

import click

from slurm_dl.cli.dlsim.asked import (
    PlacementOptions,
    check_outputs,
    manifest,
    parse_quanta,
    parse_thresholds,
    placement_of,
    read_history,
    read_lines,
    report,
    run_all,
)
from slurm_dl.cli.dlsim.whatif import METHOD, days_json, ends, signed
from slurm_dl.config.loading import load
from slurm_dl.engine.settings import Preemption
from slurm_dl.experiments import grid, tuning
from slurm_dl.experiments.cluster_presets import is_slurm
from slurm_dl.experiments.grid import Cell
from slurm_dl.experiments.option_words import parse_amounts
from slurm_dl.experiments.tuning import CHOSEN_ON, HELD_OUT, Candidate, Tried, TuningResult
from slurm_dl.experiments.whatif_history import KINDS, DailyHistory
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.trace import Trace
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.report import export
from slurm_dl.report.terminal_table import duration, number, percent, plain_number
from slurm_dl.simulation.cluster_shape import parse_shape


def tune(
    *,
    trace: Path | None,
    dump: Path | None,
    format_name: str | None,
    by: str,
    warm_up: int | None,
    cool_down: int | None,
    block_days: int,
    cluster: str,
    costs: str | None,
    seed: int,
    config_path: Path | None,
    thresholds: str | None,
    promote: str | None,
    min_quanta: str | None,
    most: int,
    out: Path | None,
    processes: int | None,
    json_path: Path | None,
    **placed: Unpack[PlacementOptions],
) -> None:
    """Run ``dlsim tune``; the arguments are its options."""
    check_outputs(out, json_path)
    if config_path is not None and thresholds is not None:
        msg = "--config or --thresholds says what is in use, not both"
        raise click.UsageError(msg)
    quanta = parse_quanta(min_quanta)
    current = _current(config_path, thresholds, costs, has_quanta=bool(quanta))
    form = "numbers of 0 or more, such as 0,2,8"
    knobs = None if promote is None else parse_amounts("--promote", promote, form)
    schemes, ground = placement_of(**placed)
    jobs = read_history(trace, dump, format_name)
    data = tuning.halves(
        jobs, parse_shape(cluster), by=by, costs=costs, seed=seed, ground=ground,
        scheme=schemes[0] if schemes else None,
        warm_up=warm_up, cool_down=cool_down, block_days=block_days,
    )  # fmt: skip

    ran: list[Cell] = []

    def run(cells: Sequence[Cell]) -> list[Tried]:
        unlike = list(dict.fromkeys(cells))
        ran.extend(unlike)
        measured = run_all("tune", data.experiment, unlike, data.measure, processes)
        found = grid.all_of(measured)
        return [found[cell] for cell in cells]

    result = tuning.tuned(data, current, run, most=most, knobs=knobs, quanta=quanta)
    told = {"manifest": manifest(data.experiment, ran), **as_json(jobs, result)}
    report(told, json_path, lines(jobs, result))
    if out is not None and result.is_recommended:
        export.write_whole(out, yaml_lines(result.winner, current).encode())
    elif out is not None:
        click.echo(f"dlsim tune: {out} was not written: there is nothing to change", err=True)


def _current(
    config_path: Path | None, thresholds: str | None, costs: str | None, *, has_quanta: bool
) -> Candidate:
    """The parameters in use.

    Args:
        costs: The word of ``--costs``: only a Slurm's runs are left alone for a time.
        has_quanta: Such times are tried.
    """
    made = DiscreteLas()
    min_quantum_s = Preemption().min_quantum_s if has_quanta else None
    if thresholds is not None:
        made = DiscreteLas(thresholds_gpu_s=parse_thresholds(thresholds))
    if config_path is not None:
        config = load(config_path)
        if has_quanta or is_slurm(costs):
            min_quantum_s = config.preemption.min_quantum_s
        used = config.policy.make()
        if not isinstance(used, DiscreteLas):
            msg = (
                f"{config_path}: policy.order is {config.policy.order}; dlsim tune searches "
                "thresholds of discrete_las: 'dlsim whatif' holds the two against each other"
            )
            raise ConfigError(msg)
        made = used
    return Candidate(made.thresholds_gpu_s, made.promote_knob, min_quantum_s, made.dimensions)


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
    too_large = early.too_large + late.too_large
    yield from read_lines(trace, too_large=too_large, gpus=data.shape.gpus)
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
