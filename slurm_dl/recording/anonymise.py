"""A snapshot without names: whoever gets the recording learns nothing of people and projects.

A name becomes the same stand-in all through a recording, numbered as they come. What is not listed
here is left out, so a new text about jobs cannot leak. Partitions, GPU types, model profiles and
job ids stay: they are the site's, and a decision depends on them. What a scheme or a rule of
placement is given by name is given to accounts, unless it is a partition or a GPU type.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TypeVar

import numpy as np

from slurm_dl.json_types import Json
from slurm_dl.ledger.run_contracts import BROKEN
from slurm_dl.model.handover import Handover
from slurm_dl.model.jobs import Jobs
from slurm_dl.model.snapshot import JobText, Snapshot
from slurm_dl.model.steer import Steer
from slurm_dl.recording.cycles_file import Setup

_T = TypeVar("_T")

_REPLACED = ("name", "user", "account", "qos")


class Anonymous:
    """Replaces names; the same object must see all snapshots of one recording."""

    def __init__(self) -> None:
        self._known: defaultdict[str, dict[object, int]] = defaultdict(dict)

    def __call__(self, snap: Snapshot) -> Snapshot:
        """*snap* with stand-ins for users, accounts, QOS, job names, uids and nodes."""
        seen = snap.seen
        nodes = dataclasses.replace(
            seen.nodes, name=tuple(self._stand_in("node", name) for name in seen.nodes.name)
        )
        texts = {job_id: self._text(text) for job_id, text in seen.texts.items()}
        left_out = {
            job_id: dataclasses.replace(one, uid=self._number("uid", one.uid))
            for job_id, one in seen.left_out.items()
        }
        seen = dataclasses.replace(
            seen, jobs=self._jobs(seen.jobs), nodes=nodes, texts=texts, left_out=left_out
        )
        handovers = tuple(self._handover(h) for h in snap.handovers)
        steers = {job_id: self._steer(steer) for job_id, steer in snap.steers.items()}
        past = dataclasses.replace(
            snap.past,
            accounts=tuple(self._stand_in("account", name) for name in snap.past.accounts),
            users=tuple(self._stand_in("user", name) for name in snap.past.users),
            names=tuple(self._stand_in("name", name) for name in snap.past.names),
        )
        breakers = tuple(dataclasses.replace(breaker, reset_by="") for breaker in snap.breakers)
        restarts = tuple(
            dataclasses.replace(r, uid=r.uid if r.uid < 0 else self._number("uid", r.uid))
            for r in snap.restarts
        )
        services = tuple(
            dataclasses.replace(one, name=self._stand_in("name", one.name)) for one in snap.services
        )
        return dataclasses.replace(
            snap,
            services=services,
            seen=seen,
            handovers=handovers,
            steers=steers,
            past=past,
            breakers=breakers,
            restarts=restarts,
            # Keys and bodies of a policy may name anybody.
            booked=tuple(
                dataclasses.replace(e, key=str(self._number("uid", int(e.key))))
                for e in snap.booked
                if e.kind == BROKEN and e.key.isdecimal()
            ),
        )

    def setup(self, setup: Setup, snap: Snapshot) -> Setup:
        """*setup* with stand-ins for the accounts and QOS in parameters.

        Args:
            snap: What it is for, as it was seen.
        """
        kept = frozenset((*snap.seen.partitions, *snap.seen.gpu_types))
        placement = setup.settings.placement
        scheme = placement.scheme and self._chosen(placement.scheme, kept)
        rules = tuple(self._chosen(rule, kept) for rule in placement.rules)
        placement = dataclasses.replace(placement, scheme=scheme, rules=rules)
        deadlines = setup.settings.deadlines
        if deadlines is not None:
            qos = tuple(self._stand_in("qos", name) for name in deadlines.qos)
            deadlines = dataclasses.replace(deadlines, qos=qos)
        limits = setup.settings.preemption
        exempt = tuple(self._stand_in("account", name) for name in limits.exempt_accounts)
        settings = dataclasses.replace(
            setup.settings, placement=placement, deadlines=deadlines,
            preemption=dataclasses.replace(limits, exempt_accounts=exempt),
        )  # fmt: skip
        parameters = {
            name: self._table("qos" if "qos" in name else "account", value, kept)
            for name, value in setup.parameters.items()
        }
        return dataclasses.replace(setup, settings=settings, parameters=parameters)

    def _table(self, kind: str, value: Json, kept: frozenset[str]) -> Json:
        """A parameter, the names in it replaced if it is a table by name."""
        if not isinstance(value, list):
            return value
        return [self._entry(kind, entry, kept) for entry in value]

    def _entry(self, kind: str, entry: Json, kept: frozenset[str]) -> Json:
        match entry:
            case [str(name), number] if name not in kept:
                return [self._stand_in(kind, name), number]
            case _:
                return entry

    def _chosen(self, chosen: _T, kept: frozenset[str]) -> _T:
        named = {
            field.name: {
                key if key in kept else self._stand_in("account", key): value
                for key, value in getattr(chosen, field.name).items()
            }
            for field in dataclasses.fields(chosen)  # type: ignore[arg-type] # see `Scheme`
            if isinstance(getattr(chosen, field.name), Mapping)
        }
        return dataclasses.replace(chosen, **named) if named else chosen  # type: ignore[type-var]

    def _jobs(self, jobs: Jobs) -> Jobs:
        uids, at = np.unique(jobs.uid, return_inverse=True)
        numbers = np.array([self._number("uid", uid) for uid in uids.tolist()], dtype=np.int64)
        return dataclasses.replace(jobs, uid=numbers[at])

    def _text(self, text: JobText) -> JobText:
        kept = {name: self._stand_in(name, getattr(text, name)) for name in _REPLACED}
        # The first word is Slurm's own; what follows may name nodes.
        words = text.reason.replace(",", " ").split()
        return JobText(label=text.label, reason=words[0] if words else "", **kept)

    def _handover(self, handover: Handover) -> Handover:
        names = tuple(self._stand_in("node", name) for name in handover.nodes)
        return dataclasses.replace(handover, nodes=names)

    def _steer(self, steer: Steer) -> Steer:
        return dataclasses.replace(
            steer,
            avoid=self._nodes(steer.avoid),
            own=self._nodes(steer.own),
            left=self._nodes(steer.left),
            why="",  # In a scheme's own words, which may name nodes.
        )

    def _nodes(self, names: Iterable[str]) -> tuple[str, ...]:
        return tuple(sorted(self._stand_in("node", name) for name in names))

    def _stand_in(self, kind: str, name: str) -> str:
        return f"{kind}-{self._number(kind, name)}" if name else ""

    def _number(self, kind: str, name: object) -> int:
        known = self._known[kind]
        return known.setdefault(name, len(known) + 1)
