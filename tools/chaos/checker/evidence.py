"""Gathers what is known of a campaign: Slurm's accounting and queue, the jobs' output, the ledger.

Everything is read once, when the jobs are over and accounting has been told of all of them. What
cannot be read is counted and not guessed.
"""

from __future__ import annotations

import json
import re
import sqlite3
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import yaml

from slurm_dl.model.handover import RESERVATION_PREFIX
from slurm_dl.model.jobs import Held
from slurm_dl.sandbox import Sandbox
from slurm_dl.sandbox.process_control import eventually
from slurm_dl.slurm.read.grammar import tasks_of
from slurm_dl.slurm.read.tres import parse_gres
from slurm_dl.slurm.read.vocabulary import epoch_s, held
from tools.chaos.checker.records import (
    Booked,
    Deed,
    Evidence,
    Fault,
    Left,
    Life,
    Mark,
    Release,
    Run,
    Submission,
    Terms,
)

FIELDS: Final = (
    *("JobID", "JobIDRaw", "Submit", "Start", "End", "State", "ElapsedRaw", "AllocTRES"),
    "NodeList",
)
"""Asked of sacct. No field that a user can write."""

_IDS_AT_ONCE: Final = 200
_CLOCK: Final = {"SLURM_TIME_FORMAT": "%s", "TZ": "UTC", "SLURM_BITSTR_LEN": "0"}
_TOLD_WITHIN_S: Final = 60.0
_DBD_QUEUE: Final = re.compile(r"DBD Agent queue size:\s*0\b")
_RESERVATION: Final = re.compile(r"ReservationName=(\S+) .*?\bEndTime=(\S+) ")
_NODE: Final = re.compile(r"\bn[0-9]+\b")
_ALL: Final = frozenset({"PENDING", "REQUEUE_HOLD"})
_SLURMS_HOLDS: Final = (
    "job requeued in held state",
    "launch failed requeued held",
    "JobHoldMaxRequeue",
)

Line = dict[str, Any]


def gather(
    site: Path, box: Sandbox, *, reservations_of: str = RESERVATION_PREFIX, within_s: float = 60.0
) -> Evidence:
    """All that is known of the campaign in *site* on *box*.

    Args:
        reservations_of: How the names of the daemon's reservations begin.
        within_s: Accounting is waited for no longer than this, seconds.

    Raises:
        ClusterError: Slurm does not answer, or accounting is not told of the jobs' ends in time.
    """
    lines, bad = _lines(site / "submitted.jsonl")
    events, more = _lines(site / "events.jsonl")
    submissions = tuple(submission_of(line) for line in lines)
    bad += more
    eventually(
        lambda: _DBD_QUEUE.search(box.run(["sdiag"]).stdout),
        within_s,
        what="slurmctld to have told slurmdbd everything",
    )
    at_s = time.time()
    left = tuple(_left(box))
    runs, more = _runs(box, [s.job for s in submissions])
    bad += more
    lives, more = lives_in(site / "out", submissions)
    ledger, handovers = read_ledger(site / "state" / "ledger.sqlite")
    return Evidence(
        submissions=submissions,
        runs=runs,
        lives=lives,
        deeds=tuple(deeds_of(events)),
        faults=tuple(faults_of(events)),
        releases=tuple(releases_of(events)),
        left=left,
        reservations=_reservations(box, reservations_of),
        ledger=ledger,
        handovers=handovers,
        min_quantum_s=_min_quantum_s(site / "slurm_dl.yaml"),
        at_s=at_s,
        unreadable=bad + more,
    )


def _lines(path: Path) -> tuple[list[Line], int]:
    """The objects in a file of one a line, and how many lines are none."""
    found, bad = [], 0
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    for line in text.splitlines():
        try:
            one = json.loads(line)
        except ValueError:
            one = None
        if isinstance(one, dict):
            found.append(one)
        else:
            bad += 1
    return found, bad


