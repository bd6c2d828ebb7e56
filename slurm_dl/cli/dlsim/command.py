"""``dlsim``: what another policy would do, on traces and on a site's own history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import click

from slurm_dl.cli import commandline
from slurm_dl.cli.commandline import LazyGroup

_HELP = {
    "compare": "Run TRACE under several policies and lay the figures side by side.",
    "game": "Measure what a selfish user gains by each strategy, and what the others lose.",
    "generate": (
        "Write a trace of made jobs, with statistics of a real one, and say how well they fit."
    ),
    "history": "Write the site's own history to OUT, for 'dlsim run' and 'dlsim compare'.",
    "policies": "List the policies with their parameters, and the presets with what they set.",
    "replay": "Decide once more on every snapshot of a recording.",
    "report": "Draw what becomes of TRACE under one or more policies, as one page for a browser.",
    "run": "Run TRACE under a policy and say what became of the jobs.",
    "service": "Play requests at the rates of the file RATES against replicas that follow them.",
    "study": "Run the studies that the documents have figures of.",
    "sweep-cell": "",
    "traces": "Say what is in TRACE, and what was left out of it and why.",
    "tune": (
        "Search thresholds of discrete_las on the first half of a history; judge on the second."
    ),
    "whatif": "Rank policies on a site's own history, and say which differences its days can show.",
}
"""The line of each command in the help: the first one of its own."""

_MODULES = {
    **{name: name for name in ("game", "history", "replay", "service")},
    **dict.fromkeys(("generate", "traces"), "trace_commands"),
    "policies": "policy_lists",
}
"""Where a command is, if not in `experiment_commands`."""


def _place(name: str) -> str:
    module = _MODULES.get(name, "experiment_commands")
    package = "slurm_dl.cli" if name == "policies" else "slurm_dl.cli.dlsim"
    return f"{package}.{module}:{name.replace('-', '_')}_command"


_COMMANDS = {name: (_place(name), text) for name, text in _HELP.items()}

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
