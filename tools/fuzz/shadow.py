"""Files of shadow mode of versions before, as they are read into the ledger."""

from __future__ import annotations

from slurm_dl.shadow.recorder import row_of
from tools.fuzz.target import Target

_LINES = b"""["job",12,1000,"vision",4,1000,1010,500.5,1510.5,"C",1]
["looks",1000,1060,6,0,"discrete_las","external",16,4,1.5,5,2,0.25,1,0,[[4,4,"a100"]]]
["wish","preempt 2:0","preempt",2,7,"nlp",4,[2],[[1,0,8,"v",1,50,90]],1,"why",1020,1050,0,"",0]
"""

TARGETS = (
    Target(
        name="shadow-lines",
        parse=lambda data: [row_of(line) for line in data.split(b"\n")],
        source="the files of `shadow` in the state directory, of versions before",
        parser="shadow.recorder.row_of",
        seeds=(_LINES,),
    ),
)
