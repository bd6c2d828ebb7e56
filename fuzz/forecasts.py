"""What is kept of forecasts, as the daemon takes it up at its start."""

from __future__ import annotations

from fuzz.target import Target, a_file
from slurm_dl.apps.when.calibration import FILE_NAME, Book

_BOOK = (
    b'{"open": [{"job_id": 7, "asked_s": 1000.0, "low_s": 1100.0, "median_s": 1200.5, '
    b'"high_s": Infinity}], "verdicts": [{"held": true, "error_s": -3.5}, '
    b'{"held": false, "error_s": NaN}]}'
)


TARGETS = (
    Target(
        name="forecast-score",
        parse=lambda data: Book(a_file(data, FILE_NAME)).score,
        source="`when.json` in the state directory",
        parser="apps.when.calibration.Book",
        seeds=(_BOOK,),
    ),
)
