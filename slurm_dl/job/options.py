"""What dlrun is told: its command line, its environment, and nothing from anywhere else."""

from __future__ import annotations

import argparse
import math
import os
import re
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from slurm_dl import __version__
from slurm_dl.job.comment_report import DEFAULT_EVERY_S
from slurm_dl.job.controller import job_label
from slurm_dl.job.run_files import RUN_DIR_VARIABLE, SIGNAL_VARIABLE

SIGNALS = ("USR1", "USR2", "TERM", "INT", "HUP", "CONT")  # Signals that may ask for a checkpoint

LAUNCHERS = ("plain", "torchrun", "srun")

RATE_VARIABLE = "SLURM_DL_RATE_EVERY_S"  # Set for jobs that share a GPU
SAVED_VARIABLE = "SLURM_DL_SAVED_EVERY_S"
START_VARIABLE = "SLURM_DL_START_S"

SCRIPT_LEAD_VARIABLE = "SLURM_DL_SCRIPT_LEAD_S"
"""Set for batch scripts that were written for sbatch."""

HOLD_VARIABLE = "SLURM_DL_HOLD"
SAMPLE_VARIABLE = "SLURM_DL_SAMPLE"
STOPS_WITH_VARIABLE = "SLURM_DL_STOPS_WITH"
NEVER_REQUEUE_VARIABLE = "SLURM_DL_NEVER_REQUEUE"
DEFAULT_NEVER_REQUEUE = "93"  # Status of NVIDIA's resiliency extension for "do not requeue"
_MOST_STATUS = 255
DEFAULT_GRACE_S = 120.0
ACK_MARGIN_S = 60.0  # Beyond the grace a daemon that is alive has requeued the job


class DlrunOptions(NamedTuple):
    """How to run the command.

    Attributes:
        rate_every_s: Tell the scheduler this often how fast the job is; None: never.
        saved_every_s: Tell the scheduler of a new checkpoint this often at most.
        start_s: A program that has been running for so long, and has loaded no library since, is
            past its start: if it has no handler now, it is taken to get none.
        stops_with: Statuses that, like 75, mean "saved, run me again" from a command that was
            asked to save.
        script_lead_s: COMMAND is a batch script that was written for sbatch, and Slurm sends the
            signal so long before the time limit; None: it is no such script.
    """

    command: tuple[str, ...]  # The user's command and its arguments; empty only if *env* is set
    launcher: str  # One of `LAUNCHERS`
    signum: int  # The checkpoint signal
    forward: int | None  # What to send to the command: a signal; 0 for none; None to find out
    grace_s: float  # Time the job has between the signal and the requeue
    ack_wait_s: float  # After the acknowledgement, how long to wait until somebody requeues
    run_dir: Path  # The job's directory, absolute
    rate_every_s: float | None = None
    saved_every_s: float = DEFAULT_EVERY_S
    start_s: float | None = None
    stops_with: frozenset[int] = frozenset()
    never_requeue: frozenset[int] = frozenset()  # Statuses that are final whatever else there is
    script_lead_s: float | None = None
    hold: bool = True  # What follows the training in a shell's script must not run after a save
    sample: bool = True  # Sample the job's GPUs, where that is possible
    env: bool = False  # Print the variables that a run begins with, and run nothing


def parse_options(argv: Sequence[str], environ: Mapping[str, str]) -> DlrunOptions:
    """Options from *argv* (without the program's name) and *environ*; exits with 2 if wrong."""
    parser = dlrun_parser()
    found = parser.parse_args(argv)
    command = found.command[1:] if found.command[:1] == ["--"] else found.command
    if not command and not found.env:
        parser.error("no command given; write it after --, as in: dlrun -- python train.py")
    try:
        grace_s = found.grace or _seconds(environ.get("SLURM_DL_GRACE_S") or str(DEFAULT_GRACE_S))
        ack_wait_s = found.ack_wait or _seconds(
            environ.get("SLURM_DL_ACK_WAIT_S") or str(grace_s + ACK_MARGIN_S)
        )
        signum = _signal(environ.get(SIGNAL_VARIABLE) or "USR1")
        rate_every = environ.get(RATE_VARIABLE)
        rate_every_s = _seconds(rate_every) if rate_every else None
        saved_every_s = _seconds(environ.get(SAVED_VARIABLE) or str(DEFAULT_EVERY_S))
        start = environ.get(START_VARIABLE)
        start_s = _seconds(start) if start else None
        lead = environ.get(SCRIPT_LEAD_VARIABLE)
        script_lead_s = _seconds(lead) if lead else None
        stops_with = found.stops_with
        if stops_with is None:
            stops_with = _statuses(environ.get(STOPS_WITH_VARIABLE, ""))
        never_requeue = found.never_requeue
        if never_requeue is None:
            never_requeue = _statuses(environ.get(NEVER_REQUEUE_VARIABLE, DEFAULT_NEVER_REQUEUE))
    except argparse.ArgumentTypeError as err:
        parser.error(
            "environment variable SLURM_DL_GRACE_S, _ACK_WAIT_S, _RATE_EVERY_S, "
            "_SAVED_EVERY_S, _SCRIPT_LEAD_S, _START_S, _SIGNAL, "
            f"_STOPS_WITH or _NEVER_REQUEUE: {err}"
        )
    return DlrunOptions(
        command=tuple(command),
        launcher=found.launcher,
        signum=signum,
        forward=found.forward,
        grace_s=grace_s,
        ack_wait_s=ack_wait_s,
        run_dir=_run_dir(environ),
        rate_every_s=rate_every_s,
        saved_every_s=saved_every_s,
        start_s=start_s,
        stops_with=stops_with,
        never_requeue=never_requeue,
        script_lead_s=script_lead_s,
        hold=environ.get(HOLD_VARIABLE) != "no",
        sample=environ.get(SAMPLE_VARIABLE) != "no",
        env=found.env,
    )


