"""Give the cluster back to plain Slurm: what ``dlctl release-all`` does.

It needs squeue, sprio and scontrol (sacctmgr too, where Slurm preempts by itself) and nothing of
ours: no daemon, no ledger, no configuration beyond the names of the managed partitions and of the
QOS. It may be run any number of times. What the ledger says of steers, where there is one, is taken
for more than can be seen in Slurm. A job that runs keeps its steer, which Slurm does not change
then; it matters no more unless the job is requeued.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

from slurm_dl.model.errors import ClusterError
from slurm_dl.model.handover import RESERVATION_PREFIX
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobState
from slurm_dl.model.plan import Reshape
from slurm_dl.model.steer import Steer
from slurm_dl.model.throttle import Throttled
from slurm_dl.slurm.preflight import to_end_within
from slurm_dl.slurm.read.array_throttles import is_array_record, throttle_of
from slurm_dl.slurm.read.comment_claims import ClaimReader
from slurm_dl.slurm.read.conditions import CONDITION_ARGUMENTS, read_conditions
from slurm_dl.slurm.read.grammar import address, expand, is_number
from slurm_dl.slurm.read.job_table import whole_of
from slurm_dl.slurm.read.node_reader import read_reservations
from slurm_dl.slurm.read.queue_reader import whole_labels
from slurm_dl.slurm.read.record_parser import job_records, new_nonce, of_jobs, queue_arguments
from slurm_dl.slurm.read.tres import parse_gres, parse_memory_mb, parse_tres
from slurm_dl.slurm.read.vocabulary import epoch_s, job_state
from slurm_dl.slurm.tool_runner import Slurm
from slurm_dl.slurm.write.actions import update_job
from slurm_dl.slurm.write.handover_reservations import unseal
from slurm_dl.slurm.write.request_changes import (
    ExcNodeList,
    change_request,
    exc_node_list,
    parts_of,
)
from slurm_dl.text import escaped

SIZE_FIELDS = ("NumNodes", "NumCPUs", "tres-alloc", "tres-per-node", "MinMemory", "Comment")
"""What squeue has to tell of a pending job, in this order."""

_CLAIMS = ClaimReader(max_grace_s=1e9)


def asked_again(job_id: JobId, told: list[str]) -> Reshape | None:
    """The write that gives a pending job the size of its ``asked``; None if it has it.

    CPUs and memory go with the GPUs of a node, so that it gets what it asked for with them; memory
    that was not asked for by the node stays.

    Args:
        told: `SIZE_FIELDS` of it.
    """
    nodes_word, cpus_word, alloc, per_node, memory, comment = told
    claim, tres = _CLAIMS.read(comment), parse_tres(alloc)
    first, gpus = nodes_word.partition("-")[0], int(parse_gres(per_node).gpus)
    nodes = tres.nodes or (int(first) if is_number(first) else 0)
    asked = claim.asked
    # Of a comment that does not tell nobody knows whether the size is ours.
    if not claim.sizes or asked is None or min(nodes, gpus) < 1:
        return None
    if (nodes, gpus) == (asked.nodes, asked.gpus_per_node):
        return None
    cpus = int(cpus_word) // nodes if is_number(cpus_word) else 0
    mem_mb = parse_memory_mb(memory)
    by_node = tres.mem_mb == mem_mb * nodes
    return Reshape(
        job_id=job_id,
        shape=asked,
        cpus=(claim.cpus_per_gpu or 0) * asked.gpus_per_node or cpus * asked.gpus_per_node // gpus,
        mem_mb=mem_mb * asked.gpus_per_node // gpus if by_node else 0,
        why="slurm_dl lets it go",
    )


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


_FIELDS = (
    *("JobID", "JobArrayID", "State", "Partition", "Reservation", "QOS", "SubmitTime"),
    *SIZE_FIELDS,
)
_NO_FACTOR = -(2**31)
_UNFINISHED = frozenset(JobState) - {JobState.COMPLETED, JobState.FAILED}


def site_factors(slurm: Slurm) -> dict[JobId, int]:
    """SiteFactor of each pending job that is eligible, by one sprio call.

    Slurm shows it in no other place, and of no other jobs (measured on 22.05.8). A job in
    several partitions may be listed for each; the value is the job's. One that has several and
    whose priority was set by hand is left out: what is shown is no SiteFactor.

    Raises:
        ClusterError: Slurm is silent, or nothing in the answer can be read.
    """
    factors: dict[JobId, int] = {}
    lines = slurm.run("sprio", "--noheader", "--format=%i %S").splitlines()
    for line in lines:
        with contextlib.suppress(ValueError):
            job_id, factor = line.split()
            if int(factor) > _NO_FACTOR:
                factors[JobId(int(job_id))] = int(factor)
    if lines and not any(line.split()[-1:] == [str(_NO_FACTOR)] for line in lines) and not factors:
        msg = f"sprio says {escaped(lines[0])[:80]!r}, which is no job id and SiteFactor"
        raise ClusterError(msg)
    return factors


def set_by_hand(slurm: Slurm, jobs: Collection[JobId]) -> dict[JobId, bool]:
    """Of each of the pending and eligible *jobs* whether its priority was set by hand.

    Then sprio's column of shares of the highest priority has the priority itself, and the
    SiteFactor of a job of several partitions is the least of all numbers (22.05.8).

    Raises:
        ClusterError: Slurm is silent.
    """
    found: dict[JobId, bool] = {}
    for line in slurm.run("sprio", "--noheader", "--format=%i %y %S", *of_jobs(jobs)).splitlines():
        with contextlib.suppress(ValueError):
            job_id, share, factor = line.split()
            found[JobId(int(job_id))] = float(share) >= 1 or int(factor) <= _NO_FACTOR
    return found


def release_all(
    slurm: Slurm,
    partitions: Collection[str],
    *,
    within: str = "",
    steers: Collection[Steer] = (),
    throttles: Mapping[JobId, Throttled] = MappingProxyType({}),
) -> Iterator[str]:
    """Undo whatever of ours is left in Slurm.

    SiteFactor 0 on the unfinished jobs of *partitions*, except where it is known to be 0; no
    pending job in a reservation of ours; no such reservation, or one that lapses by itself; no
    pending job that we keep from nodes or from starting, or in another size than it asked for; no
    array with a throttle that the ledger has as ours.

    Waiting jobs come first: from then on none has a higher priority than a running one. Where
    Slurm itself preempts inside a QOS, running jobs of that QOS keep what they have until it no
    longer does, or all of them would at once have to give way to whoever has waited longest.

    Args:
        within: QOS inside which Slurm may preempt by itself; empty: none.
        steers: Those in the ledger, which knows of begin times too; without it exclusions of ours
            are known by the way they are written.
        throttles: Those in the ledger, by array; nothing else knows them.

    Yields:
        One line for each thing done, refused or skipped.

    Raises:
        ClusterError: Slurm is silent, or something was refused, skipped or kept (after all else was
            done).
    """
    kept = _why_keep(slurm, within) if within else ""
    records, skipped = _unfinished(slurm)
    managed = frozenset(partitions)
    factors = site_factors(slurm)
    # Slurm keeps the SiteFactor of a job whose priority was set by hand, and shows 0.
    by_hand = set_by_hand(slurm, factors) if factors else {}
    known = {job: factor for job, factor in factors.items() if not by_hand.get(job)}
    todo, keeping = _job_steps(records, managed, known, keep_running_of=within if kept else "")
    done = spared = 0
    waiting = {r.job_id: (r.label, r.submit_s) for r in records if r.state is JobState.PENDING}
    # Of a job that could never start Slurm shows no SiteFactor, and refuses to change anything.
    unshown = {label for job_id, (label, _) in waiting.items() if job_id not in factors}
    steered = list(steer_steps(slurm, waiting, steers, now_s=time.time(), skipped=skipped))
    unbound = list(_throttle_steps(slurm, waiting, throttles, skipped))
    yield from skipped
    refused = len(skipped)
    steps = [
        (label, " ".join(settings), partial(update_job, slurm, label, *settings))
        for label, *settings in [*steered, *unbound, *todo]
    ] + [
        (r.label, f"size {r.size.shape}", partial(change_request, slurm, r.size))
        for r in records
        if r.size is not None and not managed.isdisjoint(r.partitions.split(","))
    ]
    for label, said, do in steps:
        try:
            do()
        except ClusterError as err:
            if label in unshown and said == "SiteFactor=0":
                spared += 1
            else:
                refused += 1
            yield f"job {label}: {said} refused: {err}"
        else:
            done += 1
            yield f"job {label}: {said}"
    shown = slurm.run("scontrol", "show", "reservation", "--oneliner")
    for name in [r.name for r in read_reservations(shown) if r.is_ours]:
        try:
            yield f"reservation {name}: {unseal(slurm, name)}"
        except ClusterError as err:
            refused += 1
            yield f"reservation {name}: refused: {err}"
    if keeping:
        msg = f"{keeping} running jobs of QOS {within} keep their SiteFactor: {kept}"
        raise ClusterError(msg)
    # Where nothing else could be done, the rights may be what is missing.
    refused += 0 if done else spared
    if refused:
        msg = f"{refused} things could not be released (jobs may just have ended); run it again"
        raise ClusterError(msg)


def _throttle_steps(
    slurm: Slurm,
    waiting: Mapping[JobId, tuple[str, float]],
    throttles: Mapping[JobId, Throttled],
    skipped: list[str],
) -> Iterator[tuple[str, str]]:
    """Label and setting of each update that gives an array its owner's throttle back."""
    for job_id in sorted(throttles.keys() & waiting.keys()):
        label, throttled = waiting[job_id][0], throttles[job_id]
        if not is_array_record(job_id, label):
            continue
        try:
            present = throttle_of(slurm, label)
        except ClusterError as err:
            skipped.append(f"job {label}: skipped: its ArrayTaskThrottle cannot be read: {err}")
            continue
        if present is not None and throttled.owned(present) != present:
            yield label, f"ArrayTaskThrottle={throttled.own}"


