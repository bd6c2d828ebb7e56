"""What is kept of forecasts, as the daemon takes it up at its start."""

from __future__ import annotations

from slurm_dl.forecast.calibration import FILE_NAME, ForecastBook
from tools.fuzz.target import Target, a_file

_BOOK = (
    b'{"open": [{"job_id": 7, "asked_s": 1000.0, "low_s": 1100.0, "median_s": 1200.5, '
    b'"high_s": Infinity}], "verdicts": [{"held": true, "error_s": -3.5}, '
    b'{"held": false, "error_s": NaN}]}'
)


TARGETS = (
    Target(
        name="forecast-score",
        parse=lambda data: ForecastBook(a_file(data, FILE_NAME)).score,
        source="`when.json` in the state directory",
        parser="forecast.calibration.ForecastBook",
        seeds=(_BOOK,),
    ),
)
