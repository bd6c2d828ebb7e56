"""What is kept of shadow mode, as the report reads it."""

from __future__ import annotations

import io

import numpy as np

from slurm_dl.shadow.html_report import page
from slurm_dl.shadow.records import EndedJobRecord, Lookout, WishedHandover, parsed
from slurm_dl.shadow.report_data import Recorded, period_of, report_of
from slurm_dl.shadow.segment_store import JOB, OPEN, STANDING, read_open, read_standing
from tools.fuzz.target import Target, a_file

_LINES = b"""["job",12,1000,"vision",4,1000,1010,500.5,1510.5,"C",1]
["looks",1000,1060,6,0,"discrete_las","external",16,4,1.5,5,2,0.25,1,0,[[4,4,"a100"]]]
["wish","preempt 2:0","preempt",2,7,"nlp",4,[2],[[1,0,8,"v",1,50,90]],1,"why",1020,1050,0,"",0]
"""


def _standing_seed() -> bytes:
    file = io.BytesIO()
    jobs = np.zeros(1, dtype=JOB)
    np.savez(file, now_s=np.float64(5), jobs=jobs, accounts=np.array(["a"]))
    return file.getvalue()


def _lines(data: bytes) -> object:
    """Every line, and what the report makes of them."""
    lines = [line for raw in data.split(b"\n") if (line := parsed(raw)) is not None]
    recorded = Recorded(
        lookouts=[line for line in lines if isinstance(line, Lookout)],
        wishes=[line for line in lines if isinstance(line, WishedHandover)],
        ended=[line for line in lines if isinstance(line, EndedJobRecord)],
        unfinished=[],
        never_ran=0,
        bad=0,
    )
    period = period_of(recorded, 0.0)
    return period and page(report_of(period, 60.0, str))


_OPEN = b"""["open",1050,1]
["wish","preempt 2:0","preempt",2,7,"nlp",4,[2],[[1,0,8,"v",1,50,90]],1,"why",1020,1050,0,"",0]
"""


TARGETS = (
    Target(
        name="shadow-lines",
        parse=_lines,
        source="the files of `shadow` in the state directory",
        parser="shadow.records.parsed",
        seeds=(_LINES,),
    ),
    Target(
        name="shadow-open",
        parse=lambda data: read_open(a_file(data, OPEN)),
        source="the open planned hand-overs in `shadow`",
        parser="shadow.segment_store.read_open",
        seeds=(_OPEN,),
    ),
    Target(
        name="shadow-standing",
        parse=lambda data: read_standing(a_file(data, STANDING)),
        source="the unfinished jobs in `shadow`",
        parser="shadow.segment_store.read_standing",
        seeds=(_standing_seed(),),
    ),
)
