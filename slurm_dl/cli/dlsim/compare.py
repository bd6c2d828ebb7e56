"""``dlsim compare``: one trace under several policies, here or as an array of a Slurm cluster."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click

from slurm_dl.cli.commandline import EXIT_FAILED
from slurm_dl.cli.dlsim import comparison_plot, comparison_text
from slurm_dl.cli.dlsim.compare_slurm import (
    check_where,
    gather,
    refuse_with_resume,
    say_aloud,
    slurm_options,
    what_is_run,
)
from slurm_dl.cli.dlsim.comparison_plot import draw
from slurm_dl.cli.dlsim.simulation_options import (
    check_outputs,
    check_place,
    cluster_option,
    costs_option,
    foresight_options,
    parameters_option,
    place_options,
    policies_option,
    processes_option,
    quiet_option,
    read_value,
    tags_option,
    trace_argument_if_any,
)
from slurm_dl.experiments import comparison as compared
from slurm_dl.experiments import cost_models, results, simulation_run
from slurm_dl.experiments import placement_choice as placing
from slurm_dl.experiments import sweep as sweeps
from slurm_dl.experiments.cost_models import Ran
from slurm_dl.experiments.oracle import parse_foresight
from slurm_dl.experiments.sweep import CellResult, Failure, Sweep, SweepCell, run_cells
from slurm_dl.experiments.sweep_slurm import SweepRequest
from slurm_dl.model.trace import Trace
from slurm_dl.report import export
from slurm_dl.report.console import console, progress
from slurm_dl.simulation.cluster_shape import parse_shape
from slurm_dl.text import safe
from slurm_dl.traces.format_registry import read_trace
from slurm_dl.traces.made_tags import tagged

_MOST_TOLD = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outputs:
    """Where the figures go besides the terminal."""

    json_path: Path | None
    csv_path: Path | None
    plot_path: Path | None
    quiet: bool


def _silent(_text: str) -> None:
    """Say nothing."""


@click.command(name="compare")
@trace_argument_if_any
@cluster_option(required=False)
@costs_option(several=True)
@policies_option(
    "What is compared; the first is what the others are held against. all: every one that is not "
    "named. 'dlsim policies' lists names and presets."
)
@parameters_option
@place_options(several=True)
@foresight_options
@tags_option
@click.option(
    "--loads",
    metavar="LOAD,...",
    default="1",
    show_default=True,
    help="How fast the jobs arrive: 2 is twice as fast as in the trace.",
)
@click.option(
    "--seeds",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="How many workloads. Seed 0 is the trace; each further one draws as many of its jobs "
    "with replacement (numpy's default generator with that seed), each with its duration, GPUs, "
    "user and model, and puts them at the trace's submissions. What a cost model draws has the "
    "same seed.",
)
@processes_option
@click.option(
    "--json", "json_path", type=click.Path(path_type=Path), help="Write the figures here."
)
@click.option(
    "--csv", "csv_path", type=click.Path(path_type=Path), help="Write each simulation here."
)
@click.option(
    "--plot",
    "plot_path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Draw here (.png, .svg, .pdf): bars, the best policy on top if there are many; with "
    "several loads the mean JCT over the load.",
)
@quiet_option
@slurm_options
def compare_command(
    *,
    trace: Path | None,
    format_name: str | None,
    cluster: str | None,
    costs: tuple[str, ...],
    policies: str | None,
    parameters: tuple[str, ...],
    places: tuple[str, ...],
    rules: tuple[str, ...],
    profiles: Path | None,
    widths: Literal["any", "fewest"],
    contention: str | None,
    gpu_speed: str | None,
    estimate_error: float,
    due: str | None,
    tags: str,
    loads: str,
    seeds: int,
    processes: int | None,
    json_path: Path | None,
    csv_path: Path | None,
    plot_path: Path | None,
    quiet: bool,
    where: Literal["local", "slurm"],
    directory: Path | None,
    resume: bool,
    partition: str | None,
    time_limit: str | None,
    array_limit: int | None,
    within_s: float | None,
) -> None:
    """Run TRACE under several policies and lay the figures side by side.

    With several seeds a time is the mean over them with its 95 % bootstrap interval, and the
    policies ran the same workloads, so the ratio to the first policy is taken for each workload
    by itself. Ends with status 1 if a job did not finish or a simulation failed; the results
    of the others are still reported.

    With --on slurm the simulations go out as one array of CPU jobs, and the command waits for
    them. Stopped or late, it is called again with --dir and --resume and no TRACE.

    \b
    Examples:
      dlsim compare traces/tiresias-derived/itp10.csv --cluster 2x8 --policies fifo,srtf,las
      dlsim compare traces/tiresias/60_job.csv --cluster 4x4 --policies fifo,all \\
        --costs none --costs slurm --json all.json --plot all.png
      dlsim compare traces/muri/trace3.csv --cluster 8x8 -j 2 --seeds 5 --loads 0.5,1,2 \\
        --policies discrete_las:tiresias-artifact,discrete_las:voda,srsf --plot loads.png
      dlsim compare traces/tiresias/60_job.csv --cluster 4x4 --policies discrete_las --seeds 5 \\
        --place consolidate --place consolidate:skew_threshold=0 --place best_fit
      dlsim compare traces/philly/philly.csv.gz --cluster 64x8 --policies fifo,las --seeds 20 \\
        --on slurm --dir /shared/sweep --partition cpu
      dlsim compare --on slurm --dir /shared/sweep --resume --json sweep.json
    """  # noqa: D301 - \b is click's mark
    check_where(
        where,
        directory=directory,
        resume=resume,
        asked={
            "--partition": partition,
            "--time": time_limit,
            "--array-limit": array_limit,
            "--within": within_s,
        },
        processes=processes,
    )
    check_outputs(json_path, csv_path, plot_path)
    outputs = _Outputs(json_path=json_path, csv_path=csv_path, plot_path=plot_path, quiet=quiet)
    if plot_path:
        comparison_plot.check_picture(plot_path)
    on_slurm = SweepRequest(partition=partition, time=time_limit, most_at_once=array_limit)
    say = _silent if quiet else say_aloud
    _check_several(costs, where=where, loads=loads, plot_path=plot_path)
    if directory is not None and resume:
        refuse_with_resume(click.get_current_context())
        ran, jobs, found = gather(directory, None, on_slurm, within_s=within_s, say=say)
        _show(
            jobs, cost_models.run([cost_models.CostModelPlan(sweep=ran)], lambda *_: found), outputs
        )
        return
    if trace is None or cluster is None or policies is None:
        missing = {"TRACE": trace, "--cluster": cluster, "--policies": policies}
        names = ", ".join(name for name, value in missing.items() if value is None)
        msg = f"what is compared? give {names}"
        raise click.UsageError(msg)

    given = simulation_run.parse_parameters(parameters, read_value)
    schemes = [placing.parse_scheme(word, read_value) for word in places]
    check_place(given=any(schemes))
    wishes = sweeps.with_places(sweeps.parse_policies(policies, given), schemes)
    parsed_loads = sweeps.parse_loads(loads)
    ground = placing.parse_ground(rules, profiles, widths, contention, read_value)
    ground = dataclasses.replace(ground, foresight=parse_foresight(gpu_speed, estimate_error, due))
    sweeps.check_counts(wishes, parsed_loads, seeds)
    jobs = tagged(read_trace(trace, format_name), tags)
    plans = cost_models.plans(
        wishes,
        jobs,
        costs or (None,),
        lenient=sweeps.names_all(policies),
        loads=parsed_loads,
        seeds=seeds,
        cluster=cluster,
        ground=ground,
    )

    def simulate(sweep: Sweep, failed: Callable[[Failure], None]) -> list[CellResult]:
        if directory is None:
            return _run(sweep, jobs, processes or 1, failed)
        return gather(directory, (sweep, jobs), on_slurm, within_s=within_s, say=say)[2]

    _show(jobs, cost_models.run(plans, simulate), outputs)


def _check_several(
    costs: tuple[str, ...], *, where: str, loads: str, plot_path: Path | None
) -> None:
    """Refuse several cost models where there is room for one.

    Raises:
        UsageError: They are wanted there.
    """
    if len(costs) > 1 and where == "slurm":
        msg = "--costs: one cost model for each array; call it for each, with a --dir of its own"
        raise click.UsageError(msg)
    if len(costs) > 1 and "," in loads and plot_path:
        msg = "--plot: several --costs and several --loads are too much for one picture"
        raise click.UsageError(msg)


def _run(
    sweep: Sweep, jobs: Trace, processes: int, failed: Callable[[Failure], None]
) -> list[CellResult]:
    with progress(what_is_run(sweep, jobs), len(sweep.cells)) as report:

        def begin(cell: SweepCell) -> None:
            report.tell(safe(str(cell) if len(sweep.cells) > len(sweep.wishes) else cell.label, 60))

        return run_cells(sweep, jobs, report, processes=processes, begin=begin, failed=failed)


def _show(jobs: Trace, ran: Ran, outputs: _Outputs) -> None:
    """Write and print everything; status 1 if simulations failed or jobs did not finish."""
    comparisons = ran.comparisons
    if not outputs.quiet:
        _print(jobs, ran)
    if outputs.json_path:
        export.write_json(outputs.json_path, cost_models.as_json(jobs, ran))
    if outputs.csv_path:
        compared.write_csv(outputs.csv_path, *comparisons)
    if outputs.plot_path:
        draw(comparisons, outputs.plot_path)
    gpus = parse_shape(comparisons[0].sweep.cluster).gpus
    lines = [
        f"costs {costs}, {failure.why}"
        for costs, failures in ran.failures.items()
        for failure in failures
    ]
    lines += [line for c in comparisons for line in comparison_text.failures(c, gpus)]
    for line in lines[:_MOST_TOLD]:
        say_aloud(line)
    if len(lines) > _MOST_TOLD:
        say_aloud(f"and so in {len(lines) - _MOST_TOLD} more simulations")
    if lines:
        raise SystemExit(EXIT_FAILED)


def _print(jobs: Trace, ran: Ran) -> None:
    comparisons = ran.comparisons
    ranked = any(map(comparison_text.are_many, comparisons))
    is_wide = ranked or len(comparisons) > 1
    out = console(comparison_text.WIDE if is_wide else comparison_text.NARROW)
    write: Callable[[str], None] = lambda line: out.print(line, markup=False, highlight=False)  # noqa: E731
    for line in results.read_lines(jobs):
        write(line)
    marks = [comparison_text.marks(c, width=out.width, ranked=ranked) for c in comparisons]
    for i, comparison in enumerate(comparisons):
        write(f"on {comparison.sweep.cluster}, costs {cost_models.costs_of(comparison)}")
        for line in comparison_text.notes(comparison):
            write(line)
        out.print()
        for table in comparison_text.tables(comparison, width=out.width, ranked=ranked):
            out.print(table)
        if marks[i] not in marks[i + 1 :]:
            out.print(marks[i], style="dim", markup=False, highlight=False)
    for i, line in enumerate(cost_models.left_out(ran)):
        write(f"\n{line}" if i == 0 else line)
