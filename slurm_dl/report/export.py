"""Figures for other programs: JSON of a summary, CSV of every job.

A figure that does not exist is null in JSON and empty in CSV, never 0 and never NaN.

The names in JSON are those of `Summary`; a spread gives five of them: ``avg_`` (mean), ``median_``,
``p95_``, ``p99_`` and ``max_`` before its name. Times are seconds, GPU-seconds carry ``gpu_s``:

- ``jobs``, ``finished``, ``completed``, ``preemptions``, ``promotions``: counts;
- of the finished jobs ``*_jct_s``, ``*_queue_s``, ``*_wait_s``;
- of those whose time alone is known ``*_slowdown``, ``*_bounded_slowdown``, ``*_rho`` and
  ``unfair_frac``;
- ``jain``, ``makespan_s``, ``utilisation_frac``, ``steady_utilisation_frac``, ``service_gpu_s``;
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

from slurm_dl.files import replace_file
from slurm_dl.model.completed_jobs import Records
from slurm_dl.model.errors import ConfigError
from slurm_dl.report.summary_metrics import Group, Spread, Summary
from slurm_dl.report.terminal_table import plain_number
from slurm_dl.text import escaped

_FORMULA = ("=", "+", "-", "@")  # What a spreadsheet takes for the beginning of a formula

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


def jobs_columns(records: Records) -> dict[str, list[Any]]:
    """A value of each job, in the order of the records, by the names of `jobs_csv`."""
    return {
        "job_id": list(records.job_id),
        "user": [records.users[u] for u in records.user.tolist()],
        "gpus": records.gpus.tolist(),
        "submit_s": records.submit_s.tolist(),
        "start_s": records.start_s.tolist(),
        "end_s": records.end_s.tolist(),
        "jct_s": records.jct_s.tolist(),
        "queue_s": records.queue_s.tolist(),
        "alone_s": records.alone_s.tolist(),
        "slowdown": records.slowdown.tolist(),
        "service_gpu_s": records.service_gpu_s.tolist(),
        "lost_gpu_s": records.all_lost_gpu_s.tolist(),
        "preemptions": records.preemptions.tolist(),
        "promotions": records.promotions.tolist(),
        "success": records.success.tolist(),
    }


def jobs_csv(records: Records) -> str:
    r"""One line for each job, in the order of the records, under a line of names.

    In a job id or a user's name, characters that cannot be printed are written out (``\n``), and
    one that a spreadsheet would compute gets an apostrophe before it.
    """
    columns = {name: map(_cell, column) for name, column in jobs_columns(records).items()}
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return out.getvalue()


def write_csv(path: Path, text: str, manifest: Mapping[str, object]) -> None:
    """Write the table *text*, in UTF-8, and its manifest into ``NAME-metadata.json`` beside it.

    The name and the key ``notes`` are those of "Model for tabular data and metadata on the web"
    (W3C, 2015), so that the table itself is what any reader of CSV takes. A device gets none.

    Raises:
        ConfigError: A file cannot be written.
    """
    write_whole(path, text.encode("utf-8"))
    if path.is_file():
        about = {"@context": "http://www.w3.org/ns/csvw", "url": path.name, "notes": [manifest]}
        write_json(path.with_name(f"{path.name}-metadata.json"), about)


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _cell(value: object) -> str:
    match value:
        case float():
            return plain_number(value)
        case bool():
            return "true" if value else "false"
        case _:
            return _harmless(str(value))


def _harmless(text: str) -> str:
    # One line for each job, and nothing that UTF-8 has no bytes for.
    shown = escaped(text)
    return f"'{shown}" if shown.startswith(_FORMULA) else shown


def write_whole(path: Path, content: bytes) -> None:
    """Put *content* at *path*, in place of what was there; a reader never sees half of it.

    A device or a pipe is written to as it is.

    Raises:
        ConfigError: It cannot be written; what was there before is untouched.
    """
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content)
        else:
            # What a link points to is replaced, not the link.
            with replace_file(path.resolve(), mode=0o666) as file:
                file.write(content)
    except OSError as error:
        msg = f"cannot write {path}: {error.strerror}; name a file in a directory you may write to"
        raise ConfigError(msg) from error
