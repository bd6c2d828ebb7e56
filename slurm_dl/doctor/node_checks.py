"""Whether what nodes offer, and what jobs ask of them, is what slurm_dl counts."""

from __future__ import annotations

import re
from collections import Counter

from slurm_dl.doctor.check_result import CheckResult, check, ok, warning
from slurm_dl.doctor.site import Site
from slurm_dl.slurm.read.conditions import CONDITION_ARGUMENTS, read_conditions, read_licences
from slurm_dl.slurm.read.grammar import gres_items
from slurm_dl.slurm.read.usable_nodes import keeps_for_itself
from slurm_dl.text import escaped

_MIG = re.compile(r"[0-9]g\.[0-9]+gb")


@check("nodes")
def nodes(site: Site) -> CheckResult:
    """Nodes that keep cores for their own daemons, and nodes with GPUs of several types."""
    keep = [name for name, words in site.nodes.items() if keeps_for_itself(words)]
    told = "no node keeps cores or memory for itself"
    if keep:
        told = (
            f"{len(keep)} nodes keep cores or memory for themselves (CoreSpecCount, MemSpecLimit), "
            f"such as {keep[0]}, of which the rest is counted"
        )
    types = {
        name: {kind for what, kind, _ in gres_items(words.get("Gres", "")) if what == "gpu"}
        for name, words in site.nodes.items()
    }
    mixed = [name for name, of in types.items() if len(of) > 1]
    if not mixed:
        return ok(f"{told}; each node has GPUs of one type")
    told += f"; {len(mixed)} nodes have GPUs of several types, such as {mixed[0]} "
    told += f"({', '.join(sorted(types[mixed[0]]))})"
    slices = {kind for of in types.values() for kind in of if _MIG.search(kind)}
    unweighted = sorted(slices - site.config.service.weights.keys())
    if not unweighted:
        return ok(told)
    return warning(
        f"{told}, and {unweighted[0]}, a part of a GPU, counts as a whole one",
        "say what part of a GPU each MIG profile is in service.weights, for example "
        f"{{{unweighted[0]}: 0.14}}",
    )


@check("unknown conditions")
def unknown_conditions(site: Site) -> CheckResult:
    """Pending jobs of managed partitions with options that are not understood."""
    managed = ",".join(partition.name for partition in site.managed)
    text = site.ask("squeue", f"--partition={managed}", *CONDITION_ARGUMENTS)
    told, unreadable = read_conditions(text)
    licences = read_licences(site.slurm) if any(asked.licences for asked in told.values()) else {}
    counts = Counter(option for asked in told.values() for option in asked.unknown(licences))
    counts.update(escaped(line)[:80] for line in unreadable)
    if not counts:
        return ok("no pending job asks for what is not understood")
    named = ", ".join(f"{option} ({jobs})" for option, jobs in sorted(counts.items()))
    return warning(
        f"pending jobs have options of which it is not known which nodes would do: {named}",
        "tell their owners: no GPUs are taken back for such jobs, Slurm starts them once there is "
        "room",
    )