def _why_keep(slurm: Slurm, qos: str) -> str:
    """The reason why running jobs of *qos* keep their SiteFactor for now; else empty."""
    try:
        end = to_end_within(slurm, qos)
    except ClusterError as err:
        return (
            f"whether Slurm preempts inside it cannot be found out ({err}); "
            f"sacctmgr modify qos {qos} set PreemptMode=REQUEUE, and run this again"
        )
    if not end:
        return ""
    return (
        "Slurm preempts inside it and would stop them for whoever has waited longer; "
        f"{end}, and run this again"
    )


def _job_steps(
    records: Sequence[_Record],
    managed: frozenset[str],
    factors: Mapping[JobId, int],
    *,
    keep_running_of: str,
) -> tuple[list[tuple[str, str]], int]:
    """Settings to write, by the record's label, and the number of running jobs that are kept."""
    waiting, running, kept = [], [], 0
    for record in records:
        pending = record.state is JobState.PENDING
        if pending and record.reservation.startswith(RESERVATION_PREFIX):
            waiting.append((record.label, "ReservationName="))
        ours = managed.intersection(record.partitions.split(","))
        if not ours or factors.get(record.job_id) == 0:
            continue
        if pending:
            waiting.append((record.label, "SiteFactor=0"))
        elif keep_running_of and record.qos == keep_running_of:
            kept += 1
        else:
            running.append((record.label, "SiteFactor=0"))
    return [*waiting, *running], kept


