"""The report as one HTML file: nothing is fetched, nothing runs, and it prints.

The template escapes all text where it is put in. A policy in the head forbids the browser to load
or run anything, should something have got by.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import jinja2

from slurm_dl.shadow import terminal_report
from slurm_dl.shadow.report_data import HOUR_S, Report
from slurm_dl.text import ago, safe

_LONGEST: Final = 1000
_MOST_BARS: Final = 48


def page(report: Report) -> bytes:
    """The whole file."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: safe(value, _LONGEST) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    template = environment.get_template("report.html.j2")
    step_s, counts = _bars(report)
    shown = template.render(report=report, say=terminal_report, ago=ago, step_s=step_s, bars=counts)
    return shown.encode("utf-8")


def _bars(report: Report) -> tuple[float, list[int]]:
    """Wishes by the hour, or by as many hours as leave few enough bars."""
    span_s = max(HOUR_S, report.to_s - report.from_s)
    step_s = HOUR_S * max(1, -(-span_s // (HOUR_S * _MOST_BARS)))
    counts = [0] * (int(span_s // step_s) + 1)
    for wish in report.wishes:
        at_s = min(max(wish.begin_s - report.from_s, 0.0), span_s)
        counts[int(at_s // step_s)] += 1
    return step_s, counts
