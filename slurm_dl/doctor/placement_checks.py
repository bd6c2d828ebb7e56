"""Whether jobs can go where they should: what is known of the network, and who spreads them."""

from __future__ import annotations

from slurm_dl.doctor.check_result import CheckResult, error, ok, warning
from slurm_dl.doctor.findings import Findings, need

_LEAVES = {"tree": "leaf switches", "block": "blocks"}
_MOST_MODELS = 5


def placement(found: Findings) -> CheckResult:
    """Who places jobs, and what is known of the network to do it by."""
    section = found.config.placement
    told = section.in_words()
    if not section.scheme:
        return ok(told)
    plugin = found.controller.text("TopologyPlugin").lower()
    leaves = _LEAVES.get(plugin.rpartition("/")[2])
    if leaves is None:
        return warning(
            f"{told}; TopologyPlugin={plugin or 'none'}: all nodes count as one leaf switch, no "
            "scheme can keep a job on one",
            "in slurm.conf: TopologyPlugin=topology/tree; with the switches in topology.conf, or "
            "topology/block with blocks, unless all nodes are equally near",
        )
    return ok(f"{told}; {leaves} are known ({plugin})")


def fragments(found: Findings) -> CheckResult:
    """Least-loaded nodes first leaves no node whole."""
    key = "SelectTypeParameters"
    names = [p.name for p in found.managed() if p.text("LLN").upper() == "YES"]
    where = [f"partition {name}" for name in names]
    lines = [f"in slurm.conf, partitions {', '.join(names)}: LLN=NO"] if names else []
    if "cr_lln" in found.controller.options(key):
        where.insert(0, f"{key} (CR_LLN)")
        # Without a unit of its own Slurm counts CPUs.
        line = found.controller.line_without(key, "cr_lln", none="CR_CPU")
        lines.insert(0, f"in slurm.conf: {line}")
    if not where:
        return ok("Slurm fills nodes up (no LLN)")
    return warning(
        f"LLN in {', '.join(where)}: Slurm starts jobs on the least loaded nodes, so none stays "
        "whole for large ones",
        f"{'; '.join(lines)}; unless that is meant: jobs that are steered stay on the nodes chosen "
        "for them all the same",
    )


def node_weights(found: Findings) -> CheckResult:
    """Slurm takes nodes of low Weight first, before it looks at topology."""
    weights = need(found.weights)
    if len(weights) <= 1:
        return ok("all nodes of managed partitions have the same Weight")
    told = ", ".join(str(weight) for weight in weights[:4]) + (", ..." if weights[4:] else "")
    return warning(
        f"nodes of managed partitions have Weight {told}: Slurm takes the lowest first, whatever "
        "the topology",
        f"in slurm.conf: Weight={weights[0]} on all NodeName lines of theirs; now and until then: "
        f"scontrol update NodeName=NODES Weight={weights[0]}; unless that is meant: a job that is "
        "steered stays on the nodes chosen for it",
    )


def profiles(found: Findings) -> CheckResult:
    """The profiles of models can be read, and jobs name models that there are."""
    seen = need(found.profiles)
    directory = found.config.paths.profile_dir
    if seen.mistakes:
        more = f" (and {len(seen.mistakes) - 1} more)" if seen.mistakes[1:] else ""
        return error(
            f"{seen.mistakes[0]}{more}",
            "correct it; dlschedd does not start like this, and a reload keeps the old ones",
        )
    told = f"{seen.models} models, {seen.of_site} of them by files in {directory}"
    unknown = need(seen.unknown)
    if not unknown:
        return ok(told)
    names = [f"{name} ({jobs})" for name, jobs in list(unknown.items())[:_MOST_MODELS]]
    more = f" and {len(unknown) - len(names)} more" if len(unknown) > len(names) else ""
    return warning(
        f"{told}; jobs name models without a profile: {', '.join(names)}{more}",
        f"write a profile of each into {directory} and reload dlschedd; until then such a job "
        "counts as one whose model is not known",
    )
