"""Reservations of ours, which keep freed nodes for those they were freed for: made and ended.

Why, and how they come off again: docs/adr/0006-sealed-hand-over.md.
"""

from __future__ import annotations

import math
import pwd
import re
from collections.abc import Sequence

from slurm_dl.model.errors import ClusterError
from slurm_dl.model.handover import RESERVATION_PREFIX, reservation_name
from slurm_dl.model.plan import Reserve
from slurm_dl.slurm.read.node_reader import ReservationSeen, read_reservations
from slurm_dl.slurm.tool_runner import Slurm
from slurm_dl.text import escaped

# FLEX and IGNORE_JOBS seal nodes that others still use; NO_HOLD_JOBS_AFTER keeps Slurm from
# holding the jobs that still wait when the reservation ends (all measured on 22.05.8).
_FLAGS = "IGNORE_JOBS,FLEX,NO_HOLD_JOBS_AFTER"
_NAME_OF_OURS = re.compile(re.escape(RESERVATION_PREFIX) + r"[A-Za-z0-9_]+")
_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_USER_NAME = re.compile(r"[A-Za-z0-9._][^\s,=]*")
_LAPSE_S = 5


def seal(slurm: Slurm, action: Reserve) -> None:
    """Make a reservation of ours, or find that it stands.

    Raises:
        ClusterError: Refused, silent, or another of that name stands.
    """
    name = reservation_name(action.handover_id)
    for node in action.nodes:
        if _NODE_NAME.fullmatch(node) is None:
            msg = f"reservation {name}: {node!r} is no node name"
            raise ClusterError(msg)
    users = _user_names(action.uids, name)
    minutes = max(1, math.ceil(action.duration_s / 60))
    try:
        slurm.run(
            "scontrol",
            "create",
            "reservation",
            f"ReservationName={name}",
            f"Nodes={','.join(action.nodes)}",
            f"Users={','.join(users)}",
            "StartTime=now",
            f"Duration={minutes}",
            f"Flags={_FLAGS}",
        )
    except ClusterError:
        standing = _reservation(slurm, name)
        if standing is None:
            raise
        _check_standing(standing, action.nodes)


def unseal(slurm: Slurm, name: str) -> str:
    """Delete a reservation of ours, or let it lapse while a job runs in it.

    Returns:
        What was done, in one word: ``deleted``, ``shortened`` or ``gone``.

    Raises:
        ClusterError: Refused, silent, or the reservation is not ours.
    """
    if _NAME_OF_OURS.fullmatch(name) is None:
        msg = f"reservation {escaped(name)[:80]} is not ours; it is left alone"
        raise ClusterError(msg)
    try:
        slurm.run("scontrol", "delete", f"ReservationName={name}")
    except ClusterError:
        if _reservation(slurm, name) is None:
            return "gone"
    else:
        return "deleted"
    # In use. Measured on 22.05.8: it can be made to end while a job runs in it; its nodes are free
    # for others within a second, and the job runs on. An end that is not after the start is
    # refused, so one made in this very second gets a few more.
    update = ("scontrol", "update", f"ReservationName={name}")
    try:
        slurm.run(*update, "EndTime=now")
    except ClusterError:
        slurm.run(*update, f"EndTime=now+{_LAPSE_S}")
    return "shortened"


def _reservation(slurm: Slurm, name: str) -> ReservationSeen | None:
    seen = read_reservations(slurm.run("scontrol", "show", "reservation", "--oneliner"))
    return next((r for r in seen if r.name == name), None)


def _check_standing(standing: ReservationSeen, nodes: Sequence[str]) -> None:
    """Refuse a reservation that is not the one that was to be made."""
    extra, missing = set(standing.nodes) - set(nodes), set(nodes) - set(standing.nodes)
    wrong = [f"it also has {','.join(sorted(extra))}"] if extra else []
    if missing:
        wrong.append(f"it lacks {','.join(sorted(missing))}")
    if not standing.active:
        wrong.append("it is not active")
    if wrong:
        msg = f"reservation {standing.name} stands already and is another: {'; '.join(wrong)[:200]}"
        raise ClusterError(msg)


def _user_names(uids: Sequence[int], reservation: str) -> list[str]:
    """The users a reservation can be made for; one without a name must not stop the others."""
    names, without = [], []
    for uid in uids:
        try:
            name = pwd.getpwuid(uid).pw_name
        except (KeyError, OverflowError):
            without.append(f"uid {uid} has no user name here")
            continue
        if _USER_NAME.fullmatch(name) is None:
            without.append(f"user name {escaped(name)!r} cannot be written into one")
            continue
        names.append(name)
    if not names:
        why = "; ".join(without)[:200] or "it has no users"
        msg = f"reservation {reservation} can be made for nobody: {why}"
        raise ClusterError(msg)
    return names
