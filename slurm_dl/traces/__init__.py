"""Traces of real clusters: reading them in their own formats, and workloads made after them."""

from slurm_dl.traces.builder import LeftOutLine, Reason
from slurm_dl.traces.format_registry import FORMATS, Format, detect_format, read_trace
from slurm_dl.traces.formats.slurm_dl_csv import write_trace
from slurm_dl.traces.summary import LeftOutSummary, TraceSummary, summarize

__all__ = [
    "FORMATS",
    "Format",
    "LeftOutLine",
    "LeftOutSummary",
    "Reason",
    "TraceSummary",
    "detect_format",
    "read_trace",
    "summarize",
    "write_trace",
]
