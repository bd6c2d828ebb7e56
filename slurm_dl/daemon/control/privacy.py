"""Visibility of other users' jobs to an ordinary user, under Slurm's PrivateData.

Slurm hides jobs from squeue; dlschedd reads as an Operator and sees them all. So with ``jobs`` in
PrivateData, and until it is known what PrivateData says, it shows a user no more than Slurm would:
their own jobs and, of all others, numbers.
What is passed on is listed here, not what is held back: a field that somebody adds to the status
stays hidden until it is listed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from slurm_dl.daemon.control.reception import Peer, RequestError
from slurm_dl.daemon.control.wire_format import RefusalKind
from slurm_dl.daemon.published_state import PublishedState
from slurm_dl.engine.explain.past_reasons import Everything, Sight
from slurm_dl.json_types import Json, JsonObject

STATUS_SHOWN = frozenset(
    {
        "actions",
        "age_s",
        "audit",
        "config_file",
        "cycles",
        "doing",
        "durations_ms",
        "failures",
        "forecasts",
        "bugs",
        "checked_s",
        "gpus",
        "jobs",
        "last_error",
        "left",
        "live",
        "managed_jobs",
        "next_poll_s",
        "now_s",
        "paused",
        "pid",
        "placement",
        "planned",
        "policy",
        "preemption",
        "protocol",
        "seen_s",
        "stale",
        "slurmctld",
        "started_s",
        "steers",
        "steers_ended",
        "tiers",
        "unreadable",
        "version",
    }
)
"""Fields of the status that are numbers over all jobs, or about the daemon alone."""

STATUS_WORDS = frozenset({"trouble", "reloaded"})
"""Fields with a ``message`` of which nobody knows beforehand what it names: for admins alone."""

_STANDING = frozenset({"doing", "last_error", "paused"})
_HISTORY_SHOWN = ("time", "epoch_s", "action", "handover")

_MESSAGE = "see dlschedd's log"
_ADMIN = "an admin"
_OTHER = "another user's job"

# Possessive throughout: of "and 12 more" nothing may be given back, or a part is taken for a job.
_NUMBER = r"[0-9]++(?:[_+.-][0-9]++|_\[[^\]\s]*+\]?+)?+"
_NAMED = re.compile(
    r"(?:\b(?:array_?|het_?)?(?:(?:jobs?|steps?)(?:[ _]?ids?)?|victims?)(?: ?[=:] ?| )"
    r"|(?<=\brequeue ))"
    rf"(?P<ids>{_NUMBER}(?:(?:, ?| and ){_NUMBER}(?! more\b))*+)"
    r"(?P<more> and [0-9]++ more\b)?(?P<model> \([^()]*\))?",
    re.ASCII | re.IGNORECASE,
)
_DIGITS = 10  # No job has a longer number

_SPLIT = re.compile(r".* on one GPU (?:are slower|reach) ", re.DOTALL)
"""Begins with the names of the models, or of the jobs, that share the GPU."""


@dataclass(frozen=True, slots=True)
class Own:
    """The sight of an ordinary user who may see their own jobs only; see `Sight`."""

    uid: int  # Who asks
    ids: Collection[int]  # Their jobs

    def knows(self, job_id: int) -> bool:
        """Whether it is their own."""
        return job_id in self.ids

    def jobs(self, job_ids: Sequence[int]) -> str:
        """Their own by number, the others counted."""
        own = [str(j) for j in job_ids if self.knows(j)]
        others = len(job_ids) - len(own)
        counted = [] if not others else [_OTHER if others == 1 else f"{others} other users' jobs"]
        return " and ".join([*([", ".join(own)] if own else []), *counted])

    def text(self, words: str) -> str:
        """The engine's words with every job that is not theirs counted in place of named."""
        if _SPLIT.match(words):
            return "the jobs that share its GPU are slower than one after the other"
        return _NAMED.sub(self._renamed, words)

    def _renamed(self, found: re.Match[str]) -> str:
        ids = re.findall(_NUMBER, found["ids"])
        own = [i for i in ids if i.isdecimal() and len(i) <= _DIGITS and self.knows(int(i))]
        if len(own) == len(ids) and not found["more"]:
            return found[0]
        if not own:
            return _OTHER if len(ids) == 1 and not found["more"] else "other users' jobs"
        return f"job{'s' if len(own) > 1 else ''} {', '.join(own)} and other users' jobs"


def sight_of(peer: Peer, now: PublishedState) -> Sight:
    """Visibility of jobs to *peer*, by the PrivateData that was read last."""
    if not _has(peer, now, {"jobs"}):
        return Everything()
    if now.cycle is None:
        return Own(peer.uid, frozenset())
    jobs, left_out = now.cycle.snapshot.jobs, now.cycle.snapshot.seen.left_out
    own = {job_id for job_id, one in left_out.items() if one.uid == peer.uid}
    return Own(peer.uid, frozenset(own.union(jobs.job_id[jobs.uid == peer.uid].tolist())))


