"""How one start of the command ended: is the job done, or is it to be run again."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from slurm_dl.job.checkpoint import EXIT_REQUEUE, recorded
from slurm_dl.job.child import signal_name
from slurm_dl.job.options import DlrunOptions
from slurm_dl.job.run_files import STOPPED_FILE, RunId, is_marked


class End(NamedTuple):
    """How one start of the command ended."""

    code: int  # Exit status as a shell has it
    stopped: bool  # It stopped in order to be run again
    solicited: bool = False  # It had been asked to
    may_requeue: bool = False  # A checkpoint was saved, so another run gets further than this one


def judge(
    code: int,
    options: DlrunOptions,
    run: RunId,
    *,
    asked: bool,
    heard: bool,
    held: bool = False,
    log: Callable[[str], None],
) -> End:
    """What exit status *code* means, with a line in the log where that may surprise.

    Args:
        asked: The command had been asked for a checkpoint.
        heard: One of its processes was sent the signal, or looks for requests.
        held: Its training has ended after the signal, and the shells above it were killed.
    """
    if code in options.never_requeue:
        log(f"status {code} is final: not run again (--never-requeue)")
        return End(code, stopped=False)
    checkpoint = _checkpoint_of(run, options, log)
    says_so = code == EXIT_REQUEUE or is_marked(options.run_dir / STOPPED_FILE, run)
    says_so = says_so or held or (asked and heard and code in options.stops_with)
    signals = (options.signum, options.forward or options.signum)
    if asked and (says_so or code - 128 in signals):
        log(f"stopped for requeue with status {code}, {checkpoint or 'no checkpoint recorded'}")
        return End(
            code, stopped=True, solicited=True, may_requeue=says_so or checkpoint is not None
        )
    if says_so and checkpoint is not None:
        log(f"stopped by itself to be run again, {checkpoint}")
        return End(code, stopped=True, may_requeue=True)
    if says_so:
        log("exit status 75 without request or checkpoint: not run again, or it might loop")
        return End(code or EXIT_REQUEUE, stopped=False)
    if asked and code == 0:
        log(
            f"the command was asked to save by {signal_name(options.signum)} and ended with status "
            "0: Slurm counts the job as COMPLETED and does not run it again. If the training was "
            f"not complete, let it end with status {EXIT_REQUEUE} (job.exit_for_requeue()) after "
            "it has saved, or, if it always ends with 0, use --stops-with 0: then the job is "
            "requeued"
        )
    elif asked:
        log(
            f"the command was asked to save by {signal_name(options.signum)}, did not say that it "
            f"has, and ended with status {code}. If slurm_dl had asked, it requeues the job. These "
            "lines in the training loop save the work:"
        )
        for line in _SAVES:
            log(line)
    return End(code, stopped=False)


_SAVES = (
    "    from slurm_dl import job",
    "    if job.should_checkpoint():",
    "        save(); job.exit_for_requeue()",
)


def _checkpoint_of(run: RunId, options: DlrunOptions, log: Callable[[str], None]) -> str | None:
    try:
        checkpoints = recorded(options.run_dir)
    except ValueError as err:
        log(str(err))
        return None
    for entry in checkpoints:
        if run == (entry.get("restart"), entry.get("attempt")):
            return f"checkpoint {entry['path']} at step {entry.get('step')}"
    return None
