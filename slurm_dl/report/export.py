"""Figures for other programs: JSON of a summary, CSV of every job.

A figure that does not exist is null in JSON and empty in CSV, never 0 and never NaN.

The names in JSON are those of `Summary`; a spread gives five of them: ``avg_`` (mean), ``median_``,
``p95_``, ``p99_`` and ``max_`` before its name. Times are seconds, GPU-seconds carry ``gpu_s``:

- ``jobs``, ``finished``, ``completed``, ``preemptions``, ``promotions``: counts;
- of the finished jobs ``*_jct_s``, ``*_queue_s``, ``*_wait_s``;
- of those whose time alone is known ``*_slowdown``, ``*_bounded_slowdown``, ``*_rho`` and
  ``unfair_frac``;
- ``jain``, ``makespan_s``, ``utilisation_frac``, ``service_gpu_s``;
- ``gpu_s_lost`` in all and ``gpu_s_lost_by`` cause.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from slurm_dl.model.job_record import Records
from slurm_dl.model.jobs import F64
from slurm_dl.report.atomic_files import write_whole
from slurm_dl.report.distribution import Spread
from slurm_dl.report.number_format import plain_number
from slurm_dl.report.summary_metrics import Group, Summary
from slurm_dl.text import escaped

_FORMULA = ("=", "+", "-", "@")
"""What a spreadsheet takes for the beginning of a formula."""

_NAMES = {"lost_gpu_s": "gpu_s_lost", "lost_by_cause_gpu_s": "gpu_s_lost_by"}
"""Names in JSON that are not those of `Summary`."""


def summary_json(summary: Summary) -> dict[str, object]:
    """The figures under the names above, ready for `json.dumps` with ``allow_nan=False``."""
    told: dict[str, object] = {}
    for name, value in plain(summary).items():
        if isinstance(getattr(summary, name), Spread):
            del value["count"]
            value["avg"] = value.pop("mean")
            told |= {f"{part}_{name}": one for part, one in value.items()}
        else:
            told[_NAMES.get(name, name)] = value
    return told


def groups_json(groups: Iterable[Group]) -> list[dict[str, object]]:
    """One object for each group: its ``label`` and its figures."""
    return [{"label": group.label, **summary_json(group.summary)} for group in groups]


def plain(value: object) -> Any:  # noqa: ANN401 - whatever JSON holds
    """*value* as JSON has it: a record by its fields, null for what is not finite."""
    if isinstance(value, float):
        return _finite(value)
    if dataclasses.is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(one) for key, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value


def write_json(path: Path, data: Mapping[str, object]) -> None:
    """Write *data*, indented, with the keys as they come.

    Raises:
        ConfigError: The file cannot be written.
    """
    text = json.dumps(data, indent=2, allow_nan=False) + "\n"
    write_whole(path, text.encode("utf-8"))


def jobs_csv(records: Records) -> str:
    r"""One line for each job, in the order of the records, under a line of names.

    In a job id or a user's name, characters that cannot be printed are written out (``\n``), and
    one that a spreadsheet would compute gets an apostrophe before it.
    """
    columns: dict[str, Iterable[str]] = {
        "job_id": map(_harmless, records.job_id),
        "user": [_harmless(records.users[u]) for u in records.user.tolist()],
        "gpus": _numbers(records.gpus),
        "submit_s": _numbers(records.submit_s),
        "start_s": _numbers(records.start_s),
        "end_s": _numbers(records.end_s),
        "jct_s": _numbers(records.jct_s),
        "queue_s": _numbers(records.queue_s),
        "alone_s": _numbers(records.alone_s),
        "slowdown": _numbers(records.slowdown),
        "service_gpu_s": _numbers(records.service_gpu_s),
        "lost_gpu_s": _numbers(records.all_lost_gpu_s),
        "preemptions": map(str, records.preemptions.tolist()),
        "promotions": map(str, records.promotions.tolist()),
        "success": ["true" if success else "false" for success in records.success.tolist()],
    }
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return out.getvalue()


def write_jobs_csv(path: Path, records: Records) -> None:
    """Write `jobs_csv`, in UTF-8.

    Raises:
        ConfigError: The file cannot be written.
    """
    write_whole(path, jobs_csv(records).encode("utf-8"))


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _numbers(column: F64) -> list[str]:
    return [plain_number(value) for value in column.tolist()]


def _harmless(text: str) -> str:
    # One line for each job, and nothing that UTF-8 has no bytes for.
    shown = escaped(text)
    return f"'{shown}" if shown.startswith(_FORMULA) else shown
