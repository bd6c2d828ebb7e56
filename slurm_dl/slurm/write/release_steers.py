"""Removal of the steers of waiting jobs, from the ledger and from Slurm's own lists.

Apart from `release_all`, because only here two sources have to be brought together. A job that runs
keeps its list, which Slurm does not change then; it matters no more unless the job is requeued.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from slurm_dl.model.errors import ClusterError
from slurm_dl.model.ids import JobId
from slurm_dl.model.steer import Steer
from slurm_dl.slurm.read.conditions import CONDITION_ARGUMENTS, read_conditions
from slurm_dl.slurm.read.hostlists import expand
from slurm_dl.slurm.read.vocabulary import is_number
from slurm_dl.slurm.tool_runner import Slurm
from slurm_dl.slurm.write.exc_node_list import ExcNodeList, exc_node_list, parts_of
from slurm_dl.text import escaped

_BEFORE = " ExcNodeList="


def steer_steps(
    slurm: Slurm,
    pending: Mapping[JobId, tuple[str, float]],
    steers: Collection[Steer],
    *,
    now_s: float,
    skipped: list[str],
) -> Iterator[tuple[str, ...]]:
    """Label and settings of each update that undoes a steer; none of a job that cannot be read.

    Args:
        pending: Label and submit time (epoch seconds) of each pending record.
        steers: Those in the ledger; none where there is no ledger.
        now_s: Epoch seconds now.
        skipped: Gets a line about each record that cannot be read.

    Raises:
        ClusterError: Slurm is silent, or nothing in an answer can be read.
    """
    known = {steer.job_id: steer for steer in steers}
    excluded = _excluded(slurm, skipped)
    for job_id, (label, submit_s) in pending.items():
        settings = []
        array, task, _ = label.partition("_")
        of_array = bool(task) and is_number(array)
        steer = known.get(job_id) or (known.get(JobId(int(array))) if of_array else None)
        there = excluded.get(job_id, frozenset())
        own = _own(slurm, job_id, there, steer, is_of_array=bool(task))
        if own != there:
            settings.append(f"ExcNodeList={exc_node_list((), sorted(own))}")
        # A job that was requeued since waits out an interval of Slurm's, which is not ours to end.
        if steer is not None and steer.not_before_s > now_s and submit_s <= steer.since_s:
            settings.append("StartTime=now")
        if settings:
            yield label, *settings


def _own(
    slurm: Slurm,
    job_id: JobId,
    there: frozenset[str],
    steer: Steer | None,
    *,
    is_of_array: bool,
) -> frozenset[str]:
    """The owner's nodes among those that are excluded now."""
    if not there:
        return there
    if steer is not None:
        return steer.inherited(there) if is_of_array else steer.owned(there)
    parts = _parts(slurm, job_id)
    # What users write stands in that answer too: it is believed only if it says the same nodes.
    if parts is None or frozenset(parts.avoid) | frozenset(parts.own) != there:
        return there
    return frozenset(parts.own)


def _parts(slurm: Slurm, job_id: JobId) -> ExcNodeList | None:
    """The parts of the job's ExcNodeList; None if it cannot be read."""
    try:
        text = slurm.run("scontrol", "show", "job", "--oneliner", str(job_id))
    except ClusterError:
        return None  # It may just have ended.
    begin = f"JobId={job_id} "
    for line in text.splitlines():
        if line.startswith(begin) and line.count(_BEFORE) == 1:
            try:
                return parts_of(line.partition(_BEFORE)[2].partition(" ")[0])
            except ClusterError:
                return None
    return None


def _excluded(slurm: Slurm, skipped: list[str]) -> dict[JobId, frozenset[str]]:
    """The nodes that each pending record excludes; only those that exclude any."""
    found = {}
    told, left_out = read_conditions(slurm.run("squeue", *CONDITION_ARGUMENTS))
    for job_id, conditions in told.items():
        try:
            found[job_id] = frozenset(expand(conditions.excluded))
        except ClusterError:
            left_out.append(f"{job_id} {conditions.excluded}")
    skipped += [f"{escaped(line)[:80]}: skipped: no job id and nodes" for line in left_out]
    return {job_id: names for job_id, names in found.items() if names}
