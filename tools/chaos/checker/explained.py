"""What explains that a run ended as it did: its user, the job itself, or something that broke.

What is left unexplained was the daemon. An explanation needs a record of its own: the deed that a
user is known to have done, the job's word that it asked for it, a fault that was injected.
"""

from __future__ import annotations

import re
from typing import Final

from tools.chaos.checker.records import Evidence, Fault, Job, Life, Mark, Run

WHOLE_S: Final = 1.0
"""Slurm tells whole seconds, cut off."""

DEED_S: Final = 10.0
"""A user's deed is written down when its command returns; it ends a run this near to it."""

NODE_AFTER_S: Final = 15.0
"""What a fault on a node brings about comes up to this long after it."""

CONTROLLER_AFTER_S: Final = 5.0
"""The same of slurmctld, which concerns everybody."""

BY_ITSELF: Final = "requeues_itself"
"""What a job writes before it asks Slurm to put it back."""

_NODE: Final = frozenset({"slurmd", "node", "nodes", "slurmstepd", "munge", "munged"})
_CONTROLLER: Final = frozenset({"slurmctld", "controller", "munge", "munged"})


def completed(life: Life) -> bool:
    """Its program came to its end, by its own words."""
    end = life.first("end")
    return end is not None and end.status == 0


def asked(job: Job, run: Run) -> tuple[Mark, ...]:
    """The signals of its contract that a run got, without what ends it."""
    terms = job.submission.terms
    if terms is None:
        return ()
    marks = tuple(
        m
        for life in job.lives_in(run)
        for m in life.signals(terms.signal)
        if not run.end_s or m.at_s <= run.end_s + WHOLE_S
    )
    if terms.signal != "TERM":
        return marks
    # Slurm ends every run with TERM: the last one is that, if it came when the run was ended.
    ended = bool(marks) and run.is_over and marks[-1].at_s >= run.end_s
    return marks[:-1] if ended else marks


def said_ready(job: Job, run: Run, since_s: float) -> bool:
    """Whether a run acknowledged, or its program ended by itself, after it was told to go."""
    for life in job.lives_in(run):
        is_ended = False
        for mark in life.marks:
            if not since_s <= mark.at_s <= run.end_s + WHOLE_S:
                continue
            # What a program does after TERM at the end of its run is no answer.
            is_ended |= mark.signal == "TERM" and mark.at_s >= run.end_s
            if mark.event == "ack" or (mark.event == "end" and not is_ended):
                return True
    return False


def who_put_back(job: Job, run: Run, evidence: Evidence) -> str | None:
    """Who put the job back after *run*; empty if nobody is known, None if nobody did.

    One whose program had come to its end is no preemption: that is another matter.
    """
    failed = run.state == "NODE_FAIL" and run is not job.runs[-1]
    if not (run.is_requeued or failed) or any(completed(life) for life in job.lives_in(run)):
        return None
    if failed:
        return "put back by Slurm for a failed node" if node_was_lost(run, evidence) else ""
    if by_user(job, run.end_s):
        return "put back by its user"
    said = (m.at_s for life in job.lives_in(run) for m in life.marks if m.event == BY_ITSELF)
    if any(abs(run.end_s - at_s) <= DEED_S for at_s in said):
        return "put back by itself"
    return ""


def by_user(job: Job, at_s: float) -> bool:
    """Whether its user put it back at about this time."""
    return any(abs(did_s - at_s) <= DEED_S for did_s in job.did("user_requeue"))


def node_was_lost(run: Run, evidence: Evidence) -> bool:
    """Whether a fault explains that Slurm lost a node of this run."""
    return node_broke(run, evidence) or controller_broke(evidence, run.start_s, run.end_s + WHOLE_S)


def node_broke(run: Run, evidence: Evidence, *, since_s: float = 0.0) -> bool:
    """Whether a fault on a node of this run fell into it, or what comes after such a fault.

    Args:
        since_s: Only what fell later than this, epoch seconds.
    """
    from_s = max(run.start_s, since_s)
    return any(
        _NODE.intersection(_words(fault))
        and _touches(fault, from_s, run.end_s + WHOLE_S, NODE_AFTER_S)
        and (not run.nodes or not fault.nodes or not fault.nodes.isdisjoint(run.nodes))
        for fault in evidence.faults
    )


def controller_broke(evidence: Evidence, from_s: float, to_s: float) -> bool:
    """The same of slurmctld and some time."""
    return any(
        _CONTROLLER.intersection(_words(fault))
        and _touches(fault, from_s, to_s, CONTROLLER_AFTER_S)
        for fault in evidence.faults
    )


def any_node_broke(evidence: Evidence) -> bool:
    """Whether there was any fault on a node at all."""
    return any(_NODE.intersection(_words(fault)) for fault in evidence.faults)


def _touches(fault: Fault, from_s: float, to_s: float, after_s: float) -> bool:
    return fault.begin_s <= to_s and fault.end_s + after_s >= from_s


def _words(fault: Fault) -> list[str]:
    return re.findall("[a-z]+", fault.name.lower())
