"""The commands of ``dlsim`` that simulate: their help and their options."""

from __future__ import annotations

from pathlib import Path

import click

from slurm_dl.cli.dlsim import history_options as history
from slurm_dl.cli.dlsim import simulation_options as option
from slurm_dl.cli.dlsim.simulation_options import lazy_command

_FILE = click.Path(path_type=Path, dir_okay=False)


def _resamples_options(default: int) -> tuple[option.Option, ...]:
    return (
        click.option("--seeds", type=click.IntRange(min=1), hidden=True, is_eager=True),
        click.option(
            "--resamples",
            type=click.IntRange(min=0),
            default=default,
            show_default=True,
            callback=option.resamples_of,
            help="Resamples of the trace, for the ranges of its figures: blocks of its time with "
            "their jobs, drawn with replacement; resample k by numpy's generator with the seed k.",
        ),
    )


@lazy_command(
    "run",
    "slurm_dl.cli.dlsim.run:run",
    *option.trace_options(),
    option.cluster_option(required=False),
    option.costs_option(),
    option.SEED,
    click.option(
        "--policy",
        metavar="NAME|FILE.py:CLASS",
        required=True,
        help="'dlsim policies' lists them; slurm: with --costs slurm, Slurm alone. FILE.py:CLASS: "
        "a class in a file of yours.",
    ),
    click.option(
        "--preset",
        metavar="NAME",
        help="Whose reading of the policy, see 'dlsim policies'; if not given, none: the policy's "
        "own parameters, as under dlschedd.",
    ),
    click.option(
        "-p",
        "parameters",
        metavar="KEY=VALUE",
        multiple=True,
        help="Set a parameter of the policy.",
    ),
    *option.place_options(several=False),
    option.min_quantum_option(
        "a run is left alone for so long before it may be preempted; 900 if not given."
    ),
    *option.FORESIGHT,
    option.TAGS,
    click.option(
        "--node-failures",
        metavar="DAYS:HOURS",
        help="With --costs slurm: nodes break once in so many days, and are back after so many "
        "hours, both on average.",
    ),
    option.dir_option("Keep the figures and the jobs here, for 'dlsim compare' with this --dir."),
    option.JSON_FILE,
    click.option("--jobs-csv", "csv_path", type=_FILE, help="Write every job here."),
    click.option(
        "--plots",
        "plots_dir",
        type=click.Path(path_type=Path, file_okay=False),
        help="Write pictures into this directory: JCT distribution, utilisation and queue over "
        "time.",
    ),
    click.option("--by", type=click.Choice(["size", "user"]), multiple=True, help="Also by group."),
    option.QUIET,
)
def run_command() -> None:
    """Run TRACE under a policy and say what became of the jobs.

    Ends with status 1 if not every job finished.

    Times in the results are those of the trace. A discrete-event simulation: no time passes but in
    it, and the same trace, policy and seed give the same result.

    \b
    Examples:
      dlsim run traces/tiresias/60_job.csv --cluster 4x4 --policy discrete_las
      dlsim run traces/muri/trace3.csv --cluster 8x8 --policy srtf --preset muri
      dlsim run traces/tiresias/60_job.csv --cluster 4x4@2 --policy discrete_las \\
        --place consolidate:skew_threshold=0.5 --contention 1250
      dlsim run traces/tiresias-derived/itp10.csv --cluster 2x8 --policy discrete_las \\
        --preset tiresias-artifact -p promote_knob=8 --json out.json --jobs-csv jobs.csv
    """  # noqa: D301 - \b is click's mark


