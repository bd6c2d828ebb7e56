"""Terms of promises in the papers' ideal cluster: GPUs may be anywhere, and come back at once."""

from __future__ import annotations

import numpy as np

from slurm_dl.model.promise import NodeGroup, PromiseTerms, SharePlace
from slurm_dl.model.snapshot import Snapshot


def ideal_terms(snap: Snapshot) -> PromiseTerms:
    """Terms where no engine sets any: a group of nodes for each GPU type that jobs ask for."""
    jobs, nodes = snap.jobs, snap.seen.nodes
    kinds, group = np.unique(jobs.gpu_type, return_inverse=True)
    groups = tuple(
        NodeGroup(nodes=nodes.up if kind < 0 else nodes.up & nodes.with_type(kind), kind=kind)
        for kind in kinds.tolist()
    )
    either = (jobs.gpu_type[:, None] < 0) | (kinds < 0)
    return PromiseTerms(
        groups=groups,
        group=group.reshape(-1).astype(np.int64),
        meets=either | (jobs.gpu_type[:, None] == kinds),
        places=(SharePlace(None, float(nodes.gpus[nodes.up].sum())),),
        returns_s=np.zeros(len(jobs)),
        holds_s=np.zeros(len(jobs)),
    )
