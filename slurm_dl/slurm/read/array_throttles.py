"""ArrayTaskThrottle of pending arrays, asked for array by array and remembered.

No listing has it for certain: ``squeue --array`` leaves it out, and without ``--array`` it is left
out as soon as a requeued task is folded into the record (22.05.8). ``scontrol show job 6_12`` tells
it of the record that task 12 is in.
"""

from __future__ import annotations

import contextlib
import re
from typing import Final

from slurm_dl.model.errors import ClusterError
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobState
from slurm_dl.slurm.read.grammar import tasks_of
from slurm_dl.slurm.read.job_table import JobTable
from slurm_dl.slurm.tool_runner import Slurm

_MOST_ASKED: Final = 20  # Arrays that one look asks for; the others are asked for by the next
# What users write stands behind it.
_RECORD = re.compile(
    r"JobId=\d{1,18} ArrayJobId=\d{1,18} ArrayTaskId=\S+ (?:ArrayTaskThrottle=(\d{1,9}) )?",
    re.ASCII,
)


def throttle_of(slurm: Slurm, label: str) -> int | None:
    """ArrayTaskThrottle of the array record *label*; 0: no bound. None: it has changed meanwhile.

    Raises:
        ClusterError: Slurm is silent, or has no such task.
    """
    task = f"{label.partition('_')[0]}_{tasks_of(label)[0]}"
    found = _RECORD.match(slurm.run("scontrol", "show", "job", "--oneliner", task))
    return None if found is None else int(found[1] or 0)


def is_array_record(job_id: int, label: str) -> bool:
    """True if a pending job stands for tasks that have no record of their own."""
    return "[" in label or label.startswith(f"{job_id}_")


class ArrayThrottles:
    """Throttles of arrays, each asked for once until it is to be asked again."""

    def __init__(self, slurm: Slurm) -> None:
        """Ask *slurm*; nothing is known yet."""
        self._slurm = slurm
        self._known: dict[JobId, int] = {}  # In the order in which they were asked for
        self._recent: set[JobId] = set()  # Those that need not be asked for again

    def of(self, table: JobTable) -> dict[JobId, int]:
        """Throttle by pending array record, of those that are known."""
        labels = {
            job: table.texts[job].label
            for job, state in zip(map(JobId, table.job_id), table.state, strict=True)
            if state is JobState.PENDING and is_array_record(job, table.texts[job].label)
        }
        self._known = {job: n for job, n in self._known.items() if job in labels}
        new = [job for job in labels if job not in self._known]
        for job in [*new, *(job for job in self._known if job not in self._recent)][:_MOST_ASKED]:
            # Where Slurm is silent what it told before stays: unknown would be no bound.
            last, found = self._known.pop(job, None), None
            with contextlib.suppress(ClusterError):  # Its task may just have ended.
                found = throttle_of(self._slurm, labels[job])
            if found is not None:
                self._recent.add(job)
            if (value := last if found is None else found) is not None:
                self._known[job] = value
        return dict(self._known)

    def ask_again(self, job_id: JobId) -> None:
        """Ask anew about this array at the next look."""
        self._known.pop(job_id, None)

    def forget(self) -> None:
        """Ask about every array anew, in turns: owners may have changed it."""
        self._recent.clear()