@dataclass(frozen=True, slots=True)
class _Record:
    """One record of the queue; *submit_s* in epoch seconds, *size* if it is to be another."""

    job_id: JobId
    label: str
    state: JobState
    partitions: str
    reservation: str
    qos: str
    submit_s: float
    size: Reshape | None


def _unfinished(slurm: Slurm) -> tuple[list[_Record], list[str]]:
    """The jobs that are not over, and a line about each record that had to be skipped."""
    nonce = new_nonce()
    text = slurm.run("squeue", *queue_arguments(_FIELDS, nonce))
    listed, unreadable = job_records(text, nonce, len(_FIELDS))
    skipped = [f"{unreadable} records of the queue cannot be read: skipped"] if unreadable else []
    records = []
    for raw_id, label, word, partitions, reservation, qos, submit, *told in listed:
        try:
            state, submit_s, job_id = job_state(word), epoch_s(submit), JobId(whole_of(raw_id))
            address(label)
        except ValueError as err:
            skipped.append(f"job {escaped(label)[:80]}: skipped: {escaped(str(err))}")
            continue
        by_itself = state is JobState.PENDING and label == raw_id
        size = asked_again(job_id, told) if by_itself else None
        records.append(_Record(job_id, label, state, partitions, reservation, qos, submit_s, size))
    labels = {r.job_id: r.label for r in records}
    pending = {r.job_id: r.label for r in records if r.state is JobState.PENDING}
    whole = whole_labels(slurm, labels, pending)
    changed = pending.keys() - whole.keys()
    skipped += [f"job {labels[j]}: skipped: it changed while it was read" for j in sorted(changed)]
    return [
        replace(r, label=whole.get(r.job_id, r.label))
        for r in records
        if r.state in _UNFINISHED and r.job_id not in changed
    ], skipped
