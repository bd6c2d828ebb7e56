"""A trace into a file of the project's own format, from which it is read back exactly."""

from __future__ import annotations

import csv
import math
from pathlib import Path

from slurm_dl.model.errors import ConfigError
from slurm_dl.model.trace import Ending, Trace
from slurm_dl.traces.formats.slurm_dl_csv import ACCOUNT, COLUMNS, DUE


def write_trace(trace: Trace, path: Path) -> None:
    """Write *trace* to *path*, in place of what is there.

    Numbers are written so that the same float is read back. Lines that were left out are not
    part of it.

    Raises:
        ConfigError: The file cannot be written.
    """
    accounts = trace.account_names
    times = None if trace.due_s is None else trace.due_s.tolist()
    due = times and ["" if math.isinf(at_s) else at_s for at_s in times]
    try:
        with path.open("w", encoding="utf-8", newline="") as stream:
            out = csv.writer(stream, lineterminator="\n")
            more = {ACCOUNT: accounts, DUE: due}
            columns = {name: column for name, column in more.items() if column is not None}
            out.writerow((*COLUMNS, *columns))
            out.writerows(
                (*row, trace.users[user], model, Ending(ending).name, *rest)
                for *row, user, model, ending, rest in zip(
                    trace.job_id,
                    trace.submit_s.tolist(),
                    trace.duration_s.tolist(),
                    trace.gpus.tolist(),
                    trace.user.tolist(),
                    ["" if m < 0 else trace.models[m] for m in trace.model.tolist()],
                    trace.ending.tolist(),
                    zip(*columns.values(), strict=True) if columns else [()] * len(trace),
                    strict=True,
                )
            )
    except OSError as err:
        msg = f"{path}: cannot be written: {err.strerror}"
        raise ConfigError(msg) from err
