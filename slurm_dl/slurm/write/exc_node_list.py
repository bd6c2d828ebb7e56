"""Form of a steer in a job's ExcNodeList, which keeps it apart from its owner's nodes.

The first of the nodes we keep a job from stands twice, and behind them, if its owner excludes any,
so does the first of the owner's: ``n1,n[1-3],n7,n7`` keeps it from n1, n2 and n3 for us and from
n7 for its owner. Slurm takes a name twice for once; squeue folds the list, and ``scontrol show
job`` prints it as it was written, also after a requeue (measured on 22.05.8).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from slurm_dl.model.errors import ClusterError
from slurm_dl.slurm.read.hostlists import NO_WORDS, expand, fold
from slurm_dl.text import escaped

_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_PART = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")


@dataclass(frozen=True, slots=True)
class ExcNodeList:
    """The nodes of an ExcNodeList: ours, and the owner's; both sorted."""

    avoid: tuple[str, ...]
    own: tuple[str, ...]


def exc_node_list(avoid: Sequence[str], own: Sequence[str]) -> str:
    """The list that keeps a job from *avoid* for us and from *own* for its owner.

    Raises:
        ClusterError: One of them is no node name.
    """
    for node in (*avoid, *own):
        if _NODE_NAME.fullmatch(node) is None:
            msg = f"{escaped(node)[:80]!r} is no node name"
            raise ClusterError(msg)
    if not avoid:
        return fold(own)
    doubled = [f"{names[0]},{fold(names)}" for names in (sorted(avoid), sorted(own)) if names]
    return ",".join(doubled)


def parts_of(nodes: str) -> ExcNodeList:
    """Our nodes and the owner's in an ExcNodeList as ``scontrol show job`` prints it.

    Raises:
        ClusterError: It is no node list.
    """
    if nodes in NO_WORDS:
        return ExcNodeList((), ())
    names = [name for part in _PART.findall(nodes) for name in expand(part)]
    if not names:
        msg = f"node list {escaped(nodes[:80])} cannot be read: it names none"
        raise ClusterError(msg)
    often = Counter(names)
    twice = {name for name, times in often.items() if times > 1}
    if names[0] not in twice:
        return ExcNodeList((), tuple(sorted(often)))
    begins = next((i for i, n in enumerate(names) if n in twice and n != names[0]), len(names))
    own = set(names[begins:])
    return ExcNodeList(tuple(sorted(often.keys() - own)), tuple(sorted(own)))
