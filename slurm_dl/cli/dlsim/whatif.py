"""``dlsim whatif``: policies on the site's own days, held against each other."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

import click

from slurm_dl.cli.commandline import EXIT_FAILED
from slurm_dl.cli.dlsim import whatif_text
from slurm_dl.cli.dlsim.asked import (
    PlacementOptions,
    check_outputs,
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
from slurm_dl.experiments.whatif_bootstrap import rank
from slurm_dl.simulation.cluster_shape import parse_shape

_MOST_POLICIES = 100


def whatif(
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
    policies: str,
    thresholds: tuple[str, ...],
    parameters: tuple[str, ...],
    min_quanta: str | None,
    processes: int | None,
    json_path: Path | None,
    **placed: Unpack[PlacementOptions],
) -> None:
    """Run ``dlsim whatif``; the arguments are its options."""
    check_outputs(json_path)
    shape = parse_shape(cluster)
    schemes, ground = placement_of(**placed)
    specs = asked(policies, thresholds, parameters, schemes, parse_quanta(min_quanta))
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
    measure = functools.partial(whatif_history.fate_of, history)
    found = grid.all_of(run_all("what if", experiment, cells, measure, processes))
    fates = [(cell.policy.short_label, fate) for cell, fate in found.items()]
    ranking = rank(fates, by=by, seed=seed)
    told = (jobs, history, shape, ranking)
    made = {"manifest": written, **whatif_text.as_json(*told)}
    report(made, json_path, whatif_text.lines(*told))
    if any(row.fate.unfinished for row in ranking.rows):
        raise SystemExit(EXIT_FAILED)


def asked(
    policies: str,
    thresholds: tuple[str, ...],
    parameters: tuple[str, ...],
    schemes: Sequence[Named | None] = (),
    quanta: Sequence[float] = (),
) -> list[PolicySpec]:
    """The policies that are compared.

    Args:
        schemes: Each policy runs with each of them; none: GPUs are only counted.
        quanta: It runs with each of these least times of a run as well, seconds.

    Raises:
        ConfigError: A policy, a parameter or thresholds are wrong.
        UsageError: There is nothing to compare, or too much.
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
    if len(found) < 2:  # noqa: PLR2004 - one and another
        msg = "nothing to compare: name several --policies, or give --thresholds"
        raise click.UsageError(msg)
    if len(found) > _MOST_POLICIES:
        msg = f"{len(found)} policies and thresholds; at most {_MOST_POLICIES}"
        raise click.UsageError(msg)
    return found
