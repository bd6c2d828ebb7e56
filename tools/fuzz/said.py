"""A Slurm that says what the fuzzer wants, and a site to read its jobs with."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path

from slurm_dl.slurm.controller import SiteConfig
from slurm_dl.slurm.read.node_reader import NODE_FIELDS, ClusterReading, read_nodes, site_of
from slurm_dl.slurm.releases import Release
from slurm_dl.slurm.tool_runner import Slurm

NONCE = "xn"
"""Stands for the separator that is drawn anew for each call: short, so that a fuzzer finds it."""

_OLDEST = Release(22, 5, 8)
_DRAWN = re.compile(r":(x[a-z0-9]{9})[fr]")


class SaidSlurm(Slurm):
    """Answers each tool with fixed words.

    Args:
        answers: Standard output by tool, and by ``squeue -o``; the other tools say nothing.
    """

    def __init__(self, answers: Mapping[str, str]) -> None:
        self._answers = answers

    @property
    def slurm_conf(self) -> str:
        """None is given."""
        return str(Path("/nowhere"))

    def has(self, tool: str) -> bool:
        """All are there."""
        return bool(tool)

    def run(self, tool: str, *args: str, within_s: float = 0.0) -> str:
        """The words for *tool*, with the separators that were asked for."""
        del within_s
        drawn = next((m[1] for word in args if (m := _DRAWN.search(word))), "")
        said = self._answers.get(tool, "")
        if drawn:
            return said.replace(NONCE, drawn)
        # squeue is asked for what owners exclude by another option, without separators.
        return self._answers.get(f"{tool} -o", said)


def record(fields: tuple[str, ...], values: Mapping[str, str]) -> bytes:
    """One record as squeue or sinfo prints *fields*; those not in *values* are ``N/A``."""
    return (f"{NONCE}f".join(values.get(name, "N/A") for name in fields) + f"{NONCE}r\n").encode()


@functools.cache
def site(release: Release = _OLDEST) -> ClusterReading:
    """Two nodes of four GPUs."""
    plain = {"StateComplete": "idle", "Partition": "gpu*", "CPUs": "16", "Memory": "1000"}
    said = b"".join(
        record(NODE_FIELDS, plain | {"NodeList": name, "Gres": "gpu:a100:4", "features_act": "ib"})
        for name in ("n1", "n2")
    )
    return site_of(
        read_nodes(said.decode(), NONCE),
        topology="",
        reservations=(),
        config=SiteConfig(release=release, tracks_memory=True),
        type_row={},
    )
