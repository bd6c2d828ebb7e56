"""Fit the statistics of traces, for the workload generator.

python -m tools.fit_traces TRACE... --out FIT.json --figure FIT.png
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from slurm_dl.model.errors import SlurmDlError
from slurm_dl.traces.format_registry import read_trace
from slurm_dl.traces.workload_fit import fit, write_fit
from tools.fit_plot import draw_fit


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit the traces named on the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.fit_traces")
    parser.add_argument("trace", nargs="+", type=Path, help="a trace in any known format")
    parser.add_argument("--format", help="the format of all of them; told from the content")
    parser.add_argument("--name", help="what the fit calls its origin; the names of the traces")
    parser.add_argument("--out", type=Path, help="write the fit here, as JSON")
    parser.add_argument("--figure", type=Path, help="draw fit and data here, .png or .svg")
    options = parser.parse_args(arguments)
    try:
        traces = [read_trace(path, options.format) for path in options.trace]
        found = fit(*traces)
        if options.name:
            found = found.model_copy(update={"origin": options.name})
        if options.out:
            write_fit(found, options.out)
        if options.figure:
            draw_fit(found, traces, options.figure)
    except SlurmDlError as err:
        sys.stderr.write(f"{err}\n")
        return 2
    for part in found.classes:
        sys.stdout.write(
            f"{part.low_gpus:g} to {part.high_gpus:g} GPUs: {part.jobs:,} jobs, "
            f"{len(part.durations.weight)} lognormals, KS {part.ks:.4f}\n"
        )
    sys.stdout.write(
        f"GPU-seconds of a job: {found.mean_gpu_s_data:,.0f} in the data, "
        f"{found.mean_gpu_s_fit:,.0f} in the fit\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
