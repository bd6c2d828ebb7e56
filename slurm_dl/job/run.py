"""dlrun: the last command of a batch script, around the user's training command.

The batch script ``exec``s it, so the signal that Slurm sends to the batch script reaches it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from slurm_dl.job.child import Signals
from slurm_dl.job.controller import JobController, find_controller, job_label, preemption_variables
from slurm_dl.job.options import DlrunOptions, parse_options
from slurm_dl.job.rank_order import RANKS_VARIABLE, as_allotted, find_layout, write_layout
from slurm_dl.job.run_files import RUN_DIR_VARIABLE, make_run_dir, restart_count
from slurm_dl.job.supervise import Supervisor, log

PYTHON_PATH = Path(__file__).with_name("pythonpath")
"""Holds one package, which stands for `slurm_dl`: no other name can be found there."""


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    options = parse_options(sys.argv[1:] if argv is None else argv, os.environ)
    if options.env:
        controller, _ = find_controller(os.environ, lambda: None)
        variables = preemption_variables(controller, restart_count(), log)
        print("\n".join(f"export {name}={value}" for name, value in variables.items()))  # noqa: T201
        return 0
    signals = Signals(options.signum)
    try:
        _make_run_dir(options)
    except OSError as err:
        log(f"cannot use run directory {options.run_dir}: {err.strerror}; set SLURM_DL_RUN_DIR")
        return 1
    except ValueError as err:
        log(f"not started: {err}")
        return 1
    controller, why = find_controller(os.environ, signals.restore)
    outside = job_label(os.environ) is None
    if controller is None:
        log(f"{why}: no acknowledgement and no requeue from here")
    environ = {**os.environ, **preemption_variables(controller, restart_count(), log)}
    environ.update(_python_path(environ))
    environ.update(as_allotted(environ))
    if controller is not None:
        added = _ranks(options, controller, environ)
        if added is None:
            return 1
        environ.update(added)
    supervisor = Supervisor(
        options,
        environ=environ,
        restart=restart_count(),
        signals=signals,
        controller=controller,
        outside=outside,
        ranks=lambda now: {} if controller is None else _ranks(options, controller, now),
    )
    return supervisor.run()


def _python_path(environ: Mapping[str, str]) -> dict[str, str]:
    """PYTHONPATH by which the job's own Python finds `slurm_dl.job`, last of all its entries."""
    place, given = os.path.abspath(PYTHON_PATH), environ.get("PYTHONPATH", "")  # noqa: PTH100
    if os.pathsep in place or place in given.split(os.pathsep):
        return {}
    # An empty entry would be the current directory.
    return {"PYTHONPATH": f"{given}{os.pathsep}{place}" if given else place}


def _ranks(
    options: DlrunOptions, controller: JobController, environ: Mapping[str, str]
) -> dict[str, str] | None:
    """Variables that say in what order the ranks are; None if the command cannot do without."""
    layout, why = find_layout(environ, options.launcher, controller)
    if layout is not None:
        try:
            return write_layout(layout, options.run_dir, environ, options.launcher)
        except OSError as err:
            why = f"cannot write the order of the ranks: {err.strerror}"
    if why:
        log(why)
        if options.launcher == "srun" and environ.get(RANKS_VARIABLE) == "gpu":
            log("not started: it might have the wrong number of ranks")
            return None
    return {}


def _make_run_dir(options: DlrunOptions) -> None:
    # Otherwise it lies in the directory of submission, which a project may share.
    make_run_dir(options.run_dir, check_base=bool(os.environ.get(RUN_DIR_VARIABLE)))
    # Left by a run that was killed while it wrote.
    for scratch in options.run_dir.glob(".slurm_dl.*.tmp"):
        scratch.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