def submission_of(line: Line) -> Submission:
    """One line of ``submitted.jsonl``."""
    contract = line.get("contract")
    terms = None
    if contract is not None:
        terms = Terms(
            signal=str(contract["signal"]),
            grace_s=float(contract["grace_s"]),
            by=str(contract.get("by") or "daemon"),
        )
    return Submission(
        job=int(line["job"]),
        tasks=tuple(int(task) for task in line.get("tasks") or ()),
        het=tuple(int(job) for job in line.get("het") or ()),
        kind=str(line.get("kind", "")),
        gpus=float(line.get("gpus", 0)),
        terms=terms,
        requeueable=bool(line.get("requeueable", True)),
        expects=str(line.get("expects", "completed")),
        at_s=float(line.get("t", 0)),
        sizes=tuple(line.get("sizes") or ()),
    )


def deeds_of(events: Iterable[Line]) -> Iterator[Deed]:
    """What users did."""
    for line in events:
        if line.get("event") in ("cancel", "user_requeue"):
            yield Deed(str(line["event"]), str(line["job"]), float(line["t"]))


def releases_of(events: Iterable[Line]) -> Iterator[Release]:
    """Every time that the cluster was given back to plain Slurm."""
    for line in events:
        if line.get("fault") == "release_all" and line.get("phase") == "end":
            told = line["detail"]
            yield Release(float(line["t"]), dict(told.get("sizes", {})), told.get("error", ""))


def faults_of(events: Iterable[Line]) -> Iterator[Fault]:
    """The faults, each from its ``begin`` to the next ``end`` of its name and detail.

    One without an end was an instant, as far as anybody knows.
    """
    open_faults: dict[tuple[str, str], Fault] = {}
    for line in sorted(events, key=lambda line: float(line.get("t", 0))):
        if line.get("event") != "fault":
            continue
        name, at_s = str(line.get("fault")), float(line["t"])
        detail = json.dumps(line.get("detail"), sort_keys=True)
        key = name, detail
        if line.get("phase") == "end":
            # The end may say more, or less, than the beginning.
            begun = (
                key if key in open_faults else next((k for k in open_faults if k[0] == name), key)
            )
            fault = open_faults.pop(begun, Fault(name, at_s, at_s, _nodes(detail)))
            yield Fault(name, fault.begin_s, at_s, fault.nodes)
            continue
        if key in open_faults:
            yield open_faults[key]
        open_faults[key] = Fault(name, at_s, at_s, _nodes(detail))
    yield from open_faults.values()


def _nodes(detail: str) -> frozenset[str]:
    return frozenset(_NODE.findall(detail))


def lives_in(directory: Path, submissions: Sequence[Submission]) -> tuple[tuple[Life, ...], int]:
    """What the jobs wrote, by process, and how many lines cannot be read."""
    het = {str(s.job): s.labels[0] for s in submissions if s.het}
    lives: list[Life] = []
    bad = 0
    for path in sorted(directory.glob("*.jsonl")):
        lines, more = _lines(path)
        bad += more
        label = het.get(path.stem, path.stem)
        processes: dict[tuple[int, str, int], list[Mark]] = {}
        for line in lines:
            try:
                key = int(line["run"]), str(line.get("node") or ""), int(line["pid"])
                mark = _mark(line)
            except (KeyError, TypeError, ValueError):
                bad += 1
                continue
            marks = processes.setdefault(key, [])
            # Of several ticks in a row only the last says something.
            if len(marks) > 1 and mark.event == marks[-1].event == "tick":
                marks.pop()
            marks.append(mark)
        lives += [
            Life(label=label, restart=run, node=node, pid=pid, marks=tuple(marks))
            for (run, node, pid), marks in processes.items()
        ]
    return tuple(lives), bad


def _mark(line: Line) -> Mark:
    status = line.get("status")
    return Mark(
        event=str(line["event"]),
        at_s=float(line["t"]),
        signal=str(line.get("signal") or ""),
        status=None if status is None else int(status),
        size=str(line.get("size") or ""),
    )


def read_ledger(path: Path) -> tuple[Mapping[int, Booked] | None, int]:
    """Attained service by job, and how many hand-overs there were; None and 0 without a ledger."""
    if not path.exists():
        return None, 0
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
        rows = db.execute("SELECT job_id, attained_gpu_s, incomplete FROM job").fetchall()
        handovers = db.execute("SELECT count(*) FROM handover").fetchone()[0]
    return {int(job): Booked(float(had), bool(part)) for job, had, part in rows}, int(handovers)


