"""By what the queue can be sorted: the words that both ends of the control socket know.

It stands alone because a command imports it at every prompt, so it imports nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

SORTS = (
    "rank",
    "running",
    "attained",
    "job",
    "user",
    "account",
    "partition",
    "name",
    "gpus",
    "tier",
    "time",
    "restarts",
)
"""What a word may be; with ``-`` before it the order is turned round, as in squeue's ``--sort``.

``running``: by state, running jobs first. Numbers ascend, names go by the alphabet; jobs without a
rank or a tier come last either way."""


def unknown(words: Sequence[str]) -> str:
    """The first word by which nothing can be sorted; empty if there is none."""
    return next((w for w in words if w.removeprefix("-") not in SORTS), "")
