"""Where a figure about a job is from. Unknown is not zero: who has no better source says which."""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated

import numpy as np
import numpy.typing as npt

from slurm_dl.model.json_marks import Column

I8 = Annotated[npt.NDArray[np.int8], Column("i")]


class Origin(IntEnum):
    """Sources of an estimate, the most trustworthy first."""

    KNOWN = 0
    """Exactly so: a simulation's own figure."""
    MEASURED = 1
    """Runs of this job, or of this model in this shape."""
    REPORTED = 2
    """The job says so while it runs."""
    FITTED = 3
    """A curve through what was measured in other shapes."""
    HISTORY = 4
    """Earlier jobs like this one."""
    DECLARED = 5
    """What was asked for at submission: the time limit."""
    PRIOR = 6
    """Nothing is known of this job: the site's word, or a law that holds for jobs as such."""