@lazy_command(
    "compare",
    "slurm_dl.cli.dlsim.compare:compare",
    *option.trace_options(required=False),
    option.cluster_option(required=False),
    option.costs_option(several=True),
    option.policies_option(
        "What is compared; the first is what the others are held against. all: every one that is "
        "not named. slurm: with --costs slurm, Slurm alone; it is not among all. 'dlsim policies' "
        "lists names and presets; FILE.py:CLASS is a name, too."
    ),
    option.PARAMETERS,
    *option.place_options(several=True),
    *option.FORESIGHT,
    option.TAGS,
    click.option(
        "--loads",
        metavar="LOAD,...",
        default="1",
        show_default=True,
        help="How fast the jobs arrive: 2 is twice as fast as in the trace.",
    ),
    *_resamples_options(0),
    option.SEED,
    click.option(
        "--block-days",
        type=click.IntRange(1, 100),
        metavar="DAYS",
        help="So many days are resampled together: 7 where weeks are alike, or where a queue lasts "
        "for days. If not given, a tenth of the trace's time, at most 3.",
    ),
    option.PROCESSES,
    option.JSON_FILE,
    click.option("--csv", "csv_path", type=_FILE, help="Write each simulation here."),
    option.plot_option(
        "Draw here (.png, .svg, .pdf): bars, the best policy on top; with several loads the mean "
        "JCT over the load."
    ),
    option.QUIET,
    *option.ON_SLURM,
)
def compare_command() -> None:
    """Run TRACE under several policies and lay the figures side by side.

    With --resamples the mean JCT has its 95 % bootstrap range, and so has the ratio to the first
    policy, as all of them ran the same workloads. Ends with status 1 if a job did not finish or a
    simulation failed; the results of the others are still reported.

    With --on slurm the simulations go out as one array of CPU jobs, and the command waits for
    them. Stopped or late, it is called again with --dir and --resume and no TRACE.

    \b
    Examples:
      dlsim compare traces/tiresias-derived/itp10.csv --cluster 2x8 --policies fifo,srtf,las
      dlsim compare traces/tiresias/60_job.csv --cluster 4x4 --policies fifo,all \\
        --costs none --costs slurm --json all.json --plot all.png
      dlsim compare traces/muri/trace3.csv --cluster 8x8 -j 2 --resamples 4 --loads 0.5,1,2 \\
        --policies discrete_las:tiresias-artifact,discrete_las:voda,srsf --plot loads.png
      dlsim compare traces/tiresias/60_job.csv --cluster 4x4 --policies discrete_las \\
        --resamples 4 --place consolidate --place consolidate:skew_threshold=0 --place best_fit
      dlsim compare traces/philly/philly.csv.gz --cluster 64x8 --policies fifo,las \\
        --resamples 19 --on slurm --dir /shared/sweep --partition cpu
      dlsim compare --on slurm --dir /shared/sweep --resume --json sweep.json
    """  # noqa: D301 - \b is click's mark


@lazy_command(
    "whatif",
    "slurm_dl.cli.dlsim.whatif:whatif",
    *history.HISTORY_OR_DEADLINE,
    *option.CLUSTER,
    option.policies_option(
        "What is compared; the first is what the others are held against.",
        default="fifo_skip,discrete_las",
    ),
    click.option(
        "--thresholds",
        metavar="GPU_S,...",
        multiple=True,
        help="Also discrete_las with these thresholds; may be repeated.",
    ),
    option.PARAMETERS,
    option.min_quantum_option(
        "each policy with each of these times for which a run is left alone before it may be "
        "preempted; 900 if not given.",
        several=True,
    ),
    *option.place_options(several=True),
    *history.DEADLINE,
    option.PROCESSES,
    option.JSON,
)
def whatif_command() -> None:
    """Rank policies on a site's own history, and say which differences its days can show.

    The history is simulated once under each policy. Each figure has a range by a bootstrap over
    days, and so has its difference to the first policy's on the same days; where that range
    holds 0 the history shows no difference.

    With --by TIME or --curve FILE it is about one more job: when it would be done if it were
    submitted at many instants of the history, whether its deadline is promised and met, and what
    it costs the other jobs.

    Ends with status 1 if a policy left jobs undone. No figure depends on -j.

    \b
    Examples:
      dlsim whatif history.txt --cluster 8x8
      dlsim whatif --from-sacct dump.txt.gz --cluster 8x8,4x4 --policies fifo_skip,srtf,las
      dlsim whatif history.txt --cluster 8x8 --policies discrete_las \\
        --thresholds 3600,36000 --thresholds 86400 --by p95-jct --block-days 7 --json out.json
      dlsim whatif history.txt --cluster 8x8 --policies edf,discrete_las \\
        --gpus 4 --time 2h --by 5h --plot finish.png
    """  # noqa: D301 - \b is click's mark


@lazy_command(
    "tune",
    "slurm_dl.cli.dlsim.tune:tune",
    *history.HISTORY,
    *option.CLUSTER,
    click.option(
        "--config",
        "config_path",
        metavar="FILE",
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        help="The configuration in use, whose policy is to be tuned; the policy's defaults if "
        "neither this nor --thresholds is given.",
    ),
    click.option(
        "--thresholds", metavar="GPU_S,...", help="The thresholds in use, in place of --config."
    ),
    click.option(
        "--promote",
        metavar="KNOB,...",
        help="Values of promote_knob to try with the best thresholds; if not given, half and twice "
        "that of --config, unless it is 0 there.",
    ),
    option.min_quantum_option(
        "values of preemption.min_quantum_s to try with the best of all else; that of --config is "
        "in use, 900 without.",
        several=True,
    ),
    click.option(
        "--candidates",
        "most",
        type=click.IntRange(3, 2000),
        default=60,
        show_default=True,
        help="Sets of thresholds to try.",
    ),
    click.option(
        "--out", type=_FILE, help="Write the lines for slurm_dl.yaml here, if they are recommended."
    ),
    *option.place_options(several=False),
    option.PROCESSES,
    option.JSON,
)
def tune_command() -> None:
    """Search thresholds of discrete_las on the first half of a history; judge on the second.

    What was chosen on the first days is held against what is in use on the later ones, which the
    search never saw. If the difference there could be chance, the advice is to leave all as it
    is, and --out writes nothing.

    \b
    Examples:
      dlsim tune history.txt --cluster 8x8
      dlsim tune --from-sacct dump.txt --cluster 8x8 --config /etc/slurm_dl/slurm_dl.yaml
      dlsim tune history.txt --cluster 8x8 --by p95-jct --promote 0,2,8 --out policy.yaml
    """  # noqa: D301 - \b is click's mark


