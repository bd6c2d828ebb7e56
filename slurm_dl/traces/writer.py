"""A trace into a file of the project's own format, from which it is read back exactly."""

from __future__ import annotations

import csv
from pathlib import Path

from slurm_dl.model.errors import ConfigError
from slurm_dl.model.trace import Ending, Trace
from slurm_dl.traces.formats.slurm_dl_csv import ACCOUNT, COLUMNS


def write_trace(trace: Trace, path: Path) -> None:
    """Write *trace* to *path*, in place of what is there.

    Numbers are written so that the same float is read back. Lines that were left out are not
    part of it.

    Raises:
        ConfigError: The file cannot be written.
    """
    accounts = trace.account_names
    try:
        with path.open("w", encoding="utf-8", newline="") as stream:
            out = csv.writer(stream, lineterminator="\n")
            out.writerow(COLUMNS if accounts is None else (*COLUMNS, ACCOUNT))
            out.writerows(
                (*row, trace.users[user], model, Ending(ending).name, *account)
                for *row, user, model, ending, account in zip(
                    trace.job_id,
                    trace.submit_s.tolist(),
                    trace.duration_s.tolist(),
                    trace.gpus.tolist(),
                    trace.user.tolist(),
                    ["" if m < 0 else trace.models[m] for m in trace.model.tolist()],
                    trace.ending.tolist(),
                    [()] * len(trace) if accounts is None else [(name,) for name in accounts],
                    strict=True,
                )
            )
    except OSError as err:
        msg = f"{path}: cannot be written: {err.strerror}"
        raise ConfigError(msg) from err
