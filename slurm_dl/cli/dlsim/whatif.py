"""``dlsim whatif``: policies on the site's own days, held against each other."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Unpack

import click
from rich.console import RenderableType

from slurm_dl.cli.commandline import EXIT_FAILED
from slurm_dl.cli.dlsim import whatif_deadline
from slurm_dl.cli.dlsim.asked import (
    PlacementOptions,
    check_outputs,
    check_picture,
    head_lines,
    manifest,
    parse_quanta,
    parse_thresholds,
    placement_of,
    read_history,
    report,
    run_all,
)
from slurm_dl.experiments import grid, policy_words, whatif_history
from slurm_dl.experiments.grid import Experiment, Workload
from slurm_dl.experiments.option_words import parse_parameters
from slurm_dl.experiments.placement_choice import Named
from slurm_dl.experiments.simulation_run import PolicySpec
from slurm_dl.experiments.whatif_bootstrap import FEWEST_DAYS, Interval, Ranking, rank
from slurm_dl.experiments.whatif_deadline import ProbeStudy
from slurm_dl.experiments.whatif_history import KINDS, DailyHistory
from slurm_dl.model.trace import Trace
from slurm_dl.report import export
from slurm_dl.report.terminal_table import NONE, Column, TimeUnit, number, percent, table, unit_of
from slurm_dl.simulation.cluster_shape import ClusterShape, parse_shape
from slurm_dl.text import safe

METHOD: Final = "BCa bootstrap over days (Efron 1987), at least Student's"

_MOST_POLICIES: Final = 100
_NAME: Final = 26
_ONE: Final = TimeUnit("", 1.0)
_SAID: Final = {
    "first": "what the others are held against",
    "unfinished": "not compared: under it or under {first} jobs never finished",
    "too few days": "too few days with jobs to tell it from the first",
    "no difference shown": "no difference to {first} that this history can show",
}
_OF_FATE: Final = ("costs", "notes", "unfinished", "preemptions")
_OF_ROW: Final = ("verdict", "difference", "change", "better_on", "compared_on", "by_block")


def whatif(
    *,
    trace: Path | None,
    dump: Path | None,
    format_name: str | None,
    by: str | float,
    warm_up: int | None,
    cool_down: int | None,
    block_days: int,
    cluster: str,
    costs: str | None,
    seed: int,
    policies: str,
    thresholds: tuple[str, ...],
    parameters: tuple[str, ...],
    min_quanta: str | None,
    processes: int | None,
    json_path: Path | None,
    curve_path: Path | None,
    gpus: int | None,
    time_s: float | None,
    instants: int | None,
    plot_path: Path | None,
    **placed: Unpack[PlacementOptions],
) -> None:
    """Run ``dlsim whatif``; the arguments are its options."""
    check_outputs(json_path, plot_path)
    check_picture(plot_path)
    shape = parse_shape(cluster)
    probe = whatif_deadline.probe_of(shape, by, curve_path, gpus, time_s)
    schemes, ground = placement_of(**placed)
    quanta = parse_quanta(min_quanta)
    specs = asked(policies, thresholds, parameters, schemes, quanta, least=1 if probe else 2)
    jobs = read_history(trace, dump, format_name)
    history = whatif_history.cut(
        jobs, shape, warm_up=warm_up, cool_down=cool_down, block_days=block_days
    )
    workload = Workload(cluster=cluster, trace=history.trace)
    experiment = Experiment(workloads={"": workload}, ground=ground, seed=seed)
    cells = grid.product(specs, costs=(costs,))
    for cell in cells:
        experiment.ready(cell)
    written = manifest(experiment, cells)
    if probe is not None:
        study = ProbeStudy(experiment=experiment, history=history, probe=probe)
        if warm_up is not None:
            study = dataclasses.replace(study, before_days=warm_up)
        whatif_deadline.show(
            study, cells, jobs, study.instants(instants or 40).tolist(), processes=processes or 1,
            manifest=written, json_path=json_path, plot_path=plot_path,
        )  # fmt: skip
        return
    assert isinstance(by, str)  # noqa: S101 - a deadline makes a probe
    measure = functools.partial(whatif_history.fate_of, history)
    found = grid.all_of(run_all("what if", experiment, cells, measure, processes))
    fates = [(cell.policy.short_label, fate) for cell, fate in found.items()]
    ranking = rank(fates, by=by, seed=seed)
    told = (jobs, history, shape, ranking)
    made = {"manifest": written, **as_json(*told)}
    report(made, json_path, lines(*told))
    if any(row.fate.unfinished for row in ranking.rows):
        raise SystemExit(EXIT_FAILED)


def asked(
    policies: str,
    thresholds: tuple[str, ...],
    parameters: tuple[str, ...],
    schemes: Sequence[Named | None] = (),
    quanta: Sequence[float] = (),
    *,
    least: int = 2,
) -> list[PolicySpec]:
    """The policies that are compared.

    Args:
        schemes: Each policy runs with each of them; none: GPUs are only counted.
        quanta: It runs with each of these least times of a run as well, seconds.
        least: How many there must be.
    """
    made = [*policy_words.parse_policies(policies, parse_parameters(parameters))]
    for text in thresholds:
        edges = parse_thresholds(text)
        name = f"discrete_las {','.join(f'{edge:g}' for edge in edges)}"
        fixed = {"thresholds_gpu_s": list(edges)}
        made.append(PolicySpec(policy="discrete_las", parameters=fixed, name=name))
    timed = [
        dataclasses.replace(spec, min_quantum_s=quantum_s)
        for spec in made
        for quantum_s in quanta or (None,)
    ]
    placed = policy_words.with_places(timed, schemes)
    found = list({spec.short_label: spec for spec in placed}.values())
    if len(found) < least:
        msg = "nothing to compare: name several --policies, or give --thresholds"
        raise click.UsageError(msg)
    if len(found) > _MOST_POLICIES:
        msg = f"{len(found)} policies and thresholds; at most {_MOST_POLICIES}"
        raise click.UsageError(msg)
    return found


def lines(
    trace: Trace, history: DailyHistory, shape: ClusterShape, ranking: Ranking
) -> Iterator[RenderableType]:
    """All of it for people."""
    ran = [(row.label, row.fate.costs, row.fate.notes) for row in ranking.rows]
    yield from head_lines(
        trace, history, shape, ran,
        f"{history.jobs_counted:,} jobs of {history.counted_days} days count; those of the first "
        f"{history.warm_up} and the last {history.cool_down} are simulated beside them",
    )  # fmt: skip
    yield _ranked_table(ranking)
    yield ""
    yield from _verdict_lines(ranking, history)


def _ranked_table(ranking: Ranking) -> RenderableType:
    """Policies in their order, 80 columns wide."""
    kind = KINDS[ranking.by]
    unit = unit_of(row.own.value for row in ranking.rows) if kind.is_time else _ONE
    titles = (
        f"{kind.title} {unit.sign}".rstrip(),
        "95 % range",
        "to the\nfirst",
        "range of the\ndifference",
        "less\non",
    )
    columns = (Column(title=title, right=True, folds=True) for title in titles)
    in_unit: Callable[[float], str] = lambda value: number(value / unit.in_s)  # noqa: E731
    rows = [
        (
            safe(row.label, 2 * _NAME),
            in_unit(row.own.value),
            ends(row.own, in_unit),
            signed(row.change.value if row.change else math.nan),
            ends(row.change, signed),
            NONE if row.better_on is None else f"{row.better_on}/{row.compared_on}",
        )
        for row in ranking.rows
    ]
    return table((Column(title="policy", folds=True), *columns), rows)


def _verdict_lines(ranking: Ranking, history: DailyHistory) -> Iterator[str]:
    """A sentence on each policy, as far as the history shows any, and the kind of the ranges."""
    first = safe(ranking.first, _NAME)
    for row in ranking.rows:
        said = _SAID.get(row.verdict, "").format(first=first)
        if row.difference and not said:
            by, write = (row.change, percent) if row.change else (row.difference, number)
            word = "less" if row.verdict == "better" else "more"
            size = f"{KINDS[ranking.by].title} {write(abs(by.value))}"
            said = f"{row.verdict}: {size} {word} than {first}"
        yield f"{safe(row.label, 2 * _NAME)}: {said}"
    days = "days" if history.block_days == 1 else f"blocks of {history.block_days} days"
    yield ""
    yield f"ranges: {METHOD},"
    yield (
        f"{ranking.resamples:,} resamples of {history.blocks} {days}, seed {ranking.seed}; those "
        "of the differences are paired by day"
    )
    if len(ranking.rows) > 2:  # noqa: PLR2004 - the first, and several others
        yield "and judged with Holm's correction (1979): by chance one is shown in 5 % at most"
    if history.blocks < FEWEST_DAYS:
        yield f"fewer than {FEWEST_DAYS} {days} can show nothing"


def ends(found: Interval | None, write: Callable[[float], str]) -> str:
    """The ends of an interval."""
    if found is None or not found.is_known:
        return NONE
    return f"{write(found.low)} to {write(found.high)}"


def signed(share: float) -> str:
    """A change as a percentage with its sign."""
    return NONE if math.isnan(share) else f"{100 * share:+.1f}%"


def as_json(
    trace: Trace, history: DailyHistory, shape: ClusterShape, ranking: Ranking
) -> dict[str, object]:
    """All of it as plain values; the keys are those of `docs/evaluate/what-if.md`."""
    told: dict[str, object] = export.plain({
        "trace": trace.name,
        "format": trace.format,
        "cluster": str(shape),
        **days_json(history),
        "by": ranking.by,
        "first": ranking.first,
        "method": METHOD,
        "resamples": ranking.resamples,
        "seed": ranking.seed,
        "level_of_differences": ranking.level,
        "policies": [
            {
                "policy": row.label,
                **{name: getattr(row.fate, name) for name in _OF_FATE},
                "figure": row.own,
                **{name: getattr(row, name) for name in _OF_ROW},
                "figures": row.fate.values(),
            }
            for row in ranking.rows
        ],
        "block_from": [str(history.date_of(block)) for block in range(history.blocks)],
    })  # fmt: skip
    return told


def days_json(history: DailyHistory) -> dict[str, object]:
    """The days and jobs of a history."""
    return {
        "jobs": len(history.trace),
        "jobs_counted": history.jobs_counted,
        "jobs_too_large": history.too_large,
        "days": history.days,
        "warm_up_days": history.warm_up,
        "cool_down_days": history.cool_down,
        "blocks": history.blocks,
        "block_days": history.block_days,
    }
