"""``dlsim``: what another policy would do, on traces and on a site's own history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import click

from slurm_dl.cli import commandline
from slurm_dl.cli.lazy_group import LazyGroup

_COMMANDS = {
    "compare": (
        "slurm_dl.cli.dlsim.experiment_commands:compare_command",
        "Run TRACE under several policies and lay the figures side by side.",
    ),
    "generate": (
        "slurm_dl.cli.dlsim.generate:generate_command",
        "Write a trace of made jobs, with statistics of a real one, and say how well they fit.",
    ),
    "history": (
        "slurm_dl.cli.dlsim.history:history_command",
        "Write the site's own history to OUT, for 'dlsim run' and 'dlsim compare'.",
    ),
    "policies": (
        "slurm_dl.cli.dlsim.listing:policies_command",
        "List the policies with their parameters, and the presets with what they set.",
    ),
    "replay": (
        "slurm_dl.cli.dlsim.replay:replay_command",
        "Decide once more on every snapshot of a recording.",
    ),
    "report": (
        "slurm_dl.cli.dlsim.experiment_commands:report_command",
        "Draw what becomes of TRACE under one or more policies, as one page for a browser.",
    ),
    "run": (
        "slurm_dl.cli.dlsim.experiment_commands:run_command",
        "Run TRACE under a policy and say what became of the jobs.",
    ),
    "study": (
        "slurm_dl.cli.dlsim.experiment_commands:study_command",
        "Run the studies that the documents have figures of.",
    ),
    "sweep-cell": ("slurm_dl.cli.dlsim.experiment_commands:sweep_cell_command", ""),
    "traces": (
        "slurm_dl.cli.dlsim.listing:traces_command",
        "Say what is in TRACE, and what was left out of it and why.",
    ),
    "tune": (
        "slurm_dl.cli.dlsim.experiment_commands:tune_command",
        "Search thresholds of discrete_las on the first half of a history; judge on the second.",
    ),
    "whatif": (
        "slurm_dl.cli.dlsim.experiment_commands:whatif_command",
        "Rank policies on a site's own history, and say which differences its days can show.",
    ),
}
"""Where each command is, and its line in the help."""

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(cls=LazyGroup, lazy=_COMMANDS, context_settings=CONTEXT)
@click.version_option(package_name="slurm-dl")
def dlsim() -> None:
    """Simulate a cluster of GPUs under any policy, with the engine that dlschedd runs.

    \b
    Examples:
      dlsim run traces/tiresias/60_job.csv --cluster 4x4 --policy discrete_las
      dlsim compare traces/tiresias-derived/itp10.csv --cluster 2x8 --policies fifo,srtf,las
    """  # noqa: D301 - \b is click's mark


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Entry point."""
    commandline.run(dlsim, "dlsim", args)
