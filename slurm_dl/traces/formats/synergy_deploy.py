"""Synergy (OSDI'22), deploy traces: id,model,arrival,iterations,gpus without a header.

The files tell iterations, not times. `ITERATION_S` is the time of one iteration that Synergy's own
simulator takes for the model on one GPU with a fair share of CPUs. For more GPUs it has times of
another kind, so such jobs are left out; the published traces have none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from slurm_dl.text import shown
from slurm_dl.traces.builder import BadValue, Gathering, JobLine, Reason
from slurm_dl.traces.field_values import amount, job_id, name, number, whole_gpus
from slurm_dl.traces.file_lines import Head, numbered_lines, opened
from slurm_dl.traces.table_format import gather, rows

ITERATION_S: Final[Mapping[str, float]] = MappingProxyType(
    {
        "alexnet": 0.6,
        "deepspeech": 0.757,
        "gnmt": 0.12,
        "lstm": 0.011,
        "mobilenet": 0.71,
        "res18": 0.64,
        "res50": 0.78,
        "shufflenet": 0.615,
        "transformer": 0.67,
    }
)
"""Seconds of one iteration on one V100 and 3 CPUs.

Source: msr-fiddle/synergy@1bb2bed, ``iter_time_base`` in simulator/models*/MODEL_1.py; MIT.
"""

_FIELDS: Final = 5


def _job(_nth: int, fields: Sequence[str]) -> JobLine:
    given_id, model, arrival_s, iterations, gpu_text = fields
    gpus = whole_gpus(gpu_text, "gpus")
    model = name(model, "model")
    if gpus != 1 or model not in ITERATION_S:
        raise BadValue(
            Reason.NO_RATE, f"no time of an iteration known for {shown(model)} on {gpus:g} GPUs"
        )
    return JobLine(
        job_id=job_id(given_id),
        submit_s=amount(arrival_s, "arrival"),
        duration_s=number(iterations, "iterations") * ITERATION_S[model],
        gpus=gpus,
        model=model,
    )


@dataclass(frozen=True, slots=True)
class SynergyFormat:
    """Five fields a line, the second a model."""

    name: str = "synergy"
    about: str = "msr-fiddle/synergy deploy_trace: id,model,arrival,iterations,gpus, no header"

    def recognizes(self, head: Head) -> bool:
        """Whether the first line is such a job, of a model that is known or not."""
        fields = head.first_line.split(",")
        if len(fields) != _FIELDS or not fields[1].strip() or fields[1].strip().isdigit():
            return False
        try:
            for text in (fields[0], *fields[2:]):
                number(text, "field")
        except BadValue:
            return False
        return True

    def read(self, path: Path, jobs: Gathering) -> None:
        """Every job of *path* into *jobs*."""
        with opened(path) as stream:
            lines = numbered_lines(stream, jobs.file)
            gather(rows(lines, jobs, ",", {_FIELDS}), jobs, _job)


SYNERGY: Final = SynergyFormat()