@click.group(name="study")
def study_command() -> None:
    """Run the studies that the documents have figures of."""


@study_command.add_command
@lazy_command(
    "default",
    "slurm_dl.cli.dlsim.study:study",
    click.option(
        "--dir",
        "directory",
        metavar="DIR",
        required=True,
        type=click.Path(path_type=Path, file_okay=False),
        help="Keep the figures here. A second call runs what is not there.",
    ),
    option.PROCESSES,
    click.option(
        "--trace",
        "traces",
        metavar="NAME",
        multiple=True,
        help="One of the shipped traces, such as itp10; given several times, these. Not given: "
        "all.",
    ),
    option.policies_option(
        "Not given: all that can run on a cluster, and some that know run times, for reference. "
        "all: those that know run times, too. slurm: Slurm alone, with --costs slurm. discrete_las "
        "is always run."
    ),
    click.option(
        "--costs",
        metavar="none|SECONDS|slurm",
        multiple=True,
        default=("none", "180", "slurm"),
        show_default=True,
        help="What starting and stopping cost: nothing, so many seconds of each start but the "
        "first, or what a real Slurm under dlschedd costs. May be given several times.",
    ),
    *_resamples_options(4),
    click.option(
        "--tags",
        metavar="none|SD",
        multiple=True,
        default=("none",),
        show_default=True,
        help="Names of jobs: those of the trace, or made ones, within which the logarithm of the "
        "run time has this standard deviation. Applies to policies that learn from finished jobs. "
        "May be given several times.",
    ),
    click.option(
        "--traces-dir",
        metavar="DIR",
        type=click.Path(path_type=Path, exists=True, file_okay=False),
        default="traces",
        show_default=True,
        help="The folder of the shipped traces.",
    ),
    click.option("--show", is_flag=True, help="Run nothing; print what DIR holds."),
    click.option("--json", "json_path", type=_FILE, help="Write all figures here."),
    option.QUIET,
)
def default_command() -> None:
    """Run every policy on the shipped traces, to see which one should be the default.

    The first table of a cost model has the mean JCT over that of srsf at no cost on the same
    workloads, srsf being told the run times; the second holds the longest waits against
    discrete_las under the same costs. Simulations are run in such an order that the main traces
    and policies come first. Ctrl-C keeps what is done. Ends with status 1 if a simulation failed.

    \b
    Examples:
      dlsim study default --dir study -j 2
      dlsim study default --dir study --show --json study.json
      dlsim study default --dir study --trace itp10 --policies las,fifo_skip --costs none \\
        --resamples 0
    """  # noqa: D301 - \b is click's mark


@lazy_command(
    "report",
    "slurm_dl.cli.dlsim.report:report",
    *option.trace_options(),
    *option.CLUSTER,
    option.policies_option(
        "What is shown, 1 to 9 of them. 'dlsim policies' lists names and presets."
    ),
    click.option(
        "--recorded",
        is_flag=True,
        help="Show what really happened beside them, or alone; TRACE must be of Slurm's "
        "accounting.",
    ),
    option.PARAMETERS,
    *option.place_options(several=False),
    *option.FORESIGHT,
    click.option(
        "--out", "out_path", type=_FILE, required=True, help="Write the page here (.html)."
    ),
    option.QUIET,
)
def report_command() -> None:
    """Draw what becomes of TRACE under one or more policies, as one page for a browser.

    The page shows the jobs on the GPUs over time, to zoom and to search, how long jobs took and
    waited, how much of the cluster was in use, and how users fared. It is one file, holds all of
    its data and loads nothing. Names of jobs and users are in it: see who may read it.

    Ends with status 1 if not every job finished; the page is written all the same.

    \b
    Examples:
      dlsim report traces/tiresias/60_job.csv --cluster 4x4 --policies discrete_las,fifo \\
        --out report.html
      dlsim report traces/tiresias-derived/itp10.csv --cluster 2x8 --policies srtf,las \\
        --out report.html
      dlsim report history.txt --cluster 8x8 --recorded --policies discrete_las --out week.html
    """  # noqa: D301 - \b is click's mark


@lazy_command(
    "sweep-cell",
    "slurm_dl.cli.dlsim.compare:sweep_cell",
    click.argument("directory", type=click.Path(path_type=Path, exists=True, file_okay=False)),
    click.argument("task", type=click.IntRange(min=0)),
    hidden=True,
)
def sweep_cell_command() -> None:
    """Run the share of one array task of the sweep in DIRECTORY; 'dlsim compare' submits it."""
