"""The same snapshot told in other ways: in another order, or with less in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from slurm_dl.model.completed_jobs import NO_PAST
from slurm_dl.model.nodes import Allocations, Nodes
from slurm_dl.model.snapshot import Remembered, Snapshot

Rows = npt.NDArray[np.int64]


def shuffles(snap: Snapshot) -> tuple[Snapshot, ...]:
    """The snapshot with its jobs and nodes listed backwards, and in an order drawn by lot."""
    n, m = len(snap.jobs), len(snap.seen.nodes)
    draw = np.random.default_rng(1)
    ways = [(np.arange(n)[::-1], np.arange(m)[::-1]), (draw.permutation(n), draw.permutation(m))]
    return tuple(reordered(snap, jobs, nodes) for jobs, nodes in ways)


def reordered(snap: Snapshot, jobs: Rows, nodes: Rows) -> Snapshot:
    """The same snapshot with its jobs and nodes listed in another order.

    Args:
        jobs: ``(n,)`` the row that each row is taken from.
        nodes: ``(m,)`` likewise.
    """
    seen = snap.seen
    to_job, to_node = np.argsort(jobs), np.argsort(nodes)
    held = seen.held
    job, node = to_job[held.job], to_node[held.node]
    by_job = np.lexsort((node, job))
    columns = {
        f.name: column[..., by_job]
        for f in dataclasses.fields(Allocations)
        if f.name not in ("job", "node") and (column := getattr(held, f.name)) is not None
    }
    names = seen.nodes.name
    node_columns = {
        f.name: column[..., nodes]
        for f in dataclasses.fields(Nodes)
        if f.name != "name" and (column := getattr(seen.nodes, f.name)) is not None
    }
    memory = {f.name: getattr(snap.memory, f.name)[jobs] for f in dataclasses.fields(Remembered)}
    optional: dict[str, Any] = {
        name: None if getattr(snap, name) is None else getattr(snap, name)[jobs]
        for name in job_columns()
    }
    return dataclasses.replace(
        snap,
        seen=dataclasses.replace(
            seen,
            jobs=seen.jobs.take(jobs),
            nodes=Nodes(name=tuple(names[i] for i in nodes.tolist()), **node_columns),
            held=Allocations(
                job=job[by_job].astype(np.int32), node=node[by_job].astype(np.int32), **columns
            ),
            node_in=seen.node_in[:, nodes],
            choices={j: mask[nodes] for j, mask in seen.choices.items()},
            excluded={j: mask[nodes] for j, mask in seen.excluded.items()},
            sharable=None if seen.sharable is None else seen.sharable[nodes],
        ),
        memory=Remembered(**memory),
        **optional,
    )


def job_columns() -> tuple[str, ...]:
    """Fields of a snapshot that have a row for each job, those of `Remembered` apart."""
    known = {f.name for f in dataclasses.fields(Snapshot)}
    own = ("left_s", *optional_columns())
    return tuple(name for name in own if name in known)


def optional_columns() -> tuple[str, ...]:
    """Fields of a snapshot that may be None."""
    return tuple(
        f.name
        for f in dataclasses.fields(Snapshot)
        if f.default is None and f.name not in ("seen", "memory")
    )


def deprived(snap: Snapshot) -> Mapping[str, Snapshot]:
    """The snapshot without each of the things that may be missing, and without all of them."""
    nothing: dict[str, Any] = dict.fromkeys(optional_columns())
    nothing["past"] = NO_PAST
    nothing["left_s"] = np.full(len(snap.jobs), np.inf)
    bare = dataclasses.replace(snap.seen, texts={}, claims={}, choices={}, also_in={})
    ways: dict[str, Snapshot] = {
        f"without {name}": dataclasses.replace(snap, **{name: value})
        for name, value in nothing.items()
        if getattr(snap, name) is not None
    }
    ways["without texts"] = _seen_with(snap, texts={})
    ways["without claims"] = _seen_with(snap, claims={})
    ways["without anything optional"] = dataclasses.replace(snap, seen=bare, **nothing)
    return ways


def _seen_with(snap: Snapshot, **values: Any) -> Snapshot:  # noqa: ANN401 - fields of Observed
    return dataclasses.replace(snap, seen=dataclasses.replace(snap.seen, **values))
