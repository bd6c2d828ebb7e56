"""``dlsim``: what another policy would do, on traces and on a site's own history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import click

from slurm_dl.cli import commandline
from slurm_dl.cli.dlsim.compare import compare_command
from slurm_dl.cli.dlsim.compare_slurm import sweep_cell_command
from slurm_dl.cli.dlsim.generate import generate_command
from slurm_dl.cli.dlsim.history import history_command
from slurm_dl.cli.dlsim.listing import policies_command, traces_command
from slurm_dl.cli.dlsim.record import record_command
from slurm_dl.cli.dlsim.replay import replay_command
from slurm_dl.cli.dlsim.report import report_command
from slurm_dl.cli.dlsim.run_command import run_command
from slurm_dl.cli.dlsim.study import study_command
from slurm_dl.cli.dlsim.tune import tune_command
from slurm_dl.cli.dlsim.whatif import whatif_command

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(context_settings=CONTEXT)
@click.version_option(package_name="slurm-dl")
def dlsim() -> None:
    """Simulate a cluster of GPUs under any policy, with the engine that dlschedd runs.

    \b
    Examples:
      dlsim run traces/tiresias/60_job.csv --cluster 4x4 --policy discrete_las
      dlsim compare traces/tiresias-derived/itp10.csv --cluster 2x8 --policies fifo,srtf,las
    """  # noqa: D301 - \b is click's mark


dlsim.add_command(run_command)
dlsim.add_command(compare_command)
dlsim.add_command(sweep_cell_command)
dlsim.add_command(study_command)
dlsim.add_command(traces_command)
dlsim.add_command(generate_command)
dlsim.add_command(history_command)
dlsim.add_command(whatif_command)
dlsim.add_command(tune_command)
dlsim.add_command(policies_command)
dlsim.add_command(record_command)
dlsim.add_command(replay_command)
dlsim.add_command(report_command)


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Entry point."""
    commandline.run(dlsim, "dlsim", args)
