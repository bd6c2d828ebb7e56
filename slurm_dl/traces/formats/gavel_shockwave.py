"""Gavel (OSDI'20) and Shockwave (NSDI'23): tab separated, three layouts told by their width.

====== ============================================================================ =============
fields columns                                                                      where
====== ============================================================================ =============
7      type, command, steps_arg, needs_data, steps, arrival, GPUs                   msr_seed*
10     type, command, dir, steps_arg, needs_data, steps, GPUs, weight, SLO, arrival physical_*
12     the same with mode after GPUs, and duration before arrival                   Shockwave
====== ============================================================================ =============

Times are seconds, arrival counts from the first job. With 7 and 10 fields a job's duration is
steps / steps per second, alone on as many V100s as it has GPUs, from Gavel's own measurements; a
job whose model was not measured on that many GPUs is left out, as nothing is known of its length.
With 12 fields the duration column is taken. Jobs are called by their place, 0 is the first.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Final

from slurm_dl.text import shown
from slurm_dl.traces.builder import BadValue, Gathering, JobLine, Reason
from slurm_dl.traces.field_values import amount, name, number, whole_gpus
from slurm_dl.traces.file_lines import Head, numbered_lines, opened
from slurm_dl.traces.table_format import gather, rows

_WIDTHS: Final = frozenset({7, 10, 12})
_STEPS: Final = {7: 4, 10: 5, 12: 5}
_GPUS: Final = {7: 6, 10: 6, 12: 6}
_ARRIVAL: Final = {7: 5, 10: 9, 12: 11}
_DURATION: Final = 10
_WITH_DURATION: Final = 12
_OF_DURATION: Final = "v100"

TABLE: Final = Path(str(files("slurm_dl.traces.formats"))) / "gavel_steps_per_s.json"
"""Gavel's own measurements; see `steps_per_s`."""


@functools.cache
def steps_per_s() -> Mapping[str, Mapping[str, Mapping[str, float]]]:
    """Steps per second alone, by model, number of GPUs and GPU type."""
    measured: Mapping[str, Mapping[str, Mapping[str, float]]]
    measured = json.loads(TABLE.read_text())["steps_per_s"]
    return measured


def _job(nth: int, fields: Sequence[str]) -> JobLine:
    width = len(fields)
    model = name(fields[0], "job type")
    steps = number(fields[_STEPS[width]], "steps")
    gpus = whole_gpus(fields[_GPUS[width]], "number of GPUs")
    return JobLine(
        job_id=str(nth),
        submit_s=amount(fields[_ARRIVAL[width]], "arrival"),
        duration_s=(
            number(fields[_DURATION], "duration")
            if width == _WITH_DURATION
            else steps / _rate(model, gpus)
        ),
        gpus=gpus,
        model=model,
    )


def _rate(model: str, gpus: float) -> float:
    """Steps per second of *model* alone on *gpus* V100s."""
    rate = steps_per_s().get(model, {}).get(f"{gpus:.0f}", {}).get(_OF_DURATION)
    if not rate:
        raise BadValue(
            Reason.NO_RATE, f"the speed of {shown(model)} on {gpus:g} GPUs was not measured"
        )
    return rate


@dataclass(frozen=True, slots=True)
class GavelFormat:
    """Lines of 7, 10 or 12 fields between tabs."""

    name: str = "gavel"
    about: str = "stanford-futuredata/gavel and uw-mad-dash/shockwave .trace, tab separated"

    def recognizes(self, head: Head) -> bool:
        """Whether the first line has one of the three layouts."""
        fields = head.first_line.split("\t")
        width = len(fields)
        if width not in _WIDTHS:
            return False
        try:
            for place in (_STEPS[width], _GPUS[width], _ARRIVAL[width]):
                number(fields[place], "field")
        except BadValue:
            return False
        return True

    def read(self, path: Path, jobs: Gathering) -> None:
        """Every job of *path* into *jobs*."""
        with opened(path) as stream:
            lines = numbered_lines(stream, jobs.file)
            gather(rows(lines, jobs, "\t", set(_WIDTHS)), jobs, _job)


GAVEL: Final = GavelFormat()
