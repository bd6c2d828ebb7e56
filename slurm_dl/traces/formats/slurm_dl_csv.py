"""The project's own format: what `write_trace` writes, every column of a `Trace`.

The column of accounts is there only where the trace tells any.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from slurm_dl.model.trace import Ending
from slurm_dl.text import shown
from slurm_dl.traces.builder import BadValue, JobLine
from slurm_dl.traces.field_values import job_id, name, number
from slurm_dl.traces.skipped_lines import Reason
from slurm_dl.traces.table_format import TableFormat

COLUMNS: Final = ("job_id", "submit_s", "duration_s", "gpus", "user", "model", "ending")
ACCOUNT: Final = "account"


def _job(_nth: int, fields: Sequence[str]) -> JobLine:
    given_id, submit_s, duration_s, gpus, user, model, ending, account = fields
    if ending not in Ending.__members__:
        words = ", ".join(Ending.__members__)
        raise BadValue(Reason.STATE, f"ending is {shown(ending)}, not one of {words}")
    return JobLine(
        job_id=job_id(given_id),
        submit_s=number(submit_s, "submit_s"),
        duration_s=number(duration_s, "duration_s"),
        gpus=number(gpus, "gpus"),
        user=name(user, "user"),
        account=name(account, ACCOUNT),
        model=name(model, "model"),
        ending=Ending[ending],
    )


SLURM_DL: Final = TableFormat(
    name="slurm_dl",
    about="this project's own: " + ",".join(COLUMNS),
    columns=tuple((column,) for column in COLUMNS),
    optional=((ACCOUNT,),),
    job=_job,
)
