"""Notes on elastic jobs: the sizes that they ran in, and those that Slurm refused.

A size counts as refused if the job started in another one than was written, or if Slurm says of the
waiting job that no nodes would ever do, or goes on to show another. `SizeHistory` is what the entry
of a job holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from slurm_dl.engine.waiting_sizes import HOPELESS
from slurm_dl.estimates.remaining_time import run_began
from slurm_dl.estimates.size_speeds import elastic_rows
from slurm_dl.model.booking import changes, entry, of_kind
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import COMPLETED, PENDING
from slurm_dl.model.plan import Book, Reshape
from slurm_dl.model.sizes import SIZE, SizeHistory, size_histories, size_of
from slurm_dl.model.snapshot import Snapshot

_DAY_S: Final = 86_400.0

_RACE_S: Final = 3.0
"""A job that starts so soon after a size was decided may have started before it was written."""

_UNSHOWN_S: Final = 60.0
"""A size that Slurm does not show so long after it was decided is doubtful, and then refused."""


def note_sizes(snap: Snapshot, reshapes: Iterable[Reshape]) -> list[Book]:
    """One `Book` with the entries that change, or none.

    Args:
        reshapes: The sizes that this decision writes; of jobs that do not wait Slurm takes none.
    """
    written = {action.job_id: action for action in reshapes}
    rows = elastic_rows(snap)
    if not written and not len(rows) and not any(e.kind == SIZE for e in snap.booked):
        return []
    histories, row_of = size_histories(snap.booked), snap.jobs.rows
    running = set(rows[snap.jobs.state[rows] > PENDING].tolist())
    runs = {JobId(int(snap.jobs.job_id[row])) for row in running}
    wanted = [
        # Damaged entries; of two with one key the last counts.
        *(entry(SIZE, key, None) for key in of_kind(snap.booked, SIZE)),
        # A job that is not listed need not have left.
        *(entry(SIZE, j, h.body()) for j, h in histories.items() if snap.seen.may_list(j)),
    ]
    for job_id in sorted(({*histories} | {*written} | runs) & row_of.keys()):
        row, history = row_of[job_id], histories.get(job_id)
        if row in running:
            history = _ran(snap, row, history)
        elif snap.jobs.state[row] == PENDING:
            history = _waits(snap, row, history, written.get(job_id))
        elif snap.jobs.state[row] >= COMPLETED:
            history = None
        wanted.append(entry(SIZE, job_id, None if history is None else history.body()))
    entries = changes(snap.booked, wanted)
    return [Book(entries=entries, why="sizes of elastic jobs")] if entries else []


def _ran(snap: Snapshot, row: int, history: SizeHistory | None) -> SizeHistory | None:
    held = size_of(snap.jobs, row)
    if held is None:
        return history
    after = history or SizeHistory(asked=held)
    resized_s = tuple(s for s in after.resized_s if s > snap.now_s - _DAY_S)
    if after.now not in (None, held):
        resized_s = (*resized_s, snap.now_s)
    if after.now != held:
        after = after.begun(held, run_began(snap, row, after))
    refused, doubtful = after.refused, after.doubtful
    if after.written not in (None, held):
        at_once = float(snap.jobs.start_s[row]) <= after.written_s + _RACE_S
        if at_once and not doubtful:
            doubtful = True
        else:
            refused |= {after.written}
    return replace(after, written=None, refused=refused, doubtful=doubtful, resized_s=resized_s)


def _waits(
    snap: Snapshot, row: int, history: SizeHistory | None, action: Reshape | None
) -> SizeHistory | None:
    hopeless = int(snap.jobs.held[row]) in HOPELESS
    if hopeless and history is not None and history.written not in (None, history.asked):
        history = replace(history, written=None, refused=history.refused | {history.written})
    if action is None:
        return history
    before = history or SizeHistory(asked=size_of(snap.jobs, row))
    if before.written == action.shape or action.shape in before.refused:
        if before.written is None or snap.now_s - before.written_s <= _UNSHOWN_S:
            return before
        if before.doubtful:
            return replace(before, written=None, refused=before.refused | {action.shape})
        return replace(before, doubtful=True, written_s=snap.now_s)
    # Of a hand-over: we have just requeued it for that.
    requeues = before.requeues + (action.handover_id is not None)
    return replace(before, written=action.shape, written_s=snap.now_s, requeues=requeues)