def dlrun_parser() -> argparse.ArgumentParser:
    """What reads the command line of dlrun, with its help."""
    parser = argparse.ArgumentParser(
        prog="dlrun",
        usage="dlrun [options] -- COMMAND [ARG ...]",
        description="Run a training command so that it can be checkpointed, requeued and resumed.",
        epilog="Exit status: the command's own, 128+n if signal n ended it. "
        "The last line of the batch script should be: exec dlrun -- COMMAND",
    )
    parser.add_argument(
        "--launcher",
        choices=LAUNCHERS,
        default="plain",
        help="what COMMAND starts with; srun passes signals to every process of its tasks, "
        "torchrun dies of them (default: plain)",
    )
    parser.add_argument(
        "--grace",
        type=_seconds,
        metavar="S",
        help="seconds between signal and requeue "
        f"(default: SLURM_DL_GRACE_S, or {DEFAULT_GRACE_S:g})",
    )
    parser.add_argument(
        "--ack-wait",
        type=_seconds,
        metavar="S",
        help="seconds to wait for the requeue after acknowledging, then dlrun requeues the job "
        f"itself (default: SLURM_DL_ACK_WAIT_S, or grace + {ACK_MARGIN_S:g})",
    )
    parser.add_argument(
        "--forward",
        type=_forward,
        metavar="SIG|none",
        help="signal sent to COMMAND when a checkpoint is asked for, whether or not it has a "
        "handler (default: SLURM_DL_SIGNAL, to each topmost process that has a handler; none with "
        "torchrun)",
    )
    parser.add_argument(
        "--stops-with",
        type=_statuses,
        metavar="STATUS[,STATUS]",
        help="a COMMAND that was asked to save and ends with one of these has saved and is to be "
        "run again, as with 75; 0 suits trainers that save and exit with 0. Beware: a training "
        "that completes with such a status after it was asked is run once more (default: "
        f"{STOPS_WITH_VARIABLE}, or none)",
    )
    parser.add_argument(
        "--never-requeue",
        type=_statuses,
        metavar="STATUS[,STATUS]",
        help="statuses that are final even if COMMAND was asked to save; '' for none (default: "
        f"{NEVER_REQUEUE_VARIABLE}, or {DEFAULT_NEVER_REQUEUE})",
    )
    parser.add_argument(
        "--env",
        action="store_true",
        help="run nothing; print shell lines that export how often the job was preempted "
        'and how often it failed, for: eval "$(dlrun --env)"',
    )
    # As the other commands print it.
    parser.add_argument(
        "--version",
        action="version",
        version=f"dlrun, version {__version__}",
        help="show the version and exit",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        msg = f"{text!r} is not a number of seconds above 0"
        raise argparse.ArgumentTypeError(msg)
    return value


def _statuses(text: str) -> frozenset[int]:
    words = [word.strip() for word in text.split(",")] if text.strip() else []
    if not all(re.fullmatch("[0-9]{1,3}", word) and int(word) <= _MOST_STATUS for word in words):
        msg = f"{text!r} is not a list of exit statuses from 0 to {_MOST_STATUS}, as in 0,3"
        raise argparse.ArgumentTypeError(msg)
    return frozenset(map(int, words))


def _signal(text: str) -> int:
    name = re.sub(r"\ASIG", "", text.upper())
    if name not in SIGNALS:
        msg = f"{text!r} is not one of {', '.join(SIGNALS)}"
        raise argparse.ArgumentTypeError(msg)
    return signal.Signals["SIG" + name].value


def _forward(text: str) -> int:
    return 0 if text.lower() == "none" else _signal(text)


def _run_dir(environ: Mapping[str, str]) -> Path:
    given = environ.get(RUN_DIR_VARIABLE)
    if given:
        return Path(os.path.abspath(given))  # noqa: PTH100 -- links stay, they may be meant
    # Named by the job's id and never by the time: every restart must find the same one.
    label = job_label(environ) or "local"
    base = environ.get("SLURM_SUBMIT_DIR") or os.getcwd()  # noqa: PTH109 -- one kind of string
    return Path(base, "slurm_dl-" + re.sub(r"[^0-9A-Za-z_]", "_", label))