def _min_quantum_s(path: Path) -> float:
    tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    return float(tree["preemption"]["min_quantum_s"])


def _runs(box: Sandbox, job_ids: Sequence[int]) -> tuple[tuple[Run, ...], int]:
    """Every record that accounting has of these jobs, and how many cannot be read."""
    runs: dict[Run, None] = {}
    bad = 0
    for first in range(0, len(job_ids), _IDS_AT_ONCE):
        some = ",".join(map(str, job_ids[first : first + _IDS_AT_ONCE]))
        argv = ["sacct", "--allusers", "--duplicates", "--allocations", "--noheader", "--parsable2"]
        argv += [f"--format={','.join(FIELDS)}", f"--jobs={some}"]
        records = [
            x.split("|") for x in box.run(argv, _TOLD_WITHIN_S, env=_CLOCK).stdout.splitlines()
        ]
        named = {record[0] for record in records}
        for record in records:
            try:
                runs.update((run, None) for run in runs_of(record, named))
            except (ValueError, OverflowError):
                bad += 1
    return tuple(runs), bad


def runs_of(fields: Sequence[str], named: Collection[str] = ()) -> Iterator[Run]:
    """The runs that one record of sacct stands for; several only for tasks that never started.

    Args:
        named: Labels of all records. Who has a record of its own is not meant by one for many: that
            of the last task keeps all of them where slurmdbd was not told that it started.

    Raises:
        ValueError: It is no record.
    """
    label, job, submit, start, end, state, elapsed, alloc, nodes = fields
    word = state.partition(" ")[0]
    for one in (x for x in labels_in(label) if x == label or x not in named):
        yield Run(
            label=one,
            job=int(job),
            submit_s=epoch_s(submit),
            # 22.05 gives the end as the start of a job that was cancelled while it waited.
            start_s=epoch_s(start) if alloc else 0.0,
            end_s=epoch_s(end),
            state=word,
            elapsed_s=float(elapsed),
            gpus=parse_gres(alloc).gpus,
            nodes=tuple(_NODE.findall(_expanded(nodes))),
        )


def labels_in(label: str) -> list[str]:
    """The jobs that one record stands for: ``6_[1-2]`` is two."""
    array, bracket, _ = label.partition("_[")
    return [f"{array}_{task}" for task in tasks_of(label)] if bracket else [label]


def _expanded(nodes: str) -> str:
    """A host list such as ``n[1-3,5]`` with each node named."""

    def each(found: re.Match[str]) -> str:
        parts = (part.partition("-") for part in found[2].split(","))
        numbers = (n for a, _, b in parts for n in range(int(a), int(b or a) + 1))
        return ",".join(f"{found[1]}{n}" for n in numbers)

    return re.sub(r"([a-z]+)\[([0-9,-]+)\]", each, nodes)


def _left(box: Sandbox) -> Iterator[Left]:
    argv = ["squeue", "--all", "--array", "--noheader", "--format=%i|%A|%T|%Q|%r"]
    for line in box.run(argv, env=_CLOCK).stdout.splitlines():
        label, job, state, priority, reason = line.split("|", 4)
        yield from left_of(label, int(job), state, int(priority), reason)


def left_of(label: str, job: int, state: str, priority: int, reason: str) -> Iterator[Left]:
    """The jobs that one line of the queue stands for."""
    who = held(reason)
    waits = who in (Held.DEPENDENCY, Held.BEGIN_TIME)
    is_held = state in _ALL and (
        who is Held.USER_OR_ADMIN or reason in _SLURMS_HOLDS or (priority == 0 and not waits)
    )
    for one in labels_in(label):
        yield Left(label=one, job=job, state=state, reason=reason, held=is_held)


def _reservations(box: Sandbox, prefix: str) -> dict[str, float]:
    text = box.run(["scontrol", "--oneliner", "show", "reservation"], env=_CLOCK).stdout
    found = (_RESERVATION.match(line) for line in text.splitlines())
    return {m[1]: epoch_s(m[2]) for m in found if m is not None and m[1].startswith(prefix)}
