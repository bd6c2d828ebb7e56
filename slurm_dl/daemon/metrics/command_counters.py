"""Number of runs of each Slurm command by this process.

One count for the process: the parts of a daemon are made anew at each reload, and what they have
asked Slurm by then is still to be told.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

RUN: Final[Counter[str]] = Counter()
"""By the name of the tool. Counted by any thread; a call may rarely be missed."""
