"""Jobs that are over and that Slurm does not list any more, laid behind those that it lists.

``dlqueue --states all`` shows them for a day. They come from the ledger, so a daemon that was
started a minute ago shows them too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from slurm_dl.engine.cycle import Cycle
from slurm_dl.ledger.completions import JobEnding
from slurm_dl.ledger.sqlite.ending_rows import RememberedEnding
from slurm_dl.model.contract import Claim, Contract
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobRow, Jobs, JobState
from slurm_dl.model.snapshot import JobText

LISTED_S = 86_400.0
"""So long after its end a job is listed."""

MOST_LISTED = 5_000
"""The last ones; each is a row in memory while somebody asks."""

OVER = frozenset({JobState.COMPLETED, JobState.FAILED})

_Columns = TypeVar("_Columns")


def with_ended(cycle: Cycle, ended: Sequence[RememberedEnding]) -> Cycle:
    """*cycle* as if Slurm had listed the jobs *ended* too, for the list of the queue alone.

    Those that it does list are left as they are. Of a contract it is known that there was one, and
    not which.
    """
    snap, plan = cycle.snapshot, cycle.plan
    seen = snap.seen
    listed = frozenset(seen.jobs.job_id.tolist())
    gone = [one for one in ended if one.ending.job_id not in listed]
    if not gone:
        return cycle
    endings = [one.ending for one in gone]
    rows = _jobs(endings, seen.partitions)
    claims = {e.job_id: Claim(contract=Contract()) for e in endings if e.preemptible}
    memory = _longer(
        snap.memory,
        len(gone),
        attained_gpu_s=[one.attained_gpu_s for one in gone],
        preemptions=[one.preemptions for one in gone],
    )
    none = np.full(len(gone), -1)
    return dataclasses.replace(
        cycle,
        snapshot=dataclasses.replace(
            snap,
            seen=dataclasses.replace(
                seen,
                jobs=Jobs(
                    **{
                        f.name: np.concatenate([getattr(seen.jobs, f.name), getattr(rows, f.name)])
                        for f in dataclasses.fields(Jobs)
                    }
                ),
                texts=_Texts(seen.texts, endings),
                claims={**seen.claims, **claims},
            ),
            memory=memory,
        ),
        plan=dataclasses.replace(
            plan,
            tier=np.concatenate([plan.tier, none.astype(plan.tier.dtype)]),
            rank=np.concatenate([plan.rank, none.astype(plan.rank.dtype)]),
        ),
    )


def _longer(columns: _Columns, more: int, **values: Sequence[float]) -> _Columns:
    """*columns* with *more* rows of *values*, 0 where there are none."""
    longer: dict[str, Any] = {}
    for field in dataclasses.fields(columns):  # type: ignore[arg-type] # a dataclass of columns
        column = getattr(columns, field.name)
        tail = np.array(values.get(field.name, [0] * more), dtype=column.dtype)
        longer[field.name] = np.concatenate([column, tail])
    return type(columns)(**longer)


def _jobs(endings: Sequence[JobEnding], partitions: Sequence[str]) -> Jobs:
    """Columns of *endings*; what nobody shows of a job that is over is left as it is by default."""
    like = JobRow(job_id=0, state=JobState.COMPLETED)
    row_of = {name: i for i, name in enumerate(partitions)}
    columns: dict[str, list[Any]] = {
        f.name: [getattr(like, f.name)] * len(endings) for f in dataclasses.fields(Jobs)
    }
    for name in _KEPT:
        columns[name] = [getattr(e, name) for e in endings]
    columns["partition"] = [row_of.get(e.partition, -1) for e in endings]
    return Jobs.of_columns(columns)


_KEPT = frozenset(f.name for f in dataclasses.fields(Jobs)) & frozenset(
    f.name for f in dataclasses.fields(JobEnding)
) - {"partition"}


class _Texts(Mapping[JobId, JobText]):
    """The words of the jobs that are listed, and of those that ended: of these when asked for."""

    def __init__(self, listed: Mapping[JobId, JobText], endings: Sequence[JobEnding]) -> None:
        self._listed = listed
        self._endings = {e.job_id: e for e in endings}

    def __getitem__(self, job_id: JobId, /) -> JobText:
        ending = self._endings.get(job_id)
        if ending is None:
            return self._listed[job_id]
        return JobText(**{name: getattr(ending, name) for name in _WORDS})

    def __iter__(self) -> Iterator[JobId]:
        yield from self._listed
        yield from self._endings

    def __len__(self) -> int:
        return len(self._listed) + len(self._endings)


_WORDS = tuple(f.name for f in dataclasses.fields(JobText))