def check_config(peer: Peer, now: PublishedState) -> None:
    """Refuse the configuration to whom users and accounts are hidden: it names some.

    Raises:
        RequestError: *peer* may not read it.
    """
    if _has(peer, now, {"accounts", "users"}):
        hides = "hides" if now.slurm else "was not read yet, and may hide"
        msg = f"Slurm's PrivateData {hides} users and accounts, which the configuration names"
        raise RequestError(RefusalKind.DENIED, msg)


def _has(peer: Peer, now: PublishedState, words: Collection[str]) -> bool:
    """Whether one of *words* is in PrivateData for *peer*; all are while it is not known."""
    if peer.is_admin:
        return False
    if now.slurm is None:
        return True
    return peer.uid != now.slurm.slurm_uid and not now.slurm.private.isdisjoint(words)


def trouble_for(message: str, sight: Sight) -> str:
    """The words of an error, of which nobody knows beforehand what they name."""
    return _MESSAGE if isinstance(sight, Own) else message


def status_for(answer: JsonObject, sight: Sight) -> JsonObject:
    """Of the status what is theirs to know: numbers, and hand-overs of their own jobs."""
    if not isinstance(sight, Own):
        return answer
    shown = {key: value for key, value in answer.items() if key in STATUS_SHOWN}
    for key in STATUS_WORDS & answer.keys():
        last = answer[key]
        shown[key] = {**last, "message": _MESSAGE} if isinstance(last, dict) else None
    shown |= standing_for({key: shown[key] for key in _STANDING & shown.keys()}, sight)
    if "reader" in answer:
        reader = answer["reader"]
        shown["reader"] = _reader(reader, sight) if isinstance(reader, dict) else None
    breakers = answer.get("breakers")
    if isinstance(breakers, list):
        shown["breakers"] = [_breaker(b, sight) for b in breakers if isinstance(b, dict)]
    handovers = answer.get("handovers")
    if isinstance(handovers, list):
        seen = (_handover(h, sight) for h in handovers if isinstance(h, dict))
        shown["handovers"] = [h for h in seen if h["beneficiaries"] or h["victims"]]
    return shown


def standing_for(standing: JsonObject, sight: Sight) -> JsonObject:
    """Of what `standing_of` says, what is theirs to know: not who paused, why, nor what failed."""
    if not isinstance(sight, Own):
        return standing
    shown = dict(standing)
    if isinstance(doing := standing.get("doing"), str):
        shown["doing"] = sight.text(doing)
    if isinstance(paused := standing.get("paused"), dict):
        shown["paused"] = {"by": _ADMIN, "since_s": paused["since_s"], "reason": ""}
    if standing.get("last_error"):
        shown["last_error"] = _MESSAGE
    return shown


def _reader(reader: JsonObject, sight: Own) -> JsonObject:
    return {"name": reader["name"], "reason": sight.text(str(reader["reason"]))}


def _breaker(breaker: JsonObject, sight: Own) -> JsonObject:
    jobs = [j for j in _list(breaker["jobs"]) if isinstance(j, int) and sight.knows(j)]
    return {**breaker, "jobs": list(jobs), "reset_by": breaker["reset_by"] and _ADMIN}


def _handover(handover: JsonObject, sight: Own) -> JsonObject:
    best, victims = handover["beneficiaries"], handover["victims"]
    return {
        "handover": handover["handover"],
        "opened_s": handover["opened_s"],
        "purpose": handover["purpose"],
        "beneficiaries": [b for b in _list(best) if isinstance(b, int) and sight.knows(b)],
        "victims": [
            v
            for v in _list(victims)
            if isinstance(v, dict) and isinstance(v["job"], int) and sight.knows(v["job"])
        ],
        # Others run there.
        "nodes": [],
        "seal": handover["seal"],
    }


def row_for(row: JsonObject, sight: Sight) -> JsonObject:
    """A row of a job of theirs: what the engine notes of it may name others."""
    return {**row, "note": sight.text(str(row["note"]))}


def history_for(lines: Sequence[JsonObject], sight: Sight) -> list[JsonObject]:
    """The audit lines of a job of theirs, without what they say of others."""
    if isinstance(sight, Everything):
        return list(lines)
    return [_line(line, sight) for line in lines]


def _line(line: Mapping[str, Json], sight: Sight) -> JsonObject:
    job = line.get("job")
    return {
        **{key: line.get(key) for key in _HISTORY_SHOWN},
        "actor": line.get("actor") if line.get("actor") == "dlschedd" else _ADMIN,
        "job": job if isinstance(job, int) and sight.knows(job) else None,
        "reason": sight.text(str(line.get("reason") or "")),
        "result": sight.text(str(line.get("result") or "")),
        "details": {},
    }


def _list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []
