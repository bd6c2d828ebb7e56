"""Runs of all jobs by node, with GPUs or without, out of Slurm's accounting; nodes idle now."""

from __future__ import annotations

from functools import partial

from slurm_dl.slurm.accounting.query import Record, ask, windows
from slurm_dl.slurm.read.grammar import MOST_NODES, NO_WORDS, expand, names_in
from slurm_dl.slurm.read.node_reader import is_up, node_arguments, read_nodes
from slurm_dl.slurm.read.record_parser import new_nonce
from slurm_dl.slurm.read.vocabulary import bounded_epoch_s
from slurm_dl.slurm.tool_runner import Slurm

FIELDS = ("JobID", "Start", "End", "NodeList")  # No text of a user

NodeRun = tuple[str, float, float]  # Node, start and end, epoch seconds


def runs_on_nodes(slurm: Slurm, begin_s: float, end_s: float) -> list[NodeRun]:
    """The runs between two instants, epoch seconds; one that goes on ends at *end_s*.

    Raises:
        NoAccountingError: This cluster has none, or sacct is not installed.
        ClusterError: Accounting does not answer, or not readably.
    """
    seen: dict[tuple[str, float, float, str], None] = {}
    told = windows(partial(ask, slurm), FIELDS, _run_of, (begin_s, end_s))
    for _, _, runs, _ in told:  # A run that spans windows is in each of them.
        seen.update(dict.fromkeys(runs))
    return [
        (node, start_s, stop_s or end_s)
        for _, start_s, stop_s, nodes in seen
        if start_s
        for node in expand(nodes)
    ]


def idle_nodes(slurm: Slurm) -> list[str]:
    """Nodes that are up, have no job and are not powered down, sorted; ClusterError as above."""
    nonce = new_nonce()
    nodes = read_nodes(slurm.run("sinfo", *node_arguments(nonce)), nonce).nodes
    states = {name: node.state.lower() for name, node in nodes.items()}
    return sorted(
        name
        for name, state in states.items()
        if state.split("+")[0] == "idle" and is_up(state) and "power" not in state
    )


def _run_of(record: Record) -> tuple[str, float, float, str]:
    """Its id, start, end (0: it goes on) and node list; start 0 if it held no node."""
    start_s, end_s = (bounded_epoch_s(record[name]) for name in ("Start", "End"))
    nodes = record["NodeList"]
    held = nodes not in NO_WORDS and 0 < names_in(nodes) <= MOST_NODES
    return record["JobID"], start_s * held, end_s, nodes
