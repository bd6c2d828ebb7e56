"""Completion of job ids, partitions and models; nothing is offered if the daemon does not answer.

It runs at each press of a key, so it waits half a second at most and says nothing of errors.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from slurm_dl.client_config import read_client_config
from slurm_dl.daemon.control.client import Client, daemon_at
from slurm_dl.json_types import Json, JsonObject, as_list
from slurm_dl.model.errors import SlurmDlError
from slurm_dl.text import safe

_WAIT_S = 0.5
_MOST = 100
_WORD = frozenset("_-+.")
"""Characters of a word that are offered beside letters and digits: a shell may run the others."""


def job_ids(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Jobs of the daemon's last look, the caller's own first."""
    _, begun = _divided(param, incomplete)
    mine: list[Json] = [str(os.getuid())]
    own = _asked(ctx, "queue", user=mine, search=begun, limit=_MOST)
    others = _asked(ctx, "queue", search=begun, limit=_MOST) if own else {}
    jobs = [*as_list(own.get("jobs")), *as_list(others.get("jobs"))]
    # The tasks of an array that wait are called by the array's id.
    words = {
        str(job["job"]).partition("_[")[0]: f"{job['state']} {job['name']}"
        for job in jobs
        if isinstance(job, dict)
    }
    return _items(param, incomplete, words.items())


def partitions(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Partitions that the daemon manages, and those of the jobs that it sees."""
    values = [v for v in as_list(_asked(ctx, "config").get("values")) if isinstance(v, dict)]
    names = [n for v in values if v["key"] == "manage.partitions" for n in as_list(v["value"])]
    for job in as_list(_asked(ctx, "queue", limit=_MOST).get("jobs")):
        names += as_list(job.get("partitions")) if isinstance(job, dict) else []
    return _items(param, incomplete, ((name, "") for name in sorted(set(map(str, names)))))


def models(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Models with a profile of the site's or of slurm_dl's, by the names of the files."""
    from slurm_dl.profiles.directory import SUFFIX, shipped_directory  # noqa: PLC0415 - 0.1 s

    del ctx
    names = set[str]()
    for directory in (shipped_directory(), Path(read_client_config().profile_dir)):
        try:
            names.update(file.stem for file in directory.iterdir() if file.suffix == SUFFIX)
        except OSError:
            continue
    return _items(param, incomplete, ((name, "") for name in sorted(names)))


def _asked(ctx: click.Context, request: str, **fields: Json) -> JsonObject:
    """The daemon's answer; empty if there is none."""
    at: click.Context | None = ctx
    socket = None
    while at is not None and socket is None:
        socket, at = at.params.get("socket"), at.parent
    try:
        return Client(daemon_at(socket), _WAIT_S).ask(request, **fields)
    except SlurmDlError:
        return {}


def _divided(param: click.Parameter, incomplete: str) -> tuple[str, str]:
    """Of a list what stands already, and the word that is begun."""
    if isinstance(param, click.Option) and param.multiple:
        first, comma, last = incomplete.rpartition(",")
        return first + comma, last
    return "", incomplete


def _items(
    param: click.Parameter, incomplete: str, words: Iterable[tuple[str, str]]
) -> list[CompletionItem]:
    before, begun = _divided(param, incomplete)
    return [
        CompletionItem(before + word, help=safe(text, 60) or None)
        for word, text in words
        if word.startswith(begun) and all(c.isalnum() or c in _WORD for c in word)
    ]
